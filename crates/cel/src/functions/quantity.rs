//! Quantities (`k8s.io/apiserver/pkg/cel/library/quantity.go`).

use super::{Fault, Price, Result, Row, no_overload, row};
use crate::value::{Opaque, Val};
use meta::Quantity;
use std::cmp::Ordering;

pub(super) const ROWS: &[Row] = &[
    row("quantity", "string:quantity", Price::Walk(0, 1.0), |a| match a[0].as_str() {
        Some(s) => Quantity::parse(s).map(made).map_err(|e| Fault::Text(e.to_string())),
        None => no_overload(),
    }),
    row("isQuantity", "string:bool", Price::Walk(0, 1.0), |a| match a[0].as_str() {
        Some(s) => Ok(Val::Bool(Quantity::parse(s).is_ok())),
        None => no_overload(),
    }),
    row("sign", ".quantity:int", Price::Fixed(1), |a| with_quantity(a, |q| Ok(Val::Int(q.sign().into())))),
    row("isInteger", ".quantity:bool", Price::Fixed(1), |a| with_quantity(a, |q| Ok(Val::Bool(integer(q).is_some())))),
    row("asInteger", ".quantity:int", Price::Fixed(1), |a| {
        with_quantity(a, |q| integer(q).map(Val::Int).ok_or_else(|| "cannot convert value to integer".into()))
    }),
    row("asApproximateFloat", ".quantity:double", Price::Fixed(1), |a| {
        with_quantity(a, |q| Ok(Val::Double(q.nano_value() as f64 / 1e9)))
    }),
    row("add", ".quantity,quantity:quantity;.quantity,int:quantity", Price::Fixed(1), |a| two(a, |a, b| made(a + b))),
    row("sub", ".quantity,quantity:quantity;.quantity,int:quantity", Price::Fixed(1), |a| two(a, |a, b| made(a - b))),
    row("isLessThan", ".quantity,quantity:bool;.semver,semver:bool", Price::Fixed(1), |a| {
        order(a, |o| Val::Bool(o.is_lt()))
    }),
    row("isGreaterThan", ".quantity,quantity:bool;.semver,semver:bool", Price::Fixed(1), |a| {
        order(a, |o| Val::Bool(o.is_gt()))
    }),
    row("compareTo", ".quantity,quantity:int;.semver,semver:int", Price::Fixed(1), |a| {
        order(a, |o| Val::Int(o as i64))
    }),
];

/// The number, if it is an integer of 64 bits.
fn integer(q: Quantity) -> Option<i64> {
    let n = q.value();
    (q == Quantity::from_int(n)).then_some(n)
}

fn made<'a>(q: Quantity) -> Val<'a> {
    Val::opaque(Opaque::Quantity(q))
}

fn quantity(v: &Val<'_>) -> Option<Quantity> {
    match v {
        Val::Opaque(o) => match &**o {
            Opaque::Quantity(q) => Some(*q),
            _ => None,
        },
        _ => None,
    }
}

fn with_quantity<'a>(args: &[Val<'a>], f: impl Fn(Quantity) -> Result<'a>) -> Result<'a> {
    quantity(&args[0]).map_or_else(no_overload, f)
}

fn two<'a>(args: &[Val<'a>], f: impl Fn(Quantity, Quantity) -> Val<'a>) -> Result<'a> {
    let second = match &args[1] {
        Val::Int(n) => Some(Quantity::from_int(*n)),
        v => quantity(v),
    };
    match (quantity(&args[0]), second) {
        (Some(a), Some(b)) => Ok(f(a, b)),
        _ => no_overload(),
    }
}

/// Comparisons of quantities and versions, which share these names.
fn order<'a>(args: &[Val<'a>], f: impl Fn(Ordering) -> Val<'a>) -> Result<'a> {
    match (&args[0], &args[1]) {
        (Val::Opaque(a), Val::Opaque(b)) => match (&**a, &**b) {
            (Opaque::Quantity(a), Opaque::Quantity(b)) => Ok(f(a.cmp(b))),
            (Opaque::Semver(a), Opaque::Semver(b)) => Ok(f(a.cmp(b))),
            _ => no_overload(),
        },
        _ => no_overload(),
    }
}
