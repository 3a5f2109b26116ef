//! The writes of the controller. Each is conditional on the version that was decided on, and skipped if nothing changes.

use super::Controller;
use super::decide::Notice;
use super::view::{BETA_STORAGE_PROVISIONER, BIND_COMPLETED, BOUND_BY_CONTROLLER, Claim, STORAGE_PROVISIONER, Volume};
use super::{claims, volume_key, volumes};
use crate::context::{Error, object};
use client::WriteOptions;
use meta::Object;
use serde_json::{Value, json};
use std::sync::Arc;

pub fn invalid(e: serde_json::Error) -> Error {
    Error::Invalid { what: "response", why: e.to_string() }
}

pub fn json(object: &Object) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(object).map_err(invalid)
}

fn remove_annotation(object: &mut Object, key: &str) {
    object.remove(&["metadata", "annotations", key]);
    if object.at(&["metadata", "annotations"]).and_then(Value::as_object).is_some_and(|all| all.is_empty()) {
        object.remove(&["metadata", "annotations"]);
    }
}

/// Sets the reference of a volume to a claim. Returns whether anything changed.
fn refer_to_claim(changed: &mut Object, volume: &Volume, claim: &Claim) -> bool {
    let m = &claim.meta;
    let same = volume
        .view
        .claim
        .as_ref()
        .is_some_and(|r| *r.namespace == *m.namespace && *r.name == *m.name && *r.uid == *m.uid);
    if !same {
        let reference = json!({"kind": "PersistentVolumeClaim", "namespace": &*m.namespace, "name": &*m.name,
            "uid": &*m.uid, "apiVersion": "v1", "resourceVersion": m.resource_version});
        changed.set(&["spec", "claimRef"], reference);
    }
    let annotate = !volume.view.is_for(claim) && !volume.view.is_bound_by_controller;
    if annotate {
        changed.set_annotation(BOUND_BY_CONTROLLER, "yes");
    }
    !same || annotate
}

/// Sets the reference of a claim to a volume, and that the binding is complete. Returns whether anything changed.
fn refer_to_volume(changed: &mut Object, claim: &Claim, volume: &Volume) -> bool {
    let same = *claim.view.volume == *volume.meta.name;
    if !same {
        changed.set(&["spec", "volumeName"], &*volume.meta.name);
        if !claim.view.is_bound_by_controller {
            changed.set_annotation(BOUND_BY_CONTROLLER, "yes");
        }
    }
    if !claim.view.is_bind_completed {
        changed.set_annotation(BIND_COMPLETED, "yes");
    }
    !same || !claim.view.is_bind_completed
}

/// Sets the status of a claim that is bound to a volume. Returns whether anything changed.
fn set_bound_status(changed: &mut Object, volume: &Object) -> bool {
    let before = changed.at(&["status"]).cloned();
    let modes = volume.at(&["spec", "accessModes"]).cloned().unwrap_or_default();
    changed.set(&["status", "accessModes"], modes);
    let phase = changed.str_at(&["status", "phase"]).unwrap_or_default().to_owned();
    // Only of a claim that becomes bound: later the capacity follows the file system, and the class what was applied.
    if phase != "Bound" {
        changed.set(&["status", "capacity"], volume.at(&["spec", "capacity"]).cloned().unwrap_or_default());
        if phase == "Pending"
            && let Some(class) = volume.str_at(&["spec", "volumeAttributesClassName"])
        {
            changed.set(&["status", "currentVolumeAttributesClassName"], class);
        }
        changed.set(&["status", "phase"], "Bound");
    }
    before.as_ref() != changed.at(&["status"])
}

/// Sets the status of a claim without a volume. Returns whether anything changed.
fn set_unbound_status(changed: &mut Object, phase: &str) -> bool {
    let mut dirty = changed.str_at(&["status", "phase"]) != Some(phase);
    changed.set(&["status", "phase"], phase);
    for field in ["accessModes", "capacity", "currentVolumeAttributesClassName"] {
        dirty |= changed.remove(&["status", field]).is_some();
    }
    dirty
}

impl Controller {
    pub(super) async fn put_claim(&self, claim: &Object) -> Result<Arc<Claim>, Error> {
        let api = self.claim_api(claim.namespace());
        self.claims.store(&api.update(claim.name(), &WriteOptions::default(), claim).await?)
    }

    async fn put_claim_status(&self, claim: &Object) -> Result<Arc<Claim>, Error> {
        let api = self.claim_api(claim.namespace());
        self.claims.store(&api.update_status(claim.name(), &WriteOptions::default(), claim).await?)
    }

