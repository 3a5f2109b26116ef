//! Skips through stored JSON, which is known to be well-formed and without spaces, many bytes at a time. What is not is left
//! where it ends, never read wrong into something else: a string ends at a quote, and everything else by its brackets.

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

    /// The byte at which the next value begins.
    pub fn peek(&self) -> Option<u8> {
        self.json.get(self.at).copied()
    }

    /// Goes to the value of the next member of an object, of which `first` says that it has yet to be entered. Gives the
    /// member's name; none behind the last.
    pub fn member(&mut self, first: &mut bool) -> Option<Option<Cow<'j, str>>> {
        // The brace that opens it, or what is between two members.
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

    /// Reads a scalar as text; of anything else it is empty.
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

    /// Reads a value as it is written.
    pub fn raw(&mut self) -> Option<&'j [u8]> {
        let from = self.at;
        self.skip()?;
        self.json.get(from..self.at)
    }

    /// Goes behind a value.
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

/// Where the string ends that begins here, behind its quote.
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

/// Where the object or array closes whose first member begins here.
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
        let want = [("a\"}", ""), ("n", "-1.5"), ("t", "true"), ("z", ""), ("s", "q\u{e4}\n"), ("e", ""), ("l", "")];
        assert_eq!(seen, want.map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(scan.peek(), None);
    }

    #[test]
    fn what_ends_too_early_is_nothing() {
        let whole = br#"{"a":{"b":"c\"d"},"e":[1,2]}"#;
        for end in 0..whole.len() {
            assert_eq!(Scan::new(&whole[..end]).skip(), None, "{end}");
            // Whoever goes through the members comes to an end.
            let (mut scan, mut first) = (Scan::new(&whole[..end]), true);
            let read = std::iter::from_fn(|| scan.member(&mut first).flatten().and_then(|_| scan.skip())).count();
            assert!(read <= 2, "{end}");
            assert_eq!(closing(whole[..end].get(1..).unwrap_or_default()), None, "{end}");
        }
    }
}
