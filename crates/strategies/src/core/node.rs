//! Node: allocatable resources default to the capacity; taints; immutable pod CIDRs.

use crate::Config;
use crate::plain::{Ruled, repeat_errors};
use crate::pod_template;
use crate::read::{items, repeats, shown, text};
use crate::table::Row;
use kinds::columns::{Cell, condition, display, list_at};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Status, Value, names};
use registry::{
    Backend, CreateStrategy, Env, ProxyTarget, Request, Resource, Sub, Subresources, TableConvertor, UpdateStrategy,
    Upstream,
};
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

pub fn row(_: &Config) -> Row {
    Row::stored(Node)
}

pub struct Node;

/// The row of nodes for writes by which the server gives nodes a second range of pod addresses, when their cluster gets its second family.
/// The API refuses that, as upstream's does.
pub fn with_growing_ranges(row: &Resource) -> Option<Resource> {
    let Backend::Stored { resource, version } = &row.backend else { return None };
    Some(Resource {
        kind: row.kind.clone(),
        backend: Backend::Stored { resource: resource.clone(), version: version.clone() },
        strategy: Arc::new(Ruled::new(|o, errors| Node.validate(o, errors))),
        bare_items: row.bare_items,
        reshaped: row.reshaped,
        empty: OnceLock::new(),
        converted: Default::default(),
        lifetime: row.lifetime,
    })
}

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

impl CreateStrategy for Node {
    fn default(&self, o: &mut Object) {
        // `podCIDR` is the first item of `podCIDRs`.
        if let Some(c) = o.str_at(&["spec", "podCIDR"]).filter(|c| !c.is_empty()).map(str::to_owned)
            && o.at(&["spec", "podCIDRs"]).is_none_or(|l| l[0] != c.as_str())
        {
            o.set(&["spec", "podCIDRs"], vec![c]);
        } else if let Some(first) = o.at(&["spec", "podCIDRs"]).and_then(|l| l[0].as_str()).filter(|c| !c.is_empty()) {
            let first = first.to_owned();
            o.set(&["spec", "podCIDR"], first);
        }
        if o.at(&["status", "allocatable"]).is_none()
            && let Some(c) = o.at(&["status", "capacity"]).cloned()
        {
            o.set(&["status", "allocatable"], c);
        }
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        let spec = o.get("spec").unwrap_or(&Value::Null);
        let at = FieldPath::new("spec.podCIDRs");
        for (i, c) in items(spec, "podCIDRs").iter().enumerate() {
            schema::rules::cidr(c.as_str().unwrap_or_default(), &at.index(i), errors);
        }
        ranges(items(spec, "podCIDRs"), &at, errors);
        amounts(o, errors);
        if let Some(n) = o.int_at(&["status", "nodeInfo", "swap", "capacity"]).filter(|n| *n <= 0) {
            // As upstream, the path is not that of the field.
            let at = FieldPath::new("metadata.nodeSwapStatus.capacity");
            errors.push(FieldError::invalid(&at, n, "must be greater than zero"));
        }
        declared_features(o, errors);
        let mut seen = HashSet::new();
        for (i, t) in items(spec, "taints").iter().enumerate() {
            let at = FieldPath::new("metadata.taints").index(i);
            let (key, value, effect) = (text(t, "key"), text(t, "value"), text(t, "effect"));
            errors
                .extend(names::qualified_name(key).into_iter().map(|m| FieldError::invalid(&at.child("key"), key, m)));
            let bad = names::label_value(value);
            if !bad.is_empty() {
                errors.push(FieldError::invalid(&at.child("value"), value, bad.join(";")));
            }
            if effect.is_empty() {
                errors.push(FieldError::required(&at.child("effect"), ""));
            } else if !EFFECTS.contains(&effect) {
                errors.push(FieldError::not_supported(&at.child("effect"), effect, &EFFECTS));
            }
            if !seen.insert((key, effect)) {
                let e = FieldError::duplicate(&at, shown(t, "io.k8s.api.core.v1.Taint", &at));
                errors.push(e.with_detail("taints must be unique by key and effect pair"));
            }
        }
    }

    fn warnings(&self, o: &Object, _old: Option<&Object>) -> Vec<String> {
        let external = !o.str_at(&["spec", "externalID"]).unwrap_or_default().is_empty();
        let why = "spec.externalID: this field is deprecated, and is unused by Kubernetes";
        let mut out: Vec<String> = external.then(|| why.to_owned()).into_iter().collect();
        let at = FieldPath::new("spec.podCIDRs");
        let ranges = items(o.get("spec").unwrap_or(&Value::Null), "podCIDRs").iter().filter_map(Value::as_str);
        out.extend(ranges.enumerate().filter_map(|(i, r)| schema::rules::cidr_warning(r, &at.index(i))));
        out
    }
}

