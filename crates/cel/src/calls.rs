//! Type check of calls: finds the matching overloads, the type of the result and the cost.

use crate::check::{Checker, in_namespace, unbounded};
use crate::cost::Range;
use crate::estimate::{self, Call};
use crate::functions::{self, Function};
use crate::node::{Const, Node};
use crate::syntax::{self, Expr, Kind, operators};
use crate::typed::{Extent, Path, Typed};
use crate::types::{Decl, Type};
use crate::{functions::Overload, time};
use std::sync::Arc;

impl Checker<'_> {
    pub fn call(&mut self, at: u32, c: &syntax::Call) -> Typed {
        if let Some(t) = self.macro_call(at, c) {
            return t;
        }
        match (&*c.function, &c.args[..]) {
            (operators::LOGICAL_AND | operators::LOGICAL_OR, [a, b]) => return self.logic(at, &c.function, a, b),
            (operators::CONDITIONAL, [when, a, b]) => return self.conditional(at, when, a, b),
            (operators::OPT_SELECT, [of, field]) => return self.optional_select(at, of, field),
            _ => {}
        }
        let spaced = c.target.as_ref().filter(|t| !self.starts_with_variable(t));
        if let Some(f) = spaced.and_then(|t| in_namespace(t, &c.function)) {
            let args = c.args.iter().map(|a| self.check(a)).collect();
            return self.apply(at, f, args, false);
        }
        let mut args: Vec<Typed> = Vec::with_capacity(c.args.len() + 1);
        args.extend(c.target.as_ref().map(|t| self.check(t)));
        args.extend(c.args.iter().map(|a| self.check(a)));
        if let (Some(_), "or" | "orValue", 2) = (&c.target, &*c.function, args.len()) {
            return self.or_else(at, &c.function, args);
        }
        let name = c.function.trim_start_matches('.');
        // A function of a namespace is not found by its last name alone.
        match functions::find(name).filter(|_| !name.contains('.')) {
            Some(f) => {
                self.literals(at, name, c);
                self.apply(at, f, args, c.target.is_some())
            }
            None => self.error(at, format!("undeclared reference to '{name}' (in container '')")),
        }
    }

    fn starts_with_variable(&self, e: &Expr) -> bool {
        match &e.kind {
            Kind::Ident(n) => self.is_declared(n),
            Kind::Select(operand, _) => self.starts_with_variable(operand),
            _ => false,
        }
    }

    /// Reports literal arguments that are no valid duration, timestamp or regular expression.
    fn literals(&mut self, at: u32, name: &str, c: &syntax::Call) {
        let Some(Kind::Literal(Const::Str(s))) = c.args.first().map(|a| &a.kind) else { return };
        let last = match c.args.last().map(|a| &a.kind) {
            Some(Kind::Literal(Const::Str(s))) => s,
            _ => "",
        };
        let well = match name {
            "duration" => time::duration(s).is_some(),
            "timestamp" => time::timestamp(s).is_some(),
            "matches" => functions::is_regex(last),
            _ => true,
        };
        if !well {
            self.error(c.args.first().map_or(at, |a| a.at), format!("invalid {name} argument"));
        }
    }

    fn apply(&mut self, at: u32, f: &'static Function, args: Vec<Typed>, member: bool) -> Typed {
        let types: Vec<Type> = args.iter().map(|a| self.known.resolve(&a.ty)).collect();
        let mut result: Option<Type> = None;
        let mut overloads = Vec::new();
        for o in f.overloads.iter().filter(|o| o.member == member && o.params.len() == types.len()) {
            let Some(found) = self.fits(o, &types, result.is_none()) else { continue };
            overloads.push(o);
            result = Some(match result {
                None => found,
                Some(before) if before.to_string() == found.to_string() => before,
                Some(_) => Type::Dyn,
            });
        }
        let Some(result) = result else {
            return self.no_overload(at, f.row.name, &types.iter().collect::<Vec<_>>(), member);
        };
        let result = self.known.resolve(&result);
        let call = Call { function: f, overloads, types: &types, args: &args, member, root: self.root() };
        let estimate = call.estimate();
        let extent = estimate::result(&call, estimate.size, &result);
        let cost = args.iter().fold(estimate.cost, |sum, a| sum.plus(a.cost));
        let node = Node::Call(f.row, args.into_iter().map(|a| a.node).collect());
        Typed { node, ty: result, extent, cost }
    }

    pub fn no_overload(&mut self, at: u32, name: &str, types: &[&Type], member: bool) -> Typed {
        let text = match (member, types.split_first()) {
            (true, Some((target, args))) => {
                format!("{}.({})", self.known.resolve(target), self.resolve_text(args))
            }
            _ => format!("({})", self.resolve_text(types)),
        };
        self.error(at, format!("found no matching overload for '{name}' applied to '{text}'"))
    }

    /// The result type of an overload, if the arguments fit it. Type parameters are bound by the first overload that fits.
    fn fits(&mut self, o: &Overload, types: &[Type], keep: bool) -> Option<Type> {
        let before = self.known.clone();
        let first = self.known.reserve(o.generic);
        let fine = o.params.iter().zip(types).all(|(p, t)| self.known.assignable(&shift(p, first), t));
        let result = fine.then(|| self.known.resolve(&shift(&o.result, first)));
        if !fine || !keep {
            self.known = before;
        }
        result
    }

    fn logic(&mut self, at: u32, name: &str, a: &Expr, b: &Expr) -> Typed {
        let (a, b) = (self.check(a), self.check(b));
        if !self.known.assignable(&Type::Bool, &a.ty) || !self.known.assignable(&Type::Bool, &b.ty) {
            return self.no_overload(at, name, &[&a.ty, &b.ty], false);
        }
        let cost = Range { min: a.cost.min, max: a.cost.plus(b.cost).max };
        let pair = Box::new([a.node, b.node]);
        let node = if name == operators::LOGICAL_AND { Node::And(pair) } else { Node::Or(pair) };
        Typed::new(node, Type::Bool, cost)
    }

    fn conditional(&mut self, at: u32, when: &Expr, a: &Expr, b: &Expr) -> Typed {
        let (when, a, b) = (self.check(when), self.check(a), self.check(b));
        let fine = self.known.assignable(&Type::Bool, &when.ty) && self.known.assignable(&a.ty, &b.ty);
        if !fine {
            return self.no_overload(at, operators::CONDITIONAL, &[&when.ty, &a.ty, &b.ty], false);
        }
        let ty = if matches!(self.known.resolve(&b.ty), Type::Dyn) { Type::Dyn } else { self.known.resolve(&a.ty) };
        let ty = if matches!(ty, Type::Null) { self.known.resolve(&b.ty) } else { ty };
        let cost = when.cost.plus(a.cost.or(b.cost));
        let entries = a.extent.entries.zip(b.extent.entries).map(|(a, b)| a.or(b));
        let extent = Extent { path: Path::Nowhere, size: Some(a.size().or(b.size())), entries };
        Typed { node: Node::If(Box::new([when.node, a.node, b.node])), ty, extent, cost }
    }

    fn optional_select(&mut self, at: u32, of: &Expr, field: &Expr) -> Typed {
        let Kind::Literal(Const::Str(name)) = &field.kind else {
            return self.error(at, "unsupported optional field selection");
        };
        let of = self.check(of);
        let Some((decl, json)) = self.field(at, &of.ty, name) else { return Typed::broken() };
        let ty = if matches!(decl.ty, Type::Optional(_)) { decl.ty } else { Type::Optional(Arc::new(decl)) };
        let cost = of.cost.plus(Range::fixed(1));
        Typed::new(Node::OptionalSelect(Box::new((of.node, json))), ty, cost)
    }

    fn or_else(&mut self, at: u32, name: &str, args: Vec<Typed>) -> Typed {
        let types: Vec<Type> = args.iter().map(|a| self.known.resolve(&a.ty)).collect();
        let inner = match &types[0] {
            Type::Optional(of) => Some(of.ty.clone()),
            Type::Dyn | Type::Param(_) => Some(Type::Dyn),
            _ => None,
        };
        let unwraps = name == "orValue";
        let fits = |c: &mut Self, inner: &Type| {
            let expected = if unwraps { inner.clone() } else { Type::optional(unbounded(inner.clone())) };
            c.known.assignable(&expected, &types[1])
        };
        let Some(inner) = inner.filter(|i| fits(self, i)) else {
            return self.no_overload(at, name, &types.iter().collect::<Vec<_>>(), true);
        };
        let inner = self.known.resolve(&inner);
        let ty = if unwraps { inner } else { Type::optional(unbounded(inner)) };
        let cost = args[0].cost.plus(args[1].cost).plus(Range::fixed(1));
        let mut nodes = args.into_iter().map(|a| a.node);
        let (Some(a), Some(b)) = (nodes.next(), nodes.next()) else { return Typed::broken() };
        let pair = Box::new([a, b]);
        let node = if unwraps { Node::ValueOr(pair) } else { Node::OptionalOr(pair) };
        Typed::new(node, ty, cost)
    }
}

/// The type with its parameters renumbered from `first` on.
fn shift(t: &Type, first: u32) -> Type {
    let inner = |d: &Arc<Decl>| Arc::new(Decl::new(shift(&d.ty, first), d.max));
    match t {
        Type::Param(n) => Type::Param(first + n),
        Type::List(of) => Type::List(inner(of)),
        Type::Map(k, v) => Type::Map(inner(k), inner(v)),
        Type::Optional(of) => Type::Optional(inner(of)),
        t => t.clone(),
    }
}
