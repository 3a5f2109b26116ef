//! Base64 as Go's `encoding/base64` takes and refuses it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Decodes the standard alphabet with padding; ends of lines may stand anywhere.
///
/// # Errors
/// Where the first byte is that cannot be, as Go counts.
pub fn decode(text: &str) -> Result<Vec<u8>, usize> {
    let plain: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    STANDARD.decode(plain).map_err(|_| wrong_at(text))
}

/// Where the first byte is that makes a text no base64.
pub fn wrong_at(text: &str) -> usize {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    let bytes: Vec<(usize, u8)> = text.bytes().enumerate().filter(|(_, b)| !matches!(b, b'\r' | b'\n')).collect();
    let body = bytes.iter().rev().skip_while(|(_, b)| *b == b'=').count();
    match bytes[..body].iter().find(|(_, b)| !fits(*b)) {
        Some((at, _)) => *at,
        // The last group lacks something: Go names where it begins.
        None => bytes.get(bytes.len() / 4 * 4).map_or(text.len(), |(at, _)| *at),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn texts_are_taken_and_refused_as_go_does() {
        for (text, want) in [
            ("aGVsbG8g\nd29ybGQ=\n", Ok(b"hello world".to_vec())),
            ("aGVsbG8g\r\nd29ybGQ=", Ok(b"hello world".to_vec())),
            ("aGVsbG8g\nd29y bGQ=", Err(13)),
            ("zz!", Err(2)),
            ("%%", Err(0)),
            ("YWJjZA", Err(4)),
            ("", Ok(Vec::new())),
        ] {
            assert_eq!(super::decode(text), want, "{text:?}");
        }
    }
}