impl UpdateStrategy for Node {
    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        repeat_errors(errors, |e| e.path.starts_with("metadata.taints"));
        let ranges = |o: &Object| o.at(&["spec", "podCIDRs"]).cloned();
        if ranges(old).is_some() && ranges(o) != ranges(old) {
            let why = "node updates may not change podCIDR except from \"\" to valid";
            errors.push(FieldError::forbidden(&FieldPath::new("spec.podCIDRs"), why));
        }
        addresses(o, errors);
        let external = |o: &Object| o.at(&["spec", "externalID"]).cloned();
        if external(o) != external(old) {
            errors.push(FieldError::forbidden(&FieldPath::new("spec.externalID"), "may not be updated"));
        }
        let provider = |o: &Object| o.str_at(&["spec", "providerID"]).unwrap_or_default().to_owned();
        if !provider(old).is_empty() && provider(o) != provider(old) {
            let why = "node updates may not change providerID except from \"\" to valid";
            errors.push(FieldError::forbidden(&FieldPath::new("spec.providerID"), why));
        }
    }

    fn validate_part(&self, subresource: &str, o: &Object, _old: &Object, errors: &mut ErrorList) {
        if subresource == "status" {
            amounts(o, errors);
            declared_features(o, errors);
            addresses(o, errors);
        }
    }
}

impl Subresources for Node {
    fn proxy(&self, _env: Env<'_>, _request: &Request, o: &Object, target: &ProxyTarget) -> Result<Upstream, Status> {
        super::proxy::node(o, target)
    }

    fn subresource(&self, name: &str) -> Option<Sub> {
        (name == "proxy").then_some(Sub::Connect)
    }
}

impl TableConvertor for Node {
    fn cell(&self, cell: &Cell<'_>) -> Option<Value> {
        cells(cell)
    }
}

registry::strategy!(Node: CreateStrategy, UpdateStrategy, Subresources, TableConvertor);

/// Validates pod CIDRs: at most one per address family.
fn ranges(all: &[Value], at: &FieldPath, errors: &mut ErrorList) {
    let six = |c: &Value| c.as_str().is_some_and(|c| c.contains(':'));
    let sixes = all.iter().filter(|c| six(c)).count();
    let unreadable = all.iter().position(|c| !c.as_str().is_some_and(schema::rules::is_range));
    if let Some(i) = unreadable.filter(|_| all.len() > 1) {
        let range = all[i].as_str().unwrap_or_default();
        let why = format!(
            "invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[{i}]: <nil> (invalid CIDR address: {range})"
        );
        errors.push(FieldError::internal(at, &why));
    }
    if all.len() > 2 || (all.len() == 2 && (sixes != 1 || unreadable.is_some())) {
        let why = "may specify no more than one CIDR for each IP family";
        errors.push(FieldError::invalid(at, all, why));
    }
}

/// Validates capacity and allocatable resources.
fn amounts(o: &Object, errors: &mut ErrorList) {
    for part in ["capacity", "allocatable"] {
        for (k, v) in o.at(&["status", part]).and_then(Value::as_object).into_iter().flatten() {
            pod_template::amount(k, v, &FieldPath::new("status").child(part).child(k), errors);
        }
    }
}

/// Validates the features that a node declares: sorted names.
fn declared_features(o: &Object, errors: &mut ErrorList) {
    let at = FieldPath::new("status.declaredFeatures");
    let all: Vec<&str> = items(o.get("status").unwrap_or(&Value::Null), "declaredFeatures")
        .iter()
        .map(|f| f.as_str().unwrap_or_default())
        .collect();
    for (i, f) in all.iter().enumerate() {
        if f.len() > FEATURE_MAX {
            let why = format!("invalid feature name {f:?}: must be no more than {FEATURE_MAX} characters");
            errors.push(FieldError::invalid(&at.index(i), *f, why));
        } else if !is_feature(f) {
            let why = format!(
                "invalid feature name {f:?}: must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"
            );
            errors.push(FieldError::invalid(&at.index(i), *f, why));
        }
        let Some(next) = all.get(i + 1) else { continue };
        if f == next {
            errors.push(FieldError::duplicate(&at.index(i + 1), *next));
        } else if f > next {
            errors.push(FieldError::invalid(&at.index(i + 1), *next, "list must be sorted alphabetically"));
        }
    }
}

/// Maximum length of the name of a declared feature, in bytes.
const FEATURE_MAX: usize = 253;

/// Whether a name of a feature has segments of letters and digits, the first of which starts in upper case.
fn is_feature(name: &str) -> bool {
    let segment =
        |s: &str| s.starts_with(|c: char| c.is_ascii_alphabetic()) && s.bytes().all(|b| b.is_ascii_alphanumeric());
    name.starts_with(|c: char| c.is_ascii_uppercase()) && name.split('/').all(segment)
}

