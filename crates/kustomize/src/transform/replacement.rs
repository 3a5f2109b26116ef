//! Copies values of fields into other fields.

use super::Transform;
use crate::Error;
use crate::fields::split;
use crate::go::{self, Unknown, go_struct};
use crate::id::Id;
use crate::kustomization::{FieldOptions, Replacement, Source, Target};
use crate::resource::{Resource, text};
use crate::resources::{Matcher, Resources};
use crate::root::Root;
use meta::{Map, Value};
use regex::Regex;

const DEFAULT_PATH: &str = "metadata.name";

go_struct! {
    Replacements "ReplacementTransformer" {
        replacements: Vec<Replacement> = "replacements",
    }
}

impl Replacements {
    /// Reads the replacements that are in files.
    pub fn load(self, root: &Root<'_>) -> Result<Self, Error> {
        let mut all = Vec::new();
        for r in self.replacements {
            if r.path.is_empty() {
                all.push(r);
                continue;
            }
            if r.source.is_some() || r.targets.as_ref().is_some_and(|t| !t.is_empty()) {
                return Err(Error::text("cannot specify both path and inline replacement"));
            }
            let documents = codec::yaml::parse(&root.read_text(&r.path)?).map_err(Error::text)?;
            match documents.into_iter().next().unwrap_or_default() {
                v @ Value::Array(_) => {
                    let more: Vec<Replacement> = go::decode(v, Unknown::Ignored).map_err(Error::text)?;
                    all.extend(more);
                }
                v @ Value::Object(_) => all.push(go::decode(v, Unknown::Ignored).map_err(Error::text)?),
                _ => {
                    return Err(Error::text(
                        "unsupported replacement type encountered within replacement path: invalid",
                    ));
                }
            }
        }
        Ok(Self { replacements: all })
    }
}

impl Transform for Replacements {
    fn apply(&self, all: &mut Resources) -> Result<(), Error> {
        for r in &self.replacements {
            let targets = r.targets.as_ref();
            let value = match (&r.source, &r.source_value, targets) {
                (None, None, _) | (_, _, None) => {
                    return Err(Error::text("replacements must specify a source and at least one target"));
                }
                (Some(_), Some(_), _) => {
                    return Err(Error::text("value and resource selectors are mutually exclusive"));
                }
                (None, Some(v), _) => v.clone().into(),
                (Some(source), None, _) => read(all, source)?,
            };
            for target in targets.into_iter().flatten() {
                write(all, &value, target)?;
            }
        }
        Ok(())
    }
}

/// Splits a path at dots; brackets form one part.
pub fn parts(path: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut open: Option<String> = None;
    for part in split(path, '.') {
        let (bracketed, closed) = match open.take() {
            Some(before) => (format!("{before}.{part}"), part.ends_with(']')),
            None if part.starts_with('[') && !part.ends_with(']') => (part, false),
            None => {
                out.push(part);
                continue;
            }
        };
        if !closed {
            open = Some(bracketed);
        } else if bracketed.contains('=') {
            out.push(bracketed);
        } else {
            out.push(bracketed.trim_matches(['[', ']']).to_owned());
        }
    }
    out.extend(open);
    out
}

fn describe(s: &Source) -> String {
    let id = Id { gvk: s.gvk.clone(), name: s.name.clone(), namespace: s.namespace.clone() };
    let path = if s.field_path.is_empty() { String::new() } else { format!(":{}", s.field_path) };
    format!("{id}{path}")
}

fn read(all: &Resources, source: &Source) -> Result<Value, Error> {
    let namespace = Id { namespace: source.namespace.clone(), ..Id::default() };
    let selected = |id: &Id| {
        (source.name.is_empty() || source.name == id.name)
            && (source.namespace.is_empty() || namespace.effective_namespace() == id.effective_namespace())
            && id.gvk.is_selected(&source.gvk)
    };
    let found: Vec<&Resource> = all.0.iter().filter(|r| r.ids().iter().any(&selected)).collect();
    let [found] = found[..] else {
        let why = if found.is_empty() { "nothing selected by" } else { "multiple matches for selector" };
        return Err(Error::text(format!("{why} {}", describe(source))));
    };
    let path = if source.field_path.is_empty() { DEFAULT_PATH } else { &source.field_path };
    let object = Value::Object(found.object.clone());
    let value = lookup(&object, &parts(path))
        .map_err(|e| Error::text(format!("error looking up replacement source: {e}")))?
        .filter(|v| match v {
            Value::Null => false,
            Value::Object(m) => !m.is_empty(),
            Value::Array(a) => !a.is_empty(),
            _ => true,
        });
    let Some(value) = value else {
        let id = Id { gvk: source.gvk.clone(), name: source.name.clone(), namespace: source.namespace.clone() };
        return Err(Error::text(format!("fieldPath `{path}` is missing for replacement source {id}")));
    };
    let Some(options) = source.options.as_ref().filter(|o| !o.delimiter.is_empty()) else { return Ok(value.clone()) };
    if value.is_object() || value.is_array() {
        return Err(Error::text("delimiter option can only be used with scalar nodes"));
    }
    let complete = text(value);
    let piece = usize::try_from(options.index).ok().and_then(|i| complete.split(&options.delimiter).nth(i));
    match piece {
        Some(piece) => Ok(piece.into()),
        None => Err(Error::text(format!("options.index {} is out of bounds for value {complete}", options.index))),
    }
}

