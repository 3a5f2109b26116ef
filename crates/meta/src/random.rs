//! Randomness, injected, and what the API makes of it.

/// A source of random numbers: the system's at the edge, a seeded one in simulations.
pub trait Rng: Send + Sync + 'static {
    /// A random number.
    fn next_u64(&self) -> u64;

    /// Fills the buffer with random bytes.
    fn fill(&self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            let bytes = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }
}

impl<T: Rng + ?Sized> Rng for std::sync::Arc<T> {
    fn next_u64(&self) -> u64 {
        (**self).next_u64()
    }

    fn fill(&self, buffer: &mut [u8]) {
        (**self).fill(buffer);
    }
}

/// The alphabet of generated names: no vowels and no look-alikes (`k8s.io/apimachinery/pkg/util/rand`).
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// `n` characters for a generated name.
pub fn suffix(rng: &dyn Rng, n: usize) -> String {
    (0..n).map(|_| ALPHABET[(rng.next_u64() % ALPHABET.len() as u64) as usize] as char).collect()
}

/// Turns any text into one that is safe in a name, as upstream does with hashes (`rand.SafeEncodeString`).
pub fn safe_encode(text: &str) -> String {
    text.bytes().map(|b| ALPHABET[b as usize % ALPHABET.len()] as char).collect()
}

/// A version 4 UUID.
pub fn uuid(rng: &dyn Rng) -> String {
    let mut b = [0u8; 16];
    rng.fill(&mut b);
    b[6] = (b[6] & 0x0f) | 0x40;
    b[8] = (b[8] & 0x3f) | 0x80;
    let mut text = String::with_capacity(36);
    for (i, byte) in b.into_iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
        }
    }
    text
}
