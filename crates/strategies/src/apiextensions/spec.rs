//! Validation of the spec of a definition (`k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation`).
//!
//! Values that all versions share are reported once, at the paths of the internal type: `spec.validation` for the
//! schema, `spec.subresources`, `spec.additionalPrinterColumns`, `spec.selectableFields`.

mod approval;
mod conversion;

use super::{defaults, field_path, is_true, json_schema, rules, strings, structural, versions};
use crate::read::shown_list;
use meta::field::{BadValue, ErrorList};
use meta::{FieldError, FieldPath, Object, Value, names};
use std::collections::{HashMap, HashSet};

/// Maximum number of selectable fields of a version.
const MAX_SELECTABLE: usize = 8;

/// Validates a definition and, on update, its changes.
pub fn validate(o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
    let path = FieldPath::new("spec");
    let at = |k: &str| o.str_at(&["spec", k]).unwrap_or_default();
    let name = |k: &str| o.str_at(&["spec", "names", k]).unwrap_or_default();
    let (group, scope) = (at("group"), at("scope"));
    if old.is_none() && !o.name().is_empty() && o.name() != format!("{}.{group}", name("plural")) {
        let why = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid(&FieldPath::new("metadata.name"), o.name(), why));
    }
    let bad_group = names::dns_subdomain(group);
    if group.is_empty() {
        errors.push(FieldError::required(&path.child("group"), ""));
    } else if !bad_group.is_empty() {
        errors.push(FieldError::invalid(&path.child("group"), group, bad_group.join(",")));
    } else if !group.contains('.') {
        errors.push(FieldError::invalid(&path.child("group"), group, "should be a domain with at least one dot"));
    }
    supported(scope, &["Cluster", "Namespaced"], &path.child("scope"), errors);
    all_versions(o, old, &path, errors);
    let names = path.child("names");
    for k in ["plural", "singular", "kind", "listKind"] {
        if name(k).is_empty() {
            errors.push(FieldError::required(&names.child(k), ""));
        }
    }
    check_names(o.at(&["spec", "names"]), &names, errors);
    let authorities = match old {
        Some(old) if is_true(old, "Established") => conversion::authorities(old),
        _ => conversion::Authorities::Any,
    };
    conversion::validate(o.at(&["spec", "conversion"]), authorities, &path.child("conversion"), errors);
    if let Some(old) = old {
        let same = |k: &[&str], errors: &mut ErrorList| {
            let (n, o) = (o.str_at(k).unwrap_or_default(), old.str_at(k).unwrap_or_default());
            if n != o {
                errors.push(FieldError::invalid(&FieldPath::new(k.join(".")), n, "field is immutable"));
            }
        };
        if is_true(old, "Established") {
            same(&["spec", "scope"], errors);
            same(&["spec", "names", "kind"], errors);
        }
        same(&["spec", "group"], errors);
        same(&["spec", "names", "plural"], errors);
    }
    status(o, errors);
    stored_versions(o, errors);
    approval::validate(o, old, group, errors);
    let preserves = o.at(&["spec", "preserveUnknownFields"]) == Some(&Value::Bool(true));
    if preserves && old.is_none_or(|old| old.at(&["spec", "preserveUnknownFields"]) != Some(&Value::Bool(true))) {
        let why =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid(&path.child("preserveUnknownFields"), true, why));
    }
}

pub(super) fn supported(v: &str, allowed: &[&str], path: &FieldPath, errors: &mut ErrorList) {
    if v.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !allowed.contains(&v) {
        errors.push(FieldError::not_supported(path, v, allowed));
    }
}

/// Returns the value that all versions share; null if none has it, `None` if they differ.
fn shared<'a>(all: &'a [Value], key: &str) -> Option<&'a Value> {
    let first = &all.first()?[key];
    all.iter().all(|v| v[key] == *first).then_some(first)
}

