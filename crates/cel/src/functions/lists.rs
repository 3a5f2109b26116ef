//! Lists: Kubernetes' own functions (`k8s.io/apiserver/pkg/cel/library/lists.go`) and the lists extension, version 3.

use super::strings::index_of;
use super::{Price, Result, Row, no_overload, row};
use crate::compare::{compare, equal};
use crate::value::{Key, List, Val};
use crate::work;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::rc::Rc;

pub(super) const ROWS: &[Row] = &[
    row(
        "isSorted",
        ".list(int):bool;.list(uint):bool;.list(double):bool;.list(bool):bool;.list(dur):bool;.list(time):bool;.list(string):bool;.list(bytes):bool",
        Price::Elements,
        is_sorted,
    ),
    row("sum", ".list(int):int;.list(uint):uint;.list(double):double;.list(dur):dur", Price::Elements, sum),
    row("min", EXTREME, Price::Elements, |a| extreme(a, "min", Ordering::Less)),
    row("max", EXTREME, Price::Elements, |a| extreme(a, "max", Ordering::Greater)),
    row("indexOf", ".string,string:int;.string,string,int:int;.list(A),A:int", Price::Elements, |a| find(a, false)),
    row("lastIndexOf", ".string,string:int;.string,string,int:int;.list(A),A:int", Price::Elements, |a| find(a, true)),
    row("slice", ".list(A),int,int:list(A)", Price::Elements, slice),
    row("flatten", ".list(list(A)):list(A);.list(dyn),int:list(dyn)", Price::Elements, flatten),
    row("lists.range", "int:list(int)", Price::Fixed(1), range),
    row("distinct", ".list(A):list(A)", Price::Elements, distinct),
    row("reverse", ".list(A):list(A)", Price::Elements, |a| match &a[0] {
        Val::List(l) => Ok(Val::list(l.iter().rev().collect())),
        _ => no_overload(),
    }),
    row(
        "sort",
        ".list(int):list(int);.list(uint):list(uint);.list(double):list(double);.list(bool):list(bool);.list(dur):list(dur);.list(time):list(time);.list(string):list(string);.list(bytes):list(bytes)",
        Price::Elements,
        sort,
    ),
    row("first", ".list(A):opt(A)", Price::Fixed(1), |a| match &a[0] {
        Val::List(l) => Ok(Val::Optional(l.get(0).map(Rc::new))),
        _ => no_overload(),
    }),
    row("last", ".list(A):opt(A)", Price::Fixed(1), |a| match &a[0] {
        Val::List(l) => Ok(Val::Optional(l.iter().next_back().map(Rc::new))),
        _ => no_overload(),
    }),
];

const EXTREME: &str = ".list(int):int;.list(uint):uint;.list(double):double;.list(bool):bool;.list(dur):dur;.list(time):time;.list(string):string;.list(bytes):bytes";

fn items<'a>(v: &Val<'a>) -> Option<Vec<Val<'a>>> {
    match v {
        Val::List(l) => {
            work::items(l.len());
            Some(l.iter().collect())
        }
        _ => None,
    }
}

fn is_sorted<'a>(args: &[Val<'a>]) -> Result<'a> {
    let Some(l) = items(&args[0]) else { return no_overload() };
    for w in l.windows(2) {
        match compare(&w[0], &w[1]) {
            None => return no_overload(),
            Some(Ordering::Greater) => return Ok(Val::Bool(false)),
            Some(_) => {}
        }
    }
    Ok(Val::Bool(true))
}

fn sum<'a>(args: &[Val<'a>]) -> Result<'a> {
    let Some(l) = items(&args[0]) else { return no_overload() };
    let mut all = l.into_iter();
    let Some(mut total) = all.next() else { return Ok(Val::Int(0)) };
    let add = super::find("_+_").map(|f| f.row.call);
    for v in all {
        total = match add {
            Some(add) => add(&[total, v])?,
            None => return no_overload(),
        };
    }
    Ok(total)
}

fn extreme<'a>(args: &[Val<'a>], name: &str, order: Ordering) -> Result<'a> {
    let Some(l) = items(&args[0]) else { return no_overload() };
    let mut all = l.into_iter();
    let Some(mut best) = all.next() else { return Err(format!("{name} called on empty list").into()) };
    for v in all {
        match compare(&v, &best) {
            None => return no_overload(),
            Some(o) if o == order => best = v,
            Some(_) => {}
        }
    }
    Ok(best)
}

