//! Label and field selectors, written and matched as `k8s.io/apimachinery/pkg/labels` and `…/fields` do.

use crate::{FieldError, FieldPath, Value, names};
use std::fmt;

/// The operator of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// `=`.
    Equals,
    /// `==`.
    DoubleEquals,
    /// `!=`.
    NotEquals,
    /// `in`.
    In,
    /// `notin`.
    NotIn,
    /// The key exists.
    Exists,
    /// The key does not exist.
    DoesNotExist,
    /// `>`, for integers.
    GreaterThan,
    /// `<`, for integers.
    LessThan,
}

/// A requirement on a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    /// The key of the label.
    pub key: String,
    /// The operator.
    pub operator: Operator,
    /// Sorted.
    pub values: Vec<String>,
}

/// All requirements must hold; none means everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelSelector {
    /// The requirements, all of which must be met.
    pub requirements: Vec<Requirement>,
    /// Selects nothing at all (a null selector).
    pub nothing: bool,
}

impl Requirement {
    /// The label that everything it matches has, if it names one.
    pub fn equal_to(&self) -> Option<(&str, &str)> {
        match (self.operator, self.values.as_slice()) {
            (Operator::Equals | Operator::DoubleEquals | Operator::In, [value]) => Some((&self.key, value)),
            _ => None,
        }
    }

    fn matches<'a>(&self, get: &impl Fn(&str) -> Option<&'a str>) -> bool {
        let value = get(&self.key);
        let listed = |v: &str| self.values.binary_search_by(|x| x.as_str().cmp(v)).is_ok();
        match self.operator {
            Operator::Equals | Operator::DoubleEquals | Operator::In => value.is_some_and(listed),
            Operator::NotEquals | Operator::NotIn => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan | Operator::LessThan => {
                let left = value.and_then(|v| v.parse::<i64>().ok());
                let right = self.values.first().and_then(|v| v.parse::<i64>().ok());
                match (left, right) {
                    (Some(l), Some(r)) if self.operator == Operator::GreaterThan => l > r,
                    (Some(l), Some(r)) => l < r,
                    _ => false,
                }
            }
        }
    }
}

impl LabelSelector {
    /// A selector that matches everything.
    pub fn everything() -> Self {
        Self::default()
    }

    /// A selector that matches nothing.
    pub fn none() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }

    /// Whether it matches everything.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    /// Whether labels match. `get` returns the value of a label.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(&get))
    }

    /// Equality on every pair of a plain map (a Service's or ReplicationController's selector).
    pub fn from_map<'a>(map: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let requirements = map
            .map(|(k, v)| Requirement { key: k.into(), operator: Operator::Equals, values: vec![v.into()] })
            .collect();
        Self { requirements, nothing: false }
    }

    /// Reads `metav1.LabelSelector`. A missing one selects nothing, an empty one everything.
    pub fn from_value(v: Option<&Value>) -> Result<Self, String> {
        let Some(v) = v.filter(|v| !v.is_null()) else { return Ok(Self::none()) };
        let pairs = v["matchLabels"].as_object().into_iter().flatten();
        let mut s = Self::from_map(pairs.map(|(k, v)| (k.as_str(), v.as_str().unwrap_or_default())));
        for e in v["matchExpressions"].as_array().into_iter().flatten() {
            let operator = match e["operator"].as_str().unwrap_or_default() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => return Err(format!("{other:?} is not a valid label selector operator")),
            };
            let mut values: Vec<String> =
                e["values"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
            values.sort();
            s.requirements.push(Requirement { key: e["key"].as_str().unwrap_or_default().into(), operator, values });
        }
        Ok(s)
    }

    /// Reads the query form: `a=b,c!=d,e in (f,g),!h,i>5`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut p = Parser { rest: tokens(text)?, at: 0 };
        let requirements = p.selector()?;
        for r in &requirements {
            aggregate(requirement_errors(r, &FieldPath::root())).map_or(Ok(()), |why| Err(unparsed(why)))?;
        }
        Ok(Self { requirements, nothing: false })
    }
}

