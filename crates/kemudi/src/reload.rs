//! Files that may change while the server runs: what they say is taken within seconds, unless it is wrong.

use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Interval;

/// How often a file is looked at.
pub const EVERY: Duration = Duration::from_secs(10);

/// A file that is followed.
pub struct Followed {
    path: PathBuf,
    seen: String,
    tick: Interval,
}

impl Followed {
    /// `seen` is what it said when it was read.
    pub fn new(path: PathBuf, seen: String, every: Duration) -> Self {
        Self { path, seen, tick: tokio::time::interval(every) }
    }

    /// What it says once it says something else. A file that cannot be read says what it said before.
    pub async fn changed(&mut self) -> String {
        loop {
            self.tick.tick().await;
            match tokio::fs::read_to_string(&self.path).await {
                Ok(content) if content == self.seen => {}
                Ok(content) => {
                    self.seen.clone_from(&content);
                    return content;
                }
                Err(e) => tracing::warn!("{}: {e}; what it said before still holds", self.path.display()),
            }
        }
    }

    /// Tells whoever reads the log what became of a change.
    pub fn told(&self, taken: Result<(), String>) {
        match taken {
            Ok(()) => tracing::info!("{} has changed and is taken", self.path.display()),
            Err(why) => {
                tracing::error!("{} has changed and is wrong: {why}; what it said before holds", self.path.display());
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
        assert!(tokio::time::timeout(every * 5, file.changed()).await.is_err(), "what is gone says nothing new");
        std::fs::write(&path, "c").unwrap();
        assert_eq!(file.changed().await, "c");
    }
}