fn all_versions(o: &Object, old: Option<&Object>, path: &FieldPath, errors: &mut ErrorList) {
    super::patterns::begin();
    let all = versions(o);
    let before: HashMap<&Value, Vec<&Value>> =
        old.map(versions).into_iter().flatten().fold(HashMap::new(), |mut before, w| {
            before.entry(&w["name"]).or_insert_with(Vec::new).push(&w["schema"]);
            before
        });
    let unchanged = |v: &Value| before.get(&v["name"]).is_some_and(|all| all.contains(&&v["schema"]));
    let shared = {
        const KEYS: [&str; 4] = ["schema", "subresources", "additionalPrinterColumns", "selectableFields"];
        let found = KEYS.map(|k| (k, shared(all, k)));
        move |k: &str| match found.iter().find(|(known, _)| *known == k) {
            Some((_, v)) => *v,
            None => shared(all, k),
        }
    };
    let any_status = all.iter().any(|v| !v["subresources"]["status"].is_null());
    let list = path.child("versions");
    for (i, v) in all.iter().enumerate() {
        if v["schema"]["openAPIV3Schema"].is_null() {
            errors.push(FieldError::required(&list.index(i).child("schema").child("openAPIV3Schema"), ""));
        }
    }
    let name = |v: &Value| v["name"].as_str().unwrap_or_default().to_owned();
    for (i, v) in all.iter().enumerate() {
        let at = list.index(i);
        let bad = names::dns_1035_label(&name(v));
        if !bad.is_empty() {
            errors.push(FieldError::invalid(&at.child("name"), name(v), bad.join(",")));
        }
        deprecation(v, &at, errors);
        parts(
            any_status,
            |k| if shared(k).is_some() { &Value::Null } else { &v[k] },
            &at,
            "schema",
            v,
            unchanged(v),
            errors,
        );
    }
    let mut known = HashSet::new();
    let unique = all.iter().all(|v| known.insert(&v["name"]));
    if !unique {
        errors.push(FieldError::invalid(&list, shown_versions(all, &list), "must contain unique version names"));
    }
    if all.iter().filter(|v| v["storage"] == true).count() != 1 {
        let why = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid(&list, shown_versions(all, &list), why));
    }
    if let Some(first) = all.first() {
        let bad = names::dns_1035_label(&name(first));
        if !name(first).is_empty() && !bad.is_empty() {
            errors.push(FieldError::invalid(&path.child("version"), name(first), bad.join(",")));
        }
        parts(
            any_status,
            |k| shared(k).unwrap_or(&Value::Null),
            path,
            "validation",
            &Value::Null,
            unchanged(first),
            errors,
        );
    }
}

/// Formats versions as the internal type: without shared values.
fn shown_versions(all: &[Value], path: &FieldPath) -> BadValue {
    if all.is_empty() {
        return BadValue::Null;
    }
    let mut all = all.to_vec();
    for key in ["schema", "subresources", "additionalPrinterColumns", "selectableFields"] {
        if shared(&all, key).is_some() {
            all.iter_mut().filter_map(Value::as_object_mut).for_each(|v| drop(v.remove(key)));
        }
    }
    shown_list(&all, "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionVersion", path)
}

/// Validates schema, subresources, columns and selectable fields of a version, or the shared ones. `unchanged` is
/// whether the old definition has the same schema.
fn parts<'a>(
    any_status: bool,
    get: impl Fn(&str) -> &'a Value,
    path: &FieldPath,
    schema_name: &str,
    version: &'a Value,
    unchanged: bool,
    errors: &mut ErrorList,
) {
    let has_status = |v: &Value| !v["subresources"]["status"].is_null();
    let status = if version.is_null() { any_status } else { has_status(version) };
    let schema = &get("schema")["openAPIV3Schema"];
    if schema.is_object() {
        root_schema(schema, status, unchanged, &path.child(schema_name).child("openAPIV3Schema"), errors);
    }
    scale(&get("subresources")["scale"], &path.child("subresources").child("scale"), errors);
    for (i, c) in get("additionalPrinterColumns").as_array().into_iter().flatten().enumerate() {
        column(c, &path.child("additionalPrinterColumns").index(i), errors);
    }
    // Shared selectable fields refer to each version's own schema.
    let fields = get("selectableFields").as_array().map_or(&[][..], Vec::as_slice);
    if !fields.is_empty() {
        let at = path.child("selectableFields");
        let schema = if schema.is_object() { schema } else { &version["schema"]["openAPIV3Schema"] };
        match schema.is_object() {
            true => selectable(fields, schema, &at, errors),
            false if schema_name == "schema" => {
                let why = "may only be set when `version.schema.openAPIV3Schema` is not included";
                errors.push(FieldError::invalid(&at, "", why));
            }
            false => errors.push(FieldError::invalid(&at, "", "may only be set when validations.schema is included")),
        }
    }
}