/// Checks that addresses are unique.
fn addresses(o: &Object, errors: &mut ErrorList) {
    let at = FieldPath::new("status.addresses");
    let all = o.at(&["status", "addresses"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let again = repeats(all);
    for (i, a) in all.iter().enumerate().filter(|(i, _)| again[*i]) {
        let at = at.index(i);
        errors.push(FieldError::duplicate(&at, shown(a, "io.k8s.api.core.v1.NodeAddress", &at)));
    }
}

/// Evaluates the table cell functions of the kind.
pub fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "nodeStatus" => {
            let mut s = match condition(o, "Ready") {
                Some(c) if c["status"] == "True" => "Ready".to_owned(),
                Some(_) => "NotReady".to_owned(),
                None => "Unknown".to_owned(),
            };
            if o.at(&["spec", "unschedulable"]).is_some_and(|v| v == true) {
                s += ",SchedulingDisabled";
            }
            s.into()
        }
        "nodeRoles" => {
            let mut roles: Vec<&str> = o
                .labels()
                .filter_map(|(k, v)| match k.strip_prefix("node-role.kubernetes.io/") {
                    Some(r) if !r.is_empty() => Some(r),
                    _ if k == "kubernetes.io/role" && !v.is_empty() => Some(v),
                    _ => None,
                })
                .collect();
            roles.sort_unstable();
            if roles.is_empty() { "<none>".into() } else { roles.join(",").into() }
        }
        "nodeAddress" => {
            let ty = cell.arguments.first().copied().unwrap_or_default();
            let found = list_at(o, &["status", "addresses"]).iter().find(|x| x["type"] == ty);
            found.map_or("<none>".into(), |x| display(&x["address"]).into())
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_create, check_status, check_update};
    use serde_json::json;

    #[test]
    fn validates_taints_and_ranges() {
        let node = |spec: Value| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": spec});
        let effect = r#"metadata.taints[0].effect: Unsupported value: "Other": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute""#;
        let twice = json!([{"key": "a", "effect": "NoSchedule"}, {"key": "a", "value": "b", "effect": "NoSchedule"}]);
        check_create(
            &Node,
            &node(json!({})),
            &[
                (
                    "/spec/taints",
                    json!([{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoExecute"}]),
                    &[],
                ),
                ("/spec/taints", json!([{"key": "a", "effect": "Other"}]), &[effect]),
                ("/spec/taints", json!([{"key": "a"}]), &["metadata.taints[0].effect: Required value"]),
                (
                    "/spec/taints",
                    twice,
                    &["metadata.taints[1]: Duplicate value: …: taints must be unique by key and effect pair"],
                ),
                ("/spec/podCIDRs", json!(["10.0.0.0/24", "fd00::/64"]), &[]),
                (
                    "/spec/podCIDRs",
                    json!(["10.0.0.0/24", "a"]),
                    &[
                        "spec.podCIDRs[1]: Invalid value: \"a\": must be a valid CIDR value…",
                        "spec.podCIDRs: Internal error: invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[1]: <nil> (invalid CIDR address: a)",
                        "spec.podCIDRs: Invalid value: [\"10.0.0.0/24\",\"a\"]: may specify no more than one CIDR for each IP family",
                    ],
                ),
                (
                    "/spec/podCIDRs",
                    json!(["10.0.0.0/24", "10.0.0.0/24"]),
                    &[
                        "spec.podCIDRs: Invalid value: [\"10.0.0.0/24\",\"10.0.0.0/24\"]: may specify no more than one CIDR for each IP family",
                    ],
                ),
                (
                    "/spec/podCIDRs",
                    json!(["10.0.0.0/24", "10.1.0.0/24"]),
                    &[
                        "spec.podCIDRs: Invalid value: [\"10.0.0.0/24\",\"10.1.0.0/24\"]: may specify no more than one CIDR for each IP family",
                    ],
                ),
            ],
        );
        let feature = |i: usize, name: &str, why: &str| format!("status.declaredFeatures[{i}]: {name:?}: {why}");
        let invalid =
            |i: usize, name: &str| feature(i, name, &format!("invalid feature name {name:?}: must start with…"));
        let invalid = |i: usize, name: &str| invalid(i, name).replacen(": \"", ": Invalid value: \"", 1);
        check_status(
            &Node,
            &node(json!({})),
            &[
                ("/status/declaredFeatures", json!(["A", "B/c", "B/c9/D"]), &[]),
                ("/status/declaredFeatures", json!(["a"]), &[&invalid(0, "a")]),
                ("/status/declaredFeatures", json!(["A/", "B C"]), &[&invalid(0, "A/"), &invalid(1, "B C")]),
                (
                    "/status/declaredFeatures",
                    json!(["B", "B", "A"]),
                    &[
                        "status.declaredFeatures[1]: Duplicate value: \"B\"",
                        "status.declaredFeatures[2]: Invalid value: \"A\": list must be sorted alphabetically",
                    ],
                ),
            ],
        );
        let old = node(json!({"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"], "providerID": "a"}));
        check_update(
            &Node,
            &old,
            &[
                ("/spec/unschedulable", json!(true), &[]),
                (
                    "/spec/podCIDRs",
                    json!(["10.0.0.0/24", "fd00::/64"]),
                    &["spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid"],
                ),
                (
                    "/spec/providerID",
                    json!("b"),
                    &["spec.providerID: Forbidden: node updates may not change providerID except from \"\" to valid"],
                ),
                (
                    "/spec/taints",
                    json!([{"key": "a"}]),
                    &["metadata.taints[0].effect: Required value", "metadata.taints[0].effect: Required value"],
                ),
            ],
        );
    }
}
