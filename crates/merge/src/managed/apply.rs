//! Server-side apply.

use super::entry::{Entry, Managers, Operation};
use super::update::{adapt, follow, own};
use super::{BEFORE_FIRST_APPLY, Context, Error, KUBECTL, LAST_APPLIED, put_managed_fields, stripped};
use crate::fieldset::Set;
use crate::typed::{
    TypeRef, compare, compare_objects, ensure_named, field_set, merge_objects, remove_items, strip_nulls, validate,
};
use meta::{Object, Value};
use schema::Schema;

/// Whether an apply takes fields that others own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    Yes,
    No,
}

/// Applies a configuration to the live object (`None`: creates it) and returns the merged object with its `managedFields`,
/// not yet defaulted. `None` when nothing changes at all.
pub fn apply(live: Option<&Object>, config: &Object, force: Force, cx: &Context<'_>) -> Result<Option<Object>, Error> {
    let t = cx.type_ref();
    let config_value = Value::Object(config.0.clone());
    fits(config, &config_value, cx.api_version, t)?;
    let (bare, raw) = live.map(split).unwrap_or_default();
    let mut managers = Managers::decode(raw.clone())?;
    adapt(&mut managers, cx);
    if managers.0.is_empty() && live.is_some() {
        let everything = compare_objects(None, &bare, t).exclude(cx.reset_fields);
        own(&mut managers, everything, BEFORE_FIRST_APPLY, cx);
    }
    let again = (cx.manager == KUBECTL && force == Force::No).then(|| managers.clone());
    let (mut object, managers) = match (run(&bare, config, &config_value, managers, force, cx), again) {
        // kubectl takes over what it applied from the client's side before, as far as nobody changed it since.
        (Err(Error::Conflict(conflicts)), Some(managers)) => match last_applied(&bare, cx) {
            None => return Err(Error::Conflict(conflicts)),
            Some(mine) => {
                let left = conflicts.without(&mine);
                if !left.0.is_empty() {
                    return Err(Error::Conflict(left));
                }
                run(&bare, config, &config_value, managers, Force::Yes, cx)?
            }
        },
        (other, _) => other?,
    };
    if cx.manager == KUBECTL && object.annotation(LAST_APPLIED).is_some_and(|a| !a.is_empty()) {
        object.set_annotation(LAST_APPLIED, &last_applied_text(config));
    }
    let encoded = managers.encode();
    // Nobody owning anything is written as no list at all.
    let nobody = |v: &Value| v.as_array().is_none_or(Vec::is_empty);
    if live.is_some() && object == bare && (encoded == raw || (nobody(&encoded) && nobody(&raw))) {
        return Ok(None);
    }
    put_managed_fields(&mut object, encoded);
    Ok(Some(object))
}

/// Whether a configuration can be applied to what has this version and schema.
pub fn check(config: &Object, api_version: &str, schema: &Schema) -> Result<(), Error> {
    fits(config, &Value::Object(config.0.clone()), api_version, TypeRef::new(Some(schema)))
}

/// `value` is the configuration once more.
fn fits(config: &Object, value: &Value, api_version: &str, t: TypeRef<'_>) -> Result<(), Error> {
    if config.api_version() != api_version {
        return Err(Error::Version { got: config.api_version().to_owned(), want: api_version.to_owned() });
    }
    if config.metadata().and_then(|m| m.get("managedFields")).is_some_and(|v| !v.is_null()) {
        return Err(Error::ManagedFieldsGiven);
    }
    validate(value, t).map_err(|why| Error::Typed { object: describe(config), why })
}

/// `namespace/name; group/version, Kind=Kind`, as upstream names an object in errors.
fn describe(o: &Object) -> String {
    let gvk = o.gvk().map(|g| format!("{}, Kind={}", g.api_version(), g.kind)).unwrap_or_default();
    format!("{}/{}; {gvk}", o.namespace(), o.name())
}

/// The object without its `managedFields`, and these.
fn split(o: &Object) -> (Object, Value) {
    const METADATA: &str = "metadata";
    let mut bare = meta::Map::new();
    let mut fields = Value::Null;
    for (k, v) in &o.0 {
        let v = match v {
            Value::Object(m) if k == METADATA => {
                fields = m.get("managedFields").cloned().unwrap_or_default();
                let rest = m.iter().filter(|(k, _)| *k != "managedFields");
                Value::Object(rest.map(|(k, v)| (k.clone(), v.clone())).collect())
            }
            v => v.clone(),
        };
        bare.insert(k.clone(), v);
    }
    (Object(bare), fields)
}

