//! The functions of Kubernetes' environment for v1.36 (`k8s.io/apiserver/pkg/cel/environment/base.go`): one table with their
//! signatures, what they cost, and what they do.
//!
//! A row's signatures read `arguments:result`, separated by `;`; one with a dot in front is called on its first argument.

mod authorizer;
mod format;
mod lists;
mod net;
mod operators;
mod quantity;
pub(crate) mod regexes;
mod semver;
mod sets;
mod standard;
mod strings;
mod times;
mod url;

use crate::cost::{REGEX, Range, TRAVERSAL};
use crate::libraries;
use crate::types::Type;
use crate::value::Val;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The error of a call. `||`, `&&` and `?:` may continue after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No overload takes arguments of these types.
    NoOverload,
    Text(String),
}

impl<T: Into<String>> From<T> for Fault {
    fn from(s: T) -> Self {
        Self::Text(s.into())
    }
}

pub type Result<'a> = std::result::Result<Val<'a>, Fault>;
pub type Call = for<'a> fn(&[Val<'a>]) -> Result<'a>;

/// The error of arguments that no overload takes.
pub fn no_overload<'a>() -> Result<'a> {
    Err(Fault::NoOverload)
}

/// The cost of a call by the sizes of its arguments.
#[derive(Clone, Copy, Debug)]
pub enum Price {
    Fixed(u64),
    /// Traversing the argument this many times.
    Walk(usize, f64),
    /// Every item of the argument.
    Items(usize),
    /// The smaller one of two arguments.
    Least,
    /// Both arguments together.
    Sum,
    /// Matching a string with a pattern.
    Regex,
    /// Matching a string with a built-in pattern of this length.
    Pattern(u64),
    /// Searching one string in the other.
    Within,
    /// Comparing every item of one list with every item of the other, this many times.
    Product(f64),
    /// Every item of a list, strings by their length.
    Elements,
    Selector,
}

impl Price {
    /// Whether the price depends on the size of an argument.
    pub fn looks_at(self, i: usize) -> bool {
        match self {
            Self::Fixed(_) => false,
            Self::Walk(of, _) | Self::Items(of) => i == of,
            Self::Elements => i == 0,
            Self::Pattern(_) | Self::Selector => i == 1,
            Self::Least | Self::Sum | Self::Regex | Self::Within | Self::Product(_) => i < 2,
        }
    }

    pub fn range(self, sizes: &[Range]) -> Range {
        let size = |i: usize| sizes.get(i).copied().unwrap_or(Range::fixed(1));
        let one = Range::fixed(1);
        match self {
            Self::Fixed(n) => Range::fixed(n),
            Self::Walk(i, times) => size(i).scaled(TRAVERSAL * times),
            Self::Items(i) => size(i),
            Self::Elements => size(0),
            Self::Least => {
                let max = size(0).max.min(size(1).max);
                let min = u64::from(max > 0);
                Range { min, max }.scaled(TRAVERSAL)
            }
            Self::Sum => size(0).plus(size(1)).scaled(TRAVERSAL),
            Self::Regex => size(0).plus(one).scaled(TRAVERSAL).times(size(1).scaled(REGEX)),
            Self::Pattern(n) => size(1).plus(one).scaled(TRAVERSAL).times(Range::fixed(n).scaled(REGEX)),
            Self::Within => size(0).scaled(TRAVERSAL).times(size(1).scaled(TRAVERSAL)),
            Self::Product(times) => size(0).times(size(1)).scaled(times).plus(one),
            Self::Selector => {
                let n = size(1);
                Range::fixed(10).plus(n.scaled(TRAVERSAL)).plus(n.scaled(0.5).times(Range::fixed(50)))
            }
        }
    }
}

pub struct Row {
    pub name: &'static str,
    signatures: &'static str,
    pub price: Price,
    pub call: Call,
}

const fn row(name: &'static str, signatures: &'static str, price: Price, call: Call) -> Row {
    Row { name, signatures, price, call }
}

pub struct Function {
    pub row: &'static Row,
    pub overloads: Vec<Overload>,
}

pub struct Overload {
    pub member: bool,
    pub params: Vec<Type>,
    pub result: Type,
    /// How many type parameters there are, counted from 0.
    pub generic: u32,
}

