//! Explanations made of rules: for each kind, what is read, and the rules that look at it.
//!
//! The first rule that finds something decides the state and the summary; what the others find is added. Invariant: a rule is a pure function
//! of what was read, and what the user may not read breaks no rule.

mod api_service;
mod backend;
mod definition;
mod ingress;
mod volume;
mod webhook;

use super::finding::{Explanation, Finding, State};
use super::reader::{Read, Reader};
use crate::error::Result;
use jiff::Timestamp;
use meta::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The explanation of one kind.
struct Topic {
    group: &'static str,
    kind: &'static str,
    /// What is read besides the object.
    reads: fn(&Value) -> Vec<Query>,
    rules: &'static [Rule],
    /// The summary of an object without problems.
    healthy: fn(&Value) -> String,
}

/// One thing that can be wrong with an object.
struct Rule {
    reason: &'static str,
    state: State,
    summary: &'static str,
    /// Findings whose reason is that of the rule.
    find: fn(&Facts<'_>) -> Vec<Finding>,
}

const TOPICS: &[Topic] =
    &[ingress::TOPIC, volume::TOPIC, api_service::TOPIC, definition::TOPIC, webhook::MUTATING, webhook::VALIDATING];

/// An object, or all objects of a collection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Query {
    group_version: &'static str,
    namespace: String,
    plural: &'static str,
    /// Empty: all objects.
    name: String,
}

impl Query {
    fn list(group_version: &'static str, namespace: &str, plural: &'static str) -> Self {
        Self { group_version, namespace: namespace.into(), plural, name: String::new() }
    }

    fn get(group_version: &'static str, namespace: &str, plural: &'static str, name: &str) -> Self {
        Self { name: name.into(), ..Self::list(group_version, namespace, plural) }
    }
}

/// What is known about an object.
struct Facts<'a> {
    object: &'a Value,
    now: Timestamp,
    objects: BTreeMap<Query, Read>,
    /// Collections that could be read.
    lists: BTreeMap<Query, Arc<Vec<Value>>>,
}

impl Facts<'_> {
    fn get(&self, group_version: &'static str, namespace: &str, plural: &'static str, name: &str) -> &Read {
        self.objects.get(&Query::get(group_version, namespace, plural, name)).unwrap_or(&Read::Unreadable)
    }

    /// The objects of a collection; none if the user may not list it.
    fn list(&self, group_version: &'static str, namespace: &str, plural: &'static str) -> Option<&[Value]> {
        self.lists.get(&Query::list(group_version, namespace, plural)).map(|items| items.as_slice())
    }
}

/// Explains an object of a kind that has rules. None: it has none.
pub async fn explain(r: &mut Reader<'_>, group: &str, kind: &str, object: &Value) -> Result<Option<Explanation>> {
    let Some(topic) = TOPICS.iter().find(|t| (t.group, t.kind) == (group, kind)) else { return Ok(None) };
    let (mut objects, mut lists) = (BTreeMap::new(), BTreeMap::new());
    // Each query once.
    for query in BTreeSet::from_iter((topic.reads)(object)) {
        let Query { group_version, namespace, plural, name } = &query;
        if name.is_empty() {
            let items = r.list(group_version, namespace, plural).await?;
            if !r.is_unreadable(plural, namespace) {
                lists.insert(query, items);
            }
        } else {
            let read = r.get(group_version, namespace, plural, name).await?;
            objects.insert(query, read);
        }
    }
    Ok(Some(topic.judge(&Facts { object, now: r.k.now(), objects, lists })))
}

impl Topic {
    fn judge(&self, facts: &Facts<'_>) -> Explanation {
        let mut explanation: Option<Explanation> = None;
        for rule in self.rules {
            let found: Vec<Finding> =
                (rule.find)(facts).into_iter().map(|f| Finding { reason: rule.reason, ..f }).collect();
            if !found.is_empty() {
                let before = explanation.unwrap_or_else(|| Explanation::new(rule.state, rule.summary));
                explanation = Some(before.because(found));
            }
        }
        explanation.unwrap_or_else(|| Explanation::new(State::Healthy, (self.healthy)(facts.object)))
    }
}

/// A finding whose reason is that of its rule.
fn finding(message: impl Into<String>) -> Finding {
    Finding::new("", message)
}

#[cfg(test)]
mod tests;
