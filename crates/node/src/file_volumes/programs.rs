//! Runs the machine's programs for file systems.

use std::process::ExitStatus;
use std::time::Duration;

use super::Error;
use super::format::Program;
use crate::programs::{self, Failure, OUTPUT};

/// The time that a program may take: the disk may be slow, and the file system large.
const TIME: Duration = Duration::from_secs(600);

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
    let ended = programs::run(program.name, arguments, TIME).await.map_err(|failure| match failure {
        Failure::TimedOut => Error::TimedOut(program.name),
        Failure::Missing => Error::Missing { program: program.name, package: program.package },
        Failure::Io(source) => Error::Io { what: program.name.into(), source },
    })?;
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
