//! Values of an evaluation. JSON is borrowed, not copied. What a schema defines beyond JSON (a string is a time, a list is a set) comes from a
//! [`Shape`].

use crate::libraries::authorizer::{Decision, Request};
use crate::libraries::{format::Format, net::Cidr, semver::Version, url::Url};
use crate::time;
use crate::work;
use meta::Quantity;
use serde_json::{Map as JsonMap, Number, Value};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

/// A value of an evaluation.
#[derive(Clone)]
pub enum Val<'a> {
    /// `null`.
    Null,
    /// A boolean.
    Bool(bool),
    /// A 64-bit integer.
    Int(i64),
    /// An unsigned 64-bit integer.
    Uint(u64),
    /// A floating-point number.
    Double(f64),
    /// A string.
    Str(Text<'a>),
    /// Bytes.
    Bytes(Rc<[u8]>),
    /// Nanoseconds since 1970.
    Timestamp(i128),
    /// Nanoseconds.
    Duration(i64),
    /// A list.
    List(List<'a>),
    /// A map or an object.
    Map(Map<'a>),
    /// A type, by its name.
    Type(Text<'a>),
    /// An optional value; `None` for `optional.none()`.
    Optional(Option<Rc<Val<'a>>>),
    /// A value of a library.
    Opaque(Rc<Opaque<'a>>),
}

/// Values of libraries.
pub enum Opaque<'a> {
    /// `kubernetes.URL`.
    Url(Url),
    /// `net.IP`.
    Ip(IpAddr),
    /// `net.CIDR`.
    Cidr(Cidr),
    /// `kubernetes.Quantity`.
    Quantity(Quantity),
    /// `kubernetes.Semver`.
    Semver(Version),
    /// `kubernetes.NamedFormat`.
    Format(&'static Format),
    /// An authorization check.
    Authorizer(Request<'a>),
    /// The result of an authorization check.
    Decision(Decision),
}

/// A string, borrowed or owned.
#[derive(Clone)]
pub enum Text<'a> {
    /// A borrowed string, as of JSON.
    Ref(&'a str),
    /// A computed string.
    Own(Rc<str>),
}

impl Text<'_> {
    /// The number of characters.
    pub fn chars(&self) -> usize {
        let s = self.as_str();
        work::scan(s.len());
        s.chars().count()
    }

    /// The string.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Ref(s) => s,
            Self::Own(s) => s,
        }
    }
}

impl From<String> for Text<'_> {
    fn from(s: String) -> Self {
        Self::Own(s.into())
    }
}

/// A list, borrowed from JSON or computed.
#[derive(Clone)]
pub enum List<'a> {
    /// A list of JSON, with the shape of its schema.
    Json(&'a [Value], Option<&'a Shape>),
    /// A computed list.
    Own(Rc<Vec<Val<'a>>>),
}

/// A map, borrowed from JSON or computed.
#[derive(Clone)]
pub enum Map<'a> {
    /// An object of JSON, with the shape of its schema.
    Json(&'a JsonMap<String, Value>, Option<&'a Shape>),
    /// A computed map.
    Own(Rc<BTreeMap<Key<'a>, Val<'a>>>),
}

/// What a schema defines beyond JSON. Parts that are plain JSON have none.
#[derive(Debug)]
pub enum Shape {
    /// A number that is always a `double`.
    Double,
    /// A string with base64, which is `bytes`.
    Bytes,
    /// A string with a timestamp.
    Timestamp,
    /// A string with a duration.
    Duration,
    /// A list, with the shape of its items.
    List(ListKind, Option<Box<Shape>>),
    /// An object, with the shapes of fields.
    Fields(Vec<(Box<str>, Shape)>),
    /// A map, with the shape of its values.
    Values(Box<Shape>),
}

/// How a list is compared and concatenated.
#[derive(Debug, PartialEq, Eq)]
pub enum ListKind {
    /// As a list.
    Atomic,
    /// As a set.
    Set,
    /// The names of the keys.
    Map(Vec<Box<str>>),
}

/// A key of a map. Integers are equal by value.
#[derive(Clone)]
pub enum Key<'a> {
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer beyond the range of `int`.
    Uint(u64),
    /// A string.
    Str(Text<'a>),
}

impl Key<'_> {
    fn number(&self) -> Option<i128> {
        match self {
            Self::Int(n) => Some((*n).into()),
            Self::Uint(n) => Some((*n).into()),
            _ => None,
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Bool(_) => 0,
            Self::Int(_) | Self::Uint(_) => 1,
            Self::Str(_) => 2,
        }
    }
}

