//! The system's clock and random numbers: the one place where they are read.

use meta::{Clock, Rng};
use std::cell::RefCell;

pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the clock that is injected everywhere else")]
    fn now(&self) -> jiff::Timestamp {
        std::time::SystemTime::now().try_into().unwrap_or(jiff::Timestamp::UNIX_EPOCH)
    }
}

/// The cryptographic generator of the TLS library, asked for many bytes at a time: each call of it costs a system call.
pub struct SystemRng;

/// Bytes that a thread has in stock. What is handed out is forgotten.
struct Stock {
    bytes: [u8; 1024],
    left: usize,
}

thread_local! {
    static STOCK: RefCell<Stock> = const { RefCell::new(Stock { bytes: [0; 1024], left: 0 }) };
}

impl Rng for SystemRng {
    fn next_u64(&self) -> u64 {
        let mut b = [0; 8];
        self.fill(&mut b);
        u64::from_le_bytes(b)
    }

    fn fill(&self, buffer: &mut [u8]) {
        STOCK.with_borrow_mut(|stock| {
            if buffer.len() > stock.bytes.len() {
                return generate(buffer);
            }
            if buffer.len() > stock.left {
                generate(&mut stock.bytes);
                stock.left = stock.bytes.len();
            }
            let taken = stock.left - buffer.len()..stock.left;
            stock.left = taken.start;
            buffer.copy_from_slice(&stock.bytes[taken.clone()]);
            stock.bytes[taken].fill(0);
        });
    }
}

fn generate(buffer: &mut [u8]) {
    // It fails only where the system has no randomness at all, and then nothing here may go on.
    if aws_lc_rs::rand::fill(buffer).is_err() {
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_is_handed_out_twice() {
        let mut seen = std::collections::HashSet::new();
        let mut large = [0; 4096];
        SystemRng.fill(&mut large);
        assert!(large.chunks(16).all(|c| seen.insert(c.to_vec())));
        for _ in 0..1000 {
            let mut b = [0; 16];
            SystemRng.fill(&mut b);
            assert!(seen.insert(b.to_vec()));
        }
    }
}
