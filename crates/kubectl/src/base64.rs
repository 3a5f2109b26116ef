//! Base64 with the errors of Go's `encoding/base64`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Decodes the standard alphabet with padding. Line breaks may stand anywhere.
///
/// # Errors
/// The offset of the first invalid byte, as Go counts it.
pub fn decode(text: &str) -> Result<Vec<u8>, usize> {
    let plain: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    STANDARD.decode(plain).map_err(|_| wrong_at(text))
}

/// Returns the offset of the first byte that is invalid in base64.
pub fn wrong_at(text: &str) -> usize {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    let bytes: Vec<(usize, u8)> = text.bytes().enumerate().filter(|(_, b)| !matches!(b, b'\r' | b'\n')).collect();
    let body = bytes.iter().rev().skip_while(|(_, b)| *b == b'=').count();
    match bytes[..body].iter().find(|(_, b)| !fits(*b)) {
        Some((at, _)) => *at,
        // The last group is incomplete: Go reports where it begins.
        None => bytes.get(bytes.len() / 4 * 4).map_or(text.len(), |(at, _)| *at),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn accepts_and_rejects_what_go_does() {
        for (text, expected) in [
            ("aGVsbG8g\nd29ybGQ=\n", Ok(b"hello world".to_vec())),
            ("aGVsbG8g\r\nd29ybGQ=", Ok(b"hello world".to_vec())),
            ("aGVsbG8g\nd29y bGQ=", Err(13)),
            ("zz!", Err(2)),
            ("%%", Err(0)),
            ("YWJjZA", Err(4)),
            ("", Ok(Vec::new())),
        ] {
            assert_eq!(super::decode(text), expected, "{text:?}");
        }
    }
}
