//! Cells that only one kind has.

use crate::columns::{age, condition, duration};
use meta::{Object, Value, time};

fn text(v: &Value) -> String {
    match v {
        Value::String(s) => s.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn items<'a>(o: &'a Object, path: &[&str]) -> &'a [Value] {
    o.at(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub fn compute(function: &str, a: &[&str], o: &Object, now: &str) -> Value {
    match function {
        "podReady" => {
            let all = items(o, &["spec", "containers"]).len();
            let ready = items(o, &["status", "containerStatuses"]).iter().filter(|c| c["ready"] == true).count();
            let sidecars = sidecars(o);
            let ready_sidecars = items(o, &["status", "initContainerStatuses"])
                .iter()
                .filter(|c| c["ready"] == true && sidecars.iter().any(|s| c["name"] == **s))
                .count();
            format!("{}/{}", ready + ready_sidecars, all + sidecars.len()).into()
        }
        "podStatus" => pod_status(o).into(),
        "podRestarts" => restarts(o, now).into(),
        "podIP" => {
            let ip = items(o, &["status", "podIPs"]).first().map(|p| text(&p["ip"])).unwrap_or_default();
            if ip.is_empty() { "<none>".into() } else { ip.into() }
        }
        "readinessGates" => {
            let gates = items(o, &["spec", "readinessGates"]);
            if gates.is_empty() {
                return "<none>".into();
            }
            let holds = |g: &&Value| {
                condition(o, g["conditionType"].as_str().unwrap_or_default()).is_some_and(|c| c["status"] == "True")
            };
            format!("{}/{}", gates.iter().filter(holds).count(), gates.len()).into()
        }
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
            let ty = a.first().copied().unwrap_or_default();
            let found = items(o, &["status", "addresses"]).iter().find(|x| x["type"] == ty);
            found.map_or("<none>".into(), |x| text(&x["address"]).into())
        }
        "clusterIP" => or_none(items(o, &["spec", "clusterIPs"]).first().map(text)),
        "externalIP" => external_ip(o).into(),
        "servicePorts" => service_ports(o).into(),
        "endpoints" => endpoints(o).into(),
        "slicePorts" => {
            let ports: Vec<String> = items(o, &["ports"])
                .iter()
                .map(|p| if p["port"].is_null() { "*".into() } else { text(&p["port"]) })
                .collect();
            limited(&ports, "<unset>").into()
        }
        "sliceEndpoints" => {
            let all: Vec<String> = items(o, &["endpoints"])
                .iter()
                .flat_map(|e| e["addresses"].as_array().cloned().unwrap_or_default())
                .map(|v| text(&v))
                .collect();
            limited(&all, "<unset>").into()
        }
        "jobStatus" => job_status(o).into(),
        "jobCompletions" => {
            let done = o.int_at(&["status", "succeeded"]).unwrap_or(0);
            let parallelism = o.int_at(&["spec", "parallelism"]).unwrap_or(0);
            match o.int_at(&["spec", "completions"]) {
                Some(c) => format!("{done}/{c}").into(),
                None if parallelism > 1 => format!("{done}/1 of {parallelism}").into(),
                None => format!("{done}/1").into(),
            }
        }
        "jobDuration" => {
            let at = |k: &str| o.str_at(&["status", k]).and_then(time::parse);
            match (at("startTime"), at("completionTime").or_else(|| time::parse(now))) {
                (Some(s), Some(e)) => duration(e.as_second() - s.as_second()).into(),
                _ => "".into(),
            }
        }
        "eventLastSeen" => {
            let t = ["series.lastObservedTime", "lastTimestamp", "deprecatedLastTimestamp", "eventTime"];
            first_time(o, &t, now).into()
        }
        "eventFirstSeen" => first_time(o, &["firstTimestamp", "deprecatedFirstTimestamp", "eventTime"], now).into(),
        "eventObject" => {
            let r = o.get("involvedObject").or_else(|| o.get("regarding")).cloned().unwrap_or_default();
            let (kind, name) = (text(&r["kind"]).to_lowercase(), text(&r["name"]));
            if name.is_empty() { kind.into() } else { format!("{kind}/{name}").into() }
        }
        "eventSubobject" => {
            let r = o.get("involvedObject").or_else(|| o.get("regarding")).cloned().unwrap_or_default();
            text(&r["fieldPath"]).into()
        }
        "eventSource" => {
            let s = o.get("source").or_else(|| o.get("deprecatedSource")).cloned().unwrap_or_default();
            let mut component = text(&s["component"]);
            if component.is_empty() {
                component =
                    text(o.get("reportingComponent").or_else(|| o.get("reportingController")).unwrap_or(&Value::Null));
            }
            let host = text(&s["host"]);
            if host.is_empty() { component.into() } else { format!("{component}, {host}").into() }
        }
        "eventMessage" => {
            text(o.get("message").or_else(|| o.get("note")).unwrap_or(&Value::Null)).trim().to_owned().into()
        }
        "eventCount" => {
            let series = o.int_at(&["series", "count"]);
            series
                .or_else(|| o.int_at(&["count"]))
                .or_else(|| o.int_at(&["deprecatedCount"]))
                .filter(|c| *c > 0)
                .unwrap_or(1)
                .to_string()
                .into()
        }
        "quotaRequest" | "quotaLimit" => quota(o, function == "quotaLimit").into(),
        "hpaReference" => {
            let r = o.at(&["spec", "scaleTargetRef"]).cloned().unwrap_or_default();
            format!("{}/{}", text(&r["kind"]), text(&r["name"])).into()
        }
        "hpaTargets" => hpa_targets(o).into(),
        "csrDuration" => match o.int_at(&["spec", "expirationSeconds"]) {
            Some(s) => duration(s).into(),
            None => "<none>".into(),
        },
        "csrCondition" => {
            let mut all: Vec<String> = items(o, &["status", "conditions"]).iter().map(|c| text(&c["type"])).collect();
            if all.is_empty() {
                all.push("Pending".into());
            }
            if !o.str_at(&["status", "certificate"]).unwrap_or_default().is_empty() {
                all.push("Issued".into());
            }
            all.join(",").into()
        }
        "missingPL" => match condition(o, "Dangling") {
            Some(c) => text(&c["status"]).into(),
            None => "?".into(),
        },
        "ingressHosts" => {
            let hosts: Vec<String> =
                items(o, &["spec", "rules"]).iter().map(|r| text(&r["host"])).filter(|h| !h.is_empty()).collect();
            limited(&hosts, "*").into()
        }
        "ingressPorts" => if items(o, &["spec", "tls"]).is_empty() { "80" } else { "80, 443" }.into(),
        "loadBalancer" => load_balancer(o).into(),
        "ingressParameters" => match o.at(&["spec", "parameters"]) {
            Some(p) => {
                let group = text(&p["apiGroup"]);
                let dot = if group.is_empty() { "" } else { "." };
                format!("{}{dot}{group}/{}", text(&p["kind"]), text(&p["name"])).into()
            }
            None => "<none>".into(),
        },
        "parentRef" => {
            let p = o.at(&["spec", "parentRef"]).cloned().unwrap_or_default();
            let parts = ["group", "resource", "namespace", "name"].map(|k| text(&p[k]));
            parts.into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join("/").into()
        }
        "accessModes" => modes(items(o, &["spec", "accessModes"])).into(),
        "claimModes" => {
            if bound(o) {
                modes(items(o, &["status", "accessModes"])).into()
            } else {
                "".into()
            }
        }
        "claimCapacity" => {
            let c = o.str_at(&["status", "capacity", "storage"]).unwrap_or_default();
            if bound(o) { c.into() } else { "".into() }
        }
        "volumeStatus" => {
            let phase = o.str_at(&["status", "phase"]).unwrap_or_default();
            if o.is_deleting() { "Terminating" } else { phase }.into()
        }
        "volumeClaim" => match o.at(&["spec", "claimRef"]) {
            Some(c) => format!("{}/{}", text(&c["namespace"]), text(&c["name"])).into(),
            None => "".into(),
        },
        "storageClass" => {
            let old = o.annotation("volume.beta.kubernetes.io/storage-class");
            old.or_else(|| o.str_at(&["spec", "storageClassName"])).unwrap_or_default().into()
        }
        "componentStatus" => match o.get("conditions").and_then(Value::as_array).and_then(|c| c.first()) {
            Some(c) if c["status"] == "True" => "Healthy".into(),
            Some(c) if c["status"] == "False" => "Unhealthy".into(),
            _ => "Unknown".into(),
        },
        "componentMessage" => items(o, &["conditions"]).first().map(|c| text(&c["message"])).unwrap_or_default().into(),
        "componentError" => items(o, &["conditions"]).first().map(|c| text(&c["error"])).unwrap_or_default().into(),
        other => format!("<no column function {other}>").into(),
    }
}

fn or_none(s: Option<String>) -> Value {
    s.filter(|s| !s.is_empty()).unwrap_or_else(|| "<none>".into()).into()
}

fn first_time(o: &Object, paths: &[&str], now: &str) -> String {
    let found = paths.iter().find_map(|p| {
        let steps: Vec<&str> = p.split('.').collect();
        o.str_at(&steps).filter(|t| !t.is_empty())
    });
    found.map_or("<unknown>".into(), |t| age(t, now))
}

/// At most three, then how many more.
fn limited(all: &[String], none: &str) -> String {
    match all.len() {
        0 => none.into(),
        n if n > 3 => format!("{} + {} more...", all[..3].join(","), n - 3),
        _ => all.join(","),
    }
}

fn sidecars(o: &Object) -> Vec<&str> {
    let restarts = |c: &&Value| c["restartPolicy"] == "Always";
    items(o, &["spec", "initContainers"]).iter().filter(restarts).filter_map(|c| c["name"].as_str()).collect()
}

/// The word for a pod's state that people look at.
fn pod_status(o: &Object) -> String {
    let mut reason = text(o.at(&["status", "reason"]).unwrap_or(&Value::Null));
    if reason.is_empty() {
        reason = text(o.at(&["status", "phase"]).unwrap_or(&Value::Null));
    }
    if condition(o, "PodScheduled").is_some_and(|c| c["reason"] == "SchedulingGated") {
        reason = "SchedulingGated".into();
    }
    let init = items(o, &["spec", "initContainers"]);
    let sidecars = sidecars(o);
    let mut initializing = false;
    for (i, c) in items(o, &["status", "initContainerStatuses"]).iter().enumerate() {
        let (terminated, waiting) = (&c["state"]["terminated"], &c["state"]["waiting"]);
        if terminated.is_object() && terminated["exitCode"] == 0 {
            continue;
        }
        if sidecars.iter().any(|s| c["name"] == **s) && c["started"] == true {
            continue;
        }
        initializing = true;
        reason = if terminated.is_object() {
            match (text(&terminated["reason"]), terminated["signal"].as_i64()) {
                (r, _) if !r.is_empty() => format!("Init:{r}"),
                (_, Some(s)) if s != 0 => format!("Init:Signal:{s}"),
                _ => format!("Init:ExitCode:{}", text(&terminated["exitCode"])),
            }
        } else if waiting.is_object() && !matches!(text(&waiting["reason"]).as_str(), "" | "PodInitializing") {
            format!("Init:{}", text(&waiting["reason"]))
        } else {
            format!("Init:{i}/{}", init.len())
        };
        break;
    }
    if !initializing || condition(o, "Initialized").is_some_and(|c| c["status"] == "True") {
        let mut running = false;
        for c in items(o, &["status", "containerStatuses"]).iter().rev() {
            let (terminated, waiting) = (&c["state"]["terminated"], &c["state"]["waiting"]);
            if waiting.is_object() && !text(&waiting["reason"]).is_empty() {
                reason = text(&waiting["reason"]);
            } else if terminated.is_object() {
                reason = match (text(&terminated["reason"]), terminated["signal"].as_i64()) {
                    (r, _) if !r.is_empty() => r,
                    (_, Some(s)) if s != 0 => format!("Signal:{s}"),
                    _ => format!("ExitCode:{}", text(&terminated["exitCode"])),
                };
            } else if c["ready"] == true && c["state"]["running"].is_object() {
                running = true;
            }
        }
        if reason == "Completed" && running {
            let ready = condition(o, "Ready").is_some_and(|c| c["status"] == "True");
            reason = if ready { "Running" } else { "NotReady" }.into();
        }
    }
    if o.is_deleting() {
        let phase = o.str_at(&["status", "phase"]).unwrap_or_default();
        if o.str_at(&["status", "reason"]) == Some("NodeLost") {
            return "Unknown".into();
        }
        if !matches!(phase, "Failed" | "Succeeded") {
            return "Terminating".into();
        }
    }
    reason
}

fn restarts(o: &Object, now: &str) -> String {
    let sidecars = sidecars(o);
    let own = items(o, &["status", "initContainerStatuses"]);
    let init = own.iter().filter(|c| sidecars.iter().any(|s| c["name"] == **s));
    let (mut count, mut last) = (0, None);
    for c in items(o, &["status", "containerStatuses"]).iter().chain(init) {
        count += c["restartCount"].as_i64().unwrap_or(0);
        let t = c["lastState"]["terminated"]["finishedAt"].as_str().and_then(time::parse);
        last = last.max(t);
    }
    match last {
        Some(t) if count > 0 => format!("{count} ({} ago)", age(&time::format(t), now)),
        _ => count.to_string(),
    }
}

fn external_ip(o: &Object) -> String {
    let external: Vec<String> = items(o, &["spec", "externalIPs"]).iter().map(text).collect();
    match o.str_at(&["spec", "type"]).unwrap_or_default() {
        "LoadBalancer" => {
            let mut all = Vec::new();
            let balancer = load_balancer(o);
            if !balancer.is_empty() {
                all.push(balancer);
            }
            all.extend(external);
            if all.is_empty() { "<pending>".into() } else { all.join(",") }
        }
        "ExternalName" => text(o.at(&["spec", "externalName"]).unwrap_or(&Value::Null)),
        _ if external.is_empty() => "<none>".into(),
        _ => external.join(","),
    }
}

fn load_balancer(o: &Object) -> String {
    let all = items(o, &["status", "loadBalancer", "ingress"]).iter();
    all.map(|i| if i["ip"].is_string() { text(&i["ip"]) } else { text(&i["hostname"]) }).collect::<Vec<_>>().join(",")
}

fn service_ports(o: &Object) -> String {
    let all: Vec<String> = items(o, &["spec", "ports"])
        .iter()
        .map(|p| match p["nodePort"].as_i64() {
            Some(n) if n > 0 => format!("{}:{n}/{}", text(&p["port"]), text(&p["protocol"])),
            _ => format!("{}/{}", text(&p["port"]), text(&p["protocol"])),
        })
        .collect();
    if all.is_empty() { "<none>".into() } else { all.join(",") }
}

fn endpoints(o: &Object) -> String {
    let mut all = Vec::new();
    for s in items(o, &["subsets"]) {
        let ports = s["ports"].as_array().cloned().unwrap_or_default();
        for a in s["addresses"].as_array().into_iter().flatten() {
            if ports.is_empty() {
                all.push(text(&a["ip"]));
            }
            all.extend(ports.iter().map(|p| format!("{}:{}", text(&a["ip"]), text(&p["port"]))));
        }
    }
    limited(&all, "<none>")
}

fn job_status(o: &Object) -> String {
    let holds = |ty: &str| condition(o, ty).is_some_and(|c| c["status"] == "True");
    for (ty, word) in [("Complete", "Complete"), ("Failed", "Failed")] {
        if holds(ty) {
            return word.into();
        }
    }
    if o.is_deleting() {
        return "Terminating".into();
    }
    for (ty, word) in
        [("Suspended", "Suspended"), ("FailureTarget", "FailureTarget"), ("SuccessCriteriaMet", "SuccessCriteriaMet")]
    {
        if holds(ty) {
            return word.into();
        }
    }
    "Running".into()
}

fn quota(o: &Object, limits: bool) -> String {
    let hard = o.at(&["status", "hard"]).or_else(|| o.at(&["spec", "hard"]));
    let all: Vec<String> = hard
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(k, _)| k.starts_with("limits.") == limits)
        .map(|(k, h)| format!("{k}: {}/{}", o.str_at(&["status", "used", k]).unwrap_or("0"), text(h)))
        .collect();
    all.join(", ")
}