fn deprecation(v: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let at = path.child("deprecationWarning");
    let Some(text) = v["deprecationWarning"].as_str() else { return };
    let mut wrong = |why: &str| errors.push(FieldError::invalid(&at, text, why));
    if v["deprecated"] != true {
        return wrong("can only be set for deprecated versions");
    }
    if text.len() > 256 {
        wrong("must be <= 256 characters long");
    }
    if text.is_empty() {
        wrong("must not be an empty string");
    }
    if let Some((i, _)) = text.char_indices().find(|(_, c)| c.is_control()) {
        wrong(&format!("must only contain printable UTF-8 characters; non-printable character found at index {i}"));
    }
}

/// Fields allowed at the root of a schema whose `status` subresource is validated on its own.
const WITH_STATUS: [&str; 22] = [
    "description",
    "type",
    "format",
    "title",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "required",
    "items",
    "properties",
    "externalDocs",
    "example",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];

/// Fields that are maps.
const MAPS: [&str; 4] = ["properties", "patternProperties", "definitions", "dependencies"];

fn root_schema(s: &Value, status: bool, unchanged: bool, path: &FieldPath, errors: &mut ErrorList) {
    let before = errors.len();
    if status {
        // A Go pointer is set even if its target is empty.
        let is_set = |k: &str, v: &Value| match v {
            Value::Null | Value::Bool(false) => false,
            Value::String(s) => !s.is_empty(),
            Value::Array(a) => !a.is_empty(),
            Value::Object(m) => !m.is_empty() || !MAPS.contains(&k),
            _ => true,
        };
        let forbidden = |(k, v): (&String, &Value)| is_set(k, v) && !WITH_STATUS.contains(&k.as_str());
        let empty = ["definitions", "dependencies", "patternProperties", "enum", "allOf", "oneOf", "anyOf"];
        let has_empty = || empty.iter().any(|k| !s[*k].is_null() || json_schema::is_sent_empty(s, k, path));
        if s["type"] != "object" && is_set("type", &s["type"]) {
            let why =
                "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
            errors.push(FieldError::invalid(&path.child("type"), &s["type"], why));
        } else if s.as_object().into_iter().flatten().any(forbidden) || has_empty() {
            let why = format!(
                "only {WITH_STATUS:?} fields are allowed at the root of the schema if the status subresource is enabled"
            );
            errors.push(FieldError::invalid(path, s, why));
        }
    }
    if s["nullable"] == true {
        errors.push(FieldError::forbidden(&path.child("nullable"), "nullable cannot be true at the root"));
    }
    // Upstream does not check the structure of a schema with such a field, which is reported if nothing else is.
    let unsupported = structural::unsupported(s);
    let unsound = errors.len();
    if unsupported.is_none() {
        structural::validate(s, path, errors);
        if errors.len() == unsound {
            defaults::validate(s, path, errors);
        }
    }
    let position = json_schema::Position { root: true, no_defaults: None, in_meta: false };
    json_schema::validate(s, path, position, errors);
    if let Some(field) = unsupported.filter(|_| errors.len() == before) {
        errors.push(FieldError::invalid(path, "", format!("OpenAPIV3Schema '{field}' is not supported")));
    }
    if errors.len() == before {
        rules::compile(s, path, unchanged, errors);
    }
}

fn scale(s: &Value, path: &FieldPath, errors: &mut ErrorList) {
    if !s.is_object() {
        return;
    }
    for (k, below, required) in [
        ("specReplicasPath", &[".spec."][..], true),
        ("statusReplicasPath", &[".status."][..], true),
        ("labelSelectorPath", &[".spec.", ".status."][..], false),
    ] {
        let (at, v) = (path.child(k), s[k].as_str().unwrap_or_default());
        if v.is_empty() {
            if required {
                errors.push(FieldError::required(&at, ""));
            }
        } else if !simple_path(v, &at, errors) || below.iter().any(|p| v.starts_with(p)) {
        } else if below.len() == 1 {
            let why = format!("should be a json path under {}", below[0].trim_end_matches('.'));
            errors.push(FieldError::invalid(&at, v, why));
        } else {
            errors.push(FieldError::invalid(&at, v, "should be a json path under either .spec or .status"));
        }
    }
}

