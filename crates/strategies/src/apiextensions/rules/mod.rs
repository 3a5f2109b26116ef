//! `x-kubernetes-validations`: rules of a definition about its objects (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel`).
//!
//! `expressions` has the types of a schema, `compile` compiles rules and reports their errors, `evaluate` evaluates them for an object.
//! [`super::custom::Custom`] evaluates them after the schema's own validation, as upstream does, unless an error of that makes rules
//! meaningless ([`blocks`]). A schema with rules below `allOf` and the like is invalid, as upstream's.

mod compile;
mod evaluate;

use cel::{Program, Shape};
use meta::field::{ErrorList, ErrorType};

pub use compile::{compile, rules};

/// A part of a schema with rules, or with parts that have some. Parts without any are not kept.
#[derive(Default)]
pub struct Rules {
    rules: Vec<Rule>,
    /// The type of the part, as errors show it.
    ty: Box<str>,
    shape: Option<Shape>,
    fields: Vec<(Box<str>, Rules)>,
    items: Option<Box<Rules>>,
    /// Of a list that is a map: the keys by which items find the ones they were.
    keys: Vec<Box<str>>,
    values: Option<Box<Rules>>,
    /// Whether an evaluation of all rules may take long, by the estimate of their costs. Said of the root only.
    pub slow: bool,
}

struct Rule {
    program: Program,
    text: Box<str>,
    message: Box<str>,
    message_expression: Option<Program>,
    reason: Reason,
    /// `.spec.x`, below the place of the rule.
    field_path: Box<str>,
    uses_old: bool,
    /// `oldSelf` is there at creation as well, without a value.
    optional_old: bool,
}

#[derive(Clone, Copy)]
enum Reason {
    Invalid,
    Forbidden,
    Required,
    Duplicate,
}

/// After such an error no rule is evaluated.
pub fn blocks(errors: &ErrorList) -> bool {
    use ErrorType::{NotSupported, Required, TooLong, TooMany, TypeInvalid};
    errors.iter().any(|e| matches!(e.kind, NotSupported | Required | TooLong | TooMany | TypeInvalid))
}