/// Adds to an error that one requirement is meant and not the selector as a list of them.
fn unparsed(why: String) -> String {
    format!("unable to parse requirement: {why}")
}

/// Errors of the keys and values of a requirement at `path` (upstream `labels.NewRequirement`).
pub fn requirement_errors(r: &Requirement, path: &FieldPath) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let bad_key = names::qualified_name(&r.key);
    if !bad_key.is_empty() {
        errors.push(FieldError::invalid(&path.child("key"), r.key.as_str(), bad_key.join("; ")));
    }
    let values = || r.values.iter().enumerate().map(|(i, v)| (path.child("values").index(i), v));
    if matches!(r.operator, Operator::GreaterThan | Operator::LessThan) {
        let why = "for 'Gt', 'Lt' operators, the value must be an integer";
        let bad = values().filter(|(_, v)| v.parse::<i64>().is_err());
        errors.extend(bad.map(|(at, v)| FieldError::invalid(&at, v.as_str(), why)));
    }
    for (at, v) in values() {
        let bad = names::label_value(v);
        if !bad.is_empty() {
            errors.push(FieldError::invalid(&at.key(&r.key), v.as_str(), bad.join("; ")));
        }
    }
    errors
}

/// Errors as one message: several are enclosed in brackets, equal ones appear once (Go's `Aggregate`).
pub fn aggregate<E: fmt::Display>(errors: impl IntoIterator<Item = E>) -> Option<String> {
    let mut messages: Vec<String> = Vec::new();
    for message in errors.into_iter().map(|e| e.to_string()) {
        if !messages.contains(&message) {
            messages.push(message);
        }
    }
    match messages.len() {
        0 | 1 => messages.pop(),
        _ => Some(format!("[{}]", messages.join(", "))),
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Sign(&'static str),
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let b = text.as_bytes();
    let mut out = Vec::new();
    let mut i = 0;
    while i < b.len() {
        let two = b.get(i..i + 2);
        let (sign, n) = match b[i] {
            b' ' | b'\t' | b'\n' | b'\r' => {
                i += 1;
                continue;
            }
            b'(' => ("(", 1),
            b')' => (")", 1),
            b',' => (",", 1),
            b'>' => (">", 1),
            b'<' => ("<", 1),
            b'=' if two == Some(b"==") => ("==", 2),
            b'=' => ("=", 1),
            b'!' if two == Some(b"!=") => ("!=", 2),
            b'!' => ("!", 1),
            _ => {
                let start = i;
                while i < b.len() && !b" \t\n\r(),><=!".contains(&b[i]) {
                    i += 1;
                }
                out.push(Token::Word(text[start..i].to_owned()));
                continue;
            }
        };
        out.push(Token::Sign(sign));
        i += n;
    }
    Ok(out)
}

struct Parser {
    rest: Vec<Token>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.rest.get(self.at)
    }

    fn next(&mut self) -> Option<Token> {
        self.at += 1;
        self.rest.get(self.at - 1).cloned()
    }

    fn found(t: Option<Token>) -> String {
        match t {
            None => String::new(),
            Some(Token::Word(w)) => w,
            Some(Token::Sign(s)) => s.to_owned(),
        }
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, String> {
        let mut out = Vec::new();
        loop {
            match self.peek() {
                None => return Ok(out),
                Some(Token::Word(_) | Token::Sign("!")) => {
                    out.push(self.requirement().map_err(unparsed)?);
                    match self.next() {
                        None => return Ok(out),
                        Some(Token::Sign(",")) => match self.peek() {
                            Some(Token::Word(_) | Token::Sign("!")) => {}
                            t => {
                                let t = Self::found(t.cloned());
                                return Err(format!("found '{t}', expected: identifier after ','"));
                            }
                        },
                        t => return Err(format!("found '{}', expected: ',' or 'end of string'", Self::found(t))),
                    }
                }
                Some(t) => {
                    let t = Self::found(Some(t.clone()));
                    return Err(format!("found '{t}', expected: !, identifier, or 'end of string'"));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let negated = self.peek() == Some(&Token::Sign("!"));
        if negated {
            self.next();
        }
        let key = match self.next() {
            Some(Token::Word(w)) => w,
            t => return Err(format!("found '{}', expected: identifier", Self::found(t))),
        };
        let plain = |operator, values| Ok(Requirement { key: key.clone(), operator, values });
        if negated {
            return plain(Operator::DoesNotExist, vec![]);
        }
        match self.peek() {
            None | Some(Token::Sign(",")) => return plain(Operator::Exists, vec![]),
            _ => {}
        }
        let operator = match self.next() {
            Some(Token::Sign("=")) => Operator::Equals,
            Some(Token::Sign("==")) => Operator::DoubleEquals,
            Some(Token::Sign("!=")) => Operator::NotEquals,
            Some(Token::Sign(">")) => Operator::GreaterThan,
            Some(Token::Sign("<")) => Operator::LessThan,
            Some(Token::Word(w)) if w == "in" => Operator::In,
            Some(Token::Word(w)) if w == "notin" => Operator::NotIn,
            t => {
                let t = Self::found(t);
                return Err(format!("found '{t}', expected: in, notin, =, ==, !=, >, <"));
            }
        };
        let mut values = if matches!(operator, Operator::In | Operator::NotIn) {
            self.list()?
        } else {
            match self.peek() {
                None | Some(Token::Sign(",")) => vec![String::new()],
                Some(Token::Word(_)) => vec![Self::found(self.next())],
                t => return Err(format!("found '{}', expected: identifier", Self::found(t.cloned()))),
            }
        };
        values.sort();
        values.dedup();
        plain(operator, values)
    }

    fn list(&mut self) -> Result<Vec<String>, String> {
        match self.next() {
            Some(Token::Sign("(")) => {}
            t => return Err(format!("found '{}' expected: '('", Self::found(t))),
        }
        let mut out = Vec::new();
        let mut last_comma = true;
        loop {
            match self.next() {
                Some(Token::Word(w)) if last_comma => {
                    out.push(w);
                    last_comma = false;
                    match self.peek() {
                        Some(Token::Sign("," | ")")) => {}
                        t => return Err(format!("found '{}', expected: ',' or ')'", Self::found(t.cloned()))),
                    }
                }
                Some(Token::Sign(",")) => {
                    if last_comma {
                        out.push(String::new());
                    }
                    last_comma = true;
                }
                Some(Token::Sign(")")) => {
                    if last_comma {
                        out.push(String::new());
                    }
                    return Ok(out);
                }
                t => return Err(format!("found '{}', expected: ',', ')' or identifier", Self::found(t))),
            }
        }
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |r: &Requirement| {
            let (k, v) = (&r.key, r.values.join(","));
            match r.operator {
                Operator::Equals => format!("{k}={v}"),
                Operator::DoubleEquals => format!("{k}=={v}"),
                Operator::NotEquals => format!("{k}!={v}"),
                Operator::In => format!("{k} in ({v})"),
                Operator::NotIn => format!("{k} notin ({v})"),
                Operator::Exists => k.clone(),
                Operator::DoesNotExist => format!("!{k}"),
                Operator::GreaterThan => format!("{k}>{v}"),
                Operator::LessThan => format!("{k}<{v}"),
            }
        };
        f.write_str(&self.requirements.iter().map(one).collect::<Vec<_>>().join(","))
    }
}

/// `a=b,c!=d` over the selectable fields of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    /// The terms, all of which must be met.
    pub terms: Vec<FieldTerm>,
}

/// A term of a field selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldTerm {
    /// The path of the field.
    pub field: String,
    /// The value.
    pub value: String,
    /// Whether the field must be equal to the value, or differ.
    pub equal: bool,
}

impl FieldSelector {
    /// Parses a field selector: `metadata.name=x,status.phase!=Failed`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut terms = Vec::new();
        for part in split_terms(text) {
            if part.is_empty() {
                continue;
            }
            let (at, len, equal) =
                operator(part).ok_or_else(|| format!("invalid selector: '{text}'; can't understand '{part}'"))?;
            terms.push(FieldTerm { field: part[..at].to_owned(), value: unescape(&part[at + len..])?, equal });
        }
        Ok(Self { terms })
    }

    /// Whether it matches everything.
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether fields match. `get` returns the value of a field.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.terms.iter().all(|t| (get(&t.field).unwrap_or_default() == t.value) == t.equal)
    }

    /// The value that the selector requires of `field`, if any.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|t| t.equal && t.field == field).map(|t| t.value.as_str())
    }
}

