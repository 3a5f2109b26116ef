//! The one place where `x-kubernetes-validations` are to be compiled and evaluated.
//!
//! Nothing is compiled or enforced yet: rules are kept, published and checked for their form
//! ([`super::json_schema`]). An evaluator implements [`Rules`]; [`super::custom::Custom`] asks it after the schema, as upstream
//! does, unless an error of the schema makes the question meaningless ([`blocks`]).

use meta::field::{ErrorList, ErrorType};
use meta::{FieldPath, Value};

/// The rules of one version of a definition, compiled.
pub trait Rules: Send + Sync {
    /// Evaluates every rule against a new object and the one it replaces.
    fn evaluate(&self, object: &Value, old: Option<&Value>, errors: &mut ErrorList);
}

/// Compiles the rules of a schema and reports those that do not compile, at their paths. None when there is none, and, as
/// long as no evaluator exists, always.
pub fn compile(_schema: &Value, _path: &FieldPath, _errors: &mut ErrorList) -> Option<Box<dyn Rules>> {
    None
}

/// After such an error no rule is evaluated.
pub fn blocks(errors: &ErrorList) -> bool {
    use ErrorType::{NotSupported, Required, TooLong, TooMany, TypeInvalid};
    errors.iter().any(|e| matches!(e.kind, NotSupported | Required | TooLong | TooMany | TypeInvalid))
}
