//! `kubectl rollout status`: shows the progress of a rollout.

use super::TargetFlags;
use crate::error::{Error, Result, text};
use crate::flags::duration;
use crate::kube::{Kube, POLL_INTERVAL};
use crate::resource::Info;
use client::{ListOptions, WatchEvent, WatchOptions};
use futures::StreamExt as _;
use meta::Object;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[command(flatten)]
    pub which: TargetFlags,
    /// Wait until the rollout is done.
    #[arg(short = 'w', long, default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set, hide_default_value = true)]
    pub watch: bool,
    /// Require this revision; another one is an error.
    #[arg(long, default_value = "0", hide_default_value = true)]
    pub revision: i64,
    /// Time limit; 0 is no limit.
    #[arg(long, default_value = "0s", hide_default_value = true, value_parser = crate::flags::duration_text)]
    pub timeout: String,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    crate::shell::interruptible(follow_all(a, k)).await
}

async fn follow_all(a: Arguments, k: &mut Kube) -> Result {
    let timeout = duration("timeout", &a.timeout)?.filter(|d| !d.is_zero());
    if a.revision < 0 {
        return text(format!("revision must be a positive integer: {}", a.revision));
    }
    let (found, mut errors) = a.which.gather(k).await?;
    if found.is_empty() && errors.is_empty() {
        let (namespace, _) = k.namespace()?;
        k.warn(format!("No resources found in {namespace} namespace."));
    }
    // Each object has its own time limit, and a failing one leaves the others alone.
    for i in found {
        let followed = match timeout {
            None => follow(&a, k, &i).await,
            Some(limit) => match tokio::time::timeout(limit, follow(&a, k, &i)).await {
                Ok(done) => done,
                Err(_) => text("timed out waiting for the condition"),
            },
        };
        errors.extend(followed.err());
    }
    Error::collect(errors)
}

