//! Validation of containers: names, images, ports, and fields that depend on the kind of container.

use super::{SpecOwner, claims, env, mounts, probes, resources, security};
use crate::read::{is_sent, is_set, items, text};
use meta::field::{ErrorList, Origin};
use meta::{FieldError, FieldPath, Value, names};
use std::collections::{HashMap, HashSet};

/// The pod spec to which containers belong.
pub struct PodContext<'a> {
    pub spec: &'a Value,
    pub volumes: &'a HashMap<&'a str, &'a Value>,
    pub owner: SpecOwner<'a>,
}

const RESTARTS: [&str; 3] = ["Always", "Never", "OnFailure"];

pub fn rules(s: &PodContext<'_>, path: &FieldPath, errors: &mut ErrorList) {
    let mut seen: HashSet<&str> = HashSet::new();
    // Upstream reports a duplicate name at the init container.
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        let list_at = path.child(list);
        for (i, c) in items(s.spec, list).iter().enumerate() {
            let at = list_at.index(i);
            let name = text(c, "name");
            common(s, c, &at, errors);
            if seen.contains(name) {
                errors.push(FieldError::duplicate(&at.child("name"), name));
            } else if list != "initContainers" || !name.is_empty() {
                seen.insert(name);
            }
            let sidecar = list == "initContainers" && text(c, "restartPolicy") == "Always";
            if list == "containers" || sidecar {
                probes::rules(c, s.spec, &at, errors);
            }
            match list {
                "initContainers" => {
                    restarts(c, &at, errors);
                    if !sidecar {
                        init_container(c, &at, errors);
                    }
                    // Ports of init containers are compared within each, as they run one after the other. Upstream
                    // reports index 0.
                    host_ports(std::slice::from_ref(c), &list_at, errors);
                }
                "containers" => restarts(c, &at, errors),
                _ => ephemeral(s.spec, c, &at, errors),
            }
        }
    }
    host_ports(items(s.spec, "containers"), &path.child("containers"), errors);
    if s.spec["hostNetwork"] == true {
        host_network_ports(s, path, errors);
    }
}

fn common(s: &PodContext<'_>, c: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let name = text(c, "name");
    if name.is_empty() {
        errors.push(FieldError::required(&at.child("name"), ""));
    } else {
        errors.extend(names::dns_label(name).into_iter().map(|m| FieldError::invalid(&at.child("name"), name, m)));
    }
    let image = text(c, "image");
    if image.is_empty() {
        errors.push(FieldError::required(&at.child("image"), ""));
    } else if s.owner.is_pod() && image.trim() != image {
        errors.push(FieldError::invalid(&at.child("image"), image, "must not have leading or trailing whitespace"));
    }
    let mut port_names = HashSet::new();
    for (i, p) in items(c, "ports").iter().enumerate() {
        let name = text(p, "name");
        let at = at.child("ports").index(i).child("name");
        if !name.is_empty() {
            let bad = names::port_name(name);
            if bad.is_empty() && !port_names.insert(name) {
                errors.push(FieldError::duplicate(&at, name));
            }
            errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at, name, m)));
        }
    }
    let at_resources = at.child("resources");
    resources::requirements(&c["resources"], resources::Owner::Container, &at_resources, errors);
    claims::of_container(&c["resources"], s.spec, &at_resources.child("claims"), errors);
    resize_policy(c, s.spec, &at.child("resizePolicy"), errors);
    security::container(c, s.spec["hostUsers"] != false, at, errors);
    surroundings(c, at, s.volumes, errors);
}

/// Validates volume mounts and environment variables.
pub fn surroundings(c: &Value, at: &FieldPath, volumes: &HashMap<&str, &Value>, errors: &mut ErrorList) {
    mounts::rules(c, at, volumes, errors);
    env::variables(c, at, errors);
}

/// Checks that host ports are unique.
fn host_ports(containers: &[Value], list: &FieldPath, errors: &mut ErrorList) {
    let mut taken = HashSet::new();
    for (i, c) in containers.iter().enumerate() {
        for (j, p) in items(c, "ports").iter().enumerate() {
            let host = p["hostPort"].as_i64().unwrap_or(0);
            let key = format!("{}/{}/{host}", text(p, "protocol"), text(p, "hostIP"));
            if host != 0 && !taken.insert(key.clone()) {
                let at = list.index(i).child("ports").index(j).child("hostPort");
                errors.push(FieldError::duplicate(&at, key));
            }
        }
    }
}

