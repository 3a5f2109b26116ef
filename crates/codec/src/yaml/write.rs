//! Values to YAML, byte for byte as go-yaml v2 emits them in block style.
//!
//! The line-breaking and quoting rules are those of libyaml's emitter, which go-yaml descends from; the emitter's state
//! (column, indentation, whether white space or only indentation has been written on this line) is kept the same way.

use super::resolve;
use meta::Value;
use serde_json::Number;
use std::cmp::Ordering;
use std::fmt::Write as _;

/// Longer lines are folded at the next single space.
const WIDTH: usize = 80;
/// Longer keys are written as `? key`.
const SIMPLE_KEY: usize = 128;

/// One document with a newline at the end and no `---`. Keys in go-yaml's natural order (`a2` before `a10`).
pub fn to_string(v: &Value) -> String {
    let mut e = Emitter { out: String::with_capacity(1024), column: 0, indent: -1, whitespace: true, indention: true };
    e.document(v);
    e.out
}

enum Frame<'a> {
    Mapping { pairs: std::vec::IntoIter<(&'a str, &'a Value)>, indent: isize },
    Sequence { items: std::slice::Iter<'a, Value>, indent: isize },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    Item,
    /// A mapping's value.
    Value,
}

struct Emitter {
    out: String,
    column: usize,
    indent: isize,
    /// The last character was white space.
    whitespace: bool,
    /// Nothing but white space and indicators so far on this line.
    indention: bool,
}

impl Emitter {
    fn document(&mut self, root: &Value) {
        let mut stack: Vec<Frame<'_>> = Vec::new();
        let mut next = Some((root, Place::Root));
        loop {
            if let Some((v, place)) = next.take() {
                match v {
                    Value::Array(a) if !a.is_empty() => {
                        stack.push(Frame::Sequence { items: a.iter(), indent: self.indent });
                        // A list under a plain key is not indented further than the key.
                        if place != Place::Value || self.indention {
                            self.increase();
                        }
                    }
                    Value::Object(m) if !m.is_empty() => {
                        let mut pairs: Vec<(&str, &Value)> = m.iter().map(|(k, v)| (k.as_str(), v)).collect();
                        sort(&mut pairs);
                        stack.push(Frame::Mapping { pairs: pairs.into_iter(), indent: self.indent });
                        self.increase();
                    }
                    other => self.scalar(other, false),
                }
            }
            match stack.last_mut() {
                None => break,
                Some(Frame::Mapping { pairs, indent }) => match pairs.next() {
                    Some((k, v)) => {
                        self.key(k);
                        next = Some((v, Place::Value));
                    }
                    None => {
                        self.indent = *indent;
                        stack.pop();
                    }
                },
                Some(Frame::Sequence { items, indent }) => match items.next() {
                    Some(v) => {
                        self.write_indent();
                        self.indicator("-", true, false, true);
                        next = Some((v, Place::Item));
                    }
                    None => {
                        self.indent = *indent;
                        stack.pop();
                    }
                },
            }
        }
        self.write_indent();
    }

    fn key(&mut self, key: &str) {
        self.write_indent();
        if key.len() <= SIMPLE_KEY && !key.contains(is_break) {
            // go-yaml leaves this one plain, and reads it back as what is to be merged.
            if key == "<<" {
                self.double_quoted(key, false);
            } else {
                self.string(key, true);
            }
            self.indicator(":", false, false, false);
        } else {
            self.indicator("?", true, false, true);
            self.string(key, false);
            self.write_indent();
            self.indicator(":", true, false, true);
        }
    }

    fn scalar(&mut self, v: &Value, simple_key: bool) {
        match v {
            Value::Null => self.plain("null", false),
            Value::Bool(b) => self.plain(if *b { "true" } else { "false" }, false),
            Value::Number(n) => self.plain(&number(n), false),
            Value::String(s) => self.string(s, simple_key),
            Value::Array(_) => self.indicator("[]", true, false, false),
            Value::Object(_) => self.indicator("{}", true, false, false),
        }
    }

    fn string(&mut self, s: &str, simple_key: bool) {
        let parent = self.indent;
        self.indent = if parent < 0 { 2 } else { parent + 2 };
        let a = Analysis::new(s);
        let fold = !simple_key;
        if s.contains('\n') {
            if a.block_allowed && !simple_key {
                self.literal(s);
            } else {
                self.double_quoted(s, fold);
            }
        } else if !resolve::reads_back_as_string(s) {
            self.double_quoted(s, fold);
        } else if a.plain_allowed {
            self.plain(s, fold);
        } else if a.single_quoted_allowed {
            self.single_quoted(s, fold);
        } else {
            self.double_quoted(s, fold);
        }
        self.indent = parent;
    }

    fn increase(&mut self) {
        self.indent = if self.indent < 0 { 0 } else { self.indent + 2 };
    }

    fn put(&mut self, c: char) {
        self.out.push(c);
        self.column += 1;
    }

