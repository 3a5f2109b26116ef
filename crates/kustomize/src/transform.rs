//! Transformers, a file each. Each is configured by a field of the kustomization or by an object of the version `builtin`.

pub mod image;
pub mod json_patch;
pub mod labels;
pub mod names;
pub mod namespace;
pub mod patch;
pub mod replacement;
pub mod replicas;
pub mod value_add;

use crate::Error;
use crate::resources::Resources;

/// Changes the objects of a build.
pub trait Transform {
    fn apply(&self, all: &mut Resources) -> Result<(), Error>;
}
