//! From text to tokens. The longest token wins; what begins none is skipped and reported, as ANTLR's lexers do it.

use super::token::{Kind, Token};
use std::collections::HashSet;

/// Text that is no token: it is skipped.
pub(super) struct Skipped {
    /// Bytes of the text.
    pub start: usize,
    pub end: usize,
    /// Its position in code points.
    pub at: u32,
    /// How many tokens are before it.
    pub before: usize,
}

/// The tokens of a text, the last one its end.
pub(super) struct Tokens {
    pub all: Vec<Token>,
    pub skipped: Vec<Skipped>,
    /// How deep brackets and conditionals may be nested at most.
    pub nesting: usize,
}

/// A string that does not end: where it fails.
struct Unterminated(usize);

pub(super) fn tokens(source: &str) -> Tokens {
    let mut lexer = Lexer { source, bytes: source.as_bytes(), dead: HashSet::new() };
    let mut out = Tokens { all: Vec::with_capacity(source.len() / 4 + 2), skipped: Vec::new(), nesting: 0 };
    let (mut start, mut at, mut open) = (0, 0, 0usize);
    while start < source.len() {
        let end = match lexer.token(start) {
            Ok((Some(kind), end)) => {
                match kind {
                    Kind::LeftParen | Kind::LeftBracket | Kind::LeftBrace | Kind::Question => open += 1,
                    Kind::RightParen | Kind::RightBracket | Kind::RightBrace => open = open.saturating_sub(1),
                    _ => {}
                }
                out.nesting = out.nesting.max(open);
                out.all.push(Token { kind, start: start as u32, end: end as u32, at });
                end
            }
            Ok((None, end)) => end,
            Err(failed) => {
                // The character that did not fit is skipped too.
                let end = failed + source[failed..].chars().next().map_or(0, char::len_utf8);
                out.skipped.push(Skipped { start, end, at, before: out.all.len() });
                end
            }
        };
        at += source[start..end].bytes().filter(|b| b & 0xc0 != 0x80).count() as u32;
        start = end;
    }
    let end = source.len() as u32;
    out.all.push(Token { kind: Kind::Eof, start: end, end, at });
    out
}

struct Lexer<'s> {
    source: &'s str,
    bytes: &'s [u8],
    /// Positions (with the quote) from which a string of three quotes is known not to end.
    dead: HashSet<(u8, usize)>,
}

