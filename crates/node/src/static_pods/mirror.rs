//! Mirror pods: the objects of the API that show static pods.
//!
//! They are created for pods that run, deleted with them, and created again if a client deletes one. The workers of static pods
//! write their status.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use client::{Client, DeleteOptions, Error, Informer, Key, WriteOptions};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::StaticPods;
use super::manifest::MIRROR;
use crate::objects::Whole;
use crate::pod::spec::text;

/// How long after a failed write the mirror pods are reconciled again.
const RETRY: Duration = Duration::from_secs(5);
/// How often they are reconciled even if nothing changed.
const RESYNC: Duration = Duration::from_secs(60);

/// The UID of the static pod that a mirror pod shows; `None` for other pods.
pub fn mirrored_uid(pod: &Pod) -> Option<&str> {
    pod.metadata.annotations.as_ref()?.get(MIRROR).map(String::as_str)
}

/// Whether a mirror pod shows this static pod and is not being deleted.
pub fn is_current(mirror: &Pod, static_pod: &Pod) -> bool {
    mirrored_uid(mirror) == static_pod.metadata.uid.as_deref() && mirror.metadata.deletion_timestamp.is_none()
}

/// The mirror pod of a static pod on the node with this UID.
fn mirror_pod(static_pod: &Pod, node: &str, node_uid: &str) -> Pod {
    let mut pod = static_pod.clone();
    let m = &mut pod.metadata;
    let uid = m.uid.take().unwrap_or_default();
    m.annotations.get_or_insert_default().insert(MIRROR.into(), uid);
    m.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.into(),
        uid: node_uid.into(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    pod.status = None;
    pod
}

/// A write that is missing.
#[derive(Debug, PartialEq)]
enum Step {
    Create(Arc<Pod>),
    Delete { key: Key, uid: String },
}

/// The phases of pods that have ended.
const ENDED: [&str; 2] = ["Succeeded", "Failed"];

/// The writes after which `mirrors` show `running` pods. A pod of `desired` that does not run yet keeps its mirror pod. `is_new`: this
/// agent has just started, so that ended pods may run again.
fn steps(
    mirrors: &BTreeMap<Key, Arc<Pod>>,
    running: &BTreeMap<Key, Arc<Pod>>,
    desired: &BTreeMap<Key, Arc<Pod>>,
    is_new: bool,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for (key, mirror) in mirrors {
        let current = running.get(key).or_else(|| desired.get(key));
        let phase = mirror.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
        let fits = current.is_some_and(|pod| is_current(mirror, pod)) && !(is_new && ENDED.contains(&phase));
        if !fits {
            steps.push(Step::Delete { key: key.clone(), uid: text(&mirror.metadata.uid).to_owned() });
        }
    }
    // A pod whose manifest is gone only ends; its mirror pod is not created any more.
    let missing = running.iter().filter(|(key, _)| !mirrors.contains_key(*key) && desired.contains_key(*key));
    steps.extend(missing.map(|(_, pod)| Step::Create(pod.clone())));
    steps
}

/// Keeps the mirror pods of the node up to date, for ever.
pub async fn run(client: Client, node_name: String, node: Informer<Whole>, all: Arc<StaticPods>) {
    node.synced().await;
    let mut is_new = true;
    loop {
        let mut wait = RESYNC;
        if let (Some(desired), Some(mirrors)) = (all.desired(), all.mirrors()) {
            let node_uid = node.get(&Key::new("", node_name.as_str())).map(|e| e.meta.uid.to_string());
            let steps = steps(&mirrors, &all.running(), &desired, is_new);
            is_new = false;
            for step in steps {
                let done = match (step, &node_uid) {
                    (Step::Delete { key, uid }, _) => delete(&client, &key, &uid).await,
                    (Step::Create(pod), Some(node_uid)) => create(&client, &pod, &node_name, node_uid).await,
                    (Step::Create(_), None) => Err("the node is not registered".to_owned()),
                };
                if let Err(error) = done {
                    tracing::warn!(error, "writing a mirror pod failed; it is tried again");
                    wait = RETRY;
                }
            }
        }
        let _ = tokio::time::timeout(wait, all.mirrors_changed()).await;
    }
}

async fn create(client: &Client, pod: &Pod, node: &str, node_uid: &str) -> Result<(), String> {
    let mirror = mirror_pod(pod, node, node_uid);
    let api = client.api::<Pod>().namespace(text(&mirror.metadata.namespace));
    let name = text(&mirror.metadata.name);
    match api.create(&WriteOptions::default(), &mirror).await {
        Ok(_) => Ok(()),
        Err(e) if e.is_already_exists() => match api.get_opt(name).await {
            // The cache does not show it yet.
            Ok(Some(other)) if is_current(&other, pod) => Ok(()),
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err(describe(pod, &e)),
            Err(e) => Err(describe(pod, &e)),
        },
        Err(e) => Err(describe(pod, &e)),
    }
}

fn describe(pod: &Pod, error: &Error) -> String {
    format!("{}/{}: {error}", text(&pod.metadata.namespace), text(&pod.metadata.name))
}

async fn delete(client: &Client, key: &Key, uid: &str) -> Result<(), String> {
    let api = client.api::<Pod>().namespace(&key.namespace);
    match api.delete(&key.name, &DeleteOptions::uid(uid).with_grace(0)).await {
        Ok(_) => Ok(()),
        Err(e) if e.is_not_found() || e.is_conflict() => Ok(()),
        Err(e) => Err(format!("{key}: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(value: Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    fn static_pod(uid: &str) -> Arc<Pod> {
        Arc::new(pod(json!({"metadata": {"name": "web-n", "namespace": "default", "uid": uid,
            "annotations": {"kubernetes.io/config.hash": uid, "kubernetes.io/config.source": "file"}}})))
    }

    fn mirror(shows: &str, more: Value) -> Pod {
        let mut mirror = json!({"metadata": {"name": "web-n", "namespace": "default", "uid": "m",
            "annotations": {MIRROR: shows}}});
        for (key, value) in more.as_object().unwrap() {
            mirror["metadata"][key] = value.clone();
        }
        pod(mirror)
    }

    fn key() -> Key {
        Key::new("default", "web-n")
    }

    /// Clauses: P19.mirror
    #[test]
    fn a_mirror_pod_belongs_to_the_node() {
        let mirror = mirror_pod(&static_pod("u1"), "n", "node-uid");
        assert_eq!(mirrored_uid(&mirror), Some("u1"));
        assert_eq!(mirror.metadata.uid, None);
        let owner = &mirror.metadata.owner_references.unwrap()[0];
        assert_eq!((&*owner.kind, &*owner.name, &*owner.uid), ("Node", "n", "node-uid"));
        assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), None));
    }

    #[test]
    fn mirror_pods_follow_static_pods() {
        let none = BTreeMap::new;
        let delete = || vec![Step::Delete { key: key(), uid: "m".into() }];
        let check = |mirror: Option<Pod>, running: Option<&str>, desired: Option<&str>, expected: Vec<Step>| {
            let pods = |uid: Option<&str>| uid.map(|u| (key(), static_pod(u))).into_iter().collect();
            let mirrors = mirror.map(|m| (key(), Arc::new(m))).into_iter().collect();
            assert_eq!(steps(&mirrors, &pods(running), &pods(desired), false), expected);
        };
        check(None, Some("u1"), Some("u1"), vec![Step::Create(static_pod("u1"))]);
        check(Some(mirror("u1", json!({}))), Some("u1"), Some("u1"), Vec::new());
        // A client has deleted it.
        let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        check(Some(mirror("u1", deleted)), Some("u1"), Some("u1"), delete());
        // A changed manifest: the mirror pod stays until the old pod has ended.
        check(Some(mirror("u1", json!({}))), Some("u1"), Some("u2"), Vec::new());
        check(Some(mirror("u1", json!({}))), None, Some("u2"), delete());
        // A removed manifest.
        check(Some(mirror("u1", json!({}))), Some("u1"), None, Vec::new());
        check(Some(mirror("u1", json!({}))), None, None, delete());
        check(None, Some("u1"), None, Vec::new());
        // A pod of an earlier agent, which this one has not adopted yet.
        check(Some(mirror("u1", json!({}))), None, Some("u1"), Vec::new());
        assert_eq!(steps(&none(), &none(), &BTreeMap::from([(key(), static_pod("u1"))]), false), []);
    }

    #[test]
    fn a_new_agent_runs_ended_pods_again() {
        let mut ended = mirror("u1", json!({}));
        ended.status = serde_json::from_value(json!({"phase": "Failed"})).unwrap();
        let (mirrors, pods) = (BTreeMap::from([(key(), Arc::new(ended))]), BTreeMap::from([(key(), static_pod("u1"))]));
        assert_eq!(steps(&mirrors, &pods, &pods, false), []);
        assert_eq!(steps(&mirrors, &pods, &pods, true), [Step::Delete { key: key(), uid: "m".into() }]);
    }
}
