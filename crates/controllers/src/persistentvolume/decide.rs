//! What to do next with a claim or a volume (upstream `persistentvolume/pv_controller.go`). Pure functions of what the caches show.

use super::matching::mismatch;
use super::view::{Claim, Class, Volume};
use client::Severity;
use std::sync::Arc;

/// The provisioner that makes volumes of the node for which a claim's first pod is scheduled.
const OF_NODES: &str = "kemudi.local/directory";

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub severity: Severity,
    pub reason: &'static str,
    pub message: String,
}

impl Notice {
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self { severity: Severity::Normal, reason, message: message.into() }
    }

    pub fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, reason, message: message.into() }
    }
}

/// The next step of a claim.
#[derive(Clone)]
pub enum ClaimStep {
    /// Bind it to this volume, or complete that.
    Bind(Arc<Volume>),
    /// Set the default class.
    SetClass(Arc<str>),
    /// Leave it pending.
    Wait(Option<Notice>),
    /// Request a volume from this provisioner.
    Provision(Box<str>),
    /// Its volume is gone: set the phase `Lost`, with this event.
    Lose(Notice),
}

/// The storage classes of the cluster.
pub struct Classes<'a>(pub &'a [Arc<Class>]);

impl Classes<'_> {
    fn get(&self, name: &str) -> Option<&Arc<Class>> {
        self.0.iter().find(|c| &*c.meta.name == name)
    }

    /// Of several default classes the newest.
    fn default_class(&self) -> Option<&Arc<Class>> {
        let mut all: Vec<_> = self.0.iter().filter(|c| c.view.is_default).collect();
        all.sort_by(|a, b| (&b.meta.creation_timestamp, &a.meta.name).cmp(&(&a.meta.creation_timestamp, &b.meta.name)));
        all.first().copied()
    }
}

/// The step of a claim whose binding is not complete and that names no volume. `best` returns the best volume, of the reserved ones
/// only if its argument says that binding is delayed; `unscheduled_pods` the pods that use the claim and have no node.
pub fn unbound_claim(
    claim: &Claim,
    classes: &Classes<'_>,
    best: impl FnOnce(bool) -> Option<Arc<Volume>>,
    unscheduled_pods: impl FnOnce() -> Vec<String>,
) -> ClaimStep {
    let view = &claim.view;
    let class = classes.get(view.class_name());
    let is_delayed = class.is_some_and(|c| c.view.is_delayed);
    if let Some(volume) = best(is_delayed) {
        return ClaimStep::Bind(volume);
    }
    if view.class.is_none()
        && let Some(default) = classes.default_class()
    {
        return ClaimStep::SetClass(default.meta.name.clone());
    }
    if is_delayed && !view.is_node_selected {
        let pods = unscheduled_pods();
        let waiting_for = |what: &str| format!("waiting for {what} {} to be scheduled", pods.join(","));
        return ClaimStep::Wait(Some(match pods.len() {
            0 => Notice::normal("WaitForFirstConsumer", "waiting for first consumer to be created before binding"),
            1 => Notice::normal("WaitForPodScheduled", waiting_for("pod")),
            _ => Notice::normal("WaitForPodScheduled", waiting_for("pods")),
        }));
    }
    if view.class_name().is_empty() {
        let why = "no persistent volumes available for this claim and no storage class is set";
        return ClaimStep::Wait(Some(Notice::normal("FailedBinding", why)));
    }
    let failed = |why: String| ClaimStep::Wait(Some(Notice::warning("ProvisioningFailed", why)));
    match class {
        None => failed(format!("storageclass.storage.k8s.io \"{}\" not found", view.class_name())),
        // These are volume plugins of kube-controller-manager. All that remained in it cannot provision volumes by default.
        Some(c) if c.view.provisioner.starts_with("kubernetes.io/") => {
            failed(format!("no volume plugin matched name: {}", c.view.provisioner))
        }
        // Nobody would select a node, and no provisioner of a node may take a claim from the others.
        Some(c) if !is_delayed && !view.is_node_selected && &*c.view.provisioner == OF_NODES => failed(format!(
            "failed to provision volume with StorageClass {:?}: no node is selected: volumes of {OF_NODES} need a class with volumeBindingMode: WaitForFirstConsumer",
            view.class_name()
        )),
        Some(c) => ClaimStep::Provision(c.view.provisioner.clone()),
    }
}

/// The step of a claim whose binding is not complete and that names a volume; `volume` is none if that does not exist.
pub fn prebound_claim(claim: &Claim, volume: Option<&Arc<Volume>>) -> ClaimStep {
    let Some(volume) = volume else { return ClaimStep::Wait(None) };
    if volume.view.is_for(claim) {
        return ClaimStep::Bind(volume.clone());
    }
    let name = &volume.meta.name;
    if volume.view.claim.is_some() {
        let why = format!("volume \"{name}\" already bound to a different claim.");
        return ClaimStep::Wait(Some(Notice::warning("FailedBinding", why)));
    }
    match mismatch(claim, volume) {
        None => ClaimStep::Bind(volume.clone()),
        Some(why) => {
            let why = format!("Cannot bind to requested volume \"{name}\": {why}");
            ClaimStep::Wait(Some(Notice::warning("VolumeMismatch", why)))
        }
    }
}

