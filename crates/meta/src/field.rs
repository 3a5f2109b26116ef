//! Paths to fields and the errors of validation (`k8s.io/apimachinery/pkg/util/validation/field`).

use crate::{Map, Value};
use serde::Serialize;
use std::cell::Cell;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

/// A path such as `spec.containers[0].env[name]`. To extend it takes time in proportion to what is added, however long it is: a key of a
/// map may have a megabyte, and a list below it a hundred thousand items.
#[derive(Clone, Debug, Default)]
pub struct FieldPath {
    /// What stands before the text, one behind the other, once that has become long.
    before: Option<Arc<(FieldPath, FieldPath)>>,
    text: String,
}

/// Bytes of a text that are copied when it is extended.
const COPIED: usize = 256;

impl FieldPath {
    /// The path of the object itself.
    pub fn root() -> Self {
        Self::default()
    }

    /// A path that is written as in errors: `spec.containers[0].name`.
    pub fn new(path: impl Into<String>) -> Self {
        Self { before: None, text: path.into() }.ready()
    }

    /// Whether it is the path of the object itself.
    pub fn is_root(&self) -> bool {
        self.before.is_none() && self.text.is_empty()
    }

    /// The path of a field.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        self.extended(&[if self.is_root() { "" } else { "." }, name])
    }

    /// The path of an item of a list.
    #[must_use]
    pub fn index(&self, i: usize) -> Self {
        match u8::try_from(i) {
            // Nearly all lists are short, and every one that is validated is numbered.
            Ok(digit @ 0..10) => self.key(char::from(b'0' + digit).encode_utf8(&mut [0])),
            _ => self.key(&i.to_string()),
        }
    }

    /// The path of a key of a map.
    #[must_use]
    pub fn key(&self, k: &str) -> Self {
        self.extended(&["[", k, "]"])
    }

    fn extended(&self, parts: &[&str]) -> Self {
        let mut text = String::with_capacity(self.text.len() + parts.iter().map(|p| p.len()).sum::<usize>());
        text.push_str(&self.text);
        parts.iter().for_each(|p| text.push_str(p));
        Self { before: self.before.clone(), text }.ready()
    }

    /// Ready to be extended: with a short text.
    fn ready(self) -> Self {
        if self.text.len() <= COPIED { self } else { Self::after(self, Self::root()) }
    }

    fn after(first: Self, second: Self) -> Self {
        Self { before: Some(Arc::new((first, second))), text: String::new() }
    }

    /// This path with one that goes on below it, behind a dot. Neither is copied.
    #[must_use]
    pub fn join(&self, below: &Self) -> Self {
        match (self.is_root(), below.is_root()) {
            (_, true) => self.clone(),
            (true, _) => below.clone(),
            _ => Self::after(self.extended(&["."]), below.clone()),
        }
    }

    /// The path in words; empty for the root.
    pub fn text(&self) -> String {
        self.plain().to_string()
    }

    /// Writes the path in words; nothing for the root.
    pub fn plain(&self) -> impl fmt::Display {
        struct Plain<'a>(&'a FieldPath);
        impl fmt::Display for Plain<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                if let Some((first, second)) = self.0.before.as_deref() {
                    Self(first).fmt(f)?;
                    Self(second).fmt(f)?;
                }
                f.write_str(&self.0.text)
            }
        }
        Plain(self)
    }
}

impl PartialEq for FieldPath {
    fn eq(&self, other: &Self) -> bool {
        match (&self.before, &other.before) {
            (None, None) => self.text == other.text,
            _ => self.text() == other.text(),
        }
    }
}

impl Eq for FieldPath {}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() { f.write_str("<nil>") } else { self.plain().fmt(f) }
    }
}

/// The kind of an error (`field.ErrorType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorType {
    /// A required field is absent or empty.
    Required,
    /// The value is invalid.
    Invalid,
    /// The value is not among the allowed ones.
    NotSupported,
    /// The value occurs more than once.
    Duplicate,
    /// The value is not allowed here.
    Forbidden,
    /// The string or list of bytes is too long.
    TooLong,
    /// The list has too many items.
    TooMany,
    /// The value has a wrong type.
    TypeInvalid,
    /// The value refers to an object that does not exist.
    NotFound,
    /// The validation itself failed.
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

impl fmt::Display for ErrorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::NotFound => "Not found",
            Self::Internal => "Internal error",
        })
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
        errors.retain(|e| !e.is_placeholder());
    }
    errors
}

/// Whether further errors would be left out: there is no need to look for more.
pub fn is_full() -> bool {
    LEFT.get() == 0
}

