//! Conditions of a terminating namespace (upstream `status_condition_utils.go`).

use jiff::Timestamp;
use meta::{Object, Value};
use serde_json::json;
use std::collections::BTreeMap;

/// The result of a pass over the content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub discovery_error: Option<String>,
    pub errors: Vec<String>,
    /// Resource → number of remaining objects.
    left: BTreeMap<String, usize>,
    /// Finalizer → number of objects that wait for it.
    finalizers: BTreeMap<String, usize>,
    grace: i64,
}

impl Progress {
    pub fn remains<'a>(&mut self, resource: &str, n: usize, finalizers: impl Iterator<Item = &'a str>, grace: i64) {
        *self.left.entry(resource.into()).or_default() += n;
        for f in finalizers {
            *self.finalizers.entry(f.into()).or_default() += 1;
        }
        self.grace = self.grace.max(grace);
    }

    pub fn has_remains(&self) -> bool {
        !self.left.is_empty()
    }

    /// What went wrong.
    pub fn failure(&self) -> Option<String> {
        let all: Vec<&str> = self.discovery_error.iter().chain(&self.errors).map(String::as_str).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// Seconds until the next pass: half of the longest estimate of what the content needs.
    pub fn wait_seconds(&self) -> u64 {
        u64::try_from(self.grace.max(0) / 2).unwrap_or(0) + 1
    }
}

fn counts(of: &BTreeMap<String, usize>, what: impl Fn(&str, usize) -> String) -> String {
    of.iter().map(|(k, n)| what(k, *n)).collect::<Vec<_>>().join(", ")
}

fn sorted(errors: &[String]) -> String {
    let mut all = errors.to_vec();
    all.sort();
    all.join(", ")
}

/// Returns the namespace's status with its five conditions updated.
pub fn apply(ns: &Object, p: &Progress, now: Timestamp) -> Value {
    let mut status = ns.get("status").cloned().unwrap_or_else(|| json!({}));
    let mut all = status["conditions"].as_array().cloned().unwrap_or_default();
    let failed = |text: String| ("True", text);
    let content = counts(&p.left, |r, n| format!("{r} has {n} resource instances"));
    let waiting = counts(&p.finalizers, |f, n| format!("{f} in {n} resource instances"));
    let rows = [
        (
            "NamespaceDeletionDiscoveryFailure",
            p.discovery_error.clone().map(failed),
            ("DiscoveryFailed", "ResourcesDiscovered", "All resources successfully discovered"),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            None,
            ("GroupVersionParsingFailed", "ParsedGroupVersions", "All legacy kube types successfully parsed"),
        ),
        (
            "NamespaceDeletionContentFailure",
            (!p.errors.is_empty()).then(|| {
                failed(format!(
                    "Failed to delete all resource types, {} remaining: {}",
                    p.errors.len(),
                    sorted(&p.errors)
                ))
            }),
            (
                "ContentDeletionFailed",
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
            ),
        ),
        (
            "NamespaceContentRemaining",
            (!p.left.is_empty()).then(|| failed(format!("Some resources are remaining: {content}"))),
            ("SomeResourcesRemain", "ContentRemoved", "All content successfully removed"),
        ),
        (
            "NamespaceFinalizersRemaining",
            (!p.finalizers.is_empty())
                .then(|| failed(format!("Some content in the namespace has finalizers remaining: {waiting}"))),
            ("SomeFinalizersRemain", "ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        ),
    ];
    for (kind, found, (bad, good, fine)) in rows {
        let (state, reason, message) = match found {
            Some((s, text)) => (s, bad, text),
            None => ("False", good, fine.to_owned()),
        };
        let old = all.iter().position(|c| c["type"] == kind);
        if let Some(i) = old
            && all[i]["status"] == state
            && all[i]["reason"] == reason
            && all[i]["message"] == message.as_str()
        {
            continue;
        }
        let time = match old {
            Some(i) if all[i]["status"] == state => all[i]["lastTransitionTime"].clone(),
            _ => meta::time::format(now).into(),
        };
        let c = json!({
            "type": kind, "status": state, "reason": reason, "message": message, "lastTransitionTime": time,
        });
        match old {
            Some(i) => all[i] = c,
            None => all.push(c),
        }
    }
    status["conditions"] = all.into();
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clauses: C14.namespace-conditions
    #[test]
    fn remaining_content_is_reported() {
        let mut p = Progress::default();
        assert!(p.failure().is_none() && !p.has_remains());
        assert_eq!(p.wait_seconds(), 1);
        p.remains("pods.", 2, ["example.com/keep"].into_iter(), 30);
        assert!(p.has_remains());
        assert_eq!(p.wait_seconds(), 16);
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut ns = Object::default();
        let s = apply(&ns, &p, now);
        let find =
            |s: &Value, t: &str| s["conditions"].as_array().unwrap().iter().find(|c| c["type"] == t).cloned().unwrap();
        let c = find(&s, "NamespaceContentRemaining");
        assert_eq!(
            (c["status"].as_str(), c["message"].as_str()),
            (Some("True"), Some("Some resources are remaining: pods. has 2 resource instances"))
        );
        let c = find(&s, "NamespaceFinalizersRemaining");
        assert_eq!(
            c["message"],
            "Some content in the namespace has finalizers remaining: example.com/keep in 1 resource instances"
        );
        ns.set(&["status"], s.clone());
        assert_eq!(apply(&ns, &p, now + jiff::SignedDuration::from_secs(60)), s);
        let later = apply(&ns, &Progress::default(), now + jiff::SignedDuration::from_secs(60));
        let c = find(&later, "NamespaceContentRemaining");
        assert_eq!(
            (c["status"].as_str(), c["lastTransitionTime"].as_str()),
            (Some("False"), Some("2026-01-01T00:01:00Z"))
        );
        p.errors = vec!["b".into(), "a".into()];
        let c = find(&apply(&ns, &p, now), "NamespaceDeletionContentFailure");
        assert_eq!(c["message"], "Failed to delete all resource types, 2 remaining: a, b");
        assert_eq!(p.failure().as_deref(), Some("b, a"));
    }
}
