//! Who owns which field of an object: its managed fields, and where in the object their paths lead.
//!
//! Invariant: a path is followed by what it says (keys of an item, the value of a set's item), never by position, so that an item
//! that moved is still the one that is owned.

use merge::fieldset::{PathElement, Set};
use meta::{Object, Value};
use std::collections::BTreeMap;

/// One entry of the managed fields.
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
    pub fn how(&self) -> String {
        match self.subresource.as_str() {
            "" => self.operation.clone(),
            sub => format!("{}/{sub}", self.operation),
        }
    }
}

/// A step in an object as it lies there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Member(String),
    Item(usize),
}

pub type Place = Vec<Step>;

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
            // What cannot be read owns nothing that could be shown.
            fields: Set::from_value(&e["fieldsV1"]).unwrap_or_default(),
        })
        .collect()
}

/// As conflicts write it.
pub fn path_text(path: &[PathElement]) -> String {
    path.iter().map(ToString::to_string).collect()
}

/// Follows a path through an object.
pub fn find<'a>(mut v: &'a Value, path: &[PathElement]) -> Option<(Place, &'a Value)> {
    let mut place = Vec::with_capacity(path.len());
    for e in path {
        let (step, next) = match e {
            PathElement::Field(name) => (Step::Member(name.to_string()), v.get(&**name)?),
            PathElement::Index(i) => {
                let i = usize::try_from(*i).ok()?;
                (Step::Item(i), v.get(i)?)
            }
            PathElement::Key(keys) => {
                let fits = |item: &Value| keys.iter().all(|(k, wanted)| item.get(&**k) == Some(wanted));
                let i = v.as_array()?.iter().position(fits)?;
                (Step::Item(i), v.get(i)?)
            }
            PathElement::Value(wanted) => {
                let i = v.as_array()?.iter().position(|item| item == &**wanted)?;
                (Step::Item(i), v.get(i)?)
            }
        };
        place.push(step);
        v = next;
    }
    Some((place, v))
}

/// A field with everybody who owns it.
#[derive(Clone, Debug)]
pub struct Field {
    /// `.spec.containers[name="web"].image`.
    pub path: String,
    pub value: Value,
    /// Places in the list of owners; empty: nobody.
    pub owners: Vec<usize>,
}

/// Every field that holds a value, in the order of the object.
pub fn fields(o: &Object, owners: &[Owner]) -> Vec<Field> {
    let object = Value::Object(o.0.clone());
    let mut map = Map::default();
    for (n, owner) in owners.iter().enumerate() {
        let paths = owner.fields.paths();
        for path in &paths {
            let Some((place, _)) = find(&object, path) else { continue };
            for depth in 1..=path.len() {
                let name = path[depth - 1].to_string();
                // An item is called by what it is owned by rather than by where it lies.
                map.names.entry(place[..depth].to_vec()).or_insert(name);
            }
            map.owned.entry(place).or_default().push(n);
        }
    }
    let mut out = Vec::new();
    map.walk(&object, &mut Vec::new(), "", &mut out);
    out.retain(|f| !f.path.starts_with(".metadata.managedFields"));
    out
}

#[derive(Default)]
struct Map {
    owned: BTreeMap<Place, Vec<usize>>,
    names: BTreeMap<Place, String>,
}

impl Map {
    /// Whoever owns the place itself, or as a whole what it lies in: an owner of a whole owns nothing inside of it by name.
    fn owners(&self, place: &Place) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        for depth in (1..=place.len()).rev() {
            let whole = &place[..depth];
            for n in self.owned.get(whole).into_iter().flatten() {
                let inside = || {
                    let below = self.owned.range(whole.to_vec()..).skip(1);
                    below.take_while(|(p, _)| p.starts_with(whole)).any(|(_, owners)| owners.contains(n))
                };
                if !found.contains(n) && (depth == place.len() || !inside()) {
                    found.push(*n);
                }
            }
        }
        found.sort_unstable();
        found
    }

    fn walk(&self, v: &Value, place: &mut Place, path: &str, out: &mut Vec<Field>) {
        let mut inner = |step: Step, default: String, v: &Value| {
            place.push(step);
            let name = self.names.get(place).unwrap_or(&default);
            self.walk(v, place, &format!("{path}{name}"), out);
            place.pop();
        };
        match v {
            Value::Object(m) if !m.is_empty() => {
                m.iter().for_each(|(k, v)| inner(Step::Member(k.clone()), format!(".{k}"), v));
            }
            Value::Array(a) if !a.is_empty() => {
                a.iter().enumerate().for_each(|(i, v)| inner(Step::Item(i), format!("[{i}]"), v));
            }
            leaf => out.push(Field { path: path.to_owned(), value: leaf.clone(), owners: self.owners(place) }),
        }
    }
}

/// A value in one short line.
pub fn short(v: &Value) -> String {
    const LONGEST: usize = 48;
    let text = codec::json::to_string(v, codec::json::Html::Keep);
    if text.chars().count() <= LONGEST {
        return text;
    }
    let cut: String = text.chars().take(LONGEST - 1).collect();
    format!("{cut}…")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Clauses: G02.lists
    #[test]
    fn items_are_found_by_their_keys_and_wholes_own_what_is_in_them() {
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
        assert_eq!(owners[1].how(), "Update/status");
        let found: Vec<(String, Vec<usize>)> = fields(&o, &owners).into_iter().map(|f| (f.path, f.owners)).collect();
        let want: Vec<(String, Vec<usize>)> = [
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
        assert_eq!(found, want);
    }
}
