//! Table cells of a pod (upstream `printPod`).

use kinds::columns::{Cell, age, condition, display, list_at};
use meta::{Object, Value, time};

/// Evaluates the table cell functions of the kind.
pub fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "podReady" => {
            let all = list_at(o, &["spec", "containers"]).len();
            let ready = list_at(o, &["status", "containerStatuses"]).iter().filter(|c| c["ready"] == true).count();
            let sidecars = sidecars(o);
            let ready_sidecars = list_at(o, &["status", "initContainerStatuses"])
                .iter()
                .filter(|c| c["ready"] == true && sidecars.iter().any(|s| c["name"] == **s))
                .count();
            format!("{}/{}", ready + ready_sidecars, all + sidecars.len()).into()
        }
        "podStatus" => pod_status(o).into(),
        "podRestarts" => restarts(o, cell.now).into(),
        "podIP" => {
            let ip = list_at(o, &["status", "podIPs"]).first().map(|p| display(&p["ip"])).unwrap_or_default();
            if ip.is_empty() { "<none>".into() } else { ip.into() }
        }
        "readinessGates" => {
            let gates = list_at(o, &["spec", "readinessGates"]);
            if gates.is_empty() {
                return Some("<none>".into());
            }
            let holds = |g: &&Value| {
                condition(o, g["conditionType"].as_str().unwrap_or_default()).is_some_and(|c| c["status"] == "True")
            };
            format!("{}/{}", gates.iter().filter(holds).count(), gates.len()).into()
        }
        _ => return None,
    })
}

fn sidecars(o: &Object) -> Vec<&str> {
    let restarts = |c: &&Value| c["restartPolicy"] == "Always";
    list_at(o, &["spec", "initContainers"]).iter().filter(restarts).filter_map(|c| c["name"].as_str()).collect()
}

/// Returns the value of the STATUS column.
fn pod_status(o: &Object) -> String {
    let mut reason = display(o.at(&["status", "reason"]).unwrap_or(&Value::Null));
    if reason.is_empty() {
        reason = display(o.at(&["status", "phase"]).unwrap_or(&Value::Null));
    }
    if condition(o, "PodScheduled").is_some_and(|c| c["reason"] == "SchedulingGated") {
        reason = "SchedulingGated".into();
    }
    let init = list_at(o, &["spec", "initContainers"]);
    let sidecars = sidecars(o);
    let mut initializing = false;
    for (i, c) in list_at(o, &["status", "initContainerStatuses"]).iter().enumerate() {
        let (terminated, waiting) = (&c["state"]["terminated"], &c["state"]["waiting"]);
        if terminated.is_object() && terminated["exitCode"] == 0 {
            continue;
        }
        if sidecars.iter().any(|s| c["name"] == **s) && c["started"] == true {
            continue;
        }
        initializing = true;
        reason = if terminated.is_object() {
            match (display(&terminated["reason"]), terminated["signal"].as_i64()) {
                (r, _) if !r.is_empty() => format!("Init:{r}"),
                (_, Some(s)) if s != 0 => format!("Init:Signal:{s}"),
                _ => format!("Init:ExitCode:{}", display(&terminated["exitCode"])),
            }
        } else if waiting.is_object() && !matches!(display(&waiting["reason"]).as_str(), "" | "PodInitializing") {
            format!("Init:{}", display(&waiting["reason"]))
        } else {
            format!("Init:{i}/{}", init.len())
        };
        break;
    }
    if !initializing || condition(o, "Initialized").is_some_and(|c| c["status"] == "True") {
        let mut running = false;
        let mut failure = String::new();
        for c in list_at(o, &["status", "containerStatuses"]).iter().rev() {
            let (terminated, waiting) = (&c["state"]["terminated"], &c["state"]["waiting"]);
            if waiting.is_object() && !display(&waiting["reason"]).is_empty() {
                reason = display(&waiting["reason"]);
            } else if terminated.is_object() {
                reason = match (display(&terminated["reason"]), terminated["signal"].as_i64()) {
                    (r, _) if !r.is_empty() => r,
                    (_, Some(s)) if s != 0 => format!("Signal:{s}"),
                    _ => format!("ExitCode:{}", display(&terminated["exitCode"])),
                };
                if terminated["exitCode"] != 0 {
                    failure.clone_from(&reason);
                }
            } else if c["ready"] == true && c["state"]["running"].is_object() {
                running = true;
            }
        }
        if reason == "Completed" {
            let ready = condition(o, "Ready").is_some_and(|c| c["status"] == "True");
            if running && ready {
                reason = "Running".into();
            } else if !failure.is_empty() {
                reason = failure;
            } else if running {
                reason = "NotReady".into();
            }
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

/// The value of the RESTARTS column: restarts of init containers count until the pod is initialized, those of sidecars always.
fn restarts(o: &Object, now: &str) -> String {
    let sidecars = sidecars(o);
    let is_sidecar = |c: &Value| sidecars.iter().any(|s| c["name"] == **s);
    // Up to the first init container that has not finished.
    let mut init: Vec<&Value> = Vec::new();
    let mut initializing = false;
    for c in list_at(o, &["status", "initContainerStatuses"]) {
        init.push(c);
        if c["state"]["terminated"]["exitCode"] != 0 && !(is_sidecar(c) && c["started"] == true) {
            initializing = true;
            break;
        }
    }
    let mut counted = init;
    if !initializing || condition(o, "Initialized").is_some_and(|c| c["status"] == "True") {
        counted.retain(|c| is_sidecar(c));
        counted.extend(list_at(o, &["status", "containerStatuses"]));
    }
    let (mut count, mut last) = (0, None);
    for c in counted {
        count += c["restartCount"].as_i64().unwrap_or(0);
        let t = c["lastState"]["terminated"]["finishedAt"].as_str().and_then(time::parse);
        last = last.max(t);
    }
    match last {
        Some(t) if count > 0 => format!("{count} ({} ago)", age(&time::format(t), now)),
        _ => count.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counts_restarts_of_init_containers_until_initialized() {
        let check = |status: Value, expect: &str| {
            let v = json!({"spec": {"initContainers": [{"name": "setup"}, {"name": "proxy", "restartPolicy": "Always"}],
                "containers": [{"name": "app"}]}, "status": status});
            assert_eq!(restarts(&Object::from_value(v).unwrap(), "2026-11-21T12:00:00Z"), expect);
        };
        let failing = json!({"name": "setup", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-11-21T11:59:00Z"}}});
        check(json!({"initContainerStatuses": [failing]}), "3 (60s ago)");
        let done = json!({"name": "setup", "restartCount": 3, "state": {"terminated": {"exitCode": 0}}});
        let proxy = json!({"name": "proxy", "restartCount": 2, "started": true, "state": {"running": {}}});
        let app = json!({"name": "app", "restartCount": 1, "state": {"running": {}}});
        check(json!({"initContainerStatuses": [done, proxy], "containerStatuses": [app]}), "3");
    }
}
