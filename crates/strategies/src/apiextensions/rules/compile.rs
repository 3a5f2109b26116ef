//! Compiles rules and reports errors at the paths of the rules, as upstream does when a definition is written.

use super::super::field_path;
use super::{Reason, Rule, Rules};
use crate::read::shown;
use cel::{Compiled, Env, Issues, Type, UNBOUNDED};
use expressions::{self as types, Typed};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value};

/// Maximum estimated cost of a rule.
const RULE_LIMIT: u64 = 10_000_000;
/// Maximum estimated cost of all rules of a version.
const TOTAL_LIMIT: u64 = 100_000_000;
/// Estimated cost (about 50 ms) above which rules are evaluated on threads for long requests.
const SLOW: u64 = 1_000_000;

/// Compiles the rules of a valid schema; `None` if it has none.
pub fn rules(schema: &Value) -> Option<Rules> {
    let mut c = Compiler::default();
    let rules = c.part(schema, &FieldPath::root(), Position::root())?;
    Some(Rules { slow: c.total > SLOW, ..rules })
}

/// Compiles the rules of a schema and reports errors: invalid rules, and costs above the limits, per rule (unless
/// `unchanged`) and in total.
pub fn compile(schema: &Value, path: &FieldPath, unchanged: bool, errors: &mut ErrorList) {
    let mut c = Compiler { unchanged, ..Compiler::default() };
    c.part(schema, path, Position::root());
    errors.append(&mut c.errors);
    if c.total > TOTAL_LIMIT {
        c.costs.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        // Upstream reports up to four rules that exceed one percent of the limit.
        for (_, at) in c.costs.iter().filter(|(cost, _)| *cost > TOTAL_LIMIT / 100).take(4) {
            let why = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            errors.push(FieldError::forbidden(at, why));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.push(FieldError::forbidden(path, &excess(what, c.total, TOTAL_LIMIT)));
    }
}

/// The position of a schema part.
#[derive(Clone)]
struct Position {
    root: bool,
    /// Maximum number of occurrences in an object, if bounded.
    times: Option<u64>,
    /// The path below which values cannot be correlated with old ones.
    uncorrelated: Option<FieldPath>,
}

impl Position {
    fn root() -> Self {
        Self { root: true, times: Some(1), uncorrelated: None }
    }

    fn below(&self) -> Self {
        Self { root: false, ..self.clone() }
    }

    fn repeated(&self, most: Option<u64>) -> Self {
        let times = self.times.zip(most).map(|(a, b)| a.saturating_mul(b));
        Self { times, ..self.below() }
    }
}

#[derive(Default)]
struct Compiler {
    errors: ErrorList,
    unchanged: bool,
    total: u64,
    costs: Vec<(u64, FieldPath)>,
}

impl Compiler {
    fn part(&mut self, s: &Value, path: &FieldPath, position: Position) -> Option<Rules> {
        let mut out = Rules { ty: s["type"].as_str().unwrap_or_default().into(), ..Rules::default() };
        let written = s["x-kubernetes-validations"].as_array().filter(|r| !r.is_empty());
        if let Some(written) = written {
            match types::typed(s, position.root) {
                Some(t) => {
                    for (i, r) in written.iter().enumerate() {
                        let at = path.child("x-kubernetes-validations").index(i);
                        out.rules.extend(self.rule(s, &t, r, &at, &position));
                    }
                    out.shape = types::shape(s);
                }
                None => {
                    let why =
                        "rule compiler initialization error: failed to convert to declType for CEL validation rules";
                    self.errors.push(FieldError::internal(&path.child("x-kubernetes-validations"), why));
                }
            }
        }
        for (name, p) in s["properties"].as_object().into_iter().flatten() {
            let mut below = position.below();
            if s["x-kubernetes-map-type"] == "atomic" {
                below.uncorrelated.get_or_insert_with(|| path.clone());
            }
            let at = path.child("properties").key(name);
            out.fields.extend(self.part(p, &at, below).map(|r| (name.as_str().into(), r)));
        }
        if s["additionalProperties"].is_object() {
            let mut below = position.repeated(s["maxProperties"].as_u64());
            if s["x-kubernetes-map-type"] == "atomic" {
                below.uncorrelated.get_or_insert_with(|| path.clone());
            }
            let found = self.part(&s["additionalProperties"], &path.child("additionalProperties"), below);
            out.values = found.map(Box::new);
        }
        if s["items"].is_object() {
            let mut below = position.repeated(s["maxItems"].as_u64());
            if s["x-kubernetes-list-type"] == "map" {
                out.keys = types::keys(s);
            } else {
                below.uncorrelated.get_or_insert_with(|| path.clone());
            }
            out.items = self.part(&s["items"], &path.child("items"), below).map(Box::new);
        }
        let used = !out.rules.is_empty() || !out.fields.is_empty() || out.values.is_some() || out.items.is_some();
        used.then_some(out)
    }

    fn rule(&mut self, s: &Value, t: &Typed, r: &Value, at: &FieldPath, position: &Position) -> Option<Rule> {
        let text = |k: &str| r[k].as_str().unwrap_or_default();
        let rule = text("rule").trim();
        if rule.is_empty() {
            return None;
        }
        let optional_old = r["optionalOldSelf"] == true;
        let old = if optional_old { Type::optional(t.decl.clone()) } else { t.decl.ty.clone() };
        let old = cel::Decl::new(old, t.decl.max);
        let env = || Env::default().with("self", t.decl.clone()).with("oldSelf", old.clone());
        let times = position.times.unwrap_or_else(|| types::max_occurrences(t.least));
        let compiled = self.expression(&env(), rule, r, &at.child("rule"), ExpectedType::Bool, times)?;
        let uses_old = compiled.program.uses("oldSelf");
        if uses_old && let Some(where_) = &position.uncorrelated {
            let why = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {where_}");
            self.errors.push(FieldError::invalid(&at.child("rule"), rule, why));
        }
        if !uses_old && r["optionalOldSelf"].is_boolean() {
            let why = "may not be set if oldSelf is not used in rule";
            self.errors.push(FieldError::invalid(&at.child("optionalOldSelf"), optional_old, why));
        }
        let expression = text("messageExpression").trim();
        let message_expression = (!expression.is_empty())
            .then(|| self.expression(&env(), expression, r, &at.child("messageExpression"), ExpectedType::Text, times))
            .flatten();
        let field_path = field_path::find(text("fieldPath"), s).ok().map(|(names, _)| {
            names.into_iter().fold(FieldPath::root(), |p, n| if plain(&n) { p.child(&n) } else { p.key(&n) })
        });
        Some(Rule {
            program: compiled.program,
            text: rule.into(),
            message: text("message").trim().into(),
            message_expression: message_expression.map(|c| c.program),
            reason: match text("reason") {
                "FieldValueForbidden" => Reason::Forbidden,
                "FieldValueRequired" => Reason::Required,
                "FieldValueDuplicate" => Reason::Duplicate,
                _ => Reason::Invalid,
            },
            field_path: field_path.map(|p| p.to_string()).unwrap_or_default().into(),
            uses_old,
            optional_old,
        })
    }

    fn expression(
        &mut self,
        env: &Env,
        text: &str,
        rule: &Value,
        at: &FieldPath,
        expected: ExpectedType,
        times: u64,
    ) -> Option<Compiled> {
        let (prefix, what, cost_of) = match expected {
            ExpectedType::Bool => {
                ("compilation failed", "cel expression must evaluate to a bool", "estimated rule cost")
            }
            ExpectedType::Text => (
                "messageExpression compilation failed",
                "messageExpression must evaluate to a string",
                "estimated messageExpression cost",
            ),
        };
        let compiled = match env.compile(text) {
            Ok(c) => c,
            Err(e) => {
                self.wrong(at, rule, &failed(prefix, &e));
                return None;
            }
        };
        let fits = match expected {
            ExpectedType::Bool => matches!(compiled.ty, Type::Bool),
            ExpectedType::Text => matches!(compiled.ty, Type::String),
        };
        if !fits {
            self.wrong(at, rule, what);
            return None;
        }
        let cost = compiled.cost.max.saturating_mul(if matches!(expected, ExpectedType::Bool) { times } else { 1 });
        if cost > RULE_LIMIT && !self.unchanged {
            self.errors.push(FieldError::forbidden(at, &excess(cost_of, cost, RULE_LIMIT)));
        }
        self.total = self.total.saturating_add(cost);
        self.costs.push((cost, at.clone()));
        Some(compiled)
    }

    fn wrong(&mut self, at: &FieldPath, rule: &Value, why: &str) {
        let shown = shown(rule, "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.ValidationRule", at);
        self.errors.push(FieldError::invalid(at, shown, why));
    }
}

#[derive(Clone, Copy)]
enum ExpectedType {
    Bool,
    Text,
}

fn failed(prefix: &str, e: &Issues) -> String {
    format!("{prefix}: {e}")
}

/// Whether a name needs no escaping in a path.
fn plain(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn excess(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = match factor {
        f if f > 100.0 || cost == UNBOUNDED => "more than 100x".to_owned(),
        f if f < 1.5 => format!("{f:.6}x"),
        f => format!("{f:.1}x"),
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Returns the estimated cost of a rule at a schema other than the root.
    fn cost(mut schema: Value, rule: &str) -> u64 {
        schema["x-kubernetes-validations"] = json!([{"rule": rule}]);
        let mut c = Compiler::default();
        c.part(&schema, &FieldPath::root(), Position { root: false, ..Position::root() });
        assert_eq!(c.costs.len(), 1, "{rule}: {:?}", c.errors);
        c.costs[0].0
    }

    fn list(items: Value) -> Value {
        json!({"type": "array", "items": items})
    }

    fn map(values: Value) -> Value {
        json!({"type": "object", "additionalProperties": values})
    }

    /// The estimates equal upstream's, which determine the accepted definitions.
    #[test]
    fn estimates_equal_upstreams() {
        let text = || json!({"type": "string"});
        let short = |n: u64| json!({"type": "string", "maxLength": n});
        let number = || json!({"type": "number"});
        let part = json!({"type": "object", "required": ["a"], "properties": {"a": text(), "b": text()}});
        let cases = [
            // The number of items is bounded by the request size.
            (list(number()), "self.all(x, true)", 4_718_591),
            (list(json!({"type": "boolean"})), "self.all(x, true)", 1_887_437),
            (list(json!({"x-kubernetes-int-or-string": true})), "self.all(x, true)", 4_718_591),
            (map(json!({"type": "string", "format": "date"})), "self.all(x, true)", 524_288),
            // Numbers of the object have no size; computed values have one.
            (list(number()), "self[1] == 0.0", 2),
            (list(number()), "self.all(x, x == 0.0)", 6_291_454),
            (map(json!({"type": "integer"})), "oldSelf.size() == self.size()", 5),
            (list(list(number())), "self[0][0] == -1.0", 3),
            (list(map(number())), "self.all(x, x.y == 25.2)", 6_291_452),
            (list(json!({"x-kubernetes-int-or-string": true})), "self[0] == 5", 3),
            // Times have the size of their longest text.
            (map(json!({"type": "string", "format": "date-time"})), "self['a'] == self['b']", 8),
            (map(json!({"type": "string", "format": "duration"})), "self['a'] == self['b']", 8),
            // Map keys are unbounded: a rule may match all of them.
            (map(text()), "self.all(x, x.contains(self[x]))", 2_752_507),
            (map(short(10)), "self.all(k, k.matches('^[a-z]+$'))", 6 * 393_215 + 2),
            (text(), "self.contains('test')", 314_574),
            (short(10), "self.contains('test')", 5),
            (json!({"type": "string", "enum": ["a", "longer"]}), "self.contains('A')", 2),
            (short(4), "size(self + 'hello') > size('hello')", 7),
            (short(10), "self.find('[0-9]+') == ''", 11),
            (short(10), "self.lowerAscii() == 'lower!'", 6),
            (json!({"x-kubernetes-int-or-string": true, "maxLength": 20}), "isQuantity(self)", 9),
            (json!({"type": "array", "maxItems": 10, "items": short(10)}), "self.join(' ') == 'aa bb'", 43),
            (json!({"type": "array", "maxItems": 10, "items": short(10)}), "self.isSorted() == true", 52),
            (list(map(part)), "self.all(x, x['y'].a == 'z')", 7_340_027),
        ];
        for (schema, rule, expected) in cases {
            assert_eq!(cost(schema.clone(), rule), expected, "{rule} of {schema}");
        }
    }
}
