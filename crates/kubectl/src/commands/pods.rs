//! Which pod and which container `logs`, `exec` and `attach` mean.

use crate::error::{Error, Result, text};
use crate::flags::FileFlags;
use crate::kube::{Kube, POLL_INTERVAL};
use crate::resource::select::{Selection, list, targets};
use crate::resource::{Collection, Info, Target, from_files};
use meta::{LabelSelector, Object, Value};

/// Which container is meant where none is named.
const DEFAULT: &str = "kubectl.kubernetes.io/default-container";

/// What the pods are wanted for, as messages put it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    Logs,
    Attaching,
}

impl For {
    /// Of a kind that has no pods.
    fn cannot(self, kind: &str, why: &str) -> Error {
        let what = match self {
            Self::Logs => "cannot get the logs from",
            Self::Attaching => "cannot attach to",
        };
        Error::Text(format!("{what} *{kind}: {why}"))
    }
}

/// The pods of a pod, or of what selects pods, best first. Of the latter there has to be one in time.
pub async fn find(k: &mut Kube, info: &Info, purpose: For, patience: &str) -> Result<Vec<Info>> {
    let patience = crate::flags::duration("pod-running-timeout", patience)?.unwrap_or(std::time::Duration::MAX);
    let end = tokio::time::Instant::now().checked_add(patience);
    loop {
        let found = find_now(k, info, purpose).await?;
        if !found.is_empty() {
            return Ok(found);
        }
        if end.is_some_and(|end| tokio::time::Instant::now() >= end) {
            return text("timed out waiting for the condition");
        }
        tokio::time::sleep(POLL_INTERVAL.min(patience)).await;
    }
}

async fn find_now(k: &mut Kube, info: &Info, purpose: For) -> Result<Vec<Info>> {
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
    // A pod that runs tells more than one that waits, a ready one more than one that is not.
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

pub async fn by_labels(k: &mut Kube, namespace: &str, labels: &str) -> Result<Vec<Info>> {
    let resource = k.resource("pods").await?;
    let c = Collection { resource, namespace: namespace.to_owned() };
    list(k, &c, &Selection { labels, ..Selection::default() }).await
}

/// The one thing that an argument names: `web`, `pod/web`, `deploy/web`. A bare word is a pod.
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

/// The one thing that files hold.
async fn of_files(k: &mut Kube, words: &[String], files: &FileFlags) -> Result<Info> {
    if !words.is_empty() {
        return text("resource/name arguments cannot be provided when a path is specified");
    }
    let mut found = from_files(k, files).await?;
    match (found.pop(), found.is_empty()) {
        (Some(i), true) => i,
        // Upstream's words for nothing, too.
        _ => text("cannot exec into multiple objects at a time"),
    }
}

/// The pod to talk to.
pub async fn find_one(k: &mut Kube, words: &[String], files: &FileFlags, patience: &str) -> Result<Info> {
    let info = match files.is_empty() {
        true => target(k, words).await?,
        false => of_files(k, words, files).await?,
    };
    let pods = find(k, &info, For::Attaching, patience).await?;
    match pods.into_iter().next() {
        // Of a file there is no more than what is wanted.
        Some(p) if !files.is_empty() => Ok(Info { object: Some(p.fetch(k).await?), ..p }),
        Some(p) => Ok(p),
        None => text(format!("unable to find a pod of {}", info.to_name())),
    }
}

/// Names of the containers of a kind: `containers`, `initContainers`, `ephemeralContainers`.
pub fn names<'a>(pod: &'a Object, of: &str) -> Vec<&'a str> {
    let all = pod.at(&["spec", of]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    all.iter().filter_map(|c| c["name"].as_str()).collect()
}

/// The container to talk to: the one named, the one of the annotation, or the first, which is said unless `quiet`.
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
