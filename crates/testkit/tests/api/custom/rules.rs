//! Validation of custom resources against their schemas, and of definitions.

use super::*;

/// Every constraint, with upstream's field, reason and words.
#[tokio::test(start_paused = true)]
async fn objects_are_validated_against_their_schema() {
    let c = with(spec(json!({
        "n": {"type": "integer", "minimum": 1, "maximum": 5}, "f": {"type": "number", "multipleOf": 0.5},
        "s": {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^a"},
        "e": {"type": "string", "enum": ["x", "y"]}, "ip": {"type": "string", "format": "ipv4"},
        "when": {"type": "string", "format": "date-time"}, "b": {"type": "boolean"},
        "l": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string"}},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}},
        "m": {"type": "object", "maxProperties": 1, "additionalProperties": {"type": "integer"}},
        "r": {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}, "c": {"type": "string"}},
            "oneOf": [{"required": ["a"]}, {"required": ["c"]}]},
        "ios": {"x-kubernetes-int-or-string": true},
    })))
    .await;
    let cases = [
        (json!({"n": 0}), "spec.n", "Invalid", "Invalid value: 0: spec.n in body should be greater than or equal to 1"),
        (json!({"n": 6}), "spec.n", "Invalid", "Invalid value: 6: spec.n in body should be less than or equal to 5"),
        (
            json!({"n": "1"}),
            "spec.n",
            "TypeInvalid",
            "Invalid value: \"string\": spec.n in body must be of type integer: \"string\"",
        ),
        (json!({"f": 0.75}), "spec.f", "Invalid", "Invalid value: 0.75: spec.f in body should be a multiple of 0.5"),
        (
            json!({"s": "a"}),
            "spec.s",
            "Invalid",
            "Invalid value: \"a\": spec.s in body should be at least 2 chars long",
        ),
        (json!({"s": "aaaaa"}), "spec.s", "TooLong", "Too long: may not be more than 4 bytes"),
        (json!({"s": "bb"}), "spec.s", "Invalid", "Invalid value: \"bb\": spec.s in body should match '^a'"),
        (json!({"e": "z"}), "spec.e", "NotSupported", "Unsupported value: \"z\": supported values: \"x\", \"y\""),
        (
            json!({"ip": "1.2.3"}),
            "spec.ip",
            "TypeInvalid",
            "Invalid value: \"1.2.3\": spec.ip in body must be of type ipv4: \"1.2.3\"",
        ),
        (json!({"when": "noon"}), "spec.when", "TypeInvalid", ""),
        (json!({"l": []}), "spec.l", "Invalid", "Invalid value: 0: spec.l in body should have at least 1 items"),
        (json!({"l": ["a", "b", "c"]}), "spec.l", "TooMany", "Too many: 3: must have at most 2 items"),
        (json!({"l": ["a", 1]}), "spec.l[1]", "TypeInvalid", ""),
        (json!({"set": ["a", "b", "a"]}), "spec.set[2]", "Duplicate", "Duplicate value: \"a\""),
        (json!({"map": [{"k": "a"}, {"k": "a"}]}), "spec.map[1]", "Duplicate", "Duplicate value: {\"k\":\"a\"}"),
        (json!({"map": [{}]}), "spec.map[0].k", "Required", "Required value"),
        (json!({"m": {"a": 1, "b": 2}}), "spec.m", "TooMany", ""),
        (json!({"m": {"a": "x"}}), "spec.m.a", "TypeInvalid", ""),
        (json!({"ios": 1.5}), "spec.ios", "TypeInvalid", ""),
        (json!({"b": "yes"}), "spec.b", "TypeInvalid", ""),
        (json!("none"), "spec", "TypeInvalid", ""),
        (
            json!({"r": {"a": "1", "c": "2"}}),
            "<nil>",
            "Invalid",
            "Invalid value: \"\": \"spec.r\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
        ),
    ];
    for (spec, field, reason, body) in cases {
        let a = c.call("POST", CRONTABS, crontab("a", spec.clone())).await;
        assert_eq!(a.code, 422, "{spec}: {}", a.body);
        assert_eq!(causes(&a), [(field.to_owned(), format!("FieldValue{reason}"))], "{spec}: {}", a.body);
        if !body.is_empty() {
            let message = a.body["details"]["causes"][0]["message"].as_str().unwrap();
            assert_eq!(message, body, "{spec}");
        }
    }
    let good = json!({"n": 5, "f": 1.5, "s": "aé", "e": "x", "ip": "10.0.0.1", "when": "2026-01-01T00:00:00Z", "l": ["q"],
        "set": ["a"], "map": [{"k": "a"}, {"k": "b"}], "m": {"a": 1}, "r": {"a": "1"}, "ios": "10%", "b": true});
    let a = c.call("POST", CRONTABS, crontab("a", good)).await;
    assert_eq!(a.code, 201, "{}", a.body);
}