impl Ord for Key<'_> {
    fn cmp(&self, o: &Self) -> Ordering {
        match (self, o) {
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Str(a), Self::Str(b)) => a.as_str().cmp(b.as_str()),
            (a, b) => a.rank().cmp(&b.rank()).then_with(|| a.number().cmp(&b.number())),
        }
    }
}

impl PartialOrd for Key<'_> {
    fn partial_cmp(&self, o: &Self) -> Option<Ordering> {
        Some(self.cmp(o))
    }
}

impl PartialEq for Key<'_> {
    fn eq(&self, o: &Self) -> bool {
        self.cmp(o) == Ordering::Equal
    }
}

impl Eq for Key<'_> {}

impl<'a> Key<'a> {
    /// The key of a value. None if its type cannot be a key.
    pub fn new(v: &Val<'a>) -> Option<Self> {
        match v {
            Val::Bool(b) => Some(Self::Bool(*b)),
            Val::Int(n) => Some(Self::Int(*n)),
            Val::Uint(n) => Some(Self::Uint(*n)),
            Val::Double(d) if d.fract() == 0.0 && d.abs() < 9.0e18 => Some(Self::Int(*d as i64)),
            Val::Str(s) => Some(Self::Str(s.clone())),
            _ => None,
        }
    }

    /// The value of the key.
    pub fn value(&self) -> Val<'a> {
        match self {
            Self::Bool(b) => Val::Bool(*b),
            Self::Int(n) => Val::Int(*n),
            Self::Uint(n) => Val::Uint(*n),
            Self::Str(s) => Val::Str(s.clone()),
        }
    }
}

impl<'a> Val<'a> {
    /// A JSON value with the shape of its schema.
    pub fn json(v: &'a Value, shape: Option<&'a Shape>) -> Self {
        match (v, shape) {
            (Value::Null, _) => Self::Null,
            (Value::Bool(b), _) => Self::Bool(*b),
            (Value::Number(n), Some(Shape::Double)) => n.as_f64().map_or(Self::Null, Self::Double),
            (Value::Number(n), _) => number(n),
            (Value::String(s), Some(shape)) => text(s, shape),
            (Value::String(s), None) => Self::Str(Text::Ref(s)),
            (Value::Array(a), shape) => Self::List(List::Json(a, shape)),
            (Value::Object(m), shape) => Self::Map(Map::Json(m, shape)),
        }
    }

    /// A string value.
    pub fn string(s: impl Into<String>) -> Self {
        let s = s.into();
        work::count(s.len());
        Self::Str(Text::from(s))
    }

    /// A computed list.
    pub fn list(items: Vec<Val<'a>>) -> Self {
        work::items(items.len());
        Self::List(List::Own(Rc::new(items)))
    }