fn simple_path(v: &str, path: &FieldPath, errors: &mut ErrorList) -> bool {
    let good = v.starts_with('.');
    if !good {
        errors.push(FieldError::invalid(path, v, "must be a simple json path starting with ."));
    }
    good
}

fn column(c: &Value, path: &FieldPath, errors: &mut ErrorList) {
    const TYPES: &str = "boolean,date,integer,number,string";
    const FORMATS: &str = "byte,date,date-time,double,float,int32,int64,password";
    let text = |k: &str| c[k].as_str().unwrap_or_default();
    if text("name").is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
    let (ty, format, json_path) = (text("type"), text("format"), text("jsonPath"));
    let why = format!("must be one of {TYPES}");
    if ty.is_empty() {
        errors.push(FieldError::required(&path.child("type"), &why));
    } else if !TYPES.split(',').any(|t| t == ty) {
        errors.push(FieldError::invalid(&path.child("type"), ty, why));
    }
    if !format.is_empty() && !FORMATS.split(',').any(|f| f == format) {
        errors.push(FieldError::invalid(&path.child("format"), format, format!("must be one of {FORMATS}")));
    }
    let at = path.child("JSONPath");
    if json_path.is_empty() {
        errors.push(FieldError::required(&at, ""));
    } else {
        simple_path(json_path, &at, errors);
    }
}

fn selectable(fields: &[Value], schema: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let mut seen: HashSet<Vec<String>> = HashSet::new();
    for (i, f) in fields.iter().enumerate() {
        let at = path.index(i).child("jsonPath");
        let text = f["jsonPath"].as_str().unwrap_or_default();
        if text.is_empty() {
            errors.push(FieldError::required(&at, ""));
            continue;
        }
        let (names, found) = match field_path::find(text, schema) {
            Ok(found) => found,
            Err(e) => {
                errors.push(FieldError::invalid(&at, text, format!("is an invalid path: {e}")));
                continue;
            }
        };
        if names.first().is_some_and(|n| n == "metadata") {
            errors.push(FieldError::invalid(&at, text, "must not point to fields in metadata"));
        }
        if !matches!(found["type"].as_str(), Some("string" | "boolean" | "integer")) {
            let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(FieldError::invalid(&at, text, why));
        }
        if seen.contains(&names) {
            errors.push(FieldError::duplicate(&at, text));
        } else {
            seen.insert(names);
        }
    }
    if seen.len() > MAX_SELECTABLE {
        errors.push(FieldError::too_many(path, seen.len(), MAX_SELECTABLE));
    }
}

fn check_names(v: Option<&Value>, path: &FieldPath, errors: &mut ErrorList) {
    let Some(v) = v else { return };
    let text = |k: &str| v[k].as_str().unwrap_or_default();
    for k in ["plural", "singular"] {
        let bad = names::dns_1035_label(text(k));
        if !text(k).is_empty() && !bad.is_empty() {
            errors.push(FieldError::invalid(&path.child(k), text(k), bad.join(",")));
        }
    }
    for k in ["kind", "listKind"] {
        let bad = names::dns_1035_label(&text(k).to_lowercase());
        if !text(k).is_empty() && !bad.is_empty() {
            let why = format!("may have mixed case, but should otherwise match: {}", bad.join(","));
            errors.push(FieldError::invalid(&path.child(k), text(k), why));
        }
    }
    if !text("kind").is_empty() && text("kind") == text("listKind") {
        let why = "kind and listKind may not be the same";
        errors.push(FieldError::invalid(&path.child("listKind"), text("listKind"), why));
    }
    for k in ["shortNames", "categories"] {
        for (i, s) in strings(v.get(k)).iter().enumerate() {
            let bad = names::dns_1035_label(s);
            if !bad.is_empty() {
                errors.push(FieldError::invalid(&path.child(k).index(i), s.as_str(), bad.join(",")));
            }
        }
    }
}

/// Validates the status.
pub fn status(o: &Object, errors: &mut ErrorList) {
    check_names(o.at(&["status", "acceptedNames"]), &FieldPath::new("status.acceptedNames"), errors);
}

