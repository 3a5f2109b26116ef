//! Tokens, and sets of them.

use std::fmt;

/// Kinds of tokens, in the order in which messages list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Eof,
    Equals,
    NotEquals,
    In,
    Less,
    LessEquals,
    GreaterEquals,
    Greater,
    And,
    Or,
    LeftBracket,
    RightBracket,
    LeftBrace,
    RightBrace,
    LeftParen,
    RightParen,
    Dot,
    Comma,
    Minus,
    Not,
    Question,
    Colon,
    Plus,
    Star,
    Slash,
    Percent,
    True,
    False,
    Null,
    Float,
    Int,
    Uint,
    String,
    Bytes,
    Ident,
    /// An identifier between back-quotes.
    EscapedIdent,
}

/// What messages call the tokens.
const NAMES: [&str; 36] = [
    "<EOF>",
    "'=='",
    "'!='",
    "'in'",
    "'<'",
    "'<='",
    "'>='",
    "'>'",
    "'&&'",
    "'||'",
    "'['",
    "']'",
    "'{'",
    "'}'",
    "'('",
    "')'",
    "'.'",
    "','",
    "'-'",
    "'!'",
    "'?'",
    "':'",
    "'+'",
    "'*'",
    "'/'",
    "'%'",
    "'true'",
    "'false'",
    "'null'",
    "NUM_FLOAT",
    "NUM_INT",
    "NUM_UINT",
    "STRING",
    "BYTES",
    "IDENTIFIER",
    "ESC_IDENTIFIER",
];

/// A token: its bytes in the text, and its position in code points.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub kind: Kind,
    pub start: u32,
    pub end: u32,
    pub at: u32,
}

impl Token {
    pub fn text<'s>(&self, source: &'s str) -> &'s str {
        source.get(self.start as usize..self.end as usize).unwrap_or("")
    }
}

/// A set of kinds, with a mark that a rule of the grammar can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Set(u64);

impl Set {
    pub const EMPTY: Self = Self(0);
    /// A rule of the grammar can end here.
    pub const END: Self = Self(1 << 63);

    pub const fn new(kinds: &[Kind]) -> Self {
        let (mut bits, mut i) = (0, 0);
        while i < kinds.len() {
            bits |= 1 << kinds[i] as u8;
            i += 1;
        }
        Self(bits)
    }

    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub const fn has(self, kind: Kind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }

    pub const fn can_end(self) -> bool {
        self.0 & Self::END.0 != 0
    }
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = NAMES.iter().enumerate().filter(|(i, _)| self.0 & 1 << i != 0).map(|(_, n)| *n).collect();
        match names[..] {
            [name] => f.write_str(name),
            _ => write!(f, "{{{}}}", names.join(", ")),
        }
    }
}
