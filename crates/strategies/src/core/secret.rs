//! Secret: `stringData`, required keys of types, size, `immutable`.

use super::config_map::{MAX_SIZE, immutable};
use crate::Config;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Map, Object, Value, names};
use registry::{CreateStrategy, UpdateStrategy};
use schema::base64;

pub fn row(_: &Config) -> Row {
    Row::stored(Secret)
}

pub struct Secret;

impl CreateStrategy for Secret {
    /// Merges `stringData`, which is write-only, into `data`.
    fn default(&self, o: &mut Object) {
        let Some(Value::Object(strings)) = o.remove(&["stringData"]) else { return };
        let mut data = match o.remove(&["data"]) {
            Some(Value::Object(m)) => m,
            _ => Map::new(),
        };
        for (k, v) in strings {
            data.insert(k, base64(v.as_str().unwrap_or_default().as_bytes()).into());
        }
        if !data.is_empty() {
            o.set(&["data"], data);
        }
    }

    fn warnings(&self, o: &Object, _old: Option<&Object>) -> Vec<String> {
        if o.str_at(&["type"]) != Some("kubernetes.io/tls") {
            return Vec::new();
        }
        let pem = |k: &str, what: &str| {
            let bytes = o.str_at(&["data", k]).and_then(schema::base64_decode).unwrap_or_default();
            let found = String::from_utf8_lossy(&bytes).contains("-----BEGIN ");
            (!found).then(|| format!("tls: failed to find any PEM data in {what} input"))
        };
        pem("tls.crt", "certificate").or_else(|| pem("tls.key", "key")).into_iter().collect()
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        let path = FieldPath::new("data");
        let mut total = 0;
        for (k, v) in o.get("data").and_then(Value::as_object).into_iter().flatten() {
            let at = path.key(k);
            errors.extend(names::config_map_key(k).into_iter().map(|m| FieldError::invalid(&at, k.as_str(), m)));
            let text = v.as_str().unwrap_or_default();
            total += text.len() / 4 * 3 - text.bytes().rev().take_while(|b| *b == b'=').count();
        }
        if total > MAX_SIZE {
            errors.push(FieldError::too_long(&path, MAX_SIZE));
        }
        let text = |k: &str| o.str_at(&["data", k]).unwrap_or_default();
        let mut require = |k: &str| {
            if o.at(&["data", k]).is_none() {
                errors.push(FieldError::required(&path.key(k), ""));
            }
        };
        match o.str_at(&["type"]).unwrap_or_default() {
            "kubernetes.io/service-account-token" => {
                let name = o.annotation("kubernetes.io/service-account.name").unwrap_or_default();
                if name.is_empty() {
                    let at = FieldPath::new("metadata.annotations").key("kubernetes.io/service-account.name");
                    errors.push(FieldError::required(&at, ""));
                }
            }
            "kubernetes.io/tls" => ["tls.crt", "tls.key"].into_iter().for_each(require),
            "kubernetes.io/ssh-auth" if text("ssh-privatekey").is_empty() => {
                errors.push(FieldError::required(&path.key("ssh-privatekey"), ""));
            }
            "kubernetes.io/basic-auth"
                if o.at(&["data", "username"]).is_none() && o.at(&["data", "password"]).is_none() =>
            {
                for k in ["username", "password"] {
                    require(k);
                }
            }
            ty @ ("kubernetes.io/dockercfg" | "kubernetes.io/dockerconfigjson") => {
                let key = if ty.ends_with("json") { ".dockerconfigjson" } else { ".dockercfg" };
                match o.at(&["data", key]).and_then(Value::as_str) {
                    None => errors.push(FieldError::required(&path.key(key), "")),
                    Some(v) => {
                        let text = schema::base64_decode(v).unwrap_or_default();
                        if let Some(why) = schema::decode::syntax::wrong(&text).or_else(|| no_object(&text)) {
                            errors.push(FieldError::invalid(&path.key(key), "<secret contents redacted>", why));
                        }
                    }
                }
            }
            _ => {}
        }
    }
}

impl UpdateStrategy for Secret {
    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        if o.get("type") != old.get("type") {
            let value = o.get("type").cloned().unwrap_or_default();
            errors.push(FieldError::invalid(&FieldPath::new("type"), value, "field is immutable"));
        }
        immutable(o, old, &["data"], errors);
    }
}

registry::strategy!(Secret: CreateStrategy, UpdateStrategy);

/// Returns Go's error if JSON text is not an object; `null` is accepted.
fn no_object(text: &[u8]) -> Option<String> {
    let what = match serde_json::from_slice(text).ok()? {
        Value::Object(_) | Value::Null => return None,
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
    };
    Some(format!("json: cannot unmarshal {what} into Go value of type map[string]interface {{}}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_create, check_update};
    use serde_json::json;

    fn secret(ty: &str, data: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "type": ty, "data": data})
    }

    #[test]
    fn requires_the_keys_of_its_type() {
        let check = |ty: &str, data: Value, errors: &[&str]| {
            check_create(&Secret, &secret(ty, data), &[("", Value::Null, errors)]);
        };
        check("Opaque", json!({"a": "Yg=="}), &[]);
        check(
            "Opaque",
            json!({"a b": ""}),
            &["data[a b]: Invalid value: \"a b\": a valid config key must consist of alphanumeric characters…"],
        );
        check("kubernetes.io/tls", json!({"tls.crt": "YQ=="}), &["data[tls.key]: Required value"]);
        check("kubernetes.io/ssh-auth", json!({}), &["data[ssh-privatekey]: Required value"]);
        check("kubernetes.io/basic-auth", json!({"username": "YQ=="}), &[]);
        check(
            "kubernetes.io/basic-auth",
            json!({}),
            &["data[username]: Required value", "data[password]: Required value"],
        );
        check("kubernetes.io/dockercfg", json!({}), &["data[.dockercfg]: Required value"]);
        check("kubernetes.io/dockerconfigjson", json!({".dockerconfigjson": "e30="}), &[]);
        check(
            "kubernetes.io/dockerconfigjson",
            json!({".dockerconfigjson": "YQ=="}),
            &[
                "data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": invalid character 'a' looking for beginning of value",
            ],
        );
        check(
            "kubernetes.io/service-account-token",
            json!({}),
            &["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
        );
    }

    /// Clauses: K05.immutable
    #[test]
    fn validates_an_update() {
        let mut old = secret("Opaque", json!({"a": "Yg=="}));
        check_update(
            &Secret,
            &old,
            &[
                ("/data/a", json!("Yw=="), &[]),
                ("/type", json!("other"), &["type: Invalid value: \"other\": field is immutable"]),
            ],
        );
        old["immutable"] = true.into();
        let why = "Forbidden: field is immutable when `immutable` is set";
        check_update(
            &Secret,
            &old,
            &[
                ("/data/a", json!("Yw=="), &[&format!("data: {why}")]),
                ("/immutable", json!(false), &[&format!("immutable: {why}")]),
            ],
        );
    }

    #[test]
    fn merges_string_data() {
        let mut object =
            Object::from_value(json!({"data": {"a": "Yg=="}, "stringData": {"a": "c", "d": "e"}})).expect("an object");
        Secret.default(&mut object);
        assert_eq!((object.get("data"), object.get("stringData")), (Some(&json!({"a": "Yw==", "d": "ZQ=="})), None));
    }
}
