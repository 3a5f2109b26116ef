//! Calls extenders over HTTP (upstream `extender.go`, `k8s.io/kube-scheduler/extender/v1`).
//!
//! An extender is not trusted to answer in time, with little, or truthfully: its time and bytes are limited, and nodes and pods that it
//! names must be among those of the call.

use crate::cluster::{Cluster, Node};
use crate::configuration::ExtenderConfiguration;
use crate::decision::{Decision, Refusal};
use crate::pod::Pod;
use crate::preemption::Candidate;
use client::{Client, Error, Https};
use meta::Value;
use serde_json::{Map, json};
use std::collections::HashMap;
use std::sync::Arc;

/// The name under which refusals by extenders are kept: every event may help their pods.
pub const NAME: &str = "Extender";

/// The largest answer that is read.
const MOST_BYTES: usize = 64 << 20;

/// Extenders score from 0 to 10, plugins to 100.
const SCALE: i64 = 10;

/// The largest score of an extender, whatever it answers.
const MAX_SCORE: i64 = 1 << 32;

/// Why a call of an extender failed.
#[derive(Debug, thiserror::Error)]
pub enum ExtenderError {
    #[error("Post \"{url}\": {source}")]
    Call {
        url: String,
        #[source]
        source: Error,
    },
    #[error("failed {verb} with extender at URL {url}, code {code}")]
    Code { verb: Box<str>, url: String, code: u16 },
    #[error("extender at URL {url}: {problem}")]
    Malformed { url: String, problem: String },
    #[error("{0}")]
    Reported(String),
    #[error("extender \"{extender}\" claims a filtered node \"{node}\" which is not found in the input node list")]
    UnknownNode { extender: Box<str>, node: String },
    #[error(
        "extender: {extender} claims to preempt pod (UID: {uid}) on node: {node}, but the pod is not found on that node"
    )]
    UnknownPod { extender: Box<str>, uid: String, node: String },
    #[error("expected at least one victim pod on node \"{0}\"")]
    NoVictims(String),
}

/// The answer to a filter call.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Filtered {
    /// The names of the nodes that fit.
    pub nodes: Vec<String>,
    /// Why others do not.
    pub failed: HashMap<String, String>,
    /// Why others do not, where evicting pods cannot help.
    pub unresolvable: HashMap<String, String>,
}

/// An extender and the connection to it.
#[derive(Clone)]
pub struct Extender {
    pub configuration: ExtenderConfiguration,
    client: Client,
}

/// A member of an answer. Go ignores the case of names.
fn member<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let fields = answer.as_object().into_iter().flatten();
    fields.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, v)| v).next_back().unwrap_or(&Value::Null)
}

fn texts(value: &Value) -> HashMap<String, String> {
    let all = value.as_object().into_iter().flatten();
    all.map(|(key, v)| (key.clone(), v.as_str().unwrap_or_default().to_owned())).collect()
}

impl Extender {
    /// Makes no connection yet. Errors if the URL or a certificate is invalid.
    pub fn new(configuration: ExtenderConfiguration) -> Result<Self, Error> {
        let client = Client::new(Https::new(&configuration.connection)?, "kube-scheduler");
        Ok(Self::over(configuration, client))
    }

    /// An extender that is reached through a client.
    pub fn over(configuration: ExtenderConfiguration, client: Client) -> Self {
        let client = client.with_timeout(configuration.timeout);
        Self { configuration, client }
    }

    /// Whether it is called for a pod.
    pub fn concerns(&self, pod: &Pod) -> bool {
        let managed = &self.configuration.resources;
        let requests = |name: &str| pod.view.requests.extended.iter().any(|(n, _)| &**n == name);
        managed.is_empty() || managed.iter().any(|(name, _)| requests(name))
    }

    async fn call(&self, verb: &str, body: &Value) -> Result<Value, ExtenderError> {
        let url = format!("{}/{verb}", self.configuration.url.trim_end_matches('/'));
        let failed = |source| ExtenderError::Call { url: url.clone(), source };
        let json = "application/json";
        let sent = Some((json, body.to_string().into_bytes()));
        let request = client::client::request(http::Method::POST, &format!("/{verb}"), json, sent).map_err(failed)?;
        let work = async {
            let response = self.client.raw(request).await.map_err(failed)?;
            let code = response.status().as_u16();
            if code != 200 {
                return Err(ExtenderError::Code { verb: verb.into(), url: url.clone(), code });
            }
            client::client::collect_at_most(response.into_body(), MOST_BYTES).await.map_err(failed)
        };
        // The client's own limit ends with the head of the answer.
        let timeout = self.configuration.timeout;
        let bytes = tokio::time::timeout(timeout, work).await.map_err(|_| failed(Error::Timeout(timeout)))??;
        let malformed = |e: serde_json::Error| ExtenderError::Malformed { url: url.clone(), problem: e.to_string() };
        meta::depth::from_slice(&bytes).map_err(malformed)
    }

