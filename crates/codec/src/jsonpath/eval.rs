//! Templates over documents.

use super::{Comparison, DEPTH, Error, Missing, Node, Step};
use crate::json::{Html, to_string};
use meta::Value;
use std::borrow::Cow;
use std::cmp::Ordering;

/// A part of the document, or a literal of the template, which is no container.
pub(super) type Found<'a> = Cow<'a, Value>;

/// How a template is evaluated.
pub(super) struct Evaluation {
    missing: Missing,
    /// How many values may still be looked at. `..` after `..` finds the same ones again and again.
    pub work: usize,
    /// Ranges that were opened and not yet entered.
    begun: usize,
    /// Ranges that are being evaluated.
    inside: usize,
    /// Ends that were found and have not ended a range yet.
    ended: usize,
    /// Where the last range ended.
    end: Option<usize>,
}

/// Why a step found nothing.
enum Failure {
    /// The work allowed is done.
    Limit,
    /// `leaves`: whether upstream keeps values beside the error. A filter without a comparison then finds something.
    Template { error: Error, leaves: bool },
}

impl From<Failure> for Error {
    fn from(f: Failure) -> Self {
        match f {
            Failure::Limit => wrong("the expression looks at too many values"),
            Failure::Template { error, .. } => error,
        }
    }
}

/// A failure that leaves the input of the step.
fn failure(why: impl Into<String>) -> Failure {
    Failure::Template { error: wrong(why), leaves: true }
}

/// What a step finds.
type Values<'a> = Result<Vec<Found<'a>>, Failure>;

impl Evaluation {
    pub fn new(missing: Missing, work: usize) -> Self {
        Self { missing, work, begun: 0, inside: 0, ended: 0, end: None }
    }

    fn spend(&mut self, work: usize) -> Result<(), Failure> {
        let left = self.work.checked_sub(work);
        self.work = left.unwrap_or_default();
        left.map(drop).ok_or(Failure::Limit)
    }

