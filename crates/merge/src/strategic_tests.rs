use super::*;
use crate::test_schema::workload;
use meta::Map;
use serde_json::json;

fn map(v: &Value) -> Map<String, Value> {
    v.as_object().unwrap().clone()
}

fn patched(live: &Value, patch: &Value) -> Result<Value, Error> {
    let mut o = map(live);
    apply(&mut o, map(patch), Some(&workload()))?;
    Ok(Value::Object(o))
}

fn pod(spec: Value) -> Value {
    json!({"spec": {"template": {"spec": spec}}})
}

/// Groundwork of A08.
#[test]
fn directives_are_carried_out() {
    for (live, patch, want) in [
        (
            json!({"spec": {"replicas": 1, "paused": true}}),
            json!({"spec": {"replicas": 2}}),
            json!({"spec": {"replicas": 2, "paused": true}}),
        ),
        (
            json!({"spec": {"replicas": 1, "paused": true}}),
            json!({"spec": {"replicas": null}}),
            json!({"spec": {"paused": true}}),
        ),
        (
            json!({"spec": {"replicas": 1, "paused": true}}),
            json!({"spec": {"$patch": "replace", "replicas": 2}}),
            json!({"spec": {"replicas": 2}}),
        ),
        (json!({"data": {"a": "1"}}), json!({"data": {"$patch": "delete"}}), json!({"data": {}})),
        (
            json!({"spec": {"budget": {"a": "1"}}}),
            json!({"spec": {"budget": {"b": "1"}}}),
            json!({"spec": {"budget": {"b": "1"}}}),
        ),
        (json!({}), json!({"data": {"$patch": "delete"}}), json!({})),
        (json!({}), json!({"data": {"a": null, "b": "1"}}), json!({"data": {"b": "1"}})),
        (
            json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}),
            json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
            json!({"spec": {"strategy": {"type": "Recreate"}}}),
        ),
        (
            json!({"metadata": {"finalizers": ["a", "b", "c"]}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["b"], "finalizers": ["d"]}}),
            json!({"metadata": {"finalizers": ["d", "a", "c"]}}),
        ),
        (
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"$setElementOrder/finalizers": ["b", "a"]}}),
            json!({"metadata": {"finalizers": ["b", "a"]}}),
        ),
    ] {
        assert_eq!(patched(&live, &patch).unwrap(), want, "{patch}");
    }
}

/// Groundwork of A10.
#[test]
fn lists_are_merged_by_key_or_replaced() {
    let c = |name: &str, image: &str| json!({"name": name, "image": image});
    for (live, patch, want) in [
        (
            json!({"containers": [c("a", "1"), c("b", "1")]}),
            json!({"containers": [{"name": "b", "image": "2"}]}),
            json!({"containers": [c("a", "1"), c("b", "2")]}),
        ),
        (
            json!({"containers": [c("a", "1")]}),
            json!({"containers": [c("z", "2")]}),
            json!({"containers": [c("z", "2"), c("a", "1")]}),
        ),
        (
            json!({"containers": [c("a", "1"), c("b", "1")]}),
            json!({"containers": [{"name": "a", "$patch": "delete"}]}),
            json!({"containers": [c("b", "1")]}),
        ),
        (
            json!({"containers": [c("a", "1"), c("b", "1")]}),
            json!({"containers": [c("x", "1"), {"$patch": "replace"}]}),
            json!({"containers": [c("x", "1")]}),
        ),
        (
            json!({"containers": [c("a", "1"), c("s", "1"), c("b", "1")]}),
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "a", "image": "2"}]}),
            json!({"containers": [c("s", "1"), c("b", "1"), c("a", "2")]}),
        ),
        (
            json!({"tolerations": [{"key": "a"}, {"key": "b"}]}),
            json!({"tolerations": [{"key": "c"}]}),
            json!({"tolerations": [{"key": "c"}]}),
        ),
        (
            json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
            json!({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]}),
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
        ),
        (
            json!({"containers": [{"name": "a", "args": ["a", "b"]}]}),
            json!({"containers": [{"name": "a", "args": ["c"]}]}),
            json!({"containers": [{"name": "a", "args": ["c"]}]}),
        ),
    ] {
        assert_eq!(patched(&pod(live), &pod(patch.clone())).unwrap(), pod(want), "{patch}");
    }
}