    /// A map with string keys, as a struct.
    pub fn record(fields: impl IntoIterator<Item = (String, Val<'a>)>) -> Self {
        let fields = fields.into_iter().map(|(k, v)| (Key::Str(k.into()), v));
        Self::Map(Map::Own(Rc::new(fields.collect())))
    }

    /// An optional with a value.
    pub fn some(v: Val<'a>) -> Self {
        Self::Optional(Some(Rc::new(v)))
    }

    /// A `kubernetes.Semver`; none if the text is no version.
    pub fn version(text: &str) -> Option<Self> {
        Version::parse(text).ok().map(|v| Self::opaque(Opaque::Semver(v)))
    }

    /// A value of a library.
    pub fn opaque(o: Opaque<'a>) -> Self {
        Self::Opaque(Rc::new(o))
    }

    /// The string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(s) => Some(s.as_str()),
            _ => None,
        }
    }

    /// The boolean, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(b) => Some(*b),
            _ => None,
        }
    }

    /// The name of its CEL type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::Str(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Type(_) => "type",
            Self::Optional(_) => "optional_type",
            Self::Opaque(o) => o.type_name(),
        }
    }

    /// The size in characters, bytes, items or entries; 1 for other values.
    pub fn size(&self) -> u64 {
        let n = match self {
            Self::Str(s) => s.chars(),
            Self::Bytes(b) => b.len(),
            Self::List(l) => l.len(),
            Self::Map(m) => m.len(),
            Self::Optional(Some(v)) => return v.size(),
            _ => 1,
        };
        n as u64
    }

    /// An upper bound on the size, without counting.
    pub(crate) fn most(&self) -> u64 {
        match self {
            Self::Str(s) => s.as_str().len() as u64,
            Self::Optional(Some(v)) => v.most(),
            v => v.size(),
        }
    }

    /// The size; any number from `bound` on, if it is larger.
    pub(crate) fn size_up_to(&self, bound: u64) -> u64 {
        // No character takes more than four bytes.
        if self.most() / 4 >= bound { bound } else { self.size() }
    }

    /// Converts to JSON. Timestamps, durations and the like become strings. Errors if a value has no JSON form, or if the result would take
    /// more than [`LARGEST_JSON`]: a value may refer to one string many times.
    pub fn to_json(&self) -> Result<Value, String> {
        let mut left = LARGEST_JSON;
        self.json_within(&mut left)
    }

    /// Converts to JSON of at most `left` bytes.
    fn json_within(&self, left: &mut usize) -> Result<Value, String> {
        /// Bytes of a value besides its text.
        const VALUE: usize = 16;
        let mut take = |bytes: usize| {
            *left = left
                .checked_sub(bytes + VALUE)
                .ok_or_else(|| format!("the value has more than {} MiB", LARGEST_JSON >> 20))?;
            Ok::<(), String>(())
        };
        take(match self {
            Self::Str(s) => s.as_str().len(),
            Self::Bytes(b) => b.len() * 2,
            _ => 0,
        })?;
        Ok(match self {
            Self::Null => Value::Null,
            Self::Bool(b) => (*b).into(),
            Self::Int(n) => (*n).into(),
            Self::Uint(n) => (*n).into(),
            Self::Double(d) => Number::from_f64(*d).map(Value::Number).ok_or("a number is not finite")?,
            Self::Str(s) => s.as_str().into(),
            Self::Bytes(b) => base64::Engine::encode(&base64::engine::general_purpose::STANDARD, b).into(),
            Self::Timestamp(t) => time::timestamp_text(*t).into(),
            Self::Duration(d) => time::duration_text(*d).into(),
            Self::List(l) => l.iter().map(|v| v.json_within(left)).collect::<Result<Vec<_>, _>>()?.into(),
            Self::Map(m) => {
                let mut out = JsonMap::new();
                for (k, v) in m.iter() {
                    match v {
                        Self::Optional(None) => {}
                        v => {
                            let key = k.as_str().ok_or("keys of objects are texts")?;
                            *left = left.saturating_sub(key.len());
                            out.insert(key.to_owned(), v.json_within(left)?);
                        }
                    }
                }
                out.into()
            }
            Self::Optional(Some(v)) => v.json_within(left)?,
            v => return Err(format!("unsupported conversion of {} to JSON", v.type_name())),
        })
    }
}

/// Bytes of a value in JSON, about: a few times the largest object.
const LARGEST_JSON: usize = 8 << 20;

impl Opaque<'_> {
    /// The name of its CEL type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Url(_) => "kubernetes.URL",
            Self::Ip(_) => "net.IP",
            Self::Cidr(_) => "net.CIDR",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Semver(_) => "kubernetes.Semver",
            Self::Format(_) => "kubernetes.NamedFormat",
            Self::Authorizer(r) => r.type_name(),
            Self::Decision(_) => "kubernetes.authorization.Decision",
        }
    }
}