/// Checks that host ports equal container ports on the host network. A template may omit them.
fn host_network_ports(s: &PodContext<'_>, path: &FieldPath, errors: &mut ErrorList) {
    for (i, c) in items(s.spec, "containers").iter().enumerate() {
        for (j, p) in items(c, "ports").iter().enumerate() {
            let number = |k: &str| p[k].as_i64().unwrap_or(0);
            let (host, own) = (number("hostPort"), number("containerPort"));
            if (s.owner.is_pod() || host != 0) && host != own {
                let at = path.child("containers").index(i).child("ports").index(j).child("hostPort");
                let why = "must match `containerPort` when `hostNetwork` is true";
                errors.push(FieldError::invalid(&at, host, why));
            }
        }
    }
}

/// Validates restart policy and restart rules.
fn restarts(c: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let rules = items(c, "restartPolicyRules");
    let policy_at = at.child("restartPolicy");
    match c["restartPolicy"].as_str() {
        Some(p) if !RESTARTS.contains(&p) => errors.push(FieldError::not_supported(&policy_at, p, &RESTARTS)),
        None if !rules.is_empty() => {
            // Upstream validates no rules then.
            let why = "must specify restartPolicy when restart rules are used";
            errors.push(FieldError::required(&policy_at, why));
            return;
        }
        _ => {}
    }
    let list = at.child("restartPolicyRules");
    if rules.len() > 20 {
        errors.push(FieldError::too_many(&list, rules.len(), 20));
    }
    for (i, r) in rules.iter().enumerate() {
        let at = list.index(i);
        let actions = ["Restart", "RestartAllContainers"];
        if !actions.contains(&text(r, "action")) {
            errors.push(FieldError::not_supported(&at.child("action"), text(r, "action"), &actions));
        }
        let at = at.child("exitCodes");
        let codes = &r["exitCodes"];
        if !codes.is_object() {
            errors.push(FieldError::required(&at, "must be specified"));
            continue;
        }
        let operators = ["In", "NotIn"];
        if !operators.contains(&text(codes, "operator")) {
            errors.push(FieldError::not_supported(&at.child("operator"), text(codes, "operator"), &operators));
        }
        let values = items(codes, "values");
        if values.len() > 255 {
            errors.push(FieldError::too_many(&at.child("values"), values.len(), 255));
        }
    }
}

/// Rejects probes, lifecycle hooks, and restarts to resize, of init containers that are no sidecars.
fn init_container(c: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let restarts = |(_, p): &(usize, &Value)| text(p, "restartPolicy") == RESTARTS_TO_RESIZE;
    for (j, _) in items(c, "resizePolicy").iter().enumerate().filter(restarts) {
        let at = at.child("resizePolicy").index(j).child("restartPolicy");
        let why = "must not be set to 'RestartContainer' for non-sidecar initContainers";
        errors.push(FieldError::invalid(&at, RESTARTS_TO_RESIZE, why).with_origin(Origin::OnceAllowed));
    }
    for k in probes::PROBES.into_iter().chain(["lifecycle"]).filter(|k| is_set(c, k)) {
        let why = "may not be set for init containers without restartPolicy=Always";
        errors.push(FieldError::forbidden(&at.child(k), why));
    }
}

/// Fields that ephemeral containers may not have.
const NOT_EPHEMERAL: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

fn ephemeral(spec: &Value, c: &Value, at: &FieldPath, errors: &mut ErrorList) {
    const WHY: &str = "cannot be set for an Ephemeral Container";
    let target = text(c, "targetContainerName");
    let known =
        ["containers", "initContainers"].iter().any(|l| items(spec, l).iter().any(|o| text(o, "name") == target));
    if !target.is_empty() && !known {
        errors.push(FieldError::not_found(&at.child("targetContainerName"), target));
    }
    // A Go pointer is set even if its target is empty; a struct is set if any of its fields is.
    let set = |k: &str| match k {
        "resources" => {
            let (own, at) = (&c[k], at.child(k));
            ["limits", "requests", "claims"].iter().any(|part| is_sent(own, part, &at))
        }
        k => is_sent(c, k, at),
    };
    // Upstream reports these fields last.
    let last = at.child("targetContainerName");
    for k in NOT_EPHEMERAL.into_iter().filter(|k| set(k)) {
        errors.push(FieldError::forbidden(&at.child(k), WHY).ordered_at(&last));
    }
    for (i, m) in items(c, "volumeMounts").iter().enumerate() {
        for k in ["subPath", "subPathExpr"].into_iter().filter(|k| !text(m, k).is_empty()) {
            let at = at.child("volumeMounts").index(i).child(k);
            errors.push(FieldError::forbidden(&at, WHY).ordered_at(&last));
        }
    }
}

