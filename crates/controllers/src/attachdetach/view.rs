//! The fields of objects that this controller reads.

use client::informer::or_default;
use jiff::Timestamp;
use serde::Deserialize;

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Volume {
    pub spec: VolumeSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpec {
    #[serde(deserialize_with = "or_default")]
    pub access_modes: Vec<Box<str>>,
    pub claim_ref: Option<ClaimReference>,
    pub csi: Option<Source>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClaimReference {
    pub namespace: Box<str>,
    pub name: Box<str>,
    pub uid: Box<str>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Source {
    pub driver: Box<str>,
    pub volume_handle: Box<str>,
}

impl Source {
    /// The name of the volume in the status of nodes.
    pub fn unique_name(&self) -> String {
        format!("kubernetes.io/csi/{}^{}", self.driver, self.volume_handle)
    }
}

impl Volume {
    /// Whether several nodes may have the volume.
    pub fn allows_several_nodes(&self) -> bool {
        let modes = &self.spec.access_modes;
        // Without modes nothing is known.
        modes.is_empty() || modes.iter().any(|m| matches!(&**m, "ReadWriteMany" | "ReadOnlyMany"))
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Claim {
    pub spec: ClaimSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpec {
    pub volume_name: Box<str>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Driver {
    pub spec: DriverSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DriverSpec {
    pub attach_required: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Attachment {
    pub spec: AttachmentSpec,
    pub status: AttachmentStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSpec {
    pub attacher: Box<str>,
    pub node_name: Box<str>,
    pub source: AttachmentSource,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSource {
    pub persistent_volume_name: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentStatus {
    pub attached: bool,
    pub attach_error: Option<AttachError>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AttachError {
    pub time: Option<Timestamp>,
    pub message: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    metadata: NodeMeta,
    spec: NodeSpec,
    pub status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeMeta {
    annotations: NodeAnnotations,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeAnnotations {
    #[serde(rename = "volumes.kubernetes.io/controller-managed-attach-detach")]
    managed: Option<Box<str>>,
    #[serde(rename = "volumes.kubernetes.io/keep-terminated-pod-volumes")]
    keeps_terminated: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    #[serde(deserialize_with = "or_default")]
    taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Taint {
    key: Box<str>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    #[serde(deserialize_with = "or_default")]
    pub volumes_in_use: Vec<Box<str>>,
    #[serde(deserialize_with = "or_default")]
    pub volumes_attached: Vec<AttachedVolume>,
    #[serde(deserialize_with = "or_default")]
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AttachedVolume {
    pub name: Box<str>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: Box<str>,
    status: Box<str>,
}

impl Node {
    /// Whether this controller attaches the volumes of the node.
    pub fn is_managed(&self) -> bool {
        self.metadata.annotations.managed.is_some()
    }

    pub fn keeps_terminated(&self) -> bool {
        self.metadata.annotations.keeps_terminated.as_deref() == Some("true")
    }

    pub fn is_out_of_service(&self) -> bool {
        self.spec.taints.iter().any(|t| &*t.key == OUT_OF_SERVICE)
    }

    pub fn is_ready(&self) -> bool {
        self.status.conditions.iter().any(|c| &*c.kind == "Ready" && &*c.status == "True")
    }

    pub fn uses(&self, volume: &str) -> bool {
        self.status.volumes_in_use.iter().any(|v| &**v == volume)
    }
}
