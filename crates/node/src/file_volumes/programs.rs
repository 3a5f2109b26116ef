//! Runs the machine's programs for file systems.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::process::Command;

use super::Error;
use super::format::Program;

/// The time that a program may take: the disk may be slow, and the file system large.
const TIME: Duration = Duration::from_secs(600);
/// Characters of the output of a program in an error.
const OUTPUT: usize = 500;

/// What a program printed, and how it ended.
pub(super) struct Ended {
    pub status: ExitStatus,
    pub output: String,
}

impl Ended {
    pub fn failed(self, program: Program) -> Error {
        Error::Program { program: program.name, status: self.status, output: self.output }
    }
}

/// Runs a program to its end. It is killed if that takes too long, or if the future is dropped.
pub(super) async fn run(program: Program, arguments: &[String]) -> Result<Ended, Error> {
    let mut command = Command::new(program.name);
    command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).kill_on_drop(true);
    let ended = match tokio::time::timeout(TIME, command.output()).await {
        Err(_) => return Err(Error::TimedOut(program.name)),
        Ok(Err(e)) if e.kind() == std::io::ErrorKind::NotFound => {
            let Program { name, package } = program;
            return Err(Error::Missing { program: name, package });
        }
        Ok(Err(source)) => return Err(Error::Io { what: program.name.into(), source }),
        Ok(Ok(ended)) => ended,
    };
    let text = [ended.stdout, ended.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    Ok(Ended { status: ended.status, output: lines.join("; ").chars().take(OUTPUT).collect() })
}

/// Runs a program that has to succeed.
pub(super) async fn run_successfully((program, arguments): (Program, Vec<String>)) -> Result<(), Error> {
    let ended = run(program, &arguments).await?;
    if ended.status.success() { Ok(()) } else { Err(ended.failed(program)) }
}

/// Whether a program is in the path of this process.
pub(super) fn is_installed(program: Program) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|d| d.join(program.name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn errors_say_what_is_missing_and_what_was_printed() {
        let program = |name| Program { name, package: "tools" };
        let missing = run_successfully((program("mkfs.nothing"), Vec::new())).await.unwrap_err().to_string();
        assert!(missing.contains("mkfs.nothing is not installed on this node: install the package tools"), "{missing}");
        let script = ["-c".to_owned(), "echo first; echo second >&2; exit 3".to_owned()];
        let failed = run_successfully((program("sh"), script.into())).await.unwrap_err().to_string();
        assert_eq!(failed, "sh failed with exit status: 3: first; second");
        assert!(is_installed(program("sh")) && !is_installed(program("mkfs.nothing")));
    }
}
