//! JSON merge patch (RFC 7386), and its creation from documents, as kubectl does for kinds without a schema.

use meta::{Map, Value};

/// The error of an invalid patch.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Answered with 400.
    #[error("Invalid JSON Patch")]
    NotAnObject,
}

/// Applies a patch, which must be an object. Members that are `null` remove; lists and scalars replace.
pub fn apply(doc: &mut Value, patch: Value) -> Result<(), Error> {
    if !patch.is_object() {
        return Err(Error::NotAnObject);
    }
    merge(doc, patch);
    Ok(())
}

fn merge(doc: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *doc = patch;
        return;
    };
    if !doc.is_object() {
        *doc = Value::Object(Map::new());
    }
    if let Value::Object(doc) = doc {
        for (k, v) in patch {
            if v.is_null() {
                doc.remove(&k);
            } else {
                merge(doc.entry(k).or_insert(Value::Null), v);
            }
        }
    }
}

/// The patch that turns `from` into `to`.
pub fn diff(from: &Map<String, Value>, to: &Map<String, Value>) -> Map<String, Value> {
    let mut patch = Map::new();
    for (k, new) in to {
        match (from.get(k), new) {
            (Some(Value::Object(a)), Value::Object(b)) => {
                let sub = diff(a, b);
                if !sub.is_empty() {
                    patch.insert(k.clone(), Value::Object(sub));
                }
            }
            (Some(old), new) if old == new => {}
            _ => _ = patch.insert(k.clone(), new.clone()),
        }
    }
    for k in from.keys().filter(|k| !to.contains_key(*k)) {
        patch.insert(k.clone(), Value::Null);
    }
    patch
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Nulls,
    Values,
}

fn only(patch: Map<String, Value>, keep: Keep) -> Map<String, Value> {
    patch
        .into_iter()
        .filter_map(|(k, v)| match v {
            Value::Null => (keep == Keep::Nulls).then_some((k, Value::Null)),
            // An empty object is a value that was set, not a patch that changes nothing.
            Value::Object(m) if m.is_empty() => (keep == Keep::Values).then_some((k, Value::Object(m))),
            Value::Object(m) => {
                let sub = only(m, keep);
                (!sub.is_empty()).then_some((k, Value::Object(sub)))
            }
            v => (keep == Keep::Values).then_some((k, v)),
        })
        .collect()
}

/// Joins two patches into one, in which the second one wins; `null`s stay.
fn join(first: &mut Map<String, Value>, second: Map<String, Value>) {
    for (k, v) in second {
        match (first.get_mut(&k), v) {
            (Some(Value::Object(a)), Value::Object(b)) => join(a, b),
            (_, v) => _ = first.insert(k, v),
        }
    }
}

/// The merge patch that `kubectl apply` sends for a kind without a schema: what was in `original` (the last applied
/// configuration) and is not in `modified` is removed from `current` (live); differences of `modified` are set.
pub fn three_way(
    original: &Map<String, Value>,
    modified: &Map<String, Value>,
    current: &Map<String, Value>,
) -> Map<String, Value> {
    let mut patch = only(diff(original, modified), Keep::Nulls);
    join(&mut patch, only(diff(current, modified), Keep::Values));
    patch
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn map(v: Value) -> Map<String, Value> {
        match v {
            Value::Object(m) => m,
            other => panic!("{other} is no object"),
        }
    }

    /// The examples of RFC 7386, appendix A, where both sides are objects.
    #[test]
    fn rfc_examples() {
        for (doc, patch, want) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            let mut got = doc.clone();
            apply(&mut got, patch.clone()).unwrap();
            assert_eq!(got, want, "{doc} + {patch}");
        }
        for bad in [json!([1]), json!("x"), Value::Null] {
            assert_eq!(apply(&mut json!({}), bad), Err(Error::NotAnObject));
        }
    }

    /// Groundwork of A09 (primitive and map fields without a schema).
    #[test]
    fn three_way_follows_the_tables() {
        for (original, modified, current, want) in [
            (json!({"r": 1}), json!({"r": 2}), json!({"r": 1}), json!({"r": 2})),
            (json!({}), json!({"r": 2}), json!({}), json!({"r": 2})),
            (json!({"r": 1}), json!({}), json!({"r": 5}), json!({"r": null})),
            (json!({}), json!({}), json!({"r": 5}), json!({})),
            (
                json!({"m": {"a": 1}}),
                json!({"m": {"b": 2}}),
                json!({"m": {"a": 1, "c": 3}}),
                json!({"m": {"a": null, "b": 2}}),
            ),
            (json!({"l": [1, 2]}), json!({"l": [1, 3]}), json!({"l": [1, 2, 4]}), json!({"l": [1, 3]})),
            (json!({}), json!({"e": {}}), json!({}), json!({"e": {}})),
            (json!({"m": {"a": 1}}), json!({}), json!({"m": {"a": 1, "c": 3}}), json!({"m": null})),
        ] {
            let got = three_way(&map(original), &map(modified.clone()), &map(current.clone()));
            assert_eq!(Value::Object(got), want, "{modified} onto {current}");
        }
    }

    fn tree() -> impl proptest::strategy::Strategy<Value = Value> {
        use proptest::prelude::*;
        let leaf = prop_oneof![any::<bool>().prop_map(Value::from), (0..4i64).prop_map(Value::from)];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest::proptest! {
        #[test]
        fn applying_a_difference_gives_the_other_document(a in tree(), b in tree()) {
            if let (Value::Object(a), Value::Object(b)) = (a, b) {
                let mut got = Value::Object(a.clone());
                apply(&mut got, Value::Object(diff(&a, &b))).unwrap();
                proptest::prop_assert_eq!(got, Value::Object(b));
            }
        }
    }
}