fn run(
    live: &Object,
    config: &Object,
    config_value: &Value,
    mut managers: Managers,
    force: Force,
    cx: &Context<'_>,
) -> Result<(Object, Managers), Error> {
    let t = cx.type_ref();
    let merged = if live.0.is_empty() { config.clone() } else { merge_objects(live, config, t) };
    let merged = Value::Object(merged.0);
    let fields = field_set(config_value, t).recursive_difference(cx.reset_fields);

    let mut me = Entry::new(cx.manager, Operation::Apply, cx.api_version, cx.subresource);
    let last = managers.0.iter().position(|e| e.same_manager(&me)).map(|i| managers.0.remove(i));
    me.fields = fields;
    me.time = last.as_ref().and_then(|l| l.time.clone());
    managers.0.push(me.clone());

    let pruned = match &last {
        Some(last) => prune(merged, last, &me, &managers, cx)?,
        None => merged,
    };
    let Value::Object(pruned) = pruned else { return Ok((Object::default(), managers)) };
    let mut new = Object(pruned);
    let comparison = compare_objects(Some(live), &new, t).exclude(cx.reset_fields);
    let conflicts = follow(&mut managers, Some(&me), Some(live), &new, &comparison, cx)?;
    if force == Force::No && !conflicts.0.is_empty() {
        return Err(conflicts.into());
    }
    let mut value = Value::Object(new.0);
    strip_nulls(&mut value, t);
    new = Object::from_value(value).unwrap_or_default();

    let mine = me.fields.difference(stripped());
    let unchanged = *live == new && last.as_ref().is_some_and(|l| l.fields == mine && l.api_version == cx.api_version);
    managers
        .0
        .retain(|e| !(e.operation == Operation::Apply && e.manager == me.manager && e.subresource == me.subresource));
    match last {
        Some(last) if unchanged => managers.0.push(last),
        _ if mine.is_empty() => {}
        _ => {
            let mut entry = Entry::new(cx.manager, Operation::Apply, cx.api_version, cx.subresource);
            entry.fields = mine;
            entry.set_time(cx.time);
            managers.0.push(entry);
        }
    }
    Ok((new, managers))
}

/// Takes out what this manager applied last time and does not apply now, unless somebody else owns it.
fn prune(merged: Value, last: &Entry, me: &Entry, managers: &Managers, cx: &Context<'_>) -> Result<Value, Error> {
    let last_fields = last.fields.clone().recursive_difference(cx.reset_fields);
    // The usual case: all that was applied last time is applied again.
    let all_again = || last.api_version == cx.api_version && last_fields.clone().difference(&me.fields).is_empty();
    if last_fields.is_empty() || all_again() {
        return Ok(merged);
    }
    let here = At { version: &last.api_version, cx };
    let Some(merged_then) = here.convert(&merged, cx.api_version)? else { return Ok(merged) };
    let t = here.type_ref();
    let last_named = ensure_named(last_fields, t);
    let pruned = remove_items(&merged_then, &last_named, t);

    let mut by_version: Vec<(&str, Set)> = Vec::new();
    for e in &managers.0 {
        match by_version.iter_mut().find(|v| v.0 == e.api_version) {
            Some((_, s)) => *s = std::mem::take(s).union(e.fields.clone()),
            None => by_version.push((&e.api_version, e.fields.clone())),
        }
    }
    // The version pruned in comes first: it needs no conversion of an object that may lack what conversion wants.
    by_version.sort_by_key(|(v, _)| *v != last.api_version);
    let (mut m, mut p, mut at) = (merged_then.clone(), pruned, last.api_version.clone());
    for (version, owned) in by_version {
        let there = At { version, cx };
        let (Some(merged), Some(pruned)) = (there.convert(&m, &at)?, there.convert(&p, &at)?) else { continue };
        let t = there.type_ref();
        let keep = ensure_named(field_set(&pruned, t), t).union(ensure_named(owned, t));
        let unowned = ensure_named(field_set(&merged, t), t).difference(&keep);
        p = remove_items(&merged, &unowned, t);
        (m, at) = (merged, version.to_owned());
    }
    let Some(p) = here.convert(&p, &at)? else { return Ok(merged) };
    // Only what this manager owned may go: what nobody owns stays.
    let gone = ensure_named(field_set(&merged_then, t), t)
        .difference(&ensure_named(field_set(&p, t), t))
        .intersection(&last_named);
    let result = remove_items(&merged_then, &gone, t);
    let back = At { version: cx.api_version, cx };
    Ok(back.convert(&result, &last.api_version)?.unwrap_or(merged))
}

/// A version of the kind.
struct At<'a> {
    version: &'a str,
    cx: &'a Context<'a>,
}

impl<'a> At<'a> {
    fn type_ref(&self) -> TypeRef<'a> {
        let same = self.version == self.cx.api_version;
        TypeRef::new(if same { self.cx.schema } else { self.cx.versions.schema(self.version) })
    }

    fn convert(&self, v: &Value, from: &str) -> Result<Option<Value>, Error> {
        if self.version == from {
            return Ok(Some(v.clone()));
        }
        let Value::Object(m) = v else { return Ok(None) };
        let converted = self.cx.versions.convert(&Object(m.clone()), self.version);
        converted
            .map(|o| o.map(Object::into_value))
            .map_err(|why| Error::Convert { version: self.version.to_owned(), why })
    }
}

/// The fields that client-side apply set last and that are still as it set them.
fn last_applied(live: &Object, cx: &Context<'_>) -> Option<Set> {
    let text = live.annotation(LAST_APPLIED).filter(|a| !a.is_empty())?;
    let last: Value = serde_json::from_str(text).ok()?;
    if last.get("apiVersion").and_then(Value::as_str) != Some(cx.api_version) {
        return None;
    }
    let t = cx.type_ref();
    validate(&last, t).ok()?;
    let c = compare(Some(&last), Some(&Value::Object(live.0.clone())), t);
    Some(field_set(&last, t).difference(&c.modified).difference(&c.added).difference(&c.removed))
}

/// The annotation's text: the configuration as compact JSON without the annotation itself, and a newline.
fn last_applied_text(config: &Object) -> String {
    let mut c = config.clone();
    c.remove(&["metadata", "annotations", LAST_APPLIED]);
    if c.at(&["metadata", "annotations"]).and_then(Value::as_object).is_some_and(serde_json::Map::is_empty) {
        c.remove(&["metadata", "annotations"]);
    }
    format!("{}\n", Value::Object(c.0))
}
