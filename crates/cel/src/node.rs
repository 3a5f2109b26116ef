//! The nodes of a program: what evaluation needs of a checked expression.

use crate::functions::Row;

pub(crate) enum Node {
    Const(Const),
    /// A variable of a macro, counted from the outermost.
    Local(u16),
    /// A variable of the environment, by its index in the program's names.
    Var(u16),
    TypeName(&'static str),
    Select(Box<(Node, Box<str>)>),
    OptionalSelect(Box<(Node, Box<str>)>),
    Has(Box<(Node, Box<str>)>),
    Call(&'static Row, Box<[Node]>),
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    If(Box<[Node; 3]>),
    /// `orValue`: the value of an optional, or the alternative.
    ValueOr(Box<[Node; 2]>),
    OptionalOr(Box<[Node; 2]>),
    /// Items; true for an optional item, which is left out without a value.
    List(Box<[(Node, bool)]>),
    Map(Box<[(Node, Node, bool)]>),
    Struct(Box<[(Box<str>, Node, bool)]>),
    /// An error that the type check found and evaluation reports.
    Fail(Box<str>),
    Loop(Box<Loop>),
    /// `cel.bind`: the value of a variable, and the body.
    Bind(Box<[Node; 2]>),
    /// `sortBy`: a list, and the key of an item.
    SortBy(Box<[Node; 2]>),
    /// `optMap` and `optFlatMap`: an optional, and the expression for its value.
    OptionalMap(Box<[Node; 2]>, Wrap),
}

impl Node {
    /// Whether `holds` is true for the node or a part of it.
    pub fn any(&self, holds: &mut impl FnMut(&Node) -> bool) -> bool {
        holds(self)
            || match self {
                Self::Const(_) | Self::Local(_) | Self::Var(_) | Self::TypeName(_) | Self::Fail(_) => false,
                Self::Select(s) | Self::OptionalSelect(s) | Self::Has(s) => s.0.any(holds),
                Self::Call(_, all) => all.iter().any(|n| n.any(holds)),
                Self::And(all) | Self::Or(all) | Self::ValueOr(all) | Self::OptionalOr(all) => {
                    all.iter().any(|n| n.any(holds))
                }
                Self::Bind(all) | Self::SortBy(all) | Self::OptionalMap(all, _) => all.iter().any(|n| n.any(holds)),
                Self::If(all) => all.iter().any(|n| n.any(holds)),
                Self::List(all) => all.iter().any(|(n, _)| n.any(holds)),
                Self::Map(all) => all.iter().any(|(k, v, _)| k.any(holds) || v.any(holds)),
                Self::Struct(all) => all.iter().any(|(_, v, _)| v.any(holds)),
                Self::Loop(l) => {
                    let when = l.when.as_ref().is_some_and(|w| w.any(holds));
                    when || l.range.any(holds) || l.body.any(holds)
                }
            }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrap {
    Value,
    Optional,
}

#[derive(Clone, Debug)]
pub(crate) enum Const {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Str(Box<str>),
    Bytes(Box<[u8]>),
}

pub(crate) struct Loop {
    pub kind: LoopKind,
    /// Whether it has two variables: the index or key, and the value.
    pub two: bool,
    pub range: Node,
    pub when: Option<Node>,
    pub body: Node,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoopKind {
    All,
    Exists,
    ExistsOne,
    Map,
    Filter,
    TransformMap,
    TransformMapEntry,
}

impl LoopKind {
    /// The cost of ending the loop early.
    pub fn stop(self) -> u64 {
        match self {
            Self::All => 2,
            Self::Exists => 3,
            _ => 0,
        }
    }

    /// Costs without the body, as of cel-go's expansion into a fold: once, for every item, and for every item that meets the condition.
    pub fn prices(self) -> (u64, u64, u64) {
        match self {
            Self::All => (1, 3, 0),
            Self::Exists => (1, 4, 0),
            Self::ExistsOne => (2, 1, 1),
            Self::Map => (11, 0, 12),
            Self::Filter => (11, 1, 12),
            Self::TransformMap => (31, 0, 3),
            Self::TransformMapEntry => (31, 0, 2),
        }
    }
}
