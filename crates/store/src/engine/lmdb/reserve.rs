//! Reserved disk space, so that deletions and compaction still work when the disk is full.
//!
//! Invariant: while puts are accepted, the reserved space is free: as a file of its own, or as free pages in the data file.

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

pub(super) struct Reserve {
    path: PathBuf,
    size: u64,
    held: bool,
}

impl Reserve {
    /// Reserves the space, if the disk has it: a full disk must not keep the store from opening.
    pub fn new(directory: &Path, size: u64) -> Reserve {
        let mut reserve = Reserve { path: directory.join("reserve"), size, held: false };
        reserve.held = std::fs::metadata(&reserve.path).is_ok_and(|file| file.len() >= size) || size == 0;
        reserve.restore();
        reserve
    }

    pub fn held(&self) -> bool {
        self.held
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// Frees the space for the next write. False if none was reserved.
    pub fn release(&mut self) -> bool {
        if self.size == 0 || !self.held {
            return false;
        }
        self.held = false;
        std::fs::remove_file(&self.path).is_ok()
    }

    /// Reserves the space again if the disk has enough. Whether it is reserved now.
    pub fn restore(&mut self) -> bool {
        if !self.held && self.disk_free().is_some_and(|free| free >= 2 * self.size) {
            self.held = self.allocate().is_ok();
            if !self.held {
                let _ = std::fs::remove_file(&self.path);
            }
        }
        self.held
    }

    /// Bytes that can still be written to this file system.
    pub fn disk_free(&self) -> Option<u64> {
        let stat = statvfs(self.path.parent()?).ok()?;
        Some(stat.blocks_available() as u64 * stat.fragment_size() as u64)
    }

    fn allocate(&self) -> std::io::Result<()> {
        let mut file = File::create(&self.path)?;
        match fallocate(&file, FallocateFlags::empty(), 0, self.size as i64) {
            Err(Errno::EOPNOTSUPP) => {
                let zeros = vec![0; 1 << 16];
                let mut left = self.size as usize;
                while left > 0 {
                    let piece = left.min(zeros.len());
                    file.write_all(&zeros[..piece])?;
                    left -= piece;
                }
                Ok(())
            }
            other => Ok(other?),
        }
    }
}