    fn put_break(&mut self, c: char) {
        self.out.push(c);
        self.column = 0;
    }

    fn write_indent(&mut self) {
        let indent = usize::try_from(self.indent).unwrap_or(0);
        if !self.indention || self.column > indent || (self.column == indent && !self.whitespace) {
            self.put_break('\n');
        }
        while self.column < indent {
            self.put(' ');
        }
        self.whitespace = true;
        self.indention = true;
    }

    fn indicator(&mut self, text: &str, space_before: bool, whitespace: bool, indention: bool) {
        if space_before && !self.whitespace {
            self.put(' ');
        }
        for c in text.chars() {
            self.put(c);
        }
        self.whitespace = whitespace;
        self.indention = self.indention && indention;
    }

    fn plain(&mut self, s: &str, fold: bool) {
        if !self.whitespace {
            self.put(' ');
        }
        let (mut spaces, mut breaks) = (false, false);
        let mut chars = s.chars().peekable();
        while let Some(c) = chars.next() {
            if c == ' ' {
                if fold && !spaces && self.column > WIDTH && chars.peek() != Some(&' ') {
                    self.write_indent();
                } else {
                    self.put(c);
                }
                spaces = true;
            } else if is_break(c) {
                self.put_break(c);
                self.indention = true;
                breaks = true;
            } else {
                if breaks {
                    self.write_indent();
                }
                self.put(c);
                self.indention = false;
                (spaces, breaks) = (false, false);
            }
        }
        self.whitespace = false;
        self.indention = false;
    }

    fn single_quoted(&mut self, s: &str, fold: bool) {
        self.indicator("'", true, false, false);
        let (mut spaces, mut breaks) = (false, false);
        let mut chars = s.char_indices().peekable();
        while let Some((i, c)) = chars.next() {
            if c == ' ' {
                let inside = i > 0 && i + 1 < s.len() && chars.peek().is_some_and(|n| n.1 != ' ');
                if fold && !spaces && self.column > WIDTH && inside {
                    self.write_indent();
                } else {
                    self.put(c);
                }
                spaces = true;
            } else if is_break(c) {
                if !breaks && c == '\n' {
                    self.put_break('\n');
                }
                self.put_break(c);
                self.indention = true;
                breaks = true;
            } else {
                if breaks {
                    self.write_indent();
                }
                if c == '\'' {
                    self.put(c);
                }
                self.put(c);
                self.indention = false;
                (spaces, breaks) = (false, false);
            }
        }
        self.indicator("'", false, false, false);
        self.whitespace = false;
        self.indention = false;
    }

    fn double_quoted(&mut self, s: &str, fold: bool) {
        self.indicator("\"", true, false, false);
        // go-yaml escapes everything if the *string* starts with a byte order mark.
        let all = s.starts_with('\u{feff}');
        let mut spaces = false;
        let mut chars = s.char_indices().peekable();
        while let Some((i, c)) = chars.next() {
            if all || !is_printable(c) || is_break(c) || matches!(c, '"' | '\\') {
                self.escape(c);
                spaces = false;
            } else if c == ' ' {
                if fold && !spaces && self.column > WIDTH && i > 0 && i + 1 < s.len() {
                    self.write_indent();
                    if chars.peek().is_some_and(|n| n.1 == ' ') {
                        self.put('\\');
                    }
                } else {
                    self.put(c);
                }
                spaces = true;
            } else {
                self.put(c);
                spaces = false;
            }
        }
        self.indicator("\"", false, false, false);
        self.whitespace = false;
        self.indention = false;
    }

    fn escape(&mut self, c: char) {
        let mut text = String::from("\\");
        let named = match c {
            '\0' => '0',
            '\x07' => 'a',
            '\x08' => 'b',
            '\t' => 't',
            '\n' => 'n',
            '\x0b' => 'v',
            '\x0c' => 'f',
            '\r' => 'r',
            '\x1b' => 'e',
            '"' | '\\' => c,
            '\u{85}' => 'N',
            '\u{a0}' => '_',
            '\u{2028}' => 'L',
            '\u{2029}' => 'P',
            _ => ' ',
        };
        _ = match (named, u32::from(c)) {
            (' ', n @ 0..=0xff) => write!(text, "x{n:02X}"),
            (' ', n @ 0..=0xffff) => write!(text, "u{n:04X}"),
            (' ', n) => write!(text, "U{n:08X}"),
            (named, _) => write!(text, "{named}"),
        };
        for c in text.chars() {
            self.put(c);
        }
    }

    fn literal(&mut self, s: &str) {
        self.indicator("|", true, false, false);
        if s.starts_with(|c| c == ' ' || is_break(c)) {
            self.indicator("2", false, false, false);
        }
        let mut back = s.chars().rev();
        match (back.next().is_some_and(is_break), back.next()) {
            (false, _) => self.indicator("-", false, false, false),
            (true, None) => self.indicator("+", false, false, false),
            (true, Some(c)) if is_break(c) => self.indicator("+", false, false, false),
            (true, _) => {}
        }
        self.put_break('\n');
        self.indention = true;
        self.whitespace = true;
        let mut breaks = true;
        for c in s.chars() {
            if is_break(c) {
                self.put_break(c);
                self.indention = true;
                breaks = true;
            } else {
                if breaks {
                    self.write_indent();
                }
                self.put(c);
                self.indention = false;
                breaks = false;
            }
        }
    }
}

