//! Properties of patches and field sets. The bytes are JSON documents one after the other.

use merge::fieldset::Set;
use merge::managed::{self, Context, Force, OneVersion};
use merge::strategic::{self, Overwrite};
use merge::{json_patch, merge_patch};
use meta::{Gvk, Map, Object, Value};
use schema::Schema;

const DEPTH: usize = 100;

/// Reads up to `N` documents; absent ones are null. None if one is invalid or too deep.
fn documents<const N: usize>(data: &[u8]) -> Option<[Value; N]> {
    if meta::depth::of_text(data) > DEPTH {
        return None;
    }
    let mut stream = serde_json::Deserializer::from_slice(data).into_iter::<Value>();
    let mut all = [const { Value::Null }; N];
    for document in &mut all {
        match stream.next() {
            Some(Ok(v)) => *document = v,
            Some(Err(_)) => return None,
            None => break,
        }
    }
    Some(all)
}

fn deployment() -> Option<&'static Schema> {
    kinds::catalog().schema_of(&Gvk::new("apps", "v1", "Deployment")).map(|s| &**s)
}

/// A written field set reads back as an equal one, and the laws of sets hold.
pub fn field_sets(data: &[u8]) {
    let Some([a, b]) = documents(data) else { return };
    let (Ok(a), Ok(b)) = (Set::from_value(&a), Set::from_value(&b)) else { return };
    for s in [&a, &b] {
        assert_eq!(Set::from_value(&s.to_value()).ok().as_ref(), Some(s));
        assert!(s.clone().difference(s).is_empty());
        assert_eq!(&s.clone().union(s.clone()), s);
        assert!(s.paths().iter().all(|p| s.has(p)));
    }
    let both = a.clone().union(b.clone());
    assert_eq!(both, b.clone().union(a.clone()));
    assert!(a.clone().difference(&both).is_empty());
    let common = a.intersection(&b);
    assert_eq!(common, b.intersection(&a));
    assert_eq!(a.clone().difference(&common), a.clone().difference(&b));
    assert_eq!(a.intersects(&b), !common.is_empty());
}

/// No patch panics.
pub fn json_patch(data: &[u8]) {
    let Some([mut document, patch]) = documents(data) else { return };
    if let Ok(patch) = json_patch::Patch::decode(patch) {
        let _ = patch.apply(&mut document);
    }
}

/// A merge patch is idempotent, and the difference of two objects turns the first into the second.
pub fn merge_patch(data: &[u8]) {
    let Some([a, b]) = documents(data) else { return };
    let mut once = a.clone();
    if merge_patch::apply(&mut once, b.clone()).is_ok() {
        let mut twice = once.clone();
        assert!(merge_patch::apply(&mut twice, b.clone()).is_ok());
        assert_eq!(once, twice);
    }
    if let (Value::Object(a), Value::Object(b)) = (a, b) {
        let patch = merge_patch::diff(&a, &b);
        let mut made = Value::Object(a);
        if !has_null(&b) && merge_patch::apply(&mut made, Value::Object(patch)).is_ok() {
            assert_eq!(made, Value::Object(b));
        }
    }
}

fn has_null(m: &Map<String, Value>) -> bool {
    m.values().any(|v| v.is_null() || v.as_object().is_some_and(has_null))
}

/// No strategic merge patch panics: neither a given one, nor one computed from two or three objects.
pub fn strategic_patch(data: &[u8]) {
    let Some([Value::Object(a), Value::Object(b), Value::Object(c)]) = documents(data) else { return };
    for schema in [deployment(), None] {
        let mut given = a.clone();
        let _ = strategic::apply(&mut given, b.clone(), schema);
        if let Ok(patch) = strategic::two_way(&a, &b, schema) {
            let mut made = a.clone();
            let _ = strategic::apply(&mut made, patch, schema);
        }
        let _ = strategic::three_way(&a, &b, &c, schema, Overwrite::Yes);
    }
}

fn has_empty(v: &Value) -> bool {
    match v {
        Value::Object(m) => m.is_empty() || m.values().any(has_empty),
        Value::Array(a) => a.is_empty() || a.iter().any(has_empty),
        // Go stores a null map or list as an absent one.
        other => other.is_null(),
    }
}

/// Two managers apply in turn. Repeating a successful apply changes nothing.
pub fn apply(data: &[u8]) {
    let Some(configurations) = documents::<4>(data) else { return };
    let mut live: Option<Object> = None;
    for (turn, configuration) in configurations.into_iter().enumerate() {
        let Value::Object(mut m) = configuration else { return };
        m.insert("apiVersion".into(), "apps/v1".into());
        m.insert("kind".into(), "Deployment".into());
        let configuration = Object(m);
        let manager = if turn % 2 == 0 { "a" } else { "b" };
        let cx = Context {
            manager,
            api_version: "apps/v1",
            subresource: "",
            schema: deployment(),
            time: "2026-01-01T00:00:00Z",
            reset_fields: Set::EMPTY,
            versions: &OneVersion,
        };
        let force = if turn < 2 { Force::No } else { Force::Yes };
        let Ok(applied) = managed::apply(live.as_ref(), &configuration, force, &cx) else { continue };
        if let Some(o) = applied {
            live = Some(o);
        }
        // Without managed fields, the next apply assigns all existing fields to the manager of updates before the first apply.
        let is_unowned =
            |live: &Option<Object>| live.as_ref().is_none_or(|o| o.at(&["metadata", "managedFields"]).is_none());
        if is_unowned(&live) {
            continue;
        }
        // As upstream: a map that is applied empty and loses all its members is removed with them, and returns with the next apply,
        // even if another manager owns it too.
        if configuration.0.values().any(has_empty)
            && let Ok(Some(o)) = managed::apply(live.as_ref(), &configuration, Force::Yes, &cx)
        {
            live = Some(o);
            if is_unowned(&live) {
                continue;
            }
        }
        let again = managed::apply(live.as_ref(), &configuration, Force::No, &cx);
        assert!(matches!(again, Ok(None)), "{configuration:?}\n{live:?}\n{again:?}");
    }
}
