//! `x-kubernetes-validations`: rules of a definition about its objects (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel`).
//!
//! `types` says what a schema is to an expression, `compile` makes rules of texts and reports what is wrong with them, `evaluate`
//! asks them about an object. [`super::custom::Custom`] does so after the schema, as upstream does, unless an error of the schema
//! makes the question meaningless ([`blocks`]). Rules below `allOf` and the like are none: such a schema is refused, as upstream's.

mod compile;
mod evaluate;
pub(crate) mod types;

use cel::{Program, Shape};
use meta::field::{ErrorList, ErrorType};

pub use compile::{compile, rules};

/// What objects of a schema without references are to an expression; none where it says nothing.
pub fn type_of(schema: &meta::Value) -> Option<cel::Type> {
    types::typed(schema, false).map(|t| t.decl.ty)
}

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
