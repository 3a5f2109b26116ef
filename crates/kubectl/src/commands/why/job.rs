//! Why a Job has not completed, and why a CronJob starts none.

use super::fields::{condition, is_controlled_by, is_true, list, name, namespace, number, text, uid};
use super::finding::{Explanation, Finding, ObjectName, State, plural, some};
use super::pod_pending::Nodes;
use super::pod_running::{self, ago};
use super::reader::Reader;
use super::workload;
use crate::error::Result;
use jiff::Timestamp;
use meta::Value;

pub async fn job(r: &mut Reader<'_>, job: &Value, nodes: Nodes) -> Result<Explanation> {
    let status = |field: &str| number(job, &format!("/status/{field}"));
    let is = |kind: &str| condition(job, kind).filter(|c| c["status"] == "True");
    let completions = job.pointer("/spec/completions").and_then(Value::as_i64);
    let counts = match completions {
        Some(n) => format!("{} of {n} completions", status("succeeded")),
        None => format!("{} completions", status("succeeded")),
    };
    if is("Complete").is_some() {
        return Ok(Explanation::new(State::Completed, format!("has completed: {counts}")));
    }
    let pods = r.list("v1", namespace(job), "pods").await?;
    let own: Vec<&Value> = pods.iter().filter(|p| is_controlled_by(p, uid(job))).collect();
    let failures = || {
        let failed: Vec<&&Value> = own.iter().filter(|p| text(p, "/status/phase") == "Failed").collect();
        failed.last().map(|p| {
            let message = format!("{} pod{} failed; the last one: {}", failed.len(), plural(failed.len()), name(p));
            let about = ObjectName::new("v1", "Pod", namespace(p), name(p));
            Finding::new("PodsFailed", message).about(about).because(pod_running::failures(p))
        })
    };
    if let Some(c) = is("Failed").or_else(|| is("FailureTarget")) {
        let summary = format!("has failed: {}: {}", text(c, "/reason"), text(c, "/message"));
        return Ok(Explanation::new(State::Failed, summary).because(failures()));
    }
    if is_true(job, "/spec/suspend") {
        let command =
            format!("kubectl patch -n {} job/{} -p '{{\"spec\":{{\"suspend\":false}}}}'", namespace(job), name(job));
        let finding =
            Finding::new("Suspended", "spec.suspend is true: the job controller creates no pods").suggest(command);
        return Ok(Explanation::new(State::Suspended, format!("is suspended: {counts}")).because([finding]));
    }
    let mut findings: Vec<Finding> = failures().into_iter().collect();
    let limit = job.pointer("/spec/backoffLimit").and_then(Value::as_i64).unwrap_or(6);
    if status("failed") > 0 {
        findings.push(Finding::new(
            "BackOff",
            format!(
                "{} of {} failures that it may have (backoffLimit); after each one the job controller waits longer",
                status("failed"),
                limit
            ),
        ));
    }
    let parallelism = job.pointer("/spec/parallelism").and_then(Value::as_i64).unwrap_or(1);
    let left = completions.map_or(parallelism, |n| (n - status("succeeded")).min(parallelism));
    let waits_for_retry = status("failed") > 0 && status("active") == 0;
    findings.extend(workload::pods(r, job, if waits_for_retry { 0 } else { left }, nodes).await?);
    let summary = format!("is running: {counts}, {} active pod{}", status("active"), plural(status("active") as usize));
    let waits = findings.iter().any(|f| matches!(f.reason, "PodsUnavailable" | "PodsMissing" | "PodsFailed"));
    let state = if waits { State::Progressing } else { State::Healthy };
    Ok(Explanation::new(state, summary).because(findings))
}

/// How long after it is due a job is started at most, in seconds.
const STARTS_WITHIN: i64 = 20;
/// How many missed starts are counted.
const MOST_MISSED: usize = 100;