fn split_terms(text: &str) -> Vec<&str> {
    let (mut out, mut start, mut escaped) = (Vec::new(), 0, false);
    for (i, c) in text.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == ',' {
            out.push(&text[start..i]);
            start = i + 1;
        }
    }
    out.push(&text[start..]);
    out
}

fn operator(part: &str) -> Option<(usize, usize, bool)> {
    (0..part.len()).filter(|&i| part.is_char_boundary(i)).find_map(|i| {
        let rest = &part[i..];
        if rest.starts_with("!=") {
            Some((i, 2, false))
        } else if rest.starts_with("==") {
            Some((i, 2, true))
        } else if rest.starts_with('=') {
            Some((i, 1, true))
        } else {
            None
        }
    })
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(e @ ('\\' | ',' | '=')) => out.push(e),
                other => {
                    let e: String = other.into_iter().collect();
                    return Err(format!("invalid field selector: invalid escape sequence: \\{e}"));
                }
            },
            ',' | '=' => {
                // Go prints the number of the character.
                let number = u32::from(c);
                return Err(format!("invalid field selector: unescaped character in value: {number}"));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escape = |v: &str| v.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
        let one = |t: &FieldTerm| format!("{}{}{}", t.field, if t.equal { "=" } else { "!=" }, escape(&t.value));
        f.write_str(&self.terms.iter().map(one).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(selector: &str, labels: &[(&str, &'static str)]) -> bool {
        let s = LabelSelector::parse(selector).unwrap();
        s.matches(|k| labels.iter().find(|(n, _)| *n == k).map(|(_, v)| *v))
    }

    /// Clauses: K04.equality, K04.set-based
    #[test]
    fn label_selectors_match() {
        let l = [("app", "web"), ("tier", "front"), ("n", "5")];
        for s in
            ["", "app=web", "app==web,tier!=back", "app in (web,db)", "x notin (a)", "!x", "app", "n>4,n<6", "x!=y"]
        {
            assert!(matches(s, &l), "{s}");
        }
        for s in ["app=db", "app notin (web)", "!app", "x", "n>5", "app in (db)", "x in ()"] {
            assert!(!matches(s, &l), "{s}");
        }
    }

    #[test]
    fn what_is_no_selector_is_refused() {
        for s in ["a in (", "a,,b", "=x", "a=b=c", "a in b", "a b", "a=b,", "-a=b", "a=-b", "n>x", "a in (b))"] {
            assert!(LabelSelector::parse(s).is_err(), "{s}");
        }
        assert!(FieldSelector::parse("abc").is_err());
    }

    #[test]
    fn field_selectors_round_trip() {
        let s = FieldSelector::parse("a=b\\,c,d!=e").unwrap();
        assert_eq!(s.terms[0].value, "b,c");
        assert_eq!(s.to_string(), "a=b\\,c,d!=e");
        assert!(s.matches(|k| if k == "a" { Some("b,c") } else { None }));
    }
}
