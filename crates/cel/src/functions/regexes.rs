//! Regular expressions. Both RE2 and the `regex` crate take time linear in the text.

use super::{Fault, Price, Result, Row, no_overload, row};
use crate::value::Val;
use regex::Regex;
use std::cell::RefCell;
use std::collections::HashMap;

pub(super) const ROWS: &[Row] = &[
    row("matches", "string,string:bool;.string,string:bool", Price::Regex, |a| {
        with(a, |r, s| Ok(Val::Bool(r.is_match(s))))
    }),
    row("find", ".string,string:string", Price::Regex, |a| {
        with(a, |r, s| Ok(Val::string(r.find(s).map_or("", |m| m.as_str()))))
    }),
    row("findAll", ".string,string:list(string);.string,string,int:list(string)", Price::Regex, find_all),
];

fn with<'a>(args: &[Val<'a>], f: impl Fn(&Regex, &str) -> Result<'a>) -> Result<'a> {
    match (args[0].as_str(), args[1].as_str()) {
        (Some(s), Some(pattern)) => f(&compiled(pattern)?, s),
        _ => no_overload(),
    }
}

fn find_all<'a>(args: &[Val<'a>]) -> Result<'a> {
    let n = match args.get(2) {
        None => usize::MAX,
        Some(Val::Int(n)) => usize::try_from(*n).unwrap_or(usize::MAX),
        Some(_) => return no_overload(),
    };
    with(args, |r, s| Ok(Val::list(r.find_iter(s).take(n).map(|m| Val::string(m.as_str())).collect())))
}

/// Compiles a pattern, or takes it from those this thread has used before.
fn compiled(pattern: &str) -> std::result::Result<Regex, Fault> {
    const KEPT: usize = 64;
    thread_local!(static USED: RefCell<HashMap<String, Regex>> = RefCell::default());
    USED.with_borrow_mut(|used| {
        if let Some(r) = used.get(pattern) {
            return Ok(r.clone());
        }
        let r = check(pattern)?;
        if used.len() >= KEPT {
            used.clear();
        }
        used.insert(pattern.to_owned(), r.clone());
        Ok(r)
    })
}

pub(crate) fn check(pattern: &str) -> std::result::Result<Regex, Fault> {
    let r = regex::RegexBuilder::new(&meta::re2::translate(pattern)).size_limit(1 << 20).build();
    r.map_err(|_| format!("error parsing regexp: invalid regular expression: `{pattern}`").into())
}
