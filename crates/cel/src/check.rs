//! The type check (`cel-go/checker`). In one pass over the tree it also builds the program and estimates its cost.

use crate::cost::{self, Range};
use crate::eval::Program;
use crate::functions;
use crate::node::{Const, Node};
use crate::source::{Found, Issues, on_large_stack};
use crate::syntax::{self, Entry, Expr, Field, Kind};
use crate::typed::{Entries, Extent, Path, Typed, of_all};
use crate::types::{Decl, Known, Type, UNBOUNDED};
use std::sync::Arc;

/// The environment of an expression: its variables, and the extensions that it may use.
#[derive(Clone, Debug, Default)]
pub struct Env {
    vars: Vec<(String, Decl)>,
    families: Vec<String>,
    bindings: bool,
    objects: bool,
}

/// A valid expression: its program, the type of its result and its estimated cost.
pub struct Compiled {
    /// The program.
    pub program: Program,
    /// The type of its result.
    pub ty: Type,
    /// The estimated cost of an evaluation.
    pub cost: Range,
}

impl Env {
    /// Declares a variable. Its name may have dots (`variables.x`).
    #[must_use]
    pub fn with(mut self, name: &str, decl: impl Into<Decl>) -> Self {
        let mut decl = decl.into();
        if decl.ty.is_deep() {
            decl.ty = Type::Dyn;
        }
        self.vars.push((name.to_owned(), decl));
        self
    }

    /// Declares a prefix of variables (`variables`), even if no variable has it.
    #[must_use]
    pub fn with_family(mut self, name: &str) -> Self {
        self.families.push(name.to_owned());
        self
    }

    /// Allows `cel.bind`, as in the selectors of devices.
    #[must_use]
    pub fn with_bindings(mut self) -> Self {
        self.bindings = true;
        self
    }

    /// Allows `Object{…}` and `JSONPatch{…}`, as in mutations.
    #[must_use]
    pub fn with_objects(mut self) -> Self {
        self.objects = true;
        self
    }

    /// Whether a variable of this name is declared.
    pub fn has(&self, name: &str) -> bool {
        self.vars.iter().any(|(n, _)| n == name)
    }

    /// Parses and checks an expression, and estimates its cost. Errors with everything that is wrong with it.
    pub fn compile(&self, text: &str) -> Result<Compiled, Issues> {
        let expr = syntax::parse(text).map_err(|found| Issues::new(text, found))?;
        let compiled = match expr.depth {
            0..=SMALL => self.compile_parsed(&expr),
            _ => on_large_stack(|| self.compile_parsed(&expr)).unwrap_or_else(|why| Err(vec![(None, why)])),
        };
        compiled.map_err(|found| Issues::new(text, found))
    }

    fn compile_parsed(&self, expr: &Expr) -> Result<Compiled, Vec<Found>> {
        let mut c =
            Checker { env: self, known: Known::default(), locals: Vec::new(), used: Vec::new(), issues: Vec::new() };
        let t = c.check(expr);
        if !c.issues.is_empty() {
            return Err(c.issues);
        }
        let ty = c.known.settled(&t.ty);
        let names = c.used.into_iter().map(Box::from).collect();
        Ok(Compiled { program: Program::new(t.node, names, expr.depth.into()), ty, cost: t.cost })
    }
}

/// Maximum depth of an expression that is checked on the caller's stack.
const SMALL: u16 = 16;

/// A variable of a macro.
pub(crate) struct Local {
    pub name: String,
    pub ty: Type,
    pub extent: Extent,
}

pub(crate) struct Checker<'e> {
    pub env: &'e Env,
    pub known: Known,
    /// Variables of the macros around the current expression, the innermost last.
    pub locals: Vec<Local>,
    /// The variables of the environment that the expression uses.
    used: Vec<String>,
    issues: Vec<Found>,
}

