//! Templates over documents.

use super::{Comparison, Error, Missing, Node, Step};
use crate::json::{Html, to_string};
use meta::Value;
use std::cmp::Ordering;

pub(super) fn find(nodes: &[Node], here: &Value, missing: Missing) -> Result<Vec<Vec<Value>>, Error> {
    let mut out = Vec::new();
    for node in nodes {
        match node {
            Node::Text(t) => out.push(vec![Literal::text(t)]),
            Node::List(steps) => out.push(walk(steps, here, missing)?),
            Node::Range(steps, body) => {
                for v in walk(steps, here, missing)? {
                    out.extend(find(body, &v, missing)?);
                }
            }
        }
    }
    Ok(out)
}

struct Literal;

impl Literal {
    fn text(t: &str) -> Value {
        Value::String(t.to_owned())
    }
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

fn walk(steps: &[Step], here: &Value, missing: Missing) -> Result<Vec<Value>, Error> {
    // Documents are borrowed until the end; literals are made here.
    let mut current = vec![here.clone()];
    for step in steps {
        current = one(step, current, missing)?;
    }
    Ok(current)
}

fn one(step: &Step, input: Vec<Value>, missing: Missing) -> Result<Vec<Value>, Error> {
    let mut out = Vec::new();
    match step {
        Step::Text(t) => out.push(Literal::text(t)),
        Step::Int(i) => out.push((*i).into()),
        Step::Float(f) => out.push((*f).into()),
        Step::Bool(b) => out.push((*b).into()),
        Step::Field(name) => {
            for v in input {
                if let Value::Object(mut m) = v {
                    out.extend(m.remove(name));
                }
            }
            if out.is_empty() && missing == Missing::Error {
                return Err(wrong(format!("{name} is not found")));
            }
        }
        Step::Wildcard => {
            for v in input {
                match v {
                    Value::Object(m) => out.extend(m.into_iter().map(|(_, v)| v)),
                    Value::Array(a) => out.extend(a),
                    _ => {}
                }
            }
        }
        Step::Recursive => recurse(input, &mut out),
        Step::Slice { from, to, derived, step } => {
            for v in input {
                match v {
                    Value::Null => {}
                    Value::Array(a) => slice(a, *from, *to, *derived, *step, &mut out)?,
                    other => return Err(wrong(format!("{} is not array or slice", go(&other)))),
                }
            }
        }
        Step::Filter(left, how, right) => {
            for v in input {
                let items = match v {
                    Value::Null => continue,
                    Value::Array(a) => a,
                    other => {
                        return Err(wrong(format!("{} is not array or slice and cannot be filtered", go(&other))));
                    }
                };
                for item in items {
                    let l = find(&left.nodes, &item, Missing::Allowed)?.concat();
                    let pass = match how {
                        Comparison::Exists => !l.is_empty(),
                        how => {
                            let r = find(&right.nodes, &item, Missing::Allowed)?.concat();
                            match (l.as_slice(), r.as_slice()) {
                                ([], _) | (_, []) => false,
                                ([l], [r]) => compare(l, *how, r)?,
                                _ => return Err(wrong("can only compare one element at a time")),
                            }
                        }
                    };
                    if pass {
                        out.push(item);
                    }
                }
            }
        }
        Step::Union(parts) => {
            for v in &input {
                for p in parts {
                    out.extend(find(&p.nodes, v, missing)?.concat());
                }
            }
        }
    }
    Ok(out)
}

/// Every container that is not empty, before what it contains.
fn recurse(input: Vec<Value>, out: &mut Vec<Value>) {
    for v in input {
        let inside: Vec<Value> = match &v {
            Value::Object(m) => m.values().cloned().collect(),
            Value::Array(a) => a.clone(),
            _ => continue,
        };
        if !inside.is_empty() {
            out.push(v);
            recurse(inside, out);
        }
    }
}

fn slice(
    a: Vec<Value>,
    from: Option<i64>,
    to: Option<i64>,
    derived: bool,
    step: Option<i64>,
    out: &mut Vec<Value>,
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
    out.extend(a.into_iter().take(to as usize).skip(from as usize).step_by(step as usize));
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
