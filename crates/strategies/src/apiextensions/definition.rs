//! Converts a definition to the rows of its resource, one per version.

use super::conversion::Webhook;
use super::custom::{Custom, Schemas};
use super::{embedded, rules, storage_version, strings, versions};
use kinds::{Column, Generation, Kind, Subresource};
use meta::{GroupVersion, Gvk, Object, Value};
use registry::row::storage_name;
use registry::{Backend, Resource, Scale, ScaleSelector};
use schema::{Schema, Str};
use std::sync::{Arc, OnceLock};

/// Rows of a definition.
pub struct Defined {
    /// Served versions, in no particular order.
    pub served: Vec<Resource>,
    /// The stored version, served or not, with all verbs.
    pub stored: Resource,
}

/// Returns the schema of `metadata`, which definitions omit.
pub fn metadata() -> &'static Arc<Schema> {
    static METADATA: OnceLock<Arc<Schema>> = OnceLock::new();
    METADATA.get_or_init(|| {
        let name = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
        let known = kinds::catalog().definitions.get(name).cloned();
        known.unwrap_or_else(|| Arc::new(Schema::new(schema::Type::Struct)))
    })
}

const ALL: [&str; 8] = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
/// Verbs in discovery while the definition is being deleted. Updates still work, so that finalizers can be removed.
const ENDING: [&str; 5] = ["delete", "deletecollection", "get", "list", "watch"];

/// Whether a resource is built in. Built-in and custom objects share the store's key space, so such a definition is
/// never served.
fn is_built_in(group: &str, plural: &str) -> bool {
    kinds::catalog().kinds.iter().any(|k| *k.group == *group && *k.plural == *plural)
}

/// Returns the rows for the accepted names; `None` before names are accepted. Objects stored up to revision `reshaped`
/// are pruned and defaulted on reads.
pub fn rows(o: &Object, reshaped: u64) -> Option<Defined> {
    let name = |k: &str| o.str_at(&["status", "acceptedNames", k]).unwrap_or_default();
    if name("plural").is_empty() || name("kind").is_empty() {
        return None;
    }
    if is_built_in(o.str_at(&["spec", "group"]).unwrap_or_default(), name("plural")) {
        return None;
    }
    let storage = storage_version(o)?;
    let verbs: &[&str] = if o.is_deleting() { &ENDING } else { &ALL };
    let group = o.str_at(&["spec", "group"]).unwrap_or_default();
    let schemas: Schemas = versions(o)
        .iter()
        .map(|v| {
            let version = v["name"].as_str().unwrap_or_default();
            let name = definition_name(&Gvk::new(group, version, name("kind")));
            (version.into(), Arc::new(schema::structural::root(&name, json_schema(v), metadata())))
        })
        .collect();
    let served = versions(o).iter().filter(|v| v["served"] == true);
    let served = served.map(|v| row(o, v, &schemas, &storage, verbs, reshaped)).collect();
    let stored = versions(o).iter().find(|v| v["storage"] == true)?;
    Some(Defined { served, stored: row(o, stored, &schemas, &storage, &ALL, reshaped) })
}

fn json_schema(version: &Value) -> Option<&Value> {
    Some(&version["schema"]["openAPIV3Schema"]).filter(|s| s.is_object())
}

