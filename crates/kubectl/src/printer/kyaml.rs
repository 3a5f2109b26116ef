//! KYAML (`sigs.k8s.io/yaml/kyaml`): YAML in flow style, with double-quoted strings and trailing commas.
//!
//! Objects and lists of scalars use a line per member; a list of objects and lists opens without a line break.

use super::shape::Shape;
use meta::Value;
use std::fmt::Write as _;

/// Formats a document with its `---` and a newline at the end.
pub fn document(s: &Shape<'_>) -> String {
    let mut out = String::from("---\n");
    write(&mut out, s, 0);
    out.push('\n');
    out
}

fn line(out: &mut String, indent: usize) {
    out.push('\n');
    out.push_str(&" ".repeat(indent));
}

fn write(out: &mut String, s: &Shape<'_>, indent: usize) {
    match s {
        Shape::Leaf(Value::String(t)) => string(out, t, indent),
        Shape::Leaf(v) => out.push_str(&codec::json::to_string(v, codec::json::Html::Keep)),
        Shape::List(all) if all.is_empty() => out.push_str("[]"),
        Shape::Fields(all) if all.is_empty() => out.push_str("{}"),
        Shape::List(all) if all.iter().all(|v| !matches!(v, Shape::Leaf(_))) => {
            out.push('[');
            for (n, v) in all.iter().enumerate() {
                if n > 0 {
                    out.push_str(", ");
                }
                write(out, v, indent);
            }
            out.push(']');
        }
        Shape::List(all) => {
            out.push('[');
            for v in all {
                line(out, indent + 2);
                write(out, v, indent + 2);
                out.push(',');
            }
            line(out, indent);
            out.push(']');
        }
        Shape::Fields(all) => {
            out.push('{');
            for (k, v) in all {
                line(out, indent + 2);
                key(out, k);
                out.push_str(": ");
                write(out, v, indent + 2);
                out.push(',');
            }
            line(out, indent);
            out.push('}');
        }
    }
}

fn key(out: &mut String, k: &str) {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    // Some parsers read these as booleans.
    let short = matches!(k, "y" | "Y" | "n" | "N" | "t" | "T" | "f" | "F");
    let plain = k.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && k.chars().all(safe)
        && !short
        && codec::yaml::reads_back_as_string(k);
    if plain {
        out.push_str(k);
    } else {
        out.push('"');
        escaped(out, k);
        out.push('"');
    }
}

/// Writes a string. In a string of several lines each line break is an escape followed by a line continuation.
fn string(out: &mut String, s: &str, indent: usize) {
    out.push('"');
    if !s.contains('\n') {
        escaped(out, s);
        out.push('"');
        return;
    }
    let lines: Vec<&str> = s.split_inclusive('\n').collect();
    out.push('\\');
    for l in lines {
        line(out, indent + 2);
        let text = l.strip_suffix('\n').unwrap_or(l);
        // Leading white space is kept only after a backslash.
        out.push(if text.starts_with([' ', '\t']) { '\\' } else { ' ' });
        escaped(out, text);
        out.push_str(if l.ends_with('\n') { "\\n\\" } else { "\\" });
    }
    line(out, indent + 2);
    out.push('"');
}

fn escaped(out: &mut String, s: &str) {
    for c in s.chars() {
        let named = match c {
            '"' | '\\' => c,
            '\0' => '0',
            '\x07' => 'a',
            '\x08' => 'b',
            '\n' => 'n',
            '\x0b' => 'v',
            '\x0c' => 'f',
            '\r' => 'r',
            '\x1b' => 'e',
            '\u{85}' => 'N',
            '\u{a0}' => '_',
            '\u{2028}' => 'L',
            '\u{2029}' => 'P',
            c if c != '\t' && c.is_control() => {
                _ = write!(out, "\\x{:02X}", u32::from(c));
                continue;
            }
            '\u{feff}' => {
                out.push_str("\\uFEFF");
                continue;
            }
            c => {
                out.push(c);
                continue;
            }
        };
        out.push('\\');
        out.push(named);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::printer::shape::Order;
    use serde_json::json;

    #[test]
    fn formats_as_upstream_does() {
        for (v, expected) in [
            (json!({}), "{}"),
            (json!({"a": {}, "l": [1, true, null]}), "{\n  a: {},\n  l: [\n    1,\n    true,\n    null,\n  ],\n}"),
            (
                json!({"l": [{"a": "x"}, {}, [[1], "b"]]}),
                "{\n  l: [{\n    a: \"x\",\n  }, {}, [\n    [\n      1,\n    ],\n    \"b\",\n  ]],\n}",
            ),
            (
                json!({"a.b/c": 1, "no": 1, "y": 1, "1a": 1, "1": 1, "a b": 1}),
                "{\n  \"1\": 1,\n  1a: 1,\n  \"a b\": 1,\n  a.b/c: 1,\n  \"no\": 1,\n  \"y\": 1,\n}",
            ),
            (json!({"m": " a\nb\n\n"}), "{\n  m: \"\\\n    \\ a\\n\\\n     b\\n\\\n     \\n\\\n    \",\n}"),
            (json!({"m": "a\n\tb"}), "{\n  m: \"\\\n     a\\n\\\n    \\\tb\\\n    \",\n}"),
            (json!({"e": "\"\\\t\u{1}é"}), "{\n  e: \"\\\"\\\\\t\\x01é\",\n}"),
        ] {
            assert_eq!(document(&Shape::new(&v, Order::ByName)), format!("---\n{expected}\n"));
        }
    }
}
