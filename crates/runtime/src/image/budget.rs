//! Limits what an import may write to the disk: archives and layers are compressed, and their stated sizes cannot be trusted.
//!
//! **Invariant.** What is unpacked from one source, archive and layers together, takes at most the budget. By default that is the
//! free space of the disk without the reserve below which the node would be under pressure. Since others write to the disk too, the
//! reserve is checked again while it is written.

use std::cell::Cell;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::statvfs::statvfs;

/// The part of a disk, in percent, that stays free if nothing else is said.
const RESERVE: u64 = 5;
/// Bytes that an entry takes besides its content, at most.
const ENTRY: u64 = 4096;

/// What is written between two looks at the disk, which others fill too.
const CHECK_BYTES: u64 = 4 << 20;
const CHECK_ENTRIES: u64 = 256;

/// What a disk has beyond its reserve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// Files and directories; the maximum on file systems that have no limit.
    pub files: u64,
}

/// What stays free on a disk, given its capacity: with less, the node would be under pressure. By default 5 % of the bytes and files.
#[derive(Clone)]
pub struct Reserve(Arc<dyn Fn(Room) -> Room + Send + Sync>);

impl Reserve {
    /// A reserve that depends on the capacity of the disk.
    pub fn new(of_capacity: impl Fn(Room) -> Room + Send + Sync + 'static) -> Reserve {
        Reserve(Arc::new(of_capacity))
    }

    /// What stays free on a disk with this capacity.
    pub fn of_capacity(&self, capacity: Room) -> Room {
        (self.0)(capacity)
    }

    /// What the disk of `path` has beyond the reserve.
    pub fn room(&self, path: &Path) -> io::Result<Room> {
        let disk = statvfs(path)?;
        let capacity = disk.blocks().saturating_mul(disk.fragment_size());
        let reserve = self.of_capacity(Room { bytes: capacity, files: disk.files() });
        let available = disk.blocks_available().saturating_mul(disk.fragment_size());
        let files = match disk.files() {
            0 => u64::MAX, // a file system that makes them as they are needed
            _ => disk.files_available().saturating_sub(reserve.files),
        };
        Ok(Room { bytes: available.saturating_sub(reserve.bytes), files })
    }
}

impl Default for Reserve {
    fn default() -> Self {
        Self::new(|disk| Room { bytes: disk.bytes / 100 * RESERVE, files: disk.files / 100 * RESERVE })
    }
}

/// What may still be unpacked.
pub struct Budget {
    bytes: Cell<u64>,
    entries: Cell<u64>,
    exceeded: Cell<bool>,
    /// The initial budget in bytes.
    pub limit: u64,
    /// The disk whose reserve must stay free, and what is written until the next look at it.
    disk: Option<(PathBuf, Reserve)>,
    unchecked_bytes: Cell<u64>,
    unchecked_entries: Cell<u64>,
}

impl Budget {
    /// The budget of what is unpacked at `path`: `limit` bytes, or without a limit what the disk has beyond its reserve.
    pub fn new(path: &Path, reserve: &Reserve, limit: Option<u64>) -> io::Result<Budget> {
        let room = reserve.room(path)?;
        let disk = limit.is_none().then(|| (path.to_owned(), reserve.clone()));
        Ok(Budget { disk, ..Self::with(limit.unwrap_or(room.bytes), room.files) })
    }

    /// The budget of a pulled image at `path`: what the disk has beyond its reserve, without what is
    /// `promised` to others.
    pub fn beside(path: &Path, reserve: &Reserve, promised: Room) -> io::Result<Budget> {
        let room = reserve.room(path)?;
        let bytes = room.bytes.saturating_sub(promised.bytes);
        let files = room.files.saturating_sub(promised.files);
        Ok(Budget { disk: Some((path.to_owned(), reserve.clone())), ..Self::with(bytes, files) })
    }

    /// A budget for content that is read and not written.
    pub fn for_reading(bytes: u64) -> Budget {
        Self::with(bytes, u64::MAX)
    }

    /// A budget without a limit, for sources that have one of their own.
    pub fn unlimited() -> Budget {
        Self::for_reading(u64::MAX)
    }

    fn with(bytes: u64, entries: u64) -> Budget {
        Budget {
            bytes: Cell::new(bytes),
            entries: Cell::new(entries),
            exceeded: Cell::new(false),
            limit: bytes,
            disk: None,
            unchecked_bytes: Cell::new(CHECK_BYTES),
            unchecked_entries: Cell::new(CHECK_ENTRIES),
        }
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
            None => Err(self.exceed()),
        }
    }

    fn exceed(&self) -> io::Error {
        self.exceeded.set(true);
        io::Error::new(io::ErrorKind::StorageFull, "unpacks to more than the limit")
    }

    fn take_bytes(&self, amount: u64) -> io::Result<()> {
        self.take(&self.bytes, amount)?;
        self.check(&self.unchecked_bytes, amount, CHECK_BYTES)
    }

    /// Looks at the disk if enough was written since the last time.
    fn check(&self, unchecked: &Cell<u64>, amount: u64, period: u64) -> io::Result<()> {
        let Some((path, reserve)) = &self.disk else { return Ok(()) };
        if let Some(left) = unchecked.get().checked_sub(amount) {
            unchecked.set(left);
            return Ok(());
        }
        unchecked.set(period);
        let room = reserve.room(path)?;
        if room.bytes == 0 || room.files == 0 { Err(self.exceed()) } else { Ok(()) }
    }

    /// Counts one entry of an archive, or one directory that is created for it.
    pub fn take_entry(&self) -> io::Result<()> {
        self.take(&self.entries, 1)?;
        self.check(&self.unchecked_entries, 1, CHECK_ENTRIES)?;
        self.take_bytes(ENTRY)
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
        self.budget.take_bytes(length as u64)?;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_entries_count() {
        let here = std::env::temp_dir();
        let budget = Budget::new(&here, &Reserve::default(), Some(2 * ENTRY + 10)).unwrap();
        budget.take_entry().unwrap();
        let mut text = Vec::new();
        budget.reader(&[1; 10][..]).read_to_end(&mut text).unwrap();
        budget.take_entry().unwrap();
        assert!(!budget.is_exceeded());
        assert_eq!(budget.take_entry().unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(budget.is_exceeded());
        let disk = statvfs(&here).unwrap();
        let available = disk.blocks_available() * disk.fragment_size();
        assert!(Reserve::default().room(&here).unwrap().bytes <= available);
    }

    #[test]
    fn a_reserve_depends_on_the_capacity() {
        let here = std::env::temp_dir();
        let disk = statvfs(&here).unwrap();
        let capacity = disk.blocks() * disk.fragment_size();
        let all = Reserve::new(|disk| disk);
        assert_eq!(all.room(&here).unwrap().bytes, 0);
        let nothing = Reserve::new(move |disk| {
            assert_eq!(disk.bytes, capacity);
            Room::default()
        });
        assert!(nothing.room(&here).unwrap().bytes > Reserve::default().room(&here).unwrap().bytes);
    }
}
