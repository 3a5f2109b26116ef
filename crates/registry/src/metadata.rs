//! Validation of `metadata`, shared by all kinds (`k8s.io/apimachinery/pkg/api/validation/objectmeta.go`).

use crate::row::Resource;
use crate::strategy::{Env, NameRule};
use kinds::MetadataCheck;
use meta::field::{BadValue, ErrorList};
use meta::{FieldError, FieldPath, GroupVersion, Object, Value, names};
use std::collections::HashSet;

/// Maximum total size of annotations in bytes.
const ANNOTATIONS_MAX: usize = 256 * 1024;
/// Maximum lengths of names in managed fields, in bytes.
const MANAGER_MAX: usize = 128;
const SUBRESOURCE_MAX: usize = 256;

/// Validates the metadata of an object with the kind's rules for names (`ValidateObjectMeta`).
pub fn validate(object: &Object, row: &Resource, errors: &mut ErrorList) {
    validate_named(object, row, row.strategy.name_rule(), || row.strategy.check_name(object), errors);
}

fn validate_named(
    object: &Object,
    row: &Resource,
    prefixes: NameRule,
    check: impl Fn() -> Vec<String>,
    errors: &mut ErrorList,
) {
    let path = FieldPath::new("metadata");
    let generate = object.generate_name();
    if !generate.is_empty() {
        for m in prefixes.check_prefix(generate) {
            errors.push(FieldError::invalid(&path.child("generateName"), generate, m));
        }
    }
    if object.name().is_empty() {
        errors.push(FieldError::required(&path.child("name"), "name or generateName is required"));
    } else {
        let why = check().into_iter();
        errors.extend(why.map(|m| FieldError::invalid(&path.child("name"), object.name(), m)));
    }
    let namespace = path.child("namespace");
    if row.kind.namespaced {
        if object.namespace().is_empty() {
            errors.push(FieldError::required(&namespace, ""));
        } else {
            for m in names::dns_label(object.namespace()) {
                errors.push(FieldError::invalid(&namespace, object.namespace(), m));
            }
        }
    } else if !object.namespace().is_empty() {
        errors.push(FieldError::forbidden(&namespace, "not allowed on this type"));
    }
    let labels = object.at(&["metadata", "labels"]).filter(|_| !row.strategy.has_derived_labels(object));
    common(object, labels, &path, errors);
}

/// Checks that the name is one segment of a path, whatever the rule of the kind.
pub fn validate_segments(object: &Object, errors: &mut ErrorList) {
    let at = FieldPath::new("metadata");
    let (generate, name) = (object.generate_name(), object.name());
    let of_prefix = NameRule::PathSegment.check_prefix(generate).into_iter().filter(|_| !generate.is_empty());
    errors.extend(of_prefix.map(|m| FieldError::invalid(&at.child("generateName"), generate, m)));
    let of_name = NameRule::PathSegment.check(name).into_iter();
    errors.extend(of_name.map(|m| FieldError::invalid(&at.child("name"), name, m)));
}

/// Validates the metadata of an embedded object, which may be unnamed and of any kind.
pub fn embedded(object: &Object, path: &FieldPath, errors: &mut ErrorList) {
    let generate = object.generate_name();
    if !generate.is_empty() {
        for m in NameRule::PathSegment.check_prefix(generate) {
            errors.push(FieldError::invalid(&path.child("generateName"), generate, m));
        }
    }
    if !object.name().is_empty() {
        let why = NameRule::PathSegment.check(object.name()).into_iter();
        errors.extend(why.map(|m| FieldError::invalid(&path.child("name"), object.name(), m)));
    }
    if !object.namespace().is_empty() {
        for m in names::dns_label(object.namespace()) {
            errors.push(FieldError::invalid(&path.child("namespace"), object.namespace(), m));
        }
    }
    common(object, object.at(&["metadata", "labels"]), path, errors);
}

fn common(object: &Object, labels: Option<&Value>, path: &FieldPath, errors: &mut ErrorList) {
    if object.generation() < 0 {
        errors.push(FieldError::invalid(&path.child("generation"), object.generation(), NOT_NEGATIVE));
    }
    self::labels(labels, &path.child("labels"), errors);
    annotations(object.at(&["metadata", "annotations"]), &path.child("annotations"), errors);
    owner_references(object.at(&["metadata", "ownerReferences"]), &path.child("ownerReferences"), errors);
    finalizers(object, &path.child("finalizers"), errors);
    managed_fields(object, &path.child("managedFields"), errors);
}

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

