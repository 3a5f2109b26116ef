//! Texts of drivers, runtimes and containers, as far as statuses show them.
//!
//! **Invariant.** What somebody else says has a bound before it is part of a status: one that is too large for the API server is never
//! written.

/// Bytes of a message.
pub const MAX_MESSAGE: usize = 4096;
/// Bytes of a reason, and of other words.
pub const MAX_WORD: usize = 256;

/// The beginning of a text that has more bytes, with three dots.
pub fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}...", &text[..text.floor_char_boundary(most.saturating_sub(3))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(cut("short", 1024), "short");
        assert_eq!(cut(&"x".repeat(1024), 1024).len(), 1024);
        let long = cut(&"ä".repeat(1000), 1024);
        assert!(long.len() <= 1024 && long.ends_with("ä..."));
    }
}
