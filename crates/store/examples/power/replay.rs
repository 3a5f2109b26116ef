//! What a disk holds after a power cut: everything that was written before the last flush, and of what came after it any part.
//!
//! The writes come from a log that QEMU keeps (`blklogwrites`, the format of Linux' dm-log-writes): a first sector with the
//! number of entries, then each entry's header in a sector of its own and its data behind it, all little-endian.

use crate::work::{Failure, mix};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const SECTOR: u64 = 512;
/// Sectors that the disk writes whole or not at all: 4 KiB, as disks do. ext4 relies on it for the block that ends a
/// transaction of its journal, and takes a journal with half of one for damaged.
const WHOLE: u64 = 8;
const MAGIC: u64 = 0x6a_736677736872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;

struct Entry {
    /// Of its data in the log.
    data: u64,
    /// On the disk, in sectors.
    sector: u64,
    sectors: u64,
    flags: u64,
}

fn words<const N: usize>(file: &File, at: u64) -> Result<[u64; N], Failure> {
    let mut bytes = [0; 64];
    file.read_exact_at(&mut bytes[..N * 8], at)?;
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into()?);
    }
    Ok(words)
}

/// Nothing if the machine died while an entry before the last flush was being logged, so that nobody can tell what it was.
fn read(log: &File) -> Result<Option<Vec<Entry>>, Failure> {
    let [magic, _version, count] = words(log, 0)?;
    if magic != MAGIC && magic != 0 {
        return Err("not a log of writes".into());
    }
    let (mut entries, mut at) = (Vec::new(), SECTOR);
    loop {
        let [sector, sectors, flags, _] = words(log, at)?;
        if sectors == 0 && flags == 0 {
            return Ok((entries.len() as u64 >= count).then_some(entries));
        }
        entries.push(Entry { data: at + SECTOR, sector, sectors, flags });
        at += SECTOR * (1 + if flags & DISCARD == 0 { sectors } else { 0 });
    }
}

/// Applies a log to the disk as it was when the log began. Nothing, and an untouched disk, if the log cannot be judged.
pub fn replay(log: &Path, disk: &Path, seed: u64) -> Result<Option<String>, Failure> {
    let log = File::open(log)?;
    let disk = File::options().write(true).open(disk)?;
    let Some(entries) = read(&log)? else { return Ok(None) };
    let flushed = entries.iter().rposition(|entry| entry.flags & FLUSH != 0).unwrap_or(0);
    let (mut lost, mut torn) = (0, 0);
    for (number, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.flags & DISCARD == 0) {
        let mut sectors = entry.sectors;
        if number > flushed && entry.flags & FUA == 0 {
            let fate = mix(seed ^ mix(number as u64));
            match fate & 3 {
                0 | 1 => sectors = 0,
                2 => {
                    let end = entry.sector + (fate >> 8) % (sectors + 1);
                    sectors = (end - end % WHOLE).saturating_sub(entry.sector);
                }
                _ => {}
            }
            lost += usize::from(sectors == 0);
            torn += usize::from(sectors > 0 && sectors < entry.sectors);
        }
        let mut data = vec![0; (sectors * SECTOR) as usize];
        log.read_exact_at(&mut data, entry.data)?;
        disk.write_all_at(&data, entry.sector * SECTOR)?;
    }
    let after = entries.len().saturating_sub(flushed + 1);
    Ok(Some(format!("{} writes, {after} after the last flush: {lost} lost, {torn} torn", entries.len())))
}
