//! The type check (`cel-go/checker`). On its way through the syntax it makes the program and estimates its cost.

use crate::cost::{self, Range};
use crate::estimate::{self, Entries, Extent, Path};
use crate::eval::Program;
use crate::functions;
use crate::node::{Const, Node};
use crate::source::{self, Issue, Issues, Parsed};
use crate::types::{Decl, Known, Type, UNBOUNDED};
use cel_syntax::common::ast::{EntryExpr, Expr, IdedEntryExpr, IdedExpr, LiteralValue};
use std::sync::Arc;

/// The variables of an expression, and what it may use beyond the base environment.
#[derive(Clone, Debug, Default)]
pub struct Env {
    vars: Vec<(String, Decl)>,
    families: Vec<String>,
    bindings: bool,
    objects: bool,
}

/// An expression that was found well.
pub struct Compiled {
    pub program: Program,
    pub ty: Type,
    pub cost: Range,
}

impl Env {
    /// A variable. Its name may have dots in it (`variables.x`).
    #[must_use]
    pub fn with(mut self, name: &str, decl: impl Into<Decl>) -> Self {
        let mut decl = decl.into();
        if decl.ty.is_deep() {
            decl.ty = Type::Dyn;
        }
        self.vars.push((name.to_owned(), decl));
        self
    }

    /// A name that stands in front of others, also when there are none.
    #[must_use]
    pub fn with_family(mut self, name: &str) -> Self {
        self.families.push(name.to_owned());
        self
    }

    /// With `cel.bind`, as selectors of devices have it.
    #[must_use]
    pub fn with_bindings(mut self) -> Self {
        self.bindings = true;
        self
    }

    /// With `Object{…}` and `JSONPatch{…}`, as mutations have them.
    #[must_use]
    pub fn with_objects(mut self) -> Self {
        self.objects = true;
        self
    }

    pub fn has(&self, name: &str) -> bool {
        self.vars.iter().any(|(n, _)| n == name)
    }

    pub fn compile(&self, text: &str) -> Result<Compiled, Issues> {
        let made = source::on_large_stack(|| {
            let Parsed { expr, info, depth } = source::parse(text)?;
            let at = |id: u64| info.offset_for(id).map_or(0, |(start, _)| start as usize);
            let mut c = Checker {
                env: self,
                known: Known::default(),
                locals: Vec::new(),
                used: Vec::new(),
                issues: Vec::new(),
            };
            let t = c.check(&expr);
            let ty = c.known.settled(&t.ty);
            if c.issues.is_empty() {
                let names = c.used.into_iter().map(Box::from).collect();
                return Ok(Compiled { program: Program::new(t.node, names, depth), ty, cost: t.cost });
            }
            let issues = c.issues.into_iter().map(|(id, message)| {
                let (line, column) = position(text, at(id));
                Issue { line, column, message }
            });
            Err(Issues::new(text, issues.collect()))
        });
        made.unwrap_or_else(|why| Err(source::whole(text, why)))
    }
}

/// Line from 1 and column from 0 of the character with this number.
fn position(text: &str, at: usize) -> (usize, usize) {
    let (mut line, mut column) = (1, 0);
    for c in text.chars().take(at) {
        if c == '\n' {
            (line, column) = (line + 1, 0);
        } else {
            column += 1;
        }
    }
    (line, column)
}

/// A part of an expression, checked.
pub(crate) struct Typed {
    pub node: Node,
    pub ty: Type,
    pub extent: Extent,
    pub cost: Range,
}

impl Typed {
    /// What the expression makes, of which nothing more is known than its type.
    pub fn of(node: Node, ty: Type, cost: Range) -> Self {
        let extent = Extent::of_type(&ty);
        Self { node, ty, extent, cost }
    }

    /// What lies at a declared place.
    pub fn at(node: Node, path: Path, ty: Type, cost: Range) -> Self {
        let extent = Extent::at(path, &ty);
        Self { node, ty, extent, cost }
    }

    /// Anything, when nothing is known.
    pub fn size(&self) -> Range {
        self.extent.size.unwrap_or(Range::UNKNOWN)
    }

    /// After an error: whatever surrounds it, no error follows from this one.
    pub fn broken() -> Self {
        Self::of(Node::Const(Const::Null), Type::Dyn, Range::fixed(0))
    }
}

/// A variable of a macro.
pub(crate) struct Local {
    pub name: String,
    pub ty: Type,
    pub extent: Extent,
}

