//! The terminal of this process, and its raw mode for sessions with a remote terminal.

use crate::kube::Kube;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use std::io::{IsTerminal as _, stdin, stdout};
use terminal_size::{Height, Width, terminal_size_of};

/// Whether a session can use a terminal. Warns if one is requested and standard input is none (upstream
/// `StreamOptions.SetupTTY`).
pub fn set_up(k: &Kube, requested: bool, quiet: bool) -> bool {
    let usable = requested && k.shell.terminal && stdin().is_terminal();
    if requested && !usable && !quiet {
        k.warn("Unable to use a TTY - input is not a terminal or the right kind of file");
    }
    usable
}

/// Returns the columns and rows of the terminal; `None` if it has no size.
pub fn size() -> Option<(u16, u16)> {
    let (Width(columns), Height(rows)) = terminal_size_of(stdout()).or_else(|| terminal_size_of(stdin()))?;
    Some((columns, rows))
}

/// Raw mode of the terminal: every key goes to the remote side. Dropping it restores the previous mode.
pub struct Raw(Termios);

impl Raw {
    /// Switches the terminal to raw mode.
    pub fn enter() -> std::io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(stdin(), SetArg::TCSANOW, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin(), SetArg::TCSANOW, &self.0);
    }
}
