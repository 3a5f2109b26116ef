//! Strategic merge patch: a merge patch that knows from the schema which lists are merged and by which key.
//!
//! [`apply()`] is the server's side; [`two_way`] and [`three_way`] make patches as kubectl does. Without a schema
//! (unknown fields, embedded objects), objects are merged and lists replaced.
//!
//! Left out: `patchStrategy: replace` of an object, which [`schema::PatchStrategy`] does not have; such an object is merged.

mod apply;
mod diff;
mod list;

pub use apply::apply;
pub use diff::{Overwrite, three_way, two_way};

use meta::{Status, Value};
use schema::{PatchStrategy, Schema};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder";
const DELETE_LIST: &str = "$deleteFromPrimitiveList";

/// The error of a strategic merge patch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The patch is no object.
    #[error("invalid JSON document")]
    NotAnObject,
    /// A list has lists as items.
    #[error("lists of lists are not supported")]
    ListOfLists,
    /// A list of scalars has an item of another type.
    #[error("invalid patch format of primitive list")]
    PrimitiveList,
    /// `$retainKeys` is no list of strings, or lacks a key of the patch.
    #[error("invalid patch format of retainKeys")]
    RetainKeys,
    /// `$setElementOrder` is no list.
    #[error("invalid patch format of setElementOrder list")]
    SetElementOrder,
    /// Items of the patch are not in the order of `$setElementOrder`.
    #[error("The order in patch list:\n{patch}\n doesn't match $setElementOrder list:\n{order}\n")]
    Order {
        /// The items of the patch.
        patch: String,
        /// The required order.
        order: String,
    },
    /// An item lacks the merge key of its list.
    #[error("map: {map} does not contain declared merge key: {key}")]
    NoMergeKey {
        /// The item.
        map: String,
        /// The merge key.
        key: String,
    },
    /// There is no directive of this name.
    #[error("unknown patch type: {kind} in map: {map}")]
    UnknownDirective {
        /// The directive.
        kind: String,
        /// The object that has it.
        map: String,
    },
    /// A patch requests to merge a list (`$patch: merge`).
    #[error("merging lists cannot yet be specified in the patch")]
    MergeList,
    /// A list has items of several types.
    #[error("list element types are not identical: {0}")]
    MixedList(String),
    /// A merged list of objects has no merge key.
    #[error("cannot merge lists without merge key")]
    UndeclaredKey,
    /// Changes of others conflict with the patch, without overwriting.
    #[error("patch:\n{patch}\nconflicts with changes made from original to current:\n{changes}\n")]
    Conflict {
        /// The patch.
        patch: String,
        /// The changes of others.
        changes: String,
    },
}

impl Error {
    /// The status of the response: 400 for malformed directives, otherwise 422.
    pub fn status(&self) -> Status {
        match self {
            Self::NotAnObject | Self::PrimitiveList | Self::RetainKeys | Self::SetElementOrder => {
                Status::bad_request(self.to_string())
            }
            _ => crate::json_patch::rejected(),
        }
    }

    fn no_merge_key(map: &Value, key: &str) -> Self {
        Self::NoMergeKey { map: map.to_string(), key: key.to_owned() }
    }
}

/// The schema of a member of an object.
struct Member<'a> {
    schema: Option<&'a Schema>,
    patch: Option<&'a PatchStrategy>,
}

impl<'a> Member<'a> {
    fn new(parent: Option<&'a Schema>, key: &str) -> Self {
        match parent.and_then(|s| s.field(key)) {
            Some(f) => Self { schema: Some(f.schema.get()), patch: Some(&f.patch) },
            None => Self { schema: parent.and_then(|s| s.additional.as_deref()), patch: None },
        }
    }

    fn merges(&self) -> bool {
        self.patch.is_some_and(|p| p.merge)
    }

    fn replaces(&self) -> bool {
        self.patch.is_some_and(|p| p.replace)
    }

    fn retains_keys(&self) -> bool {
        self.patch.is_some_and(|p| p.retain_keys)
    }

    fn merge_key(&self) -> Option<&'a str> {
        self.patch.and_then(|p| p.merge_key.as_deref())
    }

    fn items(&self) -> Option<&'a Schema> {
        self.schema.and_then(|s| s.items.as_deref())
    }
}

#[cfg(test)]
#[path = "strategic_tests.rs"]
mod tests;
