//! Estimates of sizes and costs before an evaluation (`cel-go/checker/cost.go`, `cel-go/ext`,
//! `k8s.io/apiserver/pkg/cel/library/cost.go`).
//!
//! A definition is rejected by the estimated cost of its rules, so the estimates are exactly upstream's: a value at a declared path has
//! the declared size, numbers have none, and the first step from an unknown path leads to the root.

use crate::cost::{Range, TRAVERSAL};
use crate::functions::{Function, Overload};
use crate::node::{Const, Node};
use crate::typed::{Extent, ONE, Path, Typed, scalar};
use crate::types::{Decl, Type, UNBOUNDED};

/// The cost of a call without its arguments, and the size of the result if the function defines it.
pub(crate) struct Estimate {
    pub cost: Range,
    pub size: Option<Range>,
}

impl Estimate {
    fn sized(cost: Range, size: Range) -> Self {
        Self { cost, size: Some(size) }
    }
}

impl From<Range> for Estimate {
    fn from(cost: Range) -> Self {
        Self { cost, size: None }
    }
}

/// A checked call. The target of a member function is its first argument.
pub(crate) struct Call<'c> {
    pub function: &'static Function,
    /// The overloads that the arguments fit.
    pub overloads: Vec<&'static Overload>,
    pub types: &'c [Type],
    pub args: &'c [Typed],
    pub member: bool,
    pub root: Option<&'c Decl>,
}

/// Cost of creating a list, in addition to that of the call.
const MADE: Range = Range { min: 11, max: 11 };

impl Call<'_> {
    fn size(&self, i: usize) -> Range {
        self.args.get(i).map_or(Range::UNKNOWN, Typed::size)
    }

    fn walk(&self, i: usize, times: f64) -> Range {
        self.size(i).scaled(TRAVERSAL * times)
    }

    /// The cost of the overloads on strings, of the others, or the range of both if either may be called.
    fn texts_or(&self, texts: Range, others: Range) -> Range {
        let is_text = |o: &Overload| matches!(o.params.first(), Some(Type::String | Type::Bytes));
        match (self.overloads.iter().any(|o| is_text(o)), self.overloads.iter().any(|o| !is_text(o))) {
            (true, true) => texts.or(others),
            (true, false) => texts,
            (false, _) => others,
        }
    }

    fn least(&self) -> Range {
        let max = self.size(0).max.min(self.size(1).max);
        Range { min: u64::from(max > 0), max }.scaled(TRAVERSAL)
    }

    pub fn estimate(&self) -> Estimate {
        let name = self.function.row.name;
        match name {
            "_==_" => self.equality().into(),
            "_!=_" => self.least().into(),
            "_<_" | "_<=_" | "_>_" | "_>=_" => self.texts_or(self.least(), ONE).into(),
            "_+_" => {
                let size = self.size(0).plus(self.size(1));
                let cost = self.texts_or(size.scaled(TRAVERSAL), ONE);
                let grows = |t: &Type| matches!(t, Type::String | Type::Bytes | Type::List(_) | Type::Dyn);
                Estimate { cost, size: self.types.iter().all(grows).then_some(size) }
            }
            "@in" => match self.types.get(1) {
                Some(Type::Map(..)) => ONE.into(),
                Some(Type::List(_)) => self.size(1).into(),
                _ => self.size(1).or(ONE).into(),
            },
            "string" | "bytes" => self.converted(name),
            "matches" if !self.member => ONE.into(),
            "isSorted" | "sum" | "min" | "max" | "indexOf" | "lastIndexOf" => self.items().into(),
            "lowerAscii" | "upperAscii" | "substring" | "trim" | "url" | "jsonpatch.escapeKey" => {
                Estimate::sized(self.walk(0, 1.0), self.size(0))
            }
            "strings.quote" => {
                let of = self.size(0);
                let size = Range { min: of.min, max: of.max.saturating_mul(2) }.plus(Range::fixed(2));
                Estimate::sized(self.walk(0, 1.0), size)
            }
            "replace" => Estimate::sized(self.walk(0, 2.0), self.replaced()),
            "split" => {
                let most = self.literal(2).unwrap_or(self.size(0).max);
                Estimate::sized(self.walk(0, 2.0), Range::up_to(most))
            }
            "join" => {
                let size = self.joined();
                Estimate::sized(size.scaled(TRAVERSAL), size)
            }
            "find" | "findAll" => {
                let sizes = [self.size(0), self.size(1)];
                Estimate::sized(self.function.row.price.range(&sizes), Range::up_to(self.size(0).max))
            }
            "slice" | "flatten" | "lists.range" | "reverse" | "distinct" | "sort" => self.made(name),
            "ip" if self.member => ONE.into(),
            "containsIP" | "containsCIDR" => self.contained(name).into(),
            "validate" => self.walk(1, 1.0).scaled(32.0).into(),
            _ => {
                let sizes: Vec<Range> = (0..self.args.len()).map(|i| self.size(i)).collect();
                self.function.row.price.range(&sizes).into()
            }
        }
    }

    fn equality(&self) -> Range {
        let (Type::Opaque(a), Type::Opaque(b)) = (&self.types[0], &self.types[1]) else { return self.least() };
        match *a {
            _ if a != b => self.least(),
            "kubernetes.NamedFormat" => Range { min: 1, max: 64 }.scaled(TRAVERSAL),
            "kubernetes.URL" => {
                let known = self.args[1].extent.size;
                Range { min: 1, max: known.map_or(1, |s| s.max) }.scaled(TRAVERSAL)
            }
            _ => ONE,
        }
    }

    /// Conversions between bytes and strings. Others cost 1.
    fn converted(&self, to: &str) -> Estimate {
        let walks = |o: &Overload| match o.params.first() {
            Some(Type::Bytes) => to == "string",
            Some(Type::String) => to == "bytes",
            _ => false,
        };
        if !self.overloads.iter().any(|o| walks(o)) {
            return ONE.into();
        }
        let (of, cost) = (self.size(0), self.walk(0, 1.0));
        let size = match to {
            "string" => Range { min: of.min / 4, max: of.max },
            _ => Range { min: of.min, max: of.max.saturating_mul(4) },
        };
        Estimate::sized(if self.overloads.len() > 1 { cost.or(ONE) } else { cost }, size)
    }

    /// The size of an item of the target, by its declared path.
    fn item_size(&self) -> Range {
        match &self.args[0].extent.path {
            Path::Nowhere => Range::UNKNOWN,
            path => path.item(self.root).size().unwrap_or(Range::UNKNOWN),
        }
    }

    /// The cost of reading every item, strings by their length.
    fn items(&self) -> Range {
        match &self.types[0] {
            Type::List(of) if matches!(of.ty, Type::String | Type::Bytes) => {
                self.size(0).times(ONE.plus(self.item_size().scaled(TRAVERSAL)))
            }
            Type::List(_) => self.size(0),
            _ => self.walk(0, 1.0),
        }
    }

    fn joined(&self) -> Range {
        let list = self.size(0);
        let items = list.times(self.item_size());
        if self.args.len() < 2 {
            return items;
        }
        let between = Range { min: list.min.saturating_sub(1), max: list.max.saturating_sub(1) };
        items.plus(self.size(1).times(between))
    }

    /// The range of the length of the resulting string.
    fn replaced(&self) -> Range {
        let (text, from, to) = (self.size(0), self.size(1), self.size(2));
        let end = |text: u64, from: u64, to: u64, stays: bool| -> u64 {
            let (count, kept) = match from {
                0 => (text.saturating_add(1), text),
                _ if stays => (0, text),
                _ => (text.div_ceil(from), 0),
            };
            count.saturating_mul(to).saturating_add(kept)
        };
        Range {
            min: end(text.min, from.max, to.min, from.max <= to.min),
            max: end(text.max, from.min, to.max, to.max <= from.min),
        }
    }

    /// Functions that return lists of lists.
    fn made(&self, name: &str) -> Estimate {
        let of = self.size(0);
        let (factor, size) = match name {
            "slice" => {
                let (from, to) = (self.literal(1).unwrap_or(0), self.literal(2).unwrap_or(of.max));
                (1.0, Range::fixed(to.saturating_sub(from)))
            }
            "lists.range" => (1.0, Range::fixed(self.literal(0).unwrap_or(UNBOUNDED))),
            "flatten" if self.args.len() > 1 => (self.literal(1).unwrap_or(UNBOUNDED) as f64, of),
            "distinct" => (2.0, of.times(of)),
            "sort" => (sorting(self.types.first()), of.times(of)),
            _ => (1.0, of),
        };
        Estimate::sized(size.scaled(factor).plus(MADE), size)
    }

    fn contained(&self, name: &str) -> Range {
        let address = Range { min: 4, max: 16 };
        let mut cost = address.plus(address).scaled(TRAVERSAL);
        if name == "containsCIDR" {
            cost = cost.plus(address.scaled(TRAVERSAL)).plus(ONE);
        }
        match self.types.get(1) {
            Some(Type::Opaque(_)) => cost,
            _ => cost.plus(self.walk(1, 1.0)),
        }
    }

    /// An integer literal of the expression.
    fn literal(&self, i: usize) -> Option<u64> {
        match self.args.get(i)?.node {
            Node::Const(Const::Int(n)) => Some(u64::try_from(n).unwrap_or(0)),
            _ => None,
        }
    }
}

