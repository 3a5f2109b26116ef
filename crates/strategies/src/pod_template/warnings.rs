//! Warnings for pods (`k8s.io/kubernetes/pkg/api/pod/warnings.go`).

use crate::read::{is_set, items, text};
use meta::{FieldPath, Object, Quantity, Value, names};
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
    ("gitRepo", "deprecated in v1.11"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

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

/// Adds warnings for profiles that are set only by annotation, which is ignored.
fn profiles(metadata: &Value, spec: &Value, path: &FieldPath, out: &mut Vec<String>) {
    let annotations = &metadata["annotations"];
    if annotations.as_object().is_none_or(|m| m.is_empty()) {
        return;
    }
    let at = path.child("metadata").child("annotations");
    let mut warn = |key: String, field: &str, why: &str| {
        if is_set(annotations, &key) {
            out.push(format!("{}: {why}; use the \"{field}\" field instead", at.key(&key)));
        }
    };
    let own = &spec["securityContext"];
    if !is_set(own, "seccompProfile") {
        warn("seccomp.security.alpha.kubernetes.io/pod".into(), "seccompProfile", "non-functional in v1.27+");
    }
    for (c, _) in containers(spec, path) {
        let (context, name) = (&c["securityContext"], text(c, "name"));
        if !is_set(context, "seccompProfile") {
            let key = format!("container.seccomp.security.alpha.kubernetes.io/{name}");
            warn(key, "seccompProfile", "non-functional in v1.27+");
        }
        if !is_set(own, "appArmorProfile") && !is_set(context, "appArmorProfile") {
            let key = format!("container.apparmor.security.beta.kubernetes.io/{name}");
            warn(key, "appArmorProfile", "deprecated since v1.30");
        }
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
        let name = text(v, "name");
        if is_set(v, "projected") && items(&v["projected"], "sources").iter().any(empty_source) {
            out.push(format!("volume {name:?} (Projected) has no sources provided"));
        }
        overlaps(v, out);
    }
}

fn empty_source(source: &Value) -> bool {
    source.as_object().is_none_or(|m| m.is_empty())
}

/// Maximum number of files of a volume that are compared.
const MAX_FILES: usize = 1_000;
/// Maximum number of warnings for a volume; warnings of a response are limited to a few thousand characters.
const MAX_OVERLAPS: usize = 100;

/// Adds warnings for files of a volume with overlapping paths.
fn overlaps(v: &Value, out: &mut Vec<String>) {
    let name = text(v, "name");
    let paths =
        |source: &Value| -> Vec<String> { items(source, "items").iter().map(|i| text(i, "path").to_owned()).collect() };
    let (title, mut files): (String, Vec<(String, String)>) = if is_set(v, "secret") {
        let title = format!("Secret {:?}", text(&v["secret"], "secretName"));
        (title, paths(&v["secret"]).into_iter().map(|p| (p, String::new())).collect())
    } else if is_set(v, "configMap") {
        let title = format!("ConfigMap {:?}", text(&v["configMap"], "name"));
        (title, paths(&v["configMap"]).into_iter().map(|p| (p, String::new())).collect())
    } else if is_set(v, "downwardAPI") {
        ("DownwardAPI".into(), paths(&v["downwardAPI"]).into_iter().map(|p| (p, String::new())).collect())
    } else if is_set(v, "projected") {
        let mut files = Vec::new();
        for s in items(&v["projected"], "sources") {
            for (key, label, named) in
                [("secret", "Secret", true), ("configMap", "ConfigMap", true), ("downwardAPI", "DownwardAPI", false)]
            {
                let found = paths(&s[key]);
                if found.is_empty() {
                    continue;
                }
                let from =
                    if named { format!(" ({label} {:?})", text(&s[key], "name")) } else { format!(" ({label})") };
                files.extend(found.into_iter().map(|p| (p, from.clone())));
            }
            if is_set(s, "serviceAccountToken") {
                files.push((text(&s["serviceAccountToken"], "path").into(), " (ServiceAccountToken)".into()));
            }
        }
        ("Projected".into(), files)
    } else {
        return;
    };
    // The number of pairs is quadratic.
    files.truncate(MAX_FILES);
    let before = out.len();
    for (i, (path, from)) in files.iter().enumerate() {
        if out.len() > before + MAX_OVERLAPS {
            return;
        }
        for (other, other_from) in &files[..i] {
            let inside = |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.starts_with('/'));
            if path == other || inside(path, other) || inside(other, path) {
                out.push(format!(
                    "volume {name:?} ({title}): overlapping paths: {path:?}{from} with {other:?}{other_from}"
                ));
            }
        }
    }
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
        if Quantity::parse(v).is_ok_and(|q| !q.is_integer()) {
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
}
