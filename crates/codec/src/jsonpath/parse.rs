//! Text to templates, by the grammar of upstream's parser: quotes count only where it counts them (a bracket ends at the next `]`).

use super::{Comparison, DEPTH, Error, Node, Step, Template};

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// Filters around it.
    depth: usize,
}

pub(super) fn template(text: &str) -> Result<Template, Error> {
    let mut p = Parser { text, at: 0, depth: 0 };
    let nodes = p.nodes()?;
    let mut open = 0usize;
    for step in nodes.iter().flat_map(|n| if let Node::List(steps) = n { steps.as_slice() } else { &[] }) {
        match step {
            Step::Identifier(i) if i == "range" => open += 1,
            Step::Identifier(i) if i == "end" => open = open.saturating_sub(1),
            _ => {}
        }
        if open > DEPTH {
            return Err(wrong("too many nested ranges"));
        }
    }
    Ok(Template { nodes })
}

/// The steps of an expression without its braces, which is so deep in filters. What follows a closing brace does not count.
fn action(text: &str, depth: usize) -> Result<Vec<Step>, Error> {
    if depth > DEPTH {
        return Err(wrong("too many nested filters"));
    }
    let text = format!("{{{text}}}");
    let nodes = Parser { text: &text, at: 0, depth }.nodes()?;
    Ok(nodes.into_iter().find_map(|n| if let Node::List(steps) = n { Some(steps) } else { None }).unwrap_or_default())
}

fn wrong(why: impl Into<String>) -> Error {
    Error::Parse(why.into())
}

/// Where a name ends.
fn terminates(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn nodes(&mut self) -> Result<Vec<Node>, Error> {
        let mut nodes = Vec::new();
        while let Some(open) = self.rest().find('{') {
            if open > 0 {
                nodes.push(Node::Text(self.rest()[..open].to_owned()));
            }
            self.at += open + 1;
            nodes.push(Node::List(self.steps()?));
        }
        if !self.rest().is_empty() {
            nodes.push(Node::Text(self.rest().to_owned()));
        }
        Ok(nodes)
    }

    /// Reads past the closing brace.
    fn steps(&mut self) -> Result<Vec<Step>, Error> {
        let mut steps = Vec::new();
        loop {
            let rest = self.rest();
            let Some(c) = rest.chars().next() else { return Err(wrong("unclosed action")) };
            match c {
                '\n' | '\r' => return Err(wrong("unclosed action")),
                ' ' | '@' | '$' => self.at += 1,
                '}' => {
                    self.at += 1;
                    return Ok(steps);
                }
                '[' if rest.starts_with("[?(") => steps.push(self.filter()?),
                '[' => self.bracket(&mut steps)?,
                '"' | '\'' => steps.push(Step::Text(self.quoted(c)?)),
                '.' if rest.starts_with("..") => {
                    if steps.last() == Some(&Step::Recursive) {
                        return Err(wrong("invalid multiple recursive descent"));
                    }
                    self.at += 2;
                    steps.push(Step::Recursive);
                    if self.rest().starts_with(is_word) {
                        steps.push(self.field());
                    }
                }
                '.' => {
                    self.at += 1;
                    steps.push(self.field());
                }
                '+' | '-' | '0'..='9' => {
                    let digits = rest[1..].find(|c: char| !(c.is_ascii_digit() || c == '.'));
                    let number = &rest[..digits.map_or(rest.len(), |n| n + 1)];
                    self.at += number.len();
                    steps.push(match (number.parse(), number.parse()) {
                        (Ok(i), _) => Step::Int(i),
                        (_, Ok(f)) => Step::Float(f),
                        _ => return Err(wrong(format!("cannot parse number {number}"))),
                    });
                }
                c if is_word(c) => {
                    let word = &rest[..rest.find(terminates).unwrap_or(rest.len())];
                    self.at += word.len();
                    steps.push(match word {
                        "true" => Step::Bool(true),
                        "false" => Step::Bool(false),
                        other => Step::Identifier(other.to_owned()),
                    });
                }
                c if c.is_control() => {
                    return Err(wrong(format!("unrecognized character in action: U+{:04X}", c as u32)));
                }
                c => return Err(wrong(format!("unrecognized character in action: U+{:04X} '{c}'", c as u32))),
            }
        }
    }

    /// A name after a dot, which may be empty. The character after a backslash does not end it.
    fn field(&mut self) -> Step {
        let rest = self.rest();
        let mut chars = rest.char_indices();
        let mut end = rest.len();
        while let Some((i, c)) = chars.next() {
            if c == '\\' {
                chars.next();
            } else if terminates(c) {
                end = i;
                break;
            }
        }
        self.at += end;
        match &rest[..end] {
            "*" => Step::Wildcard,
            name => Step::Field(name.replace('\\', "")),
        }
    }

    fn quoted(&mut self, quote: char) -> Result<String, Error> {
        let rest = self.rest();
        let mut before = quote;
        for (i, c) in rest.char_indices().skip(1) {
            if c == '\n' {
                break;
            }
            if c == quote && before != '\\' {
                self.at += i + 1;
                let invalid = || wrong(format!("unquote string {} error invalid syntax", &rest[..=i]));
                return unquote(&rest[1..i], quote).ok_or_else(invalid);
            }
            before = c;
        }
        Err(wrong("unterminated quoted string"))
    }

    /// From `[` to the next `]`.
    fn bracket(&mut self, steps: &mut Vec<Step>) -> Result<(), Error> {
        let rest = self.rest();
        let end = rest.find([']', '\n']).filter(|i| rest[*i..].starts_with(']'));
        let text = &rest[1..end.ok_or_else(|| wrong("unterminated array"))?];
        self.at += text.len() + 2;
        if text.contains(',') {
            let part = |p: &str| action(&format!("[{}]", p.trim_matches(' ')), self.depth + 1);
            steps.push(Step::Union(text.split(',').map(part).collect::<Result<_, _>>()?));
            return Ok(());
        }
        // A quoted name is read as the path behind a dot.
        let name = text.strip_prefix('\'').and_then(|t| t.strip_suffix('\'')).filter(|t| !t.contains('\''));
        if let Some(path) = name {
            steps.extend(action(&format!(".{path}"), self.depth + 1)?);
            return Ok(());
        }
        steps.push(slice(if text == "*" { ":" } else { text })?);
        Ok(())
    }

    /// From `[?(` to the first `)` that is not in the first quotes, and the `]` after it.
    fn filter(&mut self) -> Result<Step, Error> {
        let rest = &self.rest()[3..];
        let (mut quote, mut closed, mut before) = (None, false, '(');
        let mut end = None;
        for (i, c) in rest.char_indices() {
            match c {
                '\n' => break,
                '"' | '\'' if quote.is_none() => quote = Some(c),
                '"' | '\'' => closed |= quote == Some(c) && before != '\\',
                ')' if quote.is_some() == closed => {
                    end = Some(i);
                    break;
                }
                _ => {}
            }
            before = c;
        }
        let end = end.ok_or_else(|| wrong("unterminated filter"))?;
        if !rest[end + 1..].starts_with(']') {
            return Err(wrong("unclosed array expect ]"));
        }
        self.at += 3 + end + 2;
        comparison(&rest[..end], self.depth + 1)
    }
}

