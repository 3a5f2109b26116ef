//! Regular expressions. RE2 and the `regex` crate both take linear time. The time per character and the time to compile depend on the pattern;
//! both count as work.
//!
//! A pattern literal was compiled by the type check, and is free. Any other one counts as compiled when it is first used with a budget, even
//! if this thread has it cached, so that the same evaluation always does the same work.

use super::{Fault, Price, Result, Row, no_overload, row};
use crate::value::Val;
use crate::work;
use regex::Regex;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

pub(super) const ROWS: &[Row] = &[
    row("matches", "string,string:bool;.string,string:bool", Price::Regex, |a| {
        with(a, |r, s| Ok(Val::Bool(r.is_match(s))))
    }),
    row("find", ".string,string:string", Price::Regex, |a| {
        with(a, |r, s| Ok(Val::string(r.find(s).map_or("", |m| m.as_str()))))
    }),
    row("findAll", ".string,string:list(string);.string,string,int:list(string)", Price::Regex, find_all),
];

/// Maximum bytes of a compiled pattern, and of its tables while it runs.
const LARGEST: usize = 1 << 20;
const LARGEST_TABLE: usize = 512 << 10;
/// Compiled pattern literals that a thread caches; patterns of the data that one budget keeps, and the work to compile these.
const KEPT: usize = 256;
const KEPT_WORK: usize = 20_000_000;
/// Patterns of the data of other budgets that a thread caches.
const KEPT_FOR_OTHERS: usize = 64;
/// Work of parsing a byte of a pattern, of compiling a part of it, and of a pattern that is too large; and the maximum of parts.
const PARSE: usize = 100;
const PART: usize = 30;
const ONCE: usize = 10_000;
const MOST_PARTS: usize = 150_000;

fn with<'a>(args: &[Val<'a>], f: impl Fn(&Regex, &str) -> Result<'a>) -> Result<'a> {
    let (Some(s), Some(pattern)) = (args[0].as_str(), args[1].as_str()) else { return no_overload() };
    let compiled = compiled(pattern);
    if work::is_over() {
        return Err("operation cancelled".into());
    }
    // Most patterns read each byte once, but a hostile pattern of the data does not.
    let each = if FREE.get() { 1 + compiled.each / 8 } else { compiled.each };
    work::count(s.len().saturating_mul(each));
    if work::is_over() {
        return Err("operation cancelled".into());
    }
    match &compiled.regex {
        Some(r) => f(r, s),
        None => Err(invalid(pattern)),
    }
}

fn find_all<'a>(args: &[Val<'a>]) -> Result<'a> {
    let n = match args.get(2) {
        None => usize::MAX,
        Some(Val::Int(n)) => usize::try_from(*n).unwrap_or(usize::MAX),
        Some(_) => return no_overload(),
    };
    with(args, |r, s| {
        let found = r.find_iter(s).take(n).take_while(|_| !work::is_over());
        Ok(Val::list(found.map(|m| Val::string(m.as_str())).collect()))
    })
}

/// A compiled pattern.
struct Compiled {
    /// None if it is invalid or too large.
    regex: Option<Regex>,
    /// Work of compiling it.
    making: usize,
    /// Work per byte of a string.
    each: usize,
}

#[derive(Default)]
struct Kept {
    /// Pattern literals.
    written: HashMap<Box<str>, Rc<Compiled>>,
    /// Patterns of the data.
    patterns: HashMap<Box<str>, Rc<Compiled>>,
    /// The current budget, the patterns that were used with it, and the work of compiling these.
    budget: u64,
    used: HashSet<Box<str>>,
    used_work: usize,
}

thread_local! {
    static PATTERNS: RefCell<Kept> = RefCell::default();
    /// Whether the pattern is a literal.
    static FREE: Cell<bool> = const { Cell::new(false) };
}

/// Begins an evaluation with this budget.
pub(crate) fn begin(budget: u64) {
    PATTERNS.with_borrow_mut(|k| {
        if k.budget == budget {
            return;
        }
        k.budget = budget;
        k.forget();
        if k.patterns.len() > KEPT_FOR_OTHERS {
            k.patterns.clear();
        }
    });
}

/// Calls a function with a pattern as its second argument: a literal, or one of the data.
pub(crate) fn with_pattern<T>(written: bool, call: impl FnOnce() -> T) -> T {
    FREE.set(written);
    call()
}

/// Compiles a pattern, or returns the one that this thread has cached.
fn compiled(pattern: &str) -> Rc<Compiled> {
    PATTERNS.with_borrow_mut(|k| {
        if FREE.get() {
            if let Some(c) = k.written.get(pattern) {
                return c.clone();
            }
            if k.written.len() >= KEPT {
                k.written.clear();
            }
            let c = Rc::new(compile(pattern));
            k.written.insert(pattern.into(), c.clone());
            return c;
        }
        let found = k.patterns.get(pattern).cloned();
        let c = found.unwrap_or_else(|| {
            let c = Rc::new(compile(pattern));
            // Patterns that the budget was charged for are kept.
            if k.patterns.len() >= KEPT + KEPT_FOR_OTHERS {
                let used = &k.used;
                k.patterns.retain(|p, _| used.contains(p));
            }
            k.patterns.insert(pattern.into(), c.clone());
            c
        });
        if !k.used.contains(pattern) {
            work::count(c.making);
            if k.used.len() >= KEPT || k.used_work + c.making > KEPT_WORK {
                k.forget();
            }
            k.used.insert(pattern.into());
            k.used_work += c.making;
        }
        c
    })
}

impl Kept {
    /// Forgets the patterns of the budget: they are charged again. This depends only on what the budget was used for.
    fn forget(&mut self) {
        self.used.clear();
        self.used_work = 0;
    }
}

fn compile(pattern: &str) -> Compiled {
    let text = meta::re2::translate(pattern);
    let size = meta::re2::size(&text);
    let making = ONCE + PARSE * pattern.len() + PART * size.parts.min(MOST_PARTS);
    Compiled { regex: build(&text).ok(), making, each: 1 + size.positions }
}

fn build(text: &str) -> std::result::Result<Regex, regex::Error> {
    regex::RegexBuilder::new(text).size_limit(LARGEST).dfa_size_limit(LARGEST_TABLE).build()
}

fn invalid(pattern: &str) -> Fault {
    format!("error parsing regexp: invalid regular expression: `{pattern}`").into()
}

pub(crate) fn check(pattern: &str) -> std::result::Result<(), Fault> {
    build(&meta::re2::translate(pattern)).map(|_| ()).map_err(|_| invalid(pattern))
}