const RESIZED: [&str; 2] = ["cpu", "memory"];
const RESTARTS_TO_RESIZE: &str = "RestartContainer";
const RESIZES: [&str; 2] = ["NotRequired", RESTARTS_TO_RESIZE];

/// Validates resize policies. Upstream reports errors at the list.
fn resize_policy(c: &Value, spec: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let mut seen = HashSet::new();
    for (i, p) in items(c, "resizePolicy").iter().enumerate() {
        let (resource, policy) = (text(p, "resourceName"), text(p, "restartPolicy"));
        let before = errors.len();
        if !seen.insert(resource) {
            errors.push(FieldError::duplicate(&at.index(i), resource));
        }
        for (value, known) in [(resource, RESIZED), (policy, RESIZES)] {
            if value.is_empty() {
                errors.push(FieldError::required(at, ""));
            } else if !known.contains(&value) {
                errors.push(FieldError::not_supported(at, value, &known));
            }
        }
        if spec["restartPolicy"] == "Never" && policy != "NotRequired" {
            errors.push(FieldError::invalid(at, policy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'"));
        }
        errors.iter_mut().skip(before).for_each(|e| e.order_path = Some(at.index(i).to_string()));
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::check_pod_spec;
    use serde_json::{Value, json};

    #[test]
    fn validates_ports() {
        let field = "/containers/0/ports";
        let at = "containers[0].ports";
        check_pod_spec(&[
            (field, json!([{"name": "a", "containerPort": 80}, {"containerPort": 81, "hostPort": 81}]), &[]),
            (
                field,
                json!([{"name": "a", "containerPort": 80}, {"name": "a", "containerPort": 81}]),
                &[&format!("{at}[1].name: Duplicate value: \"a\"")],
            ),
            (
                field,
                json!([{"containerPort": 80, "hostPort": 1}, {"containerPort": 81, "hostPort": 1}]),
                &[&format!("{at}[1].hostPort: Duplicate value: \"TCP//1\"")],
            ),
            (field, json!([{"containerPort": 0}]), &[&format!("{at}[0].containerPort: Required value")]),
            (
                field,
                json!([{"containerPort": 80, "protocol": "ICMP"}]),
                &[&format!(
                    "{at}[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\""
                )],
            ),
        ]);
    }

    #[test]
    fn validates_kinds_of_containers() {
        let probe = json!({"exec": {"command": ["a"]}});
        let init = |extra: Value| {
            let mut c = json!({"name": "i", "image": "i"});
            extra.as_object().into_iter().flatten().for_each(|(k, v)| c[k] = v.clone());
            json!([c])
        };
        let policy = "Unsupported value: \"Other\": supported values: \"Always\", \"Never\", \"OnFailure\"";
        check_pod_spec(&[
            ("/initContainers", init(json!({"restartPolicy": "Always", "livenessProbe": probe})), &[]),
            (
                "/initContainers",
                init(json!({"livenessProbe": probe})),
                &[
                    "initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
                ],
            ),
            (
                "/initContainers",
                init(json!({"restartPolicy": "Other"})),
                &[&format!("initContainers[0].restartPolicy: {policy}")],
            ),
            (
                "/containers/0/resizePolicy",
                json!([{"resourceName": "cpu", "restartPolicy": "NotRequired"}, {"resourceName": "cpu", "restartPolicy": "NotRequired"}]),
                &["containers[0].resizePolicy[1]: Duplicate value: \"cpu\""],
            ),
            (
                "/containers/0/resizePolicy",
                json!([{"resourceName": "disk", "restartPolicy": "NotRequired"}]),
                &["containers[0].resizePolicy: Unsupported value: \"disk\": supported values: \"cpu\", \"memory\""],
            ),
            (
                "/containers/0/restartPolicyRules",
                json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]),
                &[
                    "containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used",
                ],
            ),
        ]);
        check_pod_spec(&[(
            "/ephemeralContainers",
            json!([{"name": "e", "image": "i", "ports": [{"containerPort": 1}], "targetContainerName": "x"}]),
            &[
                "ephemeralContainers[0].targetContainerName: Not found: \"x\"",
                "ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
                "ephemeralContainers: Forbidden: cannot be set on create",
            ],
        )]);
    }
}
