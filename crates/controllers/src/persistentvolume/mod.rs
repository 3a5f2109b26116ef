//! Binds claims to volumes, and follows the reclaim policy of volumes that are released (upstream `persistentvolume/pv_controller.go`).
//!
//! Volume and claim point to each other (`spec.claimRef`, `spec.volumeName`). A binding is four writes in this order: the reference of
//! the volume, its phase, the reference of the claim, its phase and capacity. **Invariant.** Each write is conditional on the version
//! that was decided on, so of two claims for a volume one gets it, and whatever part of a binding was written is completed or undone
//! later. One worker processes both kinds. Left out: recycler pods, migration to CSI drivers, and volume plugins that provision and
//! delete in this process; a volume that needs one becomes `Failed`.

mod cache;
mod decide;
mod matching;
#[cfg(test)]
mod testing;
mod view;
mod write;

use crate::context::{Context, Error, object};
use crate::controller::{Builder, Reconcile};
use crate::views::{Pod, pods};
use cache::Cache;
use client::{Api, ApiResource, Change, Informer, Key, Outcome, Recorder, Regarding, WorkQueue};
use decide::{ClaimStep, Classes, Notice, Reclaim, VolumeStep};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use meta::Object;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use view::{Claim, ClaimReference, ClaimView, Class, ClassView, Volume, VolumeView};

/// How often a claim that waits is looked at again, so that its events show that it does (`--pvclaimbinder-sync-period`).
const RESYNC: Duration = Duration::from_secs(15);
/// The index of volumes by the claim to which they refer, as `NAMESPACE/NAME`.
const BY_CLAIM: &str = "claim";
/// The index of pods by the claims that they use, as `NAMESPACE/NAME`.
const PODS_BY_CLAIM: &str = "claims";

fn claims() -> ApiResource {
    ApiResource::typed::<PersistentVolumeClaim>()
}

fn volumes() -> ApiResource {
    ApiResource::typed::<PersistentVolume>()
}

/// What is reconciled at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Claim(Key),
    Volume(Key),
}

struct Controller {
    context: Context,
    claims: Cache<ClaimView>,
    volumes: Cache<VolumeView>,
    classes: Informer<ClassView>,
    pods: Informer<Pod>,
    recorder: Recorder,
    queue: Arc<WorkQueue<Item>>,
    /// Claims that wait for a volume or a class.
    waiting: Mutex<BTreeSet<Key>>,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::<Item>::new(&context);
    let c = Arc::new(Controller {
        claims: Cache::new(builder.watch(&claims())),
        volumes: Cache::new(builder.watch(&volumes())),
        classes: builder.watch(&ApiResource::typed::<StorageClass>()),
        pods: builder.watch(&pods()),
        recorder: context.recorder_as("persistentvolume-controller"),
        queue: builder.queue(),
        waiting: Mutex::default(),
        context,
    });
    c.volumes.informer.index(BY_CLAIM, |v| v.view.claim.iter().map(|r| claim_key(r).to_string()).collect());
    c.pods.index(PODS_BY_CLAIM, |pod| {
        let claims = pod.view.spec.claims(&pod.meta.name);
        claims.map(|name| Key::new(pod.meta.namespace.clone(), &*name).to_string()).collect()
    });
    builder.handle(&c, &c.claims.informer, Controller::claim_changed);
    builder.handle(&c, &c.volumes.informer, Controller::volume_changed);
    builder.handle(&c, &c.classes, |c: &Controller, _: &Change<ClassView>, queue: &WorkQueue<Item>| {
        c.waiting.lock().iter().for_each(|key| queue.add(Item::Claim(key.clone())));
    });
    builder.run(1, c).await;
}

fn claim_key(reference: &ClaimReference) -> Key {
    Key::new(&*reference.namespace, &*reference.name)
}

fn volume_key(name: &str) -> Key {
    Key::new("", name)
}

