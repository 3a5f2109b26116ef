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

/// Compiles an expression, whose type must be known: `dyn` is not the expected type. Errors with upstream's message.
pub fn compile(env: &Env, text: &str, expected: ExpectedType) -> Result<(Program, Type), String> {
    let c = env.compile(text).map_err(|e| format!("compilation failed: {e}"))?;
    let is_object = |t: &Type, name: &str| matches!(t, Type::Object(o) if o.name == name);
    let (fits, name) = match expected {
        ExpectedType::Any => (true, ""),
        ExpectedType::Bool => (matches!(c.ty, Type::Bool), "bool"),
        ExpectedType::Text => (matches!(c.ty, Type::String), "string"),
        ExpectedType::TextOrNull => (matches!(c.ty, Type::String | Type::Null), "one of [string null_type]"),
        ExpectedType::Object => (is_object(&c.ty, "Object"), "Object"),
        ExpectedType::Patches => {
            let well = matches!(&c.ty, Type::List(items) if is_object(&items.ty, "JSONPatch"));
            (well, "list(JSONPatch)")
        }
    };
    match fits {
        true => Ok((c.program, c.ty)),
        false => Err(format!("must evaluate to {name} but got {}", runtime_name(&c.ty))),
    }
}

/// The name of a type at runtime, which differs from that in errors of the type check for some.
fn runtime_name(ty: &Type) -> String {
    match ty {
        Type::Null => "null_type".into(),
        Type::Timestamp => "google.protobuf.Timestamp".into(),
        Type::Duration => "google.protobuf.Duration".into(),
        Type::List(of) => format!("list({})", runtime_name(&of.ty)),
        Type::Map(k, v) => format!("map({}, {})", runtime_name(&k.ty), runtime_name(&v.ty)),
        Type::Optional(of) => format!("optional_type({})", runtime_name(&of.ty)),
        ty => ty.to_string(),
    }
}
