//! The same seed gives the same trace.

use crate::stories::{TARGETS, scenario};
use simulation::{Run, Scenario, in_virtual_time};

/// The lines of a run's trace. Whether it succeeds does not matter here.
fn trace(scenario: &Scenario) -> Vec<String> {
    in_virtual_time(async {
        let mut run = Run::start_recording(scenario, true).await.unwrap();
        let _ = run.steps().await;
        run.trace.lines().to_vec()
    })
    .unwrap()
}

/// Clauses: G05.deterministic
#[test]
fn a_seed_gives_the_same_trace_twice() {
    for (i, (target, ..)) in TARGETS.iter().enumerate() {
        let scenario = scenario(target, 1000 + i as u64);
        let (first, second) = (trace(&scenario), trace(&scenario));
        if let Some((a, b)) = first.iter().zip(&second).find(|(a, b)| a != b) {
            panic!("{target}: the first write that differs:\n{a}\n{b}\n{}", scenario.to_yaml());
        }
        assert_eq!(first.len(), second.len(), "{target}");
        assert!(first.len() > 10, "{target}: {} writes", first.len());
    }
}

/// Clauses: G05.deterministic
#[test]
fn another_seed_gives_another_trace() {
    let mut scenario = scenario("deployment-controller", 1);
    let first = trace(&scenario);
    scenario.seed += 1;
    assert_ne!(first, trace(&scenario));
}
