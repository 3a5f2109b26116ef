//! The terminal of this process: raw while a remote one is shown in it.

use crate::kube::Kube;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{IsTerminal as _, stdin, stdout};

/// Whether a session that asks for a terminal gets one: not where standard input is none, which is a warning (upstream
/// `StreamOptions.SetupTTY`).
pub fn set_up(k: &Kube, wanted: bool, quiet: bool) -> bool {
    let usable = wanted && k.shell.terminal && stdin().is_terminal();
    if wanted && !usable && !quiet {
        k.warn("Unable to use a TTY - input is not a terminal or the right kind of file");
    }
    usable
}

/// Columns and rows.
pub fn size() -> Option<(u16, u16)> {
    let s = tcgetwinsize(stdout()).or_else(|_| tcgetwinsize(stdin())).ok()?;
    Some((s.ws_col, s.ws_row))
}

/// Every key goes to the other side while this lives; afterwards the terminal is as it was.
pub struct Raw(Termios);

impl Raw {
    pub fn enter() -> std::io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.0);
    }
}
