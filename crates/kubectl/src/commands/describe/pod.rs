//! Describes pods and pod templates.

use super::mounted::volumes;
use super::page::{Page, list, pairs, show, title_bool};
use meta::{Object, Value};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

pub fn describe(p: &mut Page, o: &Object, now: jiff::Timestamp) {
    let at = |path: &[&str]| o.at(path).map(show).unwrap_or_default();
    p.name_and_namespace(o);
    if let Some(n) = o.at(&["spec", "priority"]) {
        p.field("Priority", show(n));
        if let Some(c) = o.str_at(&["spec", "priorityClassName"]).filter(|c| !c.is_empty()) {
            p.field("Priority Class Name", c);
        }
    }
    if let Some(c) = o.str_at(&["spec", "runtimeClassName"]).filter(|c| !c.is_empty()) {
        p.field("Runtime Class Name", c);
    }
    if let Some(a) = o.str_at(&["spec", "serviceAccountName"]).filter(|a| !a.is_empty()) {
        p.field("Service Account", a);
    }
    match o.str_at(&["spec", "nodeName"]).filter(|n| !n.is_empty()) {
        Some(n) => p.field("Node", format!("{n}/{}", at(&["status", "hostIP"]))),
        None => p.field("Node", "<none>"),
    }
    if let Some(t) = o.str_at(&["status", "startTime"]) {
        p.field("Start Time", p.time(t));
    }
    p.metadata(o);
    let phase = at(&["status", "phase"]);
    if let Some(t) = o.deletion_timestamp().filter(|_| !matches!(phase.as_str(), "Failed" | "Succeeded")) {
        p.field("Status", format!("Terminating (lasts {})", crate::printer::table::age(t, now)));
        p.field("Termination Grace Period", format!("{}s", o.deletion_grace_period_seconds().unwrap_or(0)));
    } else {
        p.field("Status", phase);
    }
    for (title, key) in [("Reason", "reason"), ("Message", "message")] {
        if let Some(v) = o.str_at(&["status", key]).filter(|v| !v.is_empty()) {
            p.field(title, v);
        }
    }
    seccomp(p, [0, 0], o.at(&["spec", "securityContext"]));
    p.field("IP", at(&["status", "podIP"]));
    let ips = list(o.at(&["status", "podIPs"]));
    if ips.is_empty() {
        p.field("IPs", "<none>");
    } else {
        p.line(0, "IPs:");
        for ip in ips {
            p.at(1, "IP", show(&ip["ip"]));
        }
    }
    if let Some(c) = o.controller_of() {
        p.field("Controlled By", format!("{}/{}", c.kind, c.name));
    }
    if let Some(n) = o.str_at(&["status", "nominatedNodeName"]).filter(|n| !n.is_empty()) {
        p.field("NominatedNodeName", n);
    }
    if let Some(whole) = o.at(&["spec", "resources"]).filter(|r| r.is_object()) {
        p.line(0, "Resources:");
        resources(p, 1, whole);
    }
    for (title, of, statuses) in [
        ("Init Containers", "initContainers", "initContainerStatuses"),
        ("Containers", "containers", "containerStatuses"),
        ("Ephemeral Containers", "ephemeralContainers", "ephemeralContainerStatuses"),
    ] {
        let all = list(o.at(&["spec", of]));
        if !all.is_empty() {
            containers(
                p,
                0,
                title,
                all,
                Some(list(o.at(&["status", statuses]))),
                "  ",
                o.get("metadata").unwrap_or(&Value::Null),
            );
        }
    }
    let conditions = list(o.at(&["status", "conditions"]));
    let gates = list(o.at(&["spec", "readinessGates"]));
    if !gates.is_empty() {
        p.line(0, "Readiness Gates:\n  Type\tStatus");
        for g in gates {
            let found = conditions.iter().find(|c| c["type"] == g["conditionType"]);
            let status = found.map_or("<none>".to_owned(), |c| show(&c["status"]));
            p.line(1, format!("{} \t{status} ", show(&g["conditionType"])));
        }
    }
    if !conditions.is_empty() {
        p.line(0, "Conditions:\n  Type\tStatus");
        for c in conditions {
            p.line(1, format!("{} \t{} ", show(&c["type"]), show(&c["status"])));
        }
    }
    volumes(p, 0, o.at(&["spec", "volumes"]), "");
    p.field("QoS Class", at(&["status", "qosClass"]));
    p.labels(0, "Node-Selectors", o.at(&["spec", "nodeSelector"]));
    p.many(0, "Tolerations", &tolerations(o.at(&["spec", "tolerations"])));
    constraints(p, 0, o.at(&["spec", "topologySpreadConstraints"]));
    scheduling_group(p, 0, o.get("spec"));
}

