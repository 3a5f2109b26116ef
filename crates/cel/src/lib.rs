//! The Common Expression Language as Kubernetes v1.36 has it.
//!
//! An [`Env`] declares variables with their types. [`Env::compile`] parses and checks an expression and estimates its cost. A [`Program`]
//! evaluates JSON in place, within a [`Budget`].
//!
//! Invariant: an evaluation ends. Each step is charged to the budget, loops by the item, and nothing recurses deeper than the tree, whose
//! depth is bounded. Calls that take longer than their upstream cost are bounded by a second budget ([`work`]).
//!
//! Left out: libraries that are in no environment of Kubernetes (math, encoders), and protocol buffers: objects are JSON.

#![warn(missing_docs)]

mod accumulator;
mod calls;
mod check;
mod compare;
mod cost;
mod error;
mod estimate;
mod eval;
mod functions;
mod libraries;
mod loops;
mod node;
mod source;
mod syntax;
mod time;
mod typed;
mod types;
mod value;
mod work;

pub use check::{Compiled, Env};
pub use compare::equal;
pub use cost::{Budget, Exceeded, MATCH_BUDGET, PER_CALL_LIMIT, RUNTIME_BUDGET, Range};
pub use error::Error;
pub use eval::{Program, Vars};
pub use libraries::authorizer::{Authorizer, Decision, Question, Request};
pub use source::{Issue, Issues};
pub use syntax::is_reserved;
pub use types::{Decl, Field, Object, Type, UNBOUNDED};
pub use value::{Key, List, ListKind, Map, Opaque, Shape, Text, Val};
