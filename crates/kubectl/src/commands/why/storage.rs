//! Why claims have no volume.

use super::fields::{has_condition, is_deleting, list, name, namespace, text, uid};
use super::finding::{Explanation, Finding, ObjectName, State};
use super::reader::{Read, Reader};
use super::{events, references};
use crate::error::Result;
use meta::Value;

/// The provisioner of the node agent, which is no CSI driver.
const BUILT_IN: &str = "kemudi.local/directory";

/// What the claims of a pod lack. `placed`: the pod has a node.
pub async fn of_pod(r: &mut Reader<'_>, pod: &Value, placed: bool) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (claim, generated) in references::claims(pod) {
        let about = ObjectName::new("v1", "PersistentVolumeClaim", namespace(pod), &claim);
        let found = match r.get("v1", namespace(pod), "persistentvolumeclaims", &claim).await? {
            Read::Found(found) => found,
            Read::Missing => {
                let message = match generated {
                    true => format!(
                        "PersistentVolumeClaim {claim} does not exist: the ephemeral volume controller has not created it"
                    ),
                    false => format!("PersistentVolumeClaim {claim} does not exist"),
                };
                findings.push(Finding::new("ReferenceNotFound", message).about(about));
                continue;
            }
            Read::Unreadable => continue,
        };
        findings.extend(unbound(r, &found, placed).await?.map(|f| f.about(about)));
    }
    Ok(findings)
}

/// Why a claim cannot be used. None if it can.
async fn unbound(r: &mut Reader<'_>, claim: &Value, placed: bool) -> Result<Option<Finding>> {
    let (name, class) = (name(claim), text(claim, "/spec/storageClassName"));
    if is_deleting(claim) {
        return Ok(Some(Finding::new("ClaimDeleting", format!("PersistentVolumeClaim {name} is being deleted"))));
    }
    match text(claim, "/status/phase") {
        "Bound" => return Ok(None),
        "Lost" => {
            let volume = text(claim, "/spec/volumeName");
            let message = format!("PersistentVolumeClaim {name} is lost: its volume {volume} does not exist any more");
            return Ok(Some(Finding::new("ClaimLost", message)));
        }
        _ => {}
    }
    let volume = text(claim, "/spec/volumeName");
    let size = text(claim, "/spec/resources/requests/storage");
    if !volume.is_empty() {
        return Ok(Some(match r.get("v1", "", "persistentvolumes", volume).await? {
            Read::Found(v) => {
                let holder = text(&v, "/spec/claimRef/name");
                let phase = text(&v, "/status/phase");
                let taken = if holder.is_empty() {
                    String::new()
                } else {
                    format!(", for the claim {}/{holder}", text(&v, "/spec/claimRef/namespace"))
                };
                Finding::new(
                    "ClaimUnbound",
                    format!(
                        "PersistentVolumeClaim {name} is not bound to the volume {volume} that it names; the volume is {phase}{taken}"
                    ),
                )
            }
            _ => Finding::new(
                "VolumeNotFound",
                format!("PersistentVolumeClaim {name} names the volume {volume}, which does not exist"),
            ),
        }));
    }
    if class.is_empty() {
        let message = match claim.pointer("/spec/storageClassName") {
            Some(_) => format!(
                "PersistentVolumeClaim {name} needs a volume of {size} without a class, and no such volume is available"
            ),
            None => format!(
                "PersistentVolumeClaim {name} has no storage class, and there was no default class when it was created"
            ),
        };
        let finding = Finding::new("ClaimUnbound", message);
        return Ok(Some(finding.because(free_volumes(r, "").await?)));
    }
    let found = match r.get("storage.k8s.io/v1", "", "storageclasses", class).await? {
        Read::Found(found) => found,
        Read::Missing => {
            let message = format!("PersistentVolumeClaim {name} has the StorageClass {class}, which does not exist");
            let finding = Finding::new("StorageClassNotFound", message);
            return Ok(Some(finding.because(free_volumes(r, class).await?)));
        }
        Read::Unreadable => {
            return Ok(Some(Finding::new("ClaimUnbound", format!("PersistentVolumeClaim {name} is not bound"))));
        }
    };
    let provisioner = text(&found, "/provisioner");
    let waits = found["volumeBindingMode"] == "WaitForFirstConsumer";
    let selected = claim.pointer("/metadata/annotations/volume.kubernetes.io~1selected-node").and_then(Value::as_str);
    let message = match (waits, selected) {
        (true, None) if placed => format!("PersistentVolumeClaim {name} is not bound although its pod has a node"),
        (true, None) => format!(
            "PersistentVolumeClaim {name} waits for a pod to be scheduled (StorageClass {class}: WaitForFirstConsumer)"
        ),
        (_, Some(node)) => {
            format!("PersistentVolumeClaim {name} waits for {provisioner} to provision {size} on node {node}")
        }
        (false, None) => format!("PersistentVolumeClaim {name} waits for {provisioner} to provision {size}"),
    };
    let reason = if waits && selected.is_none() { "WaitsForConsumer" } else { "WaitsForProvisioner" };
    let mut finding = Finding::new(reason, message);
    if provisioner == "kubernetes.io/no-provisioner" {
        finding.message = format!(
            "PersistentVolumeClaim {name} needs an existing volume of {size}: the StorageClass {class} provisions none"
        );
        finding.children.extend(free_volumes(r, class).await?);
    } else if reason == "WaitsForProvisioner" {
        let drivers = r.list("storage.k8s.io/v1", "", "csidrivers").await?;
        let is_known = provisioner == BUILT_IN || drivers.iter().any(|d| super::fields::name(d) == provisioner);
        if !is_known {
            finding.children.push(Finding::new(
                "ProvisionerUnknown",
                format!("no CSIDriver {provisioner} is registered: the provisioner may not be installed"),
            ));
        }
        finding.children.extend(events::latest(r, namespace(claim), uid(claim)).await?);
    }
    Ok(Some(finding))
}

