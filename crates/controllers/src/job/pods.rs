//! Creating and deleting the pods of a job, and removing their finalizers.

use super::manage::{Action, NewPod, manage};
use super::pod::{FAILURES, FINALIZER, IGNORED_FAILURES, INDEX, JobPod};
use super::spec::Spec;
use super::state::{Evaluation, Observed};
use super::{Controller, Sync};
use crate::meters;
use crate::ownership::REMOVE_FINALIZERS;
use crate::pod_control::{pod_from_template, slow_start};
use client::{Error, Patch, WriteOptions};
use futures::future::join_all;
use meta::{Object, Value};
use serde_json::json;
use std::time::Duration;

/// The longest name prefix from which the API server generates names.
const MAX_PREFIX: usize = 58;
const ENVIRONMENT: &str = "JOB_COMPLETION_INDEX";

/// The pods after creations and deletions.
pub struct PodCounts {
    pub active: i64,
    pub ready: i64,
    pub terminating: i64,
    /// How long no pods may be created.
    pub wait: Option<Duration>,
    /// What was done, for metrics.
    pub action: &'static str,
    pub failure: Option<Error>,
}

impl PodCounts {
    pub fn unchanged(e: &Evaluation) -> Self {
        let (ready, terminating) = (e.ready, e.terminating);
        Self { active: e.active.len() as i64, ready, terminating, wait: None, action: "tracking", failure: None }
    }

    fn deleted(&mut self, pod: &JobPod) {
        self.active -= 1;
        self.terminating += 1;
        self.ready -= i64::from(pod.entry.view.is_ready());
    }
}

impl Controller {
    /// Deletes the active pods of a job that ends. They keep their finalizers until they are accounted for.
    pub(super) async fn stop_pods(&self, s: &Sync<'_>, o: &Observed, e: &Evaluation) -> PodCounts {
        let control = self.control(s);
        let results = join_all(e.active.iter().map(|i| async {
            let p = &o.pods[*i];
            (p, control.delete(&p.entry.meta.name, p.uid()).await)
        }))
        .await;
        let mut counts = PodCounts::unchanged(e);
        for (p, result) in results {
            match result {
                Err(e) if !e.is_not_found() => counts.failure = counts.failure.or(Some(e)),
                _ => counts.deleted(p),
            }
        }
        counts
    }

    /// Creates or deletes pods of a job that goes on.
    pub(super) async fn manage_pods(&self, s: &Sync<'_>, o: &Observed, e: &Evaluation) -> PodCounts {
        match manage(o, e) {
            Action::Nothing => PodCounts::unchanged(e),
            Action::Wait(wait) => PodCounts { wait: Some(wait), ..PodCounts::unchanged(e) },
            Action::Delete(pods) => {
                let pods: Vec<&JobPod> = pods.iter().map(|i| &o.pods[*i]).collect();
                PodCounts { action: "pods_deleted", ..self.delete_pods(s, e, &pods).await }
            }
            Action::Create(pods) => PodCounts { action: "pods_created", ..self.create_pods(s, o, e, &pods).await },
        }
    }

    /// Deletes pods that are not wanted any more, and does not count them.
    async fn delete_pods(&self, s: &Sync<'_>, e: &Evaluation, pods: &[&JobPod]) -> PodCounts {
        let control = self.control(s);
        self.expected.expect_deletions(s.key, pods.iter().map(|p| p.uid().to_owned()));
        let delete = async |p: &JobPod| {
            self.remove_finalizer(s, p).await?;
            control.delete(&p.entry.meta.name, p.uid()).await
        };
        let results = join_all(pods.iter().map(|p| async { (*p, delete(p).await) })).await;
        let mut counts = PodCounts::unchanged(e);
        for (p, result) in results {
            if result.is_err() {
                self.expected.deletion_observed(s.key, p.uid());
            }
            match result {
                Err(e) if !e.is_not_found() => counts.failure = counts.failure.or(Some(e)),
                _ => counts.deleted(p),
            }
        }
        counts
    }

