//! Describes deployments, replica sets, daemon sets, stateful sets, jobs and cron jobs.

use super::page::{Page, list, selector, show};
use super::related;
use crate::commands::rollout::history::revisions;
use crate::error::Result;
use crate::kube::Kube;
use crate::resource::Info;
use crate::resource::select::Selection;
use meta::{Object, Value};

/// The annotation that named the storage class of a claim before the field existed.
const OLD_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

fn template(p: &mut Page, o: &Object) {
    p.line(0, "Pod Template:");
    super::pod::template(&mut p.text, o.at(&["spec", "template"]).unwrap_or(&Value::Null));
}

fn conditions(p: &mut Page, o: &Object) {
    let all = list(o.at(&["status", "conditions"]));
    if !all.is_empty() {
        p.line(0, "Conditions:\n  Type\tStatus\tReason\n  ----\t------\t------");
        for c in all {
            p.line(1, format!("{} \t{}\t{}", show(&c["type"]), show(&c["status"]), show(&c["reason"])));
        }
    }
}

pub async fn deployment(p: &mut Page, o: &Object, i: &Info, k: &mut Kube) -> Result {
    let n = |path: &[&str]| o.int_at(path).unwrap_or(0);
    p.name_and_namespace(o);
    p.field("CreationTimestamp", p.time(o.creation_timestamp()));
    p.metadata(o);
    p.field("Selector", selector(o.at(&["spec", "selector"])));
    p.field(
        "Replicas",
        format!(
            "{} desired | {} updated | {} total | {} available | {} unavailable",
            n(&["spec", "replicas"]),
            n(&["status", "updatedReplicas"]),
            n(&["status", "replicas"]),
            n(&["status", "availableReplicas"]),
            n(&["status", "unavailableReplicas"])
        ),
    );
    p.field("StrategyType", o.str_at(&["spec", "strategy", "type"]).unwrap_or_default());
    p.field("MinReadySeconds", n(&["spec", "minReadySeconds"]).to_string());
    if let Some(r) = o.at(&["spec", "strategy", "rollingUpdate"]) {
        let text = format!("{} max unavailable, {} max surge", show(&r["maxUnavailable"]), show(&r["maxSurge"]));
        p.field("RollingUpdateStrategy", text);
    }
    template(p, o);
    conditions(p, o);
    let all = revisions(k, i).await.unwrap_or_default();
    if all.is_empty() {
        return Ok(());
    }
    // The revision with the deployment's template is the new one; others with pods are old.
    let current_template = o.at(&["spec", "template"]);
    let newest = all.iter().rposition(|r| r.template().as_ref() == current_template);
    let shown = |r: &Object| {
        format!(
            "{} ({}/{} replicas created)",
            r.name(),
            r.int_at(&["status", "replicas"]).unwrap_or(0),
            r.int_at(&["spec", "replicas"]).unwrap_or(0)
        )
    };
    let old: Vec<String> =
        all.iter().enumerate().filter(|(n, _)| Some(*n) != newest).map(|(_, r)| shown(&r.stored_in)).collect();
    p.field("OldReplicaSets", if old.is_empty() { "<none>".into() } else { old.join(", ") });
    p.field("NewReplicaSet", newest.map_or("<none>".into(), |n| shown(&all[n].stored_in)));
    Ok(())
}

async fn pods_status(p: &mut Page, o: &Object, k: &mut Kube) -> Result {
    let labels = selector(o.at(&["spec", "selector"]));
    let selection = Selection { labels: &labels, page: Some(p.chunk_size), ..Selection::default() };
    let pods = match related::objects(k, "pods", o.namespace(), &selection).await {
        Err(e) if o.kind() == "ReplicaSet" => {
            p.field("Pods Status", format!("error in fetching pods: {e}"));
            return Ok(());
        }
        other => other?,
    };
    let phase = |expected: &str| {
        pods.iter()
            .filter(|q| q.controller_of().is_some_and(|c| c.uid == o.uid()))
            .filter(|q| q.str_at(&["status", "phase"]).unwrap_or_default() == expected)
            .count()
    };
    p.field(
        "Pods Status",
        format!(
            "{} Running / {} Waiting / {} Succeeded / {} Failed",
            phase("Running"),
            phase("Pending"),
            phase("Succeeded"),
            phase("Failed")
        ),
    );
    Ok(())
}

fn owner(p: &mut Page, o: &Object) {
    if let Some(c) = o.controller_of() {
        p.field("Controlled By", format!("{}/{}", c.kind, c.name));
    }
}