/// Writes the group of pods that are scheduled together. Upstream indents its name alike everywhere.
fn scheduling_group(p: &mut Page, level: usize, spec: Option<&Value>) {
    if let Some(group) = spec.and_then(|s| s.get("schedulingGroup")).filter(|g| g.is_object()) {
        p.line(level, "SchedulingGroup:");
        p.at(1, "PodGroupName", show(&group["podGroupName"]));
    }
}

/// Writes the seccomp profile of a security context, and a file of the node at the second level.
fn seccomp(p: &mut Page, levels: [usize; 2], context: Option<&Value>) {
    let Some(profile) = context.and_then(|c| c.get("seccompProfile")).filter(|s| s.is_object()) else { return };
    p.at(levels[0], "SeccompProfile", show(&profile["type"]));
    if profile["type"] == "Localhost" {
        p.at(levels[1], "LocalhostProfile", show(&profile["localhostProfile"]));
    }
}

/// Writes limits and requests.
fn resources(p: &mut Page, level: usize, v: &Value) {
    for (title, field) in [("Limits", "limits"), ("Requests", "requests")] {
        if v[field].as_object().is_some_and(|m| !m.is_empty()) {
            p.line(level, format!("{title}:"));
            for (k, v) in pairs(v.get(field)) {
                p.at(level + 1, &k, v);
            }
        }
    }
}

fn constraints(p: &mut Page, level: usize, v: Option<&Value>) {
    let mut all: Vec<&Value> = list(v).iter().collect();
    all.sort_by_key(|c| show(&c["topologyKey"]));
    let all: Vec<String> = all
        .into_iter()
        .map(|c| {
            let mut t = format!(
                "{}:{} when max skew {} is exceeded",
                show(&c["topologyKey"]),
                show(&c["whenUnsatisfiable"]),
                show(&c["maxSkew"])
            );
            if !c["labelSelector"].is_null() {
                t.push_str(&format!(" for selector {}", super::page::selector(c.get("labelSelector"))));
            }
            t
        })
        .collect();
    if !all.is_empty() {
        p.many(level, "Topology Spread Constraints", &all);
    }
}

pub fn tolerations(v: Option<&Value>) -> Vec<String> {
    let mut all: Vec<&Value> = list(v).iter().collect();
    all.sort_by_key(|t| show(&t["key"]));
    all.iter()
        .map(|t| {
            let mut s = show(&t["key"]);
            if !t["value"].is_null() && t["value"] != "" {
                s.push_str(&format!("={}", show(&t["value"])));
            }
            if !t["effect"].is_null() && t["effect"] != "" {
                s.push_str(&format!(":{}", show(&t["effect"])));
            }
            if t["operator"] == "Exists" && (t["value"].is_null() || t["value"] == "") {
                if !s.is_empty() {
                    s.push(' ');
                }
                s.push_str("op=Exists");
            }
            if let Some(n) = t["tolerationSeconds"].as_i64() {
                s.push_str(&format!(" for {n}s"));
            }
            s
        })
        .collect()
}

