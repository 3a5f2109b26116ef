//! Per-kind behaviour beyond the schema, split along its uses like upstream's interfaces
//! (`k8s.io/apiserver/pkg/registry/rest`).
//!
//! A kind implements the parts that it needs, and [`crate::strategy!`] the others.

mod allocator;
mod convert;
mod cost;
mod create;
mod custom_resource;
mod delete;
mod name_rule;
mod request;
mod reset_fields;
mod subresources;
mod table;
mod update;
mod warnings;

pub use allocator::Allocator;
pub use convert::{Defaults, ObjectConvertor};
pub use cost::CostEstimator;
pub use create::CreateStrategy;
pub use custom_resource::CustomResource;
pub use delete::DeleteStrategy;
pub use name_rule::NameRule;
pub use request::{Env, Request, Sent};
pub use reset_fields::ResetFieldsStrategy;
pub use subresources::{ProxyTarget, Scale, ScaleSelector, Sub, Subresources, Upstream, at};
pub use table::TableConvertor;
pub use update::{ALL_METADATA, USER_METADATA, UpdateStrategy, WHOLE_METADATA, take_field};
pub use warnings::Warnings;

/// The source line where upstream registers its built-in kinds.
pub const LEGACY_SCHEME: &str = "pkg/api/legacyscheme/scheme.go:30";

/// The behaviour of a kind: the sum of its parts (`genericregistry.Store`). The defaults of all methods suit a kind
/// without special rules.
pub trait Strategy:
    CreateStrategy
    + UpdateStrategy
    + ResetFieldsStrategy
    + DeleteStrategy
    + Allocator
    + Subresources
    + TableConvertor
    + ObjectConvertor
    + CostEstimator
    + CustomResource
{
}

impl<T> Strategy for T where
    T: CreateStrategy
        + UpdateStrategy
        + ResetFieldsStrategy
        + DeleteStrategy
        + Allocator
        + Subresources
        + TableConvertor
        + ObjectConvertor
        + CostEstimator
        + CustomResource
{
}

/// Completes the [`Strategy`] of a type: lists the parts that it implements, and implements the others
/// with their defaults.
///
/// ```text
/// impl CreateStrategy for ConfigMap { … }
/// impl UpdateStrategy for ConfigMap { … }
/// registry::strategy!(ConfigMap: CreateStrategy, UpdateStrategy);
/// ```
#[macro_export]
macro_rules! strategy {
    ($kind:ident: $($part:ident),+ $(,)?) => {
        $crate::strategy!(@CreateStrategy $kind $($part)*);
        $crate::strategy!(@UpdateStrategy $kind $($part)*);
        $crate::strategy!(@ResetFieldsStrategy $kind $($part)*);
        $crate::strategy!(@DeleteStrategy $kind $($part)*);
        $crate::strategy!(@Allocator $kind $($part)*);
        $crate::strategy!(@Subresources $kind $($part)*);
        $crate::strategy!(@TableConvertor $kind $($part)*);
        $crate::strategy!(@ObjectConvertor $kind $($part)*);
        $crate::strategy!(@CostEstimator $kind $($part)*);
        $crate::strategy!(@CustomResource $kind $($part)*);
    };
    // For each part: listed; not yet found; not listed.
    (@CreateStrategy $kind:ident CreateStrategy $($rest:ident)*) => {};
    (@CreateStrategy $kind:ident $other:ident $($rest:ident)*) => { $crate::strategy!(@CreateStrategy $kind $($rest)*); };
    (@CreateStrategy $kind:ident) => { impl $crate::CreateStrategy for $kind {} };
    (@UpdateStrategy $kind:ident UpdateStrategy $($rest:ident)*) => {};
    (@UpdateStrategy $kind:ident $other:ident $($rest:ident)*) => { $crate::strategy!(@UpdateStrategy $kind $($rest)*); };
    (@UpdateStrategy $kind:ident) => { impl $crate::UpdateStrategy for $kind {} };
    (@ResetFieldsStrategy $kind:ident ResetFieldsStrategy $($rest:ident)*) => {};
    (@ResetFieldsStrategy $kind:ident $other:ident $($rest:ident)*) => { $crate::strategy!(@ResetFieldsStrategy $kind $($rest)*); };
    (@ResetFieldsStrategy $kind:ident) => { impl $crate::ResetFieldsStrategy for $kind {} };
    (@DeleteStrategy $kind:ident DeleteStrategy $($rest:ident)*) => {};
    (@DeleteStrategy $kind:ident $other:ident $($rest:ident)*) => { $crate::strategy!(@DeleteStrategy $kind $($rest)*); };
    (@DeleteStrategy $kind:ident) => { impl $crate::DeleteStrategy for $kind {} };
    (@Allocator $kind:ident Allocator $($rest:ident)*) => {};
    (@Allocator $kind:ident $other:ident $($rest:ident)*) => { $crate::strategy!(@Allocator $kind $($rest)*); };
    (@Allocator $kind:ident) => { impl $crate::Allocator for $kind {} };
    (@Subresources $kind:ident Subresources $($rest:ident)*) => {};
    (@Subresources $kind:ident $other:ident $($rest:ident)*) => { $crate::strategy!(@Subresources $kind $($rest)*); };
    (@Subresources $kind:ident) => { impl $crate::Subresources for $kind {} };
    (@TableConvertor $kind:ident TableConvertor $($rest:ident)*) => {};
    (@TableConvertor $kind:ident $other:ident $($rest:ident)*) => { $crate::strategy!(@TableConvertor $kind $($rest)*); };
    (@TableConvertor $kind:ident) => { impl $crate::TableConvertor for $kind {} };
    (@ObjectConvertor $kind:ident ObjectConvertor $($rest:ident)*) => {};
    (@ObjectConvertor $kind:ident $other:ident $($rest:ident)*) => { $crate::strategy!(@ObjectConvertor $kind $($rest)*); };
    (@ObjectConvertor $kind:ident) => { impl $crate::ObjectConvertor for $kind {} };
    (@CostEstimator $kind:ident CostEstimator $($rest:ident)*) => {};
    (@CostEstimator $kind:ident $other:ident $($rest:ident)*) => { $crate::strategy!(@CostEstimator $kind $($rest)*); };
    (@CostEstimator $kind:ident) => { impl $crate::CostEstimator for $kind {} };
    (@CustomResource $kind:ident CustomResource $($rest:ident)*) => {};
    (@CustomResource $kind:ident $other:ident $($rest:ident)*) => { $crate::strategy!(@CustomResource $kind $($rest)*); };
    (@CustomResource $kind:ident) => { impl $crate::CustomResource for $kind {} };
}
