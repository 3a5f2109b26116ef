//! The ciphers (upstream: `apiserver/pkg/storage/value/encrypt`). What follows the prefix of a record:
//! - `aesgcm`: nonce (12 bytes), then ciphertext and tag; the storage key is associated data
//! - `aescbc`: initialization vector (16 bytes), then ciphertext with PKCS #7 padding; nothing proves that it was not changed
//! - `secretbox`: nonce (24 bytes), then tag and ciphertext of XSalsa20-Poly1305
//!
//! Left out: printing keys. No type here has a `Debug`.

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, DecryptionContext, EncryptionContext, PaddedBlockDecryptingKey,
    PaddedBlockEncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::iv::FixedLength;
use crypto_secretbox::aead::Aead;
use crypto_secretbox::{KeyInit, XSalsa20Poly1305};
use meta::Rng;

/// How every encrypted record begins. No object does: they are JSON.
pub const PREFIX: &[u8] = b"k8s:enc:";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    AesGcm,
    AesCbc,
    Secretbox,
}

impl Cipher {
    pub fn name(self) -> &'static str {
        match self {
            Cipher::AesGcm => "aesgcm",
            Cipher::AesCbc => "aescbc",
            Cipher::Secretbox => "secretbox",
        }
    }

    /// Of keys, in bytes.
    pub fn sizes(self) -> &'static [usize] {
        match self {
            Cipher::AesGcm | Cipher::AesCbc => &[16, 24, 32],
            Cipher::Secretbox => &[32],
        }
    }
}

pub enum Provider {
    /// A cipher's keys; the first one is for writing.
    Keyed(Vec<DataKey>),
    /// As it is.
    Identity,
}

enum Material {
    AesGcm(Box<LessSafeKey>),
    AesCbc(Box<(PaddedBlockEncryptingKey, PaddedBlockDecryptingKey)>),
    Secretbox(Box<XSalsa20Poly1305>),
}

pub struct DataKey {
    pub name: String,
    /// How the records of this key begin.
    pub prefix: Vec<u8>,
    material: Material,
}

impl DataKey {
    /// Nothing if the secret has a wrong size.
    pub fn new(cipher: Cipher, name: String, secret: &[u8]) -> Option<DataKey> {
        let material = match cipher {
            Cipher::AesGcm => {
                let algorithm = match secret.len() {
                    16 => &aead::AES_128_GCM,
                    24 => &aead::AES_192_GCM,
                    _ => &aead::AES_256_GCM,
                };
                Material::AesGcm(Box::new(LessSafeKey::new(UnboundKey::new(algorithm, secret).ok()?)))
            }
            Cipher::AesCbc => {
                let algorithm = match secret.len() {
                    16 => &AES_128,
                    24 => &AES_192,
                    _ => &AES_256,
                };
                let key = || UnboundCipherKey::new(algorithm, secret).ok();
                let sealing = PaddedBlockEncryptingKey::cbc_pkcs7(key()?).ok()?;
                let opening = PaddedBlockDecryptingKey::cbc_pkcs7(key()?).ok()?;
                Material::AesCbc(Box::new((sealing, opening)))
            }
            Cipher::Secretbox => Material::Secretbox(Box::new(XSalsa20Poly1305::new_from_slice(secret).ok()?)),
        };
        let prefix = [PREFIX, cipher.name().as_bytes(), b":v1:", name.as_bytes(), b":"].concat();
        Some(DataKey { name, prefix, material })
    }

