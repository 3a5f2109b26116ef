//! The usage in the status of quotas (upstream `pkg/controller/resourcequota`). Admission charges each write; this controller counts
//! objects that existed before the quota, and those that were deleted.
//!
//! Invariant: a quota is read before the objects are listed, and written at the revision that was read. A charge in between makes the
//! write fail, so that no object is missed.

mod claims;

use crate::context::{Context, Error};
use crate::controller::{Builder, Reconcile};
use crate::discovery;
use crate::views::{Pod, pods};
use client::informer::View;
use client::{ApiResource, Informer, Key, ListOptions, Outcome, Scope, WorkQueue, WriteOptions};
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolumeClaim, ReplicationController, ResourceQuota, Secret, Service,
};
use k8s_openapi::api::resource::v1::ResourceClaim;
use meta::{Gvr, Object, Quantity};
use parking_lot::Mutex;
use quota::{self, Amounts, Quota};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// How often usage is counted without a change.
const RESYNC: Duration = Duration::from_secs(300);
const WORKERS: usize = 5;

/// The fields of a quota that decide when it is counted.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct QuotaView {
    spec: Value,
    status: Value,
}

impl QuotaView {
    /// Whether the status lacks limits of the spec, or usage of a limit. Admission refuses what such a quota would count.
    fn is_incomplete(&self) -> bool {
        let (desired, hard) = (quota::amounts(self.spec.get("hard")), quota::amounts(self.status.get("hard")));
        let used = &self.status["used"];
        desired != hard || hard.keys().any(|k| !quota::is_idle(k) && used.get(k).is_none())
    }

    /// Whether objects of a resource count for the quota.
    fn tracks(&self, gvr: &Gvr) -> bool {
        let hard = self.status["hard"].as_object();
        hard.is_some_and(|hard| hard.keys().any(|k| quota::tracks(&gvr.group, &gvr.resource, k)))
    }
}

struct Controller {
    context: Context,
    quotas: Informer<QuotaView>,
    queue: Arc<WorkQueue<Key>>,
    /// The informers of resources that quotas count beside pods, services and claims. They start with the first such quota.
    watched: Mutex<HashMap<Gvr, Informer<()>>>,
}