    async fn put_volume(&self, volume: &Object) -> Result<Arc<Volume>, Error> {
        self.volumes.store(&self.volume_api().update(volume.name(), &WriteOptions::default(), volume).await?)
    }

    /// Sets the phase of a volume, if it has another one.
    pub(super) async fn set_volume_phase(
        &self,
        volume: &Arc<Volume>,
        phase: &str,
        message: &str,
    ) -> Result<Arc<Volume>, Error> {
        if &*volume.view.phase == phase {
            return Ok(volume.clone());
        }
        let mut changed = object(&volumes(), volume)?;
        changed.set(&["status", "phase"], phase);
        match message {
            "" => drop(changed.remove(&["status", "message"])),
            message => changed.set(&["status", "message"], message),
        }
        let api = self.volume_api();
        self.volumes.store(&api.update_status(changed.name(), &WriteOptions::default(), &changed).await?)
    }

    /// Binds a claim to a volume, or completes that.
    pub(super) async fn bind(&self, volume: &Arc<Volume>, claim: &Arc<Claim>) -> Result<(), Error> {
        let mut changed = object(&volumes(), volume)?;
        let volume = match refer_to_claim(&mut changed, volume, claim) {
            true => self.put_volume(&changed).await?,
            false => volume.clone(),
        };
        let volume = self.set_volume_phase(&volume, "Bound", "").await?;
        let mut changed = object(&claims(), claim)?;
        let claim = match refer_to_volume(&mut changed, claim, &volume) {
            true => self.put_claim(&changed).await?,
            false => claim.clone(),
        };
        let mut changed = object(&claims(), &claim)?;
        if set_bound_status(&mut changed, &object(&volumes(), &volume)?) {
            self.put_claim_status(&changed).await?;
        }
        Ok(())
    }

    /// Undoes the binding of a volume whose claim is bound to another one.
    pub(super) async fn unbind(&self, volume: &Arc<Volume>) -> Result<(), Error> {
        let mut changed = object(&volumes(), volume)?;
        if volume.view.is_bound_by_controller {
            changed.remove(&["spec", "claimRef"]);
            remove_annotation(&mut changed, BOUND_BY_CONTROLLER);
        } else {
            // A user has reserved it: only the binding ends.
            changed.remove(&["spec", "claimRef", "uid"]);
        }
        let volume = self.put_volume(&changed).await?;
        self.set_volume_phase(&volume, "Available", "").await?;
        Ok(())
    }

    pub(super) async fn set_claim_pending(&self, claim: &Claim) -> Result<(), Error> {
        let mut changed = object(&claims(), claim)?;
        if set_unbound_status(&mut changed, "Pending") {
            self.put_claim_status(&changed).await?;
        }
        Ok(())
    }

    /// Marks a bound claim as lost, unless the server has a volume that the cache lacks.
    pub(super) async fn lose(&self, claim: &Arc<Claim>, notice: Notice) -> Result<(), Error> {
        let name = &claim.view.volume;
        if &*claim.view.phase == "Lost" {
            return Ok(());
        }
        if !name.is_empty()
            && self.volumes.get(&volume_key(name)).is_none()
            && self.volume_api().get_opt(name).await?.is_some()
        {
            return Err(Error::Waiting(format!("the cache does not show the persistent volume {name:?} yet")));
        }
        let mut changed = object(&claims(), claim)?;
        set_unbound_status(&mut changed, "Lost");
        let claim = self.put_claim_status(&changed).await?;
        self.claim_event(&claim, notice);
        Ok(())
    }

    /// Tells the provisioner that the claim needs a volume.
    pub(super) async fn request_volume(&self, claim: &Arc<Claim>, provisioner: &str) -> Result<(), Error> {
        if claim.view.provisioner.as_deref() != Some(provisioner) {
            let mut changed = object(&claims(), claim)?;
            changed.set_annotation(BETA_STORAGE_PROVISIONER, provisioner);
            changed.set_annotation(STORAGE_PROVISIONER, provisioner);
            if let Err(e) = self.put_claim(&changed).await {
                self.claim_event(claim, Notice::warning("ProvisioningFailed", format!("Error saving claim: {e}")));
                return Err(e);
            }
        }
        let message = format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the system \
             administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
        );
        self.claim_event(claim, Notice::normal("ExternalProvisioning", message));
        Ok(())
    }
}