/// Follows a path: members, list indices, `-` for the last item, `[key=value]`.
pub fn lookup<'a>(mut v: &'a Value, path: &[String]) -> Result<Option<&'a Value>, Error> {
    for part in path.iter().map(|p| p.trim()).filter(|p| !p.is_empty()) {
        let next = match v {
            Value::Array(a) if part == "-" => a.last(),
            Value::Array(a) => match (part.parse::<usize>(), pair(part)) {
                (Ok(i), _) => a.get(i),
                (_, Some((key, value))) => a.iter().find(|i| {
                    let own = if key.is_empty() { Some(*i) } else { i.get(key) };
                    own.is_some_and(|own| text(own) == value)
                }),
                _ => return Err(Error::text("wrong node kind: expected MappingNode but got SequenceNode")),
            },
            Value::Object(m) => m.get(part),
            Value::Null => None,
            _ => return Err(Error::text("wrong node kind: expected MappingNode but got ScalarNode")),
        };
        match next {
            Some(next) => v = next,
            None => return Ok(None),
        }
    }
    Ok(Some(v))
}

/// Parses `[key=value]`.
fn pair(part: &str) -> Option<(&str, &str)> {
    part.strip_prefix('[')?.strip_suffix(']')?.split_once('=')
}

fn write(all: &mut Resources, value: &Value, target: &Target) -> Result<(), Error> {
    let Some(select) = &target.select else { return Err(Error::text("target must specify resources to select")) };
    let wrong = |e: Error| Error::text(format!("error creating target selector: {e}"));
    let selector = Matcher::new(select).map_err(wrong)?;
    let mut rejected = Vec::new();
    for r in &target.reject {
        rejected.push((r, Matcher::new(r).map_err(wrong)?));
    }
    let default = [DEFAULT_PATH.to_owned()];
    let paths = if target.field_paths.is_empty() { &default[..] } else { &target.field_paths };
    for r in &mut all.0 {
        let ids = r.ids();
        let out = rejected.iter().any(|(s, m)| {
            let by_labels = !(s.labels.is_empty() && s.annotations.is_empty());
            let by_id = s.gvk != crate::id::Gvk::default() || !s.name.is_empty() || !s.namespace.is_empty();
            (by_labels && m.fits_labels(r)) || (by_id && ids.iter().any(|id| m.fits_id(id)))
        });
        if out || !selector.fits_labels(r) || !ids.iter().any(|id| selector.fits_id(id)) {
            continue;
        }
        for path in paths {
            let mut object = Value::Object(std::mem::take(&mut r.object));
            let result = set_at(&mut object, path, value, target.options.as_ref());
            if let Value::Object(m) = object {
                r.object = m;
            }
            result?;
        }
    }
    Ok(())
}

fn set_at(object: &mut Value, path: &str, value: &Value, options: Option<&FieldOptions>) -> Result<(), Error> {
    let create = options.is_some_and(|o| o.create);
    let verb = if create { "find or create" } else { "find" };
    let missing = format!("unable to {verb} field {path:?} in replacement target");
    let setter = Setter { value, options, create };
    match setter.walk(object, &parts(path)) {
        Ok(0) => Err(Error::text(missing)),
        Ok(_) => Ok(()),
        Err(Failure::Path(e)) => Err(Error::text(format!("{missing}: {e}"))),
        Err(Failure::Value(e)) => Err(e),
    }
}

enum Failure {
    /// The path does not fit the object.
    Path(Error),
    /// The value does not fit the field.
    Value(Error),
}

struct Setter<'a> {
    value: &'a Value,
    options: Option<&'a FieldOptions>,
    create: bool,
}

fn wrong_node(expected: &str, v: &Value) -> Failure {
    let kind = match v {
        Value::Object(_) => "MappingNode",
        Value::Array(_) => "SequenceNode",
        _ => "ScalarNode",
    };
    let content = codec::yaml::to_string(v);
    Failure::Path(Error::text(format!(
        "wrong node kind: expected {expected} but got {kind}: node contents:\n{content}"
    )))
}

