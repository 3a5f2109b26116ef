//! Sorts by `--sort-sort_by_path`.

use crate::error::Error;
use crate::kube::Kube;
use codec::jsonpath::{Missing, Template};
use meta::{Quantity, Value};
use std::cmp::Ordering;

/// Why a list cannot be sorted.
#[derive(Debug)]
pub enum Failure {
    /// The path is invalid, or no object has it.
    Path(Error),
    /// Two values cannot be compared.
    Types(String),
}

impl Failure {
    /// Returns the error as upstream's client prints it; `table` means that table rows were sorted.
    pub fn error(self, k: &Kube, table: bool) -> Error {
        match self {
            Self::Path(e) => e,
            Self::Types(text) => {
                let (line, object) = match table {
                    true => ("sorter.go:375", "[][][]reflect.Value"),
                    false => ("sorter.go:329", "*unstructured.Unstructured"),
                };
                let head = client::log::head('F', k.now(), &k.shell.zone, line);
                Error::Bare(format!("{head}{}", text.replacen(TYPE_PLACEHOLDER, object, 1)))
            }
        }
    }
}

/// Placeholder for the Go type of the sorted values.
const TYPE_PLACEHOLDER: &str = "\0";

/// Sorts by the value at a path; objects without it come first. `object` returns the object in an item.
pub fn sort_by_path(path: &str, items: &mut [Value], object: impl Fn(&Value) -> &Value) -> Result<(), Failure> {
    let template = Template::relaxed(path).map_err(|e| Failure::Path(e.into()))?;
    let mut keyed: Vec<(Option<Value>, Value)> = Vec::with_capacity(items.len());
    for i in items.iter_mut() {
        let key = template.find(object(i), Missing::Allowed).map_err(|e| Failure::Path(e.into()))?;
        let key = key.concat().into_iter().next();
        keyed.push((key, i.take()));
    }
    if !keyed.is_empty() && keyed.iter().all(|(k, _)| k.is_none()) {
        let message = format!("couldn't find any field with path {:?} in the list of objects", braced(path));
        return Err(Failure::Path(Error::Text(message)));
    }
    sort(&mut keyed).map_err(|e| Failure::Types(format!("Field {} in {TYPE_PLACEHOLDER} is {e}", braced(path))))?;
    for (to, (_, v)) in items.iter_mut().zip(keyed) {
        *to = v;
    }
    Ok(())
}

/// Go sorts longer lists with another algorithm.
const INSERTION_SORT_MAX: usize = 12;

/// Sorts as Go's `sort.Sort` does. That is visible where the order is not strict: objects without the field all precede
/// each other, so that a short list reverses them.
fn sort(keyed: &mut [(Option<Value>, Value)]) -> Result<(), String> {
    if keyed.len() > INSERTION_SORT_MAX {
        let mut failed = None;
        keyed.sort_by(|(a, _), (b, _)| match (a, b) {
            (None, None) => Ordering::Equal,
            (None, _) => Ordering::Less,
            (_, None) => Ordering::Greater,
            (Some(a), Some(b)) => match (less(a, b), less(b, a)) {
                (Ok(true), _) => Ordering::Less,
                (_, Ok(true)) => Ordering::Greater,
                (Err(e), _) | (_, Err(e)) => {
                    failed.get_or_insert(e);
                    Ordering::Equal
                }
                _ => Ordering::Equal,
            },
        });
        return failed.map_or(Ok(()), Err);
    }
    for i in 1..keyed.len() {
        for j in (1..=i).rev() {
            let before = match (&keyed[j].0, &keyed[j - 1].0) {
                (None, _) => true,
                (_, None) => false,
                (Some(a), Some(b)) => less(a, b)?,
            };
            if !before {
                break;
            }
            keyed.swap(j, j - 1);
        }
    }
    Ok(())
}

