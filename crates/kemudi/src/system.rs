//! The system's clock and random numbers: the one place where they are read.

use meta::{Clock, Rng};

pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the clock that is injected everywhere else")]
    fn now(&self) -> jiff::Timestamp {
        std::time::SystemTime::now().try_into().unwrap_or(jiff::Timestamp::UNIX_EPOCH)
    }
}

/// The cryptographic generator of the TLS library.
pub struct SystemRng;

impl Rng for SystemRng {
    fn next_u64(&self) -> u64 {
        let mut b = [0; 8];
        self.fill(&mut b);
        u64::from_le_bytes(b)
    }

    fn fill(&self, buffer: &mut [u8]) {
        // It fails only where the system has no randomness at all, and then nothing here may go on.
        if aws_lc_rs::rand::fill(buffer).is_err() {
            std::process::abort();
        }
    }
}
