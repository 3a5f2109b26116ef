//! How deep objects may nest, and reading JSON that nests as deep as that.
//!
//! Go's decoders stop at 10,000 levels. Recursive code (validation, merging, encoding, dropping) runs on the stack of a
//! worker thread here, so the limit is lower, and it is the same everywhere: what a request brings and what a patch, an
//! apply or a webhook makes of an object is refused beyond [`MAX`], and every reader takes at least that much with anything
//! that lists, events, tables and managed fields put around it.

use crate::Value;
use serde::Deserialize;

/// Levels of objects and lists in an object, its managed fields aside.
pub const MAX: usize = 200;
/// Levels of the list of managed fields, which repeats the levels of the object and adds some of its own.
pub const MANAGED_FIELDS: usize = MAX + 8;
/// Levels that readers of stored objects and of answers take.
pub const READ: usize = 256;
/// The depth at which `serde_json` stops by default.
const SERDE_JSON: usize = 127;

/// Returns how deep a JSON text nests, without parsing it.
pub fn of_text(text: &[u8]) -> usize {
    let (mut depth, mut max, mut in_string, mut escaped) = (0usize, 0usize, false, false);
    for &b in text {
        if in_string {
            match b {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match b {
            b'"' => in_string = true,
            b'{' | b'[' => {
                depth += 1;
                max = max.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    max
}

/// Returns how deep a value nests: 0 for a scalar. Takes no stack.
pub fn of_value(v: &Value) -> usize {
    let (mut max, mut left) = (0, vec![(v, 1)]);
    while let Some((v, depth)) = left.pop() {
        match v {
            Value::Array(a) => {
                max = max.max(depth);
                left.extend(a.iter().filter(|v| is_container(v)).map(|v| (v, depth + 1)));
            }
            Value::Object(m) => {
                max = max.max(depth);
                left.extend(m.values().filter(|v| is_container(v)).map(|v| (v, depth + 1)));
            }
            _ => {}
        }
    }
    max
}

fn is_container(v: &Value) -> bool {
    matches!(v, Value::Array(_) | Value::Object(_))
}

/// Whether a value nests deeper than `limit`. Recurses no deeper than that.
pub fn exceeds(v: &Value, limit: usize) -> bool {
    match v {
        Value::Array(a) => limit == 0 || a.iter().any(|v| exceeds(v, limit - 1)),
        Value::Object(m) => limit == 0 || m.values().any(|v| exceeds(v, limit - 1)),
        _ => false,
    }
}

/// Whether a value has more than `limit` objects and lists. Each takes far more memory than its characters, and more once it has its
/// defaults. The value nests no deeper than [`READ`].
pub fn has_more_parts(v: &Value, limit: usize) -> bool {
    fn count(v: &Value, left: &mut usize) -> bool {
        if !is_container(v) {
            return false;
        }
        match left.checked_sub(1) {
            Some(n) => *left = n,
            None => return true,
        }
        match v {
            Value::Array(a) => a.iter().any(|v| count(v, left)),
            Value::Object(m) => m.values().any(|v| count(v, left)),
            _ => false,
        }
    }
    count(v, &mut { limit })
}

/// Reads JSON that nests up to [`READ`] levels. Most does not nest as deep as `serde_json` reads by itself; only what it
/// refuses is looked at again.
pub fn from_slice<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, serde_json::Error> {
    let error = match serde_json::from_slice(bytes) {
        Ok(v) => return Ok(v),
        Err(e) => e,
    };
    if !(SERDE_JSON..=READ).contains(&of_text(bytes)) {
        return Err(error);
    }
    unlimited(serde_json::Deserializer::from_slice(bytes))
}

/// [`from_slice`] of text, with strings that are known to be valid.
pub fn from_str<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, serde_json::Error> {
    let error = match serde_json::from_str(text) {
        Ok(v) => return Ok(v),
        Err(e) => e,
    };
    if !(SERDE_JSON..=READ).contains(&of_text(text.as_bytes())) {
        return Err(error);
    }
    unlimited(serde_json::Deserializer::from_str(text))
}

fn unlimited<'a, T: Deserialize<'a>, R: serde_json::de::Read<'a>>(
    mut d: serde_json::Deserializer<R>,
) -> Result<T, serde_json::Error> {
    d.disable_recursion_limit();
    let v = T::deserialize(&mut d)?;
    d.end()?;
    Ok(v)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize) -> String {
        format!("{}1{}", "{\"a\":[".repeat(levels / 2), "]}".repeat(levels / 2))
    }

    #[test]
    fn text_and_value_agree_on_depth() {
        for levels in [0, 2, 10, 126, 128, 130, 200, READ] {
            let text = nested(levels);
            let v: Value = from_str(&text).unwrap();
            assert_eq!((of_text(text.as_bytes()), of_value(&v)), (levels, levels));
            assert!(!exceeds(&v, levels) && (levels == 0 || exceeds(&v, levels - 1)), "{levels}");
            assert_eq!(from_slice::<Value>(text.as_bytes()).unwrap(), v);
        }
        assert_eq!(of_text(br#"{"a":["[[[\"[["]}"#), 2);
        assert_eq!(of_value(&serde_json::json!({"a": [], "b": {"c": 1}})), 2);
    }

    #[test]
    fn beyond_the_limit_nothing_is_read() {
        for levels in [READ + 2, 1_000, 1_000_000] {
            assert!(
                from_str::<Value>(&nested(levels)).is_err() && from_slice::<Value>(nested(levels).as_bytes()).is_err()
            );
        }
        let broken = nested(150).replace('1', "x");
        assert!(from_str::<Value>(&broken).is_err() && from_str::<Value>(&format!("{} x", nested(150))).is_err());
    }
}
