//! Type check of macros: loops, `has`, `cel.bind`, `optMap` (`cel-go/parser/macro.go`, `cel-go/ext`). They are not expanded as in
//! cel-go, but cost what the expansion would.

use crate::check::{Checker, Local, dotted, unbounded};
use crate::cost::Range;
use crate::estimate;
use crate::node::{Const, Loop, LoopKind, Node, Wrap};
use crate::syntax::{Call, Expr, Kind, operators};
use crate::typed::{Entries, Extent, Path, Typed};
use crate::types::Type;

impl Checker<'_> {
    /// Checks a call, if it is one of a macro.
    pub fn macro_call(&mut self, at: u32, c: &Call) -> Option<Typed> {
        use LoopKind::{All, Exists, ExistsOne, Filter, Map, TransformMap, TransformMapEntry};
        let Some(target) = c.target.as_ref() else {
            return match (&*c.function, &c.args[..]) {
                ("has", [of]) => Some(self.has_field(of)),
                _ => None,
            };
        };
        let a = &c.args[..];
        Some(match (&*c.function, a) {
            ("all", [v, p]) => self.loops(at, All, target, &[v], None, p),
            ("all", [k, v, p]) => self.loops(at, All, target, &[k, v], None, p),
            ("exists", [v, p]) => self.loops(at, Exists, target, &[v], None, p),
            ("exists", [k, v, p]) => self.loops(at, Exists, target, &[k, v], None, p),
            ("exists_one" | "existsOne", [v, p]) => self.loops(at, ExistsOne, target, &[v], None, p),
            ("exists_one" | "existsOne", [k, v, p]) => self.loops(at, ExistsOne, target, &[k, v], None, p),
            ("map", [v, f]) => self.loops(at, Map, target, &[v], None, f),
            ("map", [v, p, f]) => self.loops(at, Map, target, &[v], Some(p), f),
            ("filter", [v, p]) => self.loops(at, Filter, target, &[v], None, p),
            ("transformList", [k, v, f]) => self.loops(at, Map, target, &[k, v], None, f),
            ("transformList", [k, v, p, f]) => self.loops(at, Map, target, &[k, v], Some(p), f),
            ("transformMap", [k, v, f]) => self.loops(at, TransformMap, target, &[k, v], None, f),
            ("transformMap", [k, v, p, f]) => self.loops(at, TransformMap, target, &[k, v], Some(p), f),
            ("transformMapEntry", [k, v, f]) => self.loops(at, TransformMapEntry, target, &[k, v], None, f),
            ("transformMapEntry", [k, v, p, f]) => self.loops(at, TransformMapEntry, target, &[k, v], Some(p), f),
            ("sortBy", [v, key]) => self.sort_by(at, target, v, key),
            ("optMap", [v, f]) => self.opt_map(at, target, v, f, Wrap::Value),
            ("optFlatMap", [v, f]) => self.opt_map(at, target, v, f, Wrap::Optional),
            ("bind", [v, value, body])
                if matches!(&target.kind, Kind::Ident(n) if n == "cel") && self.allows_bindings() =>
            {
                self.bind(v, value, body)
            }
            _ => return None,
        })
    }

    fn has_field(&mut self, of: &Expr) -> Typed {
        let Kind::Select(operand, field) = &of.kind else {
            return self.error(of.at, "invalid argument to has() macro");
        };
        if dotted(of).is_some_and(|name| self.env.has(&name)) {
            return Typed::new(Node::Const(Const::Bool(true)), Type::Bool, Range::fixed(0));
        }
        let operand = self.check(operand);
        match self.field(of.at, &operand.ty, field) {
            Some((_, json)) => Typed::new(Node::Has(Box::new((operand.node, json))), Type::Bool, operand.cost),
            None => Typed::broken(),
        }
    }

    /// The name of a variable. Reports `message` if the expression is more than a name.
    fn variable_name(&mut self, e: &Expr, message: &'static str) -> Option<String> {
        match &e.kind {
            Kind::Ident(n) if !n.starts_with('.') => Some(n.to_string()),
            _ => {
                self.error(e.at, message);
                None
            }
        }
    }

    /// The types and sizes of the variables of a loop over `range`.
    fn items(&mut self, range: &Typed, at: u32, two: bool) -> Option<Vec<(Type, Extent)>> {
        let (from, root, entries) = (&range.extent.path, self.root(), range.extent.entries);
        let extent = |path, size| Extent { path, size, entries: None };
        let key = || extent(from.key(root), entries.map(|e| e.keys));
        let value = || extent(from.item(root), entries.map(|e| e.values));
        match self.known.resolve(&range.ty) {
            Type::List(of) if two => {
                let index = extent(from.index(root), entries.map(|e| e.keys));
                Some(vec![(Type::Int, index), (of.ty.clone(), value())])
            }
            Type::List(of) => Some(vec![(of.ty.clone(), value())]),
            Type::Map(k, v) if two => Some(vec![(k.ty.clone(), key()), (v.ty.clone(), value())]),
            Type::Map(k, _) => Some(vec![(k.ty.clone(), key())]),
            Type::Dyn | Type::Param(_) => Some(vec![(Type::Dyn, key()), (Type::Dyn, value())]),
            t => {
                let why = format!(
                    "expression of type '{t}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.error(at, why);
                None
            }
        }
    }

    fn loops(
        &mut self,
        at: u32,
        kind: LoopKind,
        target: &Expr,
        names: &[&Expr],
        when: Option<&Expr>,
        body: &Expr,
    ) -> Typed {
        let range = self.check(target);
        let Some(items) = self.items(&range, target.at, names.len() == 2) else { return Typed::broken() };
        let message = match (kind, names.len()) {
            (LoopKind::Map | LoopKind::Filter, 1) => "argument is not an identifier",
            _ => "argument must be a simple name",
        };
        let places: Vec<u32> = names.iter().map(|n| n.at).collect();
        let Some(names) = names.iter().map(|n| self.variable_name(n, message)).collect::<Option<Vec<_>>>() else {
            return Typed::broken();
        };
        if let [first, second] = &names[..]
            && first == second
        {
            return self.error(places[1], format!("duplicate variable name: {first}"));
        }
        // The name of the accumulator in cel-go's expansion.
        if let Some(i) = names.iter().position(|n| n == "__result__") {
            return self.error(places[i], "iteration variable overwrites accumulator variable");
        }
        let two = names.len() == 2;
        let before = self.locals.len();
        let named = names.into_iter().zip(&items);
        self.locals.extend(named.map(|(name, (ty, extent))| Local { name, ty: ty.clone(), extent: extent.clone() }));
        let item = self.locals.get(before).map(|l| l.extent.variable(&self.known.resolve(&l.ty)));
        let when = when.map(|w| self.check(w));
        let body_of = self.check(body);
        self.locals.truncate(before);
        if let Some(w) = when.as_ref().filter(|w| !self.known.assignable(&Type::Bool, &w.ty)) {
            return self.no_overload(at, operators::CONDITIONAL, &[&w.ty, &body_of.ty, &body_of.ty], false);
        }
        let predicate = match kind {
            LoopKind::All => Some((operators::LOGICAL_AND, 1)),
            LoopKind::Exists => Some((operators::LOGICAL_OR, 1)),
            LoopKind::ExistsOne | LoopKind::Filter => Some((operators::CONDITIONAL, 0)),
            _ => None,
        };
        if let Some((operator, place)) = predicate
            && !self.known.assignable(&Type::Bool, &body_of.ty)
        {
            let other = match kind {
                LoopKind::ExistsOne => Type::Int,
                LoopKind::Filter => Type::list(items[0].0.clone()),
                _ => Type::Bool,
            };
            let types = if place == 1 { vec![&other, &body_of.ty] } else { vec![&body_of.ty, &other, &other] };
            return self.no_overload(at, operator, &types, false);
        }
        let n = range.size();
        // The expansion adds lists of one item to an empty list: an item has no size, or this one.
        let list = |of: Range| {
            let entries = Entries { keys: Range::fixed(1), values: Range::fixed(0).or(of) };
            Extent { path: Path::Nowhere, size: Some(n), entries: Some(entries) }
        };
        let map = || Extent { size: Some(n), ..Extent::default() };
        let (ty, extent) = match kind {
            LoopKind::Map => (Type::list(unbounded(body_of.ty.clone())), list(body_of.size())),
            LoopKind::Filter => {
                let of = item.and_then(|i| i.size).unwrap_or(Range::UNKNOWN);
                (Type::list(unbounded(items[0].0.clone())), list(of))
            }
            LoopKind::TransformMap => {
                // A list has no keys but its positions.
                let key = if two { items[0].0.clone() } else { Type::Int };
                (Type::map(unbounded(key), unbounded(body_of.ty.clone())), map())
            }
            LoopKind::TransformMapEntry => match self.known.resolve(&body_of.ty) {
                t @ (Type::Map(..) | Type::Dyn) => (t, map()),
                t => return self.no_overload(at, "cel.@mapInsert", &[&Type::map(Type::Dyn, Type::Dyn), &t], false),
            },
            _ => (Type::Bool, Extent::fixed(1)),
        };
        let (once, each, hit) = kind.prices();
        let conditional = when.is_some() || matches!(kind, LoopKind::Filter | LoopKind::ExistsOne);
        let hits = if conditional { Range::up_to(hit) } else { Range::fixed(hit) };
        let mut step = Range::fixed(each).plus(hits).plus(body_of.cost);
        // The body is not evaluated once the result is known.
        if matches!(kind, LoopKind::All | LoopKind::Exists) {
            step.min = each;
        }
        if let Some(w) = &when {
            step = w.cost.plus(Range { min: 1, max: step.max });
        }
        let cost = range.cost.plus(Range::fixed(once)).plus(n.times(step));
        let node =
            Node::Loop(Box::new(Loop { kind, two, range: range.node, when: when.map(|w| w.node), body: body_of.node }));
        Typed { node, ty, extent, cost }
    }

    fn sort_by(&mut self, at: u32, target: &Expr, name: &Expr, key: &Expr) -> Typed {
        let list = self.check(target);
        let Some(items) = self.items(&list, target.at, false) else { return Typed::broken() };
        let Some(name) = self.variable_name(name, "argument is not an identifier") else { return Typed::broken() };
        let Some((ty, extent)) = items.into_iter().next() else { return Typed::broken() };
        self.locals.push(Local { name, ty, extent });
        let key = self.check(key);
        self.locals.pop();
        let ty = self.known.resolve(&key.ty);
        if !ty.is_scalar() && !matches!(ty, Type::String | Type::Bytes | Type::Dyn | Type::Param(_)) {
            return self.no_overload(at, "@sortByAssociatedKeys", &[&list.ty, &Type::list(ty)], true);
        }
        let size = list.size();
        let keys = Range::fixed(13).plus(size.times(key.cost.plus(Range::fixed(12))));
        let sorted = estimate::sorted_by(&ty, size);
        let cost = Range::fixed(10).plus(list.cost).plus(keys).plus(sorted.cost);
        let extent = Extent { size: sorted.size, ..Extent::default() };
        Typed { node: Node::SortBy(Box::new([list.node, key.node])), ty: list.ty, extent, cost }
    }

    fn opt_map(&mut self, at: u32, target: &Expr, name: &Expr, body: &Expr, wrap: Wrap) -> Typed {
        let of = self.check(target);
        let function = if wrap == Wrap::Value { "optMap" } else { "optFlatMap" };
        let inner = match self.known.resolve(&of.ty) {
            Type::Optional(d) => d.ty.clone(),
            Type::Dyn | Type::Param(_) => Type::Dyn,
            t => return self.no_overload(at, function, &[&t], true),
        };
        let message = match wrap {
            Wrap::Value => "optMap() variable name must be a simple identifier",
            Wrap::Optional => "optFlatMap() variable name must be a simple identifier",
        };
        let Some(name) = self.variable_name(name, message) else { return Typed::broken() };
        self.locals.push(Local { name, extent: Extent::of_type(&inner), ty: inner });
        let body = self.check(body);
        self.locals.pop();
        let ty = match (wrap, self.known.resolve(&body.ty)) {
            (Wrap::Value, _) => Type::optional(unbounded(body.ty.clone())),
            (Wrap::Optional, t @ (Type::Optional(_) | Type::Dyn)) => t,
            (Wrap::Optional, t) => return self.no_overload(at, function, &[&of.ty, &t], true),
        };
        // The expansion evaluates the optional twice: for its presence and for its value.
        let there = of.cost.plus(body.cost).plus(Range::fixed(if wrap == Wrap::Value { 12 } else { 11 }));
        let cost = of.cost.plus(Range::fixed(1)).plus(Range { min: 1, max: there.max });
        let extent = Extent { size: Some(Range::UNKNOWN), ..Extent::default() };
        Typed { node: Node::OptionalMap(Box::new([of.node, body.node]), wrap), ty, extent, cost }
    }

    fn bind(&mut self, name: &Expr, value: &Expr, body: &Expr) -> Typed {
        let value = self.check(value);
        let Some(name) = self.variable_name(name, "cel.bind() variable names must be simple identifiers") else {
            return Typed::broken();
        };
        self.locals.push(Local { name, ty: value.ty.clone(), extent: value.extent.clone() });
        let body = self.check(body);
        self.locals.pop();
        let cost = Range::fixed(10).plus(value.cost).plus(body.cost);
        let extent = Extent { path: Path::Nowhere, ..body.extent };
        Typed { node: Node::Bind(Box::new([value.node, body.node])), ty: body.ty, extent, cost }
    }
}
