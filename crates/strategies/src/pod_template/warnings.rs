//! Warnings for pods (`k8s.io/kubernetes/pkg/api/pod/warnings.go`).

use super::overlaps::overlaps;
use crate::read::{is_set, items, text};
use meta::{FieldPath, Object, Quantity, Value, names};
use serde_json::json;
use std::collections::{HashMap, HashSet};

const OLD_NODE_LABELS: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    ("failure-domain.beta.kubernetes.io/zone", "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"),
    ("beta.kubernetes.io/instance-type", "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    ("scheduler.alpha.kubernetes.io/preferAvoidPods", "deprecated since v1.22; use Taints and Tolerations instead"),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

const OLD_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    ("security.alpha.kubernetes.io/unsafe-sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
];

/// Deprecated and removed volume types, and their warnings.
const OLD_VOLUMES: [(&str, &str); 9] = [
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const NULL_SELECTOR: &str = "a null labelSelector results in matching no pod";

/// Returns the warnings for a template.
pub fn warnings(template: &Value, path: &FieldPath) -> Vec<String> {
    pod_warnings(&template["metadata"], &template["spec"], path)
}

/// Returns the warnings for a pod (`path` is the root) or a template.
pub fn pod_warnings(metadata: &Value, spec: &Value, path: &FieldPath) -> Vec<String> {
    let mut out = Vec::new();
    let at = path.child("spec");
    scheduling(spec, &at, &mut out);
    for (k, why) in OLD_ANNOTATIONS {
        if is_set(&metadata["annotations"], k) {
            out.push(format!("{}: {why}", path.child("metadata").child("annotations").key(k)));
        }
    }
    volumes(spec, &at, &mut out);
    duplicates(spec, "hostAliases", "ip", &at, &mut out);
    duplicates(spec, "imagePullSecrets", "name", &at, &mut out);
    for (i, s) in items(spec, "imagePullSecrets").iter().enumerate() {
        if text(s, "name").is_empty() {
            out.push(format!("{}: invalid empty name \"\"", at.child("imagePullSecrets").index(i).child("name")));
        }
    }
    fractions(&spec["overhead"], &at.child("overhead"), &mut out);
    profiles(metadata, spec, path, &mut out);
    for (c, c_at) in containers(spec, &at) {
        for part in ["limits", "requests"] {
            fractions(&c["resources"][part], &c_at.child("resources").child(part), &mut out);
        }
        hidden_env(c, &c_at, &mut out);
    }
    ports(spec, &at, &mut out);
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|n| n < 0) {
        let field = at.child("terminationGracePeriodSeconds");
        out.push(format!("{field}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    affinity(spec, &at, &mut out);
    for (i, server) in items(&spec["dnsConfig"], "nameservers").iter().enumerate() {
        let at = at.child("dnsConfig").child("nameservers").index(i);
        out.extend(schema::rules::ip_warning(server.as_str().unwrap_or_default(), &at));
    }
    for (i, alias) in items(spec, "hostAliases").iter().enumerate() {
        let at = at.child("hostAliases").index(i).child("ip");
        out.extend(schema::rules::ip_warning(text(alias, "ip"), &at));
    }
    out
}

/// Returns the warnings for a workload's name, from which pod names and hostnames derive.
pub fn name_warnings(name: &str) -> Vec<String> {
    let why = meta::names::dns_label(name);
    if why.is_empty() {
        return Vec::new();
    }
    let warning = "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior";
    vec![format!("{warning}; a DNS label is recommended: [{}]", why.join(" "))]
}

/// Returns the warnings for a workload's template, unless an update leaves its generation unchanged.
pub fn workload_warnings(o: &Object, old: Option<&Object>, path: &[&str]) -> Vec<String> {
    if old.is_some_and(|old| old.generation() == o.generation()) {
        return Vec::new();
    }
    o.at(path).map(|t| warnings(t, &FieldPath::new(path.join(".")))).unwrap_or_default()
}

fn containers<'a>(spec: &'a Value, at: &FieldPath) -> Vec<(&'a Value, FieldPath)> {
    let mut out = Vec::new();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (i, c) in items(spec, list).iter().enumerate() {
            out.push((c, at.child(list).index(i)));
        }
    }
    out
}

/// Returns the warning for a deprecated node label.
pub fn old_label(key: &str) -> Option<&'static str> {
    OLD_NODE_LABELS.iter().find(|(k, _)| *k == key).map(|(_, why)| *why)
}

/// Adds warnings for profiles that are set only by annotation. Those of AppArmor are for templates alone: pods are warned
/// when the annotations become fields.
fn profiles(metadata: &Value, spec: &Value, path: &FieldPath, out: &mut Vec<String>) {
    let annotations = &metadata["annotations"];
    if annotations.as_object().is_none_or(|m| m.is_empty()) {
        return;
    }
    let at = path.child("metadata").child("annotations");
    let mut warn = |key: &str, field: &str, why: &str| {
        out.push(format!("{}: {why}; use the \"{field}\" field instead", at.key(key)));
    };
    let own = &spec["securityContext"];
    if !is_set(own, "seccompProfile") && is_set(annotations, SECCOMP_OF_POD) {
        warn(SECCOMP_OF_POD, "seccompProfile", "non-functional in v1.27+");
    }
    for (c, _) in containers(spec, path) {
        let (context, name) = (&c["securityContext"], text(c, "name"));
        let key = format!("container.seccomp.security.alpha.kubernetes.io/{name}");
        if !is_set(context, "seccompProfile") && is_set(annotations, &key) {
            warn(&key, "seccompProfile", "non-functional in v1.27+");
        }
        let key = format!("container.apparmor.security.beta.kubernetes.io/{name}");
        if path.is_root() || is_set(context, "appArmorProfile") || !is_set(annotations, &key) {
            continue;
        }
        let of_pod = &own["appArmorProfile"];
        if of_pod.is_null() || apparmor_profile(text(annotations, &key)).as_ref() != Some(of_pod) {
            warn(&key, "appArmorProfile", "deprecated since v1.30");
        }
    }
}

/// Returns the AppArmor profile of an annotation value, or `None` if the value is unknown.
pub fn apparmor_profile(annotation: &str) -> Option<Value> {
    match (annotation, annotation.strip_prefix("localhost/")) {
        ("unconfined", _) => Some(json!({"type": "Unconfined"})),
        ("runtime/default", _) => Some(json!({"type": "RuntimeDefault"})),
        (_, Some(name)) if !name.is_empty() => Some(json!({"type": "Localhost", "localhostProfile": name})),
        _ => None,
    }
}

fn scheduling(spec: &Value, at: &FieldPath, out: &mut Vec<String>) {
    for k in spec["nodeSelector"].as_object().into_iter().flatten().map(|(k, _)| k) {
        if let Some(why) = old_label(k) {
            out.push(format!("{}: {why}", at.child("nodeSelector").key(k)));
        }
    }
    let nodes = &spec["affinity"]["nodeAffinity"];
    let nodes_at = at.child("affinity").child("nodeAffinity");
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    for (i, t) in items(&nodes[required], "nodeSelectorTerms").iter().enumerate() {
        node_term_warnings(t, false, &nodes_at.child(required).child("nodeSelectorTerms").index(i), out);
    }
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    for (i, t) in items(nodes, preferred).iter().enumerate() {
        node_term_warnings(&t["preference"], true, &nodes_at.child(preferred).index(i).child("preference"), out);
    }
    for (i, c) in items(spec, "topologySpreadConstraints").iter().enumerate() {
        let at = at.child("topologySpreadConstraints").index(i);
        if let Some(why) = old_label(text(c, "topologyKey")) {
            out.push(format!("{}: {} is {why}", at.child("topologyKey"), text(c, "topologyKey")));
        }
        if !is_set(c, "labelSelector") {
            out.push(format!("{}: {NULL_SELECTOR}", at.child("labelSelector")));
        }
    }
}

/// Adds warnings for deprecated node labels and, if `with_values`, for invalid label values.
pub fn node_term_warnings(t: &Value, with_values: bool, at: &FieldPath, out: &mut Vec<String>) {
    for (i, e) in items(t, "matchExpressions").iter().enumerate() {
        let at = at.child("matchExpressions").index(i);
        let key = text(e, "key");
        if let Some(why) = old_label(key) {
            out.push(format!("{}: {key} is {why}", at.child("key")));
        }
        for (j, v) in items(e, "values").iter().enumerate().filter(|_| with_values) {
            let v = v.as_str().unwrap_or_default();
            for m in names::label_value(v) {
                out.push(format!("{}: {v} is invalid, {m}", at.child("values").index(j)));
            }
        }
    }
}

fn affinity(spec: &Value, at: &FieldPath, out: &mut Vec<String>) {
    for side in ["podAffinity", "podAntiAffinity"] {
        let terms = &spec["affinity"][side];
        let at = at.child("affinity").child(side);
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        for (i, t) in items(terms, required).iter().enumerate() {
            if !is_set(t, "labelSelector") {
                out.push(format!("{}: {NULL_SELECTOR}", at.child(required).index(i).child("labelSelector")));
            }
        }
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        for (i, t) in items(terms, preferred).iter().enumerate() {
            if !is_set(&t["podAffinityTerm"], "labelSelector") {
                let at = at.child(preferred).index(i).child("podAffinityTerm").child("labelSelector");
                out.push(format!("{at}: {NULL_SELECTOR}"));
            }
        }
    }
}

fn volumes(spec: &Value, at: &FieldPath, out: &mut Vec<String>) {
    for (i, v) in items(spec, "volumes").iter().enumerate() {
        for (kind, why) in OLD_VOLUMES {
            if is_set(v, kind) {
                let name = if kind == "storageos" { "storageOS" } else { kind };
                out.push(format!("{}: {why}", at.child("volumes").index(i).child(name)));
            }
        }
        let claim = &v["ephemeral"]["volumeClaimTemplate"];
        if claim.is_object() {
            let at = at.child("volumes").index(i).child("ephemeral").child("volumeClaimTemplate").child("spec");
            out.extend(claim_sizes(&claim["spec"], &at));
        }
    }
    items(spec, "volumes").iter().for_each(|v| overlaps(v, out));
}

fn duplicates(spec: &Value, list: &str, key: &str, at: &FieldPath, out: &mut Vec<String>) {
    let mut seen = HashSet::new();
    for (i, item) in items(spec, list).iter().enumerate() {
        let v = text(item, key);
        if !seen.insert(v) {
            out.push(format!("{}: duplicate {key} {v:?}", at.child(list).index(i).child(key)));
        }
    }
}

/// Returns the warnings for fractional byte sizes of a claim.
pub fn claim_sizes(spec: &Value, at: &FieldPath) -> Vec<String> {
    let mut out = Vec::new();
    for part in ["requests", "limits"] {
        fractional_bytes(&["storage"], &spec["resources"][part], &at.child("resources").child(part), &mut out);
    }
    out
}

fn fractions(amounts: &Value, at: &FieldPath, out: &mut Vec<String>) {
    fractional_bytes(&["memory", "ephemeral-storage"], amounts, at, out);
}

fn fractional_bytes(names: &[&str], amounts: &Value, at: &FieldPath, out: &mut Vec<String>) {
    for k in names {
        let v = text(amounts, k);
        if Quantity::parse(v).is_ok_and(|q| !q.counts_as_integer()) {
            out.push(format!("{}: fractional byte value {v:?} is invalid, must be an integer", at.key(k)));
        }
    }
}

/// Adds warnings for variables that hide a previous definition.
fn hidden_env(c: &Value, at: &FieldPath, out: &mut Vec<String>) {
    let mut seen = HashSet::new();
    for (i, e) in items(c, "env").iter().enumerate() {
        let name = text(e, "name");
        if seen.insert(name) {
            continue;
        }
        let reference = format!("$({name})");
        let value = text(e, "value");
        if is_set(e, "valueFrom") || value == reference || !value.contains(&reference) {
            out.push(format!(
                "{}: hides previous definition of {name:?}, which may be dropped when using apply",
                at.child("env").index(i)
            ));
        }
    }
}

fn ports(spec: &Value, at: &FieldPath, out: &mut Vec<String>) {
    let mut all: HashMap<String, Vec<(FieldPath, &Value)>> = HashMap::new();
    for (c, c_at) in containers(spec, at) {
        for (i, p) in items(c, "ports").iter().enumerate() {
            let at = c_at.child("ports").index(i);
            let host = |p: &Value| (text(p, "hostIP").to_owned(), p["hostPort"].as_i64().unwrap_or(0));
            let mine = host(p);
            if !mine.0.is_empty() && mine.1 == 0 {
                // Formatted as Go prints a struct.
                let (name, port, protocol) = (text(p, "name"), &p["containerPort"], text(p, "protocol"));
                let port =
                    format!("{{Name:{name} HostPort:0 ContainerPort:{port} Protocol:{protocol} HostIP:{}}}", mine.0);
                out.push(format!("{at}: hostIP set without hostPort: {port}"));
            }
            let others = all.entry(format!("{}/{}", p["containerPort"], text(p, "protocol"))).or_default();
            for (other_at, other) in others.iter() {
                let other = host(other);
                let ambiguous = mine.0.is_empty() != other.0.is_empty() && mine.1 == other.1;
                let what = if mine == other {
                    "duplicate"
                } else if mine.1 == 0 || other.1 == 0 {
                    "overlapping"
                } else if ambiguous {
                    "dangerously ambiguous"
                } else {
                    continue;
                };
                out.push(format!("{at}: {what} port definition with {other_at}"));
            }
            others.push((at, p));
        }
    }
    let mut named: HashMap<&str, FieldPath> = HashMap::new();
    for (c, c_at) in containers(spec, at) {
        for (i, p) in items(c, "ports").iter().enumerate().filter(|(_, p)| !text(p, "name").is_empty()) {
            let (at, name) = (c_at.child("ports").index(i), text(p, "name"));
            match named.get(name) {
                Some(other) => out.push(format!("{at}: duplicate port name {name:?} with {other}, services and probes that select ports by name will use {other}")),
                None => drop(named.insert(name, at)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A JSON pointer into a template, the new value, and the expected warnings.
    type Case<'a> = (&'a str, Value, &'a [&'a str]);

    /// Checks the warnings for a template with the field of each case set.
    fn check(cases: &[Case<'_>]) {
        for (pointer, value, expected) in cases {
            let mut template = json!({"metadata": {}, "spec": {"containers": [{"name": "c"}, {"name": "d"}]}});
            *crate::testing::field(&mut template, pointer) = value.clone();
            assert_eq!(warnings(&template, &FieldPath::new("template")), *expected, "{pointer} {value}");
        }
    }

    #[test]
    fn warns_of_old_labels_and_selectors_of_nothing() {
        let arch = "deprecated since v1.14; use \"kubernetes.io/arch\" instead";
        let key = "beta.kubernetes.io/arch";
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        let nodes = "template.spec.affinity.nodeAffinity";
        let expressions = json!([{"key": key, "operator": "In", "values": ["a b"]}]);
        let invalid = names::label_value("a b").join("");
        let null = "a null labelSelector results in matching no pod";
        check(&[
            (
                "/spec/nodeSelector",
                json!({key: "amd64", "kubernetes.io/arch": "amd64"}),
                &[&format!("template.spec.nodeSelector[{key}]: {arch}")],
            ),
            (
                "/spec/affinity/nodeAffinity",
                json!({required: {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}),
                &[&format!("{nodes}.{required}.nodeSelectorTerms[0].matchExpressions[0].key: {key} is {arch}")],
            ),
            (
                "/spec/affinity/nodeAffinity",
                json!({preferred: [{"weight": 1, "preference": {"matchExpressions": expressions}}]}),
                &[
                    &format!("{nodes}.{preferred}[0].preference.matchExpressions[0].key: {key} is {arch}"),
                    &format!(
                        "{nodes}.{preferred}[0].preference.matchExpressions[0].values[0]: a b is invalid, {invalid}"
                    ),
                ],
            ),
            (
                "/spec/topologySpreadConstraints",
                json!([{"topologyKey": key, "labelSelector": {}}, {"topologyKey": "zone"}]),
                &[
                    &format!("template.spec.topologySpreadConstraints[0].topologyKey: {key} is {arch}"),
                    &format!("template.spec.topologySpreadConstraints[1].labelSelector: {null}"),
                ],
            ),
            (
                "/spec/affinity",
                json!({"podAffinity": {required: [{"topologyKey": "zone"}, {"labelSelector": {}}]},
                    "podAntiAffinity": {preferred: [{"podAffinityTerm": {"topologyKey": "zone"}}]}}),
                &[
                    &format!("template.spec.affinity.podAffinity.{required}[0].labelSelector: {null}"),
                    &format!(
                        "template.spec.affinity.podAntiAffinity.{preferred}[0].podAffinityTerm.labelSelector: {null}"
                    ),
                ],
            ),
        ]);
    }

    #[test]
    fn warns_of_annotations_without_fields() {
        let annotations = |key: &str, value: &str| json!({key: value});
        let (seccomp, apparmor) =
            ("container.seccomp.security.alpha.kubernetes.io/c", "container.apparmor.security.beta.kubernetes.io/c");
        let at = |key: &str| format!("template.metadata.annotations[{key}]");
        let old =
            |key: &str| format!("{}: non-functional in v1.27+; use the \"seccompProfile\" field instead", at(key));
        let deprecated = format!("{}: deprecated since v1.30; use the \"appArmorProfile\" field instead", at(apparmor));
        let critical = "scheduler.alpha.kubernetes.io/critical-pod";
        check(&[
            ("/metadata/annotations", annotations("a", "b"), &[]),
            (
                "/metadata/annotations",
                annotations(critical, ""),
                &[&format!("{}: non-functional in v1.16+; use the \"priorityClassName\" field instead", at(critical))],
            ),
            ("/metadata/annotations", annotations(SECCOMP_OF_POD, "x"), &[&old(SECCOMP_OF_POD)]),
            ("/metadata/annotations", annotations(seccomp, "x"), &[&old(seccomp)]),
            ("/metadata/annotations", annotations(apparmor, "unconfined"), &[&deprecated]),
        ]);
        for (own, value, warned) in [
            (json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}), "unconfined", false),
            (json!({"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}), "runtime/default", false),
            (
                json!({"securityContext": {"appArmorProfile": {"type": "Localhost", "localhostProfile": "p"}}}),
                "localhost/p",
                false,
            ),
            (
                json!({"securityContext": {"appArmorProfile": {"type": "Localhost", "localhostProfile": "p"}}}),
                "localhost/q",
                true,
            ),
            (json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}), "odd", true),
            (
                json!({"containers": [{"name": "c", "securityContext": {"appArmorProfile": {"type": "Unconfined"}}}]}),
                "odd",
                false,
            ),
        ] {
            let mut spec = json!({"containers": [{"name": "c"}]});
            own.as_object().into_iter().flatten().for_each(|(k, v)| spec[k] = v.clone());
            let metadata = json!({"annotations": {apparmor: value}});
            let expected: &[&String] = if warned { &[&deprecated] } else { &[] };
            assert_eq!(
                pod_warnings(&metadata, &spec, &FieldPath::new("template")).iter().collect::<Vec<_>>(),
                expected,
                "{own} {value}"
            );
            assert!(pod_warnings(&metadata, &spec, &FieldPath::root()).is_empty(), "of a pod: {own} {value}");
        }
    }

    #[test]
    fn warns_of_old_volumes() {
        let volume = |fields: Value| {
            let mut volume = json!({"name": "v"});
            fields.as_object().into_iter().flatten().for_each(|(k, v)| volume[k] = v.clone());
            json!([volume])
        };
        let size = json!({"spec": {"resources": {"requests": {"storage": "1500m"}}}});
        check(&[
            ("/spec/volumes", volume(json!({"emptyDir": {}})), &[]),
            (
                "/spec/volumes",
                volume(json!({"gitRepo": {}})),
                &["template.spec.volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+"],
            ),
            (
                "/spec/volumes",
                volume(json!({"storageos": {}})),
                &["template.spec.volumes[0].storageOS: deprecated in v1.22, non-functional in v1.25+"],
            ),
            (
                "/spec/volumes",
                volume(json!({"rbd": {}})),
                &["template.spec.volumes[0].rbd: deprecated in v1.28, non-functional in v1.31+"],
            ),
            (
                "/spec/volumes",
                volume(json!({"ephemeral": {"volumeClaimTemplate": size}})),
                &[
                    "template.spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests[storage]: fractional byte value \"1500m\" is invalid, must be an integer",
                ],
            ),
        ]);
    }

    #[test]
    fn warns_of_duplicates_fractions_and_addresses() {
        let fraction =
            |at: &str| format!("template.spec.{at}: fractional byte value \"1500m\" is invalid, must be an integer");
        let hides = "template.spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply";
        let env = |second: Value| json!([{"name": "A", "value": "a"}, second]);
        check(&[
            (
                "/spec/hostAliases",
                json!([{"ip": "10.0.0.1"}, {"ip": "10.0.0.1"}, {"ip": "010.0.0.1"}]),
                &[
                    "template.spec.hostAliases[1].ip: duplicate ip \"10.0.0.1\"",
                    "template.spec.hostAliases[2].ip: non-standard IP address \"010.0.0.1\" is invalid: use \"10.0.0.1\"",
                ],
            ),
            (
                "/spec/dnsConfig",
                json!({"nameservers": ["10.0.0.1", "FD00::1"]}),
                &[
                    "template.spec.dnsConfig.nameservers[1]: IPv6 address \"FD00::1\" should be in RFC 5952 canonical format (\"fd00::1\")",
                ],
            ),
            (
                "/spec/imagePullSecrets",
                json!([{"name": "a"}, {"name": "a"}, {"name": ""}]),
                &[
                    "template.spec.imagePullSecrets[1].name: duplicate name \"a\"",
                    "template.spec.imagePullSecrets[2].name: invalid empty name \"\"",
                ],
            ),
            ("/spec/overhead", json!({"memory": "1500m", "cpu": "1500m"}), &[&fraction("overhead[memory]")]),
            (
                "/spec/containers/1/resources",
                json!({"limits": {"ephemeral-storage": "1500m"}, "requests": {"memory": "1500m"}}),
                &[
                    &fraction("containers[1].resources.limits[ephemeral-storage]"),
                    &fraction("containers[1].resources.requests[memory]"),
                ],
            ),
            ("/spec/containers/0/env", env(json!({"name": "B", "value": "b"})), &[]),
            ("/spec/containers/0/env", env(json!({"name": "A", "value": "b"})), &[hides]),
            ("/spec/containers/0/env", env(json!({"name": "A", "value": "$(A)"})), &[hides]),
            ("/spec/containers/0/env", env(json!({"name": "A", "value": "b:$(A)"})), &[]),
            ("/spec/containers/0/env", env(json!({"name": "A", "valueFrom": {"fieldRef": {}}})), &[hides]),
            (
                "/spec/terminationGracePeriodSeconds",
                json!(-1),
                &[
                    "template.spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
                ],
            ),
        ]);
    }

    #[test]
    fn warns_of_ports_that_collide() {
        let port = |fields: Value| {
            let mut port = json!({"containerPort": 80, "protocol": "TCP"});
            fields.as_object().into_iter().flatten().for_each(|(k, v)| port[k] = v.clone());
            port
        };
        let (first, second) = ("template.spec.containers[0].ports[0]", "template.spec.containers[1].ports[0]");
        let collision = |what: &str| format!("{second}: {what} port definition with {first}");
        for (one, other, expected) in [
            (json!({}), json!({"protocol": "UDP"}), None),
            (json!({}), json!({}), Some(collision("duplicate"))),
            (json!({"hostPort": 1}), json!({"hostPort": 1}), Some(collision("duplicate"))),
            (json!({"hostPort": 1}), json!({}), Some(collision("overlapping"))),
            (json!({"hostPort": 1}), json!({"hostPort": 2}), None),
            (
                json!({"hostPort": 1}),
                json!({"hostPort": 1, "hostIP": "10.0.0.1"}),
                Some(collision("dangerously ambiguous")),
            ),
            (json!({"hostPort": 1, "hostIP": "10.0.0.2"}), json!({"hostPort": 1, "hostIP": "10.0.0.1"}), None),
            (
                json!({"name": "a"}),
                json!({"name": "a", "containerPort": 81}),
                Some(format!(
                    "{second}: duplicate port name \"a\" with {first}, services and probes that select ports by name will use {first}"
                )),
            ),
            (
                json!({}),
                json!({"containerPort": 81, "hostIP": "10.0.0.1"}),
                Some(format!(
                    "{second}: hostIP set without hostPort: {{Name: HostPort:0 ContainerPort:81 Protocol:TCP HostIP:10.0.0.1}}"
                )),
            ),
        ] {
            let spec = json!({"containers": [{"name": "c", "ports": [port(one.clone())]}, {"name": "d", "ports": [port(other.clone())]}]});
            assert_eq!(
                warnings(&json!({"spec": spec}), &FieldPath::new("template")),
                Vec::from_iter(expected),
                "{one} {other}"
            );
        }
    }
}
