//! Describes quotas, limit ranges, disruption budgets, priority classes, autoscalers and classes.

use super::page::{Page, list, pairs, selector, show, title_bool};
use meta::{Object, Value};
use std::collections::BTreeSet;

const SCOPES: [(&str, &str); 4] = [
    (
        "Terminating",
        "Matches all pods that have an active deadline. These pods have a limited lifespan on a node before being actively terminated by the system.",
    ),
    (
        "NotTerminating",
        "Matches all pods that do not have an active deadline. These pods usually include long running pods whose container command is not expected to terminate.",
    ),
    (
        "BestEffort",
        "Matches all pods that do not have resource requirements set. These pods have a best effort quality of service.",
    ),
    (
        "NotBestEffort",
        "Matches all pods that have at least one resource requirement set. These pods have a burstable or guaranteed quality of service.",
    ),
];

pub fn quota(p: &mut Page, o: &Object) {
    p.name_and_namespace(o);
    scopes(p, o, "", " ");
    p.line(0, "Resource\tUsed\tHard\n--------\t----\t----");
    for (name, hard) in pairs(o.at(&["status", "hard"])) {
        p.line(0, format!("{name}\t{}\t{hard}", used(o, &name)));
    }
}

/// How much of a resource is used; nothing is `0`.
pub fn used<'a>(quota: &'a Object, name: &str) -> &'a str {
    quota.str_at(&["status", "used", name]).unwrap_or("0")
}

/// Writes the scopes of a quota, by name, with their meanings.
pub fn scopes(p: &mut Page, o: &Object, indent: &str, bullet: &str) {
    let mut all: Vec<String> = list(o.at(&["spec", "scopes"])).iter().map(show).collect();
    all.sort();
    if all.is_empty() {
        return;
    }
    p.field(&format!("{indent}Scopes"), all.join(", "));
    for (_, why) in all.iter().filter_map(|s| SCOPES.iter().find(|(name, _)| name == s)) {
        p.line(0, format!("{bullet}* {why}"));
    }
}

/// Writes the rows of limit ranges, each after `indent`.
pub fn ranges(p: &mut Page, o: &Object, indent: &str, titled: bool) {
    const KEYS: [&str; 5] = ["min", "max", "defaultRequest", "default", "maxLimitRequestRatio"];
    if titled {
        titles(p, indent);
    }
    for i in list(o.at(&["spec", "limits"])) {
        let names: BTreeSet<String> = KEYS.iter().flat_map(|f| pairs(i.get(*f)).map(|(k, _)| k)).collect();
        for n in names {
            let limits = KEYS.map(|f| i[f].get(&n).map_or("-".into(), show)).join("\t");
            p.line(0, format!("{indent}{}\t{n}\t{limits}", show(&i["type"])));
        }
    }
}

fn titles(p: &mut Page, indent: &str) {
    p.line(
        0,
        format!(
            "{indent}Type\tResource\tMin\tMax\tDefault Request\tDefault Limit\tMax Limit/Request Ratio\n{indent}----\t--------\t---\t---\t---------------\t-------------\t-----------------------"
        ),
    );
}

pub fn range(p: &mut Page, o: &Object) {
    p.name_and_namespace(o);
    ranges(p, o, "", true);
}

pub fn budget(p: &mut Page, o: &Object) {
    p.name_and_namespace(o);
    let bounds = [("Min available", "minAvailable"), ("Max unavailable", "maxUnavailable")];
    if let Some((title, v)) = bounds.iter().find_map(|(title, key)| Some((title, o.at(&["spec", key])?))) {
        p.field(title, show(v));
    }
    p.field("Selector", o.at(&["spec", "selector"]).map_or("<unset>".into(), |s| selector(Some(s))));
    p.line(0, "Status:");
    for (title, key) in [
        ("Allowed disruptions", "disruptionsAllowed"),
        ("Current", "currentHealthy"),
        ("Desired", "desiredHealthy"),
        ("Total", "expectedPods"),
    ] {
        p.at(2, title, o.int_at(&["status", key]).unwrap_or(0).to_string());
    }
}

pub fn priority(p: &mut Page, o: &Object) {
    let text = |key: &str| o.get(key).map(show).unwrap_or_default();
    p.field("Name", o.name());
    p.field("Value", o.int_at(&["value"]).unwrap_or(0).to_string());
    p.field("GlobalDefault", (o.get("globalDefault") == Some(&Value::Bool(true))).to_string());
    p.field("PreemptionPolicy", text("preemptionPolicy"));
    p.field("Description", text("description"));
    p.field("Annotations", super::page::selector(o.at(&["metadata", "annotations"])));
}

/// Writes `Metrics:` and the rest of an autoscaler.
pub fn autoscaler(p: &mut Page, o: &Object) {
    p.name_and_namespace(o);
    p.metadata(o);
    p.field("CreationTimestamp", p.time(o.creation_timestamp()));
    let to = |k: &str| o.at(&["spec", "scaleTargetRef", k]).map(show).unwrap_or_default();
    p.field("Reference", format!("{}/{}", to("kind"), to("name")));
    p.field("Metrics", "( current / target )");
    let current = list(o.at(&["status", "currentMetrics"]));
    for (i, m) in list(o.at(&["spec", "metrics"])).iter().enumerate() {
        metric(p, m, current.get(i).unwrap_or(&Value::Null));
    }
    let min = o.at(&["spec", "minReplicas"]).map_or("<unset>".into(), show);
    p.field("Min replicas", min);
    p.field("Max replicas", o.int_at(&["spec", "maxReplicas"]).unwrap_or(0).to_string());
    if let Some(b) = o.at(&["spec", "behavior"]) {
        p.line(0, "Behavior:");
        for (title, key) in [("Scale Up", "scaleUp"), ("Scale Down", "scaleDown")] {
            if !b[key].is_null() {
                rules(p, title, &b[key]);
            }
        }
    }
    let n = |k: &str| o.int_at(&["status", k]).unwrap_or(0);
    p.field(
        &format!("{} pods", to("kind")),
        format!("{} current / {} desired", n("currentReplicas"), n("desiredReplicas")),
    );
    let conditions = list(o.at(&["status", "conditions"]));
    if !conditions.is_empty() {
        p.line(0, "Conditions:\n  Type\tStatus\tReason\tMessage\n  ----\t------\t------\t-------");
        for c in conditions {
            let [t, s, r, m] = ["type", "status", "reason", "message"].map(|k| show(&c[k]));
            p.line(1, format!("{t}\t{s}\t{r}\t{m}"));
        }
    }
}

