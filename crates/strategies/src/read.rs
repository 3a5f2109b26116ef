//! Reading fields of values that have been typed: what is absent is empty.

use meta::Value;

pub fn items<'a>(v: &'a Value, key: &str) -> &'a [Value] {
    v[key].as_array().map_or(&[], Vec::as_slice)
}

pub fn text<'a>(v: &'a Value, key: &str) -> &'a str {
    v[key].as_str().unwrap_or_default()
}

pub fn is_set(v: &Value, key: &str) -> bool {
    !v[key].is_null()
}
