//! Rotation of the logs that the runtime writes (kubelet `logs/container_log_manager.go`): a log that has grown to its limit is renamed, and
//! the runtime opens a new file.

use std::sync::Weak;
use std::time::Duration;

use runtime::{ContainerState, Result, rotation};

use crate::records::OWNER;
use crate::{Inner, blocking, io};

/// The time between two checks (`containerLogMonitorInterval`).
const PERIOD: Duration = Duration::from_secs(10);

/// Rotates logs until the runtime is dropped.
pub(crate) async fn follow(inner: Weak<Inner>) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        if let Err(error) = inner.rotate_logs().await {
            tracing::debug!(%error, "checking the logs of containers failed; the next check is in ten seconds");
        }
    }
}

impl Inner {
    async fn rotate_logs(&self) -> Result<()> {
        let all = self.containers((OWNER, &self.options.owner)).await?;
        for container in all.into_iter().filter(|c| c.state == ContainerState::Running) {
            if let Err(error) = self.rotate_log(&container.id, container.log_path).await {
                tracing::warn!(container = container.id, %error, "rotating a log failed; it is tried again");
            }
        }
        Ok(())
    }

    async fn rotate_log(&self, id: &str, log: std::path::PathBuf) -> Result<()> {
        let (limits, now) = (self.options.log_limits, (self.options.clock)());
        let rotated = blocking(move || {
            match std::fs::symlink_metadata(&log) {
                Ok(file) if file.len() >= limits.max_size => {}
                // After a failed reopening there is no file, and the runtime writes to the renamed one.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound && !log.as_os_str().is_empty() => return Ok(true),
                _ => return Ok(false),
            }
            let rotated = rotation::rotate_foreign(&log, limits.max_files, now);
            rotated.map(|()| true).map_err(|e| io(log.display().to_string(), e))
        });
        if rotated.await? { self.connection.reopen_log(id).await } else { Ok(()) }
    }
}