/// The text of a quoted string (`strconv.UnquoteChar`). None if an escape is not one of Go's.
fn unquote(text: &str, quote: char) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == quote {
            return None;
        }
        let mut push = |c: char| out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        if c != '\\' {
            push(c);
            continue;
        }
        match chars.next()? {
            'a' => push('\x07'),
            'b' => push('\x08'),
            'f' => push('\x0c'),
            'n' => push('\n'),
            'r' => push('\r'),
            't' => push('\t'),
            'v' => push('\x0b'),
            '\\' => push('\\'),
            'x' => out.push(u8::try_from(digits(&mut chars, 0, 2, 16)?).ok()?),
            'u' => push(char::from_u32(digits(&mut chars, 0, 4, 16)?)?),
            'U' => push(char::from_u32(digits(&mut chars, 0, 8, 16)?)?),
            c @ '0'..='7' => out.push(u8::try_from(digits(&mut chars, c.to_digit(8)?, 2, 8)?).ok()?),
            c if c == quote => push(c),
            _ => return None,
        }
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

/// A number that begins with one digit and has `n` more.
fn digits(chars: &mut std::str::Chars, first: u32, n: usize, radix: u32) -> Option<u32> {
    (0..n).try_fold(first, |value, _| value.checked_mul(radix)?.checked_add(chars.next()?.to_digit(radix)?))
}

/// `1`, `1:2` or `1:2:3`, each of which may be left out; no index at all is the first.
fn slice(text: &str) -> Result<Step, Error> {
    let parts: Vec<&str> = text.split(':').collect();
    let shaped = |p: &&str| p.strip_prefix('-').unwrap_or(p).bytes().all(|b| b.is_ascii_digit());
    if parts.len() > 3 || !parts.iter().all(shaped) {
        return Err(wrong(format!("invalid array index {text}")));
    }
    let number = |i: usize| match parts.get(i) {
        None | Some(&"") => Ok(None),
        Some(p) => p.parse::<i64>().map(Some).map_err(|_| wrong(format!("array index {p} is not a number"))),
    };
    let (from, to, step) = (number(0)?, number(1)?, number(2)?);
    let derived = parts.len() == 1;
    let to = if derived { Some(from.unwrap_or(0).wrapping_add(1)) } else { to };
    Ok(Step::Slice { from, to, derived, step })
}

/// Both sides of the first characters of `!<>=`, or what has to exist.
fn comparison(text: &str, depth: usize) -> Result<Step, Error> {
    use Comparison::*;
    let operators = ['!', '<', '>', '='];
    let sides = text.split_once(operators).and_then(|(left, _)| {
        let behind = &text[left.len()..];
        let right = behind.trim_start_matches(operators);
        // What is compared with has to be something, if only a part of the operator.
        let right = if right.is_empty() { &behind[behind.len() - 1..] } else { right };
        let operator = &behind[..behind.len() - right.len()];
        (!left.is_empty() && !operator.is_empty()).then_some((left, operator, right))
    });
    let Some((left, operator, right)) = sides else {
        return Ok(Step::Filter(action(text, depth)?, Exists, Vec::new()));
    };
    let how = match operator {
        "==" => Equal,
        "!=" => NotEqual,
        "<" => Less,
        "<=" => LessOrEqual,
        ">" => Greater,
        ">=" => GreaterOrEqual,
        other => Unknown(other.to_owned()),
    };
    Ok(Step::Filter(action(left, depth)?, how, action(right, depth)?))
}