async fn follow(a: &Arguments, k: &mut Kube, i: &Info) -> Result {
    let api = k.api(&i.resource, &i.namespace).await?;
    let fields = format!("metadata.name={}", i.name);
    let mut previous = String::new();
    let mut report_progress = |k: &Kube, o: &Object| -> Result<bool> {
        let (message, done) = state(&i.resource.kind, o, a.revision)?;
        if message != previous {
            k.out.write(message.as_bytes());
            k.out.flush();
            previous = message;
        }
        Ok(done)
    };
    loop {
        let page = api.list(&ListOptions { field_selector: fields.clone(), ..ListOptions::default() }).await?;
        let Some(o) = page.items.first() else { return text("object has been deleted") };
        if report_progress(k, o)? || !a.watch {
            return Ok(());
        }
        let options = WatchOptions {
            field_selector: fields.clone(),
            resource_version: page.resource_version,
            ..WatchOptions::default()
        };
        let mut events = api.watch(&options).await?;
        while let Some(event) = events.next().await {
            match event {
                Ok(WatchEvent::Added(o) | WatchEvent::Modified(o)) => {
                    if report_progress(k, &o)? {
                        return Ok(());
                    }
                }
                Ok(WatchEvent::Deleted(_)) => return text("object has been deleted"),
                Ok(WatchEvent::Bookmark { .. }) => {}
                Err(e) if e.is_expired() || e.is_transient() => break,
                Err(e) => return Err(e.into()),
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns the message about a rollout, and whether it is done.
pub fn state(kind: &str, o: &Object, revision: i64) -> Result<(String, bool)> {
    let n = |path: &[&str]| o.int_at(path);
    let status = |f: &str| n(&["status", f]).unwrap_or(0);
    let desired = n(&["spec", "replicas"]).unwrap_or(1);
    let name = o.name();
    let seen = o.generation() <= status("observedGeneration");
    let done = |m: String| Ok((m, true));
    let in_progress = |m: String| Ok((m, false));
    match kind {
        "Deployment" => {
            if revision > 0 {
                let at = o.annotation("deployment.kubernetes.io/revision").and_then(|r| r.parse::<i64>().ok());
                match at {
                    Some(r) if r == revision => {}
                    Some(r) => {
                        return text(format!(
                            "desired revision ({revision}) is different from the running revision ({r})"
                        ));
                    }
                    None => return text("cannot get the revision: the annotation is missing"),
                }
            }
            if !seen {
                return in_progress("Waiting for deployment spec update to be observed...\n".into());
            }
            let conditions = o.at(&["status", "conditions"]).and_then(|c| c.as_array()).cloned().unwrap_or_default();
            if conditions.iter().any(|c| c["type"] == "Progressing" && c["reason"] == "ProgressDeadlineExceeded") {
                return text(format!("deployment {name:?} exceeded its progress deadline"));
            }
            let (all, updated, available) =
                (status("replicas"), status("updatedReplicas"), status("availableReplicas"));
            let waiting = format!("Waiting for deployment {name:?} rollout to finish:");
            if updated < desired {
                return in_progress(format!(
                    "{waiting} {updated} out of {desired} new replicas have been updated...\n"
                ));
            }
            if all > updated {
                return in_progress(format!("{waiting} {} old replicas are pending termination...\n", all - updated));
            }
            if available < updated {
                return in_progress(format!("{waiting} {available} of {updated} updated replicas are available...\n"));
            }
            done(format!("deployment {name:?} successfully rolled out\n"))
        }
        "DaemonSet" => {
            if o.str_at(&["spec", "updateStrategy", "type"]) != Some("RollingUpdate") {
                return text("rollout status is only available for RollingUpdate strategy type");
            }
            if !seen {
                return in_progress("Waiting for daemon set spec update to be observed...\n".into());
            }
            let (desired, updated, available) =
                (status("desiredNumberScheduled"), status("updatedNumberScheduled"), status("numberAvailable"));
            let waiting = format!("Waiting for daemon set {name:?} rollout to finish:");
            if updated < desired {
                return in_progress(format!("{waiting} {updated} out of {desired} new pods have been updated...\n"));
            }
            if available < desired {
                return in_progress(format!("{waiting} {available} of {desired} updated pods are available...\n"));
            }
            done(format!("daemon set {name:?} successfully rolled out\n"))
        }
        "StatefulSet" => {
            if o.str_at(&["spec", "updateStrategy", "type"]) != Some("RollingUpdate") {
                return text("rollout status is only available for RollingUpdate strategy type");
            }
            if status("observedGeneration") == 0 || !seen {
                return in_progress("Waiting for statefulset spec update to be observed...\n".into());
            }
            let ready = status("readyReplicas");
            if ready < desired {
                return in_progress(format!("Waiting for {} pods to be ready...\n", desired - ready));
            }
            let updated = status("updatedReplicas");
            // Every StatefulSet that the API server has defaulted comes here, also without a partition.
            if o.at(&["spec", "updateStrategy", "rollingUpdate"]).is_some_and(|r| !r.is_null()) {
                let partition = n(&["spec", "updateStrategy", "rollingUpdate", "partition"]);
                if let Some(wanted) = partition.map(|p| desired - p).filter(|wanted| updated < *wanted) {
                    return in_progress(format!(
                        "Waiting for partitioned roll out to finish: {updated} out of {wanted} new pods have been updated...\n"
                    ));
                }
                return done(format!("partitioned roll out complete: {updated} new pods have been updated...\n"));
            }
            let at = |f: &str| o.str_at(&["status", f]).unwrap_or_default();
            if at("updateRevision") != at("currentRevision") {
                return in_progress(format!(
                    "waiting for statefulset rolling update to complete {updated} pods at revision {}...\n",
                    at("updateRevision")
                ));
            }
            done(format!(
                "statefulset rolling update complete {} pods at revision {}...\n",
                status("currentReplicas"),
                at("currentRevision")
            ))
        }
        other => text(format!("no status viewer has been implemented for {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::state;
    use crate::testing::{Server, snapshot};
    use meta::Object;
    use serde_json::json;

    #[test]
    fn reports_the_state_of_deployments() {
        let d = |replicas: i64, updated: i64, available: i64, observed: i64| {
            Object::from_value(json!({
                "metadata": {"name": "w", "generation": 2}, "spec": {"replicas": 3},
                "status": {"observedGeneration": observed, "replicas": replicas, "updatedReplicas": updated, "availableReplicas": available},
            }))
            .unwrap()
        };
        let w = "Waiting for deployment \"w\" rollout to finish:";
        for (o, expected, finished) in [
            (d(3, 3, 3, 1), "Waiting for deployment spec update to be observed...\n".to_owned(), false),
            (d(3, 1, 3, 2), format!("{w} 1 out of 3 new replicas have been updated...\n"), false),
            (d(4, 3, 3, 2), format!("{w} 1 old replicas are pending termination...\n"), false),
            (d(3, 3, 2, 2), format!("{w} 2 of 3 updated replicas are available...\n"), false),
            (d(3, 3, 3, 2), "deployment \"w\" successfully rolled out\n".to_owned(), true),
        ] {
            assert_eq!(state("Deployment", &o, 0).unwrap(), (expected, finished));
        }
    }

    #[test]
    fn reports_the_state_of_stateful_sets() {
        let of = |strategy: serde_json::Value, updated: i64| {
            let o = json!({
                "metadata": {"name": "s", "generation": 1}, "spec": {"replicas": 3, "updateStrategy": strategy},
                "status": {"observedGeneration": 1, "readyReplicas": 3, "updatedReplicas": updated, "currentReplicas": 3,
                    "currentRevision": "s-1", "updateRevision": "s-1"},
            });
            state("StatefulSet", &Object::from_value(o).unwrap(), 0).unwrap()
        };
        let rolling = |partition: i64| json!({"type": "RollingUpdate", "rollingUpdate": {"partition": partition}});
        let complete =
            |updated: i64| (format!("partitioned roll out complete: {updated} new pods have been updated...\n"), true);
        // A set that the API server has defaulted has a partition of zero.
        assert_eq!(of(rolling(0), 3), complete(3));
        assert_eq!(of(rolling(2), 1), complete(1));
        let waiting = "Waiting for partitioned roll out to finish: 1 out of 2 new pods have been updated...\n";
        assert_eq!(of(rolling(1), 1), (waiting.to_owned(), false));
        assert_eq!(
            of(json!({"type": "RollingUpdate"}), 3),
            ("statefulset rolling update complete 3 pods at revision s-1...\n".to_owned(), true)
        );
    }

    #[tokio::test]
    async fn follows_the_rollout_to_its_end() {
        let path = "/apis/apps/v1/namespaces/default/deployments";
        let d = |ready: i64| json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "w", "namespace": "default"}, "spec": {"replicas": 2}, "status": {"replicas": 2, "updatedReplicas": 2, "availableReplicas": ready}});
        let s = Server::new()
            .on(&format!("GET {path}/w"), 200, d(0))
            .on(
                &format!("GET {path}?fieldSelector=metadata.name%3Dw"),
                200,
                json!({"metadata": {"resourceVersion": "1"}, "items": [d(0)]}),
            )
            .on_bytes(
                &format!("GET {path}?watch=true&fieldSelector=metadata.name%3Dw&resourceVersion=1"),
                200,
                format!(
                    "{}\n{}\n",
                    json!({"type": "MODIFIED", "object": d(1)}),
                    json!({"type": "MODIFIED", "object": d(2)})
                )
                .into_bytes(),
            );
        let w = "Waiting for deployment \"w\" rollout to finish:";
        assert_eq!(
            snapshot(&s, "rollout status deploy/w", "").await,
            format!(
                "{w} 0 of 2 updated replicas are available...\n{w} 1 of 2 updated replicas are available...\ndeployment \"w\" successfully rolled out\n"
            )
        );
        assert_eq!(
            snapshot(&s, "rollout status deploy w --watch=false", "").await,
            format!("{w} 0 of 2 updated replicas are available...\n")
        );
    }
}
