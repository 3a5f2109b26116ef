//! The signals that ask the process to stop.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM. Those that arrive before [`Stop::requested`] is called are kept for it; several count as one.
///
/// The first value of this type takes the signals' default action away from the whole process, so whoever has to act on
/// them makes his own before anything can take long.
pub struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    /// Begins to listen. It must be called within a tokio runtime, which delivers the signals.
    pub fn listen() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next request to stop.
    pub async fn requested(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
