//! `x-kubernetes-validations`: validation rules of custom resources
//! (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel`).
//!
//! `expressions` derives CEL types from schemas, `compile` compiles rules and reports their errors, `evaluate` evaluates
//! them for an object. [`super::custom::Custom`] evaluates rules after schema validation, as upstream, unless it found an
//! error that makes them meaningless ([`blocks`]). Rules below `allOf` and other junctors are invalid, as upstream.

mod compile;
mod evaluate;

use cel::{Program, Shape};
use meta::field::{ErrorList, ErrorType};

pub use compile::{compile, rules};

/// The compiled rules of a schema and of its parts. Parts without rules are omitted.
#[derive(Default)]
pub struct Rules {
    rules: Vec<Rule>,
    /// The type of the value, as errors show it.
    ty: Box<str>,
    shape: Option<Shape>,
    fields: Vec<(Box<str>, Rules)>,
    items: Option<Box<Rules>>,
    /// The keys of a map list, which correlate items with old ones.
    keys: Vec<Box<str>>,
    values: Option<Box<Rules>>,
    /// Whether evaluation may be slow, by the estimated cost of all rules. Set at the root only.
    pub slow: bool,
}

struct Rule {
    program: Program,
    text: Box<str>,
    message: Box<str>,
    message_expression: Option<Program>,
    reason: Reason,
    /// The field of the error, relative to the rule's value, as `.spec.x`.
    field_path: Box<str>,
    uses_old: bool,
    /// Whether `oldSelf` is optional, and the rule also runs on create.
    optional_old: bool,
}

#[derive(Clone, Copy)]
enum Reason {
    Invalid,
    Forbidden,
    Required,
    Duplicate,
}

/// Whether an error of schema validation prevents the evaluation of rules.
pub fn blocks(errors: &ErrorList) -> bool {
    use ErrorType::{NotSupported, Required, TooLong, TooMany, TypeInvalid};
    errors.iter().any(|e| matches!(e.kind, NotSupported | Required | TooLong | TooMany | TypeInvalid))
}