/// The fields of a claim that decide for which quotas it counts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ClaimView {
    spec: ClaimSpec,
    status: ClaimStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimSpec {
    volume_attributes_class_name: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimStatus {
    allocated_resources: Value,
    current_volume_attributes_class_name: Option<Box<str>>,
    modify_volume_status: Value,
}

/// Whether a change of a claim can reduce what it counts for (upstream `RequiresQuotaReplenish`).
fn claim_frees_quota(old: &ClaimView, new: &ClaimView) -> bool {
    let target = |c: &ClaimView| c.status.modify_volume_status["targetVolumeAttributesClassName"].clone();
    let classes = |c: &ClaimView| (c.spec.clone(), c.status.current_volume_attributes_class_name.clone(), target(c));
    // A claim counts with what it was to get as long as that is more than it requests.
    classes(old) != classes(new) || old.status.allocated_resources != new.status.allocated_resources
}

/// Whether a change of a pod can reduce what it counts for (upstream `DefaultUpdateFilter`).
fn pod_frees_quota(old: &Pod, new: &Pod) -> bool {
    (new.is_terminal() && !old.is_terminal())
        || old.spec.has_deadline != new.spec.has_deadline
        || (&old.spec.containers, &old.spec.init_containers) != (&new.spec.containers, &new.spec.init_containers)
}

/// The resources that quotas count under names of their own.
fn known() -> [ApiResource; 8] {
    [
        pods(),
        ApiResource::typed::<Service>(),
        ApiResource::typed::<ConfigMap>(),
        ApiResource::typed::<PersistentVolumeClaim>(),
        ApiResource::typed::<Secret>(),
        ApiResource::typed::<ReplicationController>(),
        ApiResource::typed::<ResourceQuota>(),
        ApiResource::typed::<ResourceClaim>(),
    ]
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let mut first = Builder::new(&context);
    let c = Arc::new(Controller {
        quotas: builder.watch(&ApiResource::typed::<ResourceQuota>()),
        queue: builder.queue(),
        watched: Mutex::default(),
        context,
    });
    first.wait_for(&c.quotas);
    // Admission writes the status at every charge; only what users change is a reason to count.
    let urgent = first.queue();
    builder.on_change(&c.quotas, move |change, queue| {
        let Some(new) = &change.new else { return };
        let hard = |q: &QuotaView| quota::amounts(q.spec.get("hard"));
        if change.old.as_ref().is_some_and(|old| hard(&old.view) == hard(&new.view)) {
            return;
        }
        if new.view.is_incomplete() { urgent.add(change.key()) } else { queue.add(change.key()) }
    });
    // Not waited for: usage is counted with the server's lists.
    c.recount(&mut builder, &pods(), pod_frees_quota);
    // The type of a service may change, and with it what the service counts for.
    let kind = |s: &Value| (s["spec"]["type"].clone(), s["spec"]["allocateLoadBalancerNodePorts"].clone());
    c.recount(&mut builder, &ApiResource::typed::<Service>(), move |old: &Value, new| kind(old) != kind(new));
    c.recount(&mut builder, &ApiResource::typed::<PersistentVolumeClaim>(), claim_frees_quota);
    let urgent = first.run_as("resourcequota_priority", WORKERS, c.clone());
    tokio::join!(urgent, builder.run_as("resourcequota_primary", WORKERS, c));
}

impl Controller {
    /// Counts again when an object of a resource is deleted, or changes so that it may count for less.
    fn recount<V: View>(
        &self,
        builder: &mut Builder,
        resource: &ApiResource,
        frees: impl Fn(&V, &V) -> bool + Send + Sync + 'static,
    ) {
        let informer: Informer<V> = self.context.informers.informer(resource, &Scope::default());
        let enqueue = self.enqueue_quotas(resource);
        builder.on_change(&informer, move |change, _| match (&change.old, &change.new) {
            (Some(old), Some(new)) if !frees(&old.view, &new.view) => {}
            (None, Some(_)) => {}
            _ => enqueue(&change.key().namespace),
        });
    }

    /// Returns a function that enqueues the quotas of a namespace for which a resource counts.
    fn enqueue_quotas(&self, resource: &ApiResource) -> impl Fn(&str) + Send + Sync + use<> {
        let (quotas, queue, gvr) = (self.quotas.clone(), self.queue.clone(), resource.gvr().clone());
        move |namespace| {
            let cache = quotas.cache();
            cache.in_namespace(namespace).filter(|q| q.view.tracks(&gvr)).for_each(|q| queue.add(q.key()));
        }
    }

    /// Enqueues quotas when objects of a resource are deleted.
    fn watch(&self, resource: &ApiResource) {
        let always = [pods(), ApiResource::typed::<Service>(), ApiResource::typed::<PersistentVolumeClaim>()];
        if always.contains(resource) {
            return;
        }
        let mut watched = self.watched.lock();
        if watched.contains_key(resource.gvr()) {
            return;
        }
        let informer: Informer<()> = self.context.informers.informer(resource, &Scope::default());
        let enqueue = self.enqueue_quotas(resource);
        informer.on_change(move |change| {
            if change.new.is_none() {
                enqueue(&change.key().namespace);
            }
        });
        watched.insert(resource.gvr().clone(), informer);
    }
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let client = &self.context.client;
        let api = client.dynamic(&ApiResource::typed::<ResourceQuota>()).namespace(&key.namespace);
        let Some(mut live) = api.get_opt(&key.name).await? else { return Ok(Outcome::Done) };
        let quota = Quota::read(&live);
        let (resources, mut failure) = self.counted(&quota).await?;
        let now = meta::time::format(self.context.now());
        // What cannot be counted keeps its usage. Objects of several kinds may count for one resource.
        let (mut used, mut sums, mut unknown) = (quota.used.clone(), Amounts::new(), BTreeSet::new());
        for r in resources {
            self.watch(&r);
            let gvr = r.gvr();
            let tracked = quota.desired.keys().filter(|k| quota::tracks(&gvr.group, &gvr.resource, k));
            let mut more: Amounts = tracked.map(|k| (k.clone(), Quantity::from_int(0))).collect();
            let mut claims = claims::Claims::default();
            let count = |o: Object| {
                if quota.covers(&gvr.group, &gvr.resource, &o) {
                    let usage = quota::usage(&gvr.group, &gvr.resource, &o, Some(&now));
                    if r == ApiResource::typed::<ResourceClaim>() {
                        claims.add(&o, &usage);
                    }
                    quota::add(&mut more, usage);
                }
            };
            let counted = client.dynamic(&r).namespace(&key.namespace).each(&ListOptions::default(), count).await;
            let counted = match counted {
                Ok(_) => claims.extended(client, &key.namespace, &now).await,
                Err(e) => Err(e),
            };
            match counted {
                Ok(extended) => {
                    quota::add(&mut more, extended);
                    quota::add(&mut sums, more);
                }
                Err(e) => {
                    unknown.extend(more.into_keys());
                    failure = Some(e.into());
                }
            }
        }
        used.extend(sums.into_iter().filter(|(name, _)| !unknown.contains(name)));
        used.retain(|k, _| quota.desired.contains_key(k));
        if quota.hard != quota.desired || quota.used != used || !live.at(&["status"]).is_some_and(is_complete) {
            live.set(&["status"], json!({"hard": quota::to_value(&quota.desired), "used": quota::to_value(&used)}));
            api.update_status(&key.name, &WriteOptions::default(), &live).await?;
        }
        failure.map_or(Ok(Outcome::After(RESYNC)), Err)
    }
}

