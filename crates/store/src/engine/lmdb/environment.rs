//! The only place with `unsafe`: opening and growing the memory map.
//!
//! Invariant: the data file is open once (a lock file, and heed's own list within this process), no other process writes it, and
//! the map is only moved while no transaction of this process is open: readers hold [`Environment::reading`], growing takes
//! it exclusively.
#![allow(unsafe_code)]

use super::{LmdbOptions, Table};
use crate::engine::EngineError;
use heed::{CommitOrAbort, CompactionOption, Env, EnvFlags, EnvOpenOptions, RoTxn, RwTxn, WithoutTls};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, Flock, FlockArg, fcntl};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Parallel readers; each is short.
const READERS: u32 = 256;

/// The data file while it is being copied.
const COPY: &str = "data.copy";

/// Makes renames in a directory durable.
pub(super) fn sync_directory(path: &Path) -> Result<(), EngineError> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(|source| EngineError::File { path: path.to_path_buf(), source })
}

/// Marks every descriptor of this process that is a file of the environment in `path` close-on-exec. LMDB opens its data
/// file without that flag; a program started by this process would get the whole store, writable.
fn close_on_exec(path: &Path) -> std::io::Result<()> {
    let identity = |m: std::fs::Metadata| (m.dev(), m.ino());
    let files: Vec<_> =
        ["data.mdb", "lock.mdb"].iter().filter_map(|f| std::fs::metadata(path.join(f)).ok().map(identity)).collect();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(number) = entry?.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
        let target = std::fs::metadata(format!("/proc/self/fd/{number}"));
        if target.is_ok_and(|m| files.contains(&identity(m))) {
            // SAFETY: the descriptor is one of the environment's, which stays open while the caller holds the environment, or a
            // copy of it (of a database tool in this process); if it was closed meanwhile, only the flag of another one changes.
            let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
            fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        }
    }
    Ok(())
}

pub(super) struct Environment {
    env: Mutex<Option<Env<WithoutTls>>>,
    reading: RwLock<()>,
    path: PathBuf,
    /// Released with this value.
    lock: Mutex<Option<Flock<File>>>,
}

