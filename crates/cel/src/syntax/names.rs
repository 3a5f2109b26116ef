//! Identifiers that the grammar takes but the parser refuses, and names of messages.

use super::token::{Kind as T, Token};

/// Names that stand for nothing, although the grammar takes them for identifiers.
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

/// What is wrong with an identifier or a literal, if the grammar takes it.
pub(super) fn reserved(name: &str) -> Option<String> {
    RESERVED.contains(&name).then(|| format!("reserved identifier: {name}"))
}

pub(super) const NO_ESCAPED_IDENTS: &str = "unsupported syntax: '`'";

/// Whether an identifier here is the first part of the name of a message, before its brace.
pub(super) fn is_message(tokens: &[Token], ident: usize) -> bool {
    let kind = |i: usize| tokens.get(i).map_or(T::Eof, |t| t.kind);
    let mut i = ident + 1;
    while kind(i) == T::Dot && kind(i + 1) == T::Ident {
        i += 2;
    }
    kind(i) == T::LeftBrace
}