    /// What each expression finds, in order.
    pub fn find<'a>(&mut self, nodes: &[Node], here: &Found<'a>) -> Result<Vec<Vec<Found<'a>>>, Error> {
        let mut out = Vec::new();
        self.from(nodes, 0, here, &mut out)?;
        Ok(out)
    }

    /// Evaluates the nodes from `first` to the end of their range. A range without an end extends to the end of the template, and its
    /// nodes are then evaluated once more without the range.
    fn from<'a>(
        &mut self,
        nodes: &[Node],
        first: usize,
        here: &Found<'a>,
        out: &mut Vec<Vec<Found<'a>>>,
    ) -> Result<(), Error> {
        let mut at = first;
        while let Some(node) = nodes.get(at) {
            let found = match node {
                Node::Text(t) => vec![literal(t.as_str())],
                Node::List(steps) => self.walk(steps, vec![here.clone()])?,
            };
            self.spend(1)?;
            if self.ended > 0 && self.ended <= self.inside {
                self.ended -= 1;
                self.end = Some(at);
                return Ok(());
            }
            if self.begun > 0 {
                self.begun -= 1;
                self.inside += 1;
                if self.inside > DEPTH {
                    return Err(wrong("too many nested ranges"));
                }
                for v in &found {
                    self.from(nodes, at + 1, v, out)?;
                }
                if found.is_empty() {
                    // Only to find the end.
                    self.from(nodes, at + 1, &literal(Value::Null), &mut Vec::new())?;
                }
                self.inside -= 1;
                at = self.end.filter(|e| *e > at).unwrap_or(at);
            } else {
                out.push(found);
            }
            at += 1;
        }
        Ok(())
    }

    fn walk<'a>(&mut self, steps: &[Step], mut current: Vec<Found<'a>>) -> Values<'a> {
        for step in steps {
            current = self.step(step, current)?;
            self.spend(1 + current.len())?;
        }
        Ok(current)
    }

    fn step<'a>(&mut self, step: &Step, input: Vec<Found<'a>>) -> Values<'a> {
        let mut out = Vec::new();
        match step {
            Step::Text(t) => out.push(literal(t.as_str())),
            Step::Int(i) => out.extend(input.iter().map(|_| literal(*i))),
            Step::Float(f) => out.extend(input.iter().map(|_| literal(*f))),
            Step::Bool(b) => out.extend(input.iter().map(|_| literal(*b))),
            Step::Identifier(name) => match name.as_str() {
                "range" => {
                    self.begun += 1;
                    return Ok(input);
                }
                "end" if self.inside > 0 => self.ended += 1,
                "end" => {
                    let error = wrong("not in range, nothing to end");
                    return Err(Failure::Template { error, leaves: false });
                }
                other => return Err(failure(format!("unrecognized identifier {other}"))),
            },
            Step::Field(name) => {
                let given = !input.is_empty();
                let fields = input.into_iter().filter_map(borrowed).filter_map(|v| v.as_object()?.get(name));
                out.extend(fields.map(Cow::Borrowed));
                if given && out.is_empty() && self.missing == Missing::Error {
                    let error = wrong(format!("{name} is not found"));
                    return Err(Failure::Template { error, leaves: false });
                }
            }
            Step::Wildcard => {
                for v in input {
                    if let Value::String(s) = &*v {
                        self.spend(s.len())?;
                        out.extend(s.bytes().map(literal));
                    } else if let Some(v) = borrowed(v) {
                        self.spend(inside(v).count())?;
                        out.extend(inside(v).map(Cow::Borrowed));
                    }
                }
            }
            Step::Recursive => {
                for v in input {
                    self.recurse(v, &mut out)?;
                }
            }
            Step::Slice { from, to, derived, step } => {
                for v in input {
                    match array(&v) {
                        Some(a) => {
                            self.spend(a.len())?;
                            if slice(a, *from, *to, *derived, *step, &mut out)? == Items::None {
                                break;
                            }
                        }
                        None if v.is_null() => {}
                        None => return Err(failure(format!("{} is not array or slice", go_type(&v)))),
                    }
                }
            }
            Step::Filter(left, how, right) => {
                for v in input {
                    let Some(items) = array(&v) else {
                        return Err(failure(format!("{} is not array or slice and cannot be filtered", go(&v))));
                    };
                    self.spend(items.len())?;
                    for item in items.iter().map(Cow::Borrowed) {
                        match self.passes(&item, left, how, right) {
                            Ok(true) => out.push(item),
                            Ok(false) => {}
                            Err(Failure::Template { error, .. }) => {
                                return Err(Failure::Template { error, leaves: true });
                            }
                            Err(limit) => return Err(limit),
                        }
                    }
                }
            }
            Step::Union(parts) => {
                for p in parts {
                    self.spend(input.len())?;
                    out.extend(self.walk(p, input.clone())?);
                }
            }
        }
        Ok(out)
    }

    /// Every container and text that is not empty, before what it contains.
    fn recurse<'a>(&mut self, v: Found<'a>, out: &mut Vec<Found<'a>>) -> Result<(), Failure> {
        self.spend(1)?;
        if v.as_str().is_some_and(|s| !s.is_empty()) {
            out.push(v);
        } else if let Some(v) = borrowed(v).filter(|v| inside(v).next().is_some()) {
            out.push(Cow::Borrowed(v));
            inside(v).try_for_each(|below| self.recurse(Cow::Borrowed(below), out))?;
        }
        Ok(())
    }

    fn passes(&mut self, item: &Found, left: &[Step], how: &Comparison, right: &[Step]) -> Result<bool, Failure> {
        let l = self.walk(left, vec![item.clone()]);
        if *how == Comparison::Exists {
            return match l {
                Ok(l) => Ok(!l.is_empty()),
                Err(Failure::Template { leaves, .. }) => Ok(leaves),
                Err(limit) => Err(limit),
            };
        }
        let many = || failure("can only compare one element at a time");
        let l = l?;
        let [l] = l.as_slice() else { return if l.is_empty() { Ok(false) } else { Err(many()) } };
        let r = self.walk(right, vec![item.clone()])?;
        let [r] = r.as_slice() else { return if r.is_empty() { Ok(false) } else { Err(many()) } };
        self.spend(l.as_str().map_or(0, str::len) / 64)?;
        compare(l, how, r).map_err(failure)
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

/// Whether a slice selects any items.
#[derive(PartialEq, Eq)]
enum Items {
    None,
    Some,
}

fn slice<'a>(
    a: &'a [Value],
    from: Option<i64>,
    to: Option<i64>,
    derived: bool,
    step: Option<i64>,
    out: &mut Vec<Found<'a>>,
) -> Result<Items, Failure> {
    let n = a.len() as i64;
    let from = from.unwrap_or(0);
    let from = if from < 0 { from.saturating_add(n) } else { from };
    let to = to.unwrap_or(n);
    let to = if to < 0 || (to == 0 && derived) { to.saturating_add(n) } else { to };
    if from == to {
        return Ok(Items::None);
    }
    let bounds = |i: i64| failure(format!("array index out of bounds: index {i}, length {n}"));
    if from >= n || from < 0 {
        return Err(bounds(from));
    }
    if to > n || to < 0 {
        return Err(bounds(to.saturating_sub(1)));
    }
    if from > to {
        return Err(failure(format!("starting index {from} is greater than ending index {to}")));
    }
    let step = step.unwrap_or(1);
    if step <= 0 {
        return Err(failure("step must be > 0"));
    }
    out.extend(a.iter().take(to as usize).skip(from as usize).step_by(step as usize).map(Cow::Borrowed));
    Ok(Items::Some)
}

/// Compares as Go's templates do: an integer is no float.
fn compare(l: &Value, how: &Comparison, r: &Value) -> Result<bool, String> {
    use Comparison::*;
    if let Unknown(operator) = how {
        return Err(format!("unrecognized filter operator {operator}"));
    }
    let basic = |v: &Value| matches!(v, Value::String(_) | Value::Number(_) | Value::Bool(_));
    if !basic(l) || !basic(r) {
        return Err("invalid type for comparison".into());
    }
    let order = match (l, r) {
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => Some(a.cmp(&b)),
            (None, None) => a.as_f64().partial_cmp(&b.as_f64()),
            _ => None,
        },
        (Value::Bool(a), Value::Bool(b)) if matches!(how, Equal | NotEqual) => Some(a.cmp(b)),
        (Value::Bool(_), Value::Bool(_)) => return Err("invalid type for comparison".into()),
        _ => None,
    };
    let order = order.ok_or("incompatible types for comparison")?;
    Ok(match how {
        Exists | Unknown(_) => true,
        Equal => order == Ordering::Equal,
        NotEqual => order != Ordering::Equal,
        Less => order == Ordering::Less,
        LessOrEqual => order != Ordering::Greater,
        Greater => order == Ordering::Greater,
        GreaterOrEqual => order != Ordering::Less,
    })
}

/// The Go type of a value that was decoded without a schema.
fn go_type(v: &Value) -> &'static str {
    match v {
        Value::Object(_) => "map[string]interface {}",
        Value::Array(_) => "[]interface {}",
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::Null => "<nil>",
    }
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