/// Why a CronJob starts no job. Pure.
pub fn cron_job(cron: &Value, now: Timestamp) -> Explanation {
    let (schedule, zone) = (text(cron, "/spec/schedule"), text(cron, "/spec/timeZone"));
    if is_true(cron, "/spec/suspend") {
        let command = format!(
            "kubectl patch -n {} cronjob/{} -p '{{\"spec\":{{\"suspend\":false}}}}'",
            namespace(cron),
            name(cron)
        );
        let finding = Finding::new("Suspended", "spec.suspend is true: no jobs are started").suggest(command);
        return Explanation::new(State::Suspended, "is suspended").because([finding]);
    }
    let zone = if zone.is_empty() { "UTC" } else { zone };
    let next = match next_time(schedule, zone, now) {
        Ok(next) => next,
        Err(why) => {
            let finding = Finding::new(
                "InvalidSchedule",
                format!("its schedule {schedule:?} in the time zone {zone} cannot be used: {why}"),
            );
            return Explanation::new(State::Failed, "starts no jobs").because([finding]);
        }
    };
    let Some(next) = next else {
        let finding = Finding::new("NeverDue", format!("its schedule {schedule:?} names no date that exists"));
        return Explanation::new(State::Failed, "starts no jobs").because([finding]);
    };
    let mut findings = Vec::new();
    let active: Vec<String> = list(cron, "/status/active").iter().map(|a| text(a, "/name").to_owned()).collect();
    if !active.is_empty() && cron["spec"]["concurrencyPolicy"] == "Forbid" {
        let command = format!("kubectl why -n {} job/{}", namespace(cron), active[0]);
        findings.push(
            Finding::new(
                "Concurrency",
                format!("concurrencyPolicy Forbid: no job is started while this one runs: {}", some(&active)),
            )
            .suggest(command),
        );
    }
    findings.extend(missed(cron, schedule, zone, !active.is_empty(), now));
    let last = match text(cron, "/status/lastScheduleTime") {
        "" => "no job has been started".to_owned(),
        time => format!("the last job was started {} ago", ago(time, now)),
    };
    let until = kinds::columns::duration(next.as_second() - now.as_second());
    let state = if findings.is_empty() { State::Healthy } else { State::Waiting };
    let healthy = if findings.is_empty() { "is healthy" } else { "waits" };
    Explanation::new(state, format!("{healthy}: {last}, the next one is due in {until}")).because(findings)
}

/// The starts of a schedule that were due and did not happen.
fn missed(cron: &Value, schedule: &str, zone: &str, is_active: bool, now: Timestamp) -> Option<Finding> {
    let field = ["/status/lastScheduleTime", "/metadata/creationTimestamp"].into_iter().map(|f| text(cron, f));
    let since = field.into_iter().find_map(meta::time::parse)?;
    let (mut count, mut last, mut at) = (0, None, since);
    while let Ok(Some(next)) = next_time(schedule, zone, at) {
        if now.as_second() - next.as_second() < STARTS_WITHIN || count == MOST_MISSED {
            break;
        }
        (count, last, at) = (count + 1, Some(next), next);
    }
    let last = kinds::columns::duration(now.as_second() - last?.as_second());
    let count = if count == MOST_MISSED { format!("more than {MOST_MISSED}") } else { count.to_string() };
    let starts = format!("{count} start{} since then did not happen", if count == "1" { "" } else { "s" });
    let deadline = cron.pointer("/spec/startingDeadlineSeconds").and_then(Value::as_i64);
    Some(match (is_active && cron["spec"]["concurrencyPolicy"] == "Forbid", deadline) {
        (true, _) => Finding::new("MissedStarts", format!("{starts} because of it")),
        (false, Some(seconds)) => Finding::new(
            "MissedStarts",
            format!("{starts}; a start that is late by more than startingDeadlineSeconds ({seconds}s) is left out"),
        ),
        (false, None) => Finding::new(
            "MissedStarts",
            format!("{starts}, the last one was due {last} ago: the cronjob controller has not acted"),
        ),
    })
}

/// The next time of a schedule; none if there is none.
fn next_time(schedule: &str, zone: &str, now: Timestamp) -> std::result::Result<Option<Timestamp>, String> {
    Ok(cron::Schedule::parse(schedule)?.in_zone(cron::time_zone(zone)?).next(now))
}