/// The step of a claim whose binding was complete once; `volume` is the one that it names.
pub fn bound_claim(claim: &Claim, volume: Option<&Arc<Volume>>) -> ClaimStep {
    let lost = |reason, why: &str| ClaimStep::Lose(Notice::warning(reason, why));
    match volume {
        _ if claim.view.volume.is_empty() => {
            lost("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
        }
        None => lost("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!"),
        Some(v) if v.view.claim.as_ref().is_none_or(|r| *r.uid == *claim.meta.uid) => ClaimStep::Bind(v.clone()),
        Some(_) => lost("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly"),
    }
}

/// The next step of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeStep {
    /// Set this phase, if it has another one.
    SetPhase(&'static str),
    /// The claim completes the binding.
    SyncClaim,
    /// The claim cannot be bound to it: events for the volume and for the claim.
    Mismatch(Notice, Notice),
    /// Set the phase `Released` and follow the reclaim policy.
    Release,
    /// Remove the reference to the claim, or its UID if a user has reserved the volume.
    Unbind,
}

/// The step of a volume. `claim` is the one of the name and UID to which it refers; none if there is none, or no UID yet.
pub fn volume_step(volume: &Volume, claim: Option<&Claim>) -> VolumeStep {
    let view = &volume.view;
    if view.claim.as_ref().is_none_or(|r| r.uid.is_empty()) {
        return VolumeStep::SetPhase("Available");
    }
    let Some(claim) = claim else { return VolumeStep::Release };
    if *claim.view.volume == *volume.meta.name {
        return VolumeStep::SetPhase("Bound");
    }
    if !claim.view.volume.is_empty() {
        // Provisioned for the claim, which another volume satisfied meanwhile.
        let is_superfluous = view.provisioned_by.is_some() && &*view.reclaim_policy == "Delete";
        return if is_superfluous { VolumeStep::Release } else { VolumeStep::Unbind };
    }
    if claim.view.volume_mode == view.volume_mode {
        return VolumeStep::SyncClaim;
    }
    let (volume, claim) = (&volume.meta.name, &claim.meta.name);
    VolumeStep::Mismatch(
        Notice::warning(
            "VolumeMismatch",
            format!(
                "Cannot bind PersistentVolume to requested PersistentVolumeClaim \"{claim}\" due to incompatible volumeMode."
            ),
        ),
        Notice::warning(
            "VolumeMismatch",
            format!(
                "Cannot bind PersistentVolume \"{volume}\" to requested PersistentVolumeClaim due to incompatible volumeMode."
            ),
        ),
    )
}

/// What happens to a released volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// It stays as it is, or its provisioner deletes it.
    Keep,
    /// It is still in use.
    Wait(Notice),
    /// Nothing here can reclaim it: set the phase `Failed`.
    Fail(Notice),
}

/// Follows the reclaim policy of a released volume. `users` are the pods that use its claim, as `NAMESPACE/NAME`.
pub fn reclaim(volume: &Volume, users: impl FnOnce() -> Vec<String>) -> Reclaim {
    let view = &volume.view;
    match &*view.reclaim_policy {
        _ if view.is_migrated => Reclaim::Keep,
        "Retain" => Reclaim::Keep,
        "Recycle" => match users() {
            users if users.is_empty() => {
                Reclaim::Fail(Notice::warning("VolumeFailedRecycle", "No recycler plugin found for the volume!"))
            }
            users => {
                let message = format!("Volume is used by pods: {}", users.join(","));
                Reclaim::Wait(Notice::normal("VolumeFailedRecycle", message))
            }
        },
        "Delete" => {
            let provisioner = view.provisioned_by.as_deref().unwrap_or_default();
            let is_external = match provisioner {
                "" => view.is_csi,
                name => !name.starts_with("kubernetes.io/"),
            };
            if is_external {
                return Reclaim::Keep;
            }
            let why = match provisioner {
                "" => format!(
                    "error getting deleter volume plugin for volume \"{}\": no deletable volume plugin matched",
                    volume.meta.name
                ),
                name => format!("no volume plugin matched name: {name}"),
            };
            Reclaim::Fail(Notice::warning("VolumeFailedDelete", why))
        }
        _ => Reclaim::Fail(Notice::warning(
            "VolumeUnknownReclaimPolicy",
            "Volume has unrecognized PersistentVolumeReclaimPolicy",
        )),
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