/// What was stored before a rule was tightened stays writable where it is not touched.
#[tokio::test(start_paused = true)]
async fn unchanged_values_are_not_validated_again() {
    let c = with(spec(json!({"n": {"type": "integer"}, "s": {"type": "string"}}))).await;
    c.call("POST", CRONTABS, crontab("a", json!({"n": 100, "s": "x"}))).await;
    let place = format!("{DEFINITIONS}/{NAME}");
    let mut d = c.call("GET", &place, Value::Null).await.body;
    d["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
        spec(json!({"n": {"type": "integer", "maximum": 5}, "s": {"type": "string"}}));
    assert_eq!(c.call("PUT", &place, d).await.code, 200);
    let patch = |v: Value| {
        let c = &c;
        async move {
            let path = format!("{CRONTABS}/a");
            c.send("PATCH", &path, Some("application/merge-patch+json"), "application/json", v.to_string().into()).await
        }
    };
    for _ in 0..2000 {
        if c.call("POST", &format!("{CRONTABS}?dryRun=All"), crontab("t", json!({"n": 6}))).await.code == 422 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let a = patch(json!({"spec": {"s": "y"}})).await;
    assert_eq!(a.code, 200, "{}", a.body);
    let a = patch(json!({"spec": {"n": 99}})).await;
    assert_eq!(causes(&a), [("spec.n".into(), "FieldValueInvalid".into())]);
}

/// Definitions that are refused, and where.
#[tokio::test(start_paused = true)]
async fn definitions_are_validated() {
    let c = Cluster::start(3).await;
    let at = |v: &mut Value, path: &str, new: Value| *v.pointer_mut(path).unwrap() = new;
    let root = "spec.validation.openAPIV3Schema";
    let schema = |s: Value| (Some(s), None);
    let change = |path: &'static str, v: Value| (None, Some((path, v)));
    type Case = ((Option<Value>, Option<(&'static str, Value)>), Vec<(String, &'static str)>);
    let cases: Vec<Case> = vec![
        (change("/spec/scope", "Everywhere".into()), vec![("spec.scope".into(), "NotSupported")]),
        (
            change("/spec/names/kind", "Cron_Tab".into()),
            vec![("spec.names.kind".into(), "Invalid"), ("spec.names.listKind".into(), "Invalid")],
        ),
        (change("/metadata/name", "other.stable.example.com".into()), vec![("metadata.name".into(), "Invalid")]),
        (
            change("/spec/versions/0/storage", false.into()),
            vec![("spec.versions".into(), "Invalid"), ("status.storedVersions".into(), "Invalid")],
        ),
        (
            schema(json!({"type": "array"})),
            vec![(format!("{root}.items"), "Required"), (format!("{root}.type"), "Invalid")],
        ),
        (schema(json!({"properties": {}})), vec![(format!("{root}.type"), "Required")]),
        (schema(spec(json!({"x": {}}))), vec![(format!("{root}.properties[spec].properties[x].type"), "Required")]),
        (
            schema(spec(json!({"x": {"type": "array"}}))),
            vec![(format!("{root}.properties[spec].properties[x].items"), "Required")],
        ),
        (
            schema(spec(json!({"x": {"type": "integer", "default": "1"}}))),
            vec![(format!("{root}.properties[spec].properties[x].default"), "TypeInvalid")],
        ),
        (
            schema(spec(
                json!({"x": {"type": "object", "default": {"q": 1}, "properties": {"p": {"type": "string"}}}}),
            )),
            vec![(format!("{root}.properties[spec].properties[x].default"), "Invalid")],
        ),
        (
            schema(spec(json!({"x": {"type": "string", "pattern": "("}}))),
            vec![(format!("{root}.properties[spec].properties[x].pattern"), "Invalid")],
        ),
        (
            schema(spec(json!({"x": {"type": "string", "anyOf": [{"type": "string"}]}}))),
            vec![(format!("{root}.properties[spec].properties[x].anyOf[0].type"), "Forbidden")],
        ),
        (
            schema(json!({"type": "object", "anyOf": [{"properties": {"q": {"minimum": 1}}}]})),
            vec![(format!("{root}.properties[q]"), "Required")],
        ),
        (
            schema(
                json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
            ),
            vec![(format!("{root}.properties[metadata]"), "Forbidden")],
        ),
        (
            schema(spec(json!({"x": {"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object"}}}))),
            vec![(format!("{root}.properties[spec].properties[x].x-kubernetes-list-map-keys"), "Required")],
        ),
        (schema(json!({"type": "object", "nullable": true})), vec![(format!("{root}.nullable"), "Forbidden")]),
    ];
    for ((new_schema, changed), want) in cases {
        let mut d = crontabs(new_schema.clone().unwrap_or_else(|| spec(json!({}))));
        if let Some((path, v)) = &changed {
            at(&mut d, path, v.clone());
        }
        let a = c.call("POST", DEFINITIONS, d).await;
        assert_eq!(a.code, 422, "{new_schema:?} {changed:?}: {}", a.body);
        let want: Vec<_> = want.into_iter().map(|(f, r)| (f, format!("FieldValue{r}"))).collect();
        assert_eq!(causes(&a), want, "{new_schema:?} {changed:?}: {}", a.body["message"]);
    }
    // Once established, scope and kind stay.
    let mut d = define(&c, crontabs(spec(json!({})))).await.body;
    d["spec"]["scope"] = "Cluster".into();
    let a = c.call("PUT", &format!("{DEFINITIONS}/{NAME}"), d).await;
    assert_eq!(causes(&a), [("spec.scope".into(), "FieldValueInvalid".into())]);
}