pub(crate) struct Checker<'e> {
    pub env: &'e Env,
    pub known: Known,
    /// Variables of macros, the innermost last.
    pub locals: Vec<Local>,
    /// The names of the environment that the expression uses.
    used: Vec<String>,
    issues: Vec<(u64, String)>,
}

impl Checker<'_> {
    pub fn error(&mut self, id: u64, message: impl Into<String>) -> Typed {
        self.issues.push((id, message.into()));
        Typed::broken()
    }

    pub fn allows_bindings(&self) -> bool {
        self.env.bindings
    }

    pub fn check(&mut self, e: &IdedExpr) -> Typed {
        match &e.expr {
            Expr::Literal(l) => literal(l),
            Expr::Ident(name) => self.ident(e.id, name),
            Expr::Select(s) => {
                if let Some(t) = self.qualified(e) {
                    return t;
                }
                if self.is_family(&s.operand) {
                    return self.error(e.id, format!("undefined field '{}'", s.field));
                }
                let of = self.check(&s.operand);
                self.select(e.id, of, &s.field)
            }
            Expr::Call(c) => self.call(e.id, c),
            Expr::List(l) => self.list(&l.elements, &l.optional_indices),
            Expr::Map(m) => self.map(&m.entries),
            Expr::Struct(s) => self.object(e.id, &s.type_name, &s.entries),
            _ => self.error(e.id, "unsupported expression"),
        }
    }

    fn ident(&mut self, id: u64, name: &str) -> Typed {
        let name = name.trim_start_matches('.');
        if let Some(t) = self.variable(name) {
            return t;
        }
        match type_name(name) {
            Some(n) => Typed::at(Node::TypeName(n), self.root_path(), Type::Type, Range::fixed(1)),
            None => self.error(id, format!("undeclared reference to '{name}' (in container '')")),
        }
    }

    /// A variable of a macro or of the environment.
    fn variable(&mut self, name: &str) -> Option<Typed> {
        let one = Range::fixed(1);
        if let Some((i, l)) = self.locals.iter().enumerate().rfind(|(_, l)| l.name == name) {
            let node = Node::Local(u16::try_from(i).unwrap_or(u16::MAX));
            let extent = l.extent.variable(&self.known.resolve(&l.ty));
            return Some(Typed { node, ty: l.ty.clone(), extent, cost: one });
        }
        let decl = self.env.vars.iter().rfind(|(n, _)| n == name).map(|(_, d)| d.clone())?;
        let place = self.used.iter().position(|n| n == name).unwrap_or_else(|| {
            self.used.push(name.to_owned());
            self.used.len() - 1
        });
        let node = Node::Var(u16::try_from(place).unwrap_or(u16::MAX));
        // Upstream's estimator knows one root, and every variable is it.
        let bounded = self.root().is_some_and(|r| r.max != UNBOUNDED);
        let path = if bounded { self.root_path() } else { Path::At(Some(decl.clone())) };
        Some(Typed::at(node, path, decl.ty, one))
    }

    /// What the first variable is: sizes are known of it.
    pub fn root(&self) -> Option<&Decl> {
        self.env.vars.first().map(|(_, d)| d)
    }

    fn root_path(&self) -> Path {
        Path::At(self.root().cloned())
    }

    /// A name with dots that stands for one thing.
    fn qualified(&mut self, e: &IdedExpr) -> Option<Typed> {
        let name = dotted(e)?;
        let first = name.split('.').next()?;
        if self.locals.iter().any(|l| l.name == first) {
            return None;
        }
        if let Some(mut t) = self.variable(&name) {
            t.cost = Range::fixed(2);
            return Some(t);
        }
        type_name(&name).map(|n| Typed::at(Node::TypeName(n), self.root_path(), Type::Type, Range::fixed(1)))
    }

    pub fn is_declared(&self, name: &str) -> bool {
        self.locals.iter().any(|l| l.name == name) || self.env.has(name)
    }

    /// A name that only stands in front of others (`variables`).
    fn is_family(&self, e: &IdedExpr) -> bool {
        let Expr::Ident(name) = &e.expr else { return false };
        if self.env.families.iter().any(|f| f == name) {
            return !self.is_declared(name);
        }
        let member = |(v, _): &(String, Decl)| v.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('.'));
        !self.is_declared(name) && self.env.vars.iter().any(member)
    }

    fn select(&mut self, id: u64, of: Typed, field: &str) -> Typed {
        let Some((decl, json)) = self.field(id, &of.ty, field) else { return Typed::broken() };
        let priced = matches!(self.known.resolve(&of.ty), Type::Map(..) | Type::Object(_) | Type::Param(_));
        let cost = of.cost.plus(Range::fixed(u64::from(priced)));
        let path = of.extent.path.field(self.root(), field);
        Typed::at(Node::Select(Box::new((of.node, json))), path, decl.ty, cost)
    }

    /// The type of a field, and its name in JSON.
    pub fn field(&mut self, id: u64, of: &Type, field: &str) -> Option<(Decl, Box<str>)> {
        let fine = |d: Decl| Some((d, Box::from(field)));
        match self.known.resolve(of) {
            Type::Object(o) => match o.fields.get(field) {
                Some(f) => Some((f.decl.clone(), f.json.as_str().into())),
                None if o.open => fine(Type::Dyn.into()),
                None => {
                    self.error(id, format!("undefined field '{field}'"));
                    None
                }
            },
            Type::Map(_, v) => fine((*v).clone()),
            Type::Dyn | Type::Param(_) => fine(Type::Dyn.into()),
            Type::Optional(inner) => {
                let (decl, json) = self.field(id, &inner.ty, field)?;
                let max = decl.max;
                let ty = if matches!(decl.ty, Type::Optional(_)) { decl.ty } else { Type::Optional(Arc::new(decl)) };
                Some((Decl::new(ty, max), json))
            }
            t => {
                self.error(id, format!("type '{t}' does not support field selection"));
                None
            }
        }
    }

    /// Items of a list or values of a map have one type.
    fn join(&mut self, id: u64, known: &mut Option<Type>, t: &Type) {
        match known {
            None => *known = Some(t.clone()),
            Some(k) => {
                if !self.known.assignable(k, t) {
                    let (k, t) = (self.known.resolve(k), self.known.resolve(t));
                    self.error(id, format!("expected type '{k}' but found '{t}'"));
                } else if t.is_dyn() {
                    *known = Some(Type::Dyn);
                }
            }
        }
    }

    /// What is behind `?` is an optional, and its value counts.
    fn inside(&mut self, id: u64, t: &Typed) -> Type {
        match self.known.resolve(&t.ty) {
            Type::Optional(of) => of.ty.clone(),
            Type::Dyn => Type::Dyn,
            other => {
                self.error(id, format!("expected type 'optional_type({other})' but found '{other}'"));
                Type::Dyn
            }
        }
    }

    fn list(&mut self, elements: &[IdedExpr], optional: &[usize]) -> Typed {
        let mut ty = None;
        let (mut cost, mut sizes, mut nodes) = (Range::fixed(cost::LIST), Vec::new(), Vec::new());
        for (i, e) in elements.iter().enumerate() {
            let t = self.check(e);
            let is_optional = optional.contains(&i);
            let item = if is_optional { self.inside(e.id, &t) } else { t.ty.clone() };
            self.join(e.id, &mut ty, &item);
            cost = cost.plus(t.cost);
            sizes.push(t.size());
            nodes.push((t.node, is_optional));
        }
        let ty = ty.unwrap_or_else(|| self.known.fresh());
        let entries = Entries { keys: Range::fixed(1), values: estimate::of_all(sizes.into_iter()) };
        let extent = Extent { entries: Some(entries), ..Extent::fixed(nodes.len() as u64) };
        Typed { node: Node::List(nodes.into()), ty: Type::list(unbounded(ty)), extent, cost }
    }

    fn map(&mut self, entries: &[IdedEntryExpr]) -> Typed {
        let (mut key, mut value) = (None, None);
        let (mut cost, mut sizes, mut nodes) = (Range::fixed(cost::MAP), Vec::new(), Vec::new());
        for e in entries {
            let EntryExpr::MapEntry(m) = &e.expr else { continue };
            let (k, v) = (self.check(&m.key), self.check(&m.value));
            self.join(m.key.id, &mut key, &k.ty);
            let inner = if m.optional { self.inside(m.value.id, &v) } else { v.ty.clone() };
            self.join(m.value.id, &mut value, &inner);
            cost = cost.plus(k.cost).plus(v.cost);
            sizes.push((k.size(), v.size()));
            nodes.push((k.node, v.node, m.optional));
        }
        let key = key.unwrap_or_else(|| self.known.fresh());
        let value = value.unwrap_or_else(|| self.known.fresh());
        let (keys, values) = (sizes.iter().map(|s| s.0), sizes.iter().map(|s| s.1));
        let entries = Entries { keys: estimate::of_all(keys), values: estimate::of_all(values) };
        let extent = Extent { entries: Some(entries), ..Extent::fixed(nodes.len() as u64) };
        let ty = Type::map(unbounded(key), unbounded(value));
        Typed { node: Node::Map(nodes.into()), ty, extent, cost }
    }

    /// `Object{…}`, its parts (`Object.spec{…}`), and `JSONPatch{…}`: only the place of a part is checked, not its fields.
    fn object(&mut self, id: u64, name: &str, entries: &[IdedEntryExpr]) -> Typed {
        let name = name.trim_start_matches('.');
        let patch = name == "JSONPatch";
        if !self.env.objects || !(patch || name == "Object" || name.starts_with("Object.")) {
            return self.error(id, format!("undeclared reference to '{name}' (in container '')"));
        }
        let mut cost = Range::fixed(cost::STRUCT);
        let mut fields = Vec::new();
        for e in entries {
            let EntryExpr::StructField(f) = &e.expr else { continue };
            let t = self.check(&f.value);
            cost = cost.plus(t.cost);
            let found = if f.optional { self.inside(f.value.id, &t) } else { self.known.resolve(&t.ty) };
            if let Some(wanted) = wrong_place(name, &f.field, &found) {
                self.error(
                    e.id,
                    format!("expected type of field '{}' is '{wanted}' but provided type is '{found}'", f.field),
                );
            }
            if patch && !matches!(&*f.field, "op" | "path" | "from" | "value") {
                self.error(e.id, format!("undefined field '{}'", f.field));
            }
            fields.push((Box::from(&*f.field), t.node, f.optional));
        }
        let ty = Type::Object(Arc::new(crate::Object { name: name.to_owned(), open: true, ..Default::default() }));
        Typed::of(Node::Struct(fields.into()), ty, cost)
    }

    /// Types as errors list them.
    pub fn resolve_text(&self, types: &[&Type]) -> String {
        types.iter().map(|t| self.known.resolve(t).to_string()).collect::<Vec<_>>().join(", ")
    }
}

