//! What users rehearse, and what they see.

use crate::support::*;
use serde_json::json;
use simulation::Verdict;

/// Clauses: G05.drain
#[test]
fn a_drain_that_a_budget_blocks_ends_at_its_timeout() {
    let copy = web(3, json!(null), json!({"maxUnavailable": 0}));
    let r = run(&copy, "steps: [{drain: {node: node-1, timeout: 2m}}]");
    println!("{}", r.to_text());
    assert_eq!(r.verdict, Verdict::Broken);
}