/// A text for an error of the present validation. It is taken from the room that errors have, and cut where that is used up, so that
/// no more of it is written than is kept.
pub fn limited(text: fmt::Arguments<'_>) -> String {
    limited_to(text, CUT)
}

/// The same, of which at least a number of bytes are kept.
fn limited_to(text: fmt::Arguments<'_>, minimum: usize) -> String {
    let room = ROOM.get();
    let mut out = Limited { text: String::new(), left: room.max(minimum) };
    let _ = out.write_fmt(text);
    ROOM.set(room.saturating_sub(out.text.len()));
    out.text
}

/// A text that takes a number of bytes, and then fails.
struct Limited {
    text: String,
    left: usize,
}

impl fmt::Write for Limited {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        if s.len() <= self.left {
            self.left -= s.len();
            self.text.push_str(s);
            return Ok(());
        }
        let end = (0..=self.left).rev().find(|i| s.is_char_boundary(*i)).unwrap_or_default();
        self.text.push_str(&s[..end]);
        self.left = 0;
        Err(fmt::Error)
    }
}

/// The value that an error is about. It keeps no more of a large value than the errors of one validation have room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadValue {
    /// The error shows no value.
    Omitted,
    /// The value is absent.
    Null,
    /// A string.
    String(String),
    /// Any other value, formatted: as JSON, or as Go prints a struct of the server.
    Formatted(String),
}

impl BadValue {
    /// A value that is formatted already.
    pub fn formatted(text: &str) -> Self {
        if text == "null" { Self::Null } else { Self::Formatted(limited(format_args!("{text}"))) }
    }

    fn len(&self) -> usize {
        match self {
            Self::Omitted | Self::Null => 0,
            Self::String(s) | Self::Formatted(s) => s.len(),
        }
    }
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Omitted => Ok(()),
            Self::Null => f.write_str("null"),
            Self::String(s) => write!(f, "{s:?}"),
            Self::Formatted(s) => f.write_str(s),
        }
    }
}

impl From<&str> for BadValue {
    fn from(s: &str) -> Self {
        Self::String(limited(format_args!("{s}")))
    }
}

impl From<&Value> for BadValue {
    fn from(v: &Value) -> Self {
        match v {
            Value::Null => Self::Null,
            Value::String(s) => s.as_str().into(),
            v => Self::Formatted(limited(format_args!("{}", Json(v)))),
        }
    }
}

impl From<String> for BadValue {
    fn from(s: String) -> Self {
        s.as_str().into()
    }
}

impl From<&String> for BadValue {
    fn from(s: &String) -> Self {
        s.as_str().into()
    }
}

/// Values that have a form as JSON.
macro_rules! from_json {
    ($($t:ty)*) => {$(
        impl From<$t> for BadValue {
            fn from(v: $t) -> Self {
                (&Value::from(v)).into()
            }
        }
    )*};
}
from_json!(bool i32 u32 i64 u64 usize Option<i64> Option<&str> Map<String, Value>);

impl<T: Serialize> From<&[T]> for BadValue {
    fn from(list: &[T]) -> Self {
        Self::Formatted(limited(format_args!("{}", Json(list))))
    }
}

impl<T: Serialize> From<&Vec<T>> for BadValue {
    fn from(list: &Vec<T>) -> Self {
        list.as_slice().into()
    }
}

impl<T: Serialize> From<Vec<T>> for BadValue {
    fn from(list: Vec<T>) -> Self {
        list.as_slice().into()
    }
}

impl From<Value> for BadValue {
    fn from(v: Value) -> Self {
        (&v).into()
    }
}

/// The rule behind an error, where what becomes of the error depends on it (`field.Error.Origin`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An IP address or a range of addresses is not in a form that every program reads alike. Values that the object had
    /// before may stay so.
    AddressForm,
    /// The value was allowed once. Objects that had it before may have it.
    OnceAllowed,
}

/// An error of the validation of a field (`field.Error`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The type of the error.
    pub kind: ErrorType,
    /// The path of the field.
    pub path: String,
    /// The invalid value.
    pub value: BadValue,
    /// What is wrong with it.
    pub detail: String,
    /// The rule that found the error.
    pub origin: Option<Origin>,
    /// The path that determines the position among other errors, if not its own.
    pub order_path: Option<String>,
}

/// The errors of a validation.
pub type ErrorList = Vec<FieldError>;

impl FieldError {
    fn make(kind: ErrorType, path: &FieldPath, value: impl Into<BadValue>, detail: fmt::Arguments<'_>) -> Self {
        let error = Self {
            kind,
            path: String::new(),
            value: BadValue::Omitted,
            detail: String::new(),
            origin: None,
            order_path: None,
        };
        if is_full() {
            return error;
        }
        LEFT.set(LEFT.get() - 1);
        let path = limited(format_args!("{path}"));
        let value = value.into();
        let detail = limited_to(detail, CUT.saturating_sub(value.len()));
        Self { path, value, detail, ..error }
    }

