//! Evaluation of admission expressions (`k8s.io/apiserver/pkg/admission/plugin/cel`). [`::expressions`] has their types.

mod subject;

use crate::plugin::{MatchEvaluation, MatchOwner, Review};
use cel::{Budget, Env, Error, MATCH_BUDGET, Program, Val, Vars};
use expressions::{ExpectedType, compile};
use meta::Value;
use tokio::time::Instant;

pub use subject::{Composed, Subject, Variables};

/// The source text of an expression, and its program or compile error.
pub(crate) struct Expression {
    pub text: String,
    pub program: Result<Program, String>,
}

impl Expression {
    pub fn new(env: &Env, text: &str, expected: ExpectedType) -> Self {
        Self { text: text.to_owned(), program: compile(env, text, expected).map(|(p, _)| p) }
    }

    pub fn eval<'a>(&'a self, vars: &dyn Vars<'a>, budget: &mut Budget) -> Result<Val<'a>, EvalError> {
        let program = self.program.as_ref().map_err(|why| EvalError::Compile(why.clone()))?;
        program.eval(vars, budget).map_err(|e| match e {
            Error::Cost if budget.left() == 0 => EvalError::OutOfBudget,
            e => EvalError::Invalid(format!("expression '{}' resulted in error: {e}", self.text)),
        })
    }
}

/// Why an evaluation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EvalError {
    #[error("compilation error: {0}")]
    Compile(String),
    #[error("validation failed due to running out of cost budget, no further validation rules will be run")]
    OutOfBudget,
    #[error("{0}")]
    Invalid(String),
}

impl EvalError {
    /// The value of the label `error_type` of the policies' metrics.
    pub fn error_type(&self) -> &'static str {
        match self {
            Self::Compile(_) => "compile_error",
            Self::OutOfBudget => "out_of_budget",
            Self::Invalid(_) => INVALID,
        }
    }
}

/// The `error_type` of errors other than a failed compilation and an exceeded budget.
pub(crate) const INVALID: &str = "invalid_error";

impl From<String> for EvalError {
    fn from(why: String) -> Self {
        Self::Invalid(why)
    }
}

/// `matchConditions`.
pub(crate) struct Conditions {
    all: Vec<Expression>,
    pub owner: MatchOwner,
}

/// The result of match conditions.
pub(crate) enum Matched {
    Yes,
    No,
    /// No condition is false, and at least one evaluation failed.
    Failed(String),
}

impl Conditions {
    pub fn read(list: &Value, env: &Env, owner: MatchOwner) -> Self {
        let compile_condition =
            |c: &Value| Expression::new(env, c["expression"].as_str().unwrap_or_default(), ExpectedType::Bool);
        Self { all: list.as_array().into_iter().flatten().map(compile_condition).collect(), owner }
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn hold(&self, subject: &Subject<'_>, review: &Review<'_>) -> Matched {
        if self.is_empty() {
            return Matched::Yes;
        }
        let begun = Instant::now();
        let mut budget = Budget::new(MATCH_BUDGET);
        let mut failed = Vec::new();
        let no = self.all.iter().any(|c| match c.eval(&subject, &mut budget) {
            Ok(v) => v.as_bool() == Some(false),
            Err(e) => {
                failed.push(e.to_string());
                false
            }
        });
        let (owner, operation, errors) = (&self.owner, review.operation, failed.len());
        review.host.record_match_evaluation(&MatchEvaluation { owner, operation, errors, took: begun.elapsed() });
        match failed.len() {
            _ if no => Matched::No,
            0 => Matched::Yes,
            1 => Matched::Failed(failed.remove(0)),
            _ => Matched::Failed(format!("[{}]", failed.join(", "))),
        }
    }
}
