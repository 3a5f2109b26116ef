//! ConfigMap: keys, size, and `immutable`.

use crate::Config;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use registry::{CreateStrategy, UpdateStrategy};

pub fn row(_: &Config) -> Row {
    Row::stored(ConfigMap)
}

pub struct ConfigMap;

/// Maximum total size of all values, in bytes.
pub const MAX_SIZE: usize = 1024 * 1024;

impl CreateStrategy for ConfigMap {
    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        let mut total = 0;
        for part in ["data", "binaryData"] {
            let path = FieldPath::new(part);
            for (k, v) in o.get(part).and_then(Value::as_object).into_iter().flatten() {
                let at = path.key(k);
                errors.extend(names::config_map_key(k).into_iter().map(|m| FieldError::invalid(&at, k.as_str(), m)));
                if part == "binaryData" && o.at(&["data", k]).is_some() {
                    errors.push(FieldError::invalid(
                        &FieldPath::new("data").key(k),
                        k.as_str(),
                        "duplicate of key present in binaryData",
                    ));
                }
                let n = v.as_str().map_or(0, str::len);
                total += if part == "data" { n } else { n / 4 * 3 };
            }
        }
        if total > MAX_SIZE {
            // Upstream reports the path of the entire object as `[]`.
            errors.push(FieldError::too_long(&FieldPath::new("[]"), MAX_SIZE));
        }
    }
}

impl UpdateStrategy for ConfigMap {
    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        immutable(o, old, &["data", "binaryData"], errors);
    }
}

registry::strategy!(ConfigMap: CreateStrategy, UpdateStrategy);

/// Rejects changes to an object with `immutable: true`.
pub fn immutable(o: &Object, old: &Object, parts: &[&str], errors: &mut ErrorList) {
    if old.get("immutable") != Some(&Value::Bool(true)) {
        return;
    }
    let why = "field is immutable when `immutable` is set";
    if o.get("immutable") != Some(&Value::Bool(true)) {
        errors.push(FieldError::forbidden(&FieldPath::new("immutable"), why));
    }
    for p in parts {
        if o.get(p) != old.get(p) {
            errors.push(FieldError::forbidden(&FieldPath::new(*p), why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_create, check_update};
    use serde_json::json;

    fn base() -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "b"}})
    }

    #[test]
    fn validates_keys_and_size() {
        let text = "x".repeat(MAX_SIZE);
        let binary = "eHh4".repeat(MAX_SIZE / 3 + 1);
        let large = "[]: Too long: may not be more than 1048576 bytes";
        check_create(
            &ConfigMap,
            &base(),
            &[
                ("", Value::Null, &[]),
                (
                    "/data",
                    json!({"a/b": "c"}),
                    &["data[a/b]: Invalid value: \"a/b\": a valid config key must consist of…"],
                ),
                ("/binaryData", json!({"..": ""}), &["binaryData[..]: Invalid value: \"..\": must not be '..'"]),
                (
                    "/binaryData",
                    json!({"a": ""}),
                    &["data[a]: Invalid value: \"a\": duplicate of key present in binaryData"],
                ),
                ("/data", json!({"a": text}), &[]),
                ("/data", json!({"a": text, "b": "x"}), &[large]),
                ("/binaryData", json!({"b": binary}), &[large]),
            ],
        );
    }

    /// Clauses: K12.immutable
    #[test]
    fn immutable_data_does_not_change() {
        let why = "Forbidden: field is immutable when `immutable` is set";
        check_update(&ConfigMap, &base(), &[("/data/a", json!("c"), &[]), ("/immutable", json!(true), &[])]);
        let mut old = base();
        old["immutable"] = true.into();
        check_update(
            &ConfigMap,
            &old,
            &[
                ("/metadata/labels", json!({"a": "b"}), &[]),
                ("/data/a", json!("c"), &[&format!("data: {why}")]),
                ("/binaryData", json!({"b": "eA=="}), &[&format!("binaryData: {why}")]),
                ("/immutable", json!(false), &[&format!("immutable: {why}")]),
                ("/immutable", Value::Null, &[&format!("immutable: {why}")]),
            ],
        );
    }
}
