use super::*;
use crate::test_schema::workload;
use serde_json::json;

fn map(v: &Value) -> Map<String, Value> {
    v.as_object().unwrap().clone()
}

fn merged(old: &Value, patch: &Value) -> Result<Option<Value>, Error> {
    merge(map(old), map(patch), Some(&workload())).map(|m| m.map(Value::Object))
}

fn pod(spec: &Value) -> Value {
    json!({"spec": {"template": {"spec": spec}}})
}

/// Groundwork of A15: every row is what kustomize 5 makes of it.
#[test]
fn maps_and_lists_are_merged_as_kustomize_merges_them() {
    for (old, patch, want) in [
        (
            json!({"data": {"a": "1", "b": "2"}}),
            json!({"data": {"a": null, "c": "3"}}),
            json!({"data": {"b": "2", "c": "3"}}),
        ),
        (json!({"a": null}), json!({"b": null}), json!({"a": null})),
        (json!({}), json!({"x": {"a": null, "b": {"$patch": "delete"}, "c": 1}}), json!({"x": {"c": 1}})),
        (json!({"x": {"a": 1}}), json!({"x": {"$patch": "replace", "b": 2}}), json!({"x": {"b": 2}})),
        (json!({"x": {"a": 1}, "y": 1}), json!({"x": {"$patch": "delete"}}), json!({"y": 1})),
        (json!({"x": [1, 2]}), json!({"x": [3]}), json!({"x": [3]})),
        (json!({"x": {}}), json!({"x": {}}), json!({"x": {}})),
        // New items come first, and the order of the patch counts.
        (
            pod(&json!({"containers": [{"name": "a", "image": "x"}, {"name": "b"}]})),
            pod(&json!({"containers": [{"name": "c"}, {"name": "b", "image": "q"}]})),
            pod(&json!({"containers": [{"name": "c"}, {"name": "b", "image": "q"}, {"name": "a", "image": "x"}]})),
        ),
        (
            pod(&json!({"containers": [{"name": "a"}, {"name": "b"}]})),
            pod(&json!({"containers": [{"name": "a", "$patch": "delete"}]})),
            pod(&json!({"containers": [{"name": "b"}]})),
        ),
        (
            pod(&json!({"containers": [{"name": "a"}]})),
            pod(&json!({"containers": [{"$patch": "replace"}, {"name": "b"}]})),
            pod(&json!({"containers": [{"name": "b"}]})),
        ),
        (
            pod(&json!({"containers": [{"name": "a"}]})),
            pod(&json!({"containers": [{"$patch": "delete"}]})),
            pod(&json!({})),
        ),
    ] {
        assert_eq!(merged(&old, &patch).unwrap(), Some(want), "{old} + {patch}");
    }
    assert_eq!(merged(&json!({"a": 1}), &json!({"$patch": "delete"})).unwrap(), None);
}

#[test]
fn values_of_another_kind_and_unknown_directives_are_errors() {
    let e = merged(&json!({"x": {"a": 1}}), &json!({"x": "b"})).unwrap_err();
    assert_eq!(e.to_string(), "wrong node kind: expected MappingNode but got ScalarNode");
    let e = merged(&json!({"x": {"a": 1}}), &json!({"x": {"$patch": "frob"}})).unwrap_err();
    assert_eq!(e.to_string(), "unknown patch strategy 'frob'");
}

/// Number and protocol identify a port; a patch with the number alone matches the only possible port.
#[test]
fn several_keys_tell_items_apart() {
    let old = [json!({"port": 80, "protocol": "TCP"}), json!({"port": 80, "protocol": "UDP"})];
    let mut ports = Schema::new(schema::Type::Array);
    ports.list = ListType::Map(vec!["port".into(), "protocol".into()]);
    let member = Member { schema: Some(&ports), merges: true, key: Some("port") };
    for (patch, want) in [
        (json!({"port": 81}), json!([{"port": 81}, old[0], old[1]])),
        (json!({"port": 80, "protocol": "UDP", "n": 1}), json!([old[0], {"port": 80, "protocol": "UDP", "n": 1}])),
        (json!({"port": 80, "n": 1}), json!([{"port": 80, "protocol": "TCP", "n": 1}, old[1]])),
        (json!({"port": 80, "protocol": "SCTP"}), json!([{"port": 80, "protocol": "SCTP"}, old[0], old[1]])),
        (json!({"port": 80, "protocol": "TCP", "$patch": "delete"}), json!([old[1]])),
    ] {
        assert_eq!(merge_list(old.to_vec(), vec![patch.clone()], member).unwrap(), Some(want), "{patch}");
    }
}
