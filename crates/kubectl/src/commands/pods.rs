//! Finds the pod and container for `logs`, `exec`, `attach` and `port-forward`.

use crate::error::{Error, Result, text};
use crate::flags::FileFlags;
use crate::kube::{Kube, POLL_INTERVAL};
use crate::resource::select::{Selection, list, targets};
use crate::resource::{Collection, Info, Target, from_files};
use meta::{LabelSelector, Object, Value};

/// The annotation that names the default container of a pod.
const DEFAULT: &str = "kubectl.kubernetes.io/default-container";

/// What the pods are needed for, as messages phrase it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Logs,
    Attaching,
}

impl Purpose {
    /// Error for a kind without pods.
    fn cannot(self, kind: &str, why: &str) -> Error {
        let what = match self {
            Self::Logs => "cannot get the logs from",
            Self::Attaching => "cannot attach to",
        };
        Error::Text(format!("{what} *{kind}: {why}"))
    }
}

/// Returns a pod, or the pods that a workload selects, best first. Waits until a workload has a pod, up to a time limit.
pub async fn find(k: &mut Kube, info: &Info, purpose: Purpose, timeout: &str) -> Result<Vec<Info>> {
    let timeout = crate::flags::duration("pod-running-timeout", timeout)?.unwrap_or(std::time::Duration::MAX);
    let end = tokio::time::Instant::now().checked_add(timeout);
    loop {
        let found = find_now(k, info, purpose).await?;
        if !found.is_empty() {
            return Ok(found);
        }
        if end.is_some_and(|end| tokio::time::Instant::now() >= end) {
            return text("timed out waiting for the condition");
        }
        tokio::time::sleep(POLL_INTERVAL.min(timeout)).await;
    }
}

pub async fn find_now(k: &mut Kube, info: &Info, purpose: Purpose) -> Result<Vec<Info>> {
    let o = match &info.object {
        Some(o) => o.clone(),
        None => info.fetch(k).await?,
    };
    if info.resource.kind == "Pod" && info.resource.group.is_empty() {
        return Ok(vec![Info { object: Some(o), ..info.clone() }]);
    }
    let selector = match info.resource.kind.as_str() {
        "Service" | "ReplicationController" => match o.at(&["spec", "selector"]).and_then(Value::as_object) {
            Some(m) if !m.is_empty() => {
                LabelSelector::from_map(m.iter().map(|(k, v)| (k.as_str(), v.as_str().unwrap_or_default())))
            }
            _ => {
                let why = format!("invalid service '{}': Service is defined without a selector", o.name());
                return Err(purpose.cannot("v1.Service", &why));
            }
        },
        _ => match o.at(&["spec", "selector"]) {
            Some(s) => LabelSelector::from_value(Some(s)).map_err(Error::Text)?,
            None => {
                let kind = format!("{}.{}", info.resource.version, info.resource.kind);
                return Err(purpose.cannot(&kind, &format!("selector for *{kind} not implemented")));
            }
        },
    };
    let mut pods = by_labels(k, &info.namespace, &selector.to_string()).await?;
    // Running pods come before waiting ones, and ready pods before others.
    pods.sort_by_key(|p| p.object.as_ref().map(rank));
    Ok(pods)
}

fn rank(o: &Object) -> (bool, bool, bool) {
    let phase = o.str_at(&["status", "phase"]).unwrap_or_default();
    let ready = conditions(o).iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
    (o.str_at(&["spec", "nodeName"]).is_none(), phase != "Running", !ready)
}

fn conditions(o: &Object) -> &[Value] {
    o.at(&["status", "conditions"]).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the pods of a namespace with these labels.
pub async fn by_labels(k: &mut Kube, namespace: &str, labels: &str) -> Result<Vec<Info>> {
    let resource = k.resource("pods").await?;
    let c = Collection { resource, namespace: namespace.to_owned() };
    list(k, &c, &Selection { labels, ..Selection::default() }).await
}

/// Returns the object that an argument names: `web`, `pod/web`, `deploy/web`. A bare word is a pod.
pub async fn target(k: &mut Kube, words: &[String]) -> Result<Info> {
    let words: Vec<String> = match words {
        [one] if !one.contains('/') => vec!["pods".to_owned(), one.clone()],
        other => other.to_vec(),
    };
    let mut all = targets(k, &words, &Selection::default()).await?;
    match (all.pop(), all.is_empty()) {
        (Some(Target::Named(i)), true) => Ok(i),
        _ => text("expected one pod, or TYPE/NAME"),
    }
}

/// Returns the only object in files.
async fn target_of_files(k: &mut Kube, words: &[String], files: &FileFlags) -> Result<Info> {
    if !words.is_empty() {
        return text("resource/name arguments cannot be provided when a path is specified");
    }
    let mut found = from_files(k, files).await?;
    match (found.pop(), found.is_empty()) {
        (Some(i), true) => i,
        // Upstream's message for no object is the same.
        _ => text("cannot exec into multiple objects at a time"),
    }
}

/// Finds the pod to connect to.
pub async fn find_pod(k: &mut Kube, words: &[String], files: &FileFlags, timeout: &str) -> Result<Info> {
    let info = match files.is_empty() {
        true => target(k, words).await?,
        false => target_of_files(k, words, files).await?,
    };
    let pods = find(k, &info, Purpose::Attaching, timeout).await?;
    match pods.into_iter().next() {
        // An object of a file has only what the file contains.
        Some(p) if !files.is_empty() => Ok(Info { object: Some(p.fetch(k).await?), ..p }),
        Some(p) => Ok(p),
        None => text(format!("unable to find a pod of {}", info.to_name())),
    }
}

/// Returns the names of containers in a field: `containers`, `initContainers`, `ephemeralContainers`.
pub fn names<'a>(pod: &'a Object, field: &str) -> Vec<&'a str> {
    let all = pod.at(&["spec", field]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    all.iter().filter_map(|c| c["name"].as_str()).collect()
}

/// Returns the container to connect to: the named one, that of the annotation, or the first. The first is announced unless
/// `quiet`.
pub fn container(k: &Kube, pod: &Object, named: &str, quiet: bool) -> Result<String> {
    let (own, init, ephemeral) =
        (names(pod, "containers"), names(pod, "initContainers"), names(pod, "ephemeralContainers"));
    let all: Vec<&str> = own.iter().chain(&init).chain(&ephemeral).copied().collect();
    let mut shown: Vec<String> = own.iter().map(|n| (*n).to_owned()).collect();
    shown.extend(ephemeral.iter().map(|n| format!("{n} (ephem)")));
    shown.extend(init.iter().map(|n| format!("{n} (init)")));
    if !named.is_empty() {
        return if all.contains(&named) {
            Ok(named.to_owned())
        } else {
            text(format!("container {named} is not valid for pod {} out of: {}", pod.name(), shown.join(", ")))
        };
    }
    if let Some(name) = pod.annotation(DEFAULT) {
        if all.contains(&name) {
            return Ok(name.to_owned());
        }
        k.warn(format!("Default container name {name:?} not found in pod {}", pod.name()));
    }
    let Some(first) = own.first() else { return text(format!("pod {} has no containers", pod.name())) };
    if all.len() > 1 && !quiet {
        k.warn(format!("Defaulted container {first:?} out of: {}", shown.join(", ")));
    }
    Ok((*first).to_owned())
}