/// Returns the path in braces, as it is parsed.
fn braced(path: &str) -> String {
    let bare = path.trim_start_matches('{').trim_end_matches('}');
    format!("{{.{}}}", bare.trim_start_matches('.'))
}

/// Whether `a` sorts before `b` (`isLess` of `cmd/get/sorter.go`). Errors with Go's message if they cannot be compared.
fn less(a: &Value, b: &Value) -> Result<bool, String> {
    Ok(match (a, b) {
        (_, Value::Null) => false,
        (Value::Null, _) => true,
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x < y,
            (None, None) => x.as_f64() < y.as_f64(),
            _ => return Err(INCOMPARABLE.into()),
        },
        (Value::String(x), Value::String(y)) => match (Quantity::parse(x), Quantity::parse(y)) {
            (Ok(x), Ok(y)) => x.nano_value() < y.nano_value(),
            _ => x < y,
        },
        (Value::Number(_) | Value::String(_), _) => return Err(INCOMPARABLE.into()),
        (Value::Bool(_), _) => return Err(unsortable("bool")),
        (Value::Array(_), _) => return Err(unsortable("[]interface {}")),
        (Value::Object(_), _) => return Err(unsortable("map[string]interface {}")),
    })
}

const INCOMPARABLE: &str = "an unsortable type: interface, err: unsortable interface: interface";

fn unsortable(go_type: &str) -> String {
    format!("an unsortable type: interface, err: unsortable type: {go_type}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sorts_by_number_quantity_and_name() {
        for (keys, expected) in [
            (json!([10, 9, 1]), json!([1, 9, 10])),
            (json!([2.5, 0.5]), json!([0.5, 2.5])),
            (json!(["a10", "a2", "a1"]), json!(["a1", "a10", "a2"])),
            (json!(["1Gi", "500m", "2"]), json!(["500m", "2", "1Gi"])),
            (json!(["b", "absent", "a"]), json!([null, "a", "b"])),
            (json!([2, null, 1]), json!([null, 1, 2])),
        ] {
            let mut items: Vec<Value> = keys
                .as_array()
                .unwrap()
                .iter()
                .map(|k| if k == "absent" { json!({}) } else { json!({"k": k}) })
                .collect();
            sort_by_path(".k", &mut items, |i| i).unwrap();
            assert_eq!(Value::Array(items.iter().map(|i| i["k"].clone()).collect()), expected);
        }
        let mut items = vec![json!({"n": 1}), json!({"n": 2}), json!({"n": 3, "k": 1})];
        sort_by_path(".k", &mut items, |i| i).unwrap();
        assert_eq!(items.iter().map(|i| &i["n"]).collect::<Vec<_>>(), [2, 1, 3], "what lacks the field is reversed");
    }

    #[test]
    fn incomparable_values_are_an_error() {
        let fails = |path: &str, mut items: Vec<Value>| match sort_by_path(path, &mut items, |i| i) {
            Err(Failure::Types(e)) => e.replace(TYPE_PLACEHOLDER, "T"),
            Err(Failure::Path(e)) => e.to_string(),
            Ok(()) => "sorted".into(),
        };
        let item = |k: Value| json!({"k": k});
        let bools = "Field {.k} in T is an unsortable type: interface, err: unsortable type: bool";
        assert_eq!(fails(".k", vec![item(json!(true)), item(json!(false))]), bools);
        let many = (0..20).map(|n| item(json!(n % 2 == 0))).collect();
        assert_eq!(fails(".k", many), bools);
        let unlike = "Field {.k} in T is an unsortable type: interface, err: unsortable interface: interface";
        assert_eq!(fails(".k", vec![item(json!(1)), item(json!("a"))]), unlike);
        assert_eq!(fails(".k", vec![item(json!(true))]), "sorted");
        let none = "couldn't find any field with path \"{.x}\" in the list of objects";
        assert_eq!(fails(".x", vec![item(json!(1))]), none);
    }
}
