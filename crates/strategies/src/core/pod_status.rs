//! Validation of the pod status (`ValidatePodStatusUpdate`).

use super::container_status;
use super::pod_fields::items;
use crate::pod_template::annotations;
use crate::read::{self, repeats, shown_list, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use std::collections::HashSet;

const STATUSES: [&str; 3] = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
/// The containers of each list of statuses. Ephemeral ones have no resources and never restart.
const CONTAINERS: [&str; 3] = ["containers", "initContainers", ""];

/// Conditions of the system, which have no domain.
const OWN_CONDITIONS: [&str; 3] = ["PodScheduled", "Ready", "Initialized"];

/// Keeps the QoS class and observed generations that an older client omits.
pub fn keep(o: &mut Object, old: &Object) {
    let class = |o: &Object| o.str_at(&["status", "qosClass"]).unwrap_or_default().to_owned();
    if o.get("status").is_some() && class(o).is_empty() && !class(old).is_empty() {
        o.set(&["status", "qosClass"], class(old));
    }
    const OBSERVED: &str = "observedGeneration";
    if let Some(n) = old.int_at(&["status", OBSERVED]).filter(|_| o.get("status").is_some())
        && o.int_at(&["status", OBSERVED]).unwrap_or(0) == 0
    {
        o.set(&["status", OBSERVED], n);
    }
    let mut was = old.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(Value::Array(mut all)) = o.at(&["status", "conditions"]).cloned() else { return };
    for c in &mut all {
        let Some(i) = was.iter().position(|w| w["type"] == c["type"]) else { continue };
        let before = was.remove(i)[OBSERVED].as_i64().unwrap_or(0);
        if c[OBSERVED].as_i64().unwrap_or(0) == 0 && before != 0 {
            c[OBSERVED] = before.into();
        }
    }
    o.set(&["status", "conditions"], all);
}

pub fn validate(o: &Object, old: &Object, errors: &mut ErrorList) {
    let list = |p: &Object, key: &str| p.at(&["status", key]).and_then(Value::as_array).cloned().unwrap_or_default();
    let status = FieldPath::new("status");
    let of = |p: &Object| p.at(&["metadata", "annotations"]).cloned().unwrap_or_default();
    let at = FieldPath::new("metadata.annotations");
    annotations::update(&of(o), &of(old), &at, errors);
    annotations::rules(&of(o), o.get("spec").unwrap_or(&Value::Null), &at, errors);
    for (i, c) in list(o, "conditions").iter().enumerate() {
        let ty = text(c, "type");
        not_negative(c, &status.child("conditions").index(i), errors);
        if !OWN_CONDITIONS.contains(&ty) {
            let at = status.child("conditions").index(i).child("Type");
            errors.extend(names::qualified_name(ty).into_iter().map(|m| FieldError::invalid(&at, ty, m)));
        }
    }
    let nominated = |p: &Object| p.str_at(&["status", "nominatedNodeName"]).unwrap_or_default().to_owned();
    let node = nominated(o);
    if !node.is_empty() && node != nominated(old) {
        let at = status.child("nominatedNodeName");
        errors.extend(names::dns_subdomain(&node).into_iter().map(|m| FieldError::invalid(&at, node.as_str(), m)));
        if !old.str_at(&["spec", "nodeName"]).unwrap_or_default().is_empty() {
            errors.push(FieldError::forbidden(&at, "may not be set on pods that are already bound to a node"));
        }
    }
    not_negative(o.get("status").unwrap_or(&Value::Null), &status, errors);
    let class = |p: &Object| p.at(&["status", "qosClass"]).cloned().unwrap_or_default();
    if class(o) != class(old) {
        errors.push(FieldError::invalid(&status.child("qosClass"), class(o), "field is immutable"));
    }
    for (of, key) in CONTAINERS.into_iter().zip(STATUSES) {
        terminated_stays(old, of, &list(o, key), &list(old, key), &status.child(key), errors);
    }
    claims(o, &list(o, "resourceClaimStatuses"), &status.child("resourceClaimStatuses"), errors);
    let extended = "extendedResourceClaimStatus";
    if let Some(claim) = o.at(&["status", extended]).filter(|c| c.is_object()) {
        extended_claim(o, claim, &status.child(extended), errors);
    }
    addresses(&list(o, "podIPs"), &list(old, "podIPs"), &status.child("podIPs"), errors);
    let hosts = list(o, "hostIPs");
    if let Some(first) = hosts.first()
        && Some(text(first, "ip")) != o.str_at(&["status", "hostIP"])
    {
        let at = status.child("hostIPs").index(0).child("ip");
        errors.push(FieldError::invalid(&at, text(first, "ip"), "must be equal to `hostIP`"));
    }
    addresses(&hosts, &list(old, "hostIPs"), &status.child("hostIPs"), errors);
    for key in STATUSES {
        container_status::users(o, &list(o, key), &status.child(key), errors);
    }
    for (of, key) in CONTAINERS.into_iter().zip(STATUSES) {
        container_status::devices(items(o, of), &list(o, key), &status.child(key), errors);
    }
}

fn not_negative(v: &Value, at: &FieldPath, errors: &mut ErrorList) {
    const OBSERVED: &str = "observedGeneration";
    if let Some(n) = v[OBSERVED].as_i64().filter(|n| *n < 0) {
        errors.push(FieldError::invalid(&at.child(OBSERVED), n, "must be a non-negative integer"));
    }
}

/// Validates the names of generated resource claims.
fn claims(o: &Object, all: &[Value], list: &FieldPath, errors: &mut ErrorList) {
    let claims: HashSet<&str> = items(o, "resourceClaims").iter().map(|c| text(c, "name")).collect();
    let again = repeats(all.iter().map(|c| text(c, "name")));
    for (i, c) in all.iter().enumerate() {
        let (name, at) = (text(c, "name"), list.index(i).child("name"));
        if !claims.contains(name) {
            let why = "must match the name of an entry in `spec.resourceClaims`";
            errors.push(FieldError::invalid(&at, name, why));
        }
        if again[i] {
            errors.push(FieldError::duplicate(&at, name));
        }
        if let Some(claim) = c["resourceClaimName"].as_str() {
            claim_name(claim, &list.index(i), errors);
        }
    }
}

fn claim_name(name: &str, parent: &FieldPath, errors: &mut ErrorList) {
    let at = parent.child("resourceClaimName");
    errors.extend(names::dns_subdomain(name).into_iter().map(|m| FieldError::invalid(&at, name, m)));
}

/// Validates the claim that the scheduler created for extended resources.
fn extended_claim(o: &Object, claim: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let mappings = read::items(claim, "requestMappings");
    let list = at.child("requestMappings");
    if mappings.is_empty() {
        errors.push(FieldError::required(&list, "at least one request mapping is required"));
    }
    let again =
        repeats(mappings.iter().map(|m| (text(m, "containerName"), text(m, "resourceName"), text(m, "requestName"))));
    for (i, m) in mappings.iter().enumerate() {
        let (container, resource, request) =
            (text(m, "containerName"), text(m, "resourceName"), text(m, "requestName"));
        let path = list.index(i);
        let all = items(o, "containers").iter().chain(items(o, "initContainers"));
        match all.into_iter().find(|c| text(c, "name") == container) {
            None => {
                let why = "must match the name of an entry in spec.initContainers.name or spec.containers.name";
                errors.push(FieldError::invalid(&path.child("containerName"), container, why));
            }
            Some(c) if c["resources"]["requests"].get(resource).is_none() => {
                let why = "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests";
                errors.push(FieldError::invalid(&path.child("resourceName"), resource, why));
            }
            Some(_) => {}
        }
        // Upstream reports the name without its position.
        let name_at = at.child("requestName");
        errors.extend(names::dns_label(request).into_iter().map(|m| FieldError::invalid(&name_at, request, m)));
        if again[i] {
            for (field, value) in [("containerName", container), ("resourceName", resource), ("requestName", request)] {
                errors.push(FieldError::duplicate(&path.child(field), value));
            }
        }
    }
    match text(claim, "resourceClaimName") {
        "" => errors.push(FieldError::required(&at.child("resourceClaimName"), "")),
        name => claim_name(name, at, errors),
    }
}

const ADDRESS: &str = "io.k8s.api.core.v1.PodIP";

/// Validates pod IPs: at most one per address family. Invalid ones of the old status may stay.
fn addresses(all: &[Value], old: &[Value], at: &FieldPath, errors: &mut ErrorList) {
    for (i, a) in all.iter().enumerate().filter(|(_, a)| !old.iter().any(|o| o["ip"] == a["ip"])) {
        schema::rules::ip(text(a, "ip"), &at.index(i), errors);
    }
    if all.len() < 2 {
        return;
    }
    let read = |a: &Value| schema::rules::sloppy(text(a, "ip")).map(|(ip, _)| ip.to_canonical().is_ipv6());
    let sixes: Vec<Option<bool>> = all.iter().map(read).collect();
    if let Some(i) = sixes.iter().position(Option::is_none) {
        let why = format!("failed to check for dual stack with error:invalid IP[{i}]: {}", text(&all[i], "ip"));
        errors.push(FieldError::internal(at, &why));
    }
    let pair = sixes.contains(&Some(true)) && sixes.contains(&Some(false)) && !sixes.contains(&None);
    if !pair || all.len() > 2 {
        let why = "may specify no more than one IP for each IP family";
        errors.push(FieldError::invalid(at, shown_list(all, ADDRESS, at), why));
    }
}

/// Checks that terminated containers stay terminated unless they may restart. `of` is the list of containers, empty for
/// ephemeral ones.
fn terminated_stays(old: &Object, of: &str, now: &[Value], was: &[Value], at: &FieldPath, errors: &mut ErrorList) {
    if !of.is_empty() && restarts_all_containers(old) {
        return;
    }
    let policy = old.str_at(&["spec", "restartPolicy"]).unwrap_or_default();
    for (i, w) in was.iter().enumerate().filter(|(_, w)| w["state"]["terminated"].is_object()) {
        let code = w["state"]["terminated"]["exitCode"].as_i64().unwrap_or(0);
        if items(old, of).iter().find(|c| c["name"] == w["name"]).is_some_and(|c| restarts(c, policy, code)) {
            continue;
        }
        if now.iter().any(|n| n["name"] == w["name"] && !n["state"]["terminated"].is_object()) {
            let why = "may not be transitioned to non-terminated state";
            errors.push(FieldError::forbidden(&at.index(i).child("state"), why));
        }
    }
}

/// Whether a restart rule of a container may restart all containers of the pod.
fn restarts_all_containers(o: &Object) -> bool {
    let containers = items(o, "initContainers").iter().chain(items(o, "containers"));
    let mut rules = containers.flat_map(|c| read::items(c, "restartPolicyRules"));
    rules.any(|r| r["action"] == "RestartAllContainers")
}

/// Whether a container that ended with an exit code restarts: its first matching rule, its own policy, or the pod's
/// policy decides (upstream `ContainerShouldRestart`).
fn restarts(container: &Value, pod_policy: &str, exit_code: i64) -> bool {
    let matches = |rule: &&Value| {
        let listed = read::items(&rule["exitCodes"], "values").iter().any(|v| v.as_i64() == Some(exit_code));
        match text(&rule["exitCodes"], "operator") {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    };
    let policy = match text(container, "restartPolicy") {
        "" => pod_policy,
        own => {
            let rule = read::items(container, "restartPolicyRules").iter().find(matches);
            if rule.is_some_and(|r| matches!(text(r, "action"), "Restart" | "RestartAllContainers")) {
                return true;
            }
            own
        }
    };
    match policy {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::pod::Pod;
    use crate::testing::{Case, check_part};
    use registry::UpdateStrategy;
    use serde_json::json;

    fn pod(spec: Value, status: Value) -> Value {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "image": "i"}]}, "status": status});
        spec.as_object().into_iter().flatten().for_each(|(k, v)| pod["spec"][k] = v.clone());
        pod
    }

    fn check(old: &Value, cases: &[Case<'_>]) {
        check_part(&Pod, "status", old, cases);
    }

    #[test]
    fn validates_conditions_and_generations() {
        let condition =
            |ty: &str, generation: i64| json!([{"type": ty, "status": "True", "observedGeneration": generation}]);
        let negative = "must be a non-negative integer";
        check(
            &pod(json!({}), json!({})),
            &[
                ("", Value::Null, &[]),
                ("/status/conditions", condition("Ready", 1), &[]),
                ("/status/conditions", condition("example.com/ready", 0), &[]),
                (
                    "/status/conditions",
                    condition("a b", 0),
                    &["status.conditions[0].Type: Invalid value: \"a b\": name part must consist of…"],
                ),
                (
                    "/status/conditions",
                    condition("Ready", -1),
                    &[&format!("status.conditions[0].observedGeneration: Invalid value: -1: {negative}")],
                ),
                ("/status/observedGeneration", json!(3), &[]),
                (
                    "/status/observedGeneration",
                    json!(-3),
                    &[&format!("status.observedGeneration: Invalid value: -3: {negative}")],
                ),
            ],
        );
    }

    #[test]
    fn keeps_the_quality_of_service_and_generations() {
        let old = pod(
            json!({}),
            json!({"qosClass": "BestEffort", "observedGeneration": 4, "conditions": [
                {"type": "Ready", "status": "True", "observedGeneration": 2},
                {"type": "Ready", "status": "True", "observedGeneration": 3}]}),
        );
        let class = "status.qosClass: Invalid value: \"Burstable\": field is immutable";
        check(&old, &[("/status/qosClass", Value::Null, &[]), ("/status/qosClass", json!("Burstable"), &[class])]);
        let object = |status: Value| Object::from_value(pod(json!({}), status)).expect("an object");
        let old = Object::from_value(old).expect("an object");
        let kept = |status: Value| {
            let mut new = object(status);
            Pod.take_part("status", &mut new, &old);
            new.0["status"].clone()
        };
        let ready = |generation: Option<i64>| {
            let mut condition = json!({"type": "Ready", "status": "False"});
            generation.into_iter().for_each(|n| condition["observedGeneration"] = n.into());
            condition
        };
        // Conditions of one type keep their generations in order.
        assert_eq!(
            kept(json!({"conditions": [ready(None), ready(None), ready(None)]})),
            json!({"qosClass": "BestEffort", "observedGeneration": 4,
                "conditions": [ready(Some(2)), ready(Some(3)), ready(None)]})
        );
        assert_eq!(
            kept(
                json!({"qosClass": "Burstable", "observedGeneration": 5, "conditions": [ready(Some(7)), ready(None)]})
            ),
            json!({"qosClass": "Burstable", "observedGeneration": 5, "conditions": [ready(Some(7)), ready(Some(3))]})
        );
    }

    #[test]
    fn nominates_nodes_for_unbound_pods() {
        let node = "/status/nominatedNodeName";
        let bound = "status.nominatedNodeName: Forbidden: may not be set on pods that are already bound to a node";
        check(
            &pod(json!({}), json!({})),
            &[
                (node, json!("n"), &[]),
                (
                    node,
                    json!("N"),
                    &["status.nominatedNodeName: Invalid value: \"N\": a lowercase RFC 1123 subdomain…"],
                ),
            ],
        );
        check(
            &pod(json!({"nodeName": "n"}), json!({"nominatedNodeName": "m"})),
            &[("", Value::Null, &[]), (node, Value::Null, &[]), (node, json!("n"), &[bound])],
        );
    }

    #[test]
    fn validates_addresses() {
        let old = pod(json!({}), json!({"podIPs": [{"ip": "010.0.0.1"}], "hostIP": "192.0.2.1"}));
        let family = "may specify no more than one IP for each IP family";
        let ips = |ips: &[&str]| ips.iter().map(|ip| json!({"ip": ip})).collect::<Value>();
        let pair = "[{\"IP\":\"10.0.0.1\"},{\"IP\":\"10.0.0.2\"}]";
        check(
            &old,
            &[
                // An invalid address that was there may stay.
                ("", Value::Null, &[]),
                ("/status/podIPs", ips(&["10.0.0.1", "fd00::1"]), &[]),
                (
                    "/status/podIPs",
                    ips(&["10.0.0.256"]),
                    &["status.podIPs[0]: Invalid value: \"10.0.0.256\": must be a valid IP address…"],
                ),
                (
                    "/status/podIPs",
                    ips(&["10.0.0.1", "10.0.0.2"]),
                    &[&format!("status.podIPs: Invalid value: {pair}: {family}")],
                ),
                (
                    "/status/podIPs",
                    ips(&["fd00::1", "fd00::2"]),
                    &[&format!("status.podIPs: Invalid value: …{family}")],
                ),
                (
                    "/status/podIPs",
                    ips(&["10.0.0.1", "fd00::1", "fd00::2"]),
                    &[&format!("status.podIPs: Invalid value: …{family}")],
                ),
                (
                    "/status/podIPs",
                    ips(&["10.0.0.1", "x"]),
                    &[
                        "status.podIPs[1]: Invalid value: \"x\": must be a valid IP address…",
                        "status.podIPs: Internal error: failed to check for dual stack with error:invalid IP[1]: x",
                        &format!("status.podIPs: Invalid value: …{family}"),
                    ],
                ),
                ("/status/hostIPs", ips(&["192.0.2.1", "fd00::1"]), &[]),
                (
                    "/status/hostIPs",
                    ips(&["192.0.2.2"]),
                    &["status.hostIPs[0].ip: Invalid value: \"192.0.2.2\": must be equal to `hostIP`"],
                ),
                (
                    "/status/hostIPs",
                    ips(&["192.0.2.1", "192.0.2.1"]),
                    &[&format!("status.hostIPs: Invalid value: …{family}")],
                ),
            ],
        );
    }

    /// Restarts of containers that have terminated: the pod's policy, fields of the container, its exit code, and whether
    /// the new status may show it running.
    #[test]
    fn terminated_containers_restart_by_policy() {
        let terminated = |code: i64| json!([{"name": "c", "state": {"terminated": {"exitCode": code}}}]);
        let running = json!([{"name": "c", "state": {"running": {}}}]);
        let rule = |operator: &str, action: &str| {
            json!({"restartPolicy": "Never", "restartPolicyRules": [
            {"action": action, "exitCodes": {"operator": operator, "values": [42]}}]})
        };
        let own = |policy: &str| json!({"restartPolicy": policy});
        let error =
            |list: &str| format!("status.{list}[0].state: Forbidden: may not be transitioned to non-terminated state");
        for (policy, container, code, allowed) in [
            ("Always", json!({}), 0, true),
            ("OnFailure", json!({}), 1, true),
            ("OnFailure", json!({}), 0, false),
            ("Never", json!({}), 1, false),
            ("Always", own("Never"), 1, false),
            ("Always", own("OnFailure"), 0, false),
            ("Never", own("OnFailure"), 1, true),
            ("Never", own("Always"), 0, true),
            ("Always", rule("In", "Restart"), 42, true),
            ("Always", rule("In", "Restart"), 41, false),
            ("Never", rule("NotIn", "Restart"), 41, true),
            ("Never", rule("NotIn", "Restart"), 42, false),
            ("Never", rule("In", "RestartAllContainers"), 1, true),
        ] {
            let mut main = json!({"name": "c", "image": "i"});
            main.as_object_mut().into_iter().for_each(|m| m.extend(container.as_object().cloned().unwrap_or_default()));
            let lists = json!({"restartPolicy": policy, "initContainers": [main], "containers": [main]});
            let status = json!({"containerStatuses": terminated(code), "initContainerStatuses": terminated(code)});
            for list in ["containerStatuses", "initContainerStatuses"] {
                let error = error(list);
                let expected: &[&str] = if allowed { &[] } else { &[&error] };
                check(&pod(lists.clone(), status.clone()), &[(&format!("/status/{list}"), running.clone(), expected)]);
            }
        }
        let ephemeral = pod(json!({"restartPolicy": "Always"}), json!({"ephemeralContainerStatuses": terminated(1)}));
        check(
            &ephemeral,
            &[
                ("/status/ephemeralContainerStatuses", running.clone(), &[&error("ephemeralContainerStatuses")]),
                ("/status/ephemeralContainerStatuses", terminated(2), &[]),
                ("/status/ephemeralContainerStatuses", json!([]), &[]),
            ],
        );
        let unknown = pod(
            json!({"restartPolicy": "Always"}),
            json!({"containerStatuses": [
            {"name": "other", "state": {"terminated": {"exitCode": 1}}}]}),
        );
        check(
            &unknown,
            &[("/status/containerStatuses/0/state", json!({"running": {}}), &[&error("containerStatuses")])],
        );
    }

    #[test]
    fn validates_resource_claims() {
        let old = pod(
            json!({"resourceClaims": [{"name": "a", "resourceClaimTemplateName": "t"}], "containers": [
                {"name": "c", "image": "i", "resources": {"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}}}]}),
            json!({}),
        );
        let claims = "/status/resourceClaimStatuses";
        let at = "status.resourceClaimStatuses";
        let subdomain = "a lowercase RFC 1123 subdomain…";
        check(
            &old,
            &[
                (claims, json!([{"name": "a", "resourceClaimName": "x"}]), &[]),
                (
                    claims,
                    json!([{"name": "b"}]),
                    &[&format!(
                        "{at}[0].name: Invalid value: \"b\": must match the name of an entry in `spec.resourceClaims`"
                    )],
                ),
                (claims, json!([{"name": "a"}, {"name": "a"}]), &[&format!("{at}[1].name: Duplicate value: \"a\"")]),
                (
                    claims,
                    json!([{"name": "a", "resourceClaimName": "X"}]),
                    &[&format!("{at}[0].resourceClaimName: Invalid value: \"X\": {subdomain}")],
                ),
            ],
        );
        let extended = "/status/extendedResourceClaimStatus";
        let at = "status.extendedResourceClaimStatus";
        let mapping = |container: &str, resource: &str, request: &str| json!({"containerName": container, "resourceName": resource, "requestName": request});
        let claim = |name: &str, mappings: &[Value]| json!({"resourceClaimName": name, "requestMappings": mappings});
        let valid = mapping("c", "example.com/gpu", "r");
        let no_container = "must match the name of an entry in spec.initContainers.name or spec.containers.name";
        let no_resource = "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests";
        check(
            &old,
            &[
                (extended, claim("x", std::slice::from_ref(&valid)), &[]),
                (
                    extended,
                    claim("", &[]),
                    &[
                        &format!("{at}.requestMappings: Required value: at least one request mapping is required"),
                        &format!("{at}.resourceClaimName: Required value"),
                    ],
                ),
                (
                    extended,
                    claim("X", std::slice::from_ref(&valid)),
                    &[&format!("{at}.resourceClaimName: Invalid value: \"X\": {subdomain}")],
                ),
                (
                    extended,
                    claim("x", &[mapping("d", "example.com/gpu", "r")]),
                    &[&format!("{at}.requestMappings[0].containerName: Invalid value: \"d\": {no_container}")],
                ),
                (
                    extended,
                    claim("x", &[mapping("c", "example.com/other", "R")]),
                    &[
                        &format!(
                            "{at}.requestMappings[0].resourceName: Invalid value: \"example.com/other\": {no_resource}"
                        ),
                        &format!("{at}.requestName: Invalid value: \"R\": a lowercase RFC 1123 label…"),
                    ],
                ),
                (
                    extended,
                    claim("x", &[valid.clone(), valid.clone()]),
                    &[
                        &format!("{at}.requestMappings[1].containerName: Duplicate value: \"c\""),
                        &format!("{at}.requestMappings[1].resourceName: Duplicate value: \"example.com/gpu\""),
                        &format!("{at}.requestMappings[1].requestName: Duplicate value: \"r\""),
                    ],
                ),
            ],
        );
    }
}
