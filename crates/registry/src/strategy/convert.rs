use super::LEGACY_SCHEME;
use crate::convert::Converter;
use meta::{Gvk, Object, Status};

/// Whether [`ObjectConvertor::conform`] fills in defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defaults {
    /// For objects as they were stored.
    Fill,
    /// For the results of conversions, which are only pruned.
    Omit,
}

/// Conversion between versions of the kind (`runtime.ObjectConvertor`), of objects and of field labels.
pub trait ObjectConvertor: Send + Sync {
    /// The name of upstream's scheme for the kind: the source line that creates it. Conversion errors contain it.
    fn scheme(&self) -> &'static str {
        LEGACY_SCHEME
    }

    /// The error for an unsupported field selector, if it differs from the common one.
    fn unselectable(&self, _field: &str) -> Option<String> {
        None
    }

    /// A fallback field of the stored object where a selectable field is empty.
    fn stored_instead(&self, _field: &str) -> Option<&'static str> {
        None
    }

    /// The external converter between versions, if any; see [`crate::convert`].
    fn converter(&self) -> Option<&dyn Converter> {
        None
    }

    /// Converts an object between versions of the resource, if there is no [`Self::converter`].
    fn convert(&self, object: Object, to: &Gvk) -> Result<Object, Status> {
        let mut object = object;
        object.set_gvk(to);
        Ok(object)
    }

    /// Applies the schema of the object's own version to an object that was stored or converted, if the kind has a
    /// schema that changes.
    fn conform(&self, object: Object, _: Defaults) -> Result<Object, Status> {
        Ok(object)
    }
}