    /// Whether this stands for an error that is left out.
    fn is_placeholder(&self) -> bool {
        self.path.is_empty()
    }

    /// Orders the error as one of `path`, where upstream does not validate fields in the order of the type.
    #[must_use]
    pub fn ordered_at(self, path: &FieldPath) -> Self {
        Self { order_path: Some(limited(format_args!("{path}"))), ..self }
    }

    /// The error with the rule that found it.
    #[must_use]
    pub fn with_origin(self, origin: Origin) -> Self {
        Self { origin: Some(origin), ..self }
    }

    /// Adds the detail of the error.
    #[must_use]
    pub fn with_detail(self, detail: impl AsRef<str>) -> Self {
        Self { detail: limited(format_args!("{}", detail.as_ref())), ..self }
    }

    /// The text that follows the path: kind, value and detail (`ErrorBody`).
    pub fn body(&self) -> impl fmt::Display {
        struct Body<'a>(&'a FieldError);
        impl fmt::Display for Body<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let FieldError { kind, value, detail, .. } = self.0;
                write!(f, "{kind}")?;
                if *value != BadValue::Omitted {
                    write!(f, ": {value}")?;
                }
                if detail.is_empty() { Ok(()) } else { write!(f, ": {detail}") }
            }
        }
        Body(self)
    }

    /// The field is required.
    pub fn required(path: &FieldPath, detail: &str) -> Self {
        Self::make(ErrorType::Required, path, BadValue::Omitted, format_args!("{detail}"))
    }

    /// The value is invalid.
    pub fn invalid(path: &FieldPath, value: impl Into<BadValue>, detail: impl AsRef<str>) -> Self {
        Self::make(ErrorType::Invalid, path, value, format_args!("{}", detail.as_ref()))
    }

    /// The value has a wrong type.
    pub fn type_invalid(path: &FieldPath, value: impl Into<BadValue>, detail: impl AsRef<str>) -> Self {
        Self::make(ErrorType::TypeInvalid, path, value, format_args!("{}", detail.as_ref()))
    }

    /// The value is not among `allowed`.
    pub fn not_supported<S: AsRef<str>>(path: &FieldPath, value: impl Into<BadValue>, allowed: &[S]) -> Self {
        Self::not_supported_of(path, value, allowed.iter())
    }

    /// The same with values that are made one by one, as many as the error keeps.
    pub fn not_supported_of<S: AsRef<str>>(
        path: &FieldPath,
        value: impl Into<BadValue>,
        allowed: impl Iterator<Item = S>,
    ) -> Self {
        let detail = format_args!("supported values: {}", Listed(Cell::new(Some(allowed))));
        Self::make(ErrorType::NotSupported, path, value, detail)
    }

    /// The value occurs more than once.
    pub fn duplicate(path: &FieldPath, value: impl Into<BadValue>) -> Self {
        Self::make(ErrorType::Duplicate, path, value, format_args!(""))
    }

    /// The value is not allowed here.
    pub fn forbidden(path: &FieldPath, detail: &str) -> Self {
        Self::make(ErrorType::Forbidden, path, BadValue::Omitted, format_args!("{detail}"))
    }

    /// The string has more than `max` bytes.
    pub fn too_long(path: &FieldPath, max: usize) -> Self {
        let detail = format_args!("may not be more than {max} bytes");
        Self::make(ErrorType::TooLong, path, BadValue::Omitted, detail)
    }

    /// The list has more than `max` items.
    pub fn too_many(path: &FieldPath, actual: usize, max: usize) -> Self {
        Self::make(ErrorType::TooMany, path, actual, format_args!("must have at most {max} items"))
    }

    /// The value refers to an object that does not exist.
    pub fn not_found(path: &FieldPath, value: impl Into<BadValue>) -> Self {
        Self::make(ErrorType::NotFound, path, value, format_args!(""))
    }

    /// The validation itself failed.
    pub fn internal(path: &FieldPath, detail: &str) -> Self {
        Self::make(ErrorType::Internal, path, BadValue::Omitted, format_args!("{detail}"))
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}

/// Quoted texts with commas between them. It is shown once.
struct Listed<I>(Cell<Option<I>>);

impl<S: AsRef<str>, I: Iterator<Item = S>> fmt::Display for Listed<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, text) in self.0.take().into_iter().flatten().enumerate() {
            write!(f, "{}{:?}", if i > 0 { ", " } else { "" }, text.as_ref())?;
        }
        Ok(())
    }
}

