//! Paths to fields and the errors of validation (`k8s.io/apimachinery/pkg/util/validation/field`).

use crate::Value;
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
    pub fn root() -> Self {
        Self::default()
    }

    pub fn new(path: impl Into<String>) -> Self {
        Self { before: None, text: path.into() }.ready()
    }

    pub fn is_root(&self) -> bool {
        self.before.is_none() && self.text.is_empty()
    }

    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        self.extended(&[if self.is_root() { "" } else { "." }, name])
    }

    #[must_use]
    pub fn index(&self, i: usize) -> Self {
        match u8::try_from(i) {
            // Nearly all lists are short, and every one that is validated is numbered.
            Ok(digit @ 0..10) => self.key(char::from(b'0' + digit).encode_utf8(&mut [0])),
            _ => self.key(&i.to_string()),
        }
    }

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

/// A text for an error of the present validation. It is taken from the room that errors have, and cut where that is used up, so that
/// no more of it is written than is kept.
pub fn limited(text: fmt::Arguments<'_>) -> String {
    let room = ROOM.get();
    let mut out = Limited { text: String::new(), left: room.max(CUT) };
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
    fn make(kind: ErrorType, path: &FieldPath, body: fmt::Arguments<'_>) -> Self {
        if is_full() {
            return Self { kind, path: String::new(), body: String::new(), place: None };
        }
        LEFT.set(LEFT.get() - 1);
        Self { kind, path: limited(format_args!("{path}")), body: limited(body), place: None }
    }

    /// Said where an error of that path is said: upstream does not always go through a type as it is written.
    #[must_use]
    pub fn said_with(self, path: &FieldPath) -> Self {
        Self { place: Some(limited(format_args!("{path}"))), ..self }
    }

    pub fn required(path: &FieldPath, detail: &str) -> Self {
        Self::make(ErrorType::Required, path, format_args!("Required value{}", Detail(detail)))
    }

    pub fn invalid(path: &FieldPath, value: impl Into<Value>, detail: impl AsRef<str>) -> Self {
        let (value, detail) = (value.into(), Detail(detail.as_ref()));
        Self::make(ErrorType::Invalid, path, format_args!("Invalid value: {}{detail}", Shown(&value)))
    }

    /// The same of a value that has been written already, as the server's own types print it.
    pub fn invalid_as(path: &FieldPath, shown: &str, detail: &str) -> Self {
        Self::make(ErrorType::Invalid, path, format_args!("Invalid value: {shown}{}", Detail(detail)))
    }

    /// Invalid as a whole: the value is not shown.
    pub fn invalid_altogether(path: &FieldPath, detail: &str) -> Self {
        Self::make(ErrorType::Invalid, path, format_args!("Invalid value{}", Detail(detail)))
    }

    pub fn type_invalid(path: &FieldPath, value: impl Into<Value>, detail: impl AsRef<str>) -> Self {
        let (value, detail) = (value.into(), Detail(detail.as_ref()));
        Self::make(ErrorType::TypeInvalid, path, format_args!("Invalid value: {}{detail}", Shown(&value)))
    }

    pub fn not_supported<S: AsRef<str>>(path: &FieldPath, value: impl Into<Value>, allowed: &[S]) -> Self {
        Self::unsupported(path, &Shown(&value.into()), allowed.iter())
    }

    pub fn not_supported_as<S: AsRef<str>>(path: &FieldPath, shown: &str, allowed: &[S]) -> Self {
        Self::unsupported(path, &shown, allowed.iter())
    }

    /// The same with values that are made one by one, as many as the error keeps.
    pub fn not_supported_of<S: AsRef<str>>(
        path: &FieldPath,
        value: impl Into<Value>,
        allowed: impl Iterator<Item = S>,
    ) -> Self {
        Self::unsupported(path, &Shown(&value.into()), allowed)
    }

    fn unsupported<S: AsRef<str>>(
        path: &FieldPath,
        shown: &dyn fmt::Display,
        allowed: impl Iterator<Item = S>,
    ) -> Self {
        let body = format_args!("Unsupported value: {shown}: supported values: {}", Listed(Cell::new(Some(allowed))));
        Self::make(ErrorType::NotSupported, path, body)
    }

    pub fn duplicate(path: &FieldPath, value: impl Into<Value>) -> Self {
        Self::make(ErrorType::Duplicate, path, format_args!("Duplicate value: {}", Shown(&value.into())))
    }

    pub fn duplicate_as(path: &FieldPath, shown: &str) -> Self {
        Self::make(ErrorType::Duplicate, path, format_args!("Duplicate value: {shown}"))
    }

    pub fn forbidden(path: &FieldPath, detail: &str) -> Self {
        Self::make(ErrorType::Forbidden, path, format_args!("Forbidden{}", Detail(detail)))
    }

    pub fn too_long(path: &FieldPath, max: usize) -> Self {
        Self::make(ErrorType::TooLong, path, format_args!("Too long: may not be more than {max} bytes"))
    }

    pub fn too_many(path: &FieldPath, actual: usize, max: usize) -> Self {
        Self::make(ErrorType::TooMany, path, format_args!("Too many: {actual}: must have at most {max} items"))
    }

    pub fn not_found(path: &FieldPath, value: impl Into<Value>) -> Self {
        Self::make(ErrorType::NotFound, path, format_args!("Not found: {}", Shown(&value.into())))
    }

    pub fn internal(path: &FieldPath, detail: &str) -> Self {
        Self::make(ErrorType::Internal, path, format_args!("Internal error{}", Detail(detail)))
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body)
    }
}

/// What follows the kind of an error.
struct Detail<'a>(&'a str);

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ": {}", self.0) }
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

/// A value as upstream prints it in an error: strings quoted, `null` as Go's, everything else as JSON.
struct Shown<'a>(&'a Value);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::String(s) => write!(f, "{s:?}"),
            other => {
                let mut out = Part(Vec::new());
                // It fails when there is no more room.
                let whole = serde_json::to_writer(&mut out, other).is_ok();
                let text = String::from_utf8_lossy(&out.0);
                if whole { f.write_str(&text) } else { write!(f, "{}...", text.trim_end_matches('\u{fffd}')) }
            }
        }
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

    /// Twenty thousand errors below a key of a megabyte took twenty gigabytes.
    #[test]
    fn long_paths_are_shared_and_cut() {
        let long = FieldPath::new("spec").key(&"k".repeat(1 << 20));
        let errors = bounded(|| (0..MOST).map(|i| FieldError::required(&long.index(i).child("name"), "")).collect());
        let size: usize = errors.iter().map(|e| e.path.len() + e.body.len()).sum();
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
