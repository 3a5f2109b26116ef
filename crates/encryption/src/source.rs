//! Where keys come from: a configuration file, or the server's own, which is made at the first start.
//!
//! Invariant: the own file is written only after a store was opened without it, so a lost file is an error and not a new key;
//! and it is durable before anything is encrypted with it.

use crate::config::{ConfigError, Rules};
use crate::known::Known;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use meta::Rng;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::Str;

/// The error of loading the configuration or the keys.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file has no valid configuration.
    #[error("{path}: {source}", path = .path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: ConfigError,
    },
}

/// Where the keys and the configuration are.
pub struct Source {
    /// The directory of the server's own keys.
    pub directory: PathBuf,
    /// An `EncryptionConfiguration` to use instead. The own keys still open what they encrypted.
    pub file: Option<PathBuf>,
}

impl Source {
    fn own(&self) -> PathBuf {
        self.directory.join("encryption.yaml")
    }

    /// The file that is watched.
    fn path(&self) -> PathBuf {
        self.file.clone().unwrap_or_else(|| self.own())
    }
}

/// The store's transform. Made before the store is opened; [`Encryption::keep`] and [`Encryption::run`] follow.
pub struct Encryption {
    source: Source,
    pub(crate) rng: Arc<dyn Rng>,
    known: RwLock<Arc<Known>>,
    /// The text of the rules in force.
    pub(crate) text: Mutex<String>,
    /// The server's own file, generated but not yet written.
    made: Mutex<Option<String>>,
    /// Resources with records that are not in the current form.
    stale: Mutex<BTreeSet<Str>>,
}

impl Encryption {
    /// Loads the configuration, or the server's own keys, which are generated if they do not exist.
    pub fn load(source: Source, rng: Arc<dyn Rng>) -> Result<Arc<Encryption>, Error> {
        let own = match read(&source.own()) {
            Ok(text) => Some(text),
            Err(Error::File { source, .. }) if source.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let mut made = None;
        let text = match (&source.file, &own) {
            (Some(file), _) => read(file)?,
            (None, Some(own)) => own.clone(),
            (None, None) => made.insert(make(&*rng)).clone(),
        };
        let known = Known {
            rules: parse(&source.path(), &text)?,
            earlier: match (&source.file, own) {
                (Some(_), Some(own)) => parse(&source.own(), &own)?,
                _ => Rules::default(),
            },
        };
        Ok(Arc::new(Encryption {
            source,
            rng,
            known: RwLock::new(Arc::new(known)),
            text: Mutex::new(text),
            made: Mutex::new(made),
            stale: Mutex::default(),
        }))
    }

    /// Writes newly generated keys to their file. Call it after opening the store, before any write.
    pub fn keep(&self) -> Result<(), Error> {
        let Some(text) = self.made.lock().take() else { return Ok(()) };
        let path = self.source.own();
        let failed = |source| Error::File { path: path.clone(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.source.directory).map_err(failed)?;
        let new = self.source.directory.join("encryption.yaml.new");
        let mut file =
            fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&new).map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        fs::rename(&new, &path).map_err(failed)?;
        for directory in [Some(&*self.source.directory), self.source.directory.parent()].into_iter().flatten() {
            fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
        }
        Ok(())
    }

    pub(crate) fn known(&self) -> Arc<Known> {
        self.known.read().clone()
    }

    /// The location of the keys, for messages.
    pub(crate) fn location(&self) -> String {
        self.source.path().display().to_string()
    }

    pub(crate) fn note_stale(&self, resource: &Str) {
        let mut stale = self.stale.lock();
        if !stale.contains(resource) {
            stale.insert(resource.clone());
        }
    }

    pub(crate) fn take_stale(&self) -> BTreeSet<Str> {
        std::mem::take(&mut *self.stale.lock())
    }

    /// The configuration in the file, if it differs from the one in force.
    pub(crate) fn changed(&self) -> Result<Option<(String, Known)>, Error> {
        let path = self.source.path();
        let failed = |source| Error::File { path: path.clone(), source };
        if fs::read_to_string(&path).map_err(failed)? == *self.text.lock() {
            return Ok(None);
        }
        let text = read(&path)?;
        let rules = parse(&path, &text)?;
        let earlier = match &self.source.file {
            Some(_) if self.source.own().exists() => parse(&self.source.own(), &read(&self.source.own())?)?,
            _ => Rules::default(),
        };
        Ok(Some((text, Known { rules, earlier })))
    }

    pub(crate) fn replace(&self, text: String, known: Known) {
        *self.known.write() = Arc::new(known);
        *self.text.lock() = text;
    }
}

fn read(path: &Path) -> Result<String, Error> {
    let failed = |source| Error::File { path: path.into(), source };
    let text = fs::read_to_string(path).map_err(failed)?;
    if fs::metadata(path).map_err(failed)?.permissions().mode() & 0o077 != 0 {
        tracing::warn!("{} holds keys, and others than its owner may read or write it", path.display());
    }
    Ok(text)
}

fn parse(path: &Path, text: &str) -> Result<Rules, Error> {
    Rules::parse(text).map_err(|source| Error::Config { path: path.into(), source })
}

/// A configuration with a new key. The name of the key is unique, so that an error about a record names the missing key.
fn make(rng: &dyn Rng) -> String {
    let (mut name, mut secret) = ([0; 6], [0; 32]);
    rng.fill(&mut name);
    rng.fill(&mut secret);
    let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    let secret = STANDARD.encode(secret);
    format!(
        "# The keys that encrypt stored objects. Without this file they cannot be read: keep a copy in a safe place.
# To change the key put a new one (32 random bytes in base64) before this one, under another name; the server takes it within
# seconds and writes everything again. Then remove this one; the server refuses that, and says so, while anything needs it.
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources:
  - secrets
  providers:
  - aesgcm:
      keys:
      - name: key-{name}
        secret: {secret}
  - identity: {{}}
"
    )
}