impl Checker<'_> {
    /// Reports an error at a position.
    pub fn error(&mut self, at: u32, message: impl Into<String>) -> Typed {
        self.issues.push((Some(at), message.into()));
        Typed::broken()
    }

    pub fn allows_bindings(&self) -> bool {
        self.env.bindings
    }

    pub fn check(&mut self, e: &Expr) -> Typed {
        match &e.kind {
            Kind::Literal(value) => literal(value),
            Kind::Ident(name) => self.ident(e.at, name),
            Kind::Select(operand, field) => {
                if let Some(t) = self.qualified(e) {
                    return t;
                }
                if self.is_family(operand) {
                    return self.error(e.at, format!("undefined field '{field}'"));
                }
                let of = self.check(operand);
                self.select(e.at, of, field)
            }
            Kind::Call(c) => self.call(e.at, c),
            Kind::List(items) => self.list(items),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct(name, fields) => self.object(e.at, name, fields),
        }
    }

    fn ident(&mut self, at: u32, name: &str) -> Typed {
        let name = name.trim_start_matches('.');
        if let Some(t) = self.variable(name) {
            return t;
        }
        if let Some(t) = self.family(name) {
            return t;
        }
        match type_name(name) {
            Some(n) => Typed::at(Node::TypeName(n), self.root_path(), Type::Type, Range::fixed(1)),
            None => self.error(at, format!("undeclared reference to '{name}' (in container '')")),
        }
    }

    /// All variables with a prefix (`variables`), as one value.
    fn family(&mut self, name: &str) -> Option<Typed> {
        self.env.families.iter().find(|f| *f == name)?;
        let env = self.env;
        let members = env.vars.iter().filter_map(|(v, _)| Some((v, v.strip_prefix(name)?.strip_prefix('.')?)));
        let mut entries = Vec::new();
        for (variable, member) in members {
            let key = Node::Const(Const::Str(member.into()));
            entries.extend(self.variable(variable).map(|t| (key, t.node, false)));
        }
        let ty = crate::Object { name: format!("kubernetes.{name}"), ..Default::default() };
        Some(Typed::new(Node::Map(entries.into()), Type::Object(Arc::new(ty)), Range::fixed(1)))
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
        // Upstream's estimator has one root, which stands for every variable.
        let bounded = self.root().is_some_and(|r| r.max != UNBOUNDED);
        let path = if bounded { self.root_path() } else { Path::At(Some(decl.clone())) };
        Some(Typed::at(node, path, decl.ty, one))
    }

    /// The declaration of the first variable, whose sizes are known.
    pub fn root(&self) -> Option<&Decl> {
        self.env.vars.first().map(|(_, d)| d)
    }

    fn root_path(&self) -> Path {
        Path::At(self.root().cloned())
    }

    /// A dotted name that is one variable or type.
    fn qualified(&mut self, e: &Expr) -> Option<Typed> {
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

    /// Whether this is only the prefix of variables (`variables`).
    fn is_family(&self, e: &Expr) -> bool {
        let Kind::Ident(name) = &e.kind else { return false };
        if self.env.families.iter().any(|f| f == name) {
            return !self.is_declared(name);
        }
        let member = |(v, _): &(String, Decl)| v.strip_prefix(&**name).is_some_and(|rest| rest.starts_with('.'));
        !self.is_declared(name) && self.env.vars.iter().any(member)
    }

    fn select(&mut self, at: u32, of: Typed, field: &str) -> Typed {
        let Some((decl, json)) = self.field(at, &of.ty, field) else { return Typed::broken() };
        let priced = matches!(self.known.resolve(&of.ty), Type::Map(..) | Type::Object(_) | Type::Param(_));
        let cost = of.cost.plus(Range::fixed(u64::from(priced)));
        let path = of.extent.path.field(self.root(), field);
        Typed::at(Node::Select(Box::new((of.node, json))), path, decl.ty, cost)
    }

    /// The type of a field, and its name in JSON.
    pub fn field(&mut self, at: u32, of: &Type, field: &str) -> Option<(Decl, Box<str>)> {
        let fine = |d: Decl| Some((d, Box::from(field)));
        match self.known.resolve(of) {
            Type::Object(o) => match o.field(field) {
                Some(f) => Some((f.decl.clone(), f.json.as_str().into())),
                None if o.open => fine(Type::Dyn.into()),
                None => {
                    self.error(at, format!("undefined field '{field}'"));
                    None
                }
            },
            Type::Map(_, v) => fine((*v).clone()),
            Type::Dyn | Type::Param(_) => fine(Type::Dyn.into()),
            Type::Optional(inner) => {
                let (decl, json) = self.field(at, &inner.ty, field)?;
                let max = decl.max;
                let ty = if matches!(decl.ty, Type::Optional(_)) { decl.ty } else { Type::Optional(Arc::new(decl)) };
                Some((Decl::new(ty, max), json))
            }
            t => {
                self.error(at, format!("type '{t}' does not support field selection"));
                None
            }
        }
    }

    /// Reports an item of a list or map that has another type than those before it.
    fn join(&mut self, at: u32, known: &mut Option<Type>, t: &Type) {
        match known {
            None => *known = Some(t.clone()),
            Some(k) => {
                if !self.known.assignable(k, t) {
                    let (k, t) = (self.known.resolve(k), self.known.resolve(t));
                    self.error(at, format!("expected type '{k}' but found '{t}'"));
                } else if t.is_dyn() {
                    *known = Some(Type::Dyn);
                }
            }
        }
    }

    /// The type inside an optional after `?`.
    fn inside(&mut self, at: u32, t: &Typed) -> Type {
        match self.known.resolve(&t.ty) {
            Type::Optional(of) => of.ty.clone(),
            Type::Dyn => Type::Dyn,
            other => {
                self.error(at, format!("expected type 'optional_type({other})' but found '{other}'"));
                Type::Dyn
            }
        }
    }

    fn list(&mut self, items: &[(Expr, bool)]) -> Typed {
        let mut ty = None;
        let (mut cost, mut sizes, mut nodes) = (Range::fixed(cost::LIST), Vec::new(), Vec::new());
        for (e, optional) in items {
            let t = self.check(e);
            let item = if *optional { self.inside(e.at, &t) } else { t.ty.clone() };
            self.join(e.at, &mut ty, &item);
            cost = cost.plus(t.cost);
            sizes.push(t.size());
            nodes.push((t.node, *optional));
        }
        let ty = ty.unwrap_or_else(|| self.known.fresh());
        let entries = Entries { keys: Range::fixed(1), values: of_all(sizes.into_iter()) };
        let extent = Extent { entries: Some(entries), ..Extent::fixed(nodes.len() as u64) };
        Typed { node: Node::List(nodes.into()), ty: Type::list(unbounded(ty)), extent, cost }
    }

    fn map(&mut self, entries: &[Entry]) -> Typed {
        let (mut key, mut value) = (None, None);
        let (mut cost, mut sizes, mut nodes) = (Range::fixed(cost::MAP), Vec::new(), Vec::new());
        for m in entries {
            let (k, v) = (self.check(&m.key), self.check(&m.value));
            self.join(m.key.at, &mut key, &k.ty);
            let inner = if m.optional { self.inside(m.value.at, &v) } else { v.ty.clone() };
            self.join(m.value.at, &mut value, &inner);
            cost = cost.plus(k.cost).plus(v.cost);
            sizes.push((k.size(), v.size()));
            nodes.push((k.node, v.node, m.optional));
        }
        let key = key.unwrap_or_else(|| self.known.fresh());
        let value = value.unwrap_or_else(|| self.known.fresh());
        let (keys, values) = (sizes.iter().map(|s| s.0), sizes.iter().map(|s| s.1));
        let entries = Entries { keys: of_all(keys), values: of_all(values) };
        let extent = Extent { entries: Some(entries), ..Extent::fixed(nodes.len() as u64) };
        let ty = Type::map(unbounded(key), unbounded(value));
        Typed { node: Node::Map(nodes.into()), ty, extent, cost }
    }

    /// `Object{…}`, its parts (`Object.spec{…}`), and `JSONPatch{…}`. Checks the path of a part, not its fields.
    fn object(&mut self, at: u32, name: &str, entries: &[Field]) -> Typed {
        let name = name.trim_start_matches('.');
        if let Some((ty, zero)) = wrapped(name) {
            return self.wrapper(entries, ty, zero);
        }
        let patch = name == "JSONPatch";
        if !self.env.objects || !(patch || name == "Object" || name.starts_with("Object.")) {
            return self.error(at, format!("undeclared reference to '{name}' (in container '')"));
        }
        let mut cost = Range::fixed(cost::STRUCT);
        let mut fields = Vec::new();
        for f in entries {
            let t = self.check(&f.value);
            cost = cost.plus(t.cost);
            let found = if f.optional { self.inside(f.value.at, &t) } else { self.known.resolve(&t.ty) };
            let node = match misplaced(name, f.name, &found) {
                // Upstream compares the names with the path when it reads the result.
                Some((have, expected)) => Node::Fail(
                    format!(
                        "unexpected type name {have:?}, expected {expected:?}, which matches field name path from root Object type"
                    )
                    .into(),
                ),
                None => t.node,
            };
            if patch && !matches!(f.name, "op" | "path" | "from" | "value") {
                self.error(f.at, format!("undefined field '{}'", f.name));
            }
            fields.push((Box::from(f.name), node, f.optional));
        }
        let ty = Type::Object(Arc::new(crate::Object { name: name.to_owned(), open: true, ..Default::default() }));
        Typed::new(Node::Struct(fields.into()), ty, cost)
    }

    /// A message that holds one value (`google.protobuf.Int32Value{value: 1}`), which stands for that value.
    fn wrapper(&mut self, entries: &[Field], ty: Type, zero: Const) -> Typed {
        let mut cost = Range::fixed(cost::STRUCT);
        let mut node = Node::Const(zero);
        for f in entries {
            let t = self.check(&f.value);
            cost = cost.plus(t.cost);
            if f.name != "value" {
                self.error(f.at, format!("undefined field '{}'", f.name));
            } else if !self.known.assignable(&ty, &t.ty) {
                let found = self.known.settled(&t.ty);
                self.error(f.at, format!("expected type of field 'value' is '{ty}' but provided type is '{found}'"));
            }
            node = t.node;
        }
        Typed::new(node, ty, cost)
    }

    /// The types as error messages list them.
    pub fn resolve_text(&self, types: &[&Type]) -> String {
        types.iter().map(|t| self.known.settled(t).to_string()).collect::<Vec<_>>().join(", ")
    }
}

