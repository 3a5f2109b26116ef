//! Validation of resource requests and limits, of containers and of pods.

use super::claims;
use crate::read::{is_sent, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Map, Quantity, Value, names};
use std::collections::BTreeMap;

/// Standard resources of containers.
fn is_native(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || is_huge(name)
}

/// Resources that quotas limit but containers cannot request: object counts, which are integers,
const OBJECTS: [&str; 9] = [
    "pods",
    "services",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// and sums over objects.
const SUMS: [&str; 8] = [
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "storage",
    "requests.storage",
];

fn is_counted(name: &str) -> bool {
    OBJECTS.contains(&name) || SUMS.contains(&name)
}

pub fn is_huge(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Whether a resource has no domain, or Kubernetes' own.
fn is_kubernetes_own(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether a resource is extended: of another domain, and short enough for its quota name.
fn is_extended(name: &str) -> bool {
    !is_kubernetes_own(name)
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Whether limits may exceed requests.
pub fn overcommits(name: &str) -> bool {
    is_kubernetes_own(name) && !is_huge(name)
}

/// Whether amounts must be integers.
pub fn is_integer_resource(name: &str) -> bool {
    OBJECTS.contains(&name) || is_extended(name)
}

fn quantity(v: &Value) -> Option<Quantity> {
    v.as_str().and_then(|s| Quantity::parse(s).ok())
}

/// Validates the name of a container resource.
pub fn resource_name(name: &str, at: &FieldPath, errors: &mut ErrorList) {
    let bad = names::qualified_name(name);
    let qualified = bad.is_empty();
    errors.extend(bad.into_iter().map(|m| FieldError::invalid(at, name, m)));
    let mut wrong = |why: &str| errors.push(FieldError::invalid(at, name, why));
    if !name.contains('/') {
        let counted = is_counted(name) || name.starts_with("requests.hugepages-");
        if qualified && !is_native(name) && !counted {
            wrong("must be a standard resource type or fully qualified");
        }
        if !is_native(name) {
            wrong("must be a standard resource for containers");
        }
    } else if !is_kubernetes_own(name) && !is_extended(name) {
        wrong("doesn't follow extended resource name standard");
    }
}

/// Checks that an amount is not negative, and an integer for integer resources.
pub fn amount(name: &str, v: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let q = quantity(v);
    if q.is_some_and(|q| q.sign() < 0) {
        errors.push(FieldError::invalid(at, v, "must be greater than or equal to 0"));
    }
    if is_integer_resource(name) && q.is_some_and(|q| !q.counts_as_integer()) {
        errors.push(FieldError::invalid(at, v, "must be an integer"));
    }
}

/// Checks that an amount of huge pages is a multiple of the page size.
fn huge_pages(name: &str, v: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let size = name.strip_prefix("hugepages-").and_then(|s| Quantity::parse(s).ok());
    let Some(q) = quantity(v).filter(|_| is_huge(name)) else { return };
    let fits = size.is_some_and(|s| s.sign() > 0 && q.nano_value() % s.nano_value() == 0);
    if !fits {
        let why = format!("{q} is not positive integer multiple of {name}");
        errors.push(FieldError::invalid(at, v, why));
    }
}

/// Validates pod overhead. Upstream reports its errors as those of limits.
pub fn overhead(amounts: &Value, at: &FieldPath, errors: &mut ErrorList) {
    requirements(&Value::Object(Map::from_iter([("limits".into(), amounts.clone())])), Owner::Container, at, errors);
}

/// The owner of requests and limits, which determines the allowed resources.
#[derive(Clone, Copy, PartialEq)]
pub enum Owner {
    Container,
    Pod,
}

/// Validates the name of a pod-level resource.
fn pod_resource_name(name: &str, at: &FieldPath, errors: &mut ErrorList) {
    let before = errors.len();
    let bad = names::qualified_name(name);
    errors.extend(bad.into_iter().map(|m| FieldError::invalid(at, name, m)));
    if errors.len() == before && !name.contains('/') && !is_native(name) && !is_counted(name) {
        errors.push(FieldError::invalid(at, name, "must be a standard resource type or fully qualified"));
    } else if errors.len() == before && !is_pod_level(name) {
        errors.push(FieldError::not_supported(at, name, &["cpu", "hugepages-", "memory"]));
    }
}

fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_huge(name)
}

/// Validates requests and limits: requests do not exceed limits, and equal them for resources that cannot be
/// overcommitted.
pub fn requirements(r: &Value, owner: Owner, at: &FieldPath, errors: &mut ErrorList) {
    let requests = at.child("requests");
    let (mut huge, mut usual) = (false, false);
    for part in ["limits", "requests"] {
        for (k, v) in r[part].as_object().into_iter().flatten() {
            let at = at.child(part).key(k);
            match owner {
                Owner::Container => resource_name(k, &at, errors),
                Owner::Pod => pod_resource_name(k, &at, errors),
            }
            amount(k, v, &at, errors);
            huge_pages(k, v, &at, errors);
            huge |= is_huge(k);
            usual |= matches!(k.as_str(), "cpu" | "memory");
        }
    }
    for (k, v) in r["requests"].as_object().into_iter().flatten() {
        match (quantity(v), quantity(&r["limits"][k.as_str()])) {
            (Some(q), Some(l)) if !overcommits(k) && q != l => {
                let why = format!("must be equal to {k} limit of {l}");
                errors.push(FieldError::invalid(&requests, v, why));
            }
            (Some(q), Some(l)) if q > l => {
                let why = format!("must be less than or equal to {k} limit of {l}");
                errors.push(FieldError::invalid(&requests, v, why));
            }
            (Some(_), None) if !overcommits(k) => {
                let why = "Limit must be set for non overcommitable resources";
                errors.push(FieldError::required(&at.child("limits"), why));
            }
            _ => {}
        }
    }
    if huge && !usual {
        errors.push(FieldError::forbidden(at, "HugePages require cpu or memory"));
    }
}

/// Validates pod-level requests and limits, which cover those of the containers.
pub fn pod(spec: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let own = &spec["resources"];
    if !own.is_object() {
        return;
    }
    if spec["os"]["name"] == "windows" {
        errors.push(FieldError::forbidden(at, "may not be set for a windows pod"));
        return;
    }
    let claims_at = at.child("claims");
    if is_sent(own, "claims", at) {
        let e = FieldError::forbidden(&claims_at, "claims may not be set for Resources at pod-level");
        // Upstream reports it first.
        errors.push(e.ordered_at(&at.child("limits").index(0)));
    }
    requirements(own, Owner::Pod, at, errors);
    claims::of_container(own, spec, &claims_at, errors);
    for part in ["requests", "limits"] {
        let sums = aggregate(spec, part).into_iter().filter(|(k, _)| part == "requests" || is_huge(k));
        for (k, sum) in sums {
            let Some(of_pod) = quantity(&own[part][k.as_str()]).filter(|q| sum > *q) else { continue };
            let why = format!("must be greater than or equal to aggregate container {part} of {sum}");
            errors.push(FieldError::invalid(&at.child(part).key(&k), of_pod.to_string(), why));
        }
    }
    for (i, c) in items(spec, "containers").iter().enumerate() {
        for (k, v) in c["resources"]["limits"].as_object().into_iter().flatten() {
            if let (Some(l), Some(of_pod)) = (quantity(v), quantity(&own["limits"][k.as_str()]))
                && l > of_pod
            {
                let at = at.child("containers").index(i).key(k).child("limits");
                let why = format!("must be less than or equal to pod limits of {of_pod}");
                errors.push(FieldError::invalid(&at, l.to_string(), why));
            }
        }
    }
}

/// Returns the maximum aggregate requests of the containers: the sum of containers and sidecars, or an init container
/// with the sidecars started before it.
pub fn aggregate_requests(spec: &Value) -> BTreeMap<String, Quantity> {
    aggregate(spec, "requests")
}

fn aggregate(spec: &Value, part: &'static str) -> BTreeMap<String, Quantity> {
    let each = |c: &Value| -> Vec<(String, Quantity)> {
        let all = c["resources"][part].as_object().into_iter().flatten();
        all.filter_map(|(k, v)| Some((k.clone(), quantity(v)?))).collect()
    };
    fn add(all: &mut BTreeMap<String, Quantity>, k: &str, q: Quantity) {
        let sum = all.get(k).map_or(q, |have| *have + q);
        all.insert(k.to_owned(), sum);
    }
    let mut all = BTreeMap::new();
    for c in items(spec, "containers") {
        each(c).into_iter().for_each(|(k, q)| add(&mut all, &k, q));
    }
    let (mut sidecars, mut peaks) = (BTreeMap::new(), BTreeMap::<String, Quantity>::new());
    for c in items(spec, "initContainers") {
        let mut needs: BTreeMap<String, Quantity> = sidecars.clone();
        each(c).into_iter().for_each(|(k, q)| add(&mut needs, &k, q));
        if text(c, "restartPolicy") == "Always" {
            each(c).into_iter().for_each(|(k, q)| add(&mut all, &k, q));
            sidecars.clone_from(&needs);
        }
        for (k, q) in needs {
            let peak = peaks.entry(k).or_insert(q);
            *peak = q.max(*peak);
        }
    }
    for (k, q) in peaks {
        let have = all.entry(k).or_insert(q);
        *have = q.max(*have);
    }
    all
}

/// Sets absent pod-level limits of huge pages from the aggregate of the containers, and absent pod-level requests from the aggregate of the
/// containers, otherwise from the limits (`defaultHugePagePodLimits` and `defaultPodRequests` of `pkg/apis/core/v1/defaults.go`).
pub fn default_of_pod(spec: &mut Value) {
    let part = |k: &str| spec["resources"][k].as_object().cloned().unwrap_or_default();
    let (mut limits, mut requests) = (part("limits"), part("requests"));
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    for (k, q) in aggregate(spec, "limits") {
        if is_huge(&k) && !requests.contains_key(&k) && !limits.contains_key(&k) {
            limits.insert(k, q.to_string().into());
        }
    }
    if limits.is_empty() {
        return;
    }
    spec["resources"]["limits"] = Value::Object(limits.clone());
    for (k, q) in aggregate_requests(spec) {
        if is_pod_level(&k) && overcommits(&k) && !requests.contains_key(&k) {
            requests.insert(k, q.to_string().into());
        }
    }
    for (k, v) in limits {
        if is_pod_level(&k) && !requests.contains_key(&k) {
            requests.insert(k, v);
        }
    }
    if !requests.is_empty() {
        spec["resources"]["requests"] = Value::Object(requests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_pod_spec;
    use serde_json::json;

    #[test]
    fn validates_requests_and_limits() {
        let at = "containers[0].resources";
        let standard = "must be a standard resource for containers";
        check_pod_spec(&[
            ("/containers/0/resources", json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}), &[]),
            (
                "/containers/0/resources",
                json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
                &[&format!("{at}.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1")],
            ),
            (
                "/containers/0/resources",
                json!({"requests": {"cpu": "-1"}}),
                &[&format!("{at}.requests[cpu]: Invalid value: \"-1\": must be greater than or equal to 0")],
            ),
            (
                "/containers/0/resources",
                json!({"requests": {"pods": "1"}}),
                &[&format!("{at}.requests[pods]: Invalid value: \"pods\": {standard}")],
            ),
            (
                "/containers/0/resources",
                json!({"requests": {"other": "1"}}),
                &[
                    &format!(
                        "{at}.requests[other]: Invalid value: \"other\": must be a standard resource type or fully qualified"
                    ),
                    &format!("{at}.requests[other]: Invalid value: \"other\": {standard}"),
                ],
            ),
            (
                "/containers/0/resources",
                json!({"limits": {"example.com/gpu": "500m"}}),
                &[
                    &format!("{at}.limits[example.com/gpu]: Invalid value: \"500m\": must be an integer"),
                    &format!("{at}.requests[example.com/gpu]: Invalid value: \"500m\": must be an integer"),
                ],
            ),
            (
                "/containers/0/resources",
                json!({"requests": {"example.com/gpu": "1"}}),
                &[&format!("{at}.limits: Required value: Limit must be set for non overcommitable resources")],
            ),
            (
                "/containers/0/resources",
                json!({"limits": {"hugepages-2Mi": "2Mi"}}),
                &[&format!("{at}: Forbidden: HugePages require cpu or memory")],
            ),
            (
                "/containers/0/resources",
                json!({"limits": {"cpu": "1", "hugepages-2Mi": "3Mi"}}),
                &[
                    &format!(
                        "{at}.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi"
                    ),
                    &format!(
                        "{at}.requests[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi"
                    ),
                ],
            ),
        ]);
    }

    #[test]
    fn validates_pod_level_resources() {
        check_pod_spec(&[
            ("/resources", json!({"limits": {"cpu": "2"}}), &[]),
            (
                "/resources",
                json!({"requests": {"ephemeral-storage": "1"}}),
                &[
                    r#"resources.requests[ephemeral-storage]: Unsupported value: "ephemeral-storage": supported values: "cpu", "hugepages-", "memory""#,
                ],
            ),
            (
                "/resources",
                json!({"claims": [{"name": "c"}]}),
                &[
                    "resources.claims: Forbidden: claims may not be set for Resources at pod-level",
                    "resources.claims[0]: Not found: \"c\": must be one of the names in pod.spec.resourceClaims which is empty",
                ],
            ),
        ]);
    }

    #[test]
    fn aggregates_containers_sidecars_and_init_containers() {
        let c = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
        let sidecar = |cpu: &str| json!({"restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}});
        let check = |init: Value, containers: Value, cpu: &str| {
            let spec = json!({"initContainers": init, "containers": containers});
            assert_eq!(aggregate_requests(&spec)["cpu"].to_string(), cpu, "{spec}");
        };
        check(json!([]), json!([c("1"), c("2")]), "3");
        check(json!([c("4"), c("1")]), json!([c("1"), c("2")]), "4");
        check(json!([sidecar("1")]), json!([c("1")]), "2");
        check(json!([sidecar("1"), c("3")]), json!([c("1")]), "4");
        check(json!([c("3"), sidecar("1")]), json!([c("1")]), "3");
    }

    #[test]
    fn defaults_of_pod_level_resources() {
        let huge = |n: &str| json!({"limits": {"hugepages-2Mi": n}, "requests": {"hugepages-2Mi": n}});
        for (own, containers, want) in [
            (json!({}), json!([huge("2Mi")]), json!({})),
            (
                json!({"requests": {"cpu": "1"}}),
                json!([huge("2Mi"), huge("4Mi")]),
                json!({"limits": {"hugepages-2Mi": "6Mi"}, "requests": {"cpu": "1", "hugepages-2Mi": "6Mi"}}),
            ),
            (
                json!({"limits": {"cpu": "2"}}),
                json!([huge("2Mi"), {"requests": {"cpu": "1"}}]),
                json!({"limits": {"cpu": "2", "hugepages-2Mi": "2Mi"}, "requests": {"cpu": "1", "hugepages-2Mi": "2Mi"}}),
            ),
            (
                json!({"requests": {"hugepages-2Mi": "8Mi"}}),
                json!([huge("2Mi")]),
                json!({"requests": {"hugepages-2Mi": "8Mi"}}),
            ),
        ] {
            let containers: Vec<Value> =
                containers.as_array().unwrap().iter().map(|r| json!({"resources": r})).collect();
            let mut spec = json!({"resources": own, "containers": containers});
            default_of_pod(&mut spec);
            assert_eq!(spec["resources"], want, "{own}");
        }
    }
}
