//! Namespace: name label, `spec.finalizers` and phase.

use crate::Config;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use registry::metadata::STANDARD_FINALIZERS;
use registry::{CreateStrategy, DeleteStrategy, Env, NameRule, Request, Sub, Subresources, UpdateStrategy, take_field};
use serde_json::json;

pub fn row(_: &Config) -> Row {
    Row::stored(Namespace)
}

pub struct Namespace;

const NAME_LABEL: &str = "kubernetes.io/metadata.name";

impl CreateStrategy for Namespace {
    fn name_rule(&self) -> NameRule {
        NameRule::DnsLabel
    }

    fn default(&self, o: &mut Object) {
        let name = o.name().to_owned();
        if !name.is_empty() {
            o.set_label(NAME_LABEL, &name);
        }
    }

    fn prepare_for_create(&self, _env: Env<'_>, _request: &Request, o: &mut Object) {
        let name = o.name().to_owned();
        o.set_label(NAME_LABEL, &name);
        o.set(&["status"], json!({"phase": "Active"}));
        let mut all: Vec<Value> = o.at(&["spec", "finalizers"]).and_then(Value::as_array).cloned().unwrap_or_default();
        if !all.iter().any(|f| f == "kubernetes") {
            all.push("kubernetes".into());
        }
        o.set(&["spec", "finalizers"], all);
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        // Upstream reports the index of a finalizer only in `finalize` requests.
        finalizers(o, |at, _| at.clone(), errors);
    }
}

impl UpdateStrategy for Namespace {
    fn prepare_for_update(&self, _env: Env<'_>, request: &Request, o: &mut Object, old: &Object) {
        if request.subresource != "finalize" {
            match old.at(&["spec", "finalizers"]).cloned() {
                Some(f) => o.set(&["spec", "finalizers"], f),
                None => {
                    o.remove(&["spec", "finalizers"]);
                }
            }
        }
    }

    fn validate_part(&self, subresource: &str, o: &Object, _old: &Object, errors: &mut ErrorList) {
        match subresource {
            "finalize" => finalizers(o, FieldPath::index, errors),
            "status" => phase(o, errors),
            _ => {}
        }
    }

    fn take_part(&self, subresource: &str, o: &mut Object, old: &Object) {
        match subresource {
            "finalize" => {
                let finalizers = o.remove(&["spec", "finalizers"]);
                let metadata = o.metadata().cloned().unwrap_or_default();
                *o = old.clone();
                *o.metadata_mut() = metadata;
                match finalizers {
                    Some(f) => o.set(&["spec", "finalizers"], f),
                    None => {
                        o.remove(&["spec", "finalizers"]);
                    }
                }
            }
            _ => take_field(subresource, o, old, &[]),
        }
    }
}

impl DeleteStrategy for Namespace {
    fn keeps_alive(&self, o: &Object) -> bool {
        o.at(&["spec", "finalizers"]).and_then(Value::as_array).is_some_and(|f| !f.is_empty())
    }

    fn deletes_in_phases(&self) -> bool {
        true
    }

    fn begin_deletion(&self, o: &mut Object) {
        o.set(&["status", "phase"], "Terminating");
    }
}

impl Subresources for Namespace {
    fn subresource(&self, name: &str) -> Option<Sub> {
        matches!(name, "status" | "finalize").then_some(Sub::Part)
    }
}

registry::strategy!(Namespace: CreateStrategy, UpdateStrategy, DeleteStrategy, Subresources);

/// Checks that the phase matches the deletion timestamp.
fn phase(o: &Object, errors: &mut ErrorList) {
    let phase = o.str_at(&["status", "phase"]).unwrap_or_default();
    let (only, when) = if o.is_deleting() { ("Terminating", "not empty") } else { ("Active", "empty") };
    if phase != only {
        let why = format!("may only be '{only}' if `deletionTimestamp` is {when}");
        errors.push(FieldError::invalid(&FieldPath::new("status.Phase"), phase, why));
    }
}

fn finalizers(o: &Object, index: fn(&FieldPath, usize) -> FieldPath, errors: &mut ErrorList) {
    let at = FieldPath::new("spec.finalizers");
    for (i, f) in o.at(&["spec", "finalizers"]).and_then(Value::as_array).into_iter().flatten().enumerate() {
        let (f, at) = (f.as_str().unwrap_or_default(), index(&at, i));
        errors.extend(names::qualified_name(f).into_iter().map(|m| FieldError::invalid(&at, f, m)));
        if !f.contains('/') && !STANDARD_FINALIZERS.contains(&f) {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(&at, f, why));
        }
    }
}