/// The volumes of a class that are available.
async fn free_volumes(r: &mut Reader<'_>, class: &str) -> Result<Option<Finding>> {
    let volumes = r.list("v1", "", "persistentvolumes").await?;
    if r.is_unreadable("persistentvolumes", "") {
        return Ok(None);
    }
    let free = volumes
        .iter()
        .filter(|v| text(v, "/spec/storageClassName") == class && text(v, "/status/phase") == "Available");
    let free: Vec<String> = free
        .map(|v| {
            let modes: Vec<&str> = list(v, "/spec/accessModes").iter().filter_map(Value::as_str).collect();
            format!("{} ({}, {})", name(v), text(v, "/spec/capacity/storage"), modes.join(","))
        })
        .collect();
    let message = match free.is_empty() {
        true => "no volume of its class is available".to_owned(),
        false => format!("available, with another size, mode or label: {}", super::finding::some(&free)),
    };
    Ok(Some(Finding::new("AvailableVolumes", message)))
}

pub async fn claim(r: &mut Reader<'_>, claim: &Value) -> Result<Explanation> {
    if let Some(finding) = unbound(r, claim, false).await? {
        return Ok(Explanation::new(State::Pending, "is not bound").because([finding]));
    }
    let resizing = ["FileSystemResizePending", "Resizing", "ModifyVolumeError"]
        .into_iter()
        .find(|c| has_condition(claim, c, "True"));
    Ok(match resizing {
        Some(condition) => {
            let requested = text(claim, "/spec/resources/requests/storage");
            let message =
                format!("it is resized from {} to {requested} ({condition})", text(claim, "/status/capacity/storage"));
            Explanation::new(State::Progressing, "is bound and being resized")
                .because([Finding::new("Resizing", message)])
        }
        None => Explanation::new(State::Healthy, format!("is healthy: bound to {}", text(claim, "/spec/volumeName"))),
    })
}