    async fn create_pods(&self, s: &Sync<'_>, o: &Observed, e: &Evaluation, pods: &[NewPod]) -> PodCounts {
        let mut counts = PodCounts::unchanged(e);
        let allowance = match self.supply.take(&s.key.namespace, pods.len()) {
            Ok(allowance) => allowance,
            Err(wait) => return PodCounts { wait: Some(wait), ..counts },
        };
        let control = self.control(s);
        let template = template(&s.job, &o.spec);
        self.expected.expect_creations(s.key, allowance.count);
        let (done, failure) = slow_start(allowance.count, |i| {
            let (pod, control) = (new_pod(&template, &s.job, pods[i]), &control);
            async move {
                match control.create(&pod).await {
                    // The namespace is being deleted.
                    Err(e) if e.is_namespace_terminating() => {
                        self.expected.creation_observed(s.key);
                        Ok(())
                    }
                    other => other.map(drop),
                }
            }
        })
        .await;
        for _ in done..allowance.count {
            self.expected.creation_observed(s.key);
        }
        let any_failed = o.pods.iter().any(|p| o.has_failed(p)) || o.status.failed > 0;
        let reason = match (o.spec.only_replaces_failed(), any_failed) {
            (true, true) => "recreate_failed",
            (false, true) => "recreate_terminating_or_failed",
            (false, false) if e.terminating > 0 => "recreate_terminating_or_failed",
            _ => "new",
        };
        meters::add(&meters::JOB_PODS_CREATED, &[reason, "succeeded"], done as i64);
        meters::add(&meters::JOB_PODS_CREATED, &[reason, "failed"], failure.is_some().into());
        counts.active += done as i64;
        counts.failure = failure;
        counts
    }

    /// Removes the finalizers of pods that are accounted for. Returns the pods that have none now, and the first failure.
    pub(super) async fn remove_finalizers<'a>(
        &self,
        s: &Sync<'_>,
        pods: &[&'a JobPod],
    ) -> (Vec<&'a JobPod>, Option<Error>) {
        self.removals.expect(s.key, pods.iter().map(|p| p.uid().to_owned()));
        let results = join_all(pods.iter().map(|p| async { (*p, self.remove_finalizer(s, p).await) })).await;
        let (mut removed, mut failure) = (Vec::new(), None);
        for (p, result) in results {
            if result.is_err() {
                self.removals.observed(s.key, p.uid());
            }
            match result {
                Err(e) if !e.is_not_found() => failure = failure.or(Some(e)),
                _ => removed.push(p),
            }
        }
        (removed, failure)
    }

    async fn remove_finalizer(&self, s: &Sync<'_>, p: &JobPod) -> Result<(), Error> {
        if !p.has_finalizer {
            return Ok(());
        }
        let patch = finalizer_patch(p.uid());
        s.pods.patch(&p.entry.meta.name, &WriteOptions::default(), &patch).await.map(drop)
    }
}

/// The patch that removes the finalizer of the pod with this UID.
pub fn finalizer_patch(uid: &str) -> Patch {
    Patch::Strategic(json!({"metadata": {"uid": uid, REMOVE_FINALIZERS: [FINALIZER]}}))
}

/// The template of all pods of the job.
fn template(job: &Object, spec: &Spec) -> Value {
    let mut template = job.at(&["spec", "template"]).cloned().unwrap_or_default();
    if spec.is_indexed() {
        for containers in ["initContainers", "containers"] {
            let containers = template["spec"].get_mut(containers).and_then(Value::as_array_mut);
            containers.into_iter().flatten().for_each(add_variable);
        }
    }
    let finalizers = &mut template["metadata"]["finalizers"];
    match finalizers.as_array_mut() {
        Some(all) if all.iter().any(|f| f == FINALIZER) => {}
        Some(all) => all.push(FINALIZER.into()),
        None => *finalizers = json!([FINALIZER]),
    }
    template
}

/// Adds the variable with the completion index, unless the container has one of this name.
fn add_variable(container: &mut Value) {
    let Some(container) = container.as_object_mut() else { return };
    let env = container.entry("env").or_insert_with(|| json!([]));
    if !env.is_array() {
        *env = json!([]);
    }
    let Some(env) = env.as_array_mut() else { return };
    if env.iter().all(|v| v["name"] != ENVIRONMENT) {
        let field = json!({"fieldPath": format!("metadata.labels['{INDEX}']")});
        env.push(json!({"name": ENVIRONMENT, "valueFrom": {"fieldRef": field}}));
    }
}