/// Integers of JSON are `int`, as in Go; larger ones are `double`.
fn number<'a>(n: &Number) -> Val<'a> {
    match (n.as_i64(), n.as_f64()) {
        (Some(n), _) => Val::Int(n),
        (None, Some(f)) => Val::Double(f),
        (None, None) => Val::Null,
    }
}

/// The value of a string of a format. A string that is invalid for its format stays a string.
fn text<'a>(s: &'a str, shape: &Shape) -> Val<'a> {
    if matches!(shape, Shape::Timestamp | Shape::Duration | Shape::Bytes) {
        work::count(s.len());
    }
    let value = match shape {
        Shape::Timestamp => {
            time::timestamp(s).or_else(|| time::timestamp(&format!("{s}T00:00:00Z"))).map(Val::Timestamp)
        }
        Shape::Duration => time::duration(s).map(Val::Duration),
        Shape::Bytes => {
            let decoded = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, s);
            decoded.ok().map(|b| Val::Bytes(b.into()))
        }
        _ => None,
    };
    value.unwrap_or(Val::Str(Text::Ref(s)))
}

impl<'a> List<'a> {
    /// The number of items.
    pub fn len(&self) -> usize {
        match self {
            Self::Json(a, _) => a.len(),
            Self::Own(l) => l.len(),
        }
    }

    /// Whether it has no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The item at an index.
    pub fn get(&self, i: usize) -> Option<Val<'a>> {
        match self {
            Self::Json(a, shape) => a.get(i).map(|v| Val::json(v, items(*shape))),
            Self::Own(l) => l.get(i).cloned(),
        }
    }

    /// The items.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Val<'a>> + '_ {
        (0..self.len()).filter_map(|i| self.get(i))
    }

    /// How the list is compared and concatenated.
    pub fn kind(&self) -> &ListKind {
        match self {
            Self::Json(_, Some(Shape::List(kind, _))) => kind,
            _ => &ListKind::Atomic,
        }
    }
}

fn items(shape: Option<&Shape>) -> Option<&Shape> {
    match shape {
        Some(Shape::List(_, items)) => items.as_deref(),
        _ => None,
    }
}

impl<'a> Map<'a> {
    /// The number of entries.
    pub fn len(&self) -> usize {
        match self {
            Self::Json(m, _) => m.len(),
            Self::Own(m) => m.len(),
        }
    }

    /// Whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a string key.
    pub fn field(&self, name: &str) -> Option<Val<'a>> {
        match self {
            Self::Json(m, shape) => m.get(name).map(|v| Val::json(v, value_shape(*shape, name))),
            Self::Own(m) => m.get(&Key::Str(Text::Own(name.into()))).cloned(),
        }
    }

    /// The value of a key.
    pub fn get(&self, key: &Val<'a>) -> Option<Val<'a>> {
        match (self, key) {
            (Self::Own(m), k) => m.get(&Key::new(k)?).cloned(),
            (_, Val::Str(s)) => self.field(s.as_str()),
            _ => None,
        }
    }

    /// Keys and values.
    pub fn iter(&self) -> Box<dyn Iterator<Item = (Val<'a>, Val<'a>)> + '_> {
        match self {
            Self::Json(m, shape) => {
                Box::new(m.iter().map(|(k, v)| (Val::Str(Text::Ref(k)), Val::json(v, value_shape(*shape, k)))))
            }
            Self::Own(m) => Box::new(m.iter().map(|(k, v)| (k.value(), v.clone()))),
        }
    }
}

fn value_shape<'s>(shape: Option<&'s Shape>, name: &str) -> Option<&'s Shape> {
    match shape {
        Some(Shape::Fields(fields)) => fields.iter().find(|(n, _)| **n == *name).map(|(_, s)| s),
        Some(Shape::Values(v)) => Some(v),
        _ => None,
    }
}
