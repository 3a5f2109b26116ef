//! Text to templates.

use super::{Comparison, Error, Node, Step, Template};

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// Ranges, filters and unions around it.
    depth: usize,
}

/// What a pair of braces holds.
enum Action {
    Steps(Vec<Step>),
    Range(Vec<Step>),
    End,
}

pub(super) fn template(text: &str) -> Result<Template, Error> {
    within(text, 0)
}

/// A template, or a part of one that is so deep in it.
fn within(text: &str, depth: usize) -> Result<Template, Error> {
    let mut p = Parser { text, at: 0, depth };
    let (nodes, ended) = p.block()?;
    if ended {
        return Err(wrong("not in range, nothing to end"));
    }
    Ok(Template { nodes })
}

fn wrong(why: impl Into<String>) -> Error {
    Error::Parse(why.into())
}

/// How deep ranges, filters and unions may be nested in each other: those who read and evaluate them go as deep.
const DEPTH: usize = 64;

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Reads to the end of the text, or past an `{end}`.
    fn block(&mut self) -> Result<(Vec<Node>, bool), Error> {
        if self.depth > DEPTH {
            return Err(wrong("too many nested ranges, filters and unions"));
        }
        let mut nodes = Vec::new();
        loop {
            let Some(open) = self.rest().find('{') else {
                if !self.rest().is_empty() {
                    nodes.push(Node::Text(self.rest().to_owned()));
                }
                self.at = self.text.len();
                return Ok((nodes, false));
            };
            if open > 0 {
                nodes.push(Node::Text(self.rest()[..open].to_owned()));
            }
            self.at += open + 1;
            match self.action()? {
                Action::Steps(steps) => nodes.push(Node::List(steps)),
                Action::End => return Ok((nodes, true)),
                Action::Range(steps) => {
                    self.depth += 1;
                    let (body, ended) = self.block()?;
                    self.depth -= 1;
                    if !ended {
                        return Err(wrong("unterminated range"));
                    }
                    nodes.push(Node::Range(steps, body));
                }
            }
        }
    }

    fn action(&mut self) -> Result<Action, Error> {
        let mut steps = Vec::new();
        let mut range = false;
        loop {
            let rest = self.rest();
            let Some(c) = rest.chars().next() else { return Err(wrong("unclosed action")) };
            match c {
                '\n' | '\r' => return Err(wrong("unclosed action")),
                ' ' | '\t' | '@' | '$' => self.at += 1,
                '}' => {
                    self.at += 1;
                    return Ok(if range { Action::Range(steps) } else { Action::Steps(steps) });
                }
                '[' => steps.push(self.bracket()?),
                '"' | '\'' => {
                    let text = self.quoted()?;
                    steps.push(Step::Text(text));
                }
                '.' if rest.starts_with("..") => {
                    self.at += 2;
                    steps.push(Step::Recursive);
                    // `..name` goes on with a field, `..[` with a bracket.
                    if self.rest().starts_with(|c: char| c.is_alphabetic() || c == '_' || c == '*') {
                        self.field(&mut steps);
                    }
                }
                '.' => {
                    self.at += 1;
                    if self.rest().starts_with(['[', '}', ' ']) {
                        continue;
                    }
                    self.field(&mut steps);
                }
                '+' | '-' | '0'..='9' => {
                    let n = rest.find(|c: char| !(c.is_ascii_digit() || "+-.eE".contains(c))).unwrap_or(rest.len());
                    let number = &rest[..n];
                    self.at += n;
                    steps.push(match (number.parse(), number.parse()) {
                        (Ok(i), _) => Step::Int(i),
                        (_, Ok(f)) => Step::Float(f),
                        _ => return Err(wrong(format!("cannot parse number {number}"))),
                    });
                }
                c if c.is_alphabetic() || c == '_' => {
                    let n = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
                    let word = &rest[..n];
                    self.at += n;
                    match word {
                        "true" => steps.push(Step::Bool(true)),
                        "false" => steps.push(Step::Bool(false)),
                        "range" => range = true,
                        "end" => {
                            let rest = self.rest().trim_start();
                            let Some(after) = rest.strip_prefix('}') else { return Err(wrong("unclosed action")) };
                            self.at = self.text.len() - after.len();
                            return Ok(Action::End);
                        }
                        other => return Err(wrong(format!("unrecognized identifier {other}"))),
                    }
                }
                c => return Err(wrong(format!("unrecognized character in action: U+{:04X} '{c}'", c as u32))),
            }
        }
    }

    /// A name after a dot; a backslash makes the next character part of it.
    fn field(&mut self, steps: &mut Vec<Step>) {
        let mut name = String::new();
        let mut chars = self.rest().char_indices();
        let mut end = self.rest().len();
        while let Some((i, c)) = chars.next() {
            match c {
                '\\' => name.extend(chars.next().map(|(_, c)| c)),
                ' ' | '\t' | '\n' | '\r' | '.' | '[' | ']' | '}' | '{' | ',' | '|' | '$' | '@' | ')' | '(' => {
                    end = i;
                    break;
                }
                c => name.push(c),
            }
        }
        self.at += end;
        match name.as_str() {
            "*" => steps.push(Step::Wildcard),
            "" => {}
            _ => steps.push(Step::Field(name)),
        }
    }

    fn quoted(&mut self) -> Result<String, Error> {
        let rest = self.rest();
        let mut chars = rest.char_indices();
        let quote = chars.next().map_or('"', |(_, c)| c);
        let mut out = String::new();
        while let Some((i, c)) = chars.next() {
            if c == quote {
                self.at += i + c.len_utf8();
                return Ok(out);
            }
            if c != '\\' {
                out.push(c);
                continue;
            }
            match chars.next() {
                Some((_, 'n')) => out.push('\n'),
                Some((_, 't')) => out.push('\t'),
                Some((_, 'r')) => out.push('\r'),
                Some((_, 'u')) => {
                    let code = (0..4).filter_map(|_| chars.next()?.1.to_digit(16)).fold(0, |a, d| a * 16 + d);
                    out.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                }
                Some((_, c)) => out.push(c),
                None => break,
            }
        }
        Err(wrong("unterminated quoted string"))
    }

    /// From `[` to its `]`.
    fn bracket(&mut self) -> Result<Step, Error> {
        let rest = self.rest();
        let inside = inside_brackets(rest)?;
        self.at += inside.len() + 2;
        let inside = inside.trim();
        if let Some(f) = inside.strip_prefix("?(") {
            let f = f.strip_suffix(')').ok_or_else(|| wrong("unterminated filter"))?;
            return filter(f, self.depth + 1);
        }
        if inside == "*" {
            return Ok(Step::Wildcard);
        }
        let parts = split(inside, ',');
        if parts.len() > 1 {
            let parse = |p: &&str| within(&format!("{{[{}]}}", p.trim()), self.depth + 1);
            return parts.iter().map(parse).collect::<Result<_, _>>().map(Step::Union);
        }
        if inside.len() > 1 && inside.starts_with(['\'', '"']) {
            let mut p = Parser { text: inside, at: 0, depth: self.depth };
            let name = p.quoted()?;
            return if p.rest().is_empty() {
                Ok(Step::Field(name))
            } else {
                Err(wrong(format!("invalid array index {inside}")))
            };
        }
        let bounds: Vec<&str> = inside.split(':').collect();
        let number = |s: &str| -> Result<Option<i64>, Error> {
            match s.trim() {
                "" => Ok(None),
                s => s.parse().map(Some).map_err(|_| wrong(format!("invalid array index {inside}"))),
            }
        };
        match bounds.as_slice() {
            [one] => {
                let i = number(one)?.ok_or_else(|| wrong(format!("invalid array index {inside}")))?;
                Ok(Step::Slice { from: Some(i), to: i.checked_add(1), derived: true, step: None })
            }
            [a, b] => Ok(Step::Slice { from: number(a)?, to: number(b)?, derived: false, step: None }),
            [a, b, c] => Ok(Step::Slice { from: number(a)?, to: number(b)?, derived: false, step: number(c)? }),
            _ => Err(wrong(format!("invalid array index {inside}"))),
        }
    }
}

