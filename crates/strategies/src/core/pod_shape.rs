//! Converts pod specs to the form of the server's internal types, for errors that contain a diff: host namespaces are
//! part of the security context, and the order of some fields differs.

use meta::{FieldPath, Value};
use schema::go_format::{self, Shape};

/// Fields that are in the internal type's security context, in its order.
const SHARED: [&str; 5] = ["HostNetwork", "HostPID", "HostIPC", "ShareProcessNamespace", "HostUsers"];
/// Fields whose position differs in the internal type: the field, and the one it follows.
const AFTER: [(&str, &str); 5] = [
    ("AutomountServiceAccountToken", "ServiceAccountName"),
    ("SetHostnameAsFQDN", "Subdomain"),
    ("PreemptionPolicy", "Priority"),
    ("RuntimeClassName", "ReadinessGates"),
    ("Overhead", "RuntimeClassName"),
];
const AFTER_CONTEXT: [(&str, &str); 3] = [
    ("SupplementalGroupsPolicy", "SupplementalGroups"),
    ("FSGroupChangePolicy", "FSGroup"),
    ("Sysctls", "FSGroupChangePolicy"),
];

/// Returns the unified diff of two pod specs.
pub fn difference(old: &Value, new: &Value) -> String {
    let Some(schema) = kinds::catalog().definitions.get("io.k8s.api.core.v1.PodSpec") else { return String::new() };
    let new = Shape::sent(new, schema, &FieldPath::new("spec"));
    go_format::unified(&inside(Shape::new(old, schema)).lines(), &inside(new).lines())
}

/// Formats a template, or only its spec, on one line.
pub fn template(v: &Value, only_spec: bool) -> String {
    let Some(schema) = kinds::catalog().definitions.get("io.k8s.api.core.v1.PodTemplateSpec") else {
        return v.to_string();
    };
    let mut shape = Shape::sent(v, schema, &FieldPath::new("spec.template"));
    let Some(spec) = shape.member("Spec") else { return shape.compact() };
    *spec = inside(std::mem::replace(spec, Shape::Leaf(Value::Null)));
    if only_spec { spec.compact() } else { shape.compact() }
}

/// Returns the diff of two volume sources.
pub fn sources(old: &Value, new: &Value) -> String {
    let Some(schema) = kinds::catalog().definitions.get("io.k8s.api.core.v1.PersistentVolumeSpec") else {
        return String::new();
    };
    let inlined = |mut shape: Shape| {
        if let Shape::Fields(all) = &mut shape {
            let is_source =
                |k: &str| schema.fields.iter().any(|f| f.inline_of.is_some() && go_format::name(&f.name) == k);
            all.retain(|(k, _)| is_source(k));
        }
        shape.lines()
    };
    let new = Shape::sent(new, schema, &FieldPath::new("spec"));
    go_format::unified(&inlined(Shape::new(old, schema)), &inlined(new))
}

/// Returns the diff of two values of a type whose internal form is the same.
pub fn difference_of(old: &Value, new: &Value, definition: &str) -> String {
    let Some(schema) = kinds::catalog().definitions.get(definition) else { return String::new() };
    go_format::unified(&Shape::new(old, schema).lines(), &Shape::sent(new, schema, &FieldPath::new("spec")).lines())
}

fn inside(mut spec: Shape) -> Shape {
    let Shape::Fields(all) = &mut spec else { return spec };
    let (shared, rest): (Vec<_>, Vec<_>) = std::mem::take(all).into_iter().partition(|(k, _)| SHARED.contains(&&**k));
    // The service account has two fields.
    *all = rest.into_iter().filter(|(k, _)| k != "ServiceAccount").collect();
    move_after(all, &AFTER);
    if let Some((_, context)) = all.iter_mut().find(|(k, _)| k == "SecurityContext") {
        if let Shape::Leaf(_) = context {
            let schema = kinds::catalog().definitions.get("io.k8s.api.core.v1.PodSecurityContext");
            *context = schema.map_or(Shape::Fields(Vec::new()), |s| Shape::new(&Value::Object(Default::default()), s));
        }
        if let Shape::Fields(c) = context {
            move_after(c, &AFTER_CONTEXT);
            let mut context: Vec<(String, Shape)> =
                SHARED.iter().filter_map(|k| shared.iter().find(|(n, _)| n == k).cloned()).collect();
            context.append(c);
            *c = context;
        }
    }
    spec
}

fn move_after(all: &mut Vec<(String, Shape)>, moves: &[(&str, &str)]) {
    for (what, behind) in moves {
        let Some(from) = all.iter().position(|(k, _)| k == what) else { continue };
        let field = all.remove(from);
        let to = all.iter().position(|(k, _)| k == behind).map_or(from, |i| i + 1);
        all.insert(to, field);
    }
}