/// The name of another part of `Object` at the place of a field, and the name that belongs there.
fn misplaced(of: &str, field: &str, found: &Type) -> Option<(String, String)> {
    let expected = format!("{of}.{field}");
    let part = match found {
        Type::Object(o) if of != "JSONPatch" => o,
        Type::List(items) => match &items.ty {
            Type::Object(o) => o,
            _ => return None,
        },
        _ => return None,
    };
    (part.name.starts_with("Object") && part.name != expected).then(|| (part.name.clone(), expected))
}

/// The type of a message that holds one value, and the value of an empty one.
fn wrapped(name: &str) -> Option<(Type, Const)> {
    Some(match name.strip_prefix("google.protobuf.")? {
        "BoolValue" => (Type::Bool, Const::Bool(false)),
        "BytesValue" => (Type::Bytes, Const::Bytes(Box::default())),
        "DoubleValue" | "FloatValue" => (Type::Double, Const::Double(0.0)),
        "Int32Value" | "Int64Value" => (Type::Int, Const::Int(0)),
        "UInt32Value" | "UInt64Value" => (Type::Uint, Const::Uint(0)),
        "StringValue" => (Type::String, Const::Str("".into())),
        _ => return None,
    })
}

/// The dotted name `a.b.c`, if the expression consists of selections alone.
pub(crate) fn dotted(e: &Expr) -> Option<String> {
    match &e.kind {
        Kind::Ident(n) => Some(n.trim_start_matches('.').to_owned()),
        Kind::Select(operand, field) => Some(format!("{}.{field}", dotted(operand)?)),
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

fn literal(value: &Const) -> Typed {
    let (ty, size) = match value {
        Const::Null => (Type::Null, 1),
        Const::Bool(_) => (Type::Bool, 1),
        Const::Int(_) => (Type::Int, 1),
        Const::Uint(_) => (Type::Uint, 1),
        Const::Double(_) => (Type::Double, 1),
        Const::Str(s) => (Type::String, s.chars().count() as u64),
        Const::Bytes(b) => (Type::Bytes, b.len() as u64),
    };
    Typed { node: Node::Const(value.clone()), ty, extent: Extent::fixed(size), cost: Range::fixed(0) }
}

/// A declaration without a bound on the size of its values.
pub(crate) fn unbounded(ty: Type) -> Decl {
    Decl::new(ty, UNBOUNDED)
}

/// The function `target.name`, if `target` is a namespace.
pub(crate) fn in_namespace(target: &Expr, name: &str) -> Option<&'static functions::Function> {
    functions::find(&format!("{}.{name}", dotted(target)?))
}