/// Which styles a string's characters allow.
struct Analysis {
    plain_allowed: bool,
    single_quoted_allowed: bool,
    block_allowed: bool,
}

impl Analysis {
    fn new(s: &str) -> Self {
        if s.is_empty() {
            return Self { plain_allowed: true, single_quoted_allowed: true, block_allowed: false };
        }
        let mut indicators = s.starts_with("---") || s.starts_with("...");
        let (mut special, mut line_breaks) = (false, false);
        let (mut space_break, mut break_space) = (false, false);
        let (mut previous_space, mut previous_break) = (false, false);
        let mut after_white = true;
        let mut chars = s.chars().peekable();
        let mut first = true;
        while let Some(c) = chars.next() {
            // A line end other than the end of the string does not count: go-yaml looks for a blank or the end.
            let before_white = chars.peek().is_none_or(|n| matches!(n, ' ' | '\t') || is_break(*n));
            indicators |= match c {
                '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`'
                    if first =>
                {
                    true
                }
                '?' | '-' if first => before_white,
                ':' => before_white,
                '#' => after_white,
                _ => false,
            };
            special |= !is_printable(c);
            if c == ' ' {
                break_space |= previous_break;
                (previous_space, previous_break) = (true, false);
            } else if is_break(c) {
                line_breaks = true;
                space_break |= previous_space;
                (previous_space, previous_break) = (false, true);
            } else {
                (previous_space, previous_break) = (false, false);
            }
            after_white = matches!(c, ' ' | '\t') || is_break(c);
            first = false;
        }
        let edge = |c: char| c == ' ' || is_break(c);
        let at_edge = s.starts_with(edge) || s.ends_with(edge);
        Self {
            plain_allowed: !(at_edge || break_space || space_break || special || line_breaks || indicators),
            single_quoted_allowed: !(break_space || space_break || special),
            block_allowed: !(s.ends_with(' ') || space_break || special),
        }
    }
}

fn is_break(c: char) -> bool {
    matches!(c, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// What go-yaml prints as it is. It has no characters beyond the basic plane, and no tab.
fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}') && c != '\u{feff}'
}

fn number(n: &Number) -> String {
    if n.is_f64() {
        let f = n.as_f64().unwrap_or_default();
        // Through JSON text, where a whole number below 1e21 has no exponent and is read back as an integer.
        let text = crate::json::float(f);
        return match resolve::plain(&text) {
            resolve::Scalar::Int(i) => i.to_string(),
            resolve::Scalar::Uint(u) => u.to_string(),
            _ => resolve::float(f),
        };
    }
    n.to_string()
}

/// Sorts members by [`natural`], merging halves. That order is none for some keys, which the library's sort would not bear.
fn sort(pairs: &mut Vec<(&str, &Value)>) {
    if pairs.len() < 2 {
        return;
    }
    let mut right = pairs.split_off(pairs.len() / 2);
    sort(pairs);
    sort(&mut right);
    let left = std::mem::take(pairs);
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(l), Some(r)) = (left.peek(), right.peek()) {
        let next = if natural(r.0, l.0) == Ordering::Less { right.next() } else { left.next() };
        pairs.extend(next);
    }
    pairs.extend(left.chain(right));
}

/// go-yaml's order of keys: letters after everything else, runs of digits by their value.
fn natural(a: &str, b: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    for i in 0..a.len().min(b.len()) {
        if a[i] == b[i] {
            continue;
        }
        match (a[i].is_alphabetic(), b[i].is_alphabetic()) {
            (true, true) => return a[i].cmp(&b[i]),
            (true, false) => return Ordering::Greater,
            (false, true) => return Ordering::Less,
            (false, false) => {}
        }
        let (mut an, mut bn) = (0u64, 0u64);
        if a[i] == '0' || b[i] == '0' {
            // Within a longer number zeros count.
            let significant = a[..i].iter().rev().take_while(|c| c.is_ascii_digit()).any(|c| *c != '0');
            if significant {
                (an, bn) = (1, 1);
            }
        }
        let run = |s: &[char], n: &mut u64| {
            let mut end = i;
            while let Some(d) = s.get(end).and_then(|c| c.to_digit(10)) {
                *n = n.wrapping_mul(10).wrapping_add(u64::from(d));
                end += 1;
            }
            end
        };
        let (ai, bi) = (run(&a, &mut an), run(&b, &mut bn));
        return an.cmp(&bn).then(ai.cmp(&bi)).then(a[i].cmp(&b[i]));
    }
    a.len().cmp(&b.len())
}

#[cfg(test)]
#[path = "write_tests.rs"]
mod tests;
