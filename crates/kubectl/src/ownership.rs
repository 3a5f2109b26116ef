//! Which manager owns which field of an object: its managed fields, and the values that their paths lead to.
//!
//! Invariant: an item of a list is found by its keys or its value, never by its position, so that a moved item keeps its
//! owner.

use merge::fieldset::{PathElement, Set};
use meta::{Object, Value};
use std::collections::BTreeMap;

/// An entry of the managed fields.
#[derive(Clone, Debug)]
pub struct Owner {
    pub manager: String,
    /// `Apply` or `Update`.
    pub operation: String,
    /// Empty for the object itself.
    pub subresource: String,
    pub api_version: String,
    pub time: String,
    pub fields: Set,
}

impl Owner {
    /// `Update/status`.
    pub fn operation_name(&self) -> String {
        match self.subresource.as_str() {
            "" => self.operation.clone(),
            sub => format!("{}/{sub}", self.operation),
        }
    }
}

/// A step from a value to one inside of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Member(String),
    Item(usize),
}

/// The steps from an object to a value inside of it.
pub type Location = Vec<Step>;

/// Returns the owners in the managed fields.
pub fn owners(o: &Object) -> Vec<Owner> {
    let entries = o.at(&["metadata", "managedFields"]).and_then(Value::as_array);
    let text = |v: &Value, key: &str| v[key].as_str().unwrap_or_default().to_owned();
    entries
        .into_iter()
        .flatten()
        .map(|e| Owner {
            manager: text(e, "manager"),
            operation: text(e, "operation"),
            subresource: text(e, "subresource"),
            api_version: text(e, "apiVersion"),
            time: text(e, "time"),
            // An entry that cannot be decoded owns no fields.
            fields: Set::from_value(&e["fieldsV1"]).unwrap_or_default(),
        })
        .collect()
}

/// Formats a path as conflicts do.
pub fn path_text(path: &[PathElement]) -> String {
    path.iter().map(ToString::to_string).collect()
}

/// Follows a path through an object.
pub fn find<'a>(mut v: &'a Value, path: &[PathElement]) -> Option<(Location, &'a Value)> {
    let mut location = Vec::with_capacity(path.len());
    for e in path {
        let (step, next) = match e {
            PathElement::Field(name) => (Step::Member(name.to_string()), v.get(&**name)?),
            PathElement::Index(i) => {
                let i = usize::try_from(*i).ok()?;
                (Step::Item(i), v.get(i)?)
            }
            PathElement::Key(keys) => {
                let fits = |item: &Value| keys.iter().all(|(k, expected)| item.get(&**k) == Some(expected));
                let i = v.as_array()?.iter().position(fits)?;
                (Step::Item(i), v.get(i)?)
            }
            PathElement::Value(expected) => {
                let i = v.as_array()?.iter().position(|item| item == &**expected)?;
                (Step::Item(i), v.get(i)?)
            }
        };
        location.push(step);
        v = next;
    }
    Some((location, v))
}

/// A field with its value and its owners.
#[derive(Clone, Debug)]
pub struct Field {
    /// `.spec.containers[name="web"].image`.
    pub path: String,
    pub value: Value,
    /// Indices into the list of owners; empty if the field has no owner.
    pub owners: Vec<usize>,
}

/// Returns every field that holds a value, in the order of the object.
pub fn fields(o: &Object, owners: &[Owner]) -> Vec<Field> {
    let object = Value::Object(o.0.clone());
    let mut map = Map::default();
    for (n, owner) in owners.iter().enumerate() {
        let paths = owner.fields.paths();
        for path in &paths {
            let Some((location, _)) = find(&object, path) else { continue };
            for depth in 1..=path.len() {
                let name = path[depth - 1].to_string();
                // An item is named as in the managed fields rather than by its position.
                map.names.entry(location[..depth].to_vec()).or_insert(name);
            }
            map.owned.entry(location).or_default().push(n);
        }
    }
    let mut out = Vec::new();
    map.walk(&object, &mut Vec::new(), "", &mut out);
    out.retain(|f| !f.path.starts_with(".metadata.managedFields"));
    out
}

#[derive(Default)]
struct Map {
    owned: BTreeMap<Location, Vec<usize>>,
    names: BTreeMap<Location, String>,
}