/// A value as JSON, cut where it is long.
struct Json<'a, T: ?Sized>(&'a T);

impl<T: Serialize + ?Sized> fmt::Display for Json<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = Part(Vec::new());
        // It fails when there is no more room.
        let whole = serde_json::to_writer(&mut out, self.0).is_ok();
        let text = String::from_utf8_lossy(&out.0);
        if whole { f.write_str(&text) } else { write!(f, "{}...", text.trim_end_matches('\u{fffd}')) }
    }
}

/// How much of an object or a list an error shows.
const SHOWN: usize = 64 << 10;

/// Takes that much.
struct Part(Vec<u8>);

impl std::io::Write for Part {
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
        let body = FieldError::invalid(&FieldPath::new("a"), large, "why").body().to_string();
        assert!(
            body.len() < 2 * SHOWN && body.starts_with("Invalid value: [0,1,2,") && body.ends_with("...: why"),
            "{}",
            body.len()
        );
    }

    #[test]
    fn many_long_errors_are_cut() {
        let long = Value::from("é".repeat(1 << 20));
        let error = || FieldError::invalid(&FieldPath::new("a"), &long, "why");
        let size = |e: &FieldError| e.value.len() + e.detail.len();
        let sizes: Vec<usize> = bounded(|| (0..20).map(|_| error()).collect()).iter().map(size).collect();
        assert!(sizes[0] > 2 << 20 && sizes[19] <= CUT && size(&error()) > 2 << 20, "{sizes:?}");
        let required = || FieldError::required(&FieldPath::root(), "");
        let many = bounded(|| (0..3 * MOST).map(|_| required()).collect());
        assert!(many.len() == MOST && many.iter().all(|e| *e == required()) && !is_full());
    }

    /// Twenty thousand errors below a key of a megabyte took twenty gigabytes.
    #[test]
    fn long_paths_are_shared_and_cut() {
        let long = FieldPath::new("spec").key(&"k".repeat(1 << 20));
        let errors = bounded(|| (0..MOST).map(|i| FieldError::required(&long.index(i).child("name"), "")).collect());
        let size: usize = errors.iter().map(|e| e.path.len() + e.value.len() + e.detail.len()).sum();
        assert!(errors.len() == MOST && size < 2 * WHOLE, "{size}");
        assert!(errors[3].path.ends_with("k][3].name") && errors[3].path.len() > 1 << 20);
        assert!(errors[MOST - 1].path.starts_with("spec[kkk") && errors[MOST - 1].path.len() == CUT);
        assert_eq!(long.index(1), FieldPath::new(format!("{long}[1]")));
        assert_ne!(long.index(1), long.index(2));
        let below = FieldPath::root().index(7).child("b");
        assert_eq!(FieldPath::new("a").join(&below).child("c").text(), "a.[7].b.c");
        assert_eq!(below.join(&FieldPath::root()), FieldPath::root().join(&below));
    }

    #[test]
    fn errors_are_rendered_as_upstream_does() {
        let at = FieldPath::new("a");
        for (e, body) in [
            (FieldError::required(&at, ""), "Required value"),
            (FieldError::required(&at, "why"), "Required value: why"),
            (FieldError::invalid(&at, "x\"", "why"), r#"Invalid value: "x\"": why"#),
            (FieldError::invalid(&at, Value::Null, "why"), "Invalid value: null: why"),
            (FieldError::invalid(&at, BadValue::Omitted, "why"), "Invalid value: why"),
            (FieldError::invalid(&at, BadValue::formatted("{}"), ""), "Invalid value: {}"),
            (FieldError::type_invalid(&at, 3, "why"), "Invalid value: 3: why"),
            (FieldError::not_supported(&at, "x", &["a", "b"]), r#"Unsupported value: "x": supported values: "a", "b""#),
            (FieldError::duplicate(&at, vec!["x"]), r#"Duplicate value: ["x"]"#),
            (FieldError::duplicate(&at, true).with_detail("why"), "Duplicate value: true: why"),
            (FieldError::forbidden(&at, "why"), "Forbidden: why"),
            (FieldError::too_long(&at, 3), "Too long: may not be more than 3 bytes"),
            (FieldError::too_many(&at, 4, 3), "Too many: 4: must have at most 3 items"),
            (FieldError::not_found(&at, "x"), "Not found: \"x\""),
            (FieldError::internal(&at, "why"), "Internal error: why"),
        ] {
            assert_eq!((e.body().to_string(), e.to_string()), (body.to_owned(), format!("a: {body}")));
        }
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
