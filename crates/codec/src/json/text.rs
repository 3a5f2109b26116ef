//! Formats JSON text without decoding it into values: fields in the order of the type, indented.

use super::{Member, float, in_order, new_line};
use schema::{Schema, Type};
use std::borrow::Cow;

/// Deeper text is left to the caller, who decodes it: this code is recursive.
const MAX_DEPTH: usize = 128;

/// A value or the key of a member, in the order of the text.
struct Node {
    from: usize,
    to: usize,
    /// The index of the first node after this one and its parts.
    next: usize,
}

struct Text<'a> {
    bytes: &'a [u8],
    nodes: Vec<Node>,
    indent: &'a str,
}

/// Appends compact JSON text as [`super::write_typed`] writes the value of the text. `depth` is the number of
/// levels around it. Returns false, and appends nothing, if the text is nested deeply or is not compact JSON.
pub fn format_typed(out: &mut Vec<u8>, text: &[u8], schema: Option<&Schema>, indent: &str, depth: usize) -> bool {
    let mut t = Text { bytes: text, nodes: Vec::with_capacity(text.len() / 16), indent };
    if t.read(0, 0) != Some(text.len()) {
        return false;
    }
    out.reserve(text.len() * 3 / 2);
    t.write(out, 0, schema, depth);
    true
}

/// The number of bytes of compact JSON text when it is indented as [`format_typed`] does, but for spaces after names. Reads the text once.
pub fn indented_len(text: &[u8], indent: &str, depth: usize) -> usize {
    let (mut levels, mut breaks) = (depth, 0usize);
    let mut at = 0;
    while let Some(b) = text.get(at) {
        match b {
            b'"' => {
                // To the end of the string.
                at += 1;
                while let Some(b) = text.get(at).filter(|b| **b != b'"') {
                    at += if *b == b'\\' { 2 } else { 1 };
                }
            }
            b'{' | b'[' => {
                levels += 1;
                breaks += 1 + levels * indent.len();
            }
            b',' => breaks += 1 + levels * indent.len(),
            b'}' | b']' => {
                levels = levels.saturating_sub(1);
                breaks += 1 + levels * indent.len();
            }
            _ => {}
        }
        at += 1;
    }
    text.len() + breaks
}