impl Map {
    /// Returns the owners of a value: those of itself, and those that own an enclosing value as a whole, with no entry of
    /// their own below it.
    fn owners(&self, location: &Location) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        for depth in (1..=location.len()).rev() {
            let enclosing = &location[..depth];
            for n in self.owned.get(enclosing).into_iter().flatten() {
                let inside = || {
                    let below = self.owned.range(enclosing.to_vec()..).skip(1);
                    below.take_while(|(p, _)| p.starts_with(enclosing)).any(|(_, owners)| owners.contains(n))
                };
                if !found.contains(n) && (depth == location.len() || !inside()) {
                    found.push(*n);
                }
            }
        }
        found.sort_unstable();
        found
    }

    fn walk(&self, v: &Value, location: &mut Location, path: &str, out: &mut Vec<Field>) {
        let mut inner = |step: Step, default: String, v: &Value| {
            location.push(step);
            let name = self.names.get(location).unwrap_or(&default);
            self.walk(v, location, &format!("{path}{name}"), out);
            location.pop();
        };
        match v {
            Value::Object(m) if !m.is_empty() => {
                m.iter().for_each(|(k, v)| inner(Step::Member(k.clone()), format!(".{k}"), v));
            }
            Value::Array(a) if !a.is_empty() => {
                a.iter().enumerate().for_each(|(i, v)| inner(Step::Item(i), format!("[{i}]"), v));
            }
            leaf => out.push(Field { path: path.to_owned(), value: leaf.clone(), owners: self.owners(location) }),
        }
    }
}

/// Formats a value in one short line.
pub fn short(v: &Value) -> String {
    const MAX_LENGTH: usize = 48;
    let text = codec::json::to_string(v, codec::json::Html::Keep);
    if text.chars().count() <= MAX_LENGTH {
        return text;
    }
    let cut: String = text.chars().take(MAX_LENGTH - 1).collect();
    format!("{cut}…")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Clauses: G02.lists
    #[test]
    fn finds_items_by_key_and_owners_of_enclosing_values() {
        let o = Object::from_value(json!({
            "metadata": {
                "name": "a",
                "labels": {"x": "1", "y": "2"},
                "finalizers": ["f/1", "f/2"],
                "managedFields": [
                    {"manager": "one", "operation": "Apply", "fieldsV1": {
                        "f:metadata": {"f:labels": {".": {}, "f:x": {}}, "f:finalizers": {"v:\"f/2\"": {}}},
                        "f:spec": {
                            "f:containers": {"k:{\"name\":\"web\"}": {".": {}, "f:name": {}, "f:image": {},
                                "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"UDP\"}": {".": {}, "f:name": {}}}}},
                            "f:selector": {},
                        },
                    }},
                    {"manager": "two", "operation": "Update", "subresource": "status", "fieldsV1": {
                        "f:spec": {"f:containers": {"k:{\"name\":\"web\"}": {"f:image": {}}}}, "f:status": {"f:gone": {}},
                    }},
                ],
            },
            "spec": {
                "containers": [
                    {"name": "side", "image": "s"},
                    {"name": "web", "image": "w", "ports": [
                        {"containerPort": 80, "protocol": "TCP", "name": "t"},
                        {"containerPort": 80, "protocol": "UDP", "name": "u"},
                    ]},
                ],
                "selector": {"a": {"b": "c"}},
                "empty": {},
            },
        }))
        .unwrap();
        let owners = owners(&o);
        assert_eq!(owners[1].operation_name(), "Update/status");
        let found: Vec<(String, Vec<usize>)> = fields(&o, &owners).into_iter().map(|f| (f.path, f.owners)).collect();
        let expected: Vec<(String, Vec<usize>)> = [
            (".metadata.finalizers[0]", vec![]),
            (".metadata.finalizers[=\"f/2\"]", vec![0]),
            (".metadata.labels.x", vec![0]),
            (".metadata.labels.y", vec![]),
            (".metadata.name", vec![]),
            (".spec.containers[0].image", vec![]),
            (".spec.containers[0].name", vec![]),
            (".spec.containers[name=\"web\"].image", vec![0, 1]),
            (".spec.containers[name=\"web\"].name", vec![0]),
            (".spec.containers[name=\"web\"].ports[0].containerPort", vec![]),
            (".spec.containers[name=\"web\"].ports[0].name", vec![]),
            (".spec.containers[name=\"web\"].ports[0].protocol", vec![]),
            (".spec.containers[name=\"web\"].ports[containerPort=80,protocol=\"UDP\"].containerPort", vec![]),
            (".spec.containers[name=\"web\"].ports[containerPort=80,protocol=\"UDP\"].name", vec![0]),
            (".spec.containers[name=\"web\"].ports[containerPort=80,protocol=\"UDP\"].protocol", vec![]),
            (".spec.empty", vec![]),
            (".spec.selector.a.b", vec![0]),
        ]
        .into_iter()
        .map(|(p, o)| (p.to_owned(), o))
        .collect();
        assert_eq!(found, expected);
    }
}
