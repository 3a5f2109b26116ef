//! Evicts pods, which a disruption budget may delay, or deletes them.

use super::Drain;
use crate::error::{Error, Result, text};
use crate::flags::{DryRunStrategy, go_duration};
use crate::kube::Kube;
use client::{Api, DeleteOptions};
use futures::future::join_all;
use meta::Object;
use tokio::time::Instant;

/// Evicts or deletes the pods, and waits until they are gone.
pub async fn evict_all(d: &Drain, k: &mut Kube, pods: Vec<Object>) -> Result {
    let limit = d.timeout.map(|t| (Instant::now() + t, go_duration(t)));
    let resource = k.resource("pods").await?;
    let mut apis = Vec::new();
    for pod in pods {
        apis.push((k.api(&resource, pod.namespace()).await?, pod));
    }
    let k = &*k;
    let options = DeleteOptions { grace_period_seconds: d.grace, dry_run: d.dry.option(), ..DeleteOptions::default() };
    let evictions =
        apis.into_iter().map(|(api, pod)| Eviction { d, k, api, pod, options: options.clone(), limit: limit.clone() });
    let evictions: Vec<Eviction<'_>> = evictions.collect();
    if d.disable_eviction {
        for g in &evictions {
            match g.api.delete(g.pod.name(), &g.options).await {
                Err(e) if !e.is_not_found() => return Err(e.into()),
                _ => {}
            }
        }
        if d.dry == DryRunStrategy::Server {
            return Ok(());
        }
        return collect_errors(join_all(evictions.iter().map(|g| g.wait_deleted("deleted", "deletion failed"))).await);
    }
    collect_errors(join_all(evictions.iter().map(Eviction::evict)).await)
}

fn collect_errors(done: Vec<Result>) -> Result {
    Error::collect(done.into_iter().filter_map(Result::err).collect())
}

/// The eviction of one pod.
struct Eviction<'a> {
    d: &'a Drain,
    k: &'a Kube,
    api: Api<Object>,
    pod: Object,
    options: DeleteOptions,
    limit: Option<(Instant, String)>,
}

impl Eviction<'_> {
    fn timed_out(&self) -> Option<String> {
        let (at, given) = self.limit.as_ref()?;
        (Instant::now() >= *at).then(|| format!("global timeout reached: {given}"))
    }

    async fn evict(&self) -> Result {
        let (ns, name) = (self.pod.namespace(), self.pod.name());
        let mut cause = String::new();
        loop {
            self.k.println(format!("evicting pod {ns}/{name}{}", self.d.dry.suffix()));
            self.k.out.flush();
            if let Some(why) = self.timed_out() {
                return text(format!("error when evicting pods/{name:?} -n {ns:?}: {why}"));
            }
            let e = match self.api.evict(name, &self.options).await {
                Ok(_) => break,
                Err(e) if e.is_not_found() => return Ok(()),
                Err(e) => e,
            };
            if e.is_too_many_requests() {
                self.k.warn(format!(
                    "error when evicting pods/{name:?} -n {ns:?} (will retry after {}): {e}",
                    go_duration(self.d.retry_pause)
                ));
                // Report the blocking budget once: it may never allow the eviction.
                let why = budget(&e);
                if !why.is_empty() && why != cause {
                    self.k.warn(&why);
                    cause = why;
                }
            } else if e.is_namespace_terminating() {
                // A pod that is already being deleted needs no eviction.
                match self.api.get_opt(name).await? {
                    None => return Ok(()),
                    Some(p) if p.is_deleting() => break,
                    Some(_) => self.k.warn(format!(
                        "error when evicting pod {name:?} from terminating namespace {ns:?} (will retry after {}): {e}",
                        go_duration(self.d.retry_pause)
                    )),
                }
            } else {
                return text(format!("error when evicting pods/{name:?} -n {ns:?}: {e}"));
            }
            tokio::time::sleep(self.d.retry_pause).await;
        }
        if self.d.dry == DryRunStrategy::Server {
            return Ok(());
        }
        let deleted = self.wait_deleted("evicted", "eviction failed").await;
        deleted.map_err(|e| {
            Error::Text(format!("error when waiting for pod {name:?} in namespace {ns:?} to terminate: {e}"))
        })
    }

    /// Waits until the pod is deleted. Another pod of the same name does not count.
    async fn wait_deleted(&self, done: &str, failed: &str) -> Result {
        let name = self.pod.name();
        let result = loop {
            match self.api.get_opt(name).await {
                Ok(None) => break Ok(()),
                Ok(Some(p)) if p.uid() != self.pod.uid() => break Ok(()),
                Ok(Some(p)) if self.d.rules.skips(&p, self.k.now()) => {
                    let seconds = self.d.rules.skip_deleted;
                    self.k
                        .println(format!("pod {name:?} has DeletionTimestamp older than {seconds} seconds, skipping"));
                    return Ok(());
                }
                Ok(Some(_)) => {}
                Err(e) => break Err(e.into()),
            }
            if let Some(why) = self.timed_out() {
                break text(why);
            }
            tokio::time::sleep(self.d.poll_pause).await;
        };
        self.k.println(format!("pod/{name} {}", if result.is_ok() { done } else { failed }));
        self.k.out.flush();
        result
    }
}

