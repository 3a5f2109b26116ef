//! Errors of templates in the format of Go's `text/template`: position, part of the template, reason.
//!
//! The library reports only the reason. The position is searched for in the template, and omitted if several parts match.

use gotmpl::{TemplateError, Value};

/// Functions with errors that Go prefixes with `error calling NAME: `.
const PREFIXED: [&str; 12] =
    ["index", "len", "slice", "call", "eq", "ne", "lt", "le", "gt", "ge", "base64decode", "printf"];
/// Functions with a minimum number of arguments and no maximum.
const VARIADIC: [&str; 5] = ["index", "slice", "and", "or", "printf"];
/// Separates the function name from the reason in errors of [`named`].
const NAME_SEPARATOR: char = '\u{1}';

/// Returns an error that carries the name of its function.
pub fn named(function: &str, why: impl std::fmt::Display) -> TemplateError {
    TemplateError::Exec(format!("{function}{NAME_SEPARATOR}{why}"))
}

/// `index`: an item of a nested value.
pub fn index(args: &[Value]) -> Result<Value, TemplateError> {
    let wrong = |why: String| Err(named("index", why));
    let Some((item, indices)) = args.split_first() else {
        return Err(TemplateError::ArgCount { name: "index".into(), expected: 1, got: 0 });
    };
    if matches!(item, Value::Nil) {
        return wrong("index of untyped nil".into());
    }
    let mut at = item.clone();
    for i in indices {
        at = match (&at, i) {
            (Value::Nil, _) => return wrong("index of nil pointer".into()),
            (Value::Map(m), Value::String(k)) => m.get(k).cloned().unwrap_or(Value::Nil),
            (Value::Map(_), Value::Nil) => return wrong("value is nil; should be of type string".into()),
            (Value::Map(_), other) => return wrong(format!("value has type {}; should be string", kind(other))),
            (Value::List(_) | Value::String(_), Value::Nil) => {
                return wrong("cannot index slice/array with nil".into());
            }
            (Value::List(_) | Value::String(_), Value::Int(_) | Value::Uint(_)) => match at.index(i) {
                Ok(v) => v,
                Err(e) => return wrong(e.to_string()),
            },
            (Value::List(_) | Value::String(_), other) => {
                return wrong(format!("cannot index slice/array with type {}", kind(other)));
            }
            (other, _) => return wrong(format!("can't index item of type {}", kind(other))),
        };
    }
    Ok(at)
}

/// `len`: the length of a value.
pub fn len(args: &[Value]) -> Result<Value, TemplateError> {
    let [item] = args else {
        return Err(TemplateError::ArgCount { name: "len".into(), expected: 1, got: args.len() });
    };
    match (item.len(), item) {
        (Some(n), _) => Ok(Value::Int(i64::try_from(n).unwrap_or(i64::MAX))),
        (None, Value::Nil) => Err(named("len", "len of nil pointer")),
        (None, other) => Err(named("len", format!("len of type {}", kind(other)))),
    }
}

/// Returns the Go type of a JSON value.
fn kind(v: &Value) -> &'static str {
    match v {
        Value::Map(_) => "map[string]interface {}",
        Value::List(_) => "[]interface {}",
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Float(_) => "float64",
        Value::Nil => "nil",
        _ => "int",
    }
}

/// Formats an error of an executed template as Go does.
pub fn message(e: &TemplateError, source: &str) -> String {
    let (part, why) = match e {
        TemplateError::MissingKey { key } => (field(source, key), format!("map has no entry for key {key:?}")),
        TemplateError::ArgCount { name, got: 1, .. } if matches!(name.as_str(), "eq") => {
            (call(source, name), "error calling eq: missing argument for comparison".into())
        }
        TemplateError::ArgCount { name, expected, got } => {
            let least = if VARIADIC.contains(&name.as_str()) { "at least " } else { "" };
            let expected = if VARIADIC.contains(&name.as_str()) { 1 } else { *expected };
            (call(source, name), format!("wrong number of args for {name}: want {least}{expected} got {got}"))
        }
        other => {
            let text = other.to_string();
            let text = text.trim_start_matches("execution error: ");
            match text.split_once(NAME_SEPARATOR) {
                Some((name, why)) => (call(source, name), format!("error calling {name}: {why}")),
                None => anonymous(text, source),
            }
        }
    };
    match part {
        Some(p) => {
            let (line, column) = line_and_column(source, p.at);
            format!("template: output:{line}:{column}: executing \"output\" at <{}>: {why}", p.text)
        }
        None => format!("template: output: {why}"),
    }
}

const MISMATCH: &str = "incompatible types for comparison: ";

