//! `FieldsV1`: `{"f:metadata":{"f:labels":{".":{},"f:a":{}}}}`.

use super::{Node, PathElement, Set};
use meta::{Map, Value};

/// The error of an invalid `FieldsV1`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A node is no object.
    #[error("fields are not an object at {0:?}")]
    NotAnObject(String),
    /// A key is no path element.
    #[error("cannot read the path element {0:?}")]
    Element(String),
}

impl PathElement {
    /// The key of the JSON form.
    fn write(&self, out: &mut String) {
        match self {
            Self::Field(n) => {
                out.push_str("f:");
                out.push_str(n);
            }
            Self::Key(keys) => {
                out.push_str("k:{");
                for (i, (n, v)) in keys.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    push_json(out, &Value::from(&**n));
                    out.push(':');
                    push_json(out, v);
                }
                out.push('}');
            }
            Self::Value(v) => {
                out.push_str("v:");
                push_json(out, v);
            }
            Self::Index(i) => {
                out.push_str("i:");
                out.push_str(&i.to_string());
            }
        }
    }

    /// `None` for an element of a kind that is not known, which is dropped as upstream does.
    fn read(text: &str) -> Result<Option<Self>, Error> {
        let bad = || Error::Element(text.to_owned());
        let Some((kind, rest)) = text.split_once(':') else { return Err(bad()) };
        Ok(Some(match kind {
            "f" => Self::Field(rest.into()),
            "v" => Self::Value(Box::new(serde_json::from_str(rest).map_err(|_| bad())?)),
            "i" => Self::Index(rest.parse().map_err(|_| bad())?),
            "k" => {
                let keys: Map<String, Value> = serde_json::from_str(rest).map_err(|_| bad())?;
                Self::Key(keys.into_iter().map(|(n, v)| (n.into(), v)).collect())
            }
            _ => return Ok(None),
        }))
    }
}

fn push_json(out: &mut String, v: &Value) {
    out.push_str(&v.to_string());
}

impl Set {
    /// From the value of `fieldsV1`.
    pub fn from_value(v: &Value) -> Result<Self, Error> {
        let Value::Object(m) = v else { return Err(Error::NotAnObject(String::new())) };
        read(m)
    }

    /// As the value of `fieldsV1`.
    pub fn to_value(&self) -> Value {
        Value::Object(write(self, false))
    }

    /// As JSON text, in the order of path elements (which compares numbers by value).
    pub fn to_json(&self) -> String {
        let mut out = String::with_capacity(128);
        write_text(self, false, &mut out);
        out
    }
}

fn read(m: &Map<String, Value>) -> Result<Set, Error> {
    let mut nodes = Vec::with_capacity(m.len());
    for (key, below) in m {
        if key == "." {
            continue;
        }
        let Some(element) = PathElement::read(key)? else { continue };
        let Value::Object(below) = below else { return Err(Error::NotAnObject(key.clone())) };
        // A path ends at an empty node, or at one with `.`.
        let children = read(below)?;
        let member = below.is_empty() || below.contains_key(".");
        nodes.push(Node { element, member, children });
    }
    Ok(Set::from_nodes(nodes))
}

fn write(set: &Set, member: bool) -> Map<String, Value> {
    let mut m = Map::new();
    if member && !set.is_empty() {
        m.insert(".".to_owned(), Value::Object(Map::new()));
    }
    for n in set.nodes() {
        let mut key = String::with_capacity(16);
        n.element.write(&mut key);
        m.insert(key, Value::Object(write(&n.children, n.member)));
    }
    m
}

fn write_text(set: &Set, member: bool, out: &mut String) {
    out.push('{');
    let mut first = true;
    if member && !set.is_empty() {
        out.push_str("\".\":{}");
        first = false;
    }
    for n in set.nodes() {
        if !first {
            out.push(',');
        }
        first = false;
        let mut key = String::with_capacity(16);
        n.element.write(&mut key);
        push_json(out, &Value::String(key));
        out.push(':');
        write_text(&n.children, n.member, out);
    }
    out.push('}');
}
