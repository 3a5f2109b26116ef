//! Syntax errors of JSON in the form of Go's (`encoding/json`, its scanner): the first invalid character, and what was expected there.

/// The syntax error of a text; none for valid JSON.
pub fn wrong(text: &[u8]) -> Option<String> {
    wrong_at(text).map(|(why, _)| why)
}

/// As [`wrong`], with the offset of the invalid character.
pub fn wrong_at(text: &[u8]) -> Option<(String, usize)> {
    let mut s = Scanner { text, at: 0 };
    s.document().err().map(|why| (why, s.at))
}

/// What is expected next.
enum Open {
    Object,
    Array,
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

type Found<T> = Result<T, String>;

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// The next character, if it is one of these; otherwise an error.
    fn one_of(&mut self, fits: impl Fn(u8) -> bool, place: &str) -> Found<u8> {
        match self.peek() {
            Some(c) if fits(c) => {
                self.at += 1;
                Ok(c)
            }
            Some(c) => Err(format!("invalid character {} {place}", quoted(c))),
            None => Err("unexpected end of JSON input".into()),
        }
    }

    /// Keeps nested values in a list, because a text may nest deeper than the stack.
    fn document(&mut self) -> Found<()> {
        let mut open = Vec::new();
        loop {
            if self.value(&mut open)? {
                continue;
            }
            // A value is complete; the surrounding one continues or is complete, too.
            loop {
                self.blanks();
                match open.last() {
                    None => {
                        let more = self.peek().is_some();
                        return if more { self.one_of(|_| false, "after top-level value").map(drop) } else { Ok(()) };
                    }
                    Some(Open::Object) => {
                        if self.one_of(|c| matches!(c, b',' | b'}'), "after object key:value pair")? == b',' {
                            self.key()?;
                            break;
                        }
                    }
                    Some(Open::Array) => {
                        if self.one_of(|c| matches!(c, b',' | b']'), "after array element")? == b',' {
                            break;
                        }
                    }
                }
                open.pop();
            }
        }
    }

    /// Reads a value, or the beginning of one (true): then its first member is next.
    fn value(&mut self, open: &mut Vec<Open>) -> Found<bool> {
        self.blanks();
        let begins = |c: u8| matches!(c, b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n');
        match self.one_of(begins, "looking for beginning of value")? {
            b'{' => {
                self.blanks();
                if self.closes(b'}') {
                    return Ok(false);
                }
                self.key()?;
                open.push(Open::Object);
                return Ok(true);
            }
            b'[' => {
                self.blanks();
                if self.closes(b']') {
                    return Ok(false);
                }
                open.push(Open::Array);
                return Ok(true);
            }
            b'"' => self.string()?,
            b't' => self.literal("true")?,
            b'f' => self.literal("false")?,
            b'n' => self.literal("null")?,
            first => self.number(first)?,
        }
        Ok(false)
    }

    fn closes(&mut self, with: u8) -> bool {
        let closes = self.peek() == Some(with);
        self.at += usize::from(closes);
        closes
    }

    fn key(&mut self) -> Found<()> {
        self.blanks();
        self.one_of(|c| c == b'"', "looking for beginning of object key string")?;
        self.string()?;
        self.blanks();
        self.one_of(|c| c == b':', "after object key").map(drop)
    }

    fn string(&mut self) -> Found<()> {
        loop {
            match self.one_of(|c| c >= 0x20, "in string literal")? {
                b'"' => return Ok(()),
                b'\\' => self.escape()?,
                _ => {}
            }
        }
    }

    fn escape(&mut self) -> Found<()> {
        let known = |c: u8| matches!(c, b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' | b'u');
        if self.one_of(known, "in string escape code")? == b'u' {
            for _ in 0..4 {
                self.one_of(|c| c.is_ascii_hexdigit(), "in \\u hexadecimal character escape")?;
            }
        }
        Ok(())
    }

    fn literal(&mut self, word: &str) -> Found<()> {
        for c in word.bytes().skip(1) {
            self.one_of(|x| x == c, &format!("in literal {word} (expecting {})", quoted(c)))?;
        }
        Ok(())
    }

    fn digits(&mut self) {
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
    }

    fn number(&mut self, first: u8) -> Found<()> {
        let digit = |c: u8| c.is_ascii_digit();
        let first = if first == b'-' { self.one_of(digit, "in numeric literal")? } else { first };
        if first != b'0' {
            self.digits();
        }
        if self.closes(b'.') {
            self.one_of(digit, "after decimal point in numeric literal")?;
            self.digits();
        }
        if self.closes(b'e') || self.closes(b'E') {
            let _sign = self.closes(b'+') || self.closes(b'-');
            self.one_of(digit, "in exponent of numeric literal")?;
            self.digits();
        }
        Ok(())
    }
}

/// A byte as Go quotes the character with its number.
fn quoted(c: u8) -> String {
    match c {
        b'\'' => "'\\''".into(),
        b'\\' => "'\\\\'".into(),
        0x07 => "'\\a'".into(),
        0x08 => "'\\b'".into(),
        0x0b => "'\\v'".into(),
        0x0c => "'\\f'".into(),
        b'\n' => "'\\n'".into(),
        b'\r' => "'\\r'".into(),
        b'\t' => "'\\t'".into(),
        0..0x20 | 0x7f => format!("'\\x{c:02x}'"),
        0x80..=0xa0 | 0xad => format!("'\\u{c:04x}'"),
        _ => format!("'{}'", char::from(c)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_wrong_character_is_named() {
        for good in ["{}", " [1, -0.5e+3, \"a\\u00e9\\n\", {\"a\": [true, false, null]}] ", "0", "\"\u{e9}\""] {
            assert_eq!(wrong(good.as_bytes()), None, "{good}");
        }
        let cases: [(&[u8], &str); 22] = [
            (b"", "unexpected end of JSON input"),
            (b"{\"a\":", "unexpected end of JSON input"),
            (b"{no", "invalid character 'n' looking for beginning of object key string"),
            (b"{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            (b"{\"a\" 1}", "invalid character '1' after object key"),
            (b"{\"a\":1 2}", "invalid character '2' after object key:value pair"),
            (b"[1,]", "invalid character ']' looking for beginning of value"),
            (b"[1 2]", "invalid character '2' after array element"),
            (b"a", "invalid character 'a' looking for beginning of value"),
            (b"{}x", "invalid character 'x' after top-level value"),
            (b"-x", "invalid character 'x' in numeric literal"),
            (b"01", "invalid character '1' after top-level value"),
            (b"1.x", "invalid character 'x' after decimal point in numeric literal"),
            (b"1ex", "invalid character 'x' in exponent of numeric literal"),
            (b"trve", "invalid character 'v' in literal true (expecting 'u')"),
            (b"nul", "unexpected end of JSON input"),
            (b"\"\n\"", "invalid character '\\n' in string literal"),
            (b"\"\\x\"", "invalid character 'x' in string escape code"),
            (b"\"\\u00g\"", "invalid character 'g' in \\u hexadecimal character escape"),
            (b"'", "invalid character '\\'' looking for beginning of value"),
            (b"\x81", "invalid character '\\u0081' looking for beginning of value"),
            (b"\xe9\x01", "invalid character '\u{e9}' looking for beginning of value"),
        ];
        for (text, want) in cases {
            assert_eq!(wrong(text).as_deref(), Some(want), "{}", String::from_utf8_lossy(text));
        }
        assert_eq!(wrong(&vec![b'['; 100_000]).as_deref(), Some("unexpected end of JSON input"));
    }
}
