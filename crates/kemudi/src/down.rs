//! `kemudi down`, and which process runs the cluster of a data directory.

use crate::namespace::Location;
use crate::options::DownOptions;
use crate::up::{Error, PID_FILE};
use crate::{agent, data_dir, lock, machine};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Stops the cluster of a data directory; with `--purge`, also removes everything that it has made.
pub fn down(options: &DownOptions) -> Result<(), Error> {
    if options.purge && !options.data_dir.exists() {
        crate::output::note!("nothing to remove: there is no {}", options.data_dir.display());
        return Ok(());
    }
    // Before the process ends, which may be the last in the namespace.
    let namespace = crate::namespace::find(&options.data_dir)
        .map_err(|source| Error::File { path: options.data_dir.clone(), source })?;
    let running = running(&options.data_dir);
    match running {
        Some(pid) => stop(pid)?,
        // What holds the directory is not to lose its files, whatever its program is called.
        None if is_locked(&options.data_dir)? => return Err(Error::InUse(options.data_dir.display().to_string())),
        None if !options.purge => return Err(Error::NotRunning(options.data_dir.display().to_string())),
        None => {}
    }
    if options.purge && options.data_dir.exists() {
        // Protects other files from a mistyped directory.
        if !data_dir::is_ours(&options.data_dir) {
            return Err(Error::NotOurs(options.data_dir.display().to_string()));
        }
        let remains = match &namespace {
            Location::Here => agent::Remains::All,
            Location::Other(file) => {
                crate::namespace::enter(file).map_err(Error::Namespace)?;
                agent::Remains::All
            }
            Location::Gone => agent::Remains::NoNetwork,
        };
        // New threads inherit the namespace of this one.
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Error::Runtime)?;
        runtime.block_on(async {
            machine::purge(&options.data_dir, remains).await?;
            agent::purge(&options.data_dir, None, remains).await.map_err(Error::from)
        })?;
        data_dir::remove(&options.data_dir).map_err(|source| Error::File { path: options.data_dir.clone(), source })?;
    }
    Ok(())
}

/// The ID of the process that runs the cluster of a data directory. Another program with the recorded
/// ID does not count.
pub fn running(data_dir: &Path) -> Option<i32> {
    let text = std::fs::read_to_string(data_dir.join(PID_FILE)).ok()?;
    text.trim().parse().ok().filter(|pid| is_ours(*pid))
}

/// Whether a process holds the lock of a data directory, which a killed one may do for a moment.
fn is_locked(data_dir: &Path) -> Result<bool, Error> {
    if !data_dir.join("lock").exists() {
        return Ok(false);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Runtime)?;
    let lock = runtime.block_on(take_lock(data_dir));
    Ok(lock.map_err(|source| Error::File { path: data_dir.to_owned(), source })?.is_none())
}

/// Locks a data directory. Waits until the kernel has cleaned up a killed holder; `None` if
/// the holder runs.
pub async fn take_lock(data_dir: &Path) -> std::io::Result<Option<lock::Lock>> {
    const CLEANED_UP: Duration = Duration::from_secs(5);
    let started = tokio::time::Instant::now();
    loop {
        let lock = lock::take(data_dir)?;
        if lock.is_some() || running(data_dir).is_some() || started.elapsed() > CLEANED_UP {
            return Ok(lock);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn is_ours(pid: i32) -> bool {
    // The program file may have been replaced since it was started.
    let exe = |p: String| {
        let path = std::fs::read_link(p).ok()?.to_string_lossy().trim_end_matches(" (deleted)").to_owned();
        Some(PathBuf::from(path))
    };
    match (exe(format!("/proc/{pid}/exe")), exe("/proc/self/exe".into())) {
        (Some(a), Some(b)) => a.file_name() == b.file_name(),
        _ => false,
    }
}

/// Whether a process of this program has the ID. A zombie has no program file any more.
pub fn is_running(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None).is_ok() && is_ours(pid)
}

fn stop(pid: i32) -> Result<(), Error> {
    let process = Pid::from_raw(pid);
    let _ = kill(process, Signal::SIGTERM);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Runtime)?;
    runtime.block_on(async {
        for _ in 0..600 {
            if !is_running(pid) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err(Error::Stuck(pid))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `down --purge` of a program with another name removed the files of a cluster that ran.
    #[test]
    fn a_directory_in_use_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let held = lock::take(directory.path()).unwrap().unwrap();
        let mut options = DownOptions { data_dir: directory.path().to_owned(), purge: true };
        assert!(matches!(down(&options), Err(Error::InUse(_))));
        drop(held);
        options.purge = false;
        assert!(matches!(down(&options), Err(Error::NotRunning(_))));
        assert!(directory.path().join("lock").exists());
    }

    /// A start right after `kill -9` failed.
    #[tokio::test]
    async fn a_released_lock_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let held = lock::take(directory.path()).unwrap().unwrap();
        let release = async {
            tokio::task::yield_now().await;
            drop(held);
        };
        let (taken, ()) = tokio::join!(take_lock(directory.path()), release);
        assert!(taken.unwrap().is_some());
    }
}
