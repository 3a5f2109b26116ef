//! Lists and maps that a request sent empty. Go distinguishes an empty list (`[]`) from an absent one (`null`) in the values of error messages
//! only; typed reading makes both absent.
//!
//! The paths are thread-local during the validation of one object, so that validators need not pass them on. Left out: lists of `metav1` types,
//! which messages show as they are written.

use meta::field::{BadValue, ErrorType};
use meta::{FieldError, Value};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Paths in the form of field errors, with the empty list or map that was sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Empties {
    paths: BTreeMap<String, Value>,
    written: usize,
}

thread_local! {
    static NOW: RefCell<Empties> = RefCell::default();
}

/// Restores the previous paths when dropped, also by a panic.
struct Before(Empties);

impl Drop for Before {
    fn drop(&mut self) {
        NOW.set(std::mem::take(&mut self.0));
    }
}

impl Empties {
    pub(crate) fn note(&mut self, path: String, v: &Value) {
        let empty = if v.is_array() { Value::Array(Vec::new()) } else { Value::Object(Default::default()) };
        self.written += path.len();
        self.paths.insert(path, empty);
    }

    /// Bytes of all paths.
    pub(crate) fn written(&self) -> usize {
        self.written
    }

    /// Whether no list or map was sent empty.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Runs `validate` with these paths, and corrects the absent values of its errors.
    pub fn while_known(&self, validate: impl FnOnce() -> Vec<FieldError>) -> Vec<FieldError> {
        let validate = || meta::field::bounded(validate);
        if self.is_empty() {
            return validate();
        }
        let mut errors = {
            let _before = Before(NOW.replace(self.clone()));
            validate()
        };
        use ErrorType::{Invalid, NotSupported, TypeInvalid};
        for e in &mut errors {
            let Some(v) = self.paths.get(&e.path) else { continue };
            if e.value == BadValue::Null && matches!(e.kind, Invalid | TypeInvalid | NotSupported) {
                e.value = v.into();
            }
        }
        errors
    }
}

/// Whether the request sent any empty list or map.
pub(crate) fn any() -> bool {
    NOW.with_borrow(|n| !n.is_empty())
}

/// The value of messages for an absent field: the empty list or map that was sent, else `null`.
pub fn at(path: &str) -> Value {
    NOW.with_borrow(|n| n.paths.get(path).cloned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use meta::FieldPath;
    use serde_json::json;

    #[test]
    fn what_was_sent_empty_is_shown_empty() {
        let mut sent = Empties::default();
        sent.note("spec.labels".into(), &json!({}));
        sent.note("spec.items".into(), &json!([]));
        let wrong = |p: &str| FieldError::invalid(&FieldPath::new(p), Value::Null, "why");
        let errors = sent.while_known(|| {
            assert_eq!((at("spec.items"), at("spec")), (json!([]), Value::Null));
            vec![wrong("spec.labels"), wrong("spec.items"), wrong("spec.other")]
        });
        let bodies: Vec<String> = errors.iter().map(|e| e.body().to_string()).collect();
        assert_eq!(bodies, ["Invalid value: {}: why", "Invalid value: []: why", "Invalid value: null: why"]);
        assert!(!any());
    }
}