impl Lexer<'_> {
    fn byte(&self, i: usize) -> u8 {
        self.bytes.get(i).copied().unwrap_or(0)
    }

    /// The token here, without a kind if it separates others, and where it ends; or where what is no token stops being one.
    fn token(&mut self, start: usize) -> Result<(Option<Kind>, usize), usize> {
        let two = |kind| Ok((Some(kind), start + 2));
        let one = |kind| Ok((Some(kind), start + 1));
        match (self.byte(start), self.byte(start + 1)) {
            (b' ' | b'\t' | b'\r' | b'\n' | 0x0c, _) => Ok((None, self.skip(start, |b| b" \t\r\n\x0c".contains(&b)))),
            (b'/', b'/') => Ok((None, self.skip(start, |b| b != b'\n'))),
            (b'=', b'=') => two(Kind::Equals),
            (b'!', b'=') => two(Kind::NotEquals),
            (b'<', b'=') => two(Kind::LessEquals),
            (b'>', b'=') => two(Kind::GreaterEquals),
            (b'&', b'&') => two(Kind::And),
            (b'|', b'|') => two(Kind::Or),
            (b'=' | b'&' | b'|', _) => Err(start + 1),
            (b'<', _) => one(Kind::Less),
            (b'>', _) => one(Kind::Greater),
            (b'[', _) => one(Kind::LeftBracket),
            (b']', _) => one(Kind::RightBracket),
            (b'{', _) => one(Kind::LeftBrace),
            (b'}', _) => one(Kind::RightBrace),
            (b'(', _) => one(Kind::LeftParen),
            (b')', _) => one(Kind::RightParen),
            (b'.', b'0'..=b'9') => Ok((Some(Kind::Float), self.exponent(self.digits(start + 1)))),
            (b'.', _) => one(Kind::Dot),
            (b',', _) => one(Kind::Comma),
            (b'-', _) => one(Kind::Minus),
            (b'!', _) => one(Kind::Not),
            (b'?', _) => one(Kind::Question),
            (b':', _) => one(Kind::Colon),
            (b'+', _) => one(Kind::Plus),
            (b'*', _) => one(Kind::Star),
            (b'/', _) => one(Kind::Slash),
            (b'%', _) => one(Kind::Percent),
            (b'0'..=b'9', _) => Ok(self.number(start)),
            (b'"' | b'\'', _) => self.string(start).map(|end| (Some(Kind::String), end)).map_err(|u| u.0),
            (b'`', _) => self.escaped(start),
            (b'a'..=b'z' | b'A'..=b'Z' | b'_', _) => Ok(self.word(start)),
            _ => Err(start),
        }
    }

    fn skip(&self, from: usize, belongs: impl Fn(u8) -> bool) -> usize {
        from + self.bytes[from..].iter().take_while(|b| belongs(**b)).count()
    }

    fn digits(&self, from: usize) -> usize {
        self.skip(from, |b| b.is_ascii_digit())
    }

    /// The end of an exponent, if there is one.
    fn exponent(&self, from: usize) -> usize {
        if !matches!(self.byte(from), b'e' | b'E') {
            return from;
        }
        let digits = from + 1 + usize::from(matches!(self.byte(from + 1), b'+' | b'-'));
        let end = self.digits(digits);
        if end > digits { end } else { from }
    }

    fn number(&self, start: usize) -> (Option<Kind>, usize) {
        let integer = |end: usize| match self.byte(end) {
            b'u' | b'U' => (Some(Kind::Uint), end + 1),
            _ => (Some(Kind::Int), end),
        };
        if self.bytes[start..].starts_with(b"0x") && self.byte(start + 2).is_ascii_hexdigit() {
            return integer(self.skip(start + 2, |b| b.is_ascii_hexdigit()));
        }
        let whole = self.digits(start);
        let fraction = match (self.byte(whole), self.byte(whole + 1)) {
            (b'.', b'0'..=b'9') => self.digits(whole + 1),
            _ => whole,
        };
        match self.exponent(fraction) {
            end if end > whole => (Some(Kind::Float), end),
            _ => integer(whole),
        }
    }

    /// A string or bytes with a prefix, or a name.
    fn word(&mut self, start: usize) -> (Option<Kind>, usize) {
        let (kind, raw) = match (self.byte(start), self.byte(start + 1)) {
            (b'b' | b'B', _) => (Kind::Bytes, start + 1),
            _ => (Kind::String, start),
        };
        let quote = raw + usize::from(matches!(self.byte(raw), b'r' | b'R'));
        if quote > start && matches!(self.byte(quote), b'"' | b'\'') {
            let end = if quote > raw { self.raw_string(quote) } else { self.string(quote) };
            if let Ok(end) = end {
                return (Some(kind), end);
            }
        }
        let end = self.skip(start, |b| b.is_ascii_alphanumeric() || b == b'_');
        let kind = match &self.source[start..end] {
            "in" => Kind::In,
            "true" => Kind::True,
            "false" => Kind::False,
            "null" => Kind::Null,
            _ => Kind::Ident,
        };
        (Some(kind), end)
    }

    fn escaped(&self, start: usize) -> Result<(Option<Kind>, usize), usize> {
        let end = self.skip(start + 1, |b| b.is_ascii_alphanumeric() || b"_.-/ ".contains(&b));
        if end > start + 1 && self.byte(end) == b'`' { Ok((Some(Kind::EscapedIdent), end + 1)) } else { Err(end) }
    }

    fn is_triple(&self, at: usize, quote: u8) -> bool {
        self.bytes[at..].starts_with(&[quote; 3])
    }

    /// The end of a string with escapes that begins with the quote here.
    fn string(&mut self, start: usize) -> Result<usize, Unterminated> {
        let quote = self.byte(start);
        if self.is_triple(start, quote) {
            // Without an end it is an empty string, and something else behind it.
            return Ok(self.triple(start + 3, quote).unwrap_or(start + 2));
        }
        let mut i = start + 1;
        loop {
            match self.bytes.get(i) {
                Some(b) if *b == quote => return Ok(i + 1),
                Some(b'\\') => i = self.escape(i)?,
                None | Some(b'\n' | b'\r') => return Err(Unterminated(i)),
                Some(_) => i += 1,
            }
        }
    }

    fn triple(&mut self, start: usize, quote: u8) -> Option<usize> {
        let mut i = start;
        let mut seen = Vec::new();
        let end = loop {
            match self.bytes.get(i) {
                Some(b) if *b == quote && self.is_triple(i, quote) => break Some(i + 3),
                Some(b'\\') => {
                    if self.dead.contains(&(quote, i)) {
                        break None;
                    }
                    seen.push((quote, i));
                    match self.escape(i) {
                        Ok(next) => i = next,
                        Err(_) => break None,
                    }
                }
                None => break None,
                Some(_) => i += 1,
            }
        };
        // Every place where another scan could begin anew is behind an escape.
        if end.is_none() {
            self.dead.extend(seen);
        }
        end
    }

    fn raw_string(&self, start: usize) -> Result<usize, Unterminated> {
        let quote = self.byte(start);
        if self.is_triple(start, quote) {
            let end = self.source[start + 3..].find(if quote == b'"' { "\"\"\"" } else { "'''" });
            return Ok(end.map_or(start + 2, |n| start + 6 + n));
        }
        let end = self.skip(start + 1, |b| b != quote && b != b'\n' && b != b'\r');
        if self.byte(end) == quote { Ok(end + 1) } else { Err(Unterminated(end)) }
    }

    /// The end of the escape sequence here.
    fn escape(&self, at: usize) -> Result<usize, Unterminated> {
        let digits = |n: usize, fits: fn(u8) -> bool| match (0..n).find(|i| !fits(self.byte(at + 2 + i))) {
            Some(i) => Err(Unterminated(at + 2 + i)),
            None => Ok(at + 2 + n),
        };
        let hexadecimal = |b: u8| b.is_ascii_hexdigit();
        match self.byte(at + 1) {
            b'a' | b'b' | b'f' | b'n' | b'r' | b't' | b'v' | b'"' | b'\'' | b'\\' | b'?' | b'`' => Ok(at + 2),
            b'x' | b'X' => digits(2, hexadecimal),
            b'u' => digits(4, hexadecimal),
            b'U' => digits(8, hexadecimal),
            b'0'..=b'3' => digits(2, |b| matches!(b, b'0'..=b'7')),
            _ => Err(Unterminated(at + 1)),
        }
    }
}
