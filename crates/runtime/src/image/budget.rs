//! Limits what an import may write to the disk: archives and layers are compressed, and their stated sizes cannot be trusted.
//!
//! **Invariant.** What is unpacked from one source, archive and layers together, takes at most the budget. By default that is the
//! free space of the disk without the reserve below which the node would be under pressure.

use std::cell::Cell;
use std::io::{self, Read};
use std::path::Path;

use nix::sys::statvfs::{Statvfs, statvfs};

/// The parts of the disk, in percent, that stay free: bytes and files (kubelet's default thresholds of eviction).
const RESERVE: u64 = 10;
const FILES_RESERVE: u64 = 5;
/// Bytes and files that an entry takes besides its content, at most.
const ENTRY: u64 = 4096;

/// What may still be unpacked.
pub struct Budget {
    bytes: Cell<u64>,
    entries: Cell<u64>,
    exceeded: Cell<bool>,
    /// The initial budget in bytes.
    pub limit: u64,
}

/// Bytes that the disk of `path` has beyond its reserve.
pub fn room(path: &Path) -> io::Result<u64> {
    Ok(free_bytes(&statvfs(path)?))
}

fn free_bytes(disk: &Statvfs) -> u64 {
    let reserve = disk.blocks() / 100 * RESERVE;
    disk.blocks_available().saturating_sub(reserve).saturating_mul(disk.fragment_size())
}

impl Budget {
    /// The budget of what is unpacked at `path`; `limit` is in bytes.
    pub fn new(path: &Path, limit: Option<u64>) -> io::Result<Budget> {
        let disk = statvfs(path)?;
        let entries = match disk.files() {
            0 => u64::MAX, // a file system that makes them as they are needed
            all => disk.files_available().saturating_sub(all / 100 * FILES_RESERVE),
        };
        let limit = limit.unwrap_or_else(|| free_bytes(&disk));
        Ok(Budget { bytes: Cell::new(limit), entries: Cell::new(entries), exceeded: Cell::new(false), limit })
    }

    /// A budget without a limit, for sources that have one of their own.
    pub fn unlimited() -> Budget {
        let most = || Cell::new(u64::MAX);
        Budget { bytes: most(), entries: most(), exceeded: Cell::new(false), limit: u64::MAX }
    }

    /// Whether the budget was exceeded.
    pub fn is_exceeded(&self) -> bool {
        self.exceeded.get()
    }

    fn take(&self, from: &Cell<u64>, amount: u64) -> io::Result<()> {
        match from.get().checked_sub(amount) {
            Some(left) => {
                from.set(left);
                Ok(())
            }
            None => {
                self.exceeded.set(true);
                Err(io::Error::new(io::ErrorKind::StorageFull, "unpacks to more than the limit"))
            }
        }
    }

    /// Counts one entry of an archive.
    pub fn take_entry(&self) -> io::Result<()> {
        self.take(&self.entries, 1)?;
        self.take(&self.bytes, ENTRY)
    }

    /// A reader that counts its bytes.
    pub fn reader<R>(&self, inner: R) -> Counted<'_, R> {
        Counted { inner, budget: self }
    }
}

pub struct Counted<'a, R> {
    inner: R,
    budget: &'a Budget,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.budget.take(&self.budget.bytes, length as u64)?;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_entries_count() {
        let here = std::env::temp_dir();
        let budget = Budget::new(&here, Some(2 * ENTRY + 10)).unwrap();
        budget.take_entry().unwrap();
        let mut text = Vec::new();
        budget.reader(&[1; 10][..]).read_to_end(&mut text).unwrap();
        budget.take_entry().unwrap();
        assert!(!budget.is_exceeded());
        assert_eq!(budget.take_entry().unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(budget.is_exceeded());
        let disk = statvfs(&here).unwrap();
        assert!(room(&here).unwrap() <= disk.blocks_available() * disk.fragment_size());
    }
}
