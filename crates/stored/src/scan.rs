//! Scans stored JSON, known to be well-formed and without whitespace, many bytes at a time. In malformed JSON the
//! scan stops or skips, without misreading values: a string ends at a quote, everything else by its brackets.

use memchr::memchr2;
use std::borrow::Cow;

pub struct Scan<'j> {
    json: &'j [u8],
    at: usize,
}

impl<'j> Scan<'j> {
    pub fn new(json: &'j [u8]) -> Self {
        Self { json, at: 0 }
    }

    /// The first byte of the next value.
    pub fn peek(&self) -> Option<u8> {
        self.json.get(self.at).copied()
    }

    /// Advances to the value of the next member of an object; `first` is true before the first call. Returns the
    /// member's name, none at the end.
    pub fn member(&mut self, first: &mut bool) -> Option<Option<Cow<'j, str>>> {
        // The opening brace, or the comma between two members.
        if !std::mem::take(first) && self.peek()? == b'}' {
            self.at += 1;
            return Some(None);
        }
        self.at += 1;
        if self.peek()? == b'}' {
            self.at += 1;
            return Some(None);
        }
        let name = self.string()?;
        (self.peek()? == b':').then(|| self.at += 1)?;
        Some(Some(name))
    }

    /// Reads a scalar as text; empty for arrays and objects.
    pub fn text(&mut self) -> Option<Cow<'j, str>> {
        match self.peek()? {
            b'"' => self.string(),
            b'{' | b'[' => self.skip().map(|()| Cow::default()),
            _ => {
                let from = self.at;
                self.skip()?;
                let text = std::str::from_utf8(self.json.get(from..self.at)?).ok()?;
                Some(Cow::Borrowed(if text == "null" { "" } else { text }))
            }
        }
    }

    fn string(&mut self) -> Option<Cow<'j, str>> {
        let raw = self.raw()?;
        match memchr::memchr(b'\\', raw) {
            None => std::str::from_utf8(raw.get(1..raw.len() - 1)?).ok().map(Cow::Borrowed),
            Some(_) => serde_json::from_slice(raw).ok().map(Cow::Owned),
        }
    }

    /// Returns the raw bytes of a value.
    pub fn raw(&mut self) -> Option<&'j [u8]> {
        let from = self.at;
        self.skip()?;
        self.json.get(from..self.at)
    }

    /// Skips a value.
    pub fn skip(&mut self) -> Option<()> {
        let rest = self.json.get(self.at + 1..)?;
        let length = match self.peek()? {
            b'"' => quote(rest)? + 1,
            b'{' | b'[' => closing(rest)? + 1,
            _ => rest.iter().position(|b| matches!(b, b',' | b'}' | b']')).unwrap_or(rest.len()),
        };
        self.at += 1 + length;
        Some(())
    }
}

/// The end of the string that begins here, after its quote.
fn quote(json: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr2(b'"', b'\\', json.get(at..)?)?;
        match json[at] {
            b'"' => return Some(at),
            _ => at += 2,
        }
    }
}

/// The end of the object or array whose first member begins here.
pub fn closing(json: &[u8]) -> Option<usize> {
    let (mut depth, mut at) = (0_usize, 0);
    loop {
        match json.get(at)? {
            b'"' => at += 1 + quote(json.get(at + 1..)?)?,
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 0 => return Some(at),
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::{Scan, closing};

    #[test]
    fn values_are_skipped_whole() {
        let json = br#"{"a\"}":{"x":["]}\\",{}],"y":1},"n":-1.5,"t":true,"z":null,"s":"q\u00e4\n","e":{},"l":[]}"#;
        let (mut scan, mut first, mut seen) = (Scan::new(json), true, Vec::new());
        while let Some(name) = scan.member(&mut first).unwrap() {
            seen.push((name.into_owned(), scan.text().unwrap().into_owned()));
        }
        let expected =
            [("a\"}", ""), ("n", "-1.5"), ("t", "true"), ("z", ""), ("s", "q\u{e4}\n"), ("e", ""), ("l", "")];
        assert_eq!(seen, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(scan.peek(), None);
    }

    #[test]
    fn what_ends_too_early_is_nothing() {
        let whole = br#"{"a":{"b":"c\"d"},"e":[1,2]}"#;
        for end in 0..whole.len() {
            assert_eq!(Scan::new(&whole[..end]).skip(), None, "{end}");
            // Iterating over the members terminates.
            let (mut scan, mut first) = (Scan::new(&whole[..end]), true);
            let read = std::iter::from_fn(|| scan.member(&mut first).flatten().and_then(|_| scan.skip())).count();
            assert!(read <= 2, "{end}");
            assert_eq!(closing(whole[..end].get(1..).unwrap_or_default()), None, "{end}");
        }
    }
}
