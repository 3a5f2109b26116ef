//! Where an applied part would replace something as a whole.

use super::shape::{Shape, TypeRef};
use meta::Value;

/// The paths of lists, maps and objects in `v` that are owned as a whole (`.spec.selector`).
pub fn atomics(v: &Value, t: TypeRef<'_>) -> Vec<String> {
    let mut out = Vec::new();
    find(v, t, "", &mut out);
    out
}

fn find(v: &Value, t: TypeRef<'_>, path: &str, out: &mut Vec<String>) {
    let container = matches!(v, Value::Object(_) | Value::Array(_));
    match (Shape::of(t, v), v) {
        (Shape::Leaf, _) if container && t.schema.is_some() => out.push(path.to_owned()),
        (Shape::Object, Value::Object(m)) => {
            m.iter().for_each(|(k, v)| find(v, t.member(k), &format!("{path}.{k}"), out));
        }
        (Shape::List(_), Value::Array(a)) => {
            a.iter().enumerate().for_each(|(i, v)| find(v, t.items(), &format!("{path}[{i}]"), out));
        }
        _ => {}
    }
}
