//! JSON values as Go's `fmt` prints what its decoder makes of them.

use serde_json::Value;

/// The Go type (`%T`).
pub fn type_name(v: &Value) -> &'static str {
    match v {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// The value in its default format (`%v`): `map[a:1 b:[x y]]`.
pub fn plain(v: &Value) -> String {
    match v {
        Value::Null => "<nil>".to_owned(),
        Value::Number(n) if !n.is_i64() => float(n.as_f64().unwrap_or_default()),
        Value::String(s) => s.clone(),
        Value::Array(a) => format!("[{}]", a.iter().map(plain).collect::<Vec<_>>().join(" ")),
        Value::Object(m) => {
            let members: Vec<String> = sorted(m).into_iter().map(|(k, v)| format!("{k}:{}", plain(v))).collect();
            format!("map[{}]", members.join(" "))
        }
        other => other.to_string(),
    }
}

/// The value as an expression (`%#v`): `map[string]interface {}{"a":1}`.
pub fn syntax(v: &Value) -> String {
    match v {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::String(s) => format!("{s:?}"),
        Value::Array(a) => {
            format!("{}{{{}}}", type_name(v), a.iter().map(syntax).collect::<Vec<_>>().join(", "))
        }
        Value::Object(m) => {
            let members: Vec<String> = sorted(m).into_iter().map(|(k, v)| format!("{k:?}:{}", syntax(v))).collect();
            format!("{}{{{}}}", type_name(v), members.join(", "))
        }
        other => plain(other),
    }
}

/// A float: without a fraction if it has none, with an exponent if it is very large or small.
pub fn float(f: f64) -> String {
    if f != 0.0 && (f.abs() >= 1e21 || f.abs() < 1e-4) {
        let text = format!("{f:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let n: i32 = exponent.parse().unwrap_or_default();
        return format!("{digits}e{}{:02}", if n < 0 { '-' } else { '+' }, n.abs());
    }
    format!("{f}")
}

fn sorted(m: &serde_json::Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut all: Vec<(&String, &Value)> = m.iter().collect();
    all.sort_by_key(|(k, _)| *k);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_printed_as_by_go() {
        let v = json!({"b": [1, "x", null, true], "a": {"c": 2.0, "d": 1e30, "e": 0.5}});
        assert_eq!(plain(&v), "map[a:map[c:2 d:1e+30 e:0.5] b:[1 x <nil> true]]");
        let items = r#"[]interface {}{1, "x", interface {}(nil), true}"#;
        assert_eq!(syntax(&v["b"]), items);
        assert_eq!(syntax(&json!({"a": []})), "map[string]interface {}{\"a\":[]interface {}{}}");
    }
}
