//! Keys that detach from a session; the container keeps running and can be attached to again.
//!
//! Invariant: input reaches the container unchanged unless it is the complete sequence. A partial sequence is held back
//! until the next key decides.

use crate::error::{Result, text};

/// The default sequence of `attach` and `run`.
pub const KEYS: &str = "ctrl-p,ctrl-q";

/// A sequence of keys, and how many of them were typed.
#[derive(Clone, Debug)]
pub struct Detach {
    keys: Vec<u8>,
    typed: usize,
}

impl Detach {
    /// Parses `ctrl-p,ctrl-q` or `a,b`: characters and control characters. Empty is the default.
    pub fn parse(given: &str) -> Result<Self> {
        let given = if given.is_empty() { KEYS } else { given };
        let mut keys = Vec::new();
        for key in given.split(',') {
            match (key.as_bytes(), key.strip_prefix("ctrl-").map(str::as_bytes)) {
                ([c], _) if c.is_ascii() => keys.push(*c),
                (_, Some([c @ (b'a'..=b'z' | b'@' | b'['..=b'_')])) => keys.push(c.to_ascii_uppercase() & 0x1f),
                _ => return text(format!("could not bind detach keys: Unknown character: '{key}'")),
            }
        }
        Ok(Self { keys, typed: 0 })
    }

    /// Returns the input for the container, and whether the sequence is complete.
    pub fn pass(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        let mut out = Vec::with_capacity(typed.len());
        for c in typed {
            if self.keys.get(self.typed) != Some(c) {
                self.fall_back(*c, &mut out);
                continue;
            }
            self.typed += 1;
            if self.typed == self.keys.len() {
                self.typed = 0;
                return (out, true);
            }
        }
        (out, false)
    }

    /// Handles a key that does not continue the sequence: keeps the longest suffix that begins it.
    fn fall_back(&mut self, c: u8, out: &mut Vec<u8>) {
        let mut held = self.keys[..self.typed].to_vec();
        held.push(c);
        let keep = (0..held.len()).rev().find(|n| held.ends_with(&self.keys[..*n])).unwrap_or(0);
        out.extend_from_slice(&held[..held.len() - keep]);
        self.typed = keep;
    }
}

#[cfg(test)]
mod tests {
    use super::Detach;

    #[test]
    fn only_the_complete_sequence_detaches() {
        for (keys, typed, passes, left) in [
            ("", &b"ab"[..], &b"ab"[..], false),
            ("", b"a\x10\x11b", b"a", true),
            ("", b"a\x10b", b"a\x10b", false),
            ("", b"\x10\x10\x11", b"\x10", true),
            ("ctrl-a,q", b"\x01x\x01q", b"\x01x", true),
            ("a,a,b", b"aaab", b"a", true),
            ("ctrl-@", b"x\0", b"x", true),
        ] {
            let mut detach = Detach::parse(keys).unwrap();
            assert_eq!(detach.pass(typed), (passes.to_vec(), left), "{keys}");
            // The result is the same key by key.
            let mut d = Detach::parse(keys).unwrap();
            let (mut out, mut done) = (Vec::new(), false);
            for c in typed {
                let (o, l) = d.pass(&[*c]);
                out.extend(o);
                done = l;
                if l {
                    break;
                }
            }
            assert_eq!((out, done), (passes.to_vec(), left), "{keys}");
        }
        for wrong in ["ctrl-", "ctrl-1", "abc", "a,"] {
            assert!(Detach::parse(wrong).is_err(), "{wrong}");
        }
    }
}
