//! Evaluation. Every step is charged to the budget before it is done.

use crate::accumulator::Accumulator;
use crate::cost::{self, Budget, Range, TRAVERSAL, scale};
use crate::error::Error;
use crate::functions::{Price, Row, has, optional_select, regexes, select, sorted_by};
use crate::node::{Const, Loop, Node, Wrap};
use crate::value::{Key, Map, Text, Val};
use crate::work::{self, Meter};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A compiled expression.
pub struct Program {
    node: Node,
    /// The names of the variables it uses.
    names: Box<[Box<str>]>,
    /// Depth of its tree.
    depth: usize,
}

/// Provides the values of variables when they are used.
pub trait Vars<'a> {
    /// The value of a variable. Errors if it has none; expressions behind variables are charged to `budget`.
    fn get(&self, name: &str, budget: &mut Budget) -> Result<Val<'a>, Error>;
}

impl Program {
    pub(crate) fn new(node: Node, names: Box<[Box<str>]>, depth: usize) -> Self {
        Self { node, names, depth }
    }

    /// Whether the expression uses this variable.
    pub fn uses(&self, name: &str) -> bool {
        self.names.iter().any(|n| **n == *name)
    }

    /// Whether it selects this field of this variable, also optionally or in `has()`.
    pub fn selects(&self, variable: &str, field: &str) -> bool {
        self.node.any(&mut |n| match n {
            Node::Select(s) | Node::OptionalSelect(s) | Node::Has(s) => {
                let of = |i: u16| self.names.get(usize::from(i)).is_some_and(|n| **n == *variable);
                *s.1 == *field && matches!(s.0, Node::Var(i) if of(i))
            }
            _ => false,
        })
    }

    /// Evaluates the program. A variable may be an expression that is evaluated within this one; errors with [`Error::Fault`] if the
    /// expressions under way are nested too deep together.
    pub fn eval<'a>(&'a self, vars: &dyn Vars<'a>, budget: &mut Budget) -> Result<Val<'a>, Error> {
        if !budget.enter(self.depth) {
            return Err(Error::Fault("expressions and the variables that they use are nested too deep".into()));
        }
        let value = self.evaluated(vars, budget);
        budget.leave(self.depth);
        value
    }

    fn evaluated<'a>(&'a self, vars: &dyn Vars<'a>, budget: &mut Budget) -> Result<Val<'a>, Error> {
        let (outer, work) = (budget.begin(), budget.work());
        let meter = Meter::begin(work);
        regexes::begin(budget.id());
        let value = Machine { vars, names: &self.names, locals: Vec::new(), budget }.eval(&self.node);
        budget.end(outer);
        budget.set_work(work.saturating_sub(meter.done()));
        if work::is_over() { Err(Error::Cost) } else { value }
    }
}

struct Machine<'a, 'm> {
    vars: &'m dyn Vars<'a>,
    names: &'a [Box<str>],
    locals: Vec<Val<'a>>,
    budget: &'m mut Budget,
}

type Result<T, E> = std::result::Result<T, E>;

fn no_overload<T>() -> Result<T, Error> {
    Err(Error::NoOverload)
}