/// The extent of the result of a call.
pub(crate) fn result(call: &Call<'_>, size: Option<Range>, ty: &Type) -> Extent {
    let entries = |i: usize| call.args.get(i).and_then(|a| a.extent.entries);
    match call.function.row.name {
        "_[_]" if !matches!(call.types[0], Type::Optional(_)) => {
            let path = call.args[0].extent.path.item(call.root);
            let size = entries(0).map(|e| e.values);
            let placed = Extent::at(path, ty);
            Extent { size: size.or(placed.size), ..placed }
        }
        "_+_" => {
            let entries = entries(0).zip(entries(1)).map(|(a, b)| a.or(b));
            Extent { path: Path::Nowhere, size: size.or_else(|| scalar(ty)), entries }
        }
        "dyn" => Extent { path: Path::Nowhere, ..call.args[0].extent.clone() },
        _ => Extent { path: Path::Nowhere, size: size.or_else(|| scalar(ty)), entries: None },
    }
}

/// The cost factor of sorting, by the type of the items.
fn sorting(list: Option<&Type>) -> f64 {
    match list {
        Some(Type::List(of)) if matches!(of.ty, Type::String | Type::Bytes) => 2.0 + TRAVERSAL,
        _ => 2.0,
    }
}

/// The cost of sorting a list by computed keys, and the size of the result.
pub(crate) fn sorted_by(keys: &Type, list: Range) -> Estimate {
    let size = list.times(list);
    let factor = if matches!(keys, Type::String | Type::Bytes) { 2.0 + TRAVERSAL } else { 2.0 };
    Estimate::sized(size.scaled(factor).plus(MADE), size)
}
