use super::*;
use crate::fieldset::PathElement;
use crate::test_schema::workload;
use proptest::prelude::*;
use serde_json::json;

const V: &str = "apps/v1";

/// A resource in memory, written to as an API server would, by schema or without.
struct Store {
    schema: Option<Schema>,
    live: Option<Object>,
    clock: u32,
}

impl Store {
    fn new() -> Self {
        Self { schema: Some(workload()), live: None, clock: 0 }
    }

    fn with<T>(&mut self, manager: &str, subresource: &str, f: impl FnOnce(Option<&Object>, &Context<'_>) -> T) -> T {
        self.clock += 1;
        let time = format!("2026-01-01T00:{:02}:{:02}Z", self.clock / 60, self.clock % 60);
        let cx = Context {
            manager,
            api_version: V,
            subresource,
            schema: self.schema.as_ref(),
            time: &time,
            reset_fields: Set::EMPTY,
            versions: &OneVersion,
        };
        f(self.live.as_ref(), &cx)
    }

    fn update(&mut self, manager: &str, change: impl FnOnce(&mut Value)) {
        let mut v = self.live.clone().map_or_else(|| base(json!({})), Object::into_value);
        change(&mut v);
        let mut new = Object::from_value(v).unwrap();
        self.with(manager, "", |live, cx| update(live, &mut new, cx));
        new.set_uid("u");
        self.live = Some(new);
    }

    fn apply(&mut self, manager: &str, force: Force, config: Value) -> Result<bool, Error> {
        let config = Object::from_value(base(config)).unwrap();
        let applied = self.with(manager, "", |live, cx| apply(live, &config, force, cx))?;
        let changed = applied.is_some();
        if let Some(mut o) = applied {
            o.set_uid("u");
            self.live = Some(o);
        }
        Ok(changed)
    }

    fn conflicts(&mut self, manager: &str, config: Value) -> Vec<(String, String)> {
        match self.apply(manager, Force::No, config) {
            Err(Error::Conflict(c)) => c.list().0.iter().map(|c| (c.manager.clone(), c.field())).collect(),
            other => panic!("no conflict: {other:?}"),
        }
    }

    fn object(&self) -> Value {
        let mut o = self.live.clone().unwrap();
        take_managed_fields(&mut o);
        o.remove(&["metadata", "uid"]);
        o.0.remove("apiVersion");
        o.0.remove("kind");
        if o.metadata().is_some_and(serde_json::Map::is_empty) {
            o.0.remove("metadata");
        }
        o.into_value()
    }

    fn managers(&self) -> Managers {
        let mut o = self.live.clone().unwrap();
        Managers::decode(&take_managed_fields(&mut o).unwrap_or_default()).unwrap()
    }

    fn unchanged(&self) -> impl Fn(usize) -> Value {
        let list = self.live.as_ref().unwrap().metadata().unwrap()["managedFields"].clone();
        move |i| list[i].clone()
    }

    fn owns(&self, manager: &str) -> Value {
        let e = self.managers().0.into_iter().find(|e| e.manager == manager);
        e.map_or(Value::Null, |e| e.fields.to_value())
    }
}

fn base(mut v: Value) -> Value {
    v["apiVersion"] = V.into();
    v["kind"] = "Workload".into();
    v
}

fn containers(list: Value) -> Value {
    json!({"spec": {"template": {"spec": {"containers": list}}}})
}

/// Groundwork of S02.
#[test]
fn a_create_owns_every_field_but_the_stripped_ones() {
    let mut s = Store::new();
    s.update("m", |v| {
        *v = base(json!({
            "metadata": {"name": "x", "namespace": "d", "uid": "", "labels": {"a": "1"}, "finalizers": ["f"]},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "1"}},
                "template": {"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}], "args": ["x"]}]}}},
            "free": {"deep": {"er": [1, {"x": 2}]}}
        }));
    });
    assert_eq!(
        s.owns("m"),
        json!({
            "f:metadata": {"f:labels": {".": {}, "f:a": {}}, "f:finalizers": {".": {}, "v:\"f\"": {}}},
            "f:spec": {".": {}, "f:replicas": {}, "f:selector": {}, "f:template": {".": {}, "f:spec": {".": {}, "f:containers": {".": {},
                "k:{\"name\":\"c\"}": {".": {}, "f:name": {}, "f:args": {}, "f:ports": {".": {},
                    "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}}}}}}},
            "f:free": {".": {}, "f:deep": {".": {}, "f:er": {}}}
        })
    );
    let e = &s.managers().0[0];
    assert_eq!((e.operation, e.api_version.as_str(), e.time.is_some()), (Operation::Update, V, true));
}

/// Groundwork of S05.
#[test]
fn updates_transfer_ownership_and_never_conflict() {
    let mut s = Store::new();
    s.apply("m1", Force::No, json!({"data": {"a": "1", "b": "1"}})).unwrap();
    s.update("up", |v| v["data"]["a"] = "2".into());
    assert_eq!(s.owns("m1"), json!({"f:data": {"f:b": {}}}));
    assert_eq!(s.owns("up"), json!({"f:data": {"f:a": {}}}));
    s.update("up", |v| _ = v["data"].as_object_mut().unwrap().remove("b"));
    assert_eq!(s.owns("m1"), Value::Null);
    // Nothing changed: nothing moves, not even the times.
    let before = s.live.clone();
    s.update("other", |_| {});
    assert_eq!(s.live, before);
    // The same manager's fields add up.
    s.update("up", |v| v["data"]["c"] = "3".into());
    assert_eq!(s.owns("up"), json!({"f:data": {"f:a": {}, "f:c": {}}}));
}

/// Groundwork of S03.
#[test]
fn conflicts_name_the_manager_and_the_field() {
    let mut s = Store::new();
    s.apply("m1", Force::No, json!({"spec": {"replicas": 1}, "data": {"a": "1"}})).unwrap();
    let c = s.conflicts("m2", json!({"spec": {"replicas": 2}}));
    assert_eq!(c, vec![("\"m1\"".to_owned(), ".spec.replicas".to_owned())]);
    s.update("up", |v| v["data"]["b"] = "1".into());
    let Err(e) = s.apply("m2", Force::No, json!({"spec": {"replicas": 2}, "data": {"a": "2", "b": "2"}})) else {
        panic!("applied")
    };
    let status = e.status();
    assert_eq!((status.code, status.reason), (409, Reason::Conflict));
    assert_eq!(
        status.message,
        "Apply failed with 3 conflicts: conflicts with \"m1\":\n- .data.a\n- .spec.replicas\nconflicts with \"up\" using apps/v1:\n- .data.b"
    );
    let causes = status.details.unwrap().causes;
    assert_eq!(causes[2].message, "conflict with \"up\" using apps/v1");
    assert_eq!((causes[2].field.as_str(), causes[2].reason.as_str()), (".data.b", "FieldManagerConflict"));
    let Err(e) = s.apply("m2", Force::No, json!({"spec": {"replicas": 2}})) else { panic!("applied") };
    assert_eq!(e.to_string(), "Apply failed with 1 conflict: conflict with \"m1\": .spec.replicas");
    s.live = s.with("scaler", "scale", |live, cx| {
        let mut o = live.unwrap().clone();
        o.set(&["spec", "replicas"], 5);
        update(live, &mut o, cx);
        Some(o)
    });
    let c = s.conflicts("m2", json!({"spec": {"replicas": 2}}));
    assert_eq!(c[0].0, "\"scaler\" with subresource \"scale\" using apps/v1");
}

/// Groundwork of S03.
#[test]
fn force_takes_and_equal_values_are_shared() {
    let mut s = Store::new();
    s.apply("m1", Force::No, json!({"spec": {"replicas": 1}, "data": {"a": "1"}})).unwrap();
    s.apply("m2", Force::No, json!({"data": {"a": "1"}})).unwrap();
    assert_eq!(s.owns("m2"), json!({"f:data": {"f:a": {}}}));
    s.apply("m2", Force::Yes, json!({"data": {"a": "2"}, "spec": {"replicas": 1}})).unwrap();
    assert_eq!(s.owns("m1"), json!({"f:spec": {"f:replicas": {}}}));
    // Giving up a shared field leaves it.
    s.apply("m2", Force::No, json!({"data": {"a": "2"}})).unwrap();
    assert_eq!(s.object(), json!({"spec": {"replicas": 1}, "data": {"a": "2"}}));
    assert_eq!(s.owns("m2"), json!({"f:data": {"f:a": {}}}));
}

/// Groundwork of S04.
#[test]
fn dropped_fields_go_unless_somebody_owns_them() {
    let c = |items: &[(&str, &str)]| {
        containers(items.iter().map(|(n, i)| json!({"name": n, "image": i})).collect::<Vec<_>>().into())
    };
    let mut s = Store::new();
    s.apply("m1", Force::No, c(&[("a", "1"), ("b", "1")])).unwrap();
    s.apply("m2", Force::No, c(&[("b", "1"), ("c", "1")])).unwrap();
    s.apply("m1", Force::No, c(&[("a", "1")])).unwrap();
    assert_eq!(s.object(), c(&[("a", "1"), ("b", "1"), ("c", "1")]));
    s.apply("m2", Force::No, json!({"metadata": {"labels": {"x": "1"}}})).unwrap();
    let mut want = c(&[("a", "1")]);
    want["metadata"] = json!({"labels": {"x": "1"}});
    assert_eq!(s.object(), want);
    s.apply("m1", Force::No, json!({})).unwrap();
    assert_eq!(s.object(), json!({"metadata": {"labels": {"x": "1"}}}));
    assert_eq!(s.owns("m1"), Value::Null);
    // Fields without an owner, or owned by an updater, stay.
    let mut s = Store::new();
    s.apply("m1", Force::No, json!({"data": {"a": "1", "b": "1"}})).unwrap();
    s.update("up", |v| v["data"]["c"] = "1".into());
    s.apply("m1", Force::No, json!({"data": {"a": "1"}})).unwrap();
    assert_eq!(s.object(), json!({"data": {"a": "1", "c": "1"}}));
}

/// Groundwork of S06.
#[test]
fn topology_decides_what_is_owned() {
    let mut s = Store::new();
    s.apply(
        "m1",
        Force::No,
        json!({"metadata": {"finalizers": ["a", "b"]}, "spec": {"selector": {"matchLabels": {"a": "1"}}}}),
    )
    .unwrap();
    s.apply("m2", Force::No, json!({"metadata": {"finalizers": ["b", "c"]}})).unwrap();
    assert_eq!(s.object()["metadata"]["finalizers"], json!(["a", "b", "c"]));
    assert_eq!(s.owns("m2"), json!({"f:metadata": {"f:finalizers": {"v:\"b\"": {}, "v:\"c\"": {}}}}));
    let c = s.conflicts("m2", json!({"spec": {"selector": {"matchLabels": {"b": "1"}}}}));
    assert_eq!(c[0].1, ".spec.selector");
    // The default of a key completes it.
    let port = |p: Value| containers(json!([{"name": "c", "ports": [p]}]));
    let mut s = Store::new();
    s.apply("m1", Force::No, port(json!({"containerPort": 80, "name": "x"}))).unwrap();
    let c = s.conflicts("m2", port(json!({"containerPort": 80, "protocol": "TCP", "name": "y"})));
    assert_eq!(c[0].1, ".spec.template.spec.containers[name=\"c\"].ports[containerPort=80,protocol=\"TCP\"].name");
    s.apply("m2", Force::No, port(json!({"containerPort": 80, "protocol": "UDP"}))).unwrap();
    let ports = &s.object()["spec"]["template"]["spec"]["containers"][0]["ports"];
    assert_eq!(ports.as_array().unwrap().len(), 2);
}

/// Groundwork of S07.
#[test]
fn without_a_schema_maps_are_granular_and_lists_atomic() {
    let mut s = Store { schema: None, ..Store::new() };
    s.apply("m1", Force::No, json!({"spec": {"a": {"x": 1}, "l": [{"name": "a"}]}})).unwrap();
    assert_eq!(s.owns("m1"), json!({"f:spec": {".": {}, "f:a": {".": {}, "f:x": {}}, "f:l": {}}}));
    s.apply("m2", Force::No, json!({"spec": {"a": {"y": 2}}})).unwrap();
    let c = s.conflicts("m2", json!({"spec": {"l": []}}));
    assert_eq!(c[0].1, ".spec.l");
    assert_eq!(s.object(), json!({"spec": {"a": {"x": 1, "y": 2}, "l": [{"name": "a"}]}}));
}

/// Groundwork of S01.
#[test]
fn what_cannot_be_applied_is_said() {
    let mut s = Store::new();
    for (config, code, want) in [
        (json!({"metadata": {"managedFields": []}}), 400, "metadata.managedFields must be nil"),
        (
            json!({"spec": {"nope": 1, "nada": 2}}),
            400,
            "errors:\n  .spec.nada: field not declared in schema\n  .spec.nope: field not declared in schema",
        ),
        (json!({"spec": {"replicas": "x"}}), 400, ".spec.replicas: expected numeric (int or float), got string"),
        (
            containers(json!([{"name": "a"}, {"name": "a"}])),
            400,
            ".spec.template.spec.containers: duplicate entries for key [name=\"a\"]",
        ),
        (containers(json!([{"image": "a"}])), 400, "omits all key fields"),
        (json!({"metadata": {"finalizers": ["a", "a"]}}), 400, "duplicate entries for key [=\"a\"]"),
    ] {
        let Err(e) = s.apply("m", Force::No, config) else { panic!("{want}") };
        assert!(e.to_string().contains(want), "{e}");
        assert_eq!(e.status().code, code);
    }
    let other = Object::from_value(json!({"apiVersion": "apps/v2"})).unwrap();
    let e = s.with("m", "", |live, cx| apply(live, &other, Force::No, cx)).unwrap_err();
    assert_eq!(
        e.to_string(),
        "Incorrect version specified in apply patch. Specified patch version: apps/v2, expected: apps/v1"
    );
}

/// Groundwork of S08.
#[test]
fn the_handover_of_replicas() {
    let config = |replicas: bool| {
        let mut c =
            json!({"metadata": {"labels": {"app": "nginx"}}, "spec": {"selector": {"matchLabels": {"app": "nginx"}}}});
        if replicas {
            c["spec"]["replicas"] = 3.into();
        }
        c
    };
    let mut s = Store::new();
    s.apply("kubectl", Force::No, config(true)).unwrap();
    s.apply("handover-to-hpa", Force::No, json!({"spec": {"replicas": 3}})).unwrap();
    s.apply("kubectl", Force::No, config(false)).unwrap();
    assert_eq!(s.object()["spec"]["replicas"], 3);
    s.update("hpa", |v| v["spec"]["replicas"] = 5.into());
    assert_eq!(s.owns("handover-to-hpa"), Value::Null);
    assert_eq!(s.owns("hpa"), json!({"f:spec": {"f:replicas": {}}}));
}

/// Groundwork of S09.
#[test]
fn kubectl_takes_over_from_client_side_apply() {
    let mut s = Store::new();
    let last = base(json!({"data": {"a": "1", "b": "1"}})).to_string();
    s.update("kubectl-client-side-apply", |v| {
        v["data"] = json!({"a": "1", "b": "1"});
        v["metadata"] = json!({"annotations": {LAST_APPLIED: last}});
    });
    let config = json!({"data": {"a": "2", "b": "1"}});
    assert!(s.apply("someone", Force::No, config.clone()).is_err());
    s.apply("kubectl", Force::No, config.clone()).unwrap();
    assert_eq!(s.object()["data"]["a"], "2");
    // The annotation follows.
    let text = s.live.as_ref().unwrap().annotation(LAST_APPLIED).unwrap().to_owned();
    assert_eq!(text, format!("{}\n", base(config)));
    // A later change of another manager conflicts.
    s.update("editor", |v| v["data"]["b"] = "9".into());
    let c = s.conflicts("kubectl", json!({"data": {"b": "3"}}));
    assert_eq!(c, vec![("\"editor\" using apps/v1".to_owned(), ".data.b".to_owned())]);
}

/// Groundwork of S10. An empty list resets as well, other than the documentation says: so the real server has it, by its own tests.
#[test]
fn managed_fields_are_reset_by_an_empty_list_or_entry() {
    let mut s = Store::new();
    s.apply("m1", Force::No, json!({"data": {"a": "1"}})).unwrap();
    let kept = s.managers();
    let mut emptied = Store { live: s.live.clone(), ..Store::new() };
    emptied.update("u", |v| v["metadata"]["managedFields"] = json!([]));
    assert!(emptied.managers().0.is_empty());
    s.update("u", |v| v["metadata"]["managedFields"] = json!(null));
    assert_eq!(s.managers(), kept);
    s.update("u", |v| _ = v["metadata"].as_object_mut().unwrap().remove("managedFields"));
    assert_eq!(s.managers(), kept);
    s.update("u", |v| v["metadata"]["managedFields"] = json!([{"manager": "x", "operation": "Frob"}]));
    assert_eq!(s.managers(), kept);
    s.update("u", |v| v["metadata"]["managedFields"] = json!([{}]));
    assert!(s.managers().0.is_empty());
    // Untracked objects stay so until something is applied, which finds all fields without a specific owner.
    s.update("u", |v| v["data"]["b"] = "1".into());
    assert!(s.managers().0.is_empty());
    let c = s.conflicts("m2", json!({"data": {"a": "2"}}));
    assert_eq!(c[0].0, "\"before-first-apply\" using apps/v1");
    s.apply("m2", Force::No, json!({"data": {"a": "1"}})).unwrap();
    assert_eq!(s.owns("before-first-apply"), json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}}));
}

/// An untracked object gets no managed fields.
#[test]
fn nothing_is_never_written_as_null() {
    let mut s = Store::new();
    s.live = Object::from_value(base(json!({"spec": {"replicas": 1}})));
    s.live.as_mut().unwrap().set_uid("u");
    for given in [json!([]), json!([{}]), Value::Null] {
        s.update("a", |v| v["metadata"]["managedFields"] = given.clone());
        let metadata = s.live.as_ref().unwrap().metadata().unwrap();
        assert!(!metadata.contains_key("managedFields"), "{given}: {metadata:?}");
    }
    let live = s.live.clone().unwrap();
    let mut scaled = live.clone();
    s.with("b", "scale", |_, cx| update_field(&live, &mut scaled, &["spec", "replicas"], cx));
    assert!(!scaled.metadata().unwrap().contains_key("managedFields"));
}

#[test]
fn clients_may_write_entries_but_not_through_subresources() {
    let mut s = Store::new();
    s.apply("m1", Force::No, json!({"data": {"a": "1"}, "spec": {"replicas": 1}})).unwrap();
    let entry = json!([{"manager": "given", "operation": "Update", "apiVersion": V, "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:a": {}}}}]);
    let mut o = s.live.clone().unwrap();
    o.set(&["metadata", "managedFields"], entry.clone());
    let before = s.managers();
    let through = s.with("u", "status", |live, cx| {
        let mut o = o.clone();
        update(live, &mut o, cx);
        o
    });
    assert_eq!(Store { live: Some(through), ..Store::new() }.managers(), before);
    s.update("u", |v| v["metadata"]["managedFields"] = entry);
    assert_eq!(s.owns("given"), json!({"f:data": {"f:a": {}}}));
}

#[test]
fn old_updates_are_merged_when_there_are_too_many() {
    let mut s = Store::new();
    s.apply("applier", Force::No, json!({"data": {"z": "1"}})).unwrap();
    for i in 0..14 {
        s.update(&format!("m{i:02}"), |v| v["data"][format!("k{i:02}")] = "1".into());
    }
    let m = s.managers();
    let updates: Vec<&str> =
        m.0.iter().filter(|e| e.operation == Operation::Update).map(|e| e.manager.as_str()).collect();
    assert_eq!(updates.len(), MAX_UPDATE_MANAGERS);
    assert_eq!(updates[0], ANCIENT);
    let ancient = s.owns(ANCIENT);
    for i in 0..5 {
        assert!(ancient["f:data"].get(format!("f:k{i:02}")).is_some(), "{ancient}");
    }
    assert_eq!(s.owns("applier"), json!({"f:data": {"f:z": {}}}));
}

#[test]
fn reset_fields_are_not_owned() {
    let mut o = Object::from_value(base(json!({"spec": {"replicas": 1}, "status": {"replicas": 1}}))).unwrap();
    let mut s = Store::new();
    let reset = Set::of_fields(&[&["status"]]);
    s.with("m", "", |live, cx| update(live, &mut o, &Context { reset_fields: &reset, ..*cx }));
    s.live = Some(o);
    assert_eq!(s.owns("m"), json!({"f:spec": {".": {}, "f:replicas": {}}}));
    let config = Object::from_value(base(json!({"spec": {"replicas": 1}, "status": {"replicas": 4}}))).unwrap();
    let out = s.with("a", "", |live, cx| apply(live, &config, Force::No, &Context { reset_fields: &reset, ..*cx }));
    s.live = out.unwrap();
    assert_eq!(s.owns("a"), json!({"f:spec": {"f:replicas": {}}}));
}

#[test]
fn repeated_items_of_live_objects_are_tolerated() {
    let mut s = Store::new();
    let env = |l: Value| containers(json!([{"name": "c", "env": l}]));
    let dup = env(json!([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]));
    s.update("up", |v| v["spec"] = dup["spec"].clone());
    let owned = s.owns("up");
    let e = &owned["f:spec"]["f:template"]["f:spec"]["f:containers"]["k:{\"name\":\"c\"}"]["f:env"];
    assert_eq!(e, &json!({".": {}, "k:{\"name\":\"A\"}": {}}));
    s.apply("m", Force::No, env(json!([{"name": "B", "value": "1"}]))).unwrap();
    let list = &s.object()["spec"]["template"]["spec"]["containers"][0]["env"];
    assert_eq!(list.as_array().unwrap().len(), 3);
    assert_eq!(s.conflicts("m", env(json!([{"name": "A", "value": "3"}])))[0].0, "\"up\" using apps/v1");
    s.apply("m", Force::Yes, env(json!([{"name": "A", "value": "3"}]))).unwrap();
    let list = &s.object()["spec"]["template"]["spec"]["containers"][0]["env"];
    assert_eq!(list, &json!([{"name": "A", "value": "3"}]));
}

/// Groundwork of S07.
#[test]
fn a_field_that_became_atomic_is_owned_whole() {
    let mut s = Store::new();
    s.apply("m1", Force::No, json!({"data": {"a": "1"}})).unwrap();
    s.apply("m2", Force::No, json!({"data": {"b": "1"}})).unwrap();
    let mut atomic = workload();
    atomic.fields.iter_mut().find(|f| &*f.name == "data").unwrap().atomic = true;
    s.schema = Some(atomic);
    let c = s.conflicts("m3", json!({"data": {"a": "2"}}));
    assert_eq!(c.len(), 2);
    assert!(c.iter().all(|c| c.1 == ".data"));
}

/// Groundwork of S12.
#[test]
fn other_versions_are_compared_by_conversion() {
    /// Version v0 calls `data` `items`.
    struct Renamed(Schema);
    impl Versions for Renamed {
        fn convert(&self, o: &Object, v: &str) -> Result<Option<Object>, String> {
            let (from, to) = match v {
                "v0" => ("data", "items"),
                V => ("items", "data"),
                _ => return Ok(None),
            };
            let mut o = o.clone();
            if let Some(d) = o.0.remove(from) {
                o.0.insert(to.to_owned(), d);
            }
            Ok(Some(o))
        }
        fn schema(&self, _: &str) -> Option<&Schema> {
            None
        }
    }
    let versions = Renamed(workload());
    let mut s = Store { schema: None, ..Store::new() };
    s.apply("m1", Force::No, json!({"data": {"a": "1", "b": "1"}})).unwrap();
    let mut o = s.live.clone().unwrap();
    let mut old = s.managers();
    old.0[0].api_version = "v0".to_owned();
    old.0[0].set_fields(|_| Set::of_fields(&[&["items"], &["items", "a"], &["items", "b"]]));
    let mut gone = Entry::new("gone", Operation::Update, "v9", "");
    gone.fields = Set::of_fields(&[&["data", "a"]]);
    old.0.push(gone);
    o.set(&["metadata", "managedFields"], old.encode(s.unchanged()));
    s.live = Some(o);
    let config = Object::from_value(base(json!({"data": {"a": "2"}}))).unwrap();
    let e = s.with("m2", "", |live, cx| apply(live, &config, Force::No, &Context { versions: &versions, ..*cx }));
    assert_eq!(e.unwrap_err().to_string(), "Apply failed with 1 conflict: conflict with \"m1\": .items.a");
    // The old applier prunes in the version it applied in.
    let config = Object::from_value(base(json!({"data": {"a": "1"}}))).unwrap();
    let out = s.with("m1", "", |live, cx| apply(live, &config, Force::No, &Context { versions: &versions, ..*cx }));
    s.live = out.unwrap();
    assert_eq!(s.object(), json!({"data": {"a": "1"}}));
    assert_eq!(s.managers().0.len(), 1);
    assert!(versions.0.is_object());
}

#[test]
fn scaling_is_owned_only_where_replicas_were() {
    let scale = |s: &mut Store, n: i64| {
        let live = s.live.clone().unwrap();
        let mut new = live.clone();
        new.set(&["spec", "replicas"], n);
        s.with("scaler", "scale", |_, cx| update_field(&live, &mut new, &["spec", "replicas"], cx));
        s.live = Some(new);
    };
    let mut s = Store::new();
    s.apply("m1", Force::No, json!({"data": {"a": "1"}})).unwrap();
    scale(&mut s, 2);
    assert_eq!(s.owns("scaler"), Value::Null);
    s.apply("m1", Force::No, json!({"spec": {"replicas": 2}})).unwrap();
    scale(&mut s, 3);
    assert_eq!(s.owns("scaler"), json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(s.owns("m1"), Value::Null);
}

#[test]
fn objects_that_differ_in_times_only_are_the_same() {
    let mut s = Store::new();
    s.apply("m1", Force::No, json!({"data": {"a": "1"}})).unwrap();
    let a = s.live.clone().unwrap();
    let mut b = a.clone();
    b.set(&["metadata", "managedFields"], {
        let mut m = s.managers();
        m.0[0].set_time("2030-01-01T00:00:00Z");
        m.encode(s.unchanged())
    });
    assert_ne!(a, b);
    assert!(same_but_for_times(&a, &b));
    b.set(&["data", "a"], "2");
    assert!(!same_but_for_times(&a, &b));
}

#[test]
fn a_key_without_a_name_is_kept() {
    let mut s = Store::new();
    let config = json!({"metadata": {"labels": {"": "x", "a": "b"}}});
    s.apply("m", Force::No, config.clone()).unwrap();
    assert!(!s.apply("m", Force::No, config.clone()).unwrap(), "nothing changes");
    assert_eq!(s.object(), config);
}

fn config() -> impl Strategy<Value = Value> {
    let data = proptest::collection::btree_map("[a-c]", "[0-2]", 0..3);
    let list = proptest::collection::btree_map("[x-z]", "[0-2]", 0..3);
    let fin = proptest::sample::subsequence(vec!["f", "g"], 0..=2);
    (data, list, fin, proptest::option::of(0..3i64)).prop_map(|(d, l, f, r)| {
        let mut v = json!({});
        if !d.is_empty() {
            v["data"] = json!(d);
        }
        if !l.is_empty() {
            let l: Vec<Value> = l.iter().map(|(n, i)| json!({"name": n, "image": i})).collect();
            v["spec"] = json!({"template": {"spec": {"containers": l}}});
        }
        if !f.is_empty() {
            v["metadata"] = json!({ "finalizers": f });
        }
        if let Some(r) = r {
            v["spec"]["replicas"] = r.into();
        }
        v
    })
}

proptest! {
    #[test]
    fn applying_twice_is_applying_once(a in config(), b in config()) {
        let mut s = Store::new();
        s.apply("m1", Force::Yes, a).unwrap();
        s.apply("m2", Force::Yes, b.clone()).unwrap();
        let once = s.live.clone();
        prop_assert!(!s.apply("m2", Force::No, b).unwrap());
        prop_assert_eq!(once, s.live);
    }

    #[test]
    fn disjoint_managers_commute(a in config(), d in proptest::collection::btree_map("[p-r]", "[0-2]", 1..3)) {
        let b = json!({"data": d, "metadata": {"labels": {"l": "1"}}});
        let (mut s, mut t) = (Store::new(), Store::new());
        s.apply("m1", Force::No, a.clone()).unwrap();
        s.apply("m2", Force::No, b.clone()).unwrap();
        t.apply("m2", Force::No, b).unwrap();
        t.apply("m1", Force::No, a).unwrap();
        prop_assert_eq!(s.object(), t.object());
        prop_assert_eq!(s.owns("m1"), t.owns("m1"));
        prop_assert_eq!(s.owns("m2"), t.owns("m2"));
    }

    /// Whatever two managers do to each other, a third one's fields keep their values.
    #[test]
    fn force_never_loses_a_third_managers_fields(steps in proptest::collection::vec((any::<bool>(), config()), 1..6)) {
        let third = json!({"metadata": {"labels": {"t": "1"}}, "data": {"t": "1"}, "spec": {"paused": true}});
        let mut s = Store::new();
        s.apply("third", Force::No, third).unwrap();
        let owned = s.owns("third");
        for (first, c) in steps {
            s.apply(if first { "m1" } else { "m2" }, Force::Yes, c).unwrap();
            prop_assert_eq!(&s.owns("third"), &owned);
            let o = s.object();
            prop_assert_eq!(&o["data"]["t"], "1");
            prop_assert_eq!(&o["metadata"]["labels"]["t"], "1");
            prop_assert_eq!(&o["spec"]["paused"], true);
        }
    }

    /// After a forced apply, the object has the values of the configuration, and its manager owns exactly these.
    #[test]
    fn a_forced_apply_has_its_way(a in config(), b in config()) {
        let mut s = Store::new();
        s.apply("m1", Force::Yes, a).unwrap();
        s.apply("m2", Force::Yes, b.clone()).unwrap();
        let o = s.live.clone().unwrap();
        for p in s.managers().0.iter().filter(|e| e.manager == "m2").flat_map(|e| e.fields.paths()) {
            let fields: Vec<&str> = p.iter().map_while(|e| match e {
                PathElement::Field(f) => Some(&**f),
                _ => None,
            }).collect();
            if fields.len() == p.len() {
                let want = fields.iter().try_fold(&b, |v, k| v.get(*k));
                prop_assert_eq!(o.at(&fields), want);
            }
        }
    }
}

/// A client may send any number of entries, of as many managers and versions. Quadratic work on them takes minutes.
#[test]
fn any_number_of_entries_is_worked_through() {
    #[allow(clippy::disallowed_methods)] // a bound so wide that only quadratic work passes it
    let begun = std::time::Instant::now();
    let entry = |i: usize, operation: &str| {
        let fields = Value::from_iter([("f:data", Value::from_iter([(format!("f:k{i}"), json!({}))]))]);
        let version = if i.is_multiple_of(2) { V.to_owned() } else { format!("v{i}/v1") };
        json!({"manager": format!("m{i}"), "operation": operation, "apiVersion": version, "fieldsType": "FieldsV1",
            "fieldsV1": fields, "time": "2026-01-01T00:00:00Z"})
    };
    for operation in ["Update", "Apply"] {
        let mut s = Store::new();
        s.update("me", |v| v["data"] = Value::from_iter((0..20_000).map(|i| (format!("k{i}"), "x"))));
        let entries: Vec<Value> = (0..20_000).map(|i| entry(i, operation)).collect();
        s.update("me", |v| v["metadata"]["managedFields"] = entries.into());
        let applied = s.managers().0.iter().filter(|e| e.operation == Operation::Apply).count();
        assert_eq!(applied, if operation == "Apply" { 10_000 } else { 0 });
        assert!(s.managers().0.len() <= applied + MAX_UPDATE_MANAGERS + 1);
        s.update("other", |v| v["data"]["k0"] = "y".into());
        s.apply("a", Force::Yes, json!({"data": {"k1": "y", "new": "z"}})).unwrap();
        s.apply("a", Force::Yes, json!({"data": {"k1": "y"}})).unwrap();
        assert_eq!(s.object()["data"]["new"], Value::Null);
    }
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
}

/// Paths below a long key are long, and there can be many.
#[test]
fn conflicts_are_told_in_bounded_length() {
    let mut s = Store::new();
    s.schema = None;
    let long = "k".repeat(100_000);
    let config =
        |value: &str| json!({ long.as_str(): Value::from_iter((0..20_000).map(|i| (format!("k{i}"), value))) });
    s.apply("m1", Force::No, config("1")).unwrap();
    let Err(e) = s.apply("m2", Force::No, config("2")) else { panic!("no conflict") };
    let status = e.status();
    assert!(status.message.starts_with("Apply failed with 20000 conflicts") && status.message.contains("\nand 1"));
    assert!(status.to_value().to_string().len() < 2 << 20);
}

#[test]
fn only_new_nulls_are_dropped() {
    let before = json!({"a": null, "l": [1], "o": {"n": null, "l": [1]}, "i": [{"n": null}], "k": [{"l": [1]}]});
    let mut after = json!({"a": null, "l": null, "o": {"n": null, "l": null}, "i": [{"n": null}], "k": [{"l": null}]});
    crate::typed::drop_emptied_lists(&mut after, &before);
    assert_eq!(after, json!({"a": null, "o": {"n": null}, "i": [{"n": null}], "k": [{}]}));
}
