//! `--sort-by`.

use crate::error::{Result, text};
use codec::jsonpath::{Missing, Template};
use meta::{Quantity, Value};
use std::cmp::Ordering;

/// Sorts by what a path finds; objects without it come first. `of` says where the object is in an item.
pub fn by(path: &str, items: &mut [Value], of: impl Fn(&Value) -> &Value) -> Result {
    let template = Template::relaxed(path)?;
    let mut keyed: Vec<(Option<Value>, Value)> = Vec::with_capacity(items.len());
    for i in items.iter_mut() {
        let key = template.find(of(i), Missing::Allowed)?.concat().into_iter().next();
        keyed.push((key, i.take()));
    }
    if !keyed.is_empty() && keyed.iter().all(|(k, _)| k.is_none()) {
        return text(format!("couldn't find any field with path {:?} in the list of objects", shown(path)));
    }
    keyed.sort_by(|(a, _), (b, _)| match (a, b) {
        (None, None) => Ordering::Equal,
        (None, _) => Ordering::Less,
        (_, None) => Ordering::Greater,
        (Some(a), Some(b)) => compare(a, b),
    });
    for (to, (_, v)) in items.iter_mut().zip(keyed) {
        *to = v;
    }
    Ok(())
}

/// The path in braces, as it is read.
fn shown(path: &str) -> String {
    let bare = path.trim_start_matches('{').trim_end_matches('}');
    format!("{{.{}}}", bare.trim_start_matches('.'))
}

fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x.cmp(&y),
            _ => x.as_f64().partial_cmp(&y.as_f64()).unwrap_or(Ordering::Equal),
        },
        (Value::String(x), Value::String(y)) => match (Quantity::parse(x), Quantity::parse(y)) {
            (Ok(x), Ok(y)) => x.nano_value().cmp(&y.nano_value()),
            _ => natural(x, y),
        },
        (Value::Bool(x), Value::Bool(y)) => x.cmp(y),
        _ => Ordering::Equal,
    }
}

/// Numbers inside texts count as numbers: `a2` before `a10`.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut x, mut y) = (a, b);
    loop {
        let digits = |s: &str| s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
        match (digits(x), digits(y)) {
            (m, n) if m > 0 && n > 0 => {
                let (p, q) = (x[..m].trim_start_matches('0'), y[..n].trim_start_matches('0'));
                let order = p.len().cmp(&q.len()).then_with(|| p.cmp(q));
                if order != Ordering::Equal {
                    return order;
                }
                (x, y) = (&x[m..], &y[n..]);
            }
            _ => match (x.chars().next(), y.chars().next()) {
                (Some(p), Some(q)) if p == q => (x, y) = (&x[p.len_utf8()..], &y[q.len_utf8()..]),
                (p, q) => return p.cmp(&q).then_with(|| a.cmp(b)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn items_are_sorted_by_number_quantity_and_name() {
        for (keys, want) in [
            (json!([10, 9, 1.5]), json!([1.5, 9, 10])),
            (json!(["a10", "a2", "a1"]), json!(["a1", "a2", "a10"])),
            (json!(["1Gi", "500m", "2"]), json!(["500m", "2", "1Gi"])),
            (json!(["b", null, "a"]), json!([null, "a", "b"])),
        ] {
            let mut items: Vec<Value> = keys
                .as_array()
                .unwrap()
                .iter()
                .map(|k| if k.is_null() { json!({}) } else { json!({"k": k}) })
                .collect();
            by(".k", &mut items, |i| i).unwrap();
            assert_eq!(Value::Array(items.iter().map(|i| i["k"].clone()).collect()), want);
        }
        assert!(by(".x", &mut [json!({})], |i| i).is_err());
    }
}