    /// The record; nothing if the cipher fails.
    pub fn seal(&self, bound: &[u8], plain: &[u8], rng: &dyn Rng) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(self.prefix.len() + plain.len() + 48);
        out.extend_from_slice(&self.prefix);
        match &self.material {
            Material::AesGcm(key) => {
                let mut nonce = [0; 12];
                rng.fill(&mut nonce);
                out.extend_from_slice(&nonce);
                let start = out.len();
                out.extend_from_slice(plain);
                let nonce = Nonce::assume_unique_for_key(nonce);
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(bound), &mut out[start..]).ok()?;
                out.extend_from_slice(tag.as_ref());
            }
            Material::AesCbc(keys) => {
                let mut vector = [0; 16];
                rng.fill(&mut vector);
                out.extend_from_slice(&vector);
                let mut text = plain.to_vec();
                keys.0.less_safe_encrypt(&mut text, EncryptionContext::Iv128(FixedLength::from(vector))).ok()?;
                out.extend_from_slice(&text);
            }
            Material::Secretbox(key) => {
                let mut nonce = [0; 24];
                rng.fill(&mut nonce);
                out.extend_from_slice(&nonce);
                out.extend(key.encrypt(&nonce.into(), plain).ok()?);
            }
        }
        Some(out)
    }

    /// What was sealed; `body` is what follows the prefix. Nothing if it is not the same any more, or another key's.
    pub fn open(&self, bound: &[u8], body: &[u8]) -> Option<Vec<u8>> {
        match &self.material {
            Material::AesGcm(key) => {
                let (nonce, text) = body.split_first_chunk::<12>()?;
                let nonce = Nonce::assume_unique_for_key(*nonce);
                let mut text = text.to_vec();
                let plain = key.open_in_place(nonce, Aad::from(bound), &mut text).ok()?.len();
                text.truncate(plain);
                Some(text)
            }
            Material::AesCbc(keys) => {
                let (vector, text) = body.split_first_chunk::<16>()?;
                if text.is_empty() || text.len() % 16 != 0 {
                    return None;
                }
                let mut text = text.to_vec();
                let context = DecryptionContext::Iv128(FixedLength::from(*vector));
                let plain = keys.1.decrypt(&mut text, context).ok()?.len();
                text.truncate(plain);
                Some(text)
            }
            Material::Secretbox(key) => {
                let (nonce, text) = body.split_first_chunk::<24>()?;
                key.decrypt(&(*nonce).into(), text).ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts: good enough where only the form matters.
    struct Count(std::sync::atomic::AtomicU64);
    impl Rng for Count {
        fn next_u64(&self) -> u64 {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        }
    }

    #[test]
    fn every_cipher_opens_what_it_sealed_and_nothing_else() {
        let rng = Count(7.into());
        for cipher in [Cipher::AesGcm, Cipher::AesCbc, Cipher::Secretbox] {
            assert!(DataKey::new(cipher, "k".into(), &[1; 33]).is_none(), "{cipher:?}");
            for size in cipher.sizes() {
                let key = DataKey::new(cipher, "k".into(), &vec![1; *size]).unwrap();
                let other = DataKey::new(cipher, "k".into(), &vec![2; *size]).unwrap();
                for plain in [&b""[..], b"x", b"sixteen bytes it", &[b'y'; 5_000]] {
                    let sealed = key.seal(b"secrets/a/b", plain, &rng).unwrap();
                    let body = sealed.strip_prefix(&key.prefix[..]).unwrap();
                    assert_eq!(key.open(b"secrets/a/b", body).as_deref(), Some(plain), "{cipher:?}");
                    assert_ne!(other.open(b"secrets/a/b", body).as_deref(), Some(plain), "{cipher:?}");
                    assert_ne!(key.seal(b"secrets/a/b", plain, &rng).unwrap(), sealed, "never the same twice");
                    if cipher == Cipher::AesCbc {
                        continue;
                    }
                    for at in [0, body.len() / 2, body.len() - 1] {
                        let mut changed = body.to_vec();
                        changed[at] ^= 1;
                        assert_eq!(key.open(b"secrets/a/b", &changed), None, "{cipher:?} at {at}");
                    }
                    for cut in [0, 11, 23, body.len() - 1] {
                        assert_eq!(key.open(b"secrets/a/b", &body[..cut.min(body.len() - 1)]), None, "{cipher:?}");
                    }
                    let moved = key.open(b"secrets/a/c", body);
                    assert_eq!(moved.is_none(), cipher == Cipher::AesGcm, "{cipher:?}");
                }
            }
        }
        let key = DataKey::new(Cipher::AesCbc, "k".into(), &[1; 32]).unwrap();
        for body in [&[0; 0][..], &[0; 16], &[0; 17], &[0; 31]] {
            assert_eq!(key.open(b"", body), None);
        }
    }
}