/// The text between the bracket at the start and the one that closes it.
fn inside_brackets(text: &str) -> Result<&str, Error> {
    let (mut depth, mut quote, mut escaped) = (0usize, None, false);
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (_, '\n') => break,
            _ if escaped => escaped = false,
            (_, '\\') => escaped = true,
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') => {
                depth -= 1;
                if depth == 0 {
                    return Ok(&text[1..i]);
                }
            }
            _ => {}
        }
    }
    Err(wrong(if text.starts_with("[?") { "unterminated filter" } else { "unterminated array" }))
}

/// Cuts at a separator that is not in quotes, brackets or parentheses.
fn split(text: &str, separator: char) -> Vec<&str> {
    let (mut out, mut from, mut depth, mut quote) = (Vec::new(), 0, 0i32, None);
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(' | '[') => depth += 1,
            (None, ')' | ']') => depth -= 1,
            (None, c) if c == separator && depth == 0 => {
                out.push(&text[from..i]);
                from = i + c.len_utf8();
            }
            _ => {}
        }
    }
    out.push(&text[from..]);
    out
}

fn filter(text: &str, depth: usize) -> Result<Step, Error> {
    use Comparison::*;
    let mut quote = None;
    let mut found = None;
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '!' | '<' | '>' | '=') => {
                found = Some(i);
                break;
            }
            _ => {}
        }
    }
    let side = |s: &str| within(&format!("{{{}}}", s.trim()), depth).map(Box::new);
    let Some(i) = found else {
        return Ok(Step::Filter(side(text)?, Exists, Box::new(Template { nodes: Vec::new() })));
    };
    let sign = &text[i..];
    let n = sign.find(|c: char| !"!<>=".contains(c)).unwrap_or(sign.len());
    let how = match &sign[..n] {
        "==" | "=" if n == 2 => Equal,
        "!=" => NotEqual,
        "<" => Less,
        "<=" => LessOrEqual,
        ">" => Greater,
        ">=" => GreaterOrEqual,
        other => return Err(wrong(format!("unrecognized filter operator {other}"))),
    };
    Ok(Step::Filter(side(&text[..i])?, how, side(&sign[n..])?))
}