impl Controller {
    fn claim_changed(&self, change: &Change<ClaimView>, queue: &WorkQueue<Item>) {
        let key = change.key();
        if change.new.is_none() {
            let refer: Vec<Key> =
                self.volumes.informer.cache().by_index(BY_CLAIM, &key.to_string()).map(|v| v.key()).collect();
            refer.into_iter().for_each(|key| queue.add(Item::Volume(key)));
        }
        let volume = &change.latest().view.volume;
        if !volume.is_empty() {
            queue.add(Item::Volume(volume_key(volume)));
        }
        queue.add(Item::Claim(key));
    }

    /// A volume may complete the binding of its claim, end one that is lost, or suit claims that wait.
    fn volume_changed(&self, change: &Change<VolumeView>, queue: &WorkQueue<Item>) {
        queue.add(Item::Volume(change.key()));
        // Also the claim that it referred to before: it may still name the volume.
        let states = [&change.old, &change.new].into_iter().flatten();
        for reference in states.filter_map(|v| v.view.claim.as_ref()) {
            queue.add(Item::Claim(claim_key(reference)));
        }
        let Some(volume) = &change.new else { return };
        let waiting: Vec<Key> = self.waiting.lock().iter().cloned().collect();
        let suits = |c: &Claim| match &*c.view.volume {
            "" => matching::fits(c, volume),
            named => *named == *volume.meta.name,
        };
        for key in waiting {
            if self.claims.informer.get(&key).is_some_and(|c| suits(&c)) {
                queue.add(Item::Claim(key));
            }
        }
    }

    fn claim_api(&self, namespace: &str) -> Api<Object> {
        self.context.client.dynamic(&claims()).namespace(namespace)
    }

    fn volume_api(&self) -> Api<Object> {
        self.context.client.dynamic(&volumes())
    }

    fn claim_event(&self, claim: &Claim, notice: Notice) {
        let about = Regarding::from_meta("v1", "PersistentVolumeClaim", &claim.meta);
        self.recorder.event(about, notice.severity, notice.reason, notice.message);
    }

    fn volume_event(&self, volume: &Volume, notice: Notice) {
        let about = Regarding::from_meta("v1", "PersistentVolume", &volume.meta);
        self.recorder.event(about, notice.severity, notice.reason, notice.message);
    }

    /// The pods that use a claim and have not ended.
    fn users(&self, claim: &Key) -> Vec<Arc<client::Entry<Pod>>> {
        let (pods, claim) = (self.pods.cache(), claim.to_string());
        pods.by_index(PODS_BY_CLAIM, &claim).filter(|p| !p.view.is_terminal()).cloned().collect()
    }

    fn unscheduled_pods(&self, claim: &Key) -> Vec<String> {
        let users = self.users(claim);
        users.iter().filter(|p| p.view.spec.node_name.is_empty()).map(|p| p.meta.name.to_string()).collect()
    }

    fn claim_step(&self, key: &Key, claim: &Claim) -> ClaimStep {
        let named =
            (!claim.view.volume.is_empty()).then(|| self.volumes.get(&volume_key(&claim.view.volume))).flatten();
        if claim.view.is_bind_completed {
            return decide::bound_claim(claim, named.as_ref());
        }
        if !claim.view.volume.is_empty() {
            return decide::prebound_claim(claim, named.as_ref());
        }
        let classes: Vec<Arc<Class>> = self.classes.cache().entries().cloned().collect();
        let best = |is_delayed| matching::best_volume(claim, self.volumes.all().iter(), is_delayed).cloned();
        decide::unbound_claim(claim, &Classes(&classes), best, || self.unscheduled_pods(key))
    }

