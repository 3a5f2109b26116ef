//! Strategic merge of files as in kustomize (kyaml's `merge2`), which differs from that of the API server: added items of a list come first,
//! there is no `$setElementOrder`, `$retainKeys` or `$deleteFromPrimitiveList`, and a value of
//! another kind is an error.
//!
//! Merge keys are those of the schema; all of several keys (`x-kubernetes-list-map-keys`) identify an item. An item without one of
//! them matches the only possible item of the other side (`containerPort: 80` matches 80/TCP). Upstream drops the patch of such an item; here it
//! is merged.
//!
//! Invariant: the result holds no directive of the patch, and no null that only the patch has.

use meta::{Map, Value};
use schema::{ListType, Schema};

const DIRECTIVE: &str = "$patch";

/// The error of a merge.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The two sides hold values of different kinds.
    #[error("wrong node kind: expected {expected} but got {}", node(found))]
    WrongKind {
        /// The type on the side of the file.
        expected: &'static str,
        /// The value of the patch.
        found: Value,
    },
    /// There is no directive of this name.
    #[error("unknown patch strategy '{0}'")]
    UnknownDirective(String),
}

/// Applies a patch to an object; `None` when the patch deletes it.
pub fn merge(
    object: Map<String, Value>,
    patch: Map<String, Value>,
    schema: Option<&Schema>,
) -> Result<Option<Map<String, Value>>, Error> {
    merge_map(object, patch, schema)
}

/// The name of a value's type in YAML.
fn node(v: &Value) -> &'static str {
    match v {
        Value::Object(_) => "MappingNode",
        Value::Array(_) => "SequenceNode",
        _ => "ScalarNode",
    }
}

/// The schema of a member, and how it is merged if it is a list.
#[derive(Clone, Copy, Default)]
struct Member<'a> {
    schema: Option<&'a Schema>,
    merges: bool,
    key: Option<&'a str>,
}

impl<'a> Member<'a> {
    fn new(parent: Option<&'a Schema>, name: &str) -> Self {
        match parent.and_then(|s| s.field(name)) {
            Some(f) => Self { schema: Some(f.schema.get()), merges: f.patch.merge, key: f.patch.merge_key.as_deref() },
            None => Self { schema: parent.and_then(|s| s.additional.as_deref()), ..Self::default() },
        }
    }

    fn keys(&self) -> Vec<&'a str> {
        match (self.schema.map(|s| &s.list), self.key) {
            (Some(ListType::Map(keys)), Some(_)) if keys.len() > 1 => keys.iter().map(|k| &**k).collect(),
            (_, key) => key.into_iter().collect(),
        }
    }

    fn items(&self) -> Option<&'a Schema> {
        self.schema.and_then(|s| s.items.as_deref())
    }
}

enum Directive {
    Merge,
    Replace,
    Delete,
}

fn directive(v: Option<Value>) -> Result<Directive, Error> {
    match v {
        None => Ok(Directive::Merge),
        Some(v) => match v.as_str() {
            Some("merge") => Ok(Directive::Merge),
            Some("replace") => Ok(Directive::Replace),
            Some("delete") => Ok(Directive::Delete),
            other => Err(Error::UnknownDirective(other.map_or_else(|| v.to_string(), str::to_owned))),
        },
    }
}

fn value(old: Option<Value>, new: Option<Value>, member: Member<'_>) -> Result<Option<Value>, Error> {
    let new = match (old, new) {
        (old, None) => return Ok(old),
        (None | Some(Value::Null), Some(new)) => return fresh(new, member),
        (Some(_), Some(Value::Null)) => return Ok(None),
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            return Ok(merge_map(old, new, member.schema)?.map(Value::Object));
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) if member.merges => return merge_list(old, new, member),
        (Some(old), Some(new)) if node(&old) != node(&new) => {
            return Err(Error::WrongKind { expected: node(&old), found: new });
        }
        (Some(_), Some(new)) => new,
    };
    Ok(Some(new))
}

