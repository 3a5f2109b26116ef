//! Regular expressions as Go reads them (RE2), in the words of the `regex` crate.
//!
//! Both are linear in the text and share nearly all of their syntax. What differs: `\d`, `\w`, `\s` and `\b` are ASCII in RE2
//! and Unicode in the crate; `\Q…\E` quotes; inside of a class the crate knows nested classes and set operations, where RE2 has
//! plain characters; `\<` and `\>` are plain characters too.
//!
//! Left out: octal escapes, and RE2's own limits of repetitions.

use regex_syntax::hir::{self, Hir, HirKind};

/// Translates a pattern to the syntax of the `regex` crate. An invalid pattern stays invalid: the crate reports it.
pub fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern.chars().peekable();
    let mut class = Class::Outside;
    while let Some(c) = rest.next() {
        match (c, class) {
            ('\\', _) => match rest.next() {
                Some('Q') if class == Class::Outside => quoted(&mut rest, &mut out),
                Some(e) => escape(e, class != Class::Outside, &mut out),
                None => out.push('\\'),
            },
            ('[', Class::Outside) => {
                out.push('[');
                if rest.next_if_eq(&'^').is_some() {
                    out.push('^');
                }
                class = Class::First;
            }
            // A bracket that opens the class is one of its characters.
            (']', Class::First) => {
                out.push_str("\\]");
                class = Class::Inside;
            }
            (']', Class::Inside) => {
                out.push(']');
                class = Class::Outside;
            }
            ('[', _) => {
                // `[:alpha:]` is ASCII in both.
                if rest.peek() == Some(&':') {
                    out.push('[');
                    for c in rest.by_ref() {
                        out.push(c);
                        if c == ']' {
                            break;
                        }
                    }
                } else {
                    out.push_str("\\[");
                }
                class = Class::Inside;
            }
            ('&' | '~', Class::First | Class::Inside) => {
                out.push('\\');
                out.push(c);
                class = Class::Inside;
            }
            (c, _) => {
                out.push(c);
                if class == Class::First {
                    class = Class::Inside;
                }
            }
        }
        if c == '\\' && class == Class::First {
            class = Class::Inside;
        }
    }
    out
}

/// Where in a class of characters a pattern is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Outside,
    First,
    Inside,
}

fn escape(e: char, inside: bool, out: &mut String) {
    let (set, negated) = match e {
        'd' | 'D' => ("0-9", e == 'D'),
        'w' | 'W' => ("0-9A-Za-z_", e == 'W'),
        's' | 'S' => ("\\t\\n\\x0C\\r ", e == 'S'),
        'b' | 'B' if !inside => {
            out.push_str(if e == 'b' { "(?-u:\\b)" } else { "(?-u:\\B)" });
            return;
        }
        '<' => return out.push_str("\\x3C"),
        '>' => return out.push_str("\\x3E"),
        e => {
            out.push('\\');
            return out.push(e);
        }
    };
    match (inside, negated) {
        (true, false) => out.push_str(set),
        (_, true) => out.push_str(&format!("[^{set}]")),
        (false, false) => out.push_str(&format!("[{set}]")),
    }
}

/// What is quoted, up to `\E` or the end.
fn quoted(rest: &mut std::iter::Peekable<std::str::Chars<'_>>, out: &mut String) {
    while let Some(c) = rest.next() {
        if c == '\\' && rest.next_if_eq(&'E').is_some() {
            return;
        }
        if c.is_ascii_punctuation() {
            out.push('\\');
        }
        out.push(c);
    }
}

/// The size of a pattern that was translated; zero if it is none.
pub fn size(translated: &str) -> Size {
    regex_syntax::parse(translated).map(|h| Size::new(&h)).unwrap_or_default()
}

/// How large the program of a pattern is.
#[derive(Clone, Copy, Default)]
pub struct Size {
    /// States, about.
    pub parts: usize,
    /// Characters of the pattern that a character of a text may be compared with at the same time.
    pub positions: usize,
}

impl Size {
    fn new(hir: &Hir) -> Self {
        let all = |of: &[Hir]| of.iter().map(Self::new).fold(Self::default(), Self::plus);
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => Self { parts: 1, positions: 0 },
            HirKind::Literal(l) => Self { parts: l.0.len(), positions: l.0.len() },
            HirKind::Class(hir::Class::Bytes(c)) => Self { parts: c.ranges().len(), positions: 1 },
            HirKind::Class(hir::Class::Unicode(c)) => {
                // In UTF-8 a range beyond ASCII is a few sequences of up to four bytes.
                let ascii = c.ranges().last().is_none_or(|r| r.end().is_ascii());
                let each = if ascii { 1 } else { 4 };
                Self { parts: c.ranges().len() * each, positions: each }
            }
            HirKind::Repetition(r) => {
                let times = r.max.unwrap_or(r.min.saturating_add(1)).max(1) as usize;
                let once = Self::new(&r.sub);
                let many = |n: usize| n.saturating_add(1).saturating_mul(times);
                Self { parts: many(once.parts), positions: once.positions.saturating_mul(times) }
            }
            HirKind::Capture(c) => Self::new(&c.sub),
            HirKind::Concat(all_of) | HirKind::Alternation(all_of) => all(all_of),
        }
    }

    fn plus(self, o: Self) -> Self {
        let Self { parts, positions } = self;
        Self { parts: parts.saturating_add(o.parts), positions: positions.saturating_add(o.positions) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_rewritten() {
        let cases = [
            (r"^\d+\.\w*$", r"^[0-9]+\.[0-9A-Za-z_]*$"),
            (r"\D\W\S", r"[^0-9][^0-9A-Za-z_][^\t\n\x0C\r ]"),
            (r"[\d_][^\w-][\D]", r"[0-9_][^0-9A-Za-z_-][[^0-9]]"),
            (r"\bx\B", r"(?-u:\b)x(?-u:\B)"),
            (r"[]a][^]a][[a]", r"[\]a][^\]a][\[a]"),
            (r"[[:alpha:]_][a&&b~~]", r"[[:alpha:]_][a\&\&b\~\~]"),
            (r"\Qa.b\E.\Q[", r"a\.b.\["),
            (r"\p{Greek}\pL(?i)a|b{2,3}\\d\.", r"\p{Greek}\pL(?i)a|b{2,3}\\d\."),
            (r"\<a\>", r"\x3Ca\x3E"),
            ("a\\", "a\\"),
        ];
        for (re2, want) in cases {
            assert_eq!(translate(re2), want, "{re2}");
        }
    }
}
