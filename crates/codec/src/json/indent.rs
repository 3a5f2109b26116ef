//! Indents compact JSON text in pieces, for text that is many times as large when it is indented.

/// The state between two pieces of a text.
#[derive(Clone, Debug)]
pub struct Indenter {
    indent: &'static str,
    depth: usize,
    /// Inside a string, and after a backslash in it.
    string: bool,
    escaped: bool,
    /// After an opening bracket, whose line ends only if it is not empty.
    opened: bool,
}

impl Indenter {
    /// `depth` is the number of levels around the text.
    pub fn new(indent: &'static str, depth: usize) -> Self {
        Self { indent, depth, string: false, escaped: false, opened: false }
    }

    /// Appends the text as [`super::write_typed`] indents its value, until `out` has `limit` bytes. Returns how many bytes of the text
    /// were read; the next call continues behind them.
    pub fn push(&mut self, text: &[u8], out: &mut Vec<u8>, limit: usize) -> usize {
        let mut at = 0;
        while at < text.len() && out.len() < limit {
            if self.string {
                let length = self.string_len(&text[at..]);
                out.extend_from_slice(&text[at..at + length]);
                at += length;
                continue;
            }
            let b = text[at];
            at += 1;
            match (std::mem::take(&mut self.opened), matches!(b, b'}' | b']')) {
                (true, false) => {
                    self.depth += 1;
                    self.new_line(out);
                }
                (false, true) => {
                    self.depth = self.depth.saturating_sub(1);
                    self.new_line(out);
                }
                (true, true) | (false, false) => {}
            }
            out.push(b);
            match b {
                b'"' => self.string = true,
                b'{' | b'[' => self.opened = true,
                b',' => self.new_line(out),
                b':' => out.push(b' '),
                _ => {}
            }
        }
        at
    }

    /// The length of the rest of a string in the text, with its closing quote.
    fn string_len(&mut self, text: &[u8]) -> usize {
        for (i, b) in text.iter().enumerate() {
            match (std::mem::take(&mut self.escaped), b) {
                (true, _) => {}
                (false, b'\\') => self.escaped = true,
                (false, b'"') => {
                    self.string = false;
                    return i + 1;
                }
                _ => {}
            }
        }
        text.len()
    }

    fn new_line(&self, out: &mut Vec<u8>) {
        super::new_line(out, Some(self.indent), self.depth);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::write_typed;
    use serde_json::json;

    #[test]
    fn pieces_are_indented_as_the_whole() {
        let values = [
            json!({}),
            json!([]),
            json!("text"),
            json!(null),
            json!([{}, [], [[]], [{}], {"a": {}}, {"b": []}]),
            json!({"": "", "a\"b": "c\\", "{": "[,:]\"}", "\u{2028}": "é😀", "n": [1, -2.5, true, null, "x"]}),
            json!({"a": {"b": {"c": [[[["deep"]]], {"d": 1, "e": [2, 3]}]}}}),
        ];
        for v in &values {
            let (mut text, mut expected) = (Vec::new(), Vec::new());
            write_typed(&mut text, v, None, None);
            write_typed(&mut expected, v, None, Some("  "));
            let text = text.trim_ascii_end();
            for limit in [1, 2, 7, 1000] {
                let (mut indenter, mut out, mut at) = (Indenter::new("  ", 0), Vec::new(), 0);
                while at < text.len() {
                    let mut piece = Vec::new();
                    at += indenter.push(&text[at..], &mut piece, limit);
                    out.extend(piece);
                }
                assert_eq!(String::from_utf8(out).unwrap(), String::from_utf8(expected.clone()).unwrap(), "{limit}");
            }
        }
    }
}