#[test]
fn bad_patches_get_a_clear_error() {
    let live = json!({"metadata": {"finalizers": ["a"]}, "spec": {"strategy": {"type": "x"}, "template": {"spec": {"containers": [{"name": "a"}]}}}});
    for (patch, code, want) in [
        (pod(json!({"containers": [{"image": "x"}]})), 422, "does not contain declared merge key: name"),
        (pod(json!({"containers": [{"$patch": "delete"}]})), 422, "does not contain declared merge key: name"),
        (pod(json!({"containers": [{"name": "a", "$patch": "frob"}]})), 422, "unknown patch type: frob"),
        (pod(json!({"containers": [{"name": "a", "$patch": "merge"}]})), 422, "merging lists cannot yet"),
        (json!({"spec": {"$patch": "frob"}}), 422, "unknown patch type: frob"),
        (json!({"spec": {"strategy": {"$retainKeys": ["a"], "type": "y"}}}), 400, "invalid patch format of retainKeys"),
        (json!({"spec": {"strategy": {"$retainKeys": "a"}}}), 400, "invalid patch format of retainKeys"),
        (json!({"metadata": {"$setElementOrder/finalizers": "x"}}), 400, "setElementOrder"),
        (json!({"metadata": {"$setElementOrder/finalizers": ["b"], "finalizers": ["c"]}}), 422, "doesn't match"),
        (json!({"metadata": {"$deleteFromPrimitiveList": ["b"]}}), 400, "invalid patch format of primitive list"),
        (json!({"metadata": {"finalizers": [1]}}), 422, "list element types are not identical"),
        (json!({"metadata": {"finalizers": [["x"]]}}), 422, "lists of lists"),
    ] {
        let Err(e) = patched(&live, &patch) else { panic!("{patch} applied") };
        assert!(e.to_string().contains(want), "{patch}: {e}");
        assert_eq!(e.status().code, code, "{patch}");
    }
}

fn applied(original: &Value, modified: &Value, current: &Value) -> Value {
    let p = three_way(&map(original), &map(modified), &map(current), Some(&workload()), Overwrite::Yes).unwrap();
    patched(current, &Value::Object(p)).unwrap()
}

/// The tables for primitives, objects and maps: in the file, live, in the last configuration → action.
///
/// Groundwork of A09.
#[test]
fn the_four_rows() {
    for (original, modified, current, want) in [
        (
            json!({}),
            json!({"spec": {"replicas": 2}}),
            json!({"spec": {"replicas": 1}}),
            json!({"spec": {"replicas": 2}}),
        ),
        (json!({}), json!({"spec": {"replicas": 2}}), json!({"spec": {}}), json!({"spec": {"replicas": 2}})),
        (json!({"spec": {"replicas": 2}}), json!({"spec": {}}), json!({"spec": {"replicas": 5}}), json!({"spec": {}})),
        (json!({"spec": {}}), json!({"spec": {}}), json!({"spec": {"replicas": 5}}), json!({"spec": {"replicas": 5}})),
        (
            json!({}),
            json!({"data": {"a": "1"}}),
            json!({"data": {"a": "0", "b": "2"}}),
            json!({"data": {"a": "1", "b": "2"}}),
        ),
        (json!({}), json!({"data": {"a": "1"}}), json!({}), json!({"data": {"a": "1"}})),
        (json!({"data": {"a": "1"}}), json!({}), json!({"data": {"a": "1", "b": "2"}}), json!({})),
        (
            json!({"data": {"a": "1"}}),
            json!({"data": {}}),
            json!({"data": {"a": "1", "b": "2"}}),
            json!({"data": {"b": "2"}}),
        ),
        (json!({}), json!({}), json!({"data": {"b": "2"}}), json!({"data": {"b": "2"}})),
        // An explicit null removes what the server or another writer put there.
        (json!({}), json!({"spec": {"replicas": null}}), json!({"spec": {"replicas": 5}}), json!({"spec": {}})),
    ] {
        assert_eq!(applied(&original, &modified, &current), want, "{original} {modified} {current}");
    }
}

