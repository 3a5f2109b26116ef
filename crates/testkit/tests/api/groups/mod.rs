//! Validation errors with their texts: one file per group, one table per kind.

mod access;
mod admission;
mod autoscaling;
mod certificates;
mod definitions;
mod fairness;
mod shown;

use serde_json::Value;
use testkit::Cluster;

/// Makes an object, and answers with it.
async fn made(c: &Cluster, path: &str, body: Value) -> Value {
    let a = c.call("POST", path, body).await;
    assert_eq!(a.code, 201, "{path} {}", a.body);
    a.body
}
