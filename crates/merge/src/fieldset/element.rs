//! One step of a field path.

use meta::Value;
use std::cmp::Ordering;
use std::fmt;

/// Fields sort before keys, keys before values, values before indices.
#[derive(Clone, Debug)]
pub enum PathElement {
    /// A member of an object.
    Field(Box<str>),
    /// An item of an associative list, by the keys it has, sorted by name.
    Key(Box<[(Box<str>, Value)]>),
    /// An item of a set.
    Value(Box<Value>),
    /// An item of a list, by index.
    Index(i64),
}

impl PathElement {
    /// The element of a member of an object.
    pub fn field(name: &str) -> Self {
        Self::Field(name.into())
    }

    /// Roughly its bytes as text.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Field(name) => name.len(),
            Self::Key(keys) => keys.iter().map(|(k, v)| k.len() + text_size(v)).sum(),
            Self::Value(v) => text_size(v),
            Self::Index(_) => 8,
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

fn text_size(v: &Value) -> usize {
    match v {
        Value::String(s) => s.len(),
        Value::Array(a) => a.iter().map(text_size).sum(),
        Value::Object(m) => m.iter().map(|(k, v)| k.len() + text_size(v)).sum(),
        _ => 8,
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) => {
                for ((an, av), (bn, bv)) in a.iter().zip(b.iter()) {
                    let order = an.cmp(bn).then_with(|| compare_values(av, bv));
                    if order != Ordering::Equal {
                        return order;
                    }
                }
                a.len().cmp(&b.len())
            }
            (Self::Value(a), Self::Value(b)) => compare_values(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PathElement {}

/// A total order of JSON values in which equal numbers are equal, however they are written.
pub(crate) fn compare_values(a: &Value, b: &Value) -> Ordering {
    let rank = |v: &Value| match v {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    };
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x.cmp(&y),
            _ => x.as_f64().unwrap_or_default().total_cmp(&y.as_f64().unwrap_or_default()),
        },
        (Value::String(x), Value::String(y)) => x.cmp(y),
        (Value::Bool(x), Value::Bool(y)) => x.cmp(y),
        (Value::Array(x), Value::Array(y)) => {
            let first = x.iter().zip(y).map(|(a, b)| compare_values(a, b)).find(|o| *o != Ordering::Equal);
            first.unwrap_or_else(|| x.len().cmp(&y.len()))
        }
        (Value::Object(x), Value::Object(y)) => {
            let first = x
                .iter()
                .zip(y)
                .map(|((an, av), (bn, bv))| an.cmp(bn).then_with(|| compare_values(av, bv)))
                .find(|o| *o != Ordering::Equal);
            first.unwrap_or_else(|| x.len().cmp(&y.len()))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

/// As conflicts show it: `.spec`, `[name="a",port=80]`, `[="x"]`, `[3]`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(n) => write!(f, ".{n}"),
            Self::Key(keys) => {
                f.write_str("[")?;
                for (i, (n, v)) in keys.iter().enumerate() {
                    if i > 0 {
                        f.write_str(",")?;
                    }
                    write!(f, "{n}={v}")?;
                }
                f.write_str("]")
            }
            Self::Value(v) => write!(f, "[={v}]"),
            Self::Index(i) => write!(f, "[{i}]"),
        }
    }
}
