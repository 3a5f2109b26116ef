//! Random schedules of crashes for each controller, with all invariants checked after every commit.
//!
//! Here each controller has as many as fit into a few seconds. `KEMUDI_SCHEDULES=1000` runs that many of each; `KEMUDI_SEED=7` only
//! that one, and `KEMUDI_TRACE=1` prints its commits. A failure prints the seed, and the scenario as YAML.

use crate::stories::{TARGETS, scenario};
use simulation::{Failure, Report, Run, Scenario, in_virtual_time};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn run(scenario: &Scenario) -> Result<Report, Box<Failure>> {
    let trace = std::env::var_os("KEMUDI_TRACE").is_some();
    in_virtual_time(async {
        let mut run = Run::start_recording(scenario, trace).await?;
        let done = run.steps().await;
        run.trace.lines().iter().for_each(|line| println!("{line}"));
        done.map(|()| run.report())
    })
    .unwrap()
}

fn explore(target: &str) {
    let (_, schedules, ..) = TARGETS.iter().find(|(name, ..)| *name == target).unwrap();
    let seeds = match number("KEMUDI_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("KEMUDI_SCHEDULES").unwrap_or(*schedules),
    };
    let (mut crashes, mut writes, mut failed) = (0, 0, Vec::new());
    let limit = number("KEMUDI_FAILURES").unwrap_or(1) as usize;
    for seed in seeds {
        if std::env::var_os("KEMUDI_VERBOSE").is_some() {
            eprintln!("{target}: seed {seed}");
        }
        match run(&scenario(target, seed)) {
            Ok(report) => {
                crashes += u64::from(report.crashes);
                writes += report.writes;
            }
            Err(failure) => {
                println!("{target}: seed {seed}: {}", failure.reason);
                failed.push((seed, failure));
                if failed.len() >= limit {
                    break;
                }
            }
        }
    }
    println!("{target}: {crashes} crashes, {writes} writes, {} failures", failed.len());
    if let Some((seed, failure)) = failed.first() {
        panic!("{target}: seed {seed}: {failure}");
    }
}

macro_rules! schedules {
    ($($test:ident: $target:literal,)*) => {
        $(
            /// Clauses: G05.crashes
            #[test]
            fn $test() {
                explore($target);
            }
        )*

        #[test]
        fn every_target_has_a_test() {
            let tested = [$($target),*];
            assert!(TARGETS.iter().map(|(name, ..)| *name).eq(tested));
        }
    };
}

schedules! {
    deployment: "deployment-controller",
    replicaset: "replicaset-controller",
    replicationcontroller: "replication-controller",
    statefulset: "statefulset-controller",
    daemonset: "daemon-set-controller",
    job: "job-controller",
    cronjob: "cronjob-controller",
    ttl_after_finished: "ttl-after-finished-controller",
    disruption: "disruption-controller",
    horizontal_pod_autoscaler: "horizontal-pod-autoscaler",
    garbage_collector: "generic-garbage-collector",
    namespace: "namespace-controller",
    node: "node-controller",
    endpoints: "endpoint-controller",
    endpointslice: "endpointslice-controller",
    resourcequota: "resourcequota-controller",
    serviceaccount: "service-account-controller",
    resourceclaim: "resource-claim-controller",
    ephemeral_volume: "ephemeral-volume-controller",
    persistent_volume: "persistent-volume-binder",
    scheduler: "scheduler",
}
