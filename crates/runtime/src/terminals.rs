//! How many terminals this machine has.

use std::io;

const MOST: &str = "/proc/sys/kernel/pty/max";

/// The kernel's own number, 4096, is used up by the containers of a few pods. Raises it to `wanted`, if it is less; it is the number of the
/// whole machine.
pub fn raise(wanted: u32) -> io::Result<()> {
    let now: u32 = std::fs::read_to_string(MOST)?.trim().parse().map_err(io::Error::other)?;
    if now < wanted {
        std::fs::write(MOST, wanted.to_string())?;
    }
    Ok(())
}