impl<'a> Machine<'a, '_> {
    fn eval(&mut self, node: &'a Node) -> Result<Val<'a>, Error> {
        match node {
            Node::Const(c) => Ok(constant(c)),
            Node::Local(slot) => {
                self.spend(1)?;
                self.locals.get(usize::from(*slot)).cloned().ok_or_else(|| Error::Fault("no such attribute".into()))
            }
            Node::Var(place) => {
                self.spend(1)?;
                let name = self.names.get(usize::from(*place)).map_or("", |n| n);
                self.vars.get(name, self.budget)
            }
            Node::TypeName(n) => Ok(Val::Type(Text::Ref(n))),
            Node::Select(s) => {
                let of = self.eval(&s.0)?;
                self.spend(1)?;
                Ok(select(&of, &s.1)?)
            }
            Node::OptionalSelect(s) => {
                let of = self.eval(&s.0)?;
                self.spend(1)?;
                Ok(optional_select(&of, &s.1)?)
            }
            Node::Has(s) => {
                let of = self.eval(&s.0)?;
                Ok(Val::Bool(has(&of, &s.1)?))
            }
            Node::Call(row, args) => self.call(row, args),
            Node::And(pair) => self.logic(pair, false),
            Node::Or(pair) => self.logic(pair, true),
            Node::If(parts) => match self.eval(&parts[0])? {
                Val::Bool(true) => self.eval(&parts[1]),
                Val::Bool(false) => self.eval(&parts[2]),
                _ => no_overload(),
            },
            Node::ValueOr(pair) => self.value_or(pair, Wrap::Value),
            Node::OptionalOr(pair) => self.value_or(pair, Wrap::Optional),
            Node::List(items) => self.list(items),
            Node::Map(entries) => self.map(entries),
            Node::Struct(fields) => self.object(fields),
            Node::Fail(why) => Err(Error::Fault(why.to_string())),
            Node::Loop(l) => self.run(l),
            Node::Bind(pair) => {
                self.spend(cost::LIST)?;
                let value = self.eval(&pair[0])?;
                self.with(value, &pair[1])
            }
            Node::SortBy(pair) => self.sort_by(pair),
            Node::OptionalMap(pair, wrap) => self.optional_map(pair, *wrap),
        }
    }

    /// Charges the cost of a step. Errors if it exceeds the budget, or the previous step exceeded the work limit.
    fn spend(&mut self, cost: u64) -> Result<(), Error> {
        if work::is_over() {
            return Err(Error::Cost);
        }
        Ok(self.budget.spend(cost)?)
    }

    /// Evaluates with one more variable.
    fn with(&mut self, value: Val<'a>, body: &'a Node) -> Result<Val<'a>, Error> {
        self.locals.push(value);
        let result = self.eval(body);
        self.locals.pop();
        result
    }

    #[inline(never)]
    fn call(&mut self, row: &'static Row, nodes: &'a [Node]) -> Result<Val<'a>, Error> {
        let mut args = Vec::with_capacity(nodes.len());
        for n in nodes {
            args.push(self.eval(n)?);
        }
        self.spend(price(row, &args))?;
        // A pattern literal was compiled by the type check.
        let own = matches!(nodes.get(1), Some(Node::Const(_)));
        let value = regexes::with_pattern(own, || (row.call)(&args));
        if work::is_over() { Err(Error::Cost) } else { Ok(value?) }
    }

    /// `&&` and `||`: one side may decide although the other one fails.
    #[inline(never)]
    fn logic(&mut self, pair: &'a [Node; 2], decides: bool) -> Result<Val<'a>, Error> {
        let first = match self.eval(&pair[0]) {
            Ok(Val::Bool(b)) if b == decides => return Ok(Val::Bool(b)),
            Err(Error::Cost) => return Err(Error::Cost),
            other => other,
        };
        match (first, self.eval(&pair[1])) {
            (_, Err(Error::Cost)) => Err(Error::Cost),
            (_, Ok(Val::Bool(b))) if b == decides => Ok(Val::Bool(b)),
            (Err(e), _) | (_, Err(e)) => Err(e),
            (Ok(Val::Bool(_)), Ok(Val::Bool(b))) => Ok(Val::Bool(b)),
            _ => no_overload(),
        }
    }

    #[inline(never)]
    fn value_or(&mut self, pair: &'a [Node; 2], wrap: Wrap) -> Result<Val<'a>, Error> {
        let first = self.eval(&pair[0])?;
        self.spend(1)?;
        match first {
            Val::Optional(Some(v)) if wrap == Wrap::Value => Ok((*v).clone()),
            v @ Val::Optional(Some(_)) => Ok(v),
            Val::Optional(None) => self.eval(&pair[1]),
            _ => no_overload(),
        }
    }

    #[inline(never)]
    fn list(&mut self, items: &'a [(Node, bool)]) -> Result<Val<'a>, Error> {
        self.spend(cost::LIST)?;
        let mut out = Vec::with_capacity(items.len());
        for (n, optional) in items {
            let v = self.eval(n)?;
            out.extend(if *optional { inside(v)? } else { Some(v) });
        }
        Ok(Val::list(out))
    }

    #[inline(never)]
    fn map(&mut self, entries: &'a [(Node, Node, bool)]) -> Result<Val<'a>, Error> {
        self.spend(cost::MAP)?;
        let mut out = BTreeMap::new();
        for (k, v, optional) in entries {
            let key = self.eval(k)?;
            let v = self.eval(v)?;
            let Some(v) = (if *optional { inside(v)? } else { Some(v) }) else { continue };
            let Some(key) = Key::new(&key) else { return Err(Error::Fault("unsupported key type".into())) };
            if out.insert(key, v).is_some() {
                return Err(Error::Fault("Failed with repeated key".into()));
            }
        }
        Ok(Val::Map(Map::Own(Rc::new(out))))
    }

    #[inline(never)]
    fn object(&mut self, fields: &'a [(Box<str>, Node, bool)]) -> Result<Val<'a>, Error> {
        self.spend(cost::STRUCT)?;
        let mut out = BTreeMap::new();
        for (name, n, optional) in fields {
            let v = self.eval(n)?;
            let Some(v) = (if *optional { inside(v)? } else { Some(v) }) else { continue };
            out.insert(Key::Str(Text::Ref(name)), v);
        }
        Ok(Val::Map(Map::Own(Rc::new(out))))
    }

    #[inline(never)]
    fn optional_map(&mut self, pair: &'a [Node; 2], wrap: Wrap) -> Result<Val<'a>, Error> {
        let of = self.eval(&pair[0])?;
        self.spend(1)?;
        match of {
            Val::Optional(None) => Ok(Val::Optional(None)),
            Val::Optional(Some(v)) => {
                self.spend(cost::LIST)?;
                let value = self.with((*v).clone(), &pair[1])?;
                Ok(if wrap == Wrap::Value { Val::some(value) } else { value })
            }
            _ => no_overload(),
        }
    }

    #[inline(never)]
    fn sort_by(&mut self, pair: &'a [Node; 2]) -> Result<Val<'a>, Error> {
        let Val::List(list) = self.eval(&pair[0])? else { return no_overload() };
        self.spend(12)?;
        let (mut items, mut keys) = (Vec::new(), Vec::new());
        for v in list.iter() {
            self.spend(13)?;
            keys.push(self.with(v.clone(), &pair[1])?);
            items.push(v);
        }
        Ok(sorted_by(items, &keys)?)
    }

    #[inline(never)]
    fn run(&mut self, l: &'a Loop) -> Result<Val<'a>, Error> {
        let range = self.eval(&l.range)?;
        self.spend(l.kind.prices().0)?;
        let depth = self.locals.len();
        let mut result = Accumulator::new(l.kind);
        let turns = self.turns(l, &range, &mut result);
        self.locals.truncate(depth);
        turns?;
        result.finish()
    }

    /// Evaluates the body for each item, until the result is known.
    fn turns(&mut self, l: &'a Loop, range: &Val<'a>, result: &mut Accumulator<'a>) -> Result<(), Error> {
        match range {
            Val::List(list) => {
                let mut turns = list.iter().enumerate();
                while let Some((i, v)) = turns.next() {
                    let position = || Val::Int(i64::try_from(i).unwrap_or(i64::MAX));
                    if !self.turn(l, l.two.then(position), v, result)? {
                        return self.stop(l, turns.next().is_some());
                    }
                }
            }
            Val::Map(map) => {
                let mut turns = map.iter();
                while let Some((k, v)) = turns.next() {
                    let (first, item) = if l.two { (Some(k), v) } else { (None, k) };
                    if !self.turn(l, first, item, result)? {
                        return self.stop(l, turns.next().is_some());
                    }
                }
            }
            _ => return no_overload(),
        }
        Ok(())
    }

    /// Charges the check that ends a loop early.
    fn stop(&mut self, l: &Loop, rest: bool) -> Result<(), Error> {
        self.spend(if rest { l.kind.stop() } else { 0 })
    }

    /// Evaluates the body for one item. False if the result is known.
    fn turn(
        &mut self,
        l: &'a Loop,
        first: Option<Val<'a>>,
        item: Val<'a>,
        result: &mut Accumulator<'a>,
    ) -> Result<bool, Error> {
        let (_, each, hit) = l.kind.prices();
        self.spend(each)?;
        let depth = self.locals.len();
        let key = first.clone();
        self.locals.extend(first);
        self.locals.push(item.clone());
        let value = self.body(l, hit);
        self.locals.truncate(depth);
        match value {
            Ok(Some(v)) => result.take(key, item, v),
            Ok(None) => Ok(true),
            Err(e) => result.fail(e),
        }
    }

    fn body(&mut self, l: &'a Loop, hit: u64) -> Result<Option<Val<'a>>, Error> {
        if let Some(w) = &l.when {
            match self.eval(w)? {
                Val::Bool(true) => {}
                // Every turn costs something.
                Val::Bool(false) => {
                    self.spend(1)?;
                    return Ok(None);
                }
                _ => return no_overload(),
            }
        }
        self.spend(hit)?;
        self.eval(&l.body).map(Some)
    }
}

/// The value behind `?`.
fn inside(v: Val<'_>) -> Result<Option<Val<'_>>, Error> {
    match v {
        Val::Optional(v) => Ok(v.map(|v| (*v).clone())),
        _ => no_overload(),
    }
}

fn constant(c: &Const) -> Val<'_> {
    match c {
        Const::Null => Val::Null,
        Const::Bool(b) => Val::Bool(*b),
        Const::Int(n) => Val::Int(*n),
        Const::Uint(n) => Val::Uint(*n),
        Const::Double(d) => Val::Double(*d),
        Const::Str(s) => Val::Str(Text::Ref(s)),
        Const::Bytes(b) => {
            work::count(b.len());
            Val::Bytes(b[..].into())
        }
    }
}

fn price(row: &Row, args: &[Val<'_>]) -> u64 {
    let sized = |v: &Val<'_>| matches!(v, Val::Str(_) | Val::Bytes(_));
    match (row.name, row.price) {
        (_, Price::Fixed(n)) => n,
        ("_+_" | "string" | "bytes", _) if !args.iter().any(sized) => match &args[0] {
            // Upstream chains lists, this copies them.
            Val::List(l) => 1 + l.len() as u64 / 16,
            _ => 1,
        },
        ("@in", _) if matches!(args[1], Val::Map(_)) => 1,
        ("join", _) => match &args[0] {
            Val::List(l) => {
                let items = l.iter().map(|v| v.size()).fold(0, u64::saturating_add);
                let between = args.get(1).map_or(0, Val::size);
                scale(items.saturating_add(between.saturating_mul((l.len() as u64).saturating_sub(1))), 2.0 * TRAVERSAL)
            }
            v => scale(v.size(), TRAVERSAL),
        },
        (_, Price::Elements) => match &args[0] {
            Val::List(l) => l
                .iter()
                .map(|v| if sized(&v) { 1 + scale(v.size(), TRAVERSAL) } else { 1 })
                .fold(0, u64::saturating_add),
            v => scale(v.size(), TRAVERSAL),
        },
        ("replace", p) => {
            // A string that grows costs the length of the result, too.
            let grown = args[2].size().saturating_mul(args[0].size().saturating_add(1) / args[1].size().max(1));
            let extra = if grown > 1 << 20 { scale(grown, TRAVERSAL) } else { 0 };
            p.range(&sizes(p, args)).max.saturating_add(extra)
        }
        ("format", p) => {
            let values = match &args[1] {
                Val::List(l) => l.iter().map(|v| v.size()).fold(0, u64::saturating_add),
                _ => 0,
            };
            p.range(&sizes(p, args)).max.saturating_add(scale(values, TRAVERSAL))
        }
        // The length of a long string is not counted beyond that of the shorter one.
        (_, Price::Least) => {
            let bound = args.iter().map(Val::most).min().unwrap_or(0);
            let least = args.iter().map(|v| v.size_up_to(bound)).min().unwrap_or(0);
            scale(least, TRAVERSAL)
        }
        (_, p) => p.range(&sizes(p, args)).max,
    }
}

/// The sizes of the arguments that the price depends on.
fn sizes(price: Price, args: &[Val<'_>]) -> Vec<Range> {
    args.iter().enumerate().map(|(i, v)| Range::fixed(if price.looks_at(i) { v.size() } else { 1 })).collect()
}