/// The value of a patch for an absent field.
fn fresh(v: Value, member: Member<'_>) -> Result<Option<Value>, Error> {
    Ok(match v {
        Value::Null => None,
        Value::Object(mut m) => match directive(m.remove(DIRECTIVE))? {
            Directive::Delete => None,
            Directive::Merge | Directive::Replace => Some(Value::Object(fresh_map(m, member.schema)?)),
        },
        Value::Array(items) if member.merges => {
            let items = items.into_iter().filter(|i| list_directive(i).is_none());
            let member = Member { schema: member.items(), ..Member::default() };
            let kept: Result<Vec<_>, _> = items.filter_map(|i| fresh(i, member).transpose()).collect();
            Some(Value::Array(kept?))
        }
        v => Some(v),
    })
}

fn fresh_map(m: Map<String, Value>, schema: Option<&Schema>) -> Result<Map<String, Value>, Error> {
    let mut out = Map::new();
    for (k, v) in m {
        if let Some(v) = fresh(v, Member::new(schema, &k))? {
            out.insert(k, v);
        }
    }
    Ok(out)
}

fn merge_map(
    mut old: Map<String, Value>,
    mut new: Map<String, Value>,
    schema: Option<&Schema>,
) -> Result<Option<Map<String, Value>>, Error> {
    match directive(new.remove(DIRECTIVE))? {
        Directive::Delete => return Ok(None),
        Directive::Replace => return fresh_map(new, schema).map(Some),
        Directive::Merge => {}
    }
    for (k, v) in new {
        if let Some(v) = value(old.remove(&k), Some(v), Member::new(schema, &k))? {
            old.insert(k, v);
        }
    }
    Ok(Some(old))
}

/// Whether an item is a directive for its list.
fn list_directive(item: &Value) -> Option<Value> {
    item.as_object().filter(|m| m.len() == 1)?.get(DIRECTIVE).cloned()
}

fn merge_list(mut old: Vec<Value>, new: Vec<Value>, member: Member<'_>) -> Result<Option<Value>, Error> {
    match directive(new.iter().find_map(list_directive))? {
        Directive::Delete => return Ok(None),
        Directive::Replace => return fresh(Value::Array(new), member),
        Directive::Merge => {}
    }
    let new = new.into_iter().filter(|i| list_directive(i).is_none());
    let keys = member.keys();
    let items = Member { schema: member.items(), ..Member::default() };
    let mut first: Vec<Value> = Vec::new();
    for item in new {
        let found = if keys.is_empty() {
            old.iter().position(|o| *o == item)
        } else {
            old.iter().position(|o| same(o, &item, &keys, Missing::Differs)).or_else(|| {
                (keys.len() > 1).then(|| old.iter().position(|o| same(o, &item, &keys, Missing::Fits))).flatten()
            })
        };
        let merged = match found {
            // With one key (or none) the patch's order is taken, with several that of the file.
            Some(i) if keys.len() > 1 => {
                let (before, key_values) = (old.remove(i), item.clone());
                if let Some(v) = value(Some(before), Some(item), items)? {
                    old.insert(i, with_keys(v, &key_values, &keys));
                }
                continue;
            }
            Some(i) => value(Some(old.remove(i)), Some(item), items)?,
            None => fresh(item, items)?,
        };
        first.extend(merged.filter(|v| v.as_object().is_none_or(|m| !m.is_empty())));
    }
    first.append(&mut old);
    Ok(Some(Value::Array(first)))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Differs,
    Fits,
}

/// Whether two items match by their keys, of which both have at least one.
fn same(a: &Value, b: &Value, keys: &[&str], missing: Missing) -> bool {
    let mut common = false;
    keys.iter().all(|k| match (a.get(k), b.get(k)) {
        (Some(a), Some(b)) => {
            common = true;
            a == b
        }
        (None, None) => true,
        _ => missing == Missing::Fits,
    }) && common
}

fn with_keys(mut v: Value, from: &Value, keys: &[&str]) -> Value {
    if let Value::Object(m) = &mut v {
        for k in keys {
            if let (false, Some(key)) = (m.contains_key(*k), from.get(k)) {
                m.insert((*k).to_owned(), key.clone());
            }
        }
    }
    v
}

#[cfg(test)]
#[path = "kyaml_tests.rs"]
mod tests;
