//! Paths of fields in kustomize's tables: `spec/containers[]/image`. Every list on the path is traversed item by item, with
//! or without brackets; a slash in a key is `\/`.

use crate::Error;
use crate::kustomization::FieldSpec;
use crate::resource::Resource;
use meta::{Map, Value};

/// What is created for a missing field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    Nothing,
    Map,
    Scalar,
}

/// Splits a path; an escaped separator belongs to its part.
pub fn split(path: &str, separator: char) -> Vec<String> {
    let path = path.strip_prefix(separator).filter(|rest| !rest.is_empty()).unwrap_or(path);
    let mut out: Vec<String> = Vec::new();
    for part in path.split(separator) {
        match out.last_mut() {
            Some(last) if last.ends_with('\\') => {
                last.pop();
                last.push(separator);
                last.push_str(part);
            }
            _ => out.push(part.to_owned()),
        }
    }
    out
}

/// A function that changes a value in place.
pub type Change<'a> = &'a mut dyn FnMut(&mut Value) -> Result<(), Error>;

/// Changes the fields of an object that a spec selects, if the spec applies to its kind.
pub fn visit(r: &mut Resource, spec: &FieldSpec, create: Create, change: Change<'_>) -> Result<(), Error> {
    let id = r.id();
    if !id.gvk.is_selected(&spec.gvk) {
        return Ok(());
    }
    let path = split(&spec.path, '/');
    let create = if spec.create { create } else { Create::Nothing };
    let mut object = Value::Object(std::mem::take(&mut r.object));
    let result = walk(&mut object, &path, create, change);
    if let Value::Object(m) = object {
        r.object = m;
    }
    result.map_err(|e| Error::text(format!("considering field '{}' of object {id}: {e}", spec.path)))
}

fn walk(v: &mut Value, path: &[String], create: Create, change: Change<'_>) -> Result<(), Error> {
    let Some((part, rest)) = path.split_first() else { return change(v) };
    match v {
        Value::Null => Ok(()),
        Value::Array(items) => items.iter_mut().try_for_each(|i| walk(i, path, create, change)),
        Value::Object(m) => {
            let (name, is_list) = part.strip_suffix("[]").map_or((part.as_str(), false), |n| (n, true));
            if name.is_empty() {
                return Err(Error::text("cannot set or create an empty field name"));
            }
            if create != Create::Nothing && !is_list && m.get(name).is_none_or(Value::is_null) {
                let new = if rest.is_empty() && create == Create::Scalar {
                    Value::String(String::new())
                } else {
                    Value::Object(Map::new())
                };
                m.insert(name.to_owned(), new);
            }
            match m.get_mut(name) {
                Some(next) => walk(next, rest, create, change),
                None => Ok(()),
            }
        }
        _ => Err(Error::text("expected sequence or mapping node")),
    }
}

/// Sets keys of the maps that specs select.
pub fn set_keys<'a>(
    r: &mut Resource,
    specs: &[FieldSpec],
    pairs: impl Iterator<Item = (&'a String, &'a String)> + Clone,
) -> Result<(), Error> {
    for spec in specs {
        visit(r, spec, Create::Map, &mut |v| {
            if v.is_null() {
                *v = Value::Object(Map::new());
            }
            let Value::Object(m) = v else { return Err(Error::text("wrong node kind: expected MappingNode")) };
            m.extend(pairs.clone().map(|(k, v)| (k.clone(), v.clone().into())));
            Ok(())
        })?;
    }
    Ok(())
}