pub async fn replica_set(p: &mut Page, o: &Object, k: &mut Kube) -> Result {
    p.name_and_namespace(o);
    p.field("Selector", selector(o.at(&["spec", "selector"])));
    p.metadata(o);
    owner(p, o);
    let n = |path: &[&str]| o.int_at(path).unwrap_or(0);
    p.field("Replicas", format!("{} current / {} desired", n(&["status", "replicas"]), n(&["spec", "replicas"])));
    pods_status(p, o, k).await?;
    template(p, o);
    conditions(p, o);
    Ok(())
}

pub async fn daemon_set(p: &mut Page, o: &Object, k: &mut Kube) -> Result {
    p.name_and_namespace(o);
    p.field("Selector", selector(o.at(&["spec", "selector"])));
    p.field("Node-Selector", selector(o.at(&["spec", "template", "spec", "nodeSelector"])));
    p.metadata(o);
    for (title, key) in [
        ("Desired Number of Nodes Scheduled", "desiredNumberScheduled"),
        ("Current Number of Nodes Scheduled", "currentNumberScheduled"),
        ("Number of Nodes Scheduled with Up-to-date Pods", "updatedNumberScheduled"),
        ("Number of Nodes Scheduled with Available Pods", "numberAvailable"),
        ("Number of Nodes Misscheduled", "numberMisscheduled"),
    ] {
        p.line(0, format!("{title}: {}", o.int_at(&["status", key]).unwrap_or(0)));
    }
    pods_status(p, o, k).await?;
    template(p, o);
    Ok(())
}

pub async fn stateful_set(p: &mut Page, o: &Object, k: &mut Kube) -> Result {
    let n = |path: &[&str]| o.int_at(path).unwrap_or(0);
    p.name_and_namespace(o);
    p.field("CreationTimestamp", p.time(o.creation_timestamp()));
    p.field("Selector", selector(o.at(&["spec", "selector"])));
    p.metadata(o);
    p.field("Replicas", format!("{} desired | {} total", n(&["spec", "replicas"]), n(&["status", "replicas"])));
    p.field("Update Strategy", o.str_at(&["spec", "updateStrategy", "type"]).unwrap_or_default());
    if let Some(n) = o.int_at(&["spec", "updateStrategy", "rollingUpdate", "partition"]) {
        p.at(1, "Partition", n.to_string());
        if let Some(n) = o.at(&["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"]) {
            p.at(1, "MaxUnavailable", show(n));
        }
    }
    pods_status(p, o, k).await?;
    template(p, o);
    let claims = list(o.at(&["spec", "volumeClaimTemplates"]));
    if claims.is_empty() {
        p.field("Volume Claims", "<none>");
    } else {
        p.line(0, "Volume Claims:");
        for c in claims {
            p.at(1, "Name", show(&c["metadata"]["name"]));
            let old = &c["metadata"]["annotations"][OLD_STORAGE_CLASS];
            p.at(1, "StorageClass", show(if old.is_null() { &c["spec"]["storageClassName"] } else { old }));
            p.labels(0, "  Labels", c["metadata"].get("labels"));
            p.labels(0, "  Annotations", c["metadata"].get("annotations"));
            let capacity = &c["spec"]["resources"]["requests"]["storage"];
            p.at(1, "Capacity", if capacity.is_null() { "<default>".into() } else { show(capacity) });
            let modes: Vec<String> = list(c["spec"].get("accessModes")).iter().map(show).collect();
            p.at(1, "Access Modes", format!("[{}]", modes.join(" ")));
        }
    }
    Ok(())
}

