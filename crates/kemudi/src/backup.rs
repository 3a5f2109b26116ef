//! `kemudi backup` and `kemudi restore`: a directory with the newest state of a cluster and its keys, from and to an embedded store or etcd.
//!
//! Invariant: a backup is one state, and appears complete or not at all. A restored store starts at a revision above the backup's and
//! without history, so that clients with older lists and watches are told to list again.

use crate::control_plane::{self, Error};
use crate::{cluster_keys, data_dir, lock};
use clap::Args;
use encryption::{Encryption, Source};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::{Action, Expect, Lmdb, LmdbOptions, Op, Store};
use tokio::task::JoinSet;

/// How far a restored embedded store starts above the backup: more than what was written after it and is lost.
const AHEAD: u64 = 1_000_000_000;
/// Objects and bytes of a transaction, and transactions at a time, while etcd is filled.
const OBJECTS: usize = 64;
const BYTES: usize = 512 << 10;
const AT_A_TIME: usize = 32;
/// Files and directories of a data directory that belong to a backup, besides the store.
const KEYS: [&str; 4] = ["pki", "keys", "admin.token", "cluster.token"];

#[derive(Args)]
pub struct BackupOptions {
    /// Directory to create. It contains all keys of the cluster: keep it as safe as the data directory.
    pub directory: PathBuf,
    /// Data directory of the cluster, which may run; with --etcd-servers, of one of its servers.
    #[arg(long, default_value = "/var/lib/kemudi")]
    pub data_dir: PathBuf,
    /// EncryptionConfiguration of the cluster, if it has one.
    #[arg(long)]
    pub encryption_provider_config: Option<PathBuf>,
    #[command(flatten)]
    pub etcd: crate::etcd::Flags,
}

#[derive(Args)]
pub struct RestoreOptions {
    /// Directory that `kemudi backup` created.
    pub directory: PathBuf,
    /// Data directory to create. With --etcd-servers it gets the keys only, and the objects go to etcd.
    #[arg(long, default_value = "/var/lib/kemudi")]
    pub data_dir: PathBuf,
    /// EncryptionConfiguration of the cluster, if it has one.
    #[arg(long)]
    pub encryption_provider_config: Option<PathBuf>,
    #[command(flatten)]
    pub etcd: crate::etcd::Flags,
}

fn file_error(path: &Path) -> impl Fn(std::io::Error) -> Error {
    let path = path.to_path_buf();
    move |source| Error::File { path: path.clone(), source }
}

fn encryption(keys: &Path, file: Option<&PathBuf>) -> Result<Arc<Encryption>, Error> {
    let source = Source { directory: keys.join("keys"), file: file.cloned() };
    Ok(Encryption::load(source, Arc::new(crate::system::SystemRng))?)
}

/// Writes a backup.
///
/// # Errors
/// The directory exists, or the cluster cannot be read.
pub async fn backup(o: &BackupOptions) -> Result<(), Error> {
    let to = &o.directory;
    if to.exists() {
        return Err(Error::Backup(format!("{} exists already", to.display())));
    }
    let parent = to.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Readable by its owner only; removed unless it becomes the backup.
    let partial = tempfile::Builder::new()
        .prefix(".kemudi-backup-")
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir_in(parent)
        .map_err(file_error(parent))?;
    write_backup(o, partial.path()).await?;
    fs::rename(partial.path(), to).map_err(file_error(to))
}

async fn write_backup(o: &BackupOptions, to: &Path) -> Result<(), Error> {
    let copy = to.join("copy");
    let store = if o.etcd.is_used() {
        let engine = o.etcd.connect().await?;
        let token = o.etcd.cluster_token_file.clone().unwrap_or_else(|| o.data_dir.join("cluster.token"));
        cluster_keys::fetch(&engine, to, &token, o.encryption_provider_config.as_ref()).await?;
        copy_private(&token, &to.join("cluster.token"))?;
        let encryption = encryption(to, o.encryption_provider_config.as_ref())?;
        control_plane::open_engine(engine, Path::new("etcd"), encryption).await?
    } else {
        if !data_dir::is_ours(&o.data_dir) {
            return Err(Error::Backup(format!("{} is not a data directory of kemudi", o.data_dir.display())));
        }
        for name in KEYS {
            copy_private(&o.data_dir.join(name), &to.join(name))?;
        }
        let source = o.data_dir.join("store");
        Lmdb::copy(&source, &copy).map_err(|e| Error::Engine { path: source.clone(), source: e })?;
        open_copy(&copy, encryption(to, o.encryption_provider_config.as_ref())?).await?
    };
    let path = to.join("store");
    let made = store.backup(&path, 0).await.map_err(|source| Error::Store { path, source })?;
    store.close().await;
    let _ = fs::remove_dir_all(&copy);
    for damaged in &made.damaged {
        crate::output::note!("warning: {} cannot be read and is not in the backup", damaged.key);
    }
    crate::output::print_line!("{} objects at revision {}", made.objects, made.revision);
    Ok(())
}