    async fn sync_claim(&self, key: Key) -> Result<Outcome, Error> {
        let Some(claim) = self.claims.get(&key) else {
            self.waiting.lock().remove(&key);
            return Ok(Outcome::Done);
        };
        // Before the volumes are read, so that none that comes later is missed.
        self.waiting.lock().insert(key.clone());
        match self.claim_step(&key, &claim) {
            ClaimStep::Bind(volume) => {
                self.bind(&volume, &claim).await?;
                self.waiting.lock().remove(&key);
                return Ok(Outcome::Done);
            }
            ClaimStep::Lose(notice) => {
                self.lose(&claim, notice).await?;
                self.waiting.lock().remove(&key);
                return Ok(Outcome::Done);
            }
            ClaimStep::SetClass(name) => {
                let mut changed = object(&claims(), &claim)?;
                changed.set(&["spec", "storageClassName"], &*name);
                self.put_claim(&changed).await?;
                // The change brings the claim again.
                return Ok(Outcome::Done);
            }
            ClaimStep::Wait(notice) => {
                if let Some(notice) = notice {
                    self.claim_event(&claim, notice);
                }
                self.set_claim_pending(&claim).await?;
            }
            ClaimStep::Provision(provisioner) => {
                self.request_volume(&claim, &provisioner).await?;
            }
        }
        Ok(Outcome::After(RESYNC))
    }

    /// The claim of this name and UID. What the cache lacks is read from the server, since a volume is not to be reclaimed by mistake.
    async fn referred_claim(&self, reference: &ClaimReference) -> Result<Option<Arc<Claim>>, Error> {
        let key = claim_key(reference);
        let is_referred = |c: &Arc<Claim>| *c.meta.uid == *reference.uid;
        if let Some(claim) = self.claims.get(&key).filter(is_referred) {
            return Ok(Some(claim));
        }
        let Some(live) = self.claim_api(&key.namespace).get_opt(&key.name).await? else { return Ok(None) };
        let claim = client::Entry::new(write::json(&live)?.into()).map_err(write::invalid)?;
        Ok(Some(Arc::new(claim)).filter(is_referred))
    }

    async fn sync_volume(&self, key: Key) -> Result<Outcome, Error> {
        let Some(volume) = self.volumes.get(&key) else { return Ok(Outcome::Done) };
        let reference = volume.view.claim.as_ref().filter(|r| !r.uid.is_empty());
        let claim = match reference {
            Some(reference) => self.referred_claim(reference).await?,
            None => None,
        };
        match decide::volume_step(&volume, claim.as_deref()) {
            VolumeStep::SetPhase(phase) => drop(self.set_volume_phase(&volume, phase, "").await?),
            VolumeStep::SyncClaim => {
                if let Some(reference) = reference {
                    self.queue.add(Item::Claim(claim_key(reference)));
                }
            }
            VolumeStep::Mismatch(of_volume, of_claim) => {
                self.volume_event(&volume, of_volume);
                claim.iter().for_each(|claim| self.claim_event(claim, of_claim.clone()));
            }
            VolumeStep::Unbind => self.unbind(&volume).await?,
            VolumeStep::Release => return self.release(volume).await,
        }
        Ok(Outcome::Done)
    }

    async fn release(&self, volume: Arc<Volume>) -> Result<Outcome, Error> {
        // A volume that could not be reclaimed keeps its phase, so that users see it.
        let volume = match &*volume.view.phase {
            "Released" | "Failed" => volume,
            _ => self.set_volume_phase(&volume, "Released", "").await?,
        };
        let users = || {
            let claim = volume.view.claim.as_ref().map(claim_key);
            // A claim that has the name now has another volume.
            let claim = claim.filter(|key| self.claims.get(key).is_none());
            let pods = claim.map(|key| self.users(&key)).unwrap_or_default();
            pods.iter().map(|p| p.key().to_string()).collect()
        };
        match decide::reclaim(&volume, users) {
            Reclaim::Keep => Ok(Outcome::Done),
            Reclaim::Wait(notice) => {
                self.volume_event(&volume, notice);
                Ok(Outcome::After(RESYNC))
            }
            Reclaim::Fail(notice) => {
                if &*volume.view.phase != "Failed" {
                    let failed = self.set_volume_phase(&volume, "Failed", &notice.message).await?;
                    self.volume_event(&failed, notice);
                }
                Ok(Outcome::Done)
            }
        }
    }
}

impl Reconcile for Controller {
    type Key = Item;

    async fn reconcile(&self, item: Item) -> Result<Outcome, Error> {
        match item {
            Item::Claim(key) => self.sync_claim(key).await,
            Item::Volume(key) => self.sync_volume(key).await,
        }
    }
}
