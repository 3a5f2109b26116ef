//! Templates over documents.

use super::{Comparison, Error, Missing, Node, Step};
use crate::json::{Html, to_string};
use meta::Value;
use std::borrow::Cow;
use std::cmp::Ordering;

/// A part of the document, or a literal of the template, which is no container.
pub(super) type Found<'a> = Cow<'a, Value>;

/// How a template is evaluated.
pub(super) struct Evaluation {
    pub missing: Missing,
    /// How many values may still be looked at. `..` after `..` finds the same ones again and again.
    pub work: usize,
}

impl Evaluation {
    fn spend(&mut self, work: usize) -> Result<(), Error> {
        let left = self.work.checked_sub(work);
        self.work = left.unwrap_or_default();
        left.map(drop).ok_or_else(|| wrong("the expression looks at too many values"))
    }

    /// What each expression finds, in order.
    pub fn find<'a>(&mut self, nodes: &[Node], here: &Found<'a>) -> Result<Vec<Vec<Found<'a>>>, Error> {
        let mut out = Vec::new();
        for node in nodes {
            match node {
                Node::Text(t) => out.push(vec![literal(t.as_str())]),
                Node::List(steps) => out.push(self.walk(steps, here)?),
                Node::Range(steps, body) => {
                    for v in self.walk(steps, here)? {
                        out.extend(self.find(body, &v)?);
                    }
                }
            }
        }
        Ok(out)
    }

    fn walk<'a>(&mut self, steps: &[Step], here: &Found<'a>) -> Result<Vec<Found<'a>>, Error> {
        let mut current = vec![here.clone()];
        for step in steps {
            current = self.step(step, current)?;
            self.spend(1 + current.len())?;
        }
        Ok(current)
    }

    fn step<'a>(&mut self, step: &Step, input: Vec<Found<'a>>) -> Result<Vec<Found<'a>>, Error> {
        let mut out = Vec::new();
        match step {
            Step::Text(t) => out.push(literal(t.as_str())),
            Step::Int(i) => out.push(literal(*i)),
            Step::Float(f) => out.push(literal(*f)),
            Step::Bool(b) => out.push(literal(*b)),
            Step::Field(name) => {
                let fields = input.into_iter().filter_map(borrowed).filter_map(|v| v.as_object()?.get(name));
                out.extend(fields.map(Cow::Borrowed));
                if out.is_empty() && self.missing == Missing::Error {
                    return Err(wrong(format!("{name} is not found")));
                }
            }
            Step::Wildcard => {
                for v in input.into_iter().filter_map(borrowed) {
                    self.spend(inside(v).count())?;
                    out.extend(inside(v).map(Cow::Borrowed));
                }
            }
            Step::Recursive => {
                for v in input.into_iter().filter_map(borrowed) {
                    self.recurse(v, &mut out)?;
                }
            }
            Step::Slice { from, to, derived, step } => {
                for v in input {
                    match array(&v) {
                        Some(a) => {
                            self.spend(a.len())?;
                            slice(a, *from, *to, *derived, *step, &mut out)?;
                        }
                        None if v.is_null() => {}
                        None => return Err(wrong(format!("{} is not array or slice", go(&v)))),
                    }
                }
            }
            Step::Filter(left, how, right) => {
                for v in input {
                    let items = match array(&v) {
                        Some(a) => a,
                        None if v.is_null() => continue,
                        None => return Err(wrong(format!("{} is not array or slice and cannot be filtered", go(&v)))),
                    };
                    self.spend(items.len())?;
                    for item in items.iter().map(Cow::Borrowed) {
                        if self.passes(&item, &left.nodes, *how, &right.nodes)? {
                            out.push(item);
                        }
                    }
                }
            }
            Step::Union(parts) => {
                for v in &input {
                    for p in parts {
                        self.spend(1)?;
                        out.extend(self.find(&p.nodes, v)?.concat());
                    }
                }
            }
        }
        Ok(out)
    }

    /// Every container that is not empty, before what it contains.
    fn recurse<'a>(&mut self, v: &'a Value, out: &mut Vec<Found<'a>>) -> Result<(), Error> {
        self.spend(1)?;
        if inside(v).next().is_some() {
            out.push(Cow::Borrowed(v));
        }
        inside(v).try_for_each(|below| self.recurse(below, out))
    }

    fn passes(&mut self, item: &Found, left: &[Node], how: Comparison, right: &[Node]) -> Result<bool, Error> {
        let missing = std::mem::replace(&mut self.missing, Missing::Allowed);
        let found = self.find(left, item).and_then(|l| {
            let r = if how == Comparison::Exists { Vec::new() } else { self.find(right, item)?.concat() };
            Ok((l.concat(), r))
        });
        self.missing = missing;
        let (l, r) = found?;
        match (l.as_slice(), r.as_slice()) {
            (l, _) if how == Comparison::Exists => Ok(!l.is_empty()),
            ([], _) | (_, []) => Ok(false),
            ([l], [r]) => {
                self.spend(l.as_str().map_or(0, str::len) / 64)?;
                compare(l, how, r)
            }
            _ => Err(wrong("can only compare one element at a time")),
        }
    }
}

