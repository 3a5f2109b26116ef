//! Paths to fields and the errors of validation (`k8s.io/apimachinery/pkg/util/validation/field`).

use crate::Value;
use std::cell::Cell;
use std::fmt;
use std::fmt::Write as _;

/// A path such as `spec.containers[0].env[name]`. Cheap to extend, printed once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldPath(String);

impl FieldPath {
    pub fn root() -> Self {
        Self::default()
    }

    pub fn new(path: impl Into<String>) -> Self {
        Self(path.into())
    }

    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        let mut s = String::with_capacity(self.0.len() + name.len() + 1);
        s.push_str(&self.0);
        if !s.is_empty() {
            s.push('.');
        }
        s.push_str(name);
        Self(s)
    }

    #[must_use]
    pub fn index(&self, i: usize) -> Self {
        match u8::try_from(i) {
            // Nearly all lists are short, and every one that is validated is numbered.
            Ok(digit @ 0..10) => self.bracketed(char::from(b'0' + digit).encode_utf8(&mut [0])),
            _ => self.bracketed(&i.to_string()),
        }
    }

    #[must_use]
    pub fn key(&self, k: &str) -> Self {
        self.bracketed(k)
    }

    fn bracketed(&self, inner: &str) -> Self {
        let mut s = String::with_capacity(self.0.len() + inner.len() + 2);
        for part in [&self.0, "[", inner, "]"] {
            s.push_str(part);
        }
        Self(s)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorType {
    Required,
    Invalid,
    NotSupported,
    Duplicate,
    Forbidden,
    TooLong,
    TooMany,
    TypeInvalid,
    NotFound,
    Internal,
}

impl ErrorType {
    /// The `reason` of a status cause.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotFound => "FieldValueNotFound",
            Self::Internal => "InternalError",
        }
    }
}

/// Bytes of the errors of one validation that are kept whole. Many errors can each show the same large value.
const WHOLE: usize = 16 << 20;
/// Bytes that are kept of an error beyond.
const CUT: usize = 256;
/// Errors of one validation that say where and what; far more than any answer shows. Further ones take no memory of their own,
/// and are left out in the end.
const MOST: usize = 20_000;

thread_local! {
    static ROOM: Cell<usize> = const { Cell::new(usize::MAX) };
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Validates one object in bounded memory: when its errors have become many and long, further ones are cut short, and at last
/// left out.
pub fn bounded(validate: impl FnOnce() -> ErrorList) -> ErrorList {
    struct Before(usize, usize);
    impl Drop for Before {
        fn drop(&mut self) {
            ROOM.set(self.0);
            LEFT.set(self.1);
        }
    }
    let _before = Before(ROOM.replace(WHOLE), LEFT.replace(MOST));
    let mut errors = validate();
    if LEFT.get() == 0 {
        errors.retain(|e| !(e.path.is_empty() && e.body.is_empty()));
    }
    errors
}

/// Whether further errors would be left out: there is no need to look for more.
pub fn is_full() -> bool {
    LEFT.get() == 0
}

/// One thing wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    pub kind: ErrorType,
    pub path: String,
    /// What upstream prints behind the path.
    pub body: String,
    /// The path whose place in the order of errors this one takes, where it is not its own.
    pub place: Option<String>,
}

pub type ErrorList = Vec<FieldError>;

impl FieldError {
    fn make(kind: ErrorType, path: &FieldPath, mut body: String) -> Self {
        if is_full() {
            return Self { kind, path: String::new(), body: String::new(), place: None };
        }
        LEFT.set(LEFT.get() - 1);
        let room = ROOM.get();
        if room < body.len() && body.len() > CUT {
            let end = (0..=CUT).rev().find(|i| body.is_char_boundary(*i)).unwrap_or_default();
            body.truncate(end);
            body.shrink_to_fit();
        }
        ROOM.set(room.saturating_sub(body.len()));
        Self { kind, path: path.to_string(), body, place: None }
    }

    /// Said where an error of that path is said: upstream does not always go through a type as it is written.
    #[must_use]
    pub fn said_with(self, path: &FieldPath) -> Self {
        Self { place: Some(path.to_string()), ..self }
    }

    pub fn required(path: &FieldPath, detail: &str) -> Self {
        Self::make(ErrorType::Required, path, with("Required value", detail))
    }

    pub fn invalid(path: &FieldPath, value: impl Into<Value>, detail: impl AsRef<str>) -> Self {
        let body = with(&format!("Invalid value: {}", show(&value.into())), detail.as_ref());
        Self::make(ErrorType::Invalid, path, body)
    }

    /// The same of a value that has been written already, as the server's own types print it.
    pub fn invalid_as(path: &FieldPath, shown: &str, detail: &str) -> Self {
        Self::make(ErrorType::Invalid, path, with(&format!("Invalid value: {shown}"), detail))
    }

    /// Invalid as a whole: the value is not shown.
    pub fn invalid_altogether(path: &FieldPath, detail: &str) -> Self {
        Self::make(ErrorType::Invalid, path, with("Invalid value", detail))
    }

    pub fn type_invalid(path: &FieldPath, value: impl Into<Value>, detail: impl AsRef<str>) -> Self {
        let body = with(&format!("Invalid value: {}", show(&value.into())), detail.as_ref());
        Self::make(ErrorType::TypeInvalid, path, body)
    }

