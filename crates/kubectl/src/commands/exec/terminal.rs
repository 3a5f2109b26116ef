//! The terminal of this process: raw while a remote one is shown in it.

use crate::kube::Kube;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use std::io::{IsTerminal as _, stdin, stdout};
use terminal_size::{Height, Width, terminal_size_of};

/// Whether a session that asks for a terminal gets one: not where standard input is none, which is a warning (upstream
/// `StreamOptions.SetupTTY`).
pub fn set_up(k: &Kube, wanted: bool, quiet: bool) -> bool {
    let usable = wanted && k.shell.terminal && stdin().is_terminal();
    if wanted && !usable && !quiet {
        k.warn("Unable to use a TTY - input is not a terminal or the right kind of file");
    }
    usable
}

/// Returns the columns and rows of the terminal; `None` if it has no size.
pub fn size() -> Option<(u16, u16)> {
    let (Width(columns), Height(rows)) = terminal_size_of(stdout()).or_else(|| terminal_size_of(stdin()))?;
    Some((columns, rows))
}

/// Every key goes to the other side while this lives; afterwards the terminal is as it was.
pub struct Raw(Termios);

impl Raw {
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