/// The type a part of `Object` must have under its name, if it has another.
fn wrong_place(of: &str, field: &str, found: &Type) -> Option<String> {
    let wanted = format!("{of}.{field}");
    match found {
        Type::Object(o) if of != "JSONPatch" && o.name.starts_with("Object") && o.name != wanted => Some(wanted),
        Type::List(items) => match &items.ty {
            Type::Object(o) if o.name.starts_with("Object") && o.name != wanted => Some(wanted),
            _ => None,
        },
        _ => None,
    }
}

/// `a.b.c`, where it is nothing else.
pub(crate) fn dotted(e: &IdedExpr) -> Option<String> {
    match &e.expr {
        Expr::Ident(n) => Some(n.trim_start_matches('.').to_owned()),
        Expr::Select(s) if !s.test => Some(format!("{}.{}", dotted(&s.operand)?, s.field)),
        _ => None,
    }
}

fn type_name(name: &str) -> Option<&'static str> {
    const NAMES: [&str; 18] = [
        "bool",
        "int",
        "uint",
        "double",
        "string",
        "bytes",
        "list",
        "map",
        "null_type",
        "type",
        "google.protobuf.Timestamp",
        "google.protobuf.Duration",
        "kubernetes.URL",
        "kubernetes.Quantity",
        "kubernetes.Semver",
        "net.IP",
        "net.CIDR",
        "optional_type",
    ];
    NAMES.into_iter().find(|n| *n == name)
}

