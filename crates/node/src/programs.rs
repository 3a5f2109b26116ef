//! Runs programs of the machine to their end, such as `mount` and those for file systems.

use std::ffi::OsStr;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::process::Command;

/// Characters of the output of a program in an error or event.
pub const OUTPUT: usize = 500;

/// Why a program did not run to its end.
#[derive(Debug)]
pub enum Failure {
    TimedOut,
    /// It is not installed.
    Missing,
    Io(io::Error),
}

/// A program that ran to its end.
pub struct Ended {
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Ended {
    /// The output and the errors.
    pub fn output(&self) -> String {
        excerpt(&[&*self.stdout, &*self.stderr].concat())
    }
}

/// Runs a program without input, with messages in English. It is killed after `time`.
pub async fn run(
    program: &str,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    time: Duration,
) -> Result<Ended, Failure> {
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).kill_on_drop(true);
    match tokio::time::timeout(time, command.output()).await {
        Err(_) => Err(Failure::TimedOut),
        Ok(Err(e)) if e.kind() == io::ErrorKind::NotFound => Err(Failure::Missing),
        Ok(Err(e)) => Err(Failure::Io(e)),
        Ok(Ok(ended)) => Ok(Ended { status: ended.status, stdout: ended.stdout, stderr: ended.stderr }),
    }
}

/// The first part of what a program printed.
pub fn excerpt(output: &[u8]) -> String {
    String::from_utf8_lossy(output).trim().chars().take(OUTPUT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn programs_end_in_time() {
        let shell = |script: &'static str, time| run("sh", ["-c", script], time);
        let ended =
            shell("echo out; echo err >&2; exit 3", Duration::from_secs(60)).await.unwrap_or_else(|e| panic!("{e:?}"));
        assert_eq!((ended.status.code(), &*ended.output()), (Some(3), "out\nerr"));
        assert!(matches!(shell("sleep 60", Duration::from_millis(10)).await, Err(Failure::TimedOut)));
        assert!(matches!(run("no-such-program", [""; 0], Duration::from_secs(60)).await, Err(Failure::Missing)));
        assert_eq!(excerpt(&[b'x'; 600]).len(), OUTPUT);
    }
}
