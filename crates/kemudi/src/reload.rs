//! Configuration files that are reloaded within seconds after a change, unless they are invalid.

use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Interval;

/// Interval of checks.
pub const EVERY: Duration = Duration::from_secs(10);

/// A file that is reloaded when it changes.
pub struct Followed {
    path: PathBuf,
    seen: String,
    tick: Interval,
}

impl Followed {
    /// `seen`: the content that was read last.
    pub fn new(path: PathBuf, seen: String, every: Duration) -> Self {
        Self { path, seen, tick: tokio::time::interval(every) }
    }

    /// Waits for a change and returns the new content. A file that cannot be read counts as unchanged.
    pub async fn changed(&mut self) -> String {
        loop {
            self.tick.tick().await;
            match tokio::fs::read_to_string(&self.path).await {
                Ok(content) if content == self.seen => {}
                Ok(content) => {
                    self.seen.clone_from(&content);
                    return content;
                }
                Err(e) => tracing::warn!("{}: {e}; keeping the configuration read before", self.path.display()),
            }
        }
    }

    /// Logs whether a change was accepted.
    pub fn log_result(&self, taken: Result<(), String>) {
        match taken {
            Ok(()) => tracing::info!("{}: changed configuration loaded", self.path.display()),
            Err(why) => {
                tracing::error!(
                    "{}: changed configuration is invalid: {why}; keeping the previous one",
                    self.path.display()
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]

    use super::*;

    #[tokio::test]
    async fn changes_are_seen_once() {
        let d = tempfile::tempdir().unwrap();
        let path = d.path().join("f");
        std::fs::write(&path, "a").unwrap();
        let every = Duration::from_millis(2);
        let mut file = Followed::new(path.clone(), "a".into(), every);
        assert!(tokio::time::timeout(every * 5, file.changed()).await.is_err(), "nothing has changed");
        std::fs::write(&path, "b").unwrap();
        assert_eq!(file.changed().await, "b");
        std::fs::remove_file(&path).unwrap();
        assert!(tokio::time::timeout(every * 5, file.changed()).await.is_err(), "a removed file counts as unchanged");
        std::fs::write(&path, "c").unwrap();
        assert_eq!(file.changed().await, "c");
    }
}