fn new_pod(template: &Value, job: &Object, new: NewPod) -> Object {
    let mut pod = pod_from_template(template, job);
    let Some(index) = new.index else { return pod };
    pod.set(&["metadata", "generateName"], prefix(job.name(), index));
    pod.set(&["spec", "hostname"], format!("{}-{index}", job.name()));
    pod.set_annotation(INDEX, &index.to_string());
    pod.set_label(INDEX, &index.to_string());
    if let Some((failures, ignored)) = new.failures {
        pod.set_annotation(FAILURES, &failures.to_string());
        if ignored > 0 {
            pod.set_annotation(IGNORED_FAILURES, &ignored.to_string());
        }
    }
    pod
}

/// The prefix of the names of an index's pods, which keeps the index.
fn prefix(job: &str, index: i64) -> String {
    let suffix = format!("-{index}-");
    let room = MAX_PREFIX.saturating_sub(suffix.len());
    // Names of objects are ASCII.
    format!("{}{suffix}", job.get(..room).unwrap_or(job))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(completion_mode: &str) -> (Object, Spec) {
        let spec = json!({"completionMode": completion_mode, "template": {
            "metadata": {"labels": {"a": "b"}, "finalizers": ["example.com/f"]},
            "spec": {"initContainers": [{"name": "i"}], "containers": [
                {"name": "c", "env": [{"name": "X", "value": "y"}]},
                {"name": "d", "env": [{"name": "JOB_COMPLETION_INDEX", "value": "own"}]},
            ]},
        }});
        let v = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "n", "uid": "u"}, "spec": spec});
        (Object::from_value(v).unwrap(), serde_json::from_value(spec).unwrap())
    }

    /// Clauses: C12.indexed
    #[test]
    fn pods_of_an_indexed_job_have_their_index() {
        let (job, spec) = job("Indexed");
        let new = NewPod { index: Some(7), failures: Some((2, 1)) };
        let pod = new_pod(&template(&job, &spec), &job, new);
        assert_eq!(pod.generate_name(), "j-7-");
        assert_eq!(pod.str_at(&["spec", "hostname"]), Some("j-7"));
        assert_eq!((pod.annotation(INDEX), pod.label(INDEX)), (Some("7"), Some("7")));
        assert_eq!((pod.annotation(FAILURES), pod.annotation(IGNORED_FAILURES)), (Some("2"), Some("1")));
        assert_eq!(pod.finalizers().collect::<Vec<_>>(), ["example.com/f", FINALIZER]);
        let variable = json!({"name": ENVIRONMENT, "valueFrom": {"fieldRef": {
            "fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']"}}});
        assert_eq!(pod.at(&["spec", "initContainers"]).unwrap()[0]["env"], json!([variable]));
        let containers = pod.at(&["spec", "containers"]).unwrap();
        assert_eq!(containers[0]["env"], json!([{"name": "X", "value": "y"}, variable]));
        assert_eq!(containers[1]["env"], json!([{"name": ENVIRONMENT, "value": "own"}]));
        let first = new_pod(&template(&job, &spec), &job, NewPod { index: Some(0), failures: Some((0, 0)) });
        assert_eq!((first.annotation(FAILURES), first.annotation(IGNORED_FAILURES)), (Some("0"), None));
    }

    #[test]
    fn other_pods_have_none() {
        let (job, spec) = job("NonIndexed");
        let pod = new_pod(&template(&job, &spec), &job, NewPod::default());
        assert_eq!((pod.generate_name(), pod.annotation(INDEX), pod.label(INDEX)), ("j-", None, None));
        assert!(pod.at(&["spec", "hostname"]).is_none());
        assert!(pod.at(&["spec", "containers"]).unwrap()[0]["env"].as_array().unwrap().len() == 1);
    }

    #[test]
    fn a_long_name_keeps_the_index() {
        assert_eq!(prefix("job", 12), "job-12-");
        let name = "x".repeat(63);
        assert_eq!(prefix(&name, 12345), format!("{}-12345-", "x".repeat(51)));
    }
}