impl Environment {
    /// Creates the directory (0700) and the data if they do not exist.
    pub fn open(path: &Path, options: &LmdbOptions) -> Result<Environment, EngineError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source: std::io::Error| EngineError::File { path, source }
        };
        let mut builder = std::fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(builder.recursive(true), 0o700);
        builder.create(path).map_err(failed(path))?;
        let lock_path = path.join("lock");
        let lock = File::options().create(true).truncate(false).write(true).open(&lock_path);
        let lock = match Flock::lock(lock.map_err(failed(&lock_path))?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((_, Errno::EWOULDBLOCK)) => return Err(EngineError::InUse { path: path.to_path_buf() }),
            Err((_, errno)) => return Err(failed(&lock_path)(errno.into())),
        };
        // Left by a process that died while it copied.
        let _ = std::fs::remove_file(path.join(COPY));
        let env = Environment::map(path, options)?;
        Ok(Environment {
            env: Mutex::new(Some(env)),
            reading: RwLock::new(()),
            path: path.to_path_buf(),
            lock: Mutex::new(Some(lock)),
        })
    }

    fn map(path: &Path, options: &LmdbOptions) -> Result<Env<WithoutTls>, EngineError> {
        let existing = std::fs::metadata(path.join("data.mdb")).map_or(0, |data| data.len());
        // Twice the existing size, so that growing is rare.
        let size = existing.saturating_mul(2).max(options.initial_map).next_multiple_of(1 << 20);
        let mut builder = EnvOpenOptions::new().read_txn_without_tls();
        builder.map_size(size as usize).max_dbs(8).max_readers(READERS);
        if !options.sync {
            // SAFETY: without syncs a power cut may damage the data; this option exists to test that.
            unsafe { builder.flags(EnvFlags::NO_SYNC) };
        }
        // SAFETY: whoever calls this holds the lock file, which excludes every other process, so that the mapped file is not
        // truncated or written; other users have no access to the directory (0700).
        match unsafe { builder.open(path) } {
            Ok(env) => {
                close_on_exec(path).map_err(|source| EngineError::File { path: path.to_path_buf(), source })?;
                Ok(env)
            }
            Err(heed::Error::EnvAlreadyOpened) => Err(EngineError::InUse { path: path.to_path_buf() }),
            Err(error) => Err(error.into()),
        }
    }

    /// Copies the newest state of an environment, which another process may have open and write, into a new directory.
    pub fn copy(from: &Path, to: &Path) -> Result<(), EngineError> {
        let failed = |source| EngineError::File { path: from.to_path_buf(), source };
        let size = std::fs::metadata(from.join("data.mdb")).map_err(failed)?.len();
        let mut builder = std::fs::DirBuilder::new();
        let made = std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700).create(to);
        made.map_err(|source| EngineError::File { path: to.to_path_buf(), source })?;
        // Another process may make it larger meanwhile; this one reads a state from before, which is in this part.
        let mut builder = EnvOpenOptions::new().read_txn_without_tls();
        builder.map_size(size.saturating_mul(2).max(1 << 20).next_multiple_of(1 << 20) as usize).max_readers(READERS);
        // SAFETY: LMDB's own lock file, which both processes use, keeps the pages of a reader; the file is never truncated while it is
        // open (`rewrite` replaces it), and only its owner has access to the directory (0700).
        let env = unsafe { builder.flags(EnvFlags::READ_ONLY).open(from)? };
        let copied = env.copy_to_path(to.join("data.mdb"), CompactionOption::Enabled);
        env.prepare_for_closing().wait();
        copied?.sync_all().map_err(|source| EngineError::File { path: to.to_path_buf(), source })
    }

    /// Replaces the data file by a copy without its free pages. Requires that it is not in use; tables have to be opened again. Changes nothing
    /// if the copy fails, for lack of space for example.
    pub fn rewrite(&self, options: &LmdbOptions) -> Result<(), EngineError> {
        let (copy, data) = (self.path.join(COPY), self.path.join("data.mdb"));
        let made = self.env()?.copy_to_path(&copy, CompactionOption::Enabled);
        if made.map_or(true, |file| file.sync_all().is_err()) {
            let _ = std::fs::remove_file(&copy);
            return Ok(());
        }
        if let Some(env) = self.env.lock().take() {
            env.prepare_for_closing().wait();
        }
        let failed = |source| EngineError::File { path: data.clone(), source };
        std::fs::rename(&copy, &data).map_err(failed)?;
        sync_directory(&self.path)?;
        *self.env.lock() = Some(Environment::map(&self.path, options)?);
        Ok(())
    }

    /// Makes everything durable that was written without syncing.
    pub fn sync(&self) -> Result<(), EngineError> {
        Ok(self.env()?.force_sync()?)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn env(&self) -> Result<Env<WithoutTls>, EngineError> {
        self.env.lock().clone().ok_or(EngineError::Closed)
    }

    /// A table, if it exists.
    pub fn table(&self, name: &str) -> Result<Option<Table>, EngineError> {
        let env = self.env()?;
        let _guard = self.reading.read();
        let opened = env.open_databases_and_commit(env.read_txn()?, |opener, txn| {
            let mut options = opener.database_options().types();
            options.name(name).open(txn).map(CommitOrAbort::<_, ()>::Commit)
        });
        Ok(opened?.commit().flatten())
    }

    /// Opens or creates tables.
    pub fn tables<const N: usize>(&self, names: [&str; N]) -> Result<[Table; N], heed::Error> {
        let env = self.env().map_err(|error| heed::Error::Io(std::io::Error::other(error)))?;
        let _guard = self.reading.read();
        let opened = env.create_databases_and_commit(env.write_txn()?, |opener, txn| {
            let mut tables = Vec::with_capacity(N);
            for name in names {
                tables.push(opener.create_database(txn, Some(name))?);
            }
            let tables = <[_; N]>::try_from(tables).map_err(|_| heed::Error::Mdb(heed::MdbError::Problem))?;
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(tables))
        });
        opened?.commit().ok_or(heed::Error::Mdb(heed::MdbError::Problem))
    }

    /// A read transaction for as long as `work` runs.
    pub fn read<T>(
        &self,
        work: impl FnOnce(&Env<WithoutTls>, &RoTxn<'_, WithoutTls>) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let env = self.env()?;
        let _guard: RwLockReadGuard<'_, ()> = self.reading.read();
        let txn = env.read_txn()?;
        work(&env, &txn)
    }

    /// A write transaction, committed and synced if `work` succeeds. When the map is full it grows and `work` runs again.
    pub fn write<T>(
        &self,
        mut work: impl FnMut(&Env<WithoutTls>, &mut RwTxn<'_>) -> heed::Result<T>,
    ) -> Result<T, heed::Error> {
        let closed = || heed::Error::Io(std::io::Error::other("closed"));
        loop {
            let env = self.env().map_err(|_| closed())?;
            let attempt = {
                let _guard = self.reading.read();
                let mut txn = env.write_txn()?;
                work(&env, &mut txn).and_then(|done| txn.commit().map(|()| done))
            };
            match attempt {
                Err(heed::Error::Mdb(heed::MdbError::MapFull)) => self.grow(&env)?,
                other => return other,
            }
        }
    }

    fn grow(&self, env: &Env<WithoutTls>) -> Result<(), heed::Error> {
        let _alone = self.reading.write();
        let size = env.info().map_size;
        // SAFETY: every transaction of this process lives within `read` or `write`, which hold `reading` shared.
        unsafe { env.resize(size.saturating_mul(2)) }
    }

    /// Returns when the map is gone.
    pub fn close(&self) {
        let env = self.env.lock().take();
        if let Some(env) = env {
            env.prepare_for_closing().wait();
        }
        self.lock.lock().take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 15: containers inherited the data file, open for writing.
    #[test]
    fn no_file_of_the_store_is_inherited() {
        let directory = tempfile::tempdir().unwrap();
        let environment = Environment::open(directory.path(), &LmdbOptions::default()).unwrap();
        // As after compaction, which opens everything anew.
        environment.rewrite(&LmdbOptions::default()).unwrap();
        let mut own = 0;
        for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
            if !std::fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(directory.path())) {
                continue;
            }
            own += 1;
            let info = Path::new("/proc/self/fdinfo").join(entry.file_name());
            let info = std::fs::read_to_string(info).unwrap();
            let flags = info.lines().find_map(|l| l.strip_prefix("flags:")).unwrap().trim();
            let close_on_exec = u32::from_str_radix(flags, 8).unwrap() & 0o2_000_000 != 0;
            assert!(close_on_exec, "{:?} is inherited", std::fs::read_link(entry.path()));
        }
        assert!(own >= 3, "the data, the table of readers and the lock are open, not only {own}");
    }
}