impl Setter<'_> {
    /// Creates the value for a missing part of the path, depending on the next part.
    fn new_value(&self, next: Option<&String>) -> Value {
        match next {
            None if self.value.is_object() => Value::Object(Map::new()),
            None if self.value.is_array() => Value::Array(Vec::new()),
            None => Value::Null,
            Some(p) if pair(p).is_some() || p.parse::<usize>().is_ok() => Value::Array(Vec::new()),
            Some(_) => Value::Object(Map::new()),
        }
    }

    /// Sets all fields that the path selects, and returns their number.
    fn walk(&self, v: &mut Value, path: &[String]) -> Result<usize, Failure> {
        let Some((part, rest)) = path.split_first() else {
            return self.set(v).map(|()| 1).map_err(Failure::Value);
        };
        if let Ok(i) = part.parse::<usize>() {
            let Value::Array(items) = v else { return Err(wrong_node("SequenceNode", v)) };
            if i == items.len() && self.create {
                items.push(self.new_value(rest.first()));
            }
            let n = items.len();
            return match items.get_mut(i) {
                Some(item) => self.walk(item, rest),
                None => Err(Failure::Path(Error::text(format!("index {i} specified but only {n} elements found")))),
            };
        }
        if part.starts_with('[') && part.ends_with(']') {
            return self.items(v, part, rest);
        }
        if part == "*" {
            let Value::Array(items) = v else { return Err(wrong_node("SequenceNode", v)) };
            return items.iter_mut().try_fold(0, |n, i| Ok(n + self.walk(i, rest)?));
        }
        match v {
            Value::Object(m) => {
                if self.create && !m.contains_key(part) {
                    m.insert(part.clone(), self.new_value(rest.first()));
                }
                match m.get_mut(part) {
                    None => Ok(0),
                    Some(Value::String(s)) if !rest.is_empty() => self.embedded(s, rest),
                    Some(next) => self.walk(next, rest),
                }
            }
            Value::Null => Ok(0),
            other => Err(wrong_node("MappingNode", other)),
        }
    }

    fn items(&self, v: &mut Value, part: &str, rest: &[String]) -> Result<usize, Failure> {
        let Some((key, pattern)) = pair(part) else {
            return Err(Failure::Path(Error::text(
                "list path element must contain fieldName=fieldValue for element to match",
            )));
        };
        let regex = Regex::new(pattern).map_err(|e| Failure::Path(Error::text(e)))?;
        let Value::Array(items) = v else { return Err(wrong_node("SequenceNode", v)) };
        let mut n = 0;
        for round in 0..2 {
            for item in items.iter_mut() {
                if key.is_empty() {
                    if regex.is_match(&text(item)) {
                        n += self.walk(item, &[])?;
                    }
                } else if item.get(key).is_some_and(|own| regex.is_match(&text(own))) {
                    n += self.walk(item, rest)?;
                }
            }
            if n > 0 || !self.create || round == 1 {
                break;
            }
            items.push(if key.is_empty() {
                pattern.into()
            } else {
                Value::Object([(key.to_owned(), Value::from(pattern))].into_iter().collect())
            });
        }
        Ok(n)
    }

    /// Sets a field inside of a text that is itself JSON or YAML.
    fn embedded(&self, s: &mut String, rest: &[String]) -> Result<usize, Failure> {
        let documents = codec::yaml::parse_v3(s).map_err(|e| Failure::Path(Error::text(e)))?;
        let mut inner = documents.into_iter().next().unwrap_or_default();
        let n = self.walk(&mut inner, rest)?;
        let json = s.trim_start().starts_with(['{', '[']);
        let pretty = s.contains('\n') && s.contains("  ");
        *s = match (json, pretty) {
            (true, true) => serde_json::to_string_pretty(&inner).map_err(|e| Failure::Value(Error::text(e)))?,
            (true, false) => codec::json::to_string(&inner, codec::json::Html::Escape),
            (false, _) => codec::yaml::to_string(&inner).trim().to_owned(),
        };
        Ok(n)
    }

    fn set(&self, field: &mut Value) -> Result<(), Error> {
        let is_scalar = |v: &Value| !v.is_object() && !v.is_array();
        let delimiter = self.options.filter(|o| !o.delimiter.is_empty());
        let value = match delimiter {
            None => self.value.clone(),
            Some(_) if !is_scalar(field) => {
                return Err(Error::text("delimiter option can only be used with scalar nodes"));
            }
            Some(o) => {
                let old = if field.is_null() { String::new() } else { text(field) };
                let mut pieces: Vec<String> = old.split(&o.delimiter).map(str::to_owned).collect();
                let new = text(self.value);
                match usize::try_from(o.index) {
                    Err(_) => pieces.insert(0, new),
                    Ok(i) if i < pieces.len() => pieces[i] = new,
                    Ok(_) => pieces.push(new),
                }
                pieces.join(&o.delimiter).into()
            }
        };
        *field = match &*field {
            f if !is_scalar(f) => value,
            Value::String(_) => scalar_text(&value).into(),
            // The field keeps its type: a number from a text is a number.
            _ => {
                let new = scalar_text(&value);
                let read = codec::yaml::parse_v3(&new).ok().and_then(|d| d.into_iter().next());
                read.filter(is_scalar).unwrap_or_else(|| new.into())
            }
        };
        Ok(())
    }
}

fn scalar_text(v: &Value) -> String {
    if v.is_object() || v.is_array() { String::new() } else { text(v) }
}
