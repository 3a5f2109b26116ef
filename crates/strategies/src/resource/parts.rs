//! Validation that claims, classes and slices share: names, sets, opaque parameters.

use crate::read::{items, repeats, text};
use crate::storage::driver_name;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value, names};

const POOL_MAX: usize = 253;
const DOMAIN_AND_NAME: &str = "a fully qualified name must be a domain and a name separated by a slash";
const NAME_MAX: usize = 32;
/// Maximum size of opaque parameters, in bytes.
pub const OPAQUE_MAX: usize = 10 * 1024;

pub fn messages(of: Vec<String>, at: &FieldPath, value: &str, errors: &mut ErrorList) {
    errors.extend(of.into_iter().map(|m| FieldError::invalid(at, value, m)));
}

/// Validates a driver name: a domain, case-insensitive.
pub fn driver(name: &str, at: &FieldPath, errors: &mut ErrorList) {
    if name.is_empty() {
        errors.push(FieldError::required(at, ""));
    }
    driver_name(name, at, errors);
}

/// Validates a pool name: domains separated by slashes.
pub fn pool(name: &str, at: &FieldPath, errors: &mut ErrorList) {
    if name.is_empty() {
        errors.push(FieldError::required(at, ""));
        return;
    }
    if name.len() > POOL_MAX {
        errors.push(FieldError::too_long(at, POOL_MAX));
    }
    for part in name.split('/') {
        messages(names::dns_subdomain(part), at, part, errors);
    }
}

/// Validates `name` or `domain/name`, where the name is a C identifier.
pub fn qualified(name: &str, at: &FieldPath, errors: &mut ErrorList) {
    let Some((domain, id)) = name.split_once('/') else { return identifier(name, at, errors) };
    if id.contains('/') {
        // Upstream validates no part of such a name.
        return;
    }
    match domain {
        "" => errors.push(FieldError::invalid(at, "", "the domain must not be empty")),
        _ => driver_name(domain, at, errors),
    }
    match id {
        "" => errors.push(FieldError::invalid(at, "", "the name must not be empty")),
        _ => identifier(id, at, errors),
    }
}

pub fn fully_qualified(name: &str, at: &FieldPath, errors: &mut ErrorList) {
    qualified(name, at, errors);
    if !name.contains('/') {
        errors.push(FieldError::invalid(at, name, DOMAIN_AND_NAME));
    }
}

fn identifier(id: &str, at: &FieldPath, errors: &mut ErrorList) {
    if id.len() > NAME_MAX {
        errors.push(FieldError::too_long(at, NAME_MAX));
    }
    let starts = id.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !starts || !id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        let why = "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')";
        errors.push(FieldError::invalid(at, id, why));
    }
}

/// Validates a UUID in canonical form.
pub fn uid(uid: &str, at: &FieldPath, errors: &mut ErrorList) {
    if let Err(e) = check_uuid(uid) {
        errors.push(FieldError::invalid(at, uid, format!("error validating uid: {e}")));
    } else if uid.len() != 36 || uid.bytes().any(|b| b.is_ascii_uppercase()) {
        let why = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters";
        errors.push(FieldError::invalid(at, uid, why));
    }
}

/// Whether a text is a UUID in one of the forms that `github.com/google/uuid` knows, or why it is none.
fn check_uuid(text: &str) -> Result<(), String> {
    let bytes = text.as_bytes();
    let wrong = || "invalid UUID format".to_owned();
    let digits = match bytes.len() {
        36 => bytes,
        45 if bytes[..9].eq_ignore_ascii_case(b"urn:uuid:") => &bytes[9..],
        45 => return Err(format!("invalid urn prefix: {:?}", String::from_utf8_lossy(&bytes[..9]))),
        38 if bytes[0] == b'{' && bytes[37] == b'}' => &bytes[1..37],
        38 => return Err("invalid bracketed UUID format".to_owned()),
        32 if bytes.iter().all(u8::is_ascii_hexdigit) => return Ok(()),
        32 => return Err(wrong()),
        n => return Err(format!("invalid UUID length: {n}")),
    };
    let shaped = digits.iter().enumerate().all(|(i, b)| match i {
        8 | 13 | 18 | 23 => *b == b'-',
        _ => b.is_ascii_hexdigit(),
    });
    if shaped { Ok(()) } else { Err(wrong()) }
}