    fn arguments(&self, pod: &Pod, nodes: &[&Node]) -> Result<Value, ExtenderError> {
        let decoded = |source| ExtenderError::Call { url: self.configuration.url.to_string(), source };
        let mut arguments = Map::from_iter([("Pod".to_owned(), pod.decode::<Value>().map_err(decoded)?)]);
        let (mut list, mut names) = (Value::Null, Value::Null);
        if self.configuration.caches_nodes {
            names = nodes.iter().map(|n| Value::from(&*n.name)).collect();
        } else {
            let entries = nodes.iter().filter_map(|n| n.entry.as_ref());
            let items: Result<Vec<Value>, _> = entries.map(|e| e.decode::<Value>()).collect();
            list = json!({"metadata": {}, "items": items.map_err(decoded)?});
        }
        arguments.insert("Nodes".into(), list);
        arguments.insert("NodeNames".into(), names);
        Ok(arguments.into())
    }

    /// Which of the nodes fit a pod. Without a filter call, all of them.
    pub async fn filter(&self, pod: &Pod, nodes: &[&Node]) -> Result<Filtered, ExtenderError> {
        if self.configuration.filter.is_empty() {
            let nodes = nodes.iter().map(|n| n.name.to_string()).collect();
            return Ok(Filtered { nodes, ..Filtered::default() });
        }
        let answer = self.call(&self.configuration.filter, &self.arguments(pod, nodes)?).await?;
        self.filtered(&answer, nodes)
    }

    fn filtered(&self, answer: &Value, nodes: &[&Node]) -> Result<Filtered, ExtenderError> {
        if let Some(error) = member(answer, "Error").as_str().filter(|e| !e.is_empty()) {
            return Err(ExtenderError::Reported(error.to_owned()));
        }
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let names = member(answer, "NodeNames").as_array().filter(|_| self.configuration.caches_nodes);
        let names: Vec<String> = match names {
            Some(names) => names.iter().map(text).collect(),
            None => {
                let items = member(member(answer, "Nodes"), "items").as_array().into_iter().flatten();
                items.map(|n| text(&n["metadata"]["name"])).collect()
            }
        };
        let known: std::collections::HashSet<&str> = nodes.iter().map(|n| &*n.name).collect();
        if let Some(unknown) = names.iter().find(|n| !known.contains(n.as_str())) {
            let extender = self.configuration.url.clone();
            return Err(ExtenderError::UnknownNode { extender, node: unknown.clone() });
        }
        Ok(Filtered {
            nodes: names,
            failed: texts(member(answer, "FailedNodes")),
            unresolvable: texts(member(answer, "FailedAndUnresolvableNodes")),
        })
    }

    /// The weighted scores of nodes, by name.
    pub async fn prioritize(&self, pod: &Pod, nodes: &[&Node]) -> Result<Vec<(Box<str>, i64)>, ExtenderError> {
        if self.configuration.prioritize.is_empty() {
            return Ok(Vec::new());
        }
        let answer = self.call(&self.configuration.prioritize, &self.arguments(pod, nodes)?).await?;
        let weight = self.configuration.weight;
        let score = |entry: &Value| {
            let score = member(entry, "Score").as_i64().unwrap_or(0).clamp(-MAX_SCORE, MAX_SCORE);
            let host = member(entry, "Host").as_str().unwrap_or_default();
            (Box::from(host), score.saturating_mul(weight).saturating_mul(SCALE))
        };
        Ok(answer.as_array().into_iter().flatten().map(score).collect())
    }

    /// Which of the candidates of a preemption are left, with which victims.
    pub async fn preempt(
        &self,
        pod: &Pod,
        candidates: Vec<Candidate>,
        cluster: &Cluster,
    ) -> Result<Vec<Candidate>, ExtenderError> {
        if self.configuration.preempt.is_empty() || candidates.is_empty() {
            return Ok(candidates);
        }
        let decoded = |source| ExtenderError::Call { url: self.configuration.url.to_string(), source };
        let mut victims = Map::new();
        for c in &candidates {
            let pods: Result<Vec<Value>, Error> = match self.configuration.caches_nodes {
                true => Ok(c.victims.iter().map(|v| json!({"UID": &*v.meta.uid})).collect()),
                false => c.victims.iter().map(|v| v.decode::<Value>()).collect(),
            };
            let pods = pods.map_err(decoded)?;
            victims.insert(c.node.to_string(), json!({"Pods": pods, "NumPDBViolations": c.violations}));
        }
        let (full, meta) = match self.configuration.caches_nodes {
            true => (Value::Null, victims.into()),
            false => (victims.into(), Value::Null),
        };
        let pod = pod.decode::<Value>().map_err(decoded)?;
        let body = json!({"Pod": pod, "NodeNameToVictims": full, "NodeNameToMetaVictims": meta});
        let answer = self.call(&self.configuration.preempt, &body).await?;
        let left = member(&answer, "NodeNameToMetaVictims").as_object().into_iter().flatten();
        let left = left.map(|(node, victims)| self.candidate(node, victims, cluster));
        // A node without victims is left out if the extender may fail.
        let ignorable = self.configuration.ignorable;
        left.filter(|c| !(ignorable && matches!(c, Err(ExtenderError::NoVictims(_))))).collect()
    }