/// Groundwork of A04.
#[test]
fn the_walk_through() {
    let c = |image: &str| json!({"containers": [{"image": image, "name": "nginx", "ports": [{"containerPort": 80}]}]});
    let doc = |extra: Value, image: &str| {
        let mut v = json!({"spec": {"selector": {"matchLabels": {"app": "nginx"}}, "template": {"metadata": {"labels": {"app": "nginx"}}, "spec": c(image)}}});
        for (k, e) in extra.as_object().unwrap() {
            v["spec"][k] = e.clone();
        }
        v
    };
    let original = doc(json!({"minReadySeconds": 5}), "nginx:1.7.9");
    let modified = doc(json!({}), "nginx:1.11.9");
    let current = doc(json!({"minReadySeconds": 5, "replicas": 2}), "nginx:1.7.9");
    assert_eq!(applied(&original, &modified, &current), doc(json!({"replicas": 2}), "nginx:1.11.9"));
    let p = three_way(&map(&original), &map(&modified), &map(&current), Some(&workload()), Overwrite::Yes).unwrap();
    assert_eq!(
        Value::Object(p),
        json!({"spec": {"minReadySeconds": null, "template": {"spec": {
            "$setElementOrder/containers": [{"name": "nginx"}],
            "containers": [{"name": "nginx", "image": "nginx:1.11.9"}]}}}})
    );
}

/// Groundwork of A10.
#[test]
fn the_list_examples() {
    let a = |args: Value| pod(json!({"containers": [{"name": "c", "args": args}]}));
    assert_eq!(applied(&a(json!(["a", "b"])), &a(json!(["a", "c"])), &a(json!(["a", "b", "d"]))), a(json!(["a", "c"])));
    let c = |names: &[&str]| -> Vec<Value> {
        names
            .iter()
            .map(|n| json!({"name": n, "image": if *n == "nginx" { "nginx:1.10" } else { "helper:1.3" }}))
            .collect()
    };
    let mut current = c(&["nginx", "nginx-helper-a", "nginx-helper-b", "nginx-helper-d"]);
    current[2]["args"] = json!(["run"]);
    let got = applied(
        &pod(json!({"containers": c(&["nginx", "nginx-helper-a", "nginx-helper-b"])})),
        &pod(json!({"containers": c(&["nginx", "nginx-helper-b", "nginx-helper-c"])})),
        &pod(json!({ "containers": current })),
    );
    let mut want = c(&["nginx", "nginx-helper-b", "nginx-helper-c", "nginx-helper-d"]);
    want[1]["args"] = json!(["run"]);
    assert_eq!(got, pod(json!({ "containers": want })));
    // Primitive lists with patchStrategy merge are sets.
    let f = |l: Value| json!({"metadata": {"finalizers": l}});
    assert_eq!(
        applied(&f(json!(["a", "b"])), &f(json!(["c", "a"])), &f(json!(["a", "b", "x"]))),
        f(json!(["c", "a", "x"]))
    );
}

/// Groundwork of A11.
#[test]
fn switching_the_strategy_retains_only_its_keys() {
    let current =
        json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}}});
    let modified = json!({"spec": {"strategy": {"type": "Recreate"}}});
    assert_eq!(applied(&json!({"spec": {}}), &modified, &current), modified);
}

