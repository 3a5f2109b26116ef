//! The program that shims run, as a read-only mount of its file.
//!
//! `/proc/PID/exe` leads to the program of a process, also if a container sees that process for a moment, or makes the kernel run it
//! (`#!/proc/self/exe`). Through this mount no process can open the file for writing. It is attached nowhere and ends with the last
//! process that runs the program from it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use crate::sys::{self, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY};

pub struct Program {
    mount: OwnedFd,
}

impl Program {
    pub fn open(path: &Path) -> io::Result<Program> {
        let file = nix::fcntl::open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
        let mount = sys::clone_mount(file.as_fd(), false)?;
        sys::mount_setattr(mount.as_fd(), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, 0, false)?;
        Ok(Program { mount })
    }

    /// The path of the file for this process, and for a child until it runs the program.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.mount.as_raw_fd()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::process::{Command, Stdio};

    /// CVE-2019-5736: a process that may inspect another one opens its program, and writes to it when it is not running any more.
    #[test]
    fn a_program_that_was_run_cannot_be_written_afterwards() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("program");
        std::fs::copy("/bin/cat", &file).unwrap();
        let attack = |program: &Path| -> io::Result<()> {
            let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let held = File::open(format!("/proc/{}/exe", child.id()));
            drop(child.stdin.take());
            child.wait()?;
            let held = held?;
            File::options().append(true).open(format!("/proc/self/fd/{}", held.as_raw_fd())).map(drop)
        };
        attack(&file).expect("without the mount the attack succeeds, so this test can see it");
        let program = Program::open(&file).unwrap();
        let error = attack(&program.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem, "{error}");
    }
}
