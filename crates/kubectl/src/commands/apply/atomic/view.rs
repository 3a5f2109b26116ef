//! Progress output: a view that is redrawn in place in a terminal, or a line per change.

use super::ready::State;
use crate::kube::Kube;
use std::io::{IsTerminal as _, stdout};
use terminal_size::{Width, terminal_size_of};

/// With more objects the view would scroll.
const LIVE_LINES: usize = 30;

/// The names of the objects and their printed states.
pub struct View {
    names: Vec<String>,
    shown: Vec<Option<State>>,
    live: bool,
    drawn: bool,
}

fn line(name: &str, state: Option<&State>) -> String {
    match state {
        None => format!("  {name}"),
        Some(State::Ready) => format!("✓ {name} is ready"),
        Some(State::Waiting(why)) => format!("… {name}: {why}"),
        Some(State::Failed(why)) => format!("✗ {name}: {why}"),
    }
}

impl View {
    pub fn new(k: &Kube, names: Vec<String>) -> Self {
        let live = k.shell.terminal && stdout().is_terminal() && names.len() <= LIVE_LINES;
        Self { shown: vec![None; names.len()], names, live, drawn: false }
    }

    /// Shows what has changed.
    pub fn show(&mut self, k: &Kube, states: &[State]) {
        let mut changed = false;
        for (i, s) in states.iter().enumerate() {
            if self.shown[i].as_ref() == Some(s) {
                continue;
            }
            changed = true;
            if !self.live {
                // Objects that are ready at the first check get no line.
                let quiet = self.shown[i].is_none() && *s == State::Ready;
                if !quiet {
                    k.println(match s {
                        State::Ready => format!("{} is ready", self.names[i]),
                        State::Waiting(why) | State::Failed(why) => format!("{}: {why}", self.names[i]),
                    });
                }
            }
            self.shown[i] = Some(s.clone());
        }
        if self.live && changed {
            let mut text = String::new();
            if self.drawn {
                text.push_str(&format!("\x1b[{}A", self.names.len()));
            }
            // A wrapped line would shift the next drawing.
            let width = terminal_size_of(stdout()).map_or(80, |(Width(columns), _)| usize::from(columns)).max(20);
            for (name, state) in self.names.iter().zip(&self.shown) {
                let line: String = line(name, state.as_ref()).chars().take(width - 1).collect();
                text.push_str(&format!("\r\x1b[K{line}\n"));
            }
            k.out.write(text.as_bytes());
            self.drawn = true;
        }
        k.out.flush();
    }
}
