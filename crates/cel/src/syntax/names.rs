//! Reserved words, and names of messages.

use super::token::{Kind as T, Token};

/// Reserved words that the grammar takes as tokens of their own.
const KEYWORDS: [&str; 4] = ["false", "in", "null", "true"];
/// Reserved words that the grammar takes as identifiers, and the parser refuses.
const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "namespace",
    "package",
    "return",
    "var",
    "void",
    "while",
];

/// Whether a name is a reserved word of the language, which no variable or field may have.
pub fn is_reserved(name: &str) -> bool {
    KEYWORDS.contains(&name) || RESERVED.contains(&name)
}

/// The error for an identifier that is a reserved word.
pub(super) fn reserved_error(name: &str) -> Option<String> {
    RESERVED.contains(&name).then(|| format!("reserved identifier: {name}"))
}

pub(super) const NO_ESCAPED_IDENTS: &str = "unsupported syntax: '`'";

/// Whether the identifier at this index begins the name of a message, which a brace follows.
pub(super) fn is_message(tokens: &[Token], ident: usize) -> bool {
    let kind = |i: usize| tokens.get(i).map_or(T::Eof, |t| t.kind);
    let mut i = ident + 1;
    while kind(i) == T::Dot && kind(i + 1) == T::Ident {
        i += 2;
    }
    kind(i) == T::LeftBrace
}
