//! One process per data directory.

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::io;
use std::path::Path;

/// Locked while the process uses the directory; the kernel releases it however the process ends.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "it is held, not read")] Flock<File>);

/// Locks the directory, before anything in it is changed; none if another process holds the lock.
pub fn take(directory: &Path) -> io::Result<Option<Lock>> {
    let file = File::options().create(true).truncate(false).write(true).open(directory.join("lock"))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(Lock(lock))),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, e)) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_locked_once() {
        let directory = tempfile::tempdir().unwrap();
        let first = take(directory.path()).unwrap();
        assert!(first.is_some() && take(directory.path()).unwrap().is_none());
        drop(first);
        assert!(take(directory.path()).unwrap().is_some());
        assert!(take(Path::new("/nonexistent")).is_err());
    }
}
