//! Syntax of the language: tokens, tree, parser, and the error messages of cel-go's parser.
//!
//! [`parse()`] reads valid text in one pass. Where it fails, [`diagnose`] reads the text again, the way the parser that ANTLR
//! generates for cel-go does it, and reports the same errors at the same positions. Macros are calls here: `loops` knows them.
//!
//! Invariant: the depth of a tree is bounded ([`TREE_LIMIT`]), and so is the recursion of everything that walks it.

mod diagnose;
mod lex;
mod literal;
mod names;
mod parse;
#[cfg(test)]
mod tests;
mod token;

pub use names::is_reserved;
pub(crate) use parse::parse;

use crate::node::Const;
use std::borrow::Cow;

/// Names of the functions behind operators.
pub(crate) mod operators {
    pub const CONDITIONAL: &str = "_?_:_";
    pub const LOGICAL_AND: &str = "_&&_";
    pub const LOGICAL_OR: &str = "_||_";
    pub const LOGICAL_NOT: &str = "!_";
    pub const NEGATE: &str = "-_";
    pub const INDEX: &str = "_[_]";
    pub const OPT_INDEX: &str = "_[?_]";
    pub const OPT_SELECT: &str = "_?._";
}

/// How many rules of the grammar, and how many operators and selectors, may be nested, as in cel-go.
pub(crate) const DEPTH_LIMIT: usize = 250;
/// How deep a tree may be. cel-go has no such limit; evaluation recurses.
pub(crate) const TREE_LIMIT: usize = 300;
/// Code points of the longest expression that is parsed, as in cel-go.
pub(crate) const SIZE_LIMIT: usize = 100_000;

/// An expression, and where it is.
#[derive(Debug)]
pub(crate) struct Expr<'s> {
    /// Position of its operator, or of its first token: code points from the start of the text.
    pub at: u32,
    /// How many expressions are nested in it, itself included.
    pub depth: u16,
    /// How many of them count towards cel-go's limit on recursion: operators with two or three operands, selections, calls of
    /// members and indexes.
    counted: u16,
    pub kind: Kind<'s>,
}

#[derive(Debug)]
pub(crate) enum Kind<'s> {
    Literal(Const),
    /// A name. It starts with a dot if it is absolute.
    Ident(Cow<'s, str>),
    Select(Box<Expr<'s>>, &'s str),
    Call(Box<Call<'s>>),
    /// Items; true: only if it has a value.
    List(Vec<(Expr<'s>, bool)>),
    Map(Vec<Entry<'s>>),
    /// The name of the type, and the fields.
    Struct(Cow<'s, str>, Vec<Field<'s>>),
}

/// A call of a function, a member or an operator.
#[derive(Debug)]
pub(crate) struct Call<'s> {
    pub function: Cow<'s, str>,
    pub target: Option<Expr<'s>>,
    pub args: Vec<Expr<'s>>,
}

/// An entry of a map.
#[derive(Debug)]
pub(crate) struct Entry<'s> {
    pub key: Expr<'s>,
    pub value: Expr<'s>,
    /// Only if the value has one.
    pub optional: bool,
}

/// A field of a message.
#[derive(Debug)]
pub(crate) struct Field<'s> {
    /// Position of its colon.
    pub at: u32,
    pub name: &'s str,
    pub value: Expr<'s>,
    pub optional: bool,
}

impl<'s> Expr<'s> {
    fn new(at: u32, kind: Kind<'s>) -> Self {
        let (mut depth, mut counted) = (0, 0);
        let mut within = |e: &Expr<'s>| {
            depth = depth.max(e.depth);
            counted = counted.max(e.counted);
        };
        match &kind {
            Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Select(operand, _) => within(operand),
            Kind::Call(c) => c.target.iter().chain(&c.args).for_each(within),
            Kind::List(items) => items.iter().for_each(|(e, _)| within(e)),
            Kind::Map(entries) => entries.iter().for_each(|e| {
                within(&e.key);
                within(&e.value);
            }),
            Kind::Struct(_, fields) => fields.iter().for_each(|f| within(&f.value)),
        }
        Self { at, depth: depth + 1, counted, kind }
    }

    fn call(at: u32, function: impl Into<Cow<'s, str>>, args: Vec<Self>) -> Self {
        Self::new(at, Kind::Call(Box::new(Call { function: function.into(), target: None, args })))
    }

    /// Counts it towards the limit on recursion.
    fn count(mut self) -> Self {
        self.counted += 1;
        self
    }

    fn is_too_deep(&self) -> bool {
        usize::from(self.counted) > DEPTH_LIMIT || usize::from(self.depth) > TREE_LIMIT
    }
}
