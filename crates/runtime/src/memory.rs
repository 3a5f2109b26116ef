//! What the program itself takes of memory.

use nix::sys::mman::{MmapAdvise, madvise};
use std::ffi::c_void;
use std::ptr::NonNull;

/// Lets the kernel map only those pages of this program's file that are touched. Otherwise each first touch maps fifteen
/// neighbours as well, which counts as resident although most of a large program is never run. Gives back how many
/// mappings took the advice; a kernel that does not know it changes nothing.
pub fn map_only_what_is_touched() -> std::io::Result<usize> {
    let program = std::env::current_exe()?;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mine = maps.lines().filter(|l| program.to_str().is_some_and(|p| l.ends_with(p))).filter_map(mapping);
    // SAFETY: this advice changes neither what the pages hold nor what may be done with them.
    Ok(mine.filter(|(start, length)| unsafe { madvise(*start, *length, MmapAdvise::MADV_RANDOM) }.is_ok()).count())
}

/// The place of a mapping that is not written to: `7f00-7f10 r-xp … /path`.
fn mapping(line: &str) -> Option<(NonNull<c_void>, usize)> {
    let mut words = line.split(' ');
    let (start, end) = words.next()?.split_once('-')?;
    if words.next()?.contains('w') {
        return None;
    }
    let [start, end] = [start, end].map(|n| usize::from_str_radix(n, 16).ok());
    let (start, end) = (start?, end?);
    Some((NonNull::new(start as *mut c_void)?, end.checked_sub(start)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_own_pages_are_advised() {
        assert!(map_only_what_is_touched().unwrap() >= 2, "code and constants");
        assert_eq!(mapping("1000-3000 r-xp 0 08:01 7 /bin/x").unwrap().1, 0x2000);
        assert!(mapping("1000-3000 rw-p 0 08:01 7 /bin/x").is_none() && mapping("").is_none());
    }
}
