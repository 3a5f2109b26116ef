use super::*;
use meta::Value;
use proptest::prelude::*;
use serde_json::json;

fn set(v: Value) -> Set {
    Set::from_value(&v).unwrap()
}

#[test]
fn fields_v1_reads_and_writes() {
    for v in [
        json!({}),
        json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}}),
        json!({"f:spec": {"f:containers": {"k:{\"name\":\"c1\"}": {".": {}, "f:image": {}}}}}),
        json!({"f:metadata": {"f:finalizers": {"v:\"example.com/a\"": {}}}}),
        json!({"f:l": {"i:3": {}, "v:1": {}}}),
        json!({"f:a.b/c:d": {}}),
    ] {
        let s = set(v.clone());
        assert_eq!(s.to_value(), v);
        assert_eq!(serde_json::from_str::<Value>(&s.to_json()).unwrap(), v);
    }
}

#[test]
fn text_is_in_the_order_of_elements() {
    let s = set(
        json!({"f:p": {"k:{\"port\":80}": {}, "k:{\"port\":443}": {}, "f:z": {}, "i:1": {}, "v:\"a\"": {}, ".": {}}}),
    );
    assert_eq!(
        s.to_json(),
        r#"{"f:p":{".":{},"f:z":{},"k:{\"port\":80}":{},"k:{\"port\":443}":{},"v:\"a\"":{},"i:1":{}}}"#
    );
}

#[test]
fn bad_fields_are_errors_and_unknown_elements_are_dropped() {
    for v in [json!([]), json!({"f:a": 1}), json!({"k:x": {}}), json!({"i:x": {}}), json!({"noprefix": {}})] {
        assert!(Set::from_value(&v).is_err(), "{v}");
    }
    assert_eq!(set(json!({"q:a": {}, "f:b": {}})), set(json!({"f:b": {}})));
}

#[test]
fn paths_print_as_conflicts_show_them() {
    let s = set(
        json!({"f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {"f:targetPort": {}}}, "f:selector": {}}, "f:m": {"v:\"x\"": {}, "i:2": {}}}),
    );
    assert_eq!(s.to_string(), ".m[=\"x\"]\n.m[2]\n.spec.selector\n.spec.ports[port=80,protocol=\"TCP\"].targetPort\n");
}

#[test]
fn a_member_takes_what_is_below_only_recursively() {
    let s = || set(json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}}));
    let a = Set::of_fields(&[&["a"]]);
    assert_eq!(s().difference(&a), set(json!({"f:a": {"f:b": {}}, "f:c": {}})));
    assert_eq!(s().recursive_difference(&a), set(json!({"f:c": {}})));
    assert!(s().has(&[PathElement::field("a"), PathElement::field("b")]));
    assert!(!set(json!({"f:a": {"f:b": {}}})).has(&[PathElement::field("a")]));
}

fn sets() -> impl Strategy<Value = Set> {
    let element = prop_oneof![
        "[a-c]".prop_map(|n| PathElement::Field(n.into())),
        (0..3i64).prop_map(|i| PathElement::Value(Box::new(Value::from(i)))),
        (0..3i64).prop_map(|i| PathElement::Key([("k".into(), Value::from(i))].into())),
    ];
    proptest::collection::vec(proptest::collection::vec(element, 1..4), 0..8).prop_map(|paths| {
        let mut s = Set::new();
        paths.iter().for_each(|p| s.insert(p));
        s
    })
}

proptest! {
    #[test]
    fn the_algebra_holds(a in sets(), b in sets(), c in sets()) {
        let (u, i) = (a.clone().union(b.clone()), a.intersection(&b));
        prop_assert_eq!(&u, &b.clone().union(a.clone()));
        prop_assert_eq!(&i, &b.intersection(&a));
        prop_assert_eq!(a.intersects(&b), !i.is_empty());
        prop_assert_eq!(a.clone().difference(&b).union(i.clone()), a.clone());
        prop_assert!(!a.clone().difference(&b).intersects(&b));
        prop_assert_eq!(a.clone().union(a.clone()), a.clone());
        prop_assert_eq!(
            a.clone().difference(&b.clone().union(c.clone())),
            a.clone().difference(&b).difference(&c)
        );
        for p in u.paths() {
            prop_assert!(a.has(&p) || b.has(&p));
        }
        prop_assert_eq!(Set::from_value(&u.to_value()).unwrap(), u);
    }
}