    pub fn not_supported<S: AsRef<str>>(path: &FieldPath, value: impl Into<Value>, allowed: &[S]) -> Self {
        Self::not_supported_as(path, &show(&value.into()), allowed)
    }

    pub fn not_supported_as<S: AsRef<str>>(path: &FieldPath, shown: &str, allowed: &[S]) -> Self {
        Self::unsupported(path, shown, allowed.iter())
    }

    /// The same with values that are made one by one, as many as the error keeps.
    pub fn not_supported_of<S: AsRef<str>>(
        path: &FieldPath,
        value: impl Into<Value>,
        allowed: impl Iterator<Item = S>,
    ) -> Self {
        Self::unsupported(path, &show(&value.into()), allowed)
    }

    fn unsupported<S: AsRef<str>>(path: &FieldPath, shown: &str, allowed: impl Iterator<Item = S>) -> Self {
        let mut body = format!("Unsupported value: {shown}: supported values: ");
        let most = if is_full() { 0 } else { ROOM.get().max(CUT) };
        for (i, a) in allowed.enumerate() {
            if body.len() > most {
                break;
            }
            let _ = write!(body, "{}{:?}", if i > 0 { ", " } else { "" }, a.as_ref());
        }
        Self::make(ErrorType::NotSupported, path, body)
    }

    pub fn duplicate(path: &FieldPath, value: impl Into<Value>) -> Self {
        Self::duplicate_as(path, &show(&value.into()))
    }

    pub fn duplicate_as(path: &FieldPath, shown: &str) -> Self {
        Self::make(ErrorType::Duplicate, path, format!("Duplicate value: {shown}"))
    }

    pub fn forbidden(path: &FieldPath, detail: &str) -> Self {
        Self::make(ErrorType::Forbidden, path, with("Forbidden", detail))
    }

    pub fn too_long(path: &FieldPath, max: usize) -> Self {
        Self::make(ErrorType::TooLong, path, format!("Too long: may not be more than {max} bytes"))
    }

    pub fn too_many(path: &FieldPath, actual: usize, max: usize) -> Self {
        Self::make(ErrorType::TooMany, path, format!("Too many: {actual}: must have at most {max} items"))
    }

    pub fn not_found(path: &FieldPath, value: impl Into<Value>) -> Self {
        Self::make(ErrorType::NotFound, path, format!("Not found: {}", show(&value.into())))
    }

    pub fn internal(path: &FieldPath, detail: &str) -> Self {
        Self::make(ErrorType::Internal, path, with("Internal error", detail))
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body)
    }
}

fn with(head: &str, detail: &str) -> String {
    if detail.is_empty() { head.to_owned() } else { format!("{head}: {detail}") }
}

/// A value as upstream prints it in an error: strings quoted, `null` as Go's, everything else as JSON.
fn show(v: &Value) -> String {
    match v {
        Value::String(s) => format!("{s:?}"),
        other => {
            let mut out = Shown(Vec::new());
            // It fails when there is no more room.
            let whole = serde_json::to_writer(&mut out, other).is_ok();
            let text = String::from_utf8_lossy(&out.0);
            if whole { text.into_owned() } else { text.trim_end_matches('\u{fffd}').to_owned() + "..." }
        }
    }
}

/// How much of an object or a list an error shows.
const SHOWN: usize = 64 << 10;

/// Takes that much.
struct Shown(Vec<u8>);

impl std::io::Write for Shown {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = bytes.len().min(SHOWN - self.0.len());
        self.0.extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_object_is_shown_in_part() {
        let large: Value = (0..1 << 20).map(Value::from).collect();
        let body = FieldError::invalid(&FieldPath::new("a"), large, "why").body;
        assert!(
            body.len() < 2 * SHOWN && body.starts_with("Invalid value: [0,1,2,") && body.ends_with("...: why"),
            "{}",
            body.len()
        );
    }

    #[test]
    fn many_long_errors_are_cut() {
        let long = Value::from("é".repeat(1 << 20));
        let error = || FieldError::invalid(&FieldPath::new("a"), long.clone(), "why");
        let sizes: Vec<usize> = bounded(|| (0..20).map(|_| error()).collect()).iter().map(|e| e.body.len()).collect();
        assert!(sizes[0] > 2 << 20 && sizes[19] <= CUT && error().body.len() > 2 << 20, "{sizes:?}");
        let required = || FieldError::required(&FieldPath::root(), "");
        let many = bounded(|| (0..3 * MOST).map(|_| required()).collect());
        assert!(many.len() == MOST && many.iter().all(|e| *e == required()) && !is_full());
    }

    #[test]
    fn paths_are_printed_as_upstream_does() {
        let at = FieldPath::root().child("spec").child("containers");
        assert_eq!(at.index(0).child("env").key("A B").to_string(), "spec.containers[0].env[A B]");
        assert_eq!(
            [9, 10, 4711].map(|i| at.index(i).to_string()).join(" "),
            "spec.containers[9] spec.containers[10] spec.containers[4711]"
        );
        assert_eq!(FieldPath::root().to_string(), "<nil>");
    }
}