pub fn labels(v: Option<&Value>, path: &FieldPath, errors: &mut ErrorList) {
    for (k, v) in v.and_then(Value::as_object).into_iter().flatten() {
        for m in names::qualified_name(k) {
            errors.push(FieldError::invalid(path, k.as_str(), m));
        }
        let v = v.as_str().unwrap_or_default();
        for m in names::label_value(v) {
            errors.push(FieldError::invalid(path, v, m));
        }
    }
}

pub fn annotations(v: Option<&Value>, path: &FieldPath, errors: &mut ErrorList) {
    let mut total = 0;
    for (k, v) in v.and_then(Value::as_object).into_iter().flatten() {
        // Upstream allows upper case in the prefix of an annotation key.
        for m in names::qualified_name(&k.to_lowercase()) {
            errors.push(FieldError::invalid(path, k.as_str(), m));
        }
        total += k.len() + v.as_str().unwrap_or_default().len();
    }
    if total > ANNOTATIONS_MAX {
        errors.push(FieldError::too_long(path, ANNOTATIONS_MAX));
    }
}

/// Validates owner references. As upstream, errors have no index; only the value identifies the reference.
fn owner_references(v: Option<&Value>, path: &FieldPath, errors: &mut ErrorList) {
    let mut controller: Option<String> = None;
    // Each such error prints all references; the budget bounds the size of the response.
    let (mut shown, mut budget) = (String::new(), meta::status::MAX_REPORTED_BYTES);
    for o in v.and_then(Value::as_array).into_iter().flatten() {
        let text = |k: &str| o[k].as_str().unwrap_or_default();
        let version = GroupVersion::parse(text("apiVersion"));
        if version.as_ref().is_none_or(|v| v.version.is_empty()) {
            errors.push(FieldError::invalid(
                &path.child("apiVersion"),
                text("apiVersion"),
                "version must not be empty",
            ));
        }
        for field in ["kind", "name", "uid"].into_iter().filter(|f| text(f).is_empty()) {
            errors.push(FieldError::invalid(&path.child(field), "", "must not be empty"));
        }
        if version.is_some_and(|v| v.group.is_empty() && v.version == "v1") && text("kind") == "Event" {
            let why = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(path, BadValue::formatted(&as_written(o, path)), why));
        }
        if o["controller"] == true {
            let this = format!("{}/{}", text("kind"), text("name"));
            let Some(first) = &controller else {
                controller = Some(this);
                continue;
            };
            let why = format!(
                "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
            );
            if shown.is_empty() {
                shown = all_as_written(v, path);
            }
            if budget > 0 {
                budget = budget.saturating_sub(shown.len());
                errors.push(FieldError::invalid(path, BadValue::formatted(&shown), &why));
            }
        }
    }
}

/// Removes owner references that are equal to an earlier one, and warns of them
/// (`dedupOwnerReferencesAndAddWarning` of `k8s.io/apiserver/pkg/endpoints/handlers/rest.go`).
pub fn remove_duplicate_owners(object: &mut Object, seen: OwnersSeen, env: Env<'_>) {
    let Some(Value::Array(references)) = object.at(&["metadata", "ownerReferences"]) else { return };
    let mut kept: Vec<&Value> = Vec::with_capacity(references.len());
    let mut uids = HashSet::new();
    let mut duplicates = Vec::new();
    for r in references {
        let uid = r["uid"].as_str().unwrap_or_default();
        if uids.insert(uid) || !kept.contains(&r) {
            kept.push(r);
        } else {
            duplicates.push(uid);
        }
    }
    if duplicates.is_empty() {
        return;
    }
    let when = match seen {
        OwnersSeen::InRequest => "",
        OwnersSeen::AfterAdmission => " after mutating admission happens",
    };
    env.warn(format!(
        ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        duplicates.join(", ")
    ));
    let kept: Vec<Value> = kept.into_iter().cloned().collect();
    object.set(&["metadata", "ownerReferences"], kept);
}

/// When duplicates among owner references are found.
#[derive(Clone, Copy)]
pub enum OwnersSeen {
    InRequest,
    AfterAdmission,
}

/// Formats a reference with the fields in the order of the Go type.
fn all_as_written(v: Option<&Value>, path: &FieldPath) -> String {
    let each = v.and_then(Value::as_array).into_iter().flatten().map(|o| as_written(o, path));
    format!("[{}]", each.collect::<Vec<_>>().join(","))
}

fn as_written(reference: &Value, path: &FieldPath) -> String {
    match kinds::catalog().definitions.get("io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference") {
        Some(schema) => schema::go_format::show(reference, schema, path),
        None => reference.to_string(),
    }
}

