//! The limit of terminals of this machine.

use std::io;

const PATH: &str = "/proc/sys/kernel/pty/max";

/// Raises the limit of the machine to `minimum`. The containers of a few pods would use up the kernel's default, 4096.
pub fn raise(minimum: u32) -> io::Result<()> {
    let now: u32 = std::fs::read_to_string(PATH)?.trim().parse().map_err(io::Error::other)?;
    if now < minimum {
        std::fs::write(PATH, minimum.to_string())?;
    }
    Ok(())
}
