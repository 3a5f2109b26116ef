//! Calls to the node service of a driver.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeSpec;
use plugins::api::csi::{
    self, AccessMode, Empty, Mode, MountVolume, NodeCapability, NodeGetInfoResponse, VolumeCapability,
};
use plugins::{Code, Connection, Error, KubeletRoot, Limits};

/// The time that a call may take (`csiTimeout`).
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);

/// A registered driver.
#[derive(Clone, Debug)]
pub(super) struct Driver {
    /// The socket by which the driver has registered.
    pub registration: PathBuf,
    pub connection: Connection,
    pub capabilities: BTreeSet<NodeCapability>,
}

impl Driver {
    /// Asks the driver what it can do, and for its view of the node.
    pub async fn open(
        root: &KubeletRoot,
        endpoint: &std::path::Path,
        registration: PathBuf,
    ) -> Result<(Self, NodeGetInfoResponse), Error> {
        let connection = Connection::new(root.socket(endpoint), Limits::default());
        let info = connection.call(&csi::NODE_GET_INFO, Empty {}, TIMEOUT).await?;
        let found = connection.call(&csi::NODE_GET_CAPABILITIES, Empty {}, TIMEOUT).await?;
        let kinds = found.capabilities.iter().filter_map(|c| NodeCapability::try_from(c.rpc?.kind).ok());
        let capabilities = kinds.collect();
        Ok((Self { registration, connection, capabilities }, info))
    }

    pub fn can(&self, capability: NodeCapability) -> bool {
        self.capabilities.contains(&capability)
    }

    pub async fn call<Q, R>(&self, method: &plugins::api::Method<Q, R>, request: Q) -> Result<R, Error>
    where
        Q: plugins::Message + Send + Sync + 'static,
        R: plugins::Message + Default + Send + Sync + 'static,
    {
        self.connection.call(method, request, TIMEOUT).await
    }

    /// How a pod uses a volume. `group`: the group that owns its files, if the driver sets it.
    pub fn capability(&self, usage: &Usage, group: Option<u32>) -> VolumeCapability {
        let mode = access_mode(usage.access_mode.as_str(), self.can(NodeCapability::SingleNodeMultiWriter));
        let group = group.filter(|_| self.can(NodeCapability::VolumeMountGroup));
        let mount = (!usage.is_block).then(|| MountVolume {
            fs_type: usage.fs_type.clone(),
            mount_flags: usage.mount_options.clone(),
            volume_mount_group: group.map(|g| g.to_string()).unwrap_or_default(),
        });
        VolumeCapability {
            block: usage.is_block.then_some(Empty {}),
            mount,
            access_mode: Some(AccessMode { mode: mode.into() }),
        }
    }
}

/// How a volume is used, of which requests tell the driver.
#[derive(Clone, Debug, Default)]
pub(super) struct Usage {
    pub is_block: bool,
    pub access_mode: String,
    pub fs_type: String,
    pub mount_options: Vec<String>,
    pub context: BTreeMap<String, String>,
}

impl Usage {
    /// The use of a persistent volume, whose first access mode counts.
    pub fn of_volume(spec: &PersistentVolumeSpec) -> Self {
        let source = spec.csi.as_ref();
        let is_block = spec.volume_mode.as_deref() == Some("Block");
        Self {
            is_block,
            access_mode: spec.access_modes.iter().flatten().next().cloned().unwrap_or_default(),
            fs_type: source.and_then(|s| s.fs_type.clone()).filter(|_| !is_block).unwrap_or_default(),
            mount_options: spec.mount_options.clone().filter(|_| !is_block).unwrap_or_default(),
            context: source.and_then(|s| s.volume_attributes.clone()).unwrap_or_default(),
        }
    }
}

/// The driver's access mode for one of Kubernetes; `is_precise` if the driver tells one writer from several on a node.
fn access_mode(mode: &str, is_precise: bool) -> Mode {
    match (mode, is_precise) {
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        (_, true) => Mode::SingleNodeMultiWriter,
        (_, false) => Mode::SingleNodeWriter,
    }
}

/// Whether the driver has ended the operation, so that nothing of it goes on (upstream's `IsOperationFinishedError`).
pub(super) fn is_final(error: &Error) -> bool {
    match error {
        Error::Connect { .. } => false,
        Error::Status(_) => !matches!(
            error.code(),
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::ResourceExhausted | Code::Aborted
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_modes_are_those_of_upstream() {
        let cases = [
            ("ReadWriteOnce", false, Mode::SingleNodeWriter),
            ("ReadWriteOnce", true, Mode::SingleNodeMultiWriter),
            ("ReadWriteOncePod", false, Mode::SingleNodeWriter),
            ("ReadWriteOncePod", true, Mode::SingleNodeSingleWriter),
            ("ReadOnlyMany", false, Mode::MultiNodeReaderOnly),
            ("ReadWriteMany", true, Mode::MultiNodeMultiWriter),
            ("", false, Mode::SingleNodeWriter),
        ];
        for (mode, is_precise, expected) in cases {
            assert_eq!(access_mode(mode, is_precise), expected, "{mode} {is_precise}");
        }
    }
}
