//! The decision of the scheduler about a pod: from the server, or computed from the objects of the API.

use super::fields::{name, namespace, text};
use super::reader::{Reader, escaped};
use crate::error::{Error, Result};
use meta::Value;
use scheduler::explain::{Explanation, explain};
use scheduler::listing::LISTED;
use scheduler::plugins::Handle;
use scheduler::pod::Pod;
use scheduler::{Cluster, Configuration, PodDecision};
use std::time::Duration;

/// How long an explanation may take.
const LIMIT: Duration = Duration::from_secs(10);

/// What is known of a decision.
pub enum Decided {
    /// By the scheduler of the server.
    Server(Box<PodDecision>),
    /// Computed here. `absent`: the server is Kemudi, and its scheduler does not have the pod.
    Here { explanation: Box<Explanation>, absent: bool },
    /// The user may not list nodes or pods.
    Unknown,
}

impl Decided {
    pub fn explanation(&self) -> Option<&Explanation> {
        match self {
            Self::Server(d) => Some(&d.explanation),
            Self::Here { explanation, .. } => Some(explanation),
            Self::Unknown => None,
        }
    }
}

/// The most bytes of a decision: on 5,000 nodes it has 3 MB.
const DECISION_BYTES: usize = 64 << 20;

/// What the server says of the scheduler of a pod.
pub enum Served {
    /// A scheduler of the server has the pod in its queue.
    Queued,
    /// None has. These are the names of the profiles that run; empty if the server does not say.
    Unqueued(Vec<String>),
}

/// Reads whether a scheduler of the server has a pod in its queue.
///
/// # Errors
/// The client cannot be made.
pub async fn served(r: &mut Reader<'_>, pod: &Value) -> Result<Served> {
    let Err(e) = r.k.client().await?.get_at_most::<PodDecision>(&path(pod), DECISION_BYTES).await else {
        return Ok(Served::Queued);
    };
    let details = e.status().and_then(|s| s.details.clone()).filter(|d| d.group == "kemudi");
    let causes = details.into_iter().flat_map(|d| d.causes).filter(|c| c.reason == "Decider");
    Ok(Served::Unqueued(causes.map(|c| c.message).collect()))
}

/// The path at which Kemudi serves the decision about a pod. Other servers do not have it.
fn path(pod: &Value) -> String {
    format!("/kemudi/v1/namespaces/{}/pods/{}/decision", escaped(namespace(pod)), escaped(name(pod)))
}

/// Reads the decision about a waiting pod, or computes it.
///
/// # Errors
/// The server cannot be reached, or fails.
pub async fn decide(r: &mut Reader<'_>, pod: &Value) -> Result<Decided> {
    let absent = match r.k.client().await?.get_at_most::<PodDecision>(&path(pod), DECISION_BYTES).await {
        Ok(decision) => return Ok(Decided::Server(Box::new(decision))),
        Err(e) => match e.status() {
            Some(s) => s.details.as_ref().is_some_and(|d| d.group == "kemudi"),
            // Another server may answer such a path with anything.
            None if e.is_connection_refused() => return Err(e.into()),
            None => false,
        },
    };
    let mut cluster = Cluster::default();
    for listed in LISTED {
        let objects = r.list(listed.group_version, "", listed.plural).await?;
        if matches!(listed.plural, "nodes" | "pods") && r.is_unreadable(listed.plural, "") {
            return Ok(Decided::Unknown);
        }
        for object in objects.iter() {
            // A single object that cannot be decoded affects no other, as in the scheduler.
            let _ = listed.add(&mut cluster, object);
        }
    }
    let explanation = Box::new(compute(pod, &cluster)?);
    Ok(Decided::Here { explanation, absent })
}

/// Explains a pod with the default configuration of the scheduler.
fn compute(pod: &Value, cluster: &Cluster) -> Result<Explanation> {
    let frameworks = scheduler::frameworks(&Configuration::default(), &Handle::default(), &[]);
    let frameworks = frameworks.map_err(|e| Error::Text(e.to_string()))?;
    let decoded = serde_json::to_vec(pod).and_then(|bytes| Pod::new(bytes.into()));
    let decoded = decoded.map_err(|e| Error::Text(format!("pod {} cannot be decoded: {e}", name(pod))))?;
    let framework = frameworks.get(text(pod, "/spec/schedulerName")).or_else(|| frameworks.values().next());
    Ok(framework.map(|f| explain(f, &decoded, cluster, LIMIT)).unwrap_or_default())
}
