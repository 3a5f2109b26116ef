//! The strategy of custom resources (`k8s.io/apiextensions-apiserver/pkg/registry/customresource`).

use super::conversion::Webhook;
use super::{rules, versions};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, GroupResource, Gvk, Object, Status, Value, names};
use registry::{
    Converter, CostEstimator, CreateStrategy, CustomResource, Defaults, Env, ObjectConvertor, Request,
    ResetFieldsStrategy, Scale, Sub, Subresources, UpdateStrategy, row::storage_name,
};
use schema::structural::Work;
use schema::{Schema, go_format};
use serde_json::json;
use std::collections::HashSet;
use std::sync::Arc;
use stored::encode;

/// Maximum bytes of defaults added to an object on reads: a minimum, and a multiple of its size.
const MIN_ADDED: usize = 32 << 10;
const ADDED: usize = 8;

/// Number of pattern parts from which patterns are compiled on other threads (two milliseconds).
const MANY_PARTS: usize = 20_000;

/// Versions with their schemas.
pub type Schemas = Arc<[(Box<str>, Arc<Schema>)]>;

pub struct Custom {
    /// Name of the definition.
    pub definition: String,
    pub gvk: Gvk,
    pub schema: Arc<Schema>,
    /// The schemas of all versions: reads apply that of the stored one, too.
    pub versions: Schemas,
    pub status: bool,
    pub scale: Option<Scale>,
    pub rules: Option<rules::Rules>,
    /// Maximum validation work per byte of an object ([`schema::structural::work_per_byte`]).
    pub work: usize,
    /// Total parts of the schema's patterns ([`schema::structural::pattern_parts`]).
    pub pattern_parts: usize,
    /// Whether the schema has embedded objects.
    pub embeds: bool,
    /// The conversion webhook; without one, versions differ only in `apiVersion`.
    pub webhook: Option<Webhook>,
    /// Whether the definition is being deleted.
    pub ending: bool,
}

impl Custom {
    fn check(&self, o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
        let new = Value::Object(o.0.clone());
        let before = old.map(|o| Value::Object(o.0.clone()));
        let root = FieldPath::root();
        schema::structural::validate(&new, before.as_ref(), &self.schema, &root, &Work::new(), errors);
        if self.embeds {
            super::embedded::validate(&new, &self.schema, &root, errors);
        }
        self.check_scale(o, true, errors);
        self.check_duplicates(o, old, errors);
    }

    /// Reports equal items of sets and map-like lists, unless there were some before.
    fn check_duplicates(&self, o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
        let find = |o: &Object| {
            let mut found = Vec::new();
            schema::structural::duplicates(&Value::Object(o.0.clone()), &self.schema, &FieldPath::root(), &mut found);
            found
        };
        let found = find(o);
        if !found.is_empty() && old.is_none_or(|o| find(o).is_empty()) {
            errors.extend(found);
        }
    }

    fn check_scale(&self, o: &Object, spec: bool, errors: &mut ErrorList) {
        let Some(s) = &self.scale else { return };
        let paths = [(&s.spec_replicas, spec), (&s.status_replicas, true)];
        for (path, _) in paths.into_iter().filter(|(_, on)| *on) {
            let at = FieldPath::new(format!(".{}", path.join(".")));
            match integer_at(o, path) {
                Err(why) => errors.push(FieldError::invalid(&at, 0, why)),
                Ok(n) if n < 0 => errors.push(FieldError::invalid(&at, n, "should be a non-negative integer")),
                Ok(n) if n > i64::from(i32::MAX) => {
                    errors.push(FieldError::invalid(&at, n, format!("should be less than or equal to {}", i32::MAX)));
                }
                Ok(_) => {}
            }
        }
    }
}

/// The number at a path; 0 if there is none (`unstructured.NestedInt64`).
fn integer_at(o: &Object, path: &[String]) -> Result<i64, String> {
    let wrong = |depth: usize, v: &Value, expected: &str| {
        let (path, shown, have) = (path[..depth].join("."), go_format::plain(v), go_format::type_name(v));
        format!(".{path} accessor error: {shown} is of the type {have}, expected {expected}")
    };
    let mut here = o.get(path.first().map_or("", String::as_str));
    for (i, name) in path.iter().enumerate().skip(1) {
        here = match here {
            None | Some(Value::Null) => return Ok(0),
            Some(Value::Object(m)) => m.get(name),
            Some(v) => return Err(wrong(i + 1, v, "map[string]interface{}")),
        };
    }
    match here {
        None => Ok(0),
        Some(v) => v.as_i64().ok_or_else(|| wrong(path.len(), v, "int64")),
    }
}

impl CreateStrategy for Custom {
    fn permit(&self, _: Env<'_>, request: &Request, o: &Object, old: Option<&Object>) -> Result<(), Status> {
        if self.ending && old.is_none() {
            let why = "create not allowed while custom resource definition is terminating";
            return Err(Status::forbidden(&request.group_resource(), o.name(), why));
        }
        Ok(())
    }

    fn prepare_for_create(&self, _: Env<'_>, _: &Request, o: &mut Object) {
        if self.status {
            o.remove(&["status"]);
        }
    }

    fn validate_since(&self, o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
        if old.is_some() {
            return;
        }
        self.check(o, None, errors);
    }

    /// Evaluates the validation rules of the schema.
    fn examine(&self, env: Env<'_>, o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
        let Some(r) = &self.rules else { return };
        if rules::blocks(errors) {
            let why = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
            errors.push(FieldError::invalid(&FieldPath::root(), Value::Null, why));
            return;
        }
        let (new, old) = (Value::Object(o.0.clone()), old.map(|o| Value::Object(o.0.clone())));
        for tolerated in r.evaluate(&new, old.as_ref(), errors) {
            env.warn(tolerated.to_string());
        }
    }