fn literal(l: &LiteralValue) -> Typed {
    let (value, ty, size) = match l {
        LiteralValue::Boolean(b) => (Const::Bool(**b), Type::Bool, 1),
        LiteralValue::Int(n) => (Const::Int(**n), Type::Int, 1),
        LiteralValue::UInt(n) => (Const::Uint(**n), Type::Uint, 1),
        LiteralValue::Double(d) => (Const::Double(**d), Type::Double, 1),
        LiteralValue::Null => (Const::Null, Type::Null, 1),
        LiteralValue::String(s) => (Const::Str(s.inner().into()), Type::String, s.inner().chars().count() as u64),
        LiteralValue::Bytes(b) => (Const::Bytes(b.inner().into()), Type::Bytes, b.inner().len() as u64),
    };
    Typed { node: Node::Const(value), ty, extent: Extent::fixed(size), cost: Range::fixed(0) }
}

/// A type whose values may be of any size.
pub(crate) fn unbounded(ty: Type) -> Decl {
    Decl::new(ty, UNBOUNDED)
}

/// The function of this name in a namespace, if what stands in front of the call is one.
pub(crate) fn in_namespace(target: &IdedExpr, name: &str) -> Option<&'static functions::Function> {
    functions::find(&format!("{}.{name}", dotted(target)?))
}