fn containers(
    p: &mut Page,
    level: usize,
    title: &str,
    all: &[Value],
    statuses: Option<&[Value]>,
    pad: &str,
    metadata: &Value,
) {
    p.line(level, format!("{title}:"));
    for c in all {
        let status = statuses.and_then(|s| s.iter().find(|s| s["name"] == c["name"]));
        p.line(level, format!("{pad}{}:", show(&c["name"])));
        container(p, level, c, status, metadata);
    }
}

fn container(p: &mut Page, level: usize, c: &Value, status: Option<&Value>, metadata: &Value) {
    let l = level + 2;
    if let Some(s) = status {
        p.at(l, "Container ID", show(&s["containerID"]));
    }
    p.at(l, "Image", show(&c["image"]));
    if let Some(s) = status {
        p.at(l, "Image ID", show(&s["imageID"]));
    }
    let ports = list(c.get("ports"));
    let joined = |field: &str| {
        let of = |q: &Value| {
            let port = format!("{}/{}", q[field].as_i64().unwrap_or(0), show(&q["protocol"]));
            q["name"].as_str().filter(|n| !n.is_empty()).map_or(port.clone(), |n| format!("{port} ({n})"))
        };
        ports.iter().map(of).collect::<Vec<_>>().join(", ")
    };
    let title = if ports.len() > 1 { ("Ports", "Host Ports") } else { ("Port", "Host Port") };
    let none = |s: String| if s.is_empty() { "<none>".to_owned() } else { s };
    p.at(l, title.0, none(joined("containerPort")));
    p.at(l, title.1, none(joined("hostPort")));
    seccomp(p, [l, l + 1], c.get("securityContext"));
    for (title, field) in [("Command", "command"), ("Args", "args")] {
        let words = list(c.get(field));
        if !words.is_empty() {
            p.line(l, format!("{title}:"));
            for line in words.iter().flat_map(|w| show(w).split('\n').map(str::to_owned).collect::<Vec<_>>()) {
                p.line(l + 1, line);
            }
        }
    }
    if let Some(s) = status {
        state(p, l, "State", &s["state"]);
        if s["lastState"]["terminated"].is_object() {
            state(p, l, "Last State", &s["lastState"]);
        }
        p.at(l, "Ready", title_bool(s["ready"].as_bool().unwrap_or(false)));
        p.at(l, "Restart Count", s["restartCount"].as_i64().unwrap_or(0).to_string());
    }
    resources(p, l, &c["resources"]);
    for (title, field) in [("Liveness", "livenessProbe"), ("Readiness", "readinessProbe"), ("Startup", "startupProbe")]
    {
        if c[field].is_object() {
            p.at(l, title, probe(&c[field]));
        }
    }
    let from = list(c.get("envFrom"));
    if !from.is_empty() {
        p.line(l, "Environment Variables from:");
        for f in from {
            let (kind, of) = if f["configMapRef"].is_object() {
                ("ConfigMap", &f["configMapRef"])
            } else if f["secretRef"].is_object() {
                ("Secret", &f["secretRef"])
            } else {
                ("", &Value::Null)
            };
            let prefix = match f["prefix"].as_str() {
                Some(x) if !x.is_empty() => format!(" with prefix '{x}'"),
                _ => String::new(),
            };
            p.line(
                l + 1,
                format!(
                    "{}\t{kind}{prefix}\tOptional: {}",
                    show(&of["name"]),
                    of["optional"].as_bool().unwrap_or(false)
                ),
            );
        }
    }
    let env = list(c.get("env"));
    if env.is_empty() {
        p.at(l, "Environment", "<none>");
    } else {
        p.line(l, "Environment:");
        for e in env {
            if let Some(value) = variable(e, c, metadata) {
                p.at(l + 1, &show(&e["name"]), value);
            }
        }
    }
    let mounts = list(c.get("volumeMounts"));
    if mounts.is_empty() {
        p.at(l, "Mounts", "<none>");
    } else {
        p.line(l, "Mounts:");
        for m in sorted_by(mounts, "mountPath") {
            let mut flags = if m["readOnly"] == true { "ro".to_owned() } else { "rw".to_owned() };
            if let Some(s) = m["subPath"].as_str().filter(|s| !s.is_empty()) {
                flags.push_str(&format!(",path={s:?}"));
            }
            p.line(l + 1, format!("{} from {} ({flags})", show(&m["mountPath"]), show(&m["name"])));
        }
    }
    let devices = sorted_by(list(c.get("volumeDevices")), "devicePath");
    if !devices.is_empty() {
        // Upstream says so if there are no mounts.
        p.line(l, if mounts.is_empty() { "Devices:\t<none>" } else { "Devices:" });
        devices.iter().for_each(|d| p.line(l + 1, format!("{} from {}", show(&d["devicePath"]), show(&d["name"]))));
    }
}

