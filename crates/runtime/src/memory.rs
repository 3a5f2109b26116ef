//! The memory of this program.

use nix::sys::mman::{MmapAdvise, madvise};
use std::ffi::c_void;
use std::ptr::NonNull;

/// Overwrites bytes that are not needed any more, so that a copy of this process does not contain them.
pub(crate) fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    // A volatile write, since the compiler would remove one that is never read.
    std::hint::black_box(bytes);
}

/// Drops the pages of this program's code, most of which only the start has run. Code that runs again is mapped again from the page
/// cache; the rest is not resident any more. Returns the number of mappings.
pub fn let_go_of_code() -> std::io::Result<usize> {
    let program = std::env::current_exe()?;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mine = maps.lines().filter(|l| program.to_str().is_some_and(|p| l.ends_with(p))).filter_map(code);
    // SAFETY: code is never written to, relocations included (it is position independent), so its pages equal those of the file,
    // from which the kernel maps them again.
    Ok(mine.filter(|(start, length)| unsafe { madvise(*start, *length, MmapAdvise::MADV_DONTNEED) }.is_ok()).count())
}

/// The range of an executable mapping that is not writable: `7f00-7f10 r-xp … /path`.
fn code(line: &str) -> Option<(NonNull<c_void>, usize)> {
    let mut words = line.split(' ');
    let (start, end) = words.next()?.split_once('-')?;
    if words.next()? != "r-xp" {
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
    fn code_comes_back() {
        assert_eq!(let_go_of_code().unwrap(), 1);
        assert_eq!(code("1000-3000 r-xp 0 08:01 7 /bin/x").unwrap().1, 0x2000);
        // Relocated pages differ from the file.
        assert!(code("1000-3000 r--p 0 08:01 7 /bin/x").is_none() && code("").is_none());
    }
}