fn finalizers(object: &Object, path: &FieldPath, errors: &mut ErrorList) {
    let mut orphan = None;
    let mut foreground = None;
    for f in object.finalizers() {
        for m in names::qualified_name(f) {
            errors.push(FieldError::invalid(path, f, m));
        }
        match f {
            ORPHAN => orphan = Some(f),
            FOREGROUND => foreground = Some(f),
            _ => {}
        }
    }
    if orphan.is_some() && foreground.is_some() {
        let all: Vec<&str> = object.finalizers().collect();
        let why = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(path, Value::from(all), why));
    }
}

pub const ORPHAN: &str = "orphan";
pub const FOREGROUND: &str = "foregroundDeletion";

fn managed_fields(object: &Object, path: &FieldPath, errors: &mut ErrorList) {
    let entries = object.at(&["metadata", "managedFields"]).and_then(Value::as_array);
    for (i, e) in entries.into_iter().flatten().enumerate() {
        let at = path.index(i);
        let operation = e["operation"].as_str().unwrap_or_default();
        if !matches!(operation, "Apply" | "Update") {
            errors.push(FieldError::invalid(&at.child("operation"), operation, "must be `Apply` or `Update`"));
        }
        let fields_type = e["fieldsType"].as_str().unwrap_or_default();
        if !fields_type.is_empty() && fields_type != "FieldsV1" {
            errors.push(FieldError::invalid(&at.child("fieldsType"), fields_type, "must be `FieldsV1`"));
        }
        let manager = e["manager"].as_str().unwrap_or_default();
        if manager.len() > MANAGER_MAX {
            errors.push(FieldError::too_long(&at.child("manager"), MANAGER_MAX));
        }
        if e["subresource"].as_str().unwrap_or_default().len() > SUBRESOURCE_MAX {
            errors.push(FieldError::too_long(&at.child("subresource"), SUBRESOURCE_MAX));
        }
    }
}

/// Finalizers without a domain.
pub const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", ORPHAN, FOREGROUND];

/// Finalizers of built-in kinds must have a domain or be standard (`pkg/apis/core/validation`, `ValidateObjectMeta`).
pub fn validate_finalizers(object: &Object, row: &Resource, errors: &mut ErrorList) {
    if row.kind.any_finalizer {
        return;
    }
    let path = FieldPath::new("metadata.finalizers");
    let all = object.finalizers().enumerate();
    for (i, f) in all.filter(|(_, f)| !f.contains('/') && !STANDARD_FINALIZERS.contains(f)) {
        let why = "name is neither a standard finalizer name nor is it fully qualified";
        errors.push(FieldError::invalid(&path.index(i), f, why));
    }
}

/// Validates the metadata of an update, also through a subresource. Every update is checked as an object and as a change, with any name;
/// the kind's own validation repeats some of it, and so the errors (`rest.BeforeUpdate`).
pub fn validate_update(new: &Object, old: &Object, row: &Resource, subresource: &str, errors: &mut ErrorList) {
    validate_named(new, row, NameRule::PathSegment, || NameRule::PathSegment.check(new.name()), errors);
    validate_change(new, old, row, errors);
    for check in row.kind.metadata_checks(subresource) {
        match check {
            MetadataCheck::Object => validate(new, row, errors),
            MetadataCheck::Change => validate_change(new, old, row, errors),
        }
        validate_finalizers(new, row, errors);
    }
}

/// Validates what may not change in metadata, and maps and lists that may (`ValidateObjectMetaUpdate`).
fn validate_change(new: &Object, old: &Object, row: &Resource, errors: &mut ErrorList) {
    let path = FieldPath::new("metadata");
    if old.is_deleting() {
        let before: HashSet<&str> = old.finalizers().collect();
        let added: Vec<String> = new.finalizers().filter(|f| !before.contains(f)).map(|f| format!("{f:?}")).collect();
        if !added.is_empty() {
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            errors.push(FieldError::forbidden(&path.child("finalizers"), &why));
        }
    }
    if new.generation() < old.generation() {
        errors.push(FieldError::invalid(&path.child("generation"), new.generation(), "must not be decremented"));
    }
    let mut immutable = |field: &str| {
        let (n, o) = (new.at(&["metadata", field]), old.at(&["metadata", field]));
        if n != o {
            let value = n.cloned().unwrap_or_default();
            errors.push(FieldError::invalid(&path.child(field), value, "field is immutable"));
        }
    };
    for f in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        immutable(f);
    }
    let labels = new.at(&["metadata", "labels"]).filter(|_| !row.strategy.has_derived_labels(new));
    self::labels(labels, &path.child("labels"), errors);
    annotations(new.at(&["metadata", "annotations"]), &path.child("annotations"), errors);
    owner_references(new.at(&["metadata", "ownerReferences"]), &path.child("ownerReferences"), errors);
    managed_fields(new, &path.child("managedFields"), errors);
}
