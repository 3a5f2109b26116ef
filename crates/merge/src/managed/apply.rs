//! Server-side apply.

use super::entry::{Entry, Managers, Operation};
use super::update::{adapt, follow, is_nothing, live_fields, own, same_without_entries};
use super::{BEFORE_FIRST_APPLY, Context, Error, KUBECTL, LAST_APPLIED, put_managed_fields, stripped};
use crate::fieldset::Set;
use crate::typed::{
    TypeRef, compare, compare_objects, drop_emptied_lists, ensure_named, field_set, field_set_of_object, merge_objects,
    remove_items, validate, validate_object,
};
use meta::{Object, Value};
use schema::Schema;
use std::collections::HashMap;

/// Whether an apply takes over fields of other managers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Takes them over (`force`).
    Yes,
    /// Fails with conflicts.
    No,
}

/// Applies a configuration to the live object (`None`: creates it) and returns the merged object with its `managedFields`,
/// not yet defaulted. `None` when nothing changes at all.
pub fn apply(live: Option<&Object>, config: &Object, force: Force, cx: &Context<'_>) -> Result<Option<Object>, Error> {
    fits(config, cx.api_version, cx.type_ref())?;
    let nothing = Object::default();
    let old = live.unwrap_or(&nothing);
    let list = live_fields(old);
    let mut managers = Managers::decode(list)?;
    adapt(&mut managers, cx);
    if managers.0.is_empty() && live.is_some() {
        let everything = compare_objects(None, old, cx.type_ref()).exclude(cx.reset_fields);
        own(&mut managers, everything, BEFORE_FIRST_APPLY, cx);
    }
    let again = (cx.manager == KUBECTL && force == Force::No).then(|| managers.clone());
    let (mut object, managers) = match (run(old, config, managers, force, cx), again) {
        // kubectl takes over the fields of its earlier client-side apply that did not change since.
        (Err(Error::Conflict(conflicts)), Some(managers)) => match last_applied(old, cx) {
            None => return Err(Error::Conflict(conflicts)),
            Some(mine) => {
                let left = conflicts.without(&mine);
                if !left.is_empty() {
                    return Err(Error::Conflict(left));
                }
                run(old, config, managers, Force::Yes, cx)?
            }
        },
        (other, _) => other?,
    };
    if cx.manager == KUBECTL && object.annotation(LAST_APPLIED).is_some_and(|a| !a.is_empty()) {
        object.set_annotation(LAST_APPLIED, &last_applied_text(config));
    }
    let encoded = managers.encode(|i| list[i].clone());
    // Without owners, `managedFields` is absent.
    let same_owners = encoded == *list || is_nothing(&encoded) && is_nothing(list);
    if live.is_some() && same_owners && same_without_entries(&object, old) {
        return Ok(None);
    }
    put_managed_fields(&mut object, encoded);
    Ok(Some(object))
}

/// Errors if a configuration cannot be applied to this version and schema.
pub fn check(config: &Object, api_version: &str, schema: &Schema) -> Result<(), Error> {
    fits(config, api_version, TypeRef::new(Some(schema)))
}

fn fits(config: &Object, api_version: &str, t: TypeRef<'_>) -> Result<(), Error> {
    if config.api_version() != api_version {
        return Err(Error::Version { got: config.api_version().to_owned(), want: api_version.to_owned() });
    }
    if config.metadata().and_then(|m| m.get("managedFields")).is_some_and(|v| !v.is_null()) {
        return Err(Error::ManagedFieldsGiven);
    }
    validate_object(config, t).map_err(|why| Error::Typed { object: describe(config), why })
}

/// `namespace/name; group/version, Kind=Kind`, as upstream names an object in errors. The core group is empty.
fn describe(o: &Object) -> String {
    let gvk = o.gvk().map(|g| format!("{}/{}, Kind={}", g.group, g.version, g.kind)).unwrap_or_default();
    format!("{}/{}; {gvk}", o.namespace(), o.name())
}