impl<'a> Text<'a> {
    /// Reads the value at `at` into nodes. Returns the position after it.
    fn read(&mut self, at: usize, depth: usize) -> Option<usize> {
        if depth > MAX_DEPTH {
            return None;
        }
        let node = self.nodes.len();
        self.nodes.push(Node { from: at, to: at, next: 0 });
        let to = match self.bytes.get(at)? {
            b'"' => self.string(at)?,
            b'{' => self.parts(at, b'}', depth)?,
            b'[' => self.parts(at, b']', depth)?,
            _ => {
                let rest = self.bytes.get(at..)?;
                let length = rest.iter().position(|b| b",]}".contains(b)).unwrap_or(rest.len());
                let is_token = rest[..length].iter().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(b));
                (length > 0 && is_token).then_some(at + length)?
            }
        };
        let next = self.nodes.len();
        self.nodes[node].to = to;
        self.nodes[node].next = next;
        Some(to)
    }

    /// Reads the members or items of what opens at `at`.
    fn parts(&mut self, at: usize, close: u8, depth: usize) -> Option<usize> {
        let mut at = at + 1;
        if *self.bytes.get(at)? == close {
            return Some(at + 1);
        }
        loop {
            if close == b'}' {
                let to = self.string(at)?;
                let next = self.nodes.len() + 1;
                self.nodes.push(Node { from: at, to, next });
                at = (*self.bytes.get(to)? == b':').then_some(to + 1)?;
            }
            at = self.read(at, depth + 1)?;
            match *self.bytes.get(at)? {
                b',' => at += 1,
                b if b == close => return Some(at + 1),
                _ => return None,
            }
        }
    }

    fn string(&self, at: usize) -> Option<usize> {
        let mut at = (*self.bytes.get(at)? == b'"').then_some(at + 1)?;
        loop {
            match self.bytes.get(at)? {
                b'"' => return Some(at + 1),
                b'\\' => at += 2,
                _ => at += 1,
            }
        }
    }

    fn token(&self, node: &Node) -> &'a [u8] {
        &self.bytes[node.from..node.to]
    }

    fn write(&self, out: &mut Vec<u8>, index: usize, schema: Option<&Schema>, depth: usize) {
        let node = &self.nodes[index];
        let token = self.token(node);
        let schema = schema.map(|s| {
            let ty = if token[0] == b'[' { Type::Array } else { Type::Struct };
            s.alternative(ty).map_or(s, |a| a.schema.get())
        });
        match token[0] {
            b'"' => write_string(out, token),
            b'{' | b'[' if token.len() == 2 => out.extend_from_slice(token),
            b'[' => {
                let items = schema.and_then(|s| s.items.as_deref());
                out.push(b'[');
                let mut at = index + 1;
                while at < node.next {
                    self.separate(out, at == index + 1, depth + 1);
                    self.write(out, at, items, depth + 1);
                    at = self.nodes[at].next;
                }
                new_line(out, Some(self.indent), depth);
                out.push(b']');
            }
            b'{' => {
                out.push(b'{');
                for (i, m) in self.members(index, schema).into_iter().enumerate() {
                    self.separate(out, i == 0, depth + 1);
                    write_string(out, self.token(&self.nodes[m.name]));
                    out.extend_from_slice(b": ");
                    self.write(out, m.value, m.schema, depth + 1);
                }
                new_line(out, Some(self.indent), depth);
                out.push(b'}');
            }
            _ => write_scalar(out, token),
        }
    }

    fn separate(&self, out: &mut Vec<u8>, first: bool, depth: usize) {
        if !first {
            out.push(b',');
        }
        new_line(out, Some(self.indent), depth);
    }

    /// The text of a key.
    fn key(&self, index: usize) -> Cow<'a, str> {
        let token = self.token(&self.nodes[index]);
        match memchr::memchr(b'\\', token) {
            None => String::from_utf8_lossy(&token[1..token.len() - 1]),
            Some(_) => serde_json::from_slice(token).map(Cow::Owned).unwrap_or_default(),
        }
    }

    /// The members of an object, in the order of its type, or of their names if it has none.
    fn members<'s>(&self, index: usize, schema: Option<&'s Schema>) -> Vec<Member<'s, usize, usize>> {
        let mut key = index + 1;
        let end = self.nodes[index].next;
        let pairs = std::iter::from_fn(|| {
            let name = (key < end).then_some(key)?;
            key = self.nodes[name + 1].next;
            Some((name, name + 1))
        });
        match schema.filter(|s| s.ty == Type::Struct && !s.custom) {
            Some(s) => {
                let named = pairs.map(|(name, value)| {
                    let token = self.token(&self.nodes[name]);
                    (name, std::str::from_utf8(&token[1..token.len() - 1]).unwrap_or_default(), value)
                });
                in_order(named, s)
            }
            None => {
                let values = schema.and_then(|s| s.additional.as_deref());
                let mut all: Vec<_> =
                    pairs.map(|(name, value)| Member { name, value, schema: values, place: 0 }).collect();
                if !all.is_sorted_by(|a, b| self.key(a.name) <= self.key(b.name)) {
                    all.sort_by(|a, b| self.key(a.name).cmp(&self.key(b.name)));
                }
                all
            }
        }
    }
}

/// Copies a string. Go escapes two line ends of JavaScript, which the text has as they are.
fn write_string(out: &mut Vec<u8>, token: &[u8]) {
    let mut from = 0;
    for at in memchr::memchr_iter(0xe2, token) {
        let escaped: &[u8] = match token.get(at..at + 3) {
            Some([_, 0x80, 0xa8]) => b"\\u2028",
            Some([_, 0x80, 0xa9]) => b"\\u2029",
            _ => continue,
        };
        out.extend_from_slice(&token[from..at]);
        out.extend_from_slice(escaped);
        from = at + 3;
    }
    out.extend_from_slice(&token[from..]);
}

/// Copies a literal or an integer; formats a float as Go does.
fn write_scalar(out: &mut Vec<u8>, token: &[u8]) {
    let is_float = matches!(token[0], b'-' | b'0'..=b'9') && token.iter().any(|b| b".eE".contains(b));
    match std::str::from_utf8(token).ok().filter(|_| is_float).and_then(|t| t.parse().ok()) {
        Some(f) => out.extend_from_slice(float(f).as_bytes()),
        None => out.extend_from_slice(token),
    }
}