fn stored_versions(o: &Object, errors: &mut ErrorList) {
    let path = FieldPath::new("status.storedVersions");
    let stored = strings(o.at(&["status", "storedVersions"]));
    if stored.is_empty() {
        errors.push(FieldError::invalid(&path, Value::Null, "must have at least one stored version"));
        return;
    }
    let mut left: Vec<&String> = stored.iter().collect();
    for v in versions(o) {
        let name = v["name"].as_str().unwrap_or_default();
        let known = left.iter().position(|s| *s == name);
        match known {
            Some(i) => {
                left.remove(i);
            }
            None if v["storage"] == true => {
                let why = format!("must have the storage version {name}");
                errors.push(FieldError::invalid(&path, &stored, why));
            }
            None => {}
        }
    }
    for v in left {
        let i = stored.iter().position(|s| s == v).unwrap_or(0);
        let why = format!(
            "missing from spec.versions; {v} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {v} and removes {v} from status.storedVersions"
        );
        errors.push(FieldError::invalid(&path.index(i), v.as_str(), why));
    }
}

/// Returns warnings for fields without effect, or with less than expected.
pub fn warnings(o: &Object) -> Vec<String> {
    let mut out = Vec::new();
    for v in versions(o) {
        json_schema::any(&v["schema"]["openAPIV3Schema"], &mut |s| {
            if let Some(f) = s["format"].as_str().filter(|f| !f.is_empty())
                // Other types have no formats.
                && (!schema::structural::is_known_format(&s["type"], f)
                    || !matches!(s["type"].as_str(), None | Some("" | "string" | "integer" | "number")))
            {
                out.push(format!("unrecognized format {f:?}"));
            }
            if let (Some("set"), Some(t @ ("object" | "array"))) =
                (s["x-kubernetes-list-type"].as_str(), s["items"]["type"].as_str())
            {
                out.push(format!(
                    "x-kubernetes-list-type: set for items of type {t:?} is not supported by server-side apply or CEL validation rules"
                ));
            }
            false
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::custom_resource_definition::CustomResourceDefinition;
    use crate::testing::{check_create, check_update, field};
    use meta::{Object, Value};
    use serde_json::json;

    fn definition() -> Value {
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "things.a.example"}, "spec": {"group": "a.example", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}}}}]}})
    }

    /// Validates a definition whose schema has `value` at `pointer`; errors are relative to the schema.
    fn check_schema(pointer: &str, value: Value, expected: &[&str]) {
        let mut definition = definition();
        *field(&mut definition, &format!("/spec/versions/0/schema/openAPIV3Schema{pointer}")) = value;
        let expected: Vec<String> = expected.iter().map(|e| format!("spec.validation.openAPIV3Schema{e}")).collect();
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        check_create(&CustomResourceDefinition, &definition, &[("", Value::Null, &expected)]);
    }

    #[test]
    fn formats_without_a_meaning_are_warned_of() {
        for (kind, format, expected) in [
            ("string", "date-time", ""),
            ("string", "cidr", ""),
            ("string", "nonsense", "unrecognized format \"nonsense\""),
            ("integer", "int32", ""),
            ("integer", "cidr", "unrecognized format \"cidr\""),
            ("array", "cidr", "unrecognized format \"cidr\""),
            ("boolean", "uuid", "unrecognized format \"uuid\""),
        ] {
            let mut definition = definition();
            let a = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/a";
            *field(&mut definition, a) = json!({"type": kind, "format": format});
            let found = super::warnings(&Object::from_value(definition).unwrap());
            assert_eq!(found.join(" "), expected, "{kind} {format}");
        }
    }

    #[test]
    fn validates_names_scope_and_versions() {
        let name = "metadata.name: Invalid value: \"other.a.example\": must be spec.names.plural+\".\"+spec.group";
        let storage = "spec.versions: Invalid value: …: must have exactly one version marked as storage version";
        let twice = json!([definition()["spec"]["versions"][0], definition()["spec"]["versions"][0]]);
        check_create(
            &CustomResourceDefinition,
            &definition(),
            &[
                ("", Value::Null, &[]),
                ("/metadata/name", json!("other.a.example"), &[name]),
                (
                    "/spec/scope",
                    json!("Other"),
                    &["spec.scope: Unsupported value: \"Other\": supported values: \"Cluster\", \"Namespaced\""],
                ),
                ("/spec/names/kind", json!("thing"), &[]),
                (
                    "/spec/names/kind",
                    json!("A b"),
                    &["spec.names.kind: Invalid value: \"A b\": may have mixed case, but should otherwise match: …"],
                ),
                ("/spec/versions/0/storage", json!(false), &[storage, "status.storedVersions: Invalid value: …"]),
                (
                    "/spec/versions/0/name",
                    json!("V1"),
                    &["spec.versions[0].name: Invalid value: \"V1\": …", "spec.version: Invalid value: \"V1\": …"],
                ),
                (
                    "/spec/versions",
                    twice,
                    &[
                        "spec.versions: Invalid value: …: must contain unique version names",
                        storage,
                        "status.storedVersions: Invalid value: [\"v1\"]: must have the storage version v1",
                    ],
                ),
                (
                    "/spec/preserveUnknownFields",
                    json!(true),
                    &[
                        "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
                    ],
                ),
            ],
        );
    }

    #[test]
    fn validates_structural_schemas() {
        let a = ".properties[spec].properties[a]";
        let field = "/properties/spec/properties/a";
        check_schema("/type", json!("string"), &[".type: Invalid value: \"string\": must be object at the root"]);
        check_schema(
            field,
            json!({}),
            &[&format!("{a}.type: Required value: must not be empty for specified object fields")],
        );
        check_schema(field, json!({"type": "array"}), &[&format!("{a}.items: Required value: must be specified")]);
        check_schema(field, json!({"x-kubernetes-int-or-string": true}), &[]);
        check_schema(
            field,
            json!({"type": "string", "anyOf": [{"type": "string"}]}),
            &[&format!("{a}.anyOf[0].type: Forbidden: must be empty to be structural")],
        );
        check_schema(
            "/allOf",
            json!([{"required": ["a"], "properties": {"b": {}}}]),
            &[
                ".properties[b]: Required value: because it is defined in spec.validation.openAPIV3Schema.allOf[0].properties[b]",
            ],
        );
        check_schema(
            field,
            json!({"type": "string", "pattern": "("}),
            &[&format!("{a}.pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: …")],
        );
        check_schema(
            "/properties/metadata",
            json!({"type": "object", "properties": {"labels": {"type": "object"}}}),
            &[
                ".properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
            ],
        );
    }

    /// The structure of a schema with such a field is not checked.
    #[test]
    fn fields_that_no_structural_schema_has() {
        let field = "/properties/spec/properties/a";
        let at = ".properties[spec].properties[a]";
        let schema = ": Invalid value: \"\": OpenAPIV3Schema 'schema' is not supported";
        check_schema(field, json!({"type": "string", "$schema": "x"}), &[schema]);
        check_schema(field, json!({"not": {"$schema": "x"}}), &[schema]);
        check_schema(field, json!({"$ref": "x"}), &[&format!("{at}.$ref: Forbidden: $ref is not supported")]);
    }

    #[test]
    fn validates_defaults_and_list_types() {
        let a = ".properties[spec].properties[a]";
        let field = "/properties/spec/properties/a";
        check_schema(field, json!({"type": "integer", "default": 1}), &[]);
        check_schema(
            field,
            json!({"type": "integer", "default": "b"}),
            &[&format!("{a}.default: Invalid value: \"string\":  in body must be of type integer: \"string\"")],
        );
        check_schema(
            field,
            json!({"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}}, "x-kubernetes-list-type": "map"}),
            &[&format!(
                "{a}.x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map"
            )],
        );
        check_schema(
            field,
            json!({"type": "string", "x-kubernetes-list-type": "set"}),
            &[&format!("{a}.type: Invalid value: \"string\": must be array if x-kubernetes-list-type is specified")],
        );
    }

    #[test]
    fn validates_an_update() {
        let mut established = definition();
        established["status"] = json!({"conditions": [{"type": "Established", "status": "True"}], "storedVersions": ["v1"],
            "acceptedNames": {"kind": "Thing", "plural": "things"}});
        check_update(
            &CustomResourceDefinition,
            &established,
            &[
                ("/spec/names/shortNames", json!(["t"]), &[]),
                ("/spec/scope", json!("Cluster"), &["spec.scope: Invalid value: \"Cluster\": field is immutable"]),
                (
                    "/spec/names/kind",
                    json!("Other"),
                    &["spec.names.kind: Invalid value: \"Other\": field is immutable"],
                ),
                (
                    "/spec/versions/0/name",
                    json!("v2"),
                    &[
                        "status.storedVersions: Invalid value: [\"v1\"]: must have the storage version v2",
                        "status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions; v1 was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v1 and removes v1 from status.storedVersions",
                    ],
                ),
            ],
        );
    }
}