fn literal<'a>(v: impl Into<Value>) -> Found<'a> {
    Cow::Owned(v.into())
}

/// A part of the document.
fn borrowed(v: Found<'_>) -> Option<&Value> {
    match v {
        Cow::Borrowed(v) => Some(v),
        Cow::Owned(_) => None,
    }
}

fn array<'a>(v: &Found<'a>) -> Option<&'a Vec<Value>> {
    borrowed(v.clone())?.as_array()
}

/// What a container contains.
fn inside(v: &Value) -> impl Iterator<Item = &Value> {
    let members = v.as_object().into_iter().flat_map(|m| m.values());
    members.chain(v.as_array().into_iter().flatten())
}

/// Values as the template prints them: strings bare, containers as compact JSON, several separated by spaces.
pub fn text(results: &[Value]) -> String {
    let one = |v: &Value| match v {
        Value::String(s) => s.clone(),
        Value::Number(n) if n.is_f64() => crate::yaml::float(n.as_f64().unwrap_or_default()),
        other => to_string(other, Html::Escape),
    };
    results.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn wrong(why: impl Into<String>) -> Error {
    Error::Eval(why.into())
}

fn slice<'a>(
    a: &'a [Value],
    from: Option<i64>,
    to: Option<i64>,
    derived: bool,
    step: Option<i64>,
    out: &mut Vec<Found<'a>>,
) -> Result<(), Error> {
    let n = a.len() as i64;
    let from = from.unwrap_or(0);
    let from = if from < 0 { from.saturating_add(n) } else { from };
    let to = to.unwrap_or(n);
    let to = if to < 0 || (to == 0 && derived) { to.saturating_add(n) } else { to };
    if from == to {
        return Ok(());
    }
    let bounds = |i: i64| wrong(format!("array index out of bounds: index {i}, length {n}"));
    if from >= n || from < 0 {
        return Err(bounds(from));
    }
    if to > n || to < 0 {
        return Err(bounds(to - 1));
    }
    if from > to {
        return Err(wrong(format!("starting index {from} is greater than ending index {to}")));
    }
    let step = step.unwrap_or(1);
    if step <= 0 {
        return Err(wrong("step must be > 0"));
    }
    out.extend(a.iter().take(to as usize).skip(from as usize).step_by(step as usize).map(Cow::Borrowed));
    Ok(())
}

fn compare(l: &Value, how: Comparison, r: &Value) -> Result<bool, Error> {
    use Comparison::*;
    let order = match (l, r) {
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => Some(a.cmp(&b)),
            _ => a.as_f64().partial_cmp(&b.as_f64()),
        },
        (Value::Bool(a), Value::Bool(b)) if matches!(how, Equal | NotEqual) => Some(a.cmp(b)),
        _ => None,
    };
    let Some(order) = order else { return Err(wrong("incompatible types for comparison")) };
    Ok(match how {
        Exists => true,
        Equal => order == Ordering::Equal,
        NotEqual => order != Ordering::Equal,
        Less => order == Ordering::Less,
        LessOrEqual => order != Ordering::Greater,
        Greater => order == Ordering::Greater,
        GreaterOrEqual => order != Ordering::Less,
    })
}

/// A value as Go's `%v` prints it.
fn go(v: &Value) -> String {
    match v {
        Value::Object(m) => {
            format!("map[{}]", m.iter().map(|(k, v)| format!("{k}:{}", go(v))).collect::<Vec<_>>().join(" "))
        }
        Value::Array(a) => format!("[{}]", a.iter().map(go).collect::<Vec<_>>().join(" ")),
        Value::Null => "<nil>".into(),
        other => text(std::slice::from_ref(other)),
    }
}