    fn warnings(&self, o: &Object, old: Option<&Object>) -> Vec<String> {
        let before: HashSet<&str> = old.into_iter().flat_map(|o| o.finalizers()).collect();
        let new = o.finalizers().filter(|f| !before.contains(f));
        new.flat_map(finalizer_warnings).collect()
    }
}

impl UpdateStrategy for Custom {
    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        self.check(o, Some(old), errors);
    }

    fn validate_part(&self, _: &str, o: &Object, old: &Object, errors: &mut ErrorList) {
        let path = FieldPath::new("status");
        if let (Some(v), Some(f)) = (o.get("status"), self.schema.field("status")) {
            schema::structural::validate(v, old.get("status"), &f.schema, &path, &Work::new(), errors);
        }
        self.check_scale(o, false, errors);
        self.check_duplicates(o, Some(old), errors);
    }

    fn take_part(&self, part: &str, o: &mut Object, old: &Object) {
        let taken = o.remove(&[part]);
        let (managed, revision) = (o.remove(&["metadata", "managedFields"]), o.resource_version().to_owned());
        *o = old.clone();
        o.set_resource_version(&revision);
        o.remove(&["metadata", "managedFields"]);
        if let Some(m) = managed {
            o.set(&["metadata", "managedFields"], m);
        }
        match taken {
            Some(v) => o.set(&[part], v),
            None => {
                o.remove(&[part]);
            }
        }
    }
}

impl ResetFieldsStrategy for Custom {
    fn resets(&self, subresource: &str) -> Option<&'static [&'static [&'static str]]> {
        let of_status: &[&[&str]] = &[&["spec"], &["metadata"]];
        (subresource == "status").then_some(of_status)
    }
}

impl Subresources for Custom {
    fn subresource(&self, name: &str) -> Option<Sub> {
        match name {
            "scale" => self.scale.clone().map(Sub::Scale),
            _ => None,
        }
    }
}

impl ObjectConvertor for Custom {
    fn converter(&self) -> Option<&dyn Converter> {
        self.webhook.as_ref().map(|w| w as &dyn Converter)
    }

    /// Prunes an object by the schema of its version, and fills in the defaults. Defaults beyond the size limit are
    /// omitted.
    fn conform(&self, o: Object, defaults: Defaults) -> Result<Object, Status> {
        let version = o.api_version().rsplit('/').next().unwrap_or_default();
        let Some((_, schema)) = self.versions.iter().find(|(v, _)| **v == *version) else { return Ok(o) };
        let schema = schema.clone();
        let mut v = o.into_value();
        schema::typed(&mut v, &schema).map_err(Status::internal)?;
        if defaults == Defaults::Fill {
            let most = MIN_ADDED + ADDED * schema::size(&v);
            schema::fill_within(&mut v, &schema, most);
        }
        Object::from_value(v).ok_or_else(|| Status::internal("a stored object is none"))
    }
}

impl CostEstimator for Custom {
    fn slow_from(&self) -> Option<usize> {
        // Smaller objects have too little content for nested loops.
        const MIN_SIZE: usize = 4 << 10;
        let rules = self.rules.as_ref().filter(|r| r.slow).map(|_| MIN_SIZE);
        // At most twenty milliseconds.
        let schema = (self.work > 1).then(|| 1_000_000 / self.work);
        // Compiling patterns takes that long whatever the object's size.
        let patterns = (self.pattern_parts > MANY_PARTS).then_some(0);
        rules.into_iter().chain(schema).chain(patterns).min()
    }

    fn adds_defaults(&self) -> usize {
        if self.schema.has_defaults() { MIN_ADDED } else { 0 }
    }
}

impl CustomResource for Custom {
    fn serves_more(&self) -> bool {
        self.ending
    }

    fn is_custom(&self) -> bool {
        true
    }

    fn published(&self, env: Env<'_>) -> Option<Value> {
        let gr = GroupResource { group: "apiextensions.k8s.io".into(), resource: "customresourcedefinitions".into() };
        let key = store::Key {
            resource: storage_name(&gr.group, &gr.resource).into(),
            namespace: "".into(),
            name: self.definition.as_str().into(),
        };
        let definition = encode::decode_or_log(&*env.registry.store.snapshot().get(&key)?)?;
        let version = versions(&definition).iter().find(|v| v["name"] == *self.gvk.version)?;
        let mut s = Some(&version["schema"]["openAPIV3Schema"]).filter(|s| s.is_object()).cloned();
        let s = s.get_or_insert_with(|| json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
        Some(s.take())
    }
}

registry::strategy!(Custom: CreateStrategy, UpdateStrategy, ResetFieldsStrategy, Subresources, ObjectConvertor, CostEstimator, CustomResource);

/// Returns the warning for a finalizer without domain.
fn finalizer_warnings(f: &str) -> Vec<String> {
    let path = "metadata.finalizers";
    let mut out: Vec<String> = names::qualified_name(f).into_iter().map(|m| format!("{path}: {f:?}: {m}")).collect();
    if !f.contains('/') && !matches!(f, "orphan" | "foregroundDeletion" | "kubernetes") {
        let how = if f.contains('.') { " including a path (/)" } else { "" };
        out.push(format!(
            "{path}: {f:?}: prefer a domain-qualified finalizer name{how} to avoid accidental conflicts with other finalizer writers"
        ));
    }
    out
}
