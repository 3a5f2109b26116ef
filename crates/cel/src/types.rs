//! Types of expressions and declarations, with the bounds on sizes that the cost estimate needs.

use crate::is_reserved;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The size has no known bound.
pub const UNBOUNDED: u64 = u64::MAX;

/// The type of an expression or variable.
#[derive(Clone, Debug)]
pub enum Type {
    /// Any type, checked by the evaluation.
    Dyn,
    /// `null`.
    Null,
    /// A boolean.
    Bool,
    /// A 64-bit integer.
    Int,
    /// An unsigned 64-bit integer.
    Uint,
    /// A floating-point number.
    Double,
    /// A string.
    String,
    /// Bytes.
    Bytes,
    /// A timestamp.
    Timestamp,
    /// A duration.
    Duration,
    /// The type of types.
    Type,
    /// A list with items of one type.
    List(Arc<Decl>),
    /// A map with keys and values of one type each.
    Map(Arc<Decl>, Arc<Decl>),
    /// An optional value.
    Optional(Arc<Decl>),
    /// An object with declared fields.
    Object(Arc<Object>),
    /// A type of a library, by its name.
    Opaque(&'static str),
    /// A type parameter of a signature, or of a type that is not yet known.
    Param(u32),
}

/// A type, and the maximum size of its values in characters, items or entries; [`UNBOUNDED`] if it is not known.
#[derive(Clone, Debug)]
pub struct Decl {
    /// The type.
    pub ty: Type,
    /// The maximum size.
    pub max: u64,
}

impl Decl {
    /// A type with a maximum size of its values.
    pub fn new(ty: Type, max: u64) -> Self {
        Self { ty, max }
    }
}

impl From<Type> for Decl {
    fn from(ty: Type) -> Self {
        Self { ty, max: UNBOUNDED }
    }
}

/// A type with fields.
#[derive(Clone, Debug, Default)]
pub struct Object {
    /// The name of the type.
    pub name: String,
    /// The fields by the names that expressions use.
    pub fields: BTreeMap<String, Field>,
    /// Whether it may have other fields, of any type.
    pub open: bool,
}

impl Object {
    /// The field with this name in an expression. A reserved word also means the field with its escaped name: `self.namespace` is
    /// `self.__namespace__` (`k8s.io/apiserver/pkg/cel/types.go`, since v1.31).
    pub fn field(&self, name: &str) -> Option<&Field> {
        let escaped = || self.fields.get(&format!("__{name}__")).filter(|_| is_reserved(name));
        self.fields.get(name).or_else(escaped)
    }
}

/// A field of an object, under the name that expressions use.
#[derive(Clone, Debug)]
pub struct Field {
    /// The name in JSON.
    pub json: String,
    /// The type and maximum size.
    pub decl: Decl,
}

/// Maximum nesting of the type of a variable.
const DEEPEST: usize = 32;

impl Type {
    /// Whether lists, maps and optionals are nested so deep that a variable of the type is declared as dynamic. Variables defined by each
    /// other have types as deep as their number, and each check of an expression walks them.
    pub(crate) fn is_deep(&self) -> bool {
        self.is_deeper(DEEPEST)
    }

    fn is_deeper(&self, than: usize) -> bool {
        let Some(left) = than.checked_sub(1) else { return true };
        match self {
            Self::List(of) | Self::Optional(of) => of.ty.is_deeper(left),
            Self::Map(key, value) => key.ty.is_deeper(left) || value.ty.is_deeper(left),
            _ => false,
        }
    }

    /// A list with items of a type.
    pub fn list(of: impl Into<Decl>) -> Self {
        Self::List(Arc::new(of.into()))
    }

    /// A map with keys and values of a type.
    pub fn map(key: impl Into<Decl>, value: impl Into<Decl>) -> Self {
        Self::Map(Arc::new(key.into()), Arc::new(value.into()))
    }

    /// An optional value of a type.
    pub fn optional(of: impl Into<Decl>) -> Self {
        Self::Optional(Arc::new(of.into()))
    }

