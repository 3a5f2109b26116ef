//! The keys that all servers of a cluster share: its CAs, the key of service account tokens, the administrator's token and the keys of
//! encryption at rest. The first server creates them; they are kept in etcd, sealed with the cluster token, and every server has a
//! copy in its data directory.
//!
//! Invariant: a server starts only with the keys of its cluster. Files of another cluster are never replaced.

use crate::control_plane::Error;
use crate::pki::{self, Pki};
use crate::system::{SystemClock, SystemRng};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use encryption::{Encryption, Source};
use meta::Rng;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::Etcd;

/// The key in etcd, after the prefix.
const NAME: &str = "cluster-keys";
/// The file of the cluster token in the data directory of the server that created it.
const TOKEN: &str = "cluster.token";
/// Minimum length of a cluster token: the keys are only as safe as the token is hard to guess.
const MIN_TOKEN: usize = 32;
/// What the sealing key is used for.
const PURPOSE: &[u8] = b"kemudi cluster keys 1";
const OWN_ENCRYPTION: &str = "keys/encryption.yaml";
/// The shared files, relative to the data directory.
const FILES: [&str; 7] = [
    "pki/ca.crt",
    "pki/ca.key",
    "pki/front-proxy-ca.crt",
    "pki/front-proxy-ca.key",
    "pki/sa.key",
    "admin.token",
    OWN_ENCRYPTION,
];

type Files = BTreeMap<String, Vec<u8>>;

/// Makes the files of the data directory those of the cluster, or creates the cluster's from them.
///
/// # Errors
/// The token is missing or not the cluster's, the directory has keys of another cluster, or a file cannot be written.
pub async fn share(
    etcd: &Etcd,
    directory: &Path,
    token_file: Option<&Path>,
    encryption_file: Option<&PathBuf>,
) -> Result<(), Error> {
    let failed = |e: store::EngineError| Error::Etcd(format!("reading the keys of the cluster: {}", e.whole()));
    if let Some(sealed) = etcd.read_or_create(NAME, None).await.map_err(failed)? {
        return adopt(directory, &sealed, &token(directory, token_file, false)?, encryption_file);
    }
    let token = token(directory, token_file, true)?;
    let existing = read_all(directory)?;
    create_missing(directory, encryption_file)?;
    let created = read_all(directory)?;
    let stored = etcd.read_or_create(NAME, Some(seal(&token, &created)?)).await.map_err(failed)?;
    let Some(stored) = stored else { return Err(Error::Etcd("the keys of the cluster were deleted".into())) };
    // Another server that starts at the same time was faster: its keys count, unless this directory had some before.
    for name in created.keys().filter(|name| !existing.contains_key(*name)) {
        if open(&token, &stored)?.get(name) != created.get(name) {
            let path = directory.join(name);
            fs::remove_file(&path).map_err(|source| Error::File { path, source })?;
        }
    }
    adopt(directory, &stored, &token, encryption_file)
}

/// Writes the keys of an existing cluster to a directory.
///
/// # Errors
/// There is no cluster, the token is not its own, or a file cannot be written.
pub async fn fetch(
    etcd: &Etcd,
    directory: &Path,
    token_file: &Path,
    encryption_file: Option<&PathBuf>,
) -> Result<(), Error> {
    let failed = |e: store::EngineError| Error::Etcd(format!("reading the keys of the cluster: {}", e.whole()));
    let Some(sealed) = etcd.read_or_create(NAME, None).await.map_err(failed)? else {
        return Err(Error::Etcd("this etcd has no cluster under the prefix of --etcd-prefix".into()));
    };
    adopt(directory, &sealed, &token(directory, Some(token_file), false)?, encryption_file)
}

/// Creates the keys that do not exist yet, as the start of a single server does.
fn create_missing(directory: &Path, encryption_file: Option<&PathBuf>) -> Result<(), Error> {
    let clock: Arc<dyn meta::Clock> = Arc::new(SystemClock);
    Pki::open(&directory.join("pki"), clock)?.token_key()?;
    crate::control_plane::admin_token(directory, &SystemRng)?;
    if encryption_file.is_none() {
        Encryption::load(Source { directory: directory.join("keys"), file: None }, Arc::new(SystemRng))?.keep()?;
    }
    Ok(())
}

/// Writes the cluster's files that the directory lacks.
fn adopt(directory: &Path, sealed: &[u8], token: &str, encryption_file: Option<&PathBuf>) -> Result<(), Error> {
    let files = open(token, sealed)?;
    if encryption_file.is_none() && !files.contains_key(OWN_ENCRYPTION) {
        return Err(Error::Etcd(
            "the servers of this cluster have an EncryptionConfiguration; give this one the same with \
             --encryption-provider-config"
                .into(),
        ));
    }
    let own = read_all(directory)?;
    // The keys of encryption at rest may have been rotated since.
    let differs = |name: &String, bytes: &Vec<u8>| name != OWN_ENCRYPTION && own.get(name).is_some_and(|o| o != bytes);
    if let Some((name, _)) = files.iter().find(|(name, bytes)| differs(name, bytes)) {
        let path = directory.join(name);
        return Err(Error::Etcd(format!(
            "{} is not the cluster's: the data directory belongs to another cluster; use a new one, or another --etcd-prefix",
            path.display()
        )));
    }
    for (name, bytes) in files.iter().filter(|(name, _)| !own.contains_key(*name)) {
        let path = directory.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|source| Error::File { path: parent.into(), source })?;
        }
        pki::write_private_bytes(&path, bytes)?;
    }
    Ok(())
}