/// Formats an error of a function of the library, which does not name the function.
fn anonymous(text: &str, source: &str) -> (Option<Part>, String) {
    // Go's names of the types.
    let named = text.strip_prefix(MISMATCH).map(|types| {
        let go = |name: &str| match name {
            "list" => "[]interface {}".to_owned(),
            "map" => "map[string]interface {}".to_owned(),
            name => name.to_owned(),
        };
        let types: Vec<String> = types.split(" and ").map(go).collect();
        format!("{MISMATCH}{}", types.join(" and "))
    });
    let text = named.as_deref().unwrap_or(text);
    if let Some(key) = text.strip_prefix("can't evaluate field ").and_then(|t| t.split(' ').next()) {
        return (field(source, key), format!("can't evaluate field {key} in type interface {{}}"));
    }
    let comparison = named.is_some();
    let mut fit = PREFIXED.iter().filter(|f| match comparison {
        true => f.len() == 2,
        false => text.starts_with(&format!("{f}: ")),
    });
    let mut found = fit.by_ref().filter_map(|f| call(source, f).map(|p| (p, *f)));
    match (found.next(), found.next()) {
        (Some((p, f)), None) => {
            let why = text.trim_start_matches(&format!("{f}: "));
            (Some(p), format!("error calling {f}: {why}"))
        }
        _ => (None, text.to_owned()),
    }
}

/// A part of a template, and its offset.
struct Part {
    at: usize,
    text: String,
}

/// Finds the call of a function, if there is exactly one.
fn call(source: &str, name: &str) -> Option<Part> {
    let begins = regex::Regex::new(&format!(
        r"(?:\{{\{{-?\s*|\(\s*|\|\s*|=\s*|\b(?:if|with|range)\s+)({})(?:[\s)|}}])",
        regex::escape(name)
    ))
    .ok()?;
    let at = exactly_one(begins.captures_iter(source).filter_map(|c| c.get(1)).map(|m| m.start()))?;
    Some(Part { at, text: command(&source[at..]) })
}

/// Finds the field chain that contains a field, if there is exactly one.
fn field(source: &str, key: &str) -> Option<Part> {
    let chains = regex::Regex::new(r"(?:^|[^\w\])$.])((?:\.\w+)+)").ok()?;
    let has = |m: &regex::Match<'_>| m.as_str().split('.').any(|f| f == key);
    let chain = exactly_one(chains.captures_iter(source).filter_map(|c| c.get(1)).filter(has).map(|m| m.range()))?;
    let text = source[chain.clone()].to_owned();
    // Go reports the position of the second field.
    let second = text[1..].find('.').map_or(0, |n| n + 1);
    Some(Part { at: chain.start + second, text })
}

fn exactly_one<T>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let first = all.next()?;
    all.next().is_none().then_some(first)
}

/// Returns the command that a text begins with, with single spaces.
fn command(text: &str) -> String {
    let (mut out, mut quote, mut depth) = (String::new(), None, 0);
    for (i, c) in text.char_indices() {
        match quote {
            Some(q) => {
                if c == q && !(q == '"' && out.ends_with('\\')) {
                    quote = None;
                }
            }
            None => match c {
                '"' | '`' => quote = Some(c),
                '(' => depth += 1,
                ')' if depth == 0 => break,
                ')' => depth -= 1,
                '|' if depth == 0 => break,
                '}' | '-' if text[i..].trim_start_matches('-').starts_with("}}") => break,
                _ if c.is_whitespace() => {
                    if !out.ends_with(' ') {
                        out.push(' ');
                    }
                    continue;
                }
                _ => {}
            },
        }
        out.push(c);
    }
    out.trim_end().to_owned()
}

/// Returns the line (from 1) and the byte in it (from 0) of an offset.
fn line_and_column(source: &str, at: usize) -> (usize, usize) {
    let before = &source[..at];
    (before.matches('\n').count() + 1, at - before.rfind('\n').map_or(0, |n| n + 1))
}

/// Reports unclosed and surplus blocks, which the library accepts: the line and the reason.
pub fn blocks(source: &str) -> Option<(usize, String)> {
    let words = regex::Regex::new(r"\{\{-?\s*(if|range|with|block|define|else|end)\b").ok()?;
    let mut depth = 0;
    for c in words.captures_iter(source) {
        let line = c.get(0).map_or(1, |m| line_and_column(source, m.start()).0);
        match &c[1] {
            "end" | "else" if depth == 0 => return Some((line, format!("unexpected {{{{{}}}}}", &c[1]))),
            "end" => depth -= 1,
            "else" => {}
            _ => depth += 1,
        }
    }
    (depth > 0).then(|| (source.matches('\n').count() + 1, "unexpected EOF".into()))
}

/// Formats an error of a template that cannot be parsed as Go does.
pub fn unread(source: &str, message: &str) -> String {
    if message == "empty command" {
        let bare = regex::Regex::new(r"\{\{-?\s*(if|range|with|template)\s*-?\}\}").ok();
        if let Some(c) = bare.and_then(|b| b.captures(source)) {
            return format!("missing value for {}", &c[1]);
        }
        if let Ok(pipe) = regex::Regex::new(r"\|\s*-?\}\}")
            && pipe.is_match(source)
        {
            return "missing value for command".into();
        }
    }
    match message {
        "unterminated string" => "unterminated quoted string".into(),
        other => other.to_owned(),
    }
}