fn find<'a>(args: &[Val<'a>], last: bool) -> Result<'a> {
    let Val::List(l) = &args[0] else { return index_of(args, last) };
    let is = |v: Val<'a>| work::is_over() || equal(&v, &args[1]);
    let found = if last { (0..l.len()).rev().find(|i| l.get(*i).is_some_and(is)) } else { l.iter().position(is) };
    Ok(Val::Int(found.and_then(|i| i64::try_from(i).ok()).unwrap_or(-1)))
}

fn slice<'a>(args: &[Val<'a>]) -> Result<'a> {
    let (Val::List(l), Val::Int(from), Val::Int(to)) = (&args[0], &args[1], &args[2]) else { return no_overload() };
    let bad = |why: String| Err(format!("cannot slice({from}, {to}), {why}").into());
    let (Ok(start), Ok(end)) = (usize::try_from(*from), usize::try_from(*to)) else {
        return bad("negative indexes not supported".into());
    };
    if start > end {
        return bad("start index must be less than or equal to end index".into());
    }
    if end > l.len() {
        return bad(format!("list is length {}", l.len()));
    }
    Ok(Val::list((start..end).filter_map(|i| l.get(i)).collect()))
}

fn flatten<'a>(args: &[Val<'a>]) -> Result<'a> {
    let depth = match args.get(1) {
        None => 1,
        Some(Val::Int(n)) if *n < 0 => return Err("level must be non-negative".into()),
        Some(Val::Int(n)) => *n,
        Some(_) => return no_overload(),
    };
    let Val::List(l) = &args[0] else { return no_overload() };
    let mut out = Vec::new();
    pour(l, depth, &mut out);
    Ok(Val::list(out))
}

fn pour<'a>(l: &List<'a>, depth: i64, out: &mut Vec<Val<'a>>) {
    for v in l.iter() {
        if work::is_over() {
            return;
        }
        match v {
            Val::List(inner) if depth > 0 => pour(&inner, depth - 1, out),
            v => out.push(v),
        }
    }
}

fn range<'a>(args: &[Val<'a>]) -> Result<'a> {
    // The maximum that one evaluation could read.
    const MOST: i64 = 1_000_000;
    match &args[0] {
        Val::Int(n) if *n > MOST => Err(format!("range of {n} is larger than {MOST}").into()),
        Val::Int(n) => {
            // The call costs 1, and needs memory for every item.
            work::items(usize::try_from(*n).unwrap_or_default());
            Ok(Val::list((0..*n).map(Val::Int).collect()))
        }
        _ => no_overload(),
    }
}

fn distinct<'a>(args: &[Val<'a>]) -> Result<'a> {
    let Some(l) = items(&args[0]) else { return no_overload() };
    // Possible keys are found by their order, others compared with all items of their type.
    let (mut keys, mut others) = (BTreeSet::new(), Vec::new());
    let mut out: Vec<Val<'a>> = Vec::new();
    for v in l {
        if work::is_over() {
            break;
        }
        work::count(usize::try_from(v.most()).unwrap_or(usize::MAX));
        let new = match Key::new(&v) {
            // Integers are keys, but no floats beyond the range of int.
            Some(key) => {
                let large = matches!(v, Val::Uint(_)) && others.iter().any(|x| equal(x, &v));
                keys.insert(key) && !large
            }
            None if out.iter().any(|x| work::is_over() || equal(x, &v)) => false,
            None => {
                others.push(v.clone());
                true
            }
        };
        if new {
            out.push(v);
        }
    }
    Ok(Val::list(out))
}

fn sort<'a>(args: &[Val<'a>]) -> Result<'a> {
    let Some(l) = items(&args[0]) else { return no_overload() };
    let keys = l.clone();
    sorted_by(l, &keys)
}

/// Items in the order of their keys.
pub(crate) fn sorted_by<'a>(items: Vec<Val<'a>>, keys: &[Val<'a>]) -> Result<'a> {
    if keys.windows(2).any(|w| w[0].type_name() != w[1].type_name()) {
        return Err("list elements must have the same type".into());
    }
    if keys.first().is_some_and(|k| compare(k, k).is_none()) {
        return Err("list elements must be comparable".into());
    }
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by(|a, b| compare(&keys[*a], &keys[*b]).unwrap_or(Ordering::Equal));
    Ok(Val::list(order.into_iter().map(|i| items[i].clone()).collect()))
}