fn metric(p: &mut Page, m: &Value, current: &Value) {
    let kind = show(&m["type"]);
    let key = format!("{}{}", kind[..kind.len().min(1)].to_lowercase(), kind.get(1..).unwrap_or_default());
    let (spec, now) = (&m[key.as_str()], &current[key.as_str()]["current"]);
    let amount = |v: &Value| if v.is_null() { "<unknown>".to_owned() } else { show(v) };
    let target = &spec["target"];
    let name = show(&spec["metric"]["name"]);
    let (title, value) = match kind.as_str() {
        "Resource" | "ContainerResource" => {
            let metric_name = match kind.as_str() {
                "Resource" => format!("resource {} on pods", show(&spec["name"])),
                _ => format!("resource {} of container {:?} on pods", show(&spec["name"]), show(&spec["container"])),
            };
            match target["averageUtilization"].as_i64() {
                Some(percent) => {
                    let have = now["averageUtilization"].as_i64();
                    let have = have.map_or("<unknown>".into(), |h| format!("{h}% ({})", show(&now["averageValue"])));
                    (format!("{metric_name}  (as a percentage of request)"), format!("{have} / {percent}%"))
                }
                None => (metric_name, format!("{} / {}", amount(&now["averageValue"]), show(&target["averageValue"]))),
            }
        }
        "Pods" => {
            let text = format!("{} / {}", amount(&now["averageValue"]), show(&target["averageValue"]));
            (format!("{name:?} on pods"), text)
        }
        "Object" => {
            let on = format!("{}/{}", show(&spec["describedObject"]["kind"]), show(&spec["describedObject"]["name"]));
            let is_average = target["type"] == "AverageValue";
            let (word, k) = if is_average { ("average value", "averageValue") } else { ("value", "value") };
            (format!("{name:?} on {on} (target {word})"), format!("{} / {}", amount(&now[k]), show(&target[k])))
        }
        "External" => {
            let is_average = !target["averageValue"].is_null();
            let (word, k) = if is_average { ("average value", "averageValue") } else { ("value", "value") };
            (format!("{name:?} (target {word})"), format!("{} / {}", amount(&now[k]), show(&target[k])))
        }
        _ => return p.line(1, format!("<unknown metric type {kind:?}>")),
    };
    p.at(1, &title, value);
}

fn rules(p: &mut Page, title: &str, v: &Value) {
    p.line(1, format!("{title}:"));
    if let Some(n) = v["stabilizationWindowSeconds"].as_i64() {
        p.line(2, format!("Stabilization Window: {n} seconds"));
    }
    let policies = list(v.get("policies"));
    if !policies.is_empty() {
        let select = v["selectPolicy"].as_str().unwrap_or("Max");
        p.line(2, format!("Select Policy: {select}"));
        p.line(2, "Policies:");
        for policy in policies {
            let [t, n, s] = ["type", "value", "periodSeconds"].map(|k| show(&policy[k]));
            p.line(3, format!("- Type: {t}\tValue: {n}\tPeriod: {s} seconds"));
        }
    }
}

pub fn storage_class(p: &mut Page, o: &Object) {
    const DEFAULT: [&str; 2] =
        ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
    let text = |key: &str| o.get(key).map(show).unwrap_or_default();
    p.field("Name", o.name());
    let default = DEFAULT.iter().any(|a| o.annotation(a) == Some("true"));
    p.field("IsDefaultClass", if default { "Yes" } else { "No" });
    p.field("Annotations", selector(o.at(&["metadata", "annotations"])));
    p.field("Provisioner", text("provisioner"));
    p.field("Parameters", selector(o.get("parameters")));
    let expands = o.get("allowVolumeExpansion").and_then(Value::as_bool).map_or("<unset>", title_bool);
    p.field("AllowVolumeExpansion", expands);
    let options = list(o.get("mountOptions"));
    if options.is_empty() {
        p.field("MountOptions", "<none>");
    } else {
        p.line(0, "MountOptions:");
        options.iter().for_each(|m| p.line(1, show(m)));
    }
    if o.get("reclaimPolicy").is_some() {
        p.field("ReclaimPolicy", text("reclaimPolicy"));
    }
    if o.get("volumeBindingMode").is_some() {
        p.field("VolumeBindingMode", text("volumeBindingMode"));
    }
    let topologies = list(o.get("allowedTopologies"));
    if !topologies.is_empty() {
        p.line(0, "AllowedTopologies:\t");
        for (i, t) in topologies.iter().enumerate() {
            super::volumes::requirements(p, 1, &format!("Term {i}"), &t["matchLabelExpressions"]);
        }
    }
}

pub fn attributes_class(p: &mut Page, o: &Object) {
    p.field("Name", o.name());
    p.field("Annotations", selector(o.at(&["metadata", "annotations"])));
    p.field("DriverName", o.get("driverName").map(show).unwrap_or_default());
    p.field("Parameters", selector(o.get("parameters")));
}