pub fn cron_job(p: &mut Page, o: &Object) {
    let text = |path: &[&str]| o.at(path).map_or("<unset>".to_owned(), show);
    let of_job = |key: &str| text(&["spec", "jobTemplate", "spec", key]);
    p.name_and_namespace(o);
    p.metadata(o);
    p.field("Schedule", text(&["spec", "schedule"]));
    p.field("Concurrency Policy", text(&["spec", "concurrencyPolicy"]));
    p.field("Suspend", o.at(&["spec", "suspend"]).and_then(Value::as_bool).map_or("<unset>", super::page::title_bool));
    p.field("Time Zone", text(&["spec", "timeZone"]));
    p.field("Successful Job History Limit", text(&["spec", "successfulJobsHistoryLimit"]));
    p.field("Failed Job History Limit", text(&["spec", "failedJobsHistoryLimit"]));
    let deadline = o.int_at(&["spec", "startingDeadlineSeconds"]).map_or("<unset>".into(), |s| format!("{s}s"));
    p.field("Starting Deadline Seconds", deadline);
    let chosen = o.at(&["spec", "jobTemplate", "spec", "selector"]);
    p.field("Selector", if chosen.is_some() { selector(chosen) } else { "<unset>".into() });
    p.field("Parallelism", of_job("parallelism"));
    p.field("Completions", of_job("completions"));
    if let Some(s) = o.int_at(&["spec", "jobTemplate", "spec", "activeDeadlineSeconds"]) {
        p.field("Active Deadline Seconds", format!("{s}s"));
    }
    p.line(0, "Pod Template:");
    super::pod::template(&mut p.text, o.at(&["spec", "jobTemplate", "spec", "template"]).unwrap_or(&Value::Null));
    p.field("Last Schedule Time", o.str_at(&["status", "lastScheduleTime"]).map_or("<unset>".into(), |t| p.time(t)));
    let active: Vec<String> = list(o.at(&["status", "active"])).iter().map(|a| show(&a["name"])).collect();
    p.field("Active Jobs", if active.is_empty() { "<none>".into() } else { active.join(", ") });
}

pub fn job(p: &mut Page, o: &Object, now: jiff::Timestamp) {
    let n = |path: &[&str]| o.int_at(path).unwrap_or(0);
    let text = |path: &[&str]| o.at(path).map_or("<unset>".to_owned(), show);
    p.name_and_namespace(o);
    p.field("Selector", selector(o.at(&["spec", "selector"])));
    p.metadata(o);
    owner(p, o);
    p.field("Parallelism", text(&["spec", "parallelism"]));
    p.field("Completions", text(&["spec", "completions"]));
    if let Some(m) = o.str_at(&["spec", "completionMode"]) {
        p.field("Completion Mode", m);
    }
    if let Some(s) = o.at(&["spec", "suspend"]) {
        p.field("Suspend", show(s));
    }
    p.field("Backoff Limit", text(&["spec", "backoffLimit"]));
    if let Some(s) = o.at(&["spec", "ttlSecondsAfterFinished"]) {
        p.field("TTL Seconds After Finished", show(s));
    }
    let (start, end) = (o.str_at(&["status", "startTime"]), o.str_at(&["status", "completionTime"]));
    if let Some(t) = start {
        p.field("Start Time", p.time(t));
    }
    if let Some(t) = end {
        p.field("Completed At", p.time(t));
    }
    if let (Some(s), Some(e)) = (start, end)
        && let Some(e) = meta::time::parse(e)
    {
        p.field("Duration", crate::printer::table::age(s, e.min(now)));
    }
    if let Some(s) = o.at(&["spec", "activeDeadlineSeconds"]) {
        p.field("Active Deadline Seconds", format!("{}s", show(s)));
    }
    p.field(
        "Pods Statuses",
        format!(
            "{} Active{} / {} Succeeded / {} Failed",
            n(&["status", "active"]),
            o.int_at(&["status", "ready"]).map(|r| format!(" ({r} Ready)")).unwrap_or_default(),
            n(&["status", "succeeded"]),
            n(&["status", "failed"])
        ),
    );
    if o.str_at(&["spec", "completionMode"]) == Some("Indexed") {
        p.field("Completed Indexes", indexes(o.str_at(&["status", "completedIndexes"]).unwrap_or_default()));
    }
    template(p, o);
}

/// Formats a list of numbers and ranges; a long one is cut at the first comma after fifty characters.
fn indexes(all: &str) -> String {
    const SOFT_LIMIT: usize = 50;
    if all.is_empty() {
        return "<none>".into();
    }
    match all.get(SOFT_LIMIT..).and_then(|rest| rest.find(',')) {
        Some(comma) => format!("{}...", &all[..=SOFT_LIMIT + comma]),
        None => all.to_owned(),
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_of_indexes_are_cut() {
        let ranges = |n: usize| (0..n).map(|i| (10 + 2 * i).to_string()).collect::<Vec<_>>().join(",");
        assert_eq!(indexes(""), "<none>");
        assert_eq!(indexes("0-2,5"), "0-2,5");
        assert_eq!(indexes(&ranges(17)), ranges(17), "no comma after fifty characters");
        assert_eq!(indexes(&ranges(30)), format!("{},...", ranges(17)));
    }
}
