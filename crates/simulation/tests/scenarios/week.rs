//! A week of CronJobs: 25 March to 1 April 2026, with the change to daylight saving time in Berlin on the 29th, and the controller down
//! for a day from then on.

use crate::objects::{cron_job, job_spec, named};
use serde_json::{Value, json};
use simulation::scenario::{Crash, Scenario, Step};
use simulation::{Caches, CrashPoint, NodeSpec, Run, Span, in_virtual_time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const HALF: Duration = Duration::from_secs(1800);
const TIME: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// What each CronJob has started at the end of the week. The controller is down from the 29th at 12:30:30 to the same time on the 30th;
/// afterwards it starts the last of the missed times, unless a deadline has passed.
fn expected() -> Vec<(&'static str, &'static str, Value, usize)> {
    let berlin = json!({"timeZone": "Europe/Berlin"});
    let keep = |more: Value| {
        let mut all = json!({"successfulJobsHistoryLimit": 20});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let long = |seconds: u64| json!({"spec": job_spec(&format!("sleep:{seconds}"), json!({}))});
    vec![
        ("hourly", "0 * * * *", keep(json!({})), 168 - 24 + 1),
        // There is no 2:30 on the 29th.
        ("berlin-night", "30 2 * * *", keep(berlin.clone()), 6),
        ("berlin-noon", "0 12 * * *", keep(berlin), 7),
        ("office", "30 8 * * 1-5", keep(json!({"timeZone": "America/New_York"})), 5),
        // The 30th at 12:30:00 UTC is 30 s before the restart.
        (
            "office-prompt",
            "30 8 * * 1-5",
            keep(json!({"timeZone": "America/New_York", "startingDeadlineSeconds": 15})),
            4,
        ),
        ("suspended", "* * * * *", keep(json!({"suspend": true})), 0),
        // Resumed on the 27th at 0:30, without the missed times.
        ("resumed", "0 * * * *", keep(json!({"suspend": true, "startingDeadlineSeconds": 60})), 5 * 24 - 24),
        // 50 minutes long: every third time is free, from 0:20 on; after the restart from 12:40 on.
        (
            "forbid",
            "*/20 * * * *",
            keep(json!({"concurrencyPolicy": "Forbid", "startingDeadlineSeconds": 60, "jobTemplate": long(3000)})),
            (4 * 24 + 13) + 36,
        ),
        (
            "replace",
            "0 * * * *",
            keep(json!({"concurrencyPolicy": "Replace", "jobTemplate": long(7200)})),
            168 - 24 + 1,
        ),
        ("allow", "*/30 * * * *", keep(json!({"jobTemplate": long(2700)})), 336 - 48 + 1),
    ]
}

/// Clauses: G05.week, C13.time-zone, C13.missed, C13.concurrency
#[test]
fn a_week_of_cron_jobs_starts_exactly_the_jobs_it_should() {
    let steps = expected().into_iter().map(|(name, schedule, more, _)| Step::Create(cron_job(name, schedule, more)));
    let scenario = Scenario {
        seed: 1,
        start: Some("2026-03-25T00:00:00Z".parse().unwrap()),
        components: ["cronjob-controller", "job-controller", "generic-garbage-collector", "scheduler"]
            .map(String::from)
            .to_vec(),
        nodes: vec![NodeSpec::new("n1", "32"), NodeSpec::new("n2", "32")],
        steps: steps.collect(),
        ..Scenario::default()
    };
    let found = in_virtual_time(async {
        let mut run = Run::start(&scenario).await.unwrap();
        run.steps().await.unwrap();
        let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for half in 1..=336 {
            run.advance(HALF).await.unwrap();
            if half == 97 {
                let resume = json!({"spec": {"suspend": false}});
                run.execute(&Step::Patch { object: named("CronJob", "resumed"), patch: resume }).await.unwrap();
            }
            if half == 2 * (4 * 24 + 12) + 1 || half == 336 {
                // Jobs of this time have started.
                run.advance(Duration::from_secs(30)).await.unwrap();
            }
            if half == 2 * (4 * 24 + 12) + 1 {
                let component = "cronjob-controller".into();
                let restart_after = Some(Span(48 * HALF));
                let (point, caches) = (CrashPoint::Now, Caches::Empty);
                run.execute(&Step::Crash(Crash { component, point, restart_after, caches, times: 1 })).await.unwrap();
            }
            // Jobs exist for half an hour at least.
            for (key, job) in run.trace.objects().iter().filter(|(key, _)| &*key.resource == "batch/jobs") {
                let owner = key.name.rsplit_once('-').unwrap().0.to_owned();
                let time = job["metadata"]["annotations"][TIME].as_str().unwrap().to_owned();
                found.entry(owner).or_default().insert(time);
            }
        }
        found
    })
    .unwrap();
    let found = |name: &str| found.get(name).map_or(0, BTreeSet::len);
    let counts: Vec<(&str, usize)> = expected().iter().map(|(name, ..)| (*name, found(name))).collect();
    let expected: Vec<(&str, usize)> = expected().into_iter().map(|(name, _, _, n)| (name, n)).collect();
    assert_eq!(counts, expected);
}