fn row(o: &Object, v: &Value, schemas: &Schemas, storage: &str, verbs: &[&str], reshaped: u64) -> Resource {
    let text = |k: &str| o.str_at(&["status", "acceptedNames", k]).unwrap_or_default();
    let list =
        |k: &str| -> Vec<Str> { strings(o.at(&["status", "acceptedNames", k])).into_iter().map(Into::into).collect() };
    let group = o.str_at(&["spec", "group"]).unwrap_or_default();
    let version = v["name"].as_str().unwrap_or_default();
    let (plural, kind) = (text("plural"), text("kind"));
    let gvk = Gvk::new(group, version, kind);
    let schema = schemas.iter().find(|(name, _)| **name == *version).map(|(_, s)| s.clone());
    let schema = schema.unwrap_or_else(|| Arc::new(Schema::new(schema::Type::Struct)));
    let subresources = &v["subresources"];
    let status = !subresources["status"].is_null();
    let scale = scale(&subresources["scale"]);
    let sub = |name: &str, response_kind: Option<Gvk>| Subresource {
        name: name.into(),
        verbs: ["get", "patch", "update"].map(Into::into).to_vec(),
        speaks: response_kind,
    };
    let mut subs = Vec::new();
    subs.extend(status.then(|| sub("status", None)));
    subs.extend(scale.is_some().then(|| sub("scale", Some(Gvk::new("autoscaling", "v1", "Scale")))));
    let selectable = v["selectableFields"].as_array().into_iter().flatten();
    let described = Kind {
        group: group.into(),
        version: version.into(),
        kind: kind.into(),
        plural: plural.into(),
        singular: text("singular").into(),
        list: Some(text("listKind")).filter(|l| *l != format!("{kind}List")).map(Into::into),
        namespaced: o.str_at(&["spec", "scope"]) == Some("Namespaced"),
        generation: Some(Generation::Content),
        stored: GroupVersion::new(group, storage),
        expires: false,
        orphans: false,
        needs_revision: true,
        put_creates: false,
        metadata_checks: Vec::new(),
        any_finalizer: true,
        answers_deleted: false,
        warning: deprecation(v, &gvk).map(Into::into),
        verbs: verbs.iter().map(|v| (*v).into()).collect(),
        short_names: list("shortNames"),
        categories: list("categories"),
        subresources: subs,
        selectable: selectable.filter_map(|f| Some(f["jsonPath"].as_str()?.trim_start_matches('.').into())).collect(),
        stored_fields: Vec::new(),
        columns: columns(&v["additionalPrinterColumns"]),
        schema: schema.clone(),
    };
    let strategy = Custom {
        definition: o.name().into(),
        gvk,
        embeds: embedded::any(&schema),
        work: schema::structural::work_per_byte(&schema),
        pattern_parts: schema::structural::pattern_parts(&schema),
        schema,
        versions: schemas.clone(),
        status,
        scale,
        webhook: Webhook::read(o),
        rules: json_schema(v).and_then(rules::rules),
        ending: o.is_deleting(),
    };
    Resource {
        kind: described,
        backend: Backend::Stored {
            resource: storage_name(group, plural).into(),
            version: Gvk::new(group, storage, kind),
        },
        strategy: Arc::new(strategy),
        bare_items: false,
        lifetime: None,
        reshaped,
        empty: OnceLock::new(),
        converted: Default::default(),
    }
}

/// Returns the OpenAPI definition name: reversed group, version and kind.
fn definition_name(gvk: &Gvk) -> String {
    let group: Vec<&str> = gvk.group.split('.').rev().collect();
    format!("{}.{}.{}", group.join("."), gvk.version, gvk.kind)
}

fn deprecation(v: &Value, gvk: &Gvk) -> Option<String> {
    (v["deprecated"] == true).then(|| match v["deprecationWarning"].as_str() {
        Some(w) => w.to_owned(),
        None => format!("{} {} is deprecated", gvk.api_version(), gvk.kind),
    })
}

fn scale(v: &Value) -> Option<Scale> {
    let path = |k: &str| -> Option<Vec<String>> {
        let text = v[k].as_str().filter(|t| !t.is_empty())?;
        Some(text.trim_start_matches('.').split('.').map(str::to_owned).collect())
    };
    Some(Scale {
        spec_replicas: path("specReplicasPath")?,
        status_replicas: path("statusReplicasPath")?,
        selector: path("labelSelectorPath").map_or(ScaleSelector::None, ScaleSelector::At),
    })
}

/// Returns the name and the definition's columns; without any, name and age.
fn columns(v: &Value) -> Vec<Column> {
    let column = |name: &str, ty: &str, format: &str, description: &str, priority: i32, path: &str| Column {
        name: name.into(),
        ty: ty.into(),
        format: format.into(),
        description: description.into(),
        priority,
        value: vec!["@jsonpath".into(), path.into()],
    };
    let mut out = vec![column("Name", "string", "name", "", 0, ".metadata.name")];
    match v.as_array().filter(|a| !a.is_empty()) {
        None => out.push(column("Age", "date", "", "", 0, ".metadata.creationTimestamp")),
        Some(all) => out.extend(all.iter().map(|c| {
            let text = |k: &str| c[k].as_str().unwrap_or_default();
            let priority = c["priority"].as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
            let path = text("jsonPath");
            let said = text("description");
            let default = format!("Custom resource definition column (in JSONPath format): {path}");
            let description = if said.is_empty() { &default } else { said };
            column(text("name"), text("type"), text("format"), description, priority, path)
        })),
    }
    out
}