/// The merged object without managed fields, and its managers.
fn run(
    live: &Object,
    config: &Object,
    mut managers: Managers,
    force: Force,
    cx: &Context<'_>,
) -> Result<(Object, Managers), Error> {
    let t = cx.type_ref();
    let mut me = Entry::new(cx.manager, Operation::Apply, cx.api_version, cx.subresource);
    me.fields = field_set_of_object(config, t).recursive_difference(cx.reset_fields);
    let last = managers.0.iter().position(|e| e.same_manager(&me)).map(|i| managers.0.remove(i));

    let merged = if live.0.is_empty() { config.clone() } else { merge_objects(live, config, t) };
    let pruned = match &last {
        Some(last) => prune(merged.into_value(), last, &me, &managers, cx)?,
        None => merged.into_value(),
    };
    let Value::Object(pruned) = pruned else { return Ok((Object::default(), managers)) };
    let new = Object(pruned);
    let comparison = compare_objects(Some(live), &new, t).exclude(cx.reset_fields);
    let conflicts = follow(&mut managers, Some(live), &new, &comparison, cx)?;
    if force == Force::No && !conflicts.is_empty() {
        return Err(conflicts.into());
    }

    me.set_fields(|s| s.difference(stripped()));
    let as_before = |l: &Entry| l.fields == me.fields && l.api_version == cx.api_version;
    match last {
        Some(last) if as_before(&last) && same_without_entries(&new, live) => managers.0.push(last),
        _ if me.fields.is_empty() => {}
        _ => {
            me.set_time(cx.time);
            managers.0.push(me);
        }
    }
    Ok((new, managers))
}

/// Removes the fields that this manager applied last time and does not apply now, unless another manager owns them.
fn prune(merged: Value, last: &Entry, me: &Entry, managers: &Managers, cx: &Context<'_>) -> Result<Value, Error> {
    // The usual case: all fields of the last apply are applied again.
    if last.api_version == cx.api_version && last.fields.is_subset(&me.fields) {
        return Ok(merged);
    }
    let last_fields = last.fields.clone().recursive_difference(cx.reset_fields);
    if last_fields.is_empty() {
        return Ok(merged);
    }
    let here = At { version: &last.api_version, cx };
    let Some(merged_then) = here.convert(&merged, cx.api_version)? else { return Ok(merged) };
    let t = here.type_ref();
    let last_named = ensure_named(last_fields, t);
    let pruned = remove_items(&merged_then, &last_named, t);

    let mut by_version: Vec<(&str, Vec<Set>)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for e in managers.0.iter().chain([me]) {
        let at = *places.entry(&e.api_version).or_insert_with(|| {
            by_version.push((&e.api_version, Vec::new()));
            by_version.len() - 1
        });
        by_version[at].1.push(e.fields.clone());
    }
    // Starts with the version of the pruned object: other versions require a conversion, which may need the removed fields.
    by_version.sort_by_key(|(v, _)| *v != last.api_version);
    let (mut m, mut p, mut at) = (merged_then.clone(), pruned, last.api_version.clone());
    for (version, owned) in by_version {
        let there = At { version, cx };
        let owned = Set::union_all(owned);
        let (Some(merged), Some(pruned)) = (there.convert(&m, &at)?, there.convert(&p, &at)?) else { continue };
        let t = there.type_ref();
        let keep = ensure_named(field_set(&pruned, t), t).union(ensure_named(owned, t));
        let unowned = ensure_named(field_set(&merged, t), t).difference(&keep);
        p = remove_items(&merged, &unowned, t);
        (m, at) = (merged, version.to_owned());
    }
    let Some(p) = here.convert(&p, &at)? else { return Ok(merged) };
    // Removes only fields that this manager owned: fields without an owner stay.
    let gone = ensure_named(field_set(&merged_then, t), t)
        .difference(&ensure_named(field_set(&p, t), t))
        .intersection(&last_named);
    let mut result = remove_items(&merged_then, &gone, t);
    drop_emptied_lists(&mut result, &merged_then);
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
        if !self.cx.versions.has(self.version) {
            return Ok(None);
        }
        let converted = self.cx.versions.convert(&Object(m.clone()), self.version);
        converted.map(|o| o.map(Object::into_value)).map_err(Error::Convert)
    }
}

/// The fields that client-side apply set last and that are still as it set them.
fn last_applied(live: &Object, cx: &Context<'_>) -> Option<Set> {
    let text = live.annotation(LAST_APPLIED).filter(|a| !a.is_empty())?;
    let last: Value = meta::depth::from_str(text).ok()?;
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
