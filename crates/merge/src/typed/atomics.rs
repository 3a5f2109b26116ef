//! Paths at which applying a part replaces the whole value.

use super::shape::{Shape, TypeRef};
use meta::Value;

/// The paths of lists, maps and objects in `v` that are owned as a whole (`.spec.selector`).
pub fn atomics(v: &Value, t: TypeRef<'_>) -> Vec<String> {
    let mut out = Vec::new();
    find(v, t, &mut String::new(), &mut out);
    out
}

fn find(v: &Value, t: TypeRef<'_>, path: &mut String, out: &mut Vec<String>) {
    let here = path.len();
    let container = matches!(v, Value::Object(_) | Value::Array(_));
    match (Shape::read(t, v), v) {
        (Shape::Leaf, _) if container && t.schema.is_some() => out.push(path.clone()),
        (Shape::Object, Value::Object(m)) => {
            for (k, v) in m {
                path.extend([".", k]);
                find(v, t.member(k), path, out);
                path.truncate(here);
            }
        }
        (Shape::List(_), Value::Array(a)) => {
            for (i, v) in a.iter().enumerate() {
                path.push_str(&format!("[{i}]"));
                find(v, t.items(), path, out);
                path.truncate(here);
            }
        }
        _ => {}
    }
}