fn sorted_by<'a>(all: &'a [Value], field: &str) -> Vec<&'a Value> {
    let mut all: Vec<&Value> = all.iter().collect();
    all.sort_by_key(|v| show(&v[field]));
    all
}

/// The value of an environment variable, or where it is from; none for sources that upstream does not describe (`fileKeyRef`).
fn variable(e: &Value, container: &Value, metadata: &Value) -> Option<String> {
    let f = &e["valueFrom"];
    if !f.is_object() {
        return Some(show(&e["value"]).replace('\n', "\n\t"));
    }
    for (key, what) in [("configMapKeyRef", "config map"), ("secretKeyRef", "secret")] {
        let r = &f[key];
        if r.is_object() {
            return Some(format!(
                "<set to the key '{}' {} {what} '{}'>\tOptional: {}",
                show(&r["key"]),
                if what == "secret" { "in" } else { "of" },
                show(&r["name"]),
                r["optional"].as_bool().unwrap_or(false)
            ));
        }
    }
    if f["fieldRef"].is_object() {
        let path = show(&f["fieldRef"]["fieldPath"]);
        return Some(format!("{} ({}:{path})", field(&path, metadata), show(&f["fieldRef"]["apiVersion"])));
    }
    let r = f.get("resourceFieldRef").filter(|r| r.is_object())?;
    Some(format!("{} ({})", resource(r, container), show(&r["resource"])))
}

/// Returns the metadata that a field reference names; empty for single labels and annotations, as in upstream, and for
/// fields that only the node knows.
fn field(path: &str, metadata: &Value) -> String {
    let field = path.strip_prefix("metadata.").unwrap_or_default();
    metadata[field].as_str().unwrap_or_default().to_owned()
}

/// Returns a resource request or limit of a container in units of the divisor.
fn resource(r: &Value, container: &Value) -> String {
    let name = show(&r["resource"]);
    let Some((part, resource)) = name.split_once('.') else { return String::new() };
    let parse = |v: &Value| v.as_str().and_then(|t| meta::Quantity::parse(t).ok());
    let given = parse(&container["resources"][part][resource]).map_or(0, |q| q.nano_value());
    let divisor = parse(&r["divisor"]).map(|q| q.nano_value()).filter(|n| *n > 0).unwrap_or(1_000_000_000);
    match (given + divisor - 1) / divisor {
        0 if part == "limits" && matches!(resource, "cpu" | "memory") => "node allocatable".into(),
        n => n.to_string(),
    }
}

fn state(p: &mut Page, l: usize, title: &str, s: &Value) {
    if let Some(r) = s["running"].as_object() {
        p.at(l, title, "Running");
        p.at(l + 1, "Started", p.time(&r.get("startedAt").map(show).unwrap_or_default()));
    } else if s["terminated"].is_object() {
        let t = &s["terminated"];
        p.at(l, title, "Terminated");
        for (name, key) in [("Reason", "reason"), ("Message", "message")] {
            if let Some(v) = t[key].as_str().filter(|v| !v.is_empty()) {
                p.at(l + 1, name, v);
            }
        }
        p.at(l + 1, "Exit Code", t["exitCode"].as_i64().unwrap_or(0).to_string());
        if let Some(n) = t["signal"].as_i64().filter(|n| *n > 0) {
            p.at(l + 1, "Signal", n.to_string());
        }
        p.at(l + 1, "Started", p.time(&show(&t["startedAt"])));
        p.at(l + 1, "Finished", p.time(&show(&t["finishedAt"])));
    } else {
        p.at(l, title, "Waiting");
        if let Some(v) = s["waiting"]["reason"].as_str().filter(|v| !v.is_empty()) {
            p.at(l + 1, "Reason", v);
        }
    }
}

