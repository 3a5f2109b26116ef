//! From the text of a literal to its value (`cel-go/parser/unescape.go`).

use super::token::Kind;
use crate::node::Const;

/// The value of a literal, with the minus in front of it; or what is wrong with it.
pub(super) fn value(kind: Kind, text: &str, negative: bool) -> Result<Const, &'static str> {
    Ok(match kind {
        Kind::True => Const::Bool(true),
        Kind::False => Const::Bool(false),
        Kind::Null => Const::Null,
        Kind::Int => {
            let n = integer(text).ok_or("invalid int literal")?;
            let n = if negative { -i128::from(n) } else { i128::from(n) };
            Const::Int(i64::try_from(n).map_err(|_| "invalid int literal")?)
        }
        Kind::Uint => Const::Uint(integer(&text[..text.len() - 1]).ok_or("invalid uint literal")?),
        Kind::Float => {
            let x: f64 = text.parse().map_err(|_| "invalid double literal")?;
            if x.is_infinite() {
                return Err("invalid double literal");
            }
            Const::Double(if negative { -x } else { x })
        }
        Kind::Bytes => Const::Bytes(unescape(&text[1..], true)?.into()),
        _ => {
            let bytes = unescape(text, false)?;
            Const::Str(String::from_utf8(bytes).map_err(|_| "invalid unicode code point")?.into())
        }
    })
}

fn integer(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The bytes of a string or bytes literal, without its quotes. Line ends become those of Unix.
fn unescape(text: &str, is_bytes: bool) -> Result<Vec<u8>, &'static str> {
    const BROKEN: &str = "unable to unescape string";
    let unix = text.contains('\r').then(|| text.replace("\r\n", "\n").replace('\r', "\n"));
    let text = unix.as_deref().unwrap_or(text);
    let quoted = text.trim_start_matches(['r', 'R']);
    let is_raw = quoted.len() < text.len();
    let quotes = if quoted.len() >= 6 && (quoted.starts_with("'''") || quoted.starts_with("\"\"\"")) { 3 } else { 1 };
    let inner = quoted.get(quotes..quoted.len().saturating_sub(quotes)).ok_or(BROKEN)?;
    if is_raw || !inner.contains('\\') {
        return Ok(inner.into());
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(escape) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..escape]);
        let code = *rest.as_bytes().get(escape + 1).ok_or(BROKEN)?;
        let after = &rest[escape + 2..];
        let (digits, radix, plain) = match code {
            b'a' => (0, 0, 7),
            b'b' => (0, 0, 8),
            b'f' => (0, 0, 12),
            b'n' => (0, 0, b'\n'),
            b'r' => (0, 0, b'\r'),
            b't' => (0, 0, b'\t'),
            b'v' => (0, 0, 11),
            b'x' | b'X' => (2, 16, 0),
            b'u' | b'U' if is_bytes => return Err(BROKEN),
            b'u' => (4, 16, 0),
            b'U' => (8, 16, 0),
            b'0'..=b'3' => (2, 8, code - b'0'),
            other => (0, 0, other),
        };
        if digits == 0 {
            out.push(plain);
        } else {
            let n = u32::from_str_radix(after.get(..digits).ok_or(BROKEN)?, radix).map_err(|_| BROKEN)?;
            let n = n + u32::from(plain) * 64;
            match u8::try_from(n) {
                Ok(byte) if is_bytes => out.push(byte),
                _ => {
                    let c = char::from_u32(n).ok_or("invalid unicode code point")?;
                    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                }
            }
        }
        rest = &after[digits..];
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}