fn is_complete(status: &Value) -> bool {
    status["hard"].is_object() && status["used"].is_object()
}

impl Controller {
    /// The resources whose objects a quota counts, and why some of them are unknown.
    async fn counted(&self, quota: &Quota) -> Result<(Vec<ApiResource>, Option<Error>), Error> {
        let mut failure = None;
        let tracked = |r: &ApiResource, k: &String| quota::tracks(&r.gvr().group, &r.gvr().resource, k);
        let mut out: Vec<ApiResource> =
            known().into_iter().filter(|r| quota.desired.keys().any(|k| tracked(r, k))).collect();
        let others: Vec<&String> = quota.desired.keys().filter(|k| !out.iter().any(|r| tracked(r, k))).collect();
        if others.iter().any(|k| quota::counted(k).is_some()) {
            let found = discovery::preferred(&self.context.client).await?;
            // Objects of a group that does not answer are not counted as none.
            let concerned = |group: String| others.iter().any(|k| k.ends_with(&format!(".{group}")));
            failure = found.failure().filter(|_| found.failed_groups().any(concerned)).map(Error::Waiting);
            for s in found.served {
                if s.can("list") && others.iter().any(|k| tracked(&s.resource, k)) {
                    out.push(s.resource);
                }
            }
        }
        Ok((out, failure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view<V: View + Clone>(v: Value) -> V {
        let mut v = v;
        v["metadata"] = json!({"name": "x"});
        client::Entry::<V>::new(v.to_string().into()).unwrap().view.clone()
    }

    /// A quota whose status lacks something comes first: admission refuses everything that it counts.
    #[test]
    fn incomplete_quotas_come_first() {
        let cases = [
            (json!({"spec": {"hard": {"pods": "1"}}}), true),
            (json!({"spec": {"hard": {"pods": "1"}}, "status": {"hard": {"pods": "1"}}}), true),
            (json!({"spec": {"hard": {"pods": "1"}}, "status": {"hard": {"pods": "1"}, "used": {"pods": "0"}}}), false),
            (json!({"spec": {"hard": {"pods": "1"}}, "status": {"hard": {"pods": "2"}, "used": {"pods": "0"}}}), true),
            (
                json!({"spec": {"hard": {"cpu": "1"}}, "status": {"hard": {"cpu": "1000m"}, "used": {"cpu": "0"}}}),
                false,
            ),
            (json!({"spec": {}, "status": {}}), false),
        ];
        for (v, expect) in cases {
            assert_eq!(view::<QuotaView>(v.clone()).is_incomplete(), expect, "{v}");
        }
        let q: QuotaView = view(json!({"status": {"hard": {"pods": "1", "count/widgets.example.com": "1"}}}));
        let gvr = |group: &str, resource: &str| meta::GroupVersion::new(group, "v1").with_resource(resource);
        assert!(q.tracks(&gvr("", "pods")) && q.tracks(&gvr("example.com", "widgets")));
        assert!(!q.tracks(&gvr("", "services")));
    }

    #[test]
    fn changes_that_free_quota() {
        let pod = |phase: &str, cpu: &str, deadline: Option<i64>| {
            view::<Pod>(json!({"status": {"phase": phase},
                "spec": {"activeDeadlineSeconds": deadline,
                    "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}))
        };
        let running = pod("Running", "1", None);
        for (new, expect) in [
            (pod("Running", "1", None), false),
            (pod("Succeeded", "1", None), true),
            (pod("Running", "2", None), true),
            (pod("Running", "1", Some(5)), true),
        ] {
            assert_eq!(pod_frees_quota(&running, &new), expect, "{new:?}");
        }
        let claim = |class: &str, target: &str| {
            view::<ClaimView>(json!({"spec": {"volumeAttributesClassName": class},
                "status": {"modifyVolumeStatus": {"targetVolumeAttributesClassName": target}}}))
        };
        assert!(!claim_frees_quota(&claim("a", "b"), &claim("a", "b")));
        assert!(claim_frees_quota(&claim("a", "b"), &claim("c", "b")));
        assert!(claim_frees_quota(&claim("a", "b"), &claim("a", "c")));
        let grown = |size: &str| view::<ClaimView>(json!({"status": {"allocatedResources": {"storage": size}}}));
        assert!(claim_frees_quota(&grown("9Gi"), &grown("5Gi")), "a larger size was given up");
    }
}
