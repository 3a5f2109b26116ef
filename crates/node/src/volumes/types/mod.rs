//! The types of volumes that this node supports: the trait [`Volume`], and the table of its implementations.
//!
//! A type is one file here and one row of [`TYPES`]. A volume of another type (network file systems) is
//! refused with [`Error::Unsupported`] when the pod's volumes are set up.

mod claim;
mod config_map;
mod csi;
mod downward_api;
mod empty_dir;
mod host_path;
mod image;
mod projected;
mod secret;
mod service_account_token;

use std::path::{Path, PathBuf};
use std::pin::Pin;

use k8s_openapi::api::core::v1 as api;
use runtime::FileKind;

use super::{Error, PodContext};
use crate::objects::Kind;
pub(crate) use claim::set_group;

/// A volume of a pod. Its fields are what the specification of the volume says.
#[async_trait::async_trait]
pub(super) trait Volume: Send + Sync {
    /// The volume that the specification describes; `None` if it is of another type.
    fn from_spec(volume: &api::Volume) -> Option<Self>
    where
        Self: Sized;

    /// Makes the volume, or completes one that an earlier call has made, and returns its path on the host. `directory` belongs to
    /// the volume alone and may not exist yet. Runs before containers of the pod start, each time.
    async fn set_up(&self, pod: &PodContext<'_>, directory: &Path) -> Result<PathBuf, Error>;

    /// Updates the volume of a running pod, after a change of an object or of the pod's metadata, and regularly.
    async fn refresh(&self, _pod: &PodContext<'_>, _directory: &Path) -> Result<(), Error> {
        Ok(())
    }

    /// Releases what the volume holds outside of its directory, after the pod's containers have ended. The directory, and what is
    /// mounted below it, is removed afterwards. The pod may be gone from the API, so only the directory is known.
    async fn tear_down(_directory: &Path) -> Result<(), Error>
    where
        Self: Sized,
    {
        Ok(())
    }

    /// Kinds and names of the objects of the pod's namespace that the volume reads. A change of one causes a refresh.
    fn references(&self) -> Vec<(Kind, &str)> {
        Vec::new()
    }

    /// Whether the volume shows metadata of the pod, so that new labels or annotations cause a refresh.
    fn shows_metadata(&self) -> bool {
        false
    }

    /// Whether the volume is a file system in memory. These count against the mounts that the machine can have.
    fn is_in_memory(&self) -> bool {
        false
    }

    /// Whether containers can only read the volume.
    fn is_read_only(&self) -> bool {
        false
    }

    /// The name of the image whose files the volume shows.
    fn image(&self) -> Option<&str> {
        None
    }

    /// The kind of file that the volume must be when it is mounted; `None` for any.
    fn file_kind(&self) -> Option<FileKind> {
        None
    }
}

type TearDown = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// A row of [`TYPES`].
pub(super) struct Type {
    /// The field of a pod's volume that selects the type.
    pub field: &'static str,
    /// Volumes lie in `kubernetes.io~DIRECTORY/NAME` of the pod's `volumes`.
    pub directory: &'static str,
    from_spec: fn(&api::Volume) -> Option<Box<dyn Volume>>,
    pub tear_down: fn(PathBuf) -> TearDown,
}

impl Type {
    pub const fn new<V: Volume + 'static>(field: &'static str, directory: &'static str) -> Self {
        Self {
            field,
            directory,
            from_spec: |volume| V::from_spec(volume).map(|v| Box::new(v) as Box<dyn Volume>),
            tear_down: |directory| Box::pin(async move { V::tear_down(&directory).await }),
        }
    }
}

/// Every type of volume that this node supports.
pub(super) const TYPES: &[Type] = &[
    Type::new::<host_path::HostPath>("hostPath", "host-path"),
    Type::new::<empty_dir::EmptyDir>("emptyDir", "empty-dir"),
    Type::new::<config_map::ConfigMap>("configMap", "configmap"),
    Type::new::<secret::Secret>("secret", "secret"),
    Type::new::<downward_api::DownwardApi>("downwardAPI", "downward-api"),
    Type::new::<projected::Projected>("projected", "projected"),
    Type::new::<image::Image>("image", "image"),
    Type::new::<csi::Csi>("csi", "csi"),
    // These have no directory of the pod: the persistent volume has one of its own.
    Type::new::<claim::Named>("persistentVolumeClaim", "persistent-volume-claim"),
    Type::new::<claim::Ephemeral>("ephemeral", "ephemeral"),
];

/// The type and the volume that the specification describes; `None` if no row of `types` is for it.
pub(super) fn find<'a>(types: &'a [Type], volume: &api::Volume) -> Option<(&'a Type, Box<dyn Volume>)> {
    types.iter().find_map(|t| Some((t, (t.from_spec)(volume)?)))
}