/// The characters that Go's `net/url` escapes in the path of a URL.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b',')
    .remove(b'/')
    .remove(b':')
    .remove(b';')
    .remove(b'=')
    .remove(b'@');

fn probe(v: &Value) -> String {
    let n = |k: &str| v[k].as_i64().unwrap_or(0);
    let attrs = format!(
        "delay={}s timeout={}s period={}s #success={} #failure={}",
        n("initialDelaySeconds"),
        n("timeoutSeconds"),
        n("periodSeconds"),
        n("successThreshold"),
        n("failureThreshold")
    );
    let what = if v["exec"].is_object() {
        let words: Vec<String> = list(v["exec"].get("command")).iter().map(show).collect();
        format!("exec [{}]", words.join(" "))
    } else if v["httpGet"].is_object() {
        let h = &v["httpGet"];
        let scheme = match show(&h["scheme"]).to_lowercase() {
            scheme if scheme.is_empty() => scheme,
            scheme => format!("{scheme}:"),
        };
        let port = show(&h["port"]);
        let host = show(&h["host"]);
        let host = match (port.as_str(), host.contains(':')) {
            ("", _) => host,
            (port, true) => format!("[{host}]:{port}"),
            (port, false) => format!("{host}:{port}"),
        };
        let path = show(&h["path"]);
        let slash = if path.is_empty() || path.starts_with('/') { "" } else { "/" };
        format!("http-get {scheme}//{host}{slash}{}", utf8_percent_encode(&path, PATH))
    } else if v["tcpSocket"].is_object() {
        format!("tcp-socket {}:{}", show(&v["tcpSocket"]["host"]), show(&v["tcpSocket"]["port"]))
    } else if v["grpc"].is_object() {
        format!("grpc <pod>:{} {}", show(&v["grpc"]["port"]), show(&v["grpc"]["service"]))
    } else {
        return format!("unknown {attrs}");
    };
    format!("{what} {attrs}")
}

/// Writes a pod template for workloads and `rollout history`.
pub fn template(out: &mut String, t: &Value) {
    let mut p = Page { text: std::mem::take(out), zone: jiff::tz::TimeZone::UTC, chunk_size: 0 };
    // Titles contain their own indent, and the following lines have none, as in upstream.
    p.labels(0, "  Labels", t["metadata"].get("labels"));
    if t["metadata"]["annotations"].as_object().is_some_and(|a| !a.is_empty()) {
        p.annotations(0, "  Annotations", t["metadata"].get("annotations"));
    }
    let spec = &t["spec"];
    if let Some(a) = spec["serviceAccountName"].as_str().filter(|a| !a.is_empty()) {
        p.at(1, "Service Account", a);
    }
    for (title, of) in [("Init Containers", "initContainers"), ("Containers", "containers")] {
        let all = list(spec.get(of));
        if !all.is_empty() {
            p.line(1, format!("{title}:"));
            for c in all {
                p.line(1, format!(" {}:", show(&c["name"])));
                container(&mut p, 0, c, None, &Value::Null);
            }
        }
    }
    volumes(&mut p, 0, spec.get("volumes"), "  ");
    constraints(&mut p, 1, spec.get("topologySpreadConstraints"));
    if let Some(c) = spec["priorityClassName"].as_str().filter(|c| !c.is_empty()) {
        p.at(1, "Priority Class Name", c);
    }
    p.labels(0, "  Node-Selectors", spec.get("nodeSelector"));
    p.many(0, "  Tolerations", &tolerations(spec.get("tolerations")));
    scheduling_group(&mut p, 1, Some(spec));
    *out = p.text;
}