fn hpa_targets(o: &Object) -> String {
    let specs = items(o, &["spec", "metrics"]);
    if specs.is_empty() {
        return "<none>".into();
    }
    let current = items(o, &["status", "currentMetrics"]);
    let mut all = Vec::new();
    for (i, m) in specs.iter().enumerate() {
        let (ty, key) = match m["type"].as_str().unwrap_or_default() {
            "Resource" => (text(&m["resource"]["name"]), "resource"),
            "ContainerResource" => (text(&m["containerResource"]["name"]), "containerResource"),
            "Pods" => (String::new(), "pods"),
            "Object" => (String::new(), "object"),
            _ => (String::new(), "external"),
        };
        let target = &m[key]["target"];
        let now = current.get(i).map_or(&Value::Null, |c| &c[key]["current"]);
        let prefix = if ty.is_empty() { ty } else { format!("{ty}: ") };
        if !target["averageUtilization"].is_null() {
            let have = now["averageUtilization"].as_i64().map_or("<unknown>".into(), |n| format!("{n}%"));
            all.push(format!("{prefix}{have}/{}%", text(&target["averageUtilization"])));
        } else {
            let k = if target["averageValue"].is_null() { "value" } else { "averageValue" };
            let have = if now[k].is_null() { "<unknown>".into() } else { text(&now[k]) };
            let avg = if k == "averageValue" && key != "pods" && key != "resource" && key != "containerResource" {
                " (avg)"
            } else {
                ""
            };
            all.push(format!("{prefix}{have}/{}{avg}", text(&target[k])));
        }
    }
    match all.len() {
        n if n > 2 => format!("{} + {} more...", all[..2].join(", "), n - 2),
        _ => all.join(", "),
    }
}

fn bound(o: &Object) -> bool {
    !o.str_at(&["spec", "volumeName"]).unwrap_or_default().is_empty()
}

fn modes(list: &[Value]) -> String {
    let short = |m: &Value| match m.as_str().unwrap_or_default() {
        "ReadWriteOnce" => "RWO",
        "ReadOnlyMany" => "ROX",
        "ReadWriteMany" => "RWX",
        "ReadWriteOncePod" => "RWOP",
        _ => "",
    };
    list.iter().map(short).collect::<Vec<_>>().join(",")
}
