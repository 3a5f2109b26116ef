//! Evaluates validation rules. Failures of unchanged values are tolerated (ratcheting), except for rules that use
//! `oldSelf`.

use super::{Reason, Rule, Rules};
use cel::{Budget, Error, RUNTIME_BUDGET, Shape, Val, Vars};
use meta::field::{BadValue, ErrorList};
use meta::{FieldError, FieldPath, Value};
use std::cell::OnceCell;
use std::collections::HashMap;

/// Maximum length of a message expression's result, in bytes.
const MAX_MESSAGE: usize = 5 * 1024;

/// A value and its old value. Without an old value, the nearest enclosing pair with one decides whether it changed.
struct Pair<'a> {
    new: &'a Value,
    old: Option<&'a Value>,
    around: Option<&'a Pair<'a>>,
    /// Whether both are equal, computed on first use and shared by all parts.
    same: OnceCell<bool>,
}

impl<'a> Pair<'a> {
    fn part<'p>(&'p self, new: &'p Value, old: Option<&'p Value>) -> Pair<'p> {
        let around = if self.old.is_some() { Some(self) } else { self.around };
        Pair { new, old, around, same: OnceCell::new() }
    }

    fn unchanged(&self) -> bool {
        match (self.old, self.around) {
            (Some(old), _) => *self.same.get_or_init(|| self.new == old),
            (None, Some(around)) => around.unchanged(),
            (None, None) => false,
        }
    }
}

impl Rules {
    /// Evaluates all rules on `object` and the object it replaces. Adds errors, and returns the tolerated ones.
    pub fn evaluate(&self, object: &Value, old: Option<&Value>, errors: &mut ErrorList) -> ErrorList {
        let mut run = Run { budget: Budget::new(RUNTIME_BUDGET), errors, tolerated: Vec::new() };
        // An exhausted budget ends evaluation, and is already reported.
        let pair = Pair { new: object, old, around: None, same: OnceCell::new() };
        let _ = run.part(self, &pair, &FieldPath::root());
        run.tolerated
    }
}

struct Run<'e> {
    budget: Budget,
    errors: &'e mut ErrorList,
    tolerated: ErrorList,
}

/// Evaluation has ended early.
struct Over;

