//! Tables of invalid values with the expected field errors.

use serde_json::Value;
use testkit::Cluster;

/// A JSON pointer, a value to put there (`null` removes it), and the beginnings of the expected field errors, sorted by field.
pub type FieldCase = (&'static str, Value, &'static [&'static str]);

pub fn put(body: &Value, pointer: &str, v: &Value) -> Value {
    let mut body = body.clone();
    let mut at = &mut body;
    let parts: Vec<&str> = pointer.split('/').skip(1).collect();
    let (last, parents) = parts.split_last().unwrap();
    for part in parents {
        at = match at {
            Value::Array(a) => &mut a[part.parse::<usize>().unwrap()],
            other => &mut other[*part],
        };
    }
    match at {
        Value::Array(a) => a[last.parse::<usize>().unwrap()] = v.clone(),
        at if v.is_null() => drop(at.as_object_mut().map(|o| o.remove(*last))),
        at => at[*last] = v.clone(),
    }
    body
}

/// Sends the body with each change and compares the field errors.
pub async fn check_errors(c: &Cluster, method: &str, path: &str, body: &Value, cases: &[FieldCase]) {
    let path = format!("{path}?dryRun=All");
    let a = c.call(method, &path, body.clone()).await;
    assert!(a.code == 200 || a.code == 201, "{path} {}", a.body);
    for (at, v, want) in cases {
        let a = c.call(method, &path, put(body, at, v)).await;
        let causes = a.body["details"]["causes"].as_array().cloned().unwrap_or_default();
        let text = |c: &Value, k: &str| c[k].as_str().unwrap_or_default().to_owned();
        let mut found: Vec<String> =
            causes.iter().map(|c| format!("{}: {}", text(c, "field"), text(c, "message"))).collect();
        found.sort_unstable();
        let fits = found.len() == want.len() && found.iter().zip(*want).all(|(f, w)| f.starts_with(w));
        assert!(fits, "{at} {v}\n found {found:#?}\n want {want:#?}\n {}", a.body["message"]);
    }
}
