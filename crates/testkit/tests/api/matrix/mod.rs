//! The verb matrix: every verb that discovery offers works for every kind, and all others are rejected.
//!
//! The kinds come from the server's own discovery. A kind without a sample object fails the test, so that none is forgotten.
//!
//! Clauses: S02.tracked, S01.apply-creates-or-merges

mod functions;
mod objects;
mod pages;
mod parts;
mod refused;
mod shapes;
mod watches;

use crate::served::{Samples, Served, discover};
use bytes::Bytes;
use serde_json::{Value, json};
use std::fmt::Display;
use testkit::{Answer, Cluster};

pub const JSON_PATCH: &str = "application/json-patch+json";
pub const MERGE_PATCH: &str = "application/merge-patch+json";
pub const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";

/// One kind, and what was found wrong with it.
pub struct Walk<'a> {
    pub cluster: &'a Cluster,
    pub kind: &'a Served,
    pub samples: &'a Samples,
    problems: Vec<String>,
}

impl Walk<'_> {
    pub fn sample(&self, i: usize) -> Value {
        self.samples.numbered(self.kind, i).unwrap()
    }

    /// The path of the `i`-th object.
    pub fn path(&self, i: usize) -> String {
        self.kind.object(self.sample(i)["metadata"]["name"].as_str().unwrap())
    }

    pub fn problem(&mut self, what: impl Display) {
        self.problems.push(format!("{} {}: {what}", self.kind.api_version(), self.kind.kind));
    }

    pub fn check(&mut self, holds: bool, what: impl Display) {
        if !holds {
            self.problem(what);
        }
    }

    pub fn same(&mut self, have: &Value, want: &Value, what: impl Display) {
        if have != want {
            self.problem(format!("{what}: {}", difference(have, want, "")));
        }
    }

    pub async fn call(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.cluster.call(method, path, body.clone()).await
    }

    /// Sends JSON; the answer must have this code.
    pub async fn expect(&mut self, code: u16, method: &str, path: &str, body: &Value, what: &str) -> Value {
        let a = self.call(method, path, body).await;
        self.answered(code, a, what)
    }

    pub async fn patch(&mut self, code: u16, media: &str, path: &str, body: &Value, what: &str) -> Value {
        let body = Bytes::from(body.to_string());
        let a = self.cluster.send("PATCH", path, Some(media), "application/json", body).await;
        self.answered(code, a, what)
    }

    fn answered(&mut self, code: u16, a: Answer, what: &str) -> Value {
        if a.code != code {
            let text = a.body["message"].as_str().map_or_else(|| a.body.to_string(), str::to_owned);
            self.problem(format!(
                "{what}: {} instead of {code}: {}",
                a.code,
                text.chars().take(300).collect::<String>()
            ));
        }
        a.body
    }

    pub fn revision(&self) -> u64 {
        self.cluster.server.registry.store.revision()
    }

    /// A resource version is the newest one.
    pub fn is_newest(&self, version: &Value) -> bool {
        version.as_str().and_then(|v| v.parse().ok()) == Some(self.revision())
    }

    /// Nothing was written since.
    pub fn unwritten(&mut self, since: u64, what: impl Display) {
        let now = self.revision();
        self.check(now == since, format!("{what} changed something: revision {since} became {now}"));
    }

    /// Takes an object away, whatever holds it.
    pub async fn remove(&mut self, path: &str) {
        self.call("DELETE", &format!("{path}?gracePeriodSeconds=0"), &Value::Null).await;
        let left = self.call("GET", path, &Value::Null).await;
        if left.code == 404 {
            return;
        }
        self.release(path).await;
        self.expect(404, "GET", path, &Value::Null, "get what was removed").await;
    }

    /// Frees an object that is being deleted of what holds it.
    pub async fn release(&mut self, path: &str) {
        let off = json!({"metadata": {"finalizers": null}});
        let mut o = self.patch(200, MERGE_PATCH, path, &off, "take the finalizers off").await;
        if self.kind.subresource("finalize").is_some() {
            o["spec"]["finalizers"] = json!([]);
            self.expect(200, "PUT", &format!("{path}/finalize"), &o, "finalize").await;
        }
    }

    /// Creates the numbered objects.
    pub async fn create(&mut self, numbers: std::ops::Range<usize>) {
        for i in numbers {
            let (base, o) = (self.kind.collection(), self.sample(i));
            self.expect(201, "POST", &base, &o, "create").await;
        }
    }
}

/// Where two values differ first.
fn difference(have: &Value, want: &Value, path: &str) -> String {
    match (have, want) {
        (Value::Object(h), Value::Object(w)) => {
            let keys: std::collections::BTreeSet<_> = h.keys().chain(w.keys()).collect();
            let null = Value::Null;
            let mut parts = keys.into_iter().filter(|k| h.get(*k) != w.get(*k));
            let k = parts.next().map_or("", |k| k.as_str());
            difference(h.get(k).unwrap_or(&null), w.get(k).unwrap_or(&null), &format!("{path}.{k}"))
        }
        (Value::Array(h), Value::Array(w)) if h.len() == w.len() => {
            let i = h.iter().zip(w).position(|(a, b)| a != b).unwrap_or(0);
            difference(&h[i], &w[i], &format!("{path}[{i}]"))
        }
        _ => format!("{path} is {have} and should be {want}"),
    }
}

/// The entry of a manager in `managedFields`.
pub fn entry<'a>(object: &'a Value, manager: &str, operation: &str, subresource: &str) -> Option<&'a Value> {
    object["metadata"]["managedFields"].as_array()?.iter().find(|e| {
        e["manager"] == manager
            && e["operation"] == operation
            && e["subresource"].as_str().unwrap_or_default() == subresource
    })
}

#[tokio::test(start_paused = true)]
async fn every_kind_takes_every_verb_it_offers_and_no_other() {
    let cluster = Cluster::start(36).await;
    // Nobody else writes.
    cluster.definitions.abort();
    let samples = Samples::load();
    let mut problems = Vec::new();
    let kinds = discover(&cluster).await;
    assert!(kinds.len() > 60, "{} kinds are served", kinds.len());
    for kind in &kinds {
        let mut w = Walk { cluster: &cluster, kind, samples: &samples, problems: Vec::new() };
        refused::refused(&mut w).await;
        if !kind.has("create") || !kind.has("get") {
            functions::functions(&mut w).await;
        } else if samples.of(kind).is_none() {
            w.problem("there is no sample of it");
        } else {
            objects::lifecycle(&mut w).await;
            objects::generated_name(&mut w).await;
            shapes::shapes(&mut w).await;
            parts::status(&mut w).await;
            parts::scale(&mut w).await;
            watches::watches(&mut w).await;
            pages::pages(&mut w).await;
            objects::collection(&mut w).await;
        }
        problems.append(&mut w.problems);
    }
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}