impl Run<'_> {
    fn part(&mut self, rules: &Rules, pair: &Pair<'_>, path: &FieldPath) -> Result<(), Over> {
        if pair.new.is_null() {
            return Ok(());
        }
        for r in &rules.rules {
            self.rule(rules, r, pair, path)?;
        }
        match pair.new {
            Value::Object(m) => {
                for (name, r) in &rules.fields {
                    let Some(v) = m.get(&**name) else { continue };
                    self.part(r, &pair.part(v, below(pair.old, name)), &path.child(name))?;
                }
                if let Some(r) = &rules.values {
                    for (k, v) in m {
                        self.part(r, &pair.part(v, below(pair.old, k)), &path.key(k))?;
                    }
                }
            }
            Value::Array(a) => {
                if let Some(r) = &rules.items {
                    let before = by_keys(pair.old, &rules.keys);
                    for (i, v) in a.iter().enumerate() {
                        let old = keys(v, &rules.keys).and_then(|k| before.get(&k).copied());
                        self.part(r, &pair.part(v, old), &path.index(i))?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn rule(&mut self, part: &Rules, r: &Rule, pair: &Pair<'_>, path: &FieldPath) -> Result<(), Over> {
        let old = pair.old.filter(|o| !o.is_null());
        if r.uses_old && old.is_none() && !r.optional_old {
            return Ok(());
        }
        let given = Given { new: pair.new, old, optional_old: r.optional_old, shape: part.shape.as_ref() };
        let rule_text = if r.message.is_empty() { &r.text } else { &r.message };
        let invalid = |why: String| FieldError::invalid(path, &*part.ty, why);
        let out_of_budget =
            "validation failed due to running out of cost budget, no further validation rules will be run";
        if self.budget.left() == 0 {
            self.errors.push(invalid(out_of_budget.into()));
            return Err(Over);
        }
        match r.program.eval(&given, &mut self.budget) {
            Ok(Val::Bool(true)) => return Ok(()),
            Ok(_) => {}
            Err(Error::Cost) if self.budget.left() == 0 => {
                self.errors.push(invalid(out_of_budget.into()));
                return Err(Over);
            }
            Err(e @ Error::Cost) => {
                let why = "no further validation rules will be run due to call cost exceeds limit for rule";
                self.errors.push(invalid(format!("'{e}': {why}: {rule_text}")));
                return Err(Over);
            }
            Err(e @ Error::NoOverload) => {
                let why = "call arguments did not match a supported operator, function or macro signature for rule";
                self.errors.push(invalid(format!("'{e}': {why}: {rule_text}")));
                return Ok(());
            }
            Err(e) => {
                self.errors.push(invalid(format!("{e} evaluating rule: {rule_text}")));
                return Ok(());
            }
        }
        let detail = self.message(r, &given).unwrap_or_else(|| match r.message.is_empty() {
            true => format!("failed rule: {}", r.text),
            false => r.message.to_string(),
        });
        let at = FieldPath::new(format!("{path}{}{}", dot(path, &r.field_path), r.field_path));
        let failure = failure(&at, pair.new, &part.ty, r.reason, &detail);
        if !r.uses_old && pair.unchanged() {
            self.tolerated.push(failure);
        } else {
            self.errors.push(failure);
        }
        Ok(())
    }

    /// Returns the result of the message expression; `None` if it fails or is unusable.
    fn message<'a>(&mut self, r: &'a Rule, given: &Given<'a>) -> Option<String> {
        let program = r.message_expression.as_ref()?;
        let made = program.eval(given, &mut self.budget).ok()?;
        let text = made.as_str()?.trim();
        let well = !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n');
        well.then(|| text.to_owned())
    }
}

/// Returns the separator between a path and its continuation.
fn dot(path: &FieldPath, further: &str) -> &'static str {
    if path.is_root() || further.is_empty() || further.starts_with('[') { "" } else { "." }
}

fn failure(at: &FieldPath, value: &Value, ty: &str, reason: Reason, detail: &str) -> FieldError {
    // Errors omit objects and lists.
    let hidden = matches!(ty, "object" | "array");
    match reason {
        Reason::Required => FieldError::required(at, detail),
        Reason::Forbidden => FieldError::forbidden(at, detail),
        Reason::Duplicate if hidden => FieldError::duplicate(at, BadValue::Omitted),
        Reason::Duplicate => FieldError::duplicate(at, value),
        Reason::Invalid if hidden => FieldError::invalid(at, BadValue::Omitted, detail),
        Reason::Invalid => FieldError::invalid(at, value, detail),
    }
}

fn below<'a>(old: Option<&'a Value>, name: &str) -> Option<&'a Value> {
    old?.get(name)
}

/// Returns the map keys of an item as one text; `None` if the list is no map.
fn keys(item: &Value, names: &[Box<str>]) -> Option<String> {
    let part = |name: &str| item.get(name).map_or_else(String::new, Value::to_string);
    // JSON texts contain no line breaks.
    (!names.is_empty()).then(|| names.iter().map(|n| part(n)).collect::<Vec<_>>().join("\n"))
}

/// Returns the old items by their keys; the first of equal ones.
fn by_keys<'a>(old: Option<&'a Value>, names: &[Box<str>]) -> HashMap<String, &'a Value> {
    let mut all = HashMap::new();
    for item in old.and_then(Value::as_array).into_iter().flatten() {
        let Some(k) = keys(item, names) else { break };
        all.entry(k).or_insert(item);
    }
    all
}

struct Given<'a> {
    new: &'a Value,
    old: Option<&'a Value>,
    optional_old: bool,
    shape: Option<&'a Shape>,
}

impl<'a> Vars<'a> for Given<'a> {
    fn get(&self, name: &str, _: &mut Budget) -> Result<Val<'a>, Error> {
        let old = || self.old.map(|o| Val::json(o, self.shape));
        match name {
            "self" => Ok(Val::json(self.new, self.shape)),
            "oldSelf" if self.optional_old => Ok(old().map_or(Val::Optional(None), Val::some)),
            _ => old().ok_or_else(|| Error::Fault(format!("no such attribute(s): {name}"))),
        }
    }
}
