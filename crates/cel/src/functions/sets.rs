//! Lists as sets (`cel-go/ext/sets.go`).

use super::{Price, Result, Row, no_overload, row};
use crate::value::{List, Val};
use crate::work;

pub(super) const ROWS: &[Row] = &[
    row("sets.contains", "list(A),list(A):bool", Price::Product(1.0), |a| lists(a, |a, b| within(b, a))),
    row("sets.equivalent", "list(A),list(A):bool", Price::Product(2.0), |a| {
        lists(a, |a, b| within(a, b) && within(b, a))
    }),
    row("sets.intersects", "list(A),list(A):bool", Price::Product(1.0), |a| {
        lists(a, |a, b| a.iter().any(|v| work::is_over() || b.contains(&v)))
    }),
];

/// Whether all items of a list are in another.
fn within<'a>(a: &List<'a>, b: &List<'a>) -> bool {
    a.iter().all(|v| !work::is_over() && b.contains(&v))
}

fn lists<'a>(args: &[Val<'a>], f: fn(&List<'a>, &List<'a>) -> bool) -> Result<'a> {
    match (&args[0], &args[1]) {
        (Val::List(a), Val::List(b)) => Ok(Val::Bool(f(a, b))),
        _ => no_overload(),
    }
}
