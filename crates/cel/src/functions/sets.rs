//! Lists as sets (`cel-go/ext/sets.go`).

use super::{Price, Result, Row, no_overload, row};
use crate::value::{List, Val};

pub(super) const ROWS: &[Row] = &[
    row("sets.contains", "list(A),list(A):bool", Price::Product(1.0), |a| {
        lists(a, |a, b| b.iter().all(|v| a.contains(&v)))
    }),
    row("sets.equivalent", "list(A),list(A):bool", Price::Product(2.0), |a| {
        lists(a, |a, b| a.iter().all(|v| b.contains(&v)) && b.iter().all(|v| a.contains(&v)))
    }),
    row("sets.intersects", "list(A),list(A):bool", Price::Product(1.0), |a| {
        lists(a, |a, b| a.iter().any(|v| b.contains(&v)))
    }),
];

fn lists<'a>(args: &[Val<'a>], f: fn(&List<'a>, &List<'a>) -> bool) -> Result<'a> {
    match (&args[0], &args[1]) {
        (Val::List(a), Val::List(b)) => Ok(Val::Bool(f(a, b))),
        _ => no_overload(),
    }
}
