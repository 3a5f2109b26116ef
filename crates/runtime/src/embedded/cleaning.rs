//! Removes what ended pods leave.
//!
//! **Invariant.** Containers determine how long the removal takes, so only the removal of the same pod waits for it: an agent that
//! starts removes what it finds one after the other while it works. The next sandbox of a pod uses the control group of the one
//! before, whose records stay. So control groups are removed under the lock of [`Leftovers`], and never for a sandbox that has a
//! successor.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use tokio::sync::Mutex;

use super::{Inner, blocking, remove_directory};
use crate::api::{Error, Result};
use crate::cgroup;
use crate::spec::PodRecord;

/// Prefix of directories of removed pods; ids of pods do not start with it.
const REMOVED: &str = ".removed-";
/// Delays between tries after a temporary error, in milliseconds: about two seconds together.
const WAITS: [u16; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum CleanUp {
    /// Processes, mounts and cgroups.
    Kernel,
    /// Files too.
    Everything,
}

/// What a sandbox may have left.
#[derive(Default)]
pub struct Leftovers(Mutex<bool>);

/// What an agent found when it started, and removes later.
pub enum Found {
    /// A pod without a shim.
    Dead(String),
    /// A directory that is not a pod.
    Tree(PathBuf),
}

impl Inner {
    /// Removes what was found, in the background. Running sandboxes must be adopted before.
    pub async fn remove_found(self: Arc<Self>, found: Vec<Found>) {
        let live: Vec<String> = {
            let state = self.state();
            state.pods.values().filter(|p| p.link.is_some()).map(|p| p.record.cgroup.clone()).collect()
        };
        for cgroup in live {
            self.keep_cgroup(&cgroup).await;
        }
        for found in found {
            let (name, removed) = match found {
                Found::Dead(pod) => {
                    let removed = self.clean_once(&pod).await;
                    (pod, removed)
                }
                Found::Tree(path) => {
                    let name = path.display().to_string();
                    (name, blocking(move || remove_directory(&path)).await)
                }
            };
            if let Err(error) = removed {
                tracing::warn!(name, %error, "removing what an ended pod left failed");
            }
        }
    }

    async fn clean_once(&self, pod: &str) -> Result<()> {
        let Ok(entry) = self.pod(pod) else { return Ok(()) };
        let mut due = entry.leftovers.0.lock().await;
        if !std::mem::take(&mut *due) {
            return Ok(());
        }
        self.clean_pod(&entry.record, CleanUp::Kernel).await
    }

    /// Called before a sandbox gets its control group: nothing is removed there any more for earlier sandboxes.
    pub async fn keep_cgroup(&self, cgroup: &str) {
        let earlier: Vec<Arc<Leftovers>> = {
            let state = self.state();
            let same = state.pods.values().filter(|p| p.record.cgroup == cgroup);
            same.map(|p| p.leftovers.clone()).collect()
        };
        for leftovers in earlier {
            *leftovers.0.lock().await = false;
        }
    }

    /// Records that [`Inner::remove_found`] cleans up after a pod, unless it is stopped before.
    pub async fn clean_later(&self, pod: &str) {
        if let Ok(entry) = self.pod(pod) {
            *entry.leftovers.0.lock().await = true;
        }
    }

    /// Cleans up after a sandbox that has been stopped.
    pub async fn clean_stopped(&self, record: &Arc<PodRecord>, leftovers: &Leftovers) -> Result<()> {
        let mut due = leftovers.0.lock().await;
        *due = false;
        self.clean_pod(record, CleanUp::Kernel).await
    }

    pub async fn clean_pod(&self, record: &Arc<PodRecord>, what: CleanUp) -> Result<()> {
        let directory = self.pod_directory(&record.config.id);
        let _ = umount2(&directory.join("shm"), MntFlags::MNT_DETACH); // not mounted is fine
        let (hierarchies, cgroup) = (self.hierarchies.clone(), record.cgroup.clone());
        // Killed processes leave their cgroup a moment later.
        let removed = retry(move || {
            cgroup::kill_all(&hierarchies.directories(&cgroup));
            hierarchies.remove(&cgroup)
        });
        removed.await.map_err(Error::io(format!("cgroup {}", record.cgroup)))?;
        if what == CleanUp::Everything {
            blocking(move || remove_directory(&directory)).await?;
        }
        Ok(())
    }
}

/// Renames a directory to a name that no pod has. Returns the removal that remains.
pub fn set_aside(directory: &Path) -> Result<Found> {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with(REMOVED) {
        return Ok(Found::Tree(directory.to_owned()));
    }
    let _ = umount2(&directory.join("shm"), MntFlags::MNT_DETACH); // not mounted is fine
    let pods = directory.ancestors().find(|d| d.ends_with("pods")).or(directory.parent()).unwrap_or(directory);
    let aside = (0..).map(|n: u32| pods.join(format!("{REMOVED}{n}-{name}"))).find(|p| !p.exists());
    let aside = aside.unwrap_or_else(|| directory.to_owned());
    std::fs::rename(directory, &aside).map_err(Error::io(directory.display().to_string()))?;
    Ok(Found::Tree(aside))
}

/// Whether an error is temporary: the kernel still tears something down.
fn passes(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Repeats blocking work for about two seconds while its error is temporary. No thread blocks in between.
pub async fn retry(work: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> io::Result<()> {
    let work = Arc::new(work);
    for wait in WAITS.into_iter().map(Some).chain([None]) {
        let work = work.clone();
        let done = tokio::task::spawn_blocking(move || work()).await.unwrap_or_else(|e| Err(io::Error::other(e)));
        match (done, wait) {
            (Err(error), Some(wait)) if passes(&error) => {
                tokio::time::sleep(Duration::from_millis(wait.into())).await;
            }
            (done, _) => return done,
        }
    }
    Ok(())
}

/// [`retry`] on a thread that may block.
pub fn retry_here(mut work: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    for wait in WAITS {
        match work() {
            // The descriptor never becomes ready, so `poll` waits for its timeout.
            Err(error) if passes(&error) => drop(nix::poll::poll(&mut [], wait)),
            done => return done,
        }
    }
    work()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test(start_paused = true)]
    async fn only_errors_that_pass_are_waited_for() {
        for (error, expected) in [
            (libc::EBUSY, WAITS.len() + 1),
            (libc::EAGAIN, WAITS.len() + 1),
            (libc::EROFS, 1),
            (libc::EACCES, 1),
            (libc::ENAMETOOLONG, 1),
        ] {
            let tries = Arc::new(AtomicUsize::new(0));
            let counted = tries.clone();
            let work = move || {
                counted.fetch_add(1, Ordering::Relaxed);
                Err(io::Error::from_raw_os_error(error))
            };
            assert_eq!(retry(work).await.unwrap_err().raw_os_error(), Some(error));
            assert_eq!(tries.load(Ordering::Relaxed), expected, "{error}");
        }
        let mut left = 3;
        let work = || match left {
            0 => Ok(()),
            _ => {
                left -= 1;
                Err(io::Error::from_raw_os_error(libc::EBUSY))
            }
        };
        assert!(retry_here(work).is_ok());
    }

    #[test]
    fn what_is_set_aside_has_the_name_of_no_pod() {
        let root = tempfile::tempdir().unwrap();
        let pods = root.path().join("pods");
        let mut seen = Vec::new();
        for _ in 0..2 {
            let directory = pods.join("a-0/containers/x");
            std::fs::create_dir_all(&directory).unwrap();
            let Ok(Found::Tree(path)) = set_aside(&directory) else { panic!("it is not set aside") };
            assert!(path.parent() == Some(&*pods) && path.exists() && !directory.exists(), "{path:?}");
            let Ok(Found::Tree(again)) = set_aside(&path) else { panic!("it is not found again") };
            assert_eq!(again, path);
            seen.push(path);
        }
        assert_ne!(seen[0], seen[1]);
    }
}