fn read_all(directory: &Path) -> Result<Files, Error> {
    let mut files = Files::new();
    for name in FILES {
        let path = directory.join(name);
        match fs::read(&path) {
            Ok(bytes) => drop(files.insert(name.to_owned(), bytes)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::File { path, source }),
        }
    }
    Ok(files)
}

/// The cluster token: that of the flag, or of the data directory. Creates one if `create` is set.
fn token(directory: &Path, file: Option<&Path>, create: bool) -> Result<String, Error> {
    let own = directory.join(TOKEN);
    let path = file.unwrap_or(&own);
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && file.is_none() && create => {
            let mut bytes = [0; 32];
            SystemRng.fill(&mut bytes);
            let text: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
            pki::write_private(&own, &text)?;
            text
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && file.is_none() => {
            return Err(Error::Etcd(format!(
                "this etcd has a cluster already: to join it, copy {TOKEN} from the data directory of its first server, and give \
                 its path with --cluster-token-file"
            )));
        }
        Err(source) => return Err(Error::File { path: path.into(), source }),
    };
    let token = text.trim().to_owned();
    if token.len() < MIN_TOKEN {
        let (path, has) = (path.display(), token.len());
        return Err(Error::Etcd(format!(
            "{path}: a cluster token has at least {MIN_TOKEN} characters, this one has {has}"
        )));
    }
    Ok(token)
}

fn sealing_key(token: &str) -> Result<LessSafeKey, aws_lc_rs::error::Unspecified> {
    let extracted = Salt::new(HKDF_SHA256, PURPOSE).extract(token.as_bytes());
    let key = extracted.expand(&[PURPOSE], &AES_256_GCM)?;
    Ok(LessSafeKey::new(UnboundKey::from(key)))
}

fn seal(token: &str, files: &Files) -> Result<Vec<u8>, Error> {
    let encoded: BTreeMap<&String, String> = files.iter().map(|(name, bytes)| (name, STANDARD.encode(bytes))).collect();
    let mut text = serde_json::json!(encoded).to_string().into_bytes();
    let failed = |_| Error::Etcd("encrypting the keys of the cluster failed".into());
    let mut nonce = [0; NONCE_LEN];
    SystemRng.fill(&mut nonce);
    let key = sealing_key(token).map_err(failed)?;
    key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(PURPOSE), &mut text).map_err(failed)?;
    Ok([&nonce[..], &text].concat())
}

fn open(token: &str, sealed: &[u8]) -> Result<Files, Error> {
    let failed = || {
        Error::Etcd(
            "the cluster token does not open the keys of the cluster in etcd: it is the token of another one".into(),
        )
    };
    let (nonce, text) = sealed.split_first_chunk::<NONCE_LEN>().ok_or_else(failed)?;
    let mut text = text.to_vec();
    let key = sealing_key(token).map_err(|_| failed())?;
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let text = key.open_in_place(nonce, Aad::from(PURPOSE), &mut text).map_err(|_| failed())?;
    let damaged = || Error::Etcd("the keys of the cluster in etcd are damaged".into());
    let encoded: BTreeMap<String, String> = serde_json::from_slice(text).map_err(|_| damaged())?;
    let decoded = encoded.into_iter().filter(|(name, _)| FILES.contains(&&**name));
    decoded.map(|(name, text)| Ok((name, STANDARD.decode(text).map_err(|_| damaged())?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_open_with_their_token_only() {
        let files = Files::from([("pki/ca.key".to_owned(), vec![1, 2, 3]), ("admin.token".to_owned(), b"t".to_vec())]);
        let token = "a".repeat(MIN_TOKEN);
        let sealed = seal(&token, &files).unwrap();
        assert_eq!(open(&token, &sealed).unwrap(), files);
        assert!(open(&"b".repeat(MIN_TOKEN), &sealed).unwrap_err().to_string().contains("token of another one"));
        let mut changed = sealed.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert!(open(&token, &changed).is_err());
        assert!(open(&token, &[]).is_err());
        // A file outside the data directory is never written.
        let outside = Files::from([("../outside".to_owned(), vec![1])]);
        assert_eq!(open(&token, &seal(&token, &outside).unwrap()).unwrap(), Files::new());
    }

    #[test]
    fn files_of_another_cluster_are_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let token = "a".repeat(MIN_TOKEN);
        create_missing(directory.path(), None).unwrap();
        let files = read_all(directory.path()).unwrap();
        assert_eq!(files.len(), FILES.len());
        let sealed = seal(&token, &files).unwrap();
        adopt(directory.path(), &sealed, &token, None).unwrap();
        let other = tempfile::tempdir().unwrap();
        adopt(other.path(), &sealed, &token, None).unwrap();
        assert_eq!(read_all(other.path()).unwrap(), files);
        fs::write(other.path().join("pki/ca.key"), "mine").unwrap();
        let error = adopt(other.path(), &sealed, &token, None).unwrap_err().to_string();
        assert!(error.contains("belongs to another cluster"), "{error}");
        assert_eq!(fs::read(other.path().join("pki/ca.key")).unwrap(), b"mine");
    }

    #[test]
    fn tokens_are_checked() {
        let directory = tempfile::tempdir().unwrap();
        let missing = token(directory.path(), None, false).unwrap_err().to_string();
        assert!(missing.contains("--cluster-token-file"), "{missing}");
        let created = token(directory.path(), None, true).unwrap();
        assert_eq!(token(directory.path(), None, false).unwrap(), created);
        let short = directory.path().join("short");
        fs::write(&short, "secret\n").unwrap();
        let error = token(directory.path(), Some(&short), true).unwrap_err().to_string();
        assert!(error.ends_with("has at least 32 characters, this one has 6"), "{error}");
    }
}
