//! Masks the data of secrets, and still shows which values change.

use meta::{Object, Value};

const HIDDEN: &str = "***";

/// Different values are marked as the old and the new one.
pub fn mask(live: Option<&mut Object>, merged: &mut Object) {
    let mut none = Object::default();
    let live = live.unwrap_or(&mut none);
    let data = |o: &Object| o.get("data").and_then(Value::as_object).cloned().unwrap_or_default();
    let (before, after) = (data(live), data(merged));
    for (key, v) in &before {
        let masked = match after.get(key) {
            Some(w) if w != v => "*** (before)",
            _ => HIDDEN,
        };
        live.set(&["data", key], masked);
    }
    for (key, v) in &after {
        let masked = match before.get(key) {
            Some(w) if w != v => "*** (after)",
            _ => HIDDEN,
        };
        merged.set(&["data", key], masked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn masks_values() {
        let object = |data: Value| Object::from_value(json!({"data": data})).unwrap();
        let (mut a, mut b) =
            (object(json!({"x": "1", "y": "1", "z": "1"})), object(json!({"x": "1", "y": "2", "w": "3"})));
        mask(Some(&mut a), &mut b);
        assert_eq!(a, object(json!({"x": "***", "y": "*** (before)", "z": "***"})));
        assert_eq!(b, object(json!({"x": "***", "y": "*** (after)", "w": "***"})));
        let mut new = object(json!({"x": "1"}));
        mask(None, &mut new);
        assert_eq!(new, object(json!({"x": "***"})));
    }
}