/// Validates opaque parameters: a JSON object.
pub fn raw(v: &Value, at: &FieldPath, errors: &mut ErrorList) {
    match v {
        Value::Null => errors.push(FieldError::required(at, "")),
        v if v.to_string().len() > OPAQUE_MAX => errors.push(FieldError::too_long(at, OPAQUE_MAX)),
        Value::Object(_) => {}
        _ => errors.push(FieldError::invalid(at, "<value omitted>", "must be a valid JSON object")),
    }
}

/// Validates an item of `config`, the parameters for a driver.
pub fn configuration(c: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let opaque = &c["opaque"];
    if opaque.is_object() {
        let at = at.child("opaque");
        driver(text(opaque, "driver"), &at.child("driver"), errors);
        raw(&opaque["parameters"], &at.child("parameters"), errors);
    }
}

/// Calls `each` for every item with its path.
pub fn every(v: &Value, key: &str, at: &FieldPath, mut each: impl FnMut(&Value, &FieldPath)) {
    let at = at.child(key);
    for (i, item) in items(v, key).iter().enumerate() {
        each(item, &at.index(i));
    }
}

/// Like [`every`], for a list whose items are not validated if it has more than `most`, which is an error of its own.
pub fn at_most(most: usize, v: &Value, key: &str, at: &FieldPath, each: impl FnMut(&Value, &FieldPath)) {
    if items(v, key).len() <= most {
        every(v, key, at, each);
    }
}

/// Maximum number of binding conditions, and of failure conditions.
const BINDING_MAX: usize = 4;

/// Validates binding conditions, which require failure conditions.
pub fn binding_conditions(v: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let (good, bad) = ("bindingConditions", "bindingFailureConditions");
    for key in [good, bad] {
        let all = items(v, key);
        if all.len() > BINDING_MAX {
            errors.push(FieldError::too_many(&at.child(key), all.len(), BINDING_MAX));
            continue;
        }
        every(v, key, at, |c, at| {
            let name = c.as_str().unwrap_or_default();
            messages(names::qualified_name(name), at, name, errors);
        });
    }
    for key in [good, bad] {
        let at = at.child(key);
        let all = items(v, key);
        for ((i, c), again) in all.iter().enumerate().zip(repeats(all)) {
            if again {
                errors.push(FieldError::duplicate(&at.index(i), c));
            }
        }
    }
    every(v, bad, at, |c, at| {
        if items(v, good).contains(c) {
            let why = "bindingFailureConditions must not overlap with bindingConditions";
            errors.push(FieldError::invalid(at, c, why));
        }
    });
    for (missing, other) in [(good, bad), (bad, good)] {
        if items(v, missing).is_empty() && !items(v, other).is_empty() {
            let why = format!("{missing} are required to use {other}");
            errors.push(FieldError::invalid(&at.child(missing), Value::Null, why));
        }
    }
}

