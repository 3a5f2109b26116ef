//! A checked part of an expression: its program, its type, and what the estimate knows of its size.

use crate::cost::Range;
use crate::node::{Const, Node};
use crate::types::{Decl, Type, UNBOUNDED};

pub(crate) const ONE: Range = Range { min: 1, max: 1 };

/// A checked part of an expression.
pub(crate) struct Typed {
    pub node: Node,
    pub ty: Type,
    pub extent: Extent,
    pub cost: Range,
}

impl Typed {
    /// A computed value, of which only the type is known.
    pub fn new(node: Node, ty: Type, cost: Range) -> Self {
        let extent = Extent::of_type(&ty);
        Self { node, ty, extent, cost }
    }

    /// A value at a declared path.
    pub fn at(node: Node, path: Path, ty: Type, cost: Range) -> Self {
        let extent = Extent::at(path, &ty);
        Self { node, ty, extent, cost }
    }

    /// The size; any, if it is not known.
    pub fn size(&self) -> Range {
        self.extent.size.unwrap_or(Range::UNKNOWN)
    }

    /// The result after an error: `dyn`, so that no further error follows from it.
    pub fn broken() -> Self {
        Self::new(Node::Const(Const::Null), Type::Dyn, Range::fixed(0))
    }
}

/// The declared path of a value.
#[derive(Clone, Default)]
pub(crate) enum Path {
    /// The expression computes it.
    #[default]
    Nowhere,
    /// The declaration at the path; none if nothing is declared there.
    At(Option<Decl>),
}

impl Path {
    fn step(&self, root: Option<&Decl>, to: impl FnOnce(&Type) -> Option<Decl>) -> Self {
        match self {
            Self::Nowhere => Self::At(root.cloned()),
            Self::At(at) => Self::At(at.as_ref().and_then(|d| to(&d.ty))),
        }
    }

    /// An item of a list, or a value of a map.
    pub fn item(&self, root: Option<&Decl>) -> Self {
        self.step(root, |t| match t {
            Type::List(of) | Type::Map(_, of) => Some((**of).clone()),
            _ => None,
        })
    }

    pub fn key(&self, root: Option<&Decl>) -> Self {
        self.step(root, |t| match t {
            Type::Map(key, _) => Some((**key).clone()),
            _ => None,
        })
    }

    /// The position of an item.
    pub fn index(&self, root: Option<&Decl>) -> Self {
        self.step(root, |_| None)
    }

    pub fn field(&self, root: Option<&Decl>, name: &str) -> Self {
        self.step(root, |t| match t {
            Type::Object(o) => o.field(name).map(|f| f.decl.clone()),
            // Attributes of devices have one size for all names.
            Type::Map(_, of) if of.ty.is_dyn() => Some((**of).clone()),
            _ => None,
        })
    }

    /// The size that is declared at the path.
    pub fn size(&self) -> Option<Range> {
        match self {
            Self::At(Some(d)) if d.max != UNBOUNDED => Some(Range::up_to(d.max)),
            _ => None,
        }
    }
}

/// Sizes of the keys (of lists: indexes) and values of a list or map.
#[derive(Clone, Copy)]
pub(crate) struct Entries {
    pub keys: Range,
    pub values: Range,
}

impl Entries {
    pub fn or(self, o: Self) -> Self {
        Self { keys: self.keys.or(o.keys), values: self.values.or(o.values) }
    }
}

/// The range of several sizes; 0 for none.
pub(crate) fn of_all(sizes: impl Iterator<Item = Range>) -> Range {
    sizes.reduce(Range::or).unwrap_or(Range::fixed(0))
}

/// What the estimate knows of a value's size.
#[derive(Clone, Default)]
pub(crate) struct Extent {
    pub path: Path,
    pub size: Option<Range>,
    pub entries: Option<Entries>,
}

impl Extent {
    pub fn fixed(size: u64) -> Self {
        Self { size: Some(Range::fixed(size)), ..Self::default() }
    }

    /// The extent of a value at a declared path.
    pub fn at(path: Path, ty: &Type) -> Self {
        let size = path.size().or_else(|| scalar(ty));
        Self { path, size, entries: None }
    }

    /// The extent of a variable bound to this value: it has the same path.
    pub fn variable(&self, ty: &Type) -> Self {
        let size = self.path.size().or_else(|| scalar(ty)).or(self.size);
        Self { size, ..self.clone() }
    }

    /// The extent of a computed value, from its type alone.
    pub fn of_type(ty: &Type) -> Self {
        Self { size: scalar(ty), ..Self::default() }
    }
}

/// The size of a value by its type. An optional has that of its value.
pub(crate) fn scalar(ty: &Type) -> Option<Range> {
    match ty {
        Type::Optional(of) => scalar(&of.ty),
        ty => ty.is_scalar().then_some(ONE),
    }
}