    /// Whether it is [`Type::Dyn`].
    pub fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn)
    }

    /// A declaration of a single value, of size 1.
    pub(crate) fn is_scalar(&self) -> bool {
        use Type::{Bool, Double, Duration, Int, Timestamp, Uint};
        matches!(self, Bool | Double | Duration | Int | Timestamp | Uint)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dyn => f.write_str("dyn"),
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Uint => f.write_str("uint"),
            Self::Double => f.write_str("double"),
            Self::String => f.write_str("string"),
            Self::Bytes => f.write_str("bytes"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::Duration => f.write_str("duration"),
            Self::Type => f.write_str("type"),
            Self::List(of) => write!(f, "list({})", of.ty),
            Self::Map(k, v) => write!(f, "map({}, {})", k.ty, v.ty),
            Self::Optional(of) => write!(f, "optional_type({})", of.ty),
            Self::Object(o) => f.write_str(&o.name),
            Self::Opaque(name) => f.write_str(name),
            Self::Param(n) => write!(f, "_var{n}"),
        }
    }
}

/// The types bound to type parameters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    params: Vec<Option<Type>>,
}

impl Known {
    pub fn fresh(&mut self) -> Type {
        self.params.push(None);
        Type::Param(u32::try_from(self.params.len() - 1).unwrap_or(u32::MAX))
    }

    /// Reserves new parameters for a signature. Returns the number of the first one.
    pub fn reserve(&mut self, n: u32) -> u32 {
        let first = u32::try_from(self.params.len()).unwrap_or(u32::MAX);
        self.params.resize(self.params.len() + n as usize, None);
        first
    }

    /// The type with bound parameters replaced.
    pub fn resolve(&self, t: &Type) -> Type {
        let inner = |d: &Arc<Decl>| Arc::new(Decl { ty: self.resolve(&d.ty), max: d.max });
        match t {
            Type::Param(n) => match self.params.get(*n as usize) {
                Some(Some(t)) => self.resolve(t),
                _ => t.clone(),
            },
            Type::List(of) => Type::List(inner(of)),
            Type::Map(k, v) => Type::Map(inner(k), inner(v)),
            Type::Optional(of) => Type::Optional(inner(of)),
            t => t.clone(),
        }
    }

    /// As [`Self::resolve`], with `dyn` for parameters that were never bound.
    pub fn settled(&self, t: &Type) -> Type {
        let inner = |d: &Arc<Decl>| Arc::new(Decl { ty: self.settled(&d.ty), max: d.max });
        match self.resolve(t) {
            Type::Param(_) => Type::Dyn,
            Type::List(of) => Type::List(inner(&of)),
            Type::Map(k, v) => Type::Map(inner(&k), inner(&v)),
            Type::Optional(of) => Type::Optional(inner(&of)),
            t => t,
        }
    }

    fn binding(&self, t: &Type) -> Type {
        match t {
            Type::Param(n) => match self.params.get(*n as usize) {
                Some(Some(known)) => self.binding(known),
                _ => t.clone(),
            },
            t => t.clone(),
        }
    }

    /// Whether a value of one type is assignable to another one. Binds parameters.
    pub fn assignable(&mut self, to: &Type, from: &Type) -> bool {
        let (to, from) = (self.binding(to), self.binding(from));
        match (&to, &from) {
            (Type::Param(a), Type::Param(b)) if a == b => true,
            (Type::Param(n), t) | (t, Type::Param(n)) => {
                if self.mentions(t, *n) {
                    return false;
                }
                if let Some(slot) = self.params.get_mut(*n as usize) {
                    *slot = Some(t.clone());
                }
                true
            }
            (Type::Dyn, _) | (_, Type::Dyn) => true,
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => self.assignable(&a.ty, &b.ty),
            (Type::Map(k, v), Type::Map(l, w)) => self.assignable(&k.ty, &l.ty) && self.assignable(&v.ty, &w.ty),
            (Type::Object(a), Type::Object(b)) => a.name == b.name,
            (Type::Opaque(a), Type::Opaque(b)) => a == b,
            (Type::Null, Type::Object(_) | Type::Opaque(_) | Type::Optional(_) | Type::Timestamp | Type::Duration)
            | (Type::Object(_) | Type::Opaque(_) | Type::Optional(_) | Type::Timestamp | Type::Duration, Type::Null) => {
                true
            }
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        }
    }

    fn mentions(&self, t: &Type, n: u32) -> bool {
        match self.binding(t) {
            Type::Param(m) => m == n,
            Type::List(of) | Type::Optional(of) => self.mentions(&of.ty, n),
            Type::Map(k, v) => self.mentions(&k.ty, n) || self.mentions(&v.ty, n),
            _ => false,
        }
    }
}