    fn candidate(&self, node: &str, victims: &Value, cluster: &Cluster) -> Result<Candidate, ExtenderError> {
        let extender = || self.configuration.url.clone();
        let Some(found) = cluster.node(node) else {
            return Err(ExtenderError::UnknownNode { extender: extender(), node: node.to_owned() });
        };
        let mut pods: Vec<Arc<Pod>> = Vec::new();
        for victim in member(victims, "Pods").as_array().into_iter().flatten() {
            let uid = member(victim, "UID").as_str().unwrap_or_default();
            let Some(pod) = found.pods.iter().find(|p| &*p.meta.uid == uid) else {
                let (uid, node) = (uid.to_owned(), node.to_owned());
                return Err(ExtenderError::UnknownPod { extender: extender(), uid, node });
            };
            pods.push(pod.clone());
        }
        if pods.is_empty() {
            return Err(ExtenderError::NoVictims(node.to_owned()));
        }
        let violations = member(victims, "NumPDBViolations").as_u64().unwrap_or(0);
        Ok(Candidate {
            node: found.name.clone(),
            victims: pods,
            violations: usize::try_from(violations).unwrap_or(usize::MAX),
        })
    }

    /// Binds a pod. Errors if the extender does not.
    pub async fn bind(&self, pod: &Pod, node: &str) -> Result<(), ExtenderError> {
        let m = &pod.meta;
        let body = json!({
            "PodName": &*m.name, "PodNamespace": &*m.namespace, "PodUID": &*m.uid, "Node": node,
        });
        let answer = self.call(&self.configuration.bind, &body).await?;
        match member(&answer, "Error").as_str().filter(|e| !e.is_empty()) {
            Some(error) => Err(ExtenderError::Reported(error.to_owned())),
            None => Ok(()),
        }
    }

    /// Whether it binds a pod.
    pub fn binds(&self, pod: &Pod) -> bool {
        !self.configuration.bind.is_empty() && self.concerns(pod)
    }
}

/// Leaves the nodes that all extenders accept, and adds the others to the refusals of a decision. Errors if an extender that may not fail
/// does.
pub async fn narrow<'a>(
    extenders: &[Extender],
    pod: &Pod,
    mut feasible: Vec<&'a Node>,
    decision: &mut Decision,
) -> Result<Vec<&'a Node>, ExtenderError> {
    let before = feasible.len();
    for extender in extenders.iter().filter(|e| e.concerns(pod)) {
        if feasible.is_empty() {
            break;
        }
        let answer = match extender.filter(pod, &feasible).await {
            Ok(answer) => answer,
            Err(e) if extender.configuration.ignorable => {
                tracing::info!(extender = %extender.configuration.url, pod = %pod.key(), "extender skipped: {e}");
                continue;
            }
            Err(e) => return Err(e),
        };
        let left: std::collections::HashSet<&str> = answer.nodes.iter().map(String::as_str).collect();
        let (left, refused): (Vec<_>, Vec<_>) = feasible.into_iter().partition(|n| left.contains(&*n.name));
        for node in refused {
            let refusal = match (answer.unresolvable.get(&*node.name), answer.failed.get(&*node.name)) {
                (Some(why), _) => Refusal::unresolvable(NAME, why.clone()),
                (None, Some(why)) => Refusal::resolvable(NAME, why.clone()),
                (None, None) => Refusal { plugin: NAME, reasons: Vec::new(), resolvable: false, is_error: false },
            };
            let message = refusal.reasons.first().map_or("", |reason| reason.as_ref());
            decision.add_extender_refusal(&extender.configuration.url, message, &node.name);
            decision.diagnosis.refusals.push((node.name.clone(), refusal));
        }
        feasible = left;
    }
    decision.extenders_refused = feasible.len() < before;
    Ok(feasible)
}

/// The scores that extenders add, by node. One that fails adds none.
pub async fn scores(extenders: &[Extender], pod: &Pod, nodes: &[&Node]) -> Vec<(Box<str>, i64)> {
    if nodes.len() < 2 {
        return Vec::new();
    }
    let calls = extenders.iter().filter(|e| e.concerns(pod)).map(|e| async move {
        e.prioritize(pod, nodes).await.unwrap_or_else(|error| {
            tracing::debug!(extender = %e.configuration.url, pod = %pod.key(), "extender gave no scores: {error}");
            Vec::new()
        })
    });
    futures::future::join_all(calls).await.into_iter().flatten().collect()
}

/// The candidates of a preemption that all extenders accept.
pub async fn preempt(
    extenders: &[Extender],
    pod: &Pod,
    mut candidates: Vec<Candidate>,
    cluster: &Cluster,
) -> Result<Vec<Candidate>, ExtenderError> {
    for extender in extenders.iter().filter(|e| e.concerns(pod)) {
        candidates = match extender.preempt(pod, candidates.clone(), cluster).await {
            Ok(left) => left,
            Err(e) if extender.configuration.ignorable => {
                tracing::info!(extender = %extender.configuration.url, pod = %pod.key(), "extender skipped: {e}");
                candidates
            }
            Err(e) => return Err(e),
        };
    }
    Ok(candidates)
}