/// Validates a toleration.
pub fn toleration(t: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let value = text(t, "value");
    let at = at.child("value");
    match text(t, "operator") {
        "Exists" if !value.is_empty() => {
            errors.push(FieldError::invalid(&at, value, "must be empty for operator `Exists`"));
        }
        "Equal" => messages(names::label_value(value), &at, value, errors),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(rule: impl Fn(&FieldPath, &mut ErrorList), what: &str, expected: &[&str]) {
        let mut errors = ErrorList::new();
        rule(&FieldPath::new("f"), &mut errors);
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let fits = |(error, expected): (&String, &&str)| error.starts_with(expected.trim_end_matches('…'));
        assert!(errors.len() == expected.len() && errors.iter().zip(expected).all(fits), "{what}: {errors:#?}");
    }

    #[test]
    fn validates_names() {
        let (fits, long) = ("a".repeat(32), "a".repeat(33));
        for (name, expected) in [
            ("a_B1", &[][..]),
            ("d.example/a", &[]),
            (&fits, &[]),
            (&long, &["f: Too long: may not be more than 32 bytes"]),
            ("1a", &["f: Invalid value: \"1a\": a valid C identifier must start with…"]),
            ("a-b", &["f: Invalid value: \"a-b\": a valid C identifier must start with…"]),
            ("/a", &["f: Invalid value: \"\": the domain must not be empty"]),
            ("d/", &["f: Invalid value: \"\": the name must not be empty"]),
            ("d/-/b", &[]),
        ] {
            check(|at, errors| qualified(name, at, errors), name, expected);
        }
        check(
            |at, errors| fully_qualified("a", at, errors),
            "a",
            &["f: Invalid value: \"a\": a fully qualified name must be a domain and a name separated by a slash"],
        );
        check(|at, errors| pool("a/b.c", at, errors), "a/b.c", &[]);
        check(|at, errors| pool("", at, errors), "", &["f: Required value"]);
        check(
            |at, errors| pool(&"a".repeat(254), at, errors),
            "long",
            &["f: Too long: may not be more than 253 bytes", "f: Invalid value: …"],
        );
        check(|at, errors| uid("01234567-89ab-cdef-0123-456789abcdef", at, errors), "a uid", &[]);
        check(
            |at, errors| uid("01234567-89AB-cdef-0123-456789abcdef", at, errors),
            "upper case",
            &["f: Invalid value: \"01234567-89AB-cdef-0123-456789abcdef\": uid must be in RFC 4122 normalized form…"],
        );
        for (text, why) in [
            ("", "invalid UUID length: 0"),
            ("0123456789abcdef0123456789abcdeg", "invalid UUID format"),
            ("01234567+89ab-cdef-0123-456789abcdef", "invalid UUID format"),
            ("{01234567-89ab-cdef-0123-456789abcdef", "invalid UUID length: 37"),
            ("{01234567-89ab-cdef-0123-456789abcdef)", "invalid bracketed UUID format"),
        ] {
            check(
                |at, errors| uid(text, at, errors),
                text,
                &[&format!("f: Invalid value: {text:?}: error validating uid: {why}")],
            );
        }
    }

    #[test]
    fn validates_conditions_and_tolerations() {
        let conditions = |v: Value, expected: &[&str]| {
            check(|_, errors| binding_conditions(&v, &FieldPath::new("d"), errors), &v.to_string(), expected);
        };
        let (good, bad) = ("bindingConditions", "bindingFailureConditions");
        conditions(json!({good: ["a"], bad: ["b"]}), &[]);
        conditions(
            json!({good: ["a"]}),
            &[
                "d.bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to use bindingConditions",
            ],
        );
        conditions(
            json!({bad: ["a"]}),
            &[
                "d.bindingConditions: Invalid value: null: bindingConditions are required to use bindingFailureConditions",
            ],
        );
        conditions(
            json!({good: ["a"], bad: ["a"]}),
            &[
                "d.bindingFailureConditions[0]: Invalid value: \"a\": bindingFailureConditions must not overlap with bindingConditions",
            ],
        );
        conditions(json!({good: ["a", "a"], bad: ["b"]}), &["d.bindingConditions[1]: Duplicate value: \"a\""]);
        conditions(json!({good: ["a b"], bad: ["b"]}), &["d.bindingConditions[0]: Invalid value: \"a b\": …"]);
        conditions(
            json!({good: ["a", "b", "c", "d", "e"], bad: ["f"]}),
            &["d.bindingConditions: Too many: 5: must have at most 4 items"],
        );
        let tolerates =
            |v: Value, expected: &[&str]| check(|at, errors| toleration(&v, at, errors), &v.to_string(), expected);
        tolerates(json!({"operator": "Exists"}), &[]);
        tolerates(
            json!({"operator": "Exists", "value": "v"}),
            &["f.value: Invalid value: \"v\": must be empty for operator `Exists`"],
        );
        tolerates(
            json!({"operator": "Equal", "value": "a b"}),
            &["f.value: Invalid value: \"a b\": a valid label must be…"],
        );
    }
}
