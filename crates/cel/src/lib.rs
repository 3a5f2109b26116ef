//! The Common Expression Language as Kubernetes v1.36 has it.
//!
//! An [`Env`] says which variables there are and of which types; [`Env::compile`] checks an expression against it and says what
//! it may cost; a [`Program`] evaluates JSON in place, within a [`Budget`].
//!
//! Invariant: an evaluation ends. Everything it does is paid for, loops by the item, and nothing recurses deeper than the syntax,
//! whose depth is bounded. What takes longer than upstream's cost says is bounded by a second budget ([`work`]).
//!
//! Left out, as upstream leaves it out: libraries that are in no environment of Kubernetes (math, encoders). Protocol buffers
//! do not exist here: objects are JSON.

mod calls;
mod check;
mod compare;
mod cost;
mod estimate;
mod eval;
mod functions;
mod loops;
mod made;
mod node;
mod source;
mod syntax;
mod time;
mod types;
mod value;
mod work;

pub use check::{Compiled, Env};
pub use compare::equal;
pub use cost::{Budget, Exceeded, MATCH_BUDGET, PER_CALL_LIMIT, RUNTIME_BUDGET, Range};
pub use eval::{Error, Program, Vars};
pub use functions::authorizer::{Authorizer, Decision, Question, Request};
pub use source::{Issue, Issues};
pub use types::{Decl, Field, Object, Type, UNBOUNDED};
pub use value::{Key, List, ListKind, Map, Opaque, Shape, Text, Val};
