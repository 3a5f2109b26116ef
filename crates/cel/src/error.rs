//! The error of an evaluation.

use crate::cost;
use crate::functions::Fault;
use std::fmt;

/// The error of an evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The evaluation failed.
    Fault(String),
    /// No overload of the function takes arguments of these types.
    NoOverload,
    /// The budget was exceeded.
    Cost,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(why) => f.write_str(why),
            Self::NoOverload => f.write_str("no such overload"),
            Self::Cost => f.write_str("operation cancelled: actual cost limit exceeded"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Fault> for Error {
    fn from(f: Fault) -> Self {
        match f {
            Fault::NoOverload => Self::NoOverload,
            Fault::Text(why) => Self::Fault(why),
        }
    }
}

impl From<cost::Exceeded> for Error {
    fn from(_: cost::Exceeded) -> Self {
        Self::Cost
    }
}