static ALL: LazyLock<HashMap<&'static str, Function>> = LazyLock::new(|| {
    let tables = [
        operators::ROWS,
        standard::ROWS,
        times::ROWS,
        strings::ROWS,
        lists::ROWS,
        sets::ROWS,
        regexes::ROWS,
        url::ROWS,
        net::ROWS,
        quantity::ROWS,
        semver::ROWS,
        format::ROWS,
        authorizer::ROWS,
    ];
    let mut all: HashMap<&'static str, Function> = HashMap::new();
    for row in tables.into_iter().flatten() {
        let overloads = row.signatures.split(';').map(overload);
        // Several rows may have one name, for several types: the call of the first row dispatches.
        all.entry(row.name).or_insert_with(|| Function { row, overloads: Vec::new() }).overloads.extend(overloads);
    }
    all
});

pub fn find(name: &str) -> Option<&'static Function> {
    ALL.get(name)
}

fn overload(text: &str) -> Overload {
    let text = text.trim();
    let (member, text) = match text.strip_prefix('.') {
        Some(t) => (true, t),
        None => (false, text),
    };
    let (params, result) = text.split_once(':').unwrap_or(("", text));
    let params: Vec<Type> = split(params).into_iter().map(parse).collect();
    let result = parse(result);
    let generic = params.iter().map(params_of).max().unwrap_or(0).max(params_of(&result));
    Overload { member, params, result, generic }
}

fn params_of(t: &Type) -> u32 {
    match t {
        Type::Param(n) => n + 1,
        Type::List(of) | Type::Optional(of) => params_of(&of.ty),
        Type::Map(k, v) => params_of(&k.ty).max(params_of(&v.ty)),
        _ => 0,
    }
}

/// Splits at commas outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut out) = (0, 0, Vec::new());
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                out.push(&text[from..i]);
                from = i + 1;
            }
            _ => {}
        }
    }
    if from < text.len() {
        out.push(&text[from..]);
    }
    out
}

fn parse(text: &str) -> Type {
    let inner =
        |name: &str| text.strip_prefix(name).and_then(|t| t.strip_prefix('(')).and_then(|t| t.strip_suffix(')'));
    if let Some(of) = inner("list") {
        return Type::list(parse(of));
    }
    if let Some(of) = inner("opt") {
        return Type::optional(parse(of));
    }
    if let Some(of) = inner("map") {
        let parts = split(of);
        if let [k, v] = parts[..] {
            return Type::map(parse(k), parse(v));
        }
    }
    match text {
        "A" => Type::Param(0),
        "B" => Type::Param(1),
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "bool" => Type::Bool,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "null" => Type::Null,
        "time" => Type::Timestamp,
        "dur" => Type::Duration,
        "type" => Type::Type,
        "url" => Type::Opaque("kubernetes.URL"),
        "ip" => Type::Opaque("net.IP"),
        "cidr" => Type::Opaque("net.CIDR"),
        "quantity" => Type::Opaque("kubernetes.Quantity"),
        "semver" => Type::Opaque("kubernetes.Semver"),
        "format" => Type::Opaque("kubernetes.NamedFormat"),
        "authorizer" => Type::Opaque(libraries::authorizer::AUTHORIZER),
        "path" => Type::Opaque(libraries::authorizer::PATH),
        "group" => Type::Opaque(libraries::authorizer::GROUP),
        "resource" => Type::Opaque(libraries::authorizer::RESOURCE),
        "decision" => Type::Opaque(libraries::authorizer::DECISION),
        _ => Type::Dyn,
    }
}

/// Whether this is a valid pattern of `matches`.
pub fn is_regex(pattern: &str) -> bool {
    regexes::check(pattern).is_ok()
}

pub(crate) use lists::sorted_by;
pub(crate) use operators::{has, optional_select, select};

/// Maximum bytes of a string that is parsed as a number, time or duration. As upstream, parsing has a fixed cost, so longer strings are
/// not parsed.
const READ: usize = 256;

/// A string to be parsed, if it is short; otherwise its beginning, for an error.
fn short(text: &str) -> std::result::Result<&str, &str> {
    if text.len() <= READ { Ok(text) } else { Err(&text[..text.floor_char_boundary(READ)]) }
}