#[test]
fn two_way_patches_say_what_changed() {
    for (from, to, want) in [
        (json!({"data": {"a": "1"}}), json!({"data": {"a": "1"}}), json!({})),
        (json!({"data": {"a": "1"}}), json!({"data": {"b": "1"}}), json!({"data": {"a": null, "b": "1"}})),
        (
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"finalizers": ["c", "a"]}}),
            json!({"metadata": {"finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["b"], "$setElementOrder/finalizers": ["c", "a"]}}),
        ),
        (
            pod(json!({"containers": [{"name": "a"}, {"name": "b"}]})),
            pod(json!({"containers": [{"name": "b"}]})),
            pod(
                json!({"containers": [{"name": "a", "$patch": "delete"}], "$setElementOrder/containers": [{"name": "b"}]}),
            ),
        ),
        (
            pod(json!({"containers": [{"name": "a"}, {"name": "b"}]})),
            pod(json!({"containers": [{"name": "b"}, {"name": "a"}]})),
            pod(json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]})),
        ),
    ] {
        let p = two_way(&map(&from), &map(&to), Some(&workload())).unwrap();
        assert_eq!(Value::Object(p), want, "{from} {to}");
        assert_eq!(patched(&from, &want).unwrap(), to);
    }
}

#[test]
fn without_overwriting_others_changes_are_conflicts() {
    let (o, m) = (map(&json!({"spec": {"replicas": 1}})), map(&json!({"spec": {"replicas": 3}})));
    for (current, conflict) in
        [(json!({"spec": {"replicas": 2}}), true), (json!({"spec": {"replicas": 1, "paused": true}}), false)]
    {
        let got = three_way(&o, &m, &map(&current), Some(&workload()), Overwrite::No);
        assert_eq!(matches!(got, Err(Error::Conflict { .. })), conflict, "{current}");
    }
}

proptest::proptest! {
    /// A two-way patch brings any document to any other, whatever the lists.
    #[test]
    fn a_patch_of_two_documents_leads_from_one_to_the_other(
        a in proptest::collection::btree_map("[a-e]", "[0-9]", 0..5),
        b in proptest::collection::btree_map("[a-e]", "[0-9]", 0..5),
        fa in proptest::sample::subsequence(vec!["p", "q", "r", "s"], 0..=4),
        fb in proptest::sample::subsequence(vec!["s", "r", "q", "p"], 0..=4),
    ) {
        let doc = |m: &std::collections::BTreeMap<String, String>, f: &[&str]| {
            let c: Vec<Value> = m.iter().map(|(k, v)| json!({"name": k, "image": v})).collect();
            json!({"metadata": {"finalizers": f}, "spec": {"template": {"spec": {"containers": c}}}})
        };
        let (from, to) = (doc(&a, &fa), doc(&b, &fb));
        let p = two_way(&map(&from), &map(&to), Some(&workload())).unwrap();
        proptest::prop_assert_eq!(patched(&from, &Value::Object(p)).unwrap(), to);
    }
}

/// Lists of any length are merged, ordered and compared. Quadratic work on them takes minutes.
#[test]
fn long_lists_are_merged() {
    #[allow(clippy::disallowed_methods)] // a bound so wide that only quadratic work passes it
    let begun = std::time::Instant::now();
    let items =
        |from: usize, to: usize| -> Vec<Value> { (from..to).map(|i| json!({"name": format!("c{i}")})).collect() };
    let live = pod(json!({"containers": items(0, 20_000)}));
    let mut changes: Vec<Value> = (0..5_000).map(|i| json!({"name": format!("c{i}"), "$patch": "delete"})).collect();
    changes.extend(items(15_000, 40_000).into_iter().map(|mut c| {
        c["image"] = "i".into();
        c
    }));
    let order: Vec<Value> = items(5_000, 40_000);
    let patch = pod(json!({"containers": changes, "$setElementOrder/containers": order}));
    let got = patched(&live, &patch).unwrap();
    let containers = got["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    assert_eq!(
        (containers.len(), &containers[0]["name"], &containers[34_999]["image"]),
        (35_000, &json!("c5000"), &json!("i"))
    );
    let back = two_way(&map(&live), &map(&got), Some(&workload())).unwrap();
    assert_eq!(patched(&live, &Value::Object(back)).unwrap(), got);
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
}
