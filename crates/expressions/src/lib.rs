//! The types of Kubernetes objects in CEL, and the environments of admission expressions.
//!
//! What the API server checks and evaluates, and what the controller of policy statuses checks again, is the same here.

#![warn(missing_docs)]

mod device;
mod kind_types;
mod policy;
mod schema_types;

pub use device::{DEVICE_ENV, Device};
pub use kind_types::{kind_type, metadata_type};
pub use policy::{Params, message_env, policy_env, webhook_env};
pub use schema_types::{Typed, escape, keys, max_occurrences, schema_type, shape, typed};

use cel::{Env, Program, Type};

/// The result type that an expression must have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ExpectedType {
    /// `bool`.
    Bool,
    /// `string`.
    Text,
    /// `string` or `null_type`.
    TextOrNull,
    /// Every type.
    Any,
    /// `Object`, the result of an apply configuration.
    Object,
    /// `list(JSONPatch)`.
    Patches,
}

/// Compiles an expression. Errors with upstream's message.
pub fn compile(env: &Env, text: &str, expected: ExpectedType) -> Result<(Program, Type), String> {
    let c = env.compile(text).map_err(|e| format!("compilation failed: {e}"))?;
    let is_object = |t: &Type, name: &str| matches!(t, Type::Object(o) if o.name == name);
    let (fits, name) = match expected {
        ExpectedType::Any => (true, ""),
        ExpectedType::Bool => (matches!(c.ty, Type::Bool | Type::Dyn), "bool"),
        ExpectedType::Text => (matches!(c.ty, Type::String | Type::Dyn), "string"),
        ExpectedType::TextOrNull => (matches!(c.ty, Type::String | Type::Null | Type::Dyn), "string or null_type"),
        ExpectedType::Object => (is_object(&c.ty, "Object") || c.ty.is_dyn(), "Object"),
        ExpectedType::Patches => {
            let well = match &c.ty {
                Type::List(items) => is_object(&items.ty, "JSONPatch") || items.ty.is_dyn(),
                t => t.is_dyn(),
            };
            (well, "list(JSONPatch)")
        }
    };
    match fits {
        true => Ok((c.program, c.ty)),
        false if expected == ExpectedType::TextOrNull => Err("must evaluate to one of [string null_type]".into()),
        false => Err(format!("must evaluate to {name}")),
    }
}