async fn open_copy(path: &Path, encryption: Arc<Encryption>) -> Result<Store, Error> {
    let engine =
        Lmdb::open(path, LmdbOptions::default()).map_err(|e| Error::Engine { path: path.into(), source: e })?;
    control_plane::open_engine(engine, path, encryption).await
}

/// Restores a backup.
///
/// # Errors
/// It is no backup, the data directory is in use, or etcd has objects already.
pub async fn restore(o: &RestoreOptions) -> Result<(), Error> {
    let from = &o.directory;
    if !from.join("store").is_dir() || !from.join("pki").is_dir() {
        return Err(Error::Backup(format!("{} is not a backup of kemudi", from.display())));
    }
    let created = !o.data_dir.exists();
    if !created && fs::read_dir(&o.data_dir).map_err(file_error(&o.data_dir))?.next().is_some() {
        return Err(Error::Backup(format!("{} is not empty: restore into a new data directory", o.data_dir.display())));
    }
    let restored = write_restored(o).await;
    if restored.is_err() {
        let _ = data_dir::remove(&o.data_dir);
        if !created {
            let _ = fs::create_dir(&o.data_dir);
        }
    }
    restored
}

async fn write_restored(o: &RestoreOptions) -> Result<(), Error> {
    let (from, to) = (&o.directory, &o.data_dir);
    data_dir::prepare(to).map_err(file_error(to))?;
    let _lock = lock::take(to).map_err(file_error(to))?;
    for name in KEYS {
        copy_private(&from.join(name), &to.join(name))?;
    }
    let copy = to.join("copy");
    let source = from.join("store");
    Lmdb::copy(&source, &copy).map_err(|e| Error::Engine { path: source, source: e })?;
    let encryption = encryption(to, o.encryption_provider_config.as_ref())?;
    let backup = open_copy(&copy, encryption.clone()).await?;
    let objects = backup.stats().objects;
    if o.etcd.is_used() {
        let engine = o.etcd.connect().await?;
        let token = o.etcd.cluster_token_file.as_deref();
        cluster_keys::share(&engine, to, token, o.encryption_provider_config.as_ref()).await?;
        let store = control_plane::open_engine(engine, Path::new("etcd"), encryption).await?;
        let filled = fill(&backup, &store, &o.etcd.etcd_prefix).await;
        store.close().await;
        filled?;
    } else {
        let path = to.join("store");
        backup.backup(&path, AHEAD).await.map_err(|source| Error::Store { path, source })?;
    }
    backup.close().await;
    fs::remove_dir_all(&copy).map_err(file_error(&copy))?;
    crate::output::print_line!("{objects} objects restored");
    Ok(())
}

/// Writes all objects of a backup into an empty store.
async fn fill(backup: &Store, store: &Store, prefix: &str) -> Result<(), Error> {
    let present = store.stats().objects;
    if present > 0 {
        return Err(Error::Backup(format!(
            "etcd has {present} objects under {prefix}: restore under another --etcd-prefix"
        )));
    }
    let failed = |e: &dyn std::fmt::Display| Error::Backup(format!("writing to etcd: {e}"));
    let snapshot = backup.snapshot();
    store.advance(snapshot.revision()).await.map_err(|e| failed(&e))?;
    let mut commits = JoinSet::new();
    let mut batches = Vec::new();
    let (mut ops, mut bytes) = (Vec::new(), 0);
    for resource in snapshot.resources() {
        for entry in snapshot.range(resource, None, None) {
            if ops.len() >= OBJECTS || bytes + entry.value.len() > BYTES {
                batches.push(std::mem::take(&mut ops));
                bytes = 0;
            }
            bytes += entry.value.len();
            ops.push(Op { key: entry.key.clone(), expect: Expect::Absent, action: Action::Put(entry.value.clone()) });
        }
    }
    batches.push(ops);
    for ops in batches.into_iter().filter(|ops| !ops.is_empty()) {
        if commits.len() >= AT_A_TIME
            && let Some(done) = commits.join_next().await
        {
            finished(done)?;
        }
        let store = store.clone();
        commits.spawn(async move { store.commit(ops).await });
    }
    while let Some(done) = commits.join_next().await {
        finished(done)?;
    }
    store.compact_now(store.revision()).await.map(drop).map_err(|e| failed(&e))
}

fn finished(done: Result<Result<store::Committed, store::CommitError>, tokio::task::JoinError>) -> Result<(), Error> {
    match done {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(e)) => Err(Error::Backup(format!("writing to etcd: {e}"))),
        Err(e) => Err(Error::Backup(format!("writing to etcd: {e}"))),
    }
}

/// Copies a file or directory, readable by its owner only. Nothing if it does not exist.
fn copy_private(from: &Path, to: &Path) -> Result<(), Error> {
    if from.is_dir() {
        fs::create_dir_all(to).map_err(file_error(to))?;
        for entry in fs::read_dir(from).map_err(file_error(from))? {
            let entry = entry.map_err(file_error(from))?;
            copy_private(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    match fs::read(from) {
        Ok(bytes) => Ok(crate::pki::write_private_bytes(to, &bytes)?),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(file_error(from)(e)),
    }
}
