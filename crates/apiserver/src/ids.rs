//! The audit ID of a request (`Audit-ID`), a random UID, from one random seed per server.

use http::header::HeaderName;
use http::request::Parts;
use meta::Rng;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

pub(crate) struct Ids {
    seed: u64,
    next: AtomicU64,
}

/// SplitMix64, a bijection of its state.
struct Mixed(u64);

impl Rng for Mixed {
    fn next_u64(&self) -> u64 {
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn fill(&self, buffer: &mut [u8]) {
        for (i, piece) in buffer.chunks_mut(8).enumerate() {
            let part = Self(self.0.wrapping_add(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(i as u64 + 1)));
            piece.copy_from_slice(&part.next_u64().to_le_bytes()[..piece.len()]);
        }
    }
}

impl Ids {
    pub fn new(rng: &dyn Rng) -> Self {
        Self { seed: rng.next_u64(), next: AtomicU64::new(0) }
    }

    /// The client's audit ID, or a new one.
    pub fn audit_id(&self, parts: &Parts) -> String {
        match parts.headers.get(&AUDIT_ID).and_then(|v| v.to_str().ok()).filter(|v| !v.is_empty()) {
            Some(given) => given.to_owned(),
            None => {
                let n = self.next.fetch_add(1, Ordering::Relaxed);
                meta::random::uuid(&Mixed(self.seed.wrapping_add(n.wrapping_mul(0xd134_2543_de82_ef95))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_request_has_another_identifier() {
        let ids = Ids { seed: 7, next: AtomicU64::new(0) };
        let (parts, ()) = http::Request::new(()).into_parts();
        let all: HashSet<String> = (0..1000).map(|_| ids.audit_id(&parts)).collect();
        assert_eq!(all.len(), 1000);
        assert!(all.iter().all(|i| i.len() == 36 && i.as_bytes()[14] == b'4'));
        let (parts, ()) = http::Request::builder().header("audit-id", "mine").body(()).unwrap().into_parts();
        assert_eq!(ids.audit_id(&parts), "mine");
    }
}