/// Returns the messages about disruption budgets of a refused eviction.
fn budget(e: &client::Error) -> String {
    let causes = e.status().and_then(|s| s.details.as_ref()).map(|d| d.causes.as_slice()).unwrap_or_default();
    let messages = causes.iter().filter(|c| c.reason == "DisruptionBudget").map(|c| c.message.as_str());
    messages.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::pods::Rules;
    use super::*;
    use crate::testing::{Server, shell};
    use serde_json::json;
    use std::time::Duration;

    /// A pod that was deleted too long ago is no longer waited for.
    #[tokio::test]
    async fn skips_pods_deleted_long_ago() {
        let path = "/api/v1/namespaces/default/pods/a";
        let pod = |deleted: Option<&str>| {
            let mut v = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "namespace": "default", "uid": "u"}});
            v["metadata"]["deletionTimestamp"] = json!(deleted);
            v
        };
        let s = Server::new()
            .on(&format!("POST {path}/eviction"), 201, json!({}))
            .on(&format!("GET {path}"), 200, pod(Some("2026-11-21T11:59:58Z")))
            .on(&format!("GET {path}"), 200, pod(Some("2026-11-21T11:59:50Z")));
        let (shell, out, _) = shell(&s, "", |_| None);
        let mut k = Kube::new(shell, Default::default());
        let deletion_time = k.now() - jiff::SignedDuration::from_secs(60);
        let rules = Rules {
            force: false,
            ignore_daemonsets: false,
            delete_emptydir_data: false,
            skip_deleted: 5,
            now: deletion_time,
        };
        let d = Drain {
            rules,
            pod_selector: String::new(),
            page: 500,
            grace: None,
            timeout: Some(Duration::from_secs(5)),
            disable_eviction: false,
            dry: DryRunStrategy::None,
            retry_pause: Duration::ZERO,
            poll_pause: Duration::ZERO,
        };
        evict_all(&d, &mut k, vec![Object::from_value(pod(None)).unwrap()]).await.unwrap();
        assert_eq!(
            out.text(),
            "evicting pod default/a\npod \"a\" has DeletionTimestamp older than 5 seconds, skipping\n"
        );
    }

    /// An eviction that a budget refuses is tried again, and then the pod is waited for.
    #[tokio::test]
    async fn retries_evictions_refused_by_a_budget() {
        let path = "/api/v1/namespaces/default/pods/a";
        let pod =
            json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "namespace": "default", "uid": "u"}});
        let no = |code: u16, reason: &str, message: &str| json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": message});
        let busy = "Cannot evict pod as it would violate the pod's disruption budget.";
        let uncounted = "The disruption budget b is still being processed by the server.";
        let mut refused = no(429, "TooManyRequests", busy);
        refused["details"] = json!({"causes": [{"reason": "DisruptionBudget", "message": uncounted}]});
        let s = Server::new()
            .on(&format!("POST {path}/eviction"), 429, refused.clone())
            .on(&format!("POST {path}/eviction"), 429, refused)
            .on(&format!("POST {path}/eviction"), 201, json!({}))
            .on(&format!("GET {path}"), 200, pod.clone())
            .on(&format!("GET {path}"), 404, no(404, "NotFound", "pods \"a\" not found"));
        let (shell, out, err) = shell(&s, "", |_| None);
        let mut k = Kube::new(shell, Default::default());
        let rules = Rules {
            force: false,
            ignore_daemonsets: false,
            delete_emptydir_data: false,
            skip_deleted: 0,
            now: k.now(),
        };
        let d = Drain {
            rules,
            pod_selector: String::new(),
            page: 500,
            grace: None,
            timeout: None,
            disable_eviction: false,
            dry: DryRunStrategy::None,
            retry_pause: Duration::ZERO,
            poll_pause: Duration::ZERO,
        };
        evict_all(&d, &mut k, vec![Object::from_value(pod).unwrap()]).await.unwrap();
        let tries = "evicting pod default/a\n".repeat(3);
        assert_eq!(out.text(), format!("{tries}pod/a evicted\n"));
        let retry_message = format!("error when evicting pods/\"a\" -n \"default\" (will retry after 0s): {busy}\n");
        assert_eq!(err.text(), format!("{retry_message}{uncounted}\n{retry_message}"), "the cause is reported once");
    }
}
