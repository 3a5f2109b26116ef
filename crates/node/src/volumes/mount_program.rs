//! Runs the machine's `mount`, which knows the options and the programs of all file systems.

use std::time::Duration;

use crate::programs::{self, Failure, excerpt};

/// The time that mounting may take; a server may not answer.
const TIME: Duration = Duration::from_secs(120);

/// Runs `mount` with these arguments. Errors with kubelet's text, which shows the command and its output.
pub(crate) async fn run(arguments: &[String]) -> Result<(), String> {
    let (why, output) = match programs::run("mount", arguments, TIME).await {
        Err(Failure::TimedOut) => ("it did not end in time".to_owned(), String::new()),
        Err(Failure::Missing) => ("it is not installed on this node".to_owned(), String::new()),
        Err(Failure::Io(e)) => (e.to_string(), String::new()),
        Ok(ended) if ended.status.success() => return Ok(()),
        Ok(ended) => (ended.status.to_string(), excerpt(&ended.stderr)),
    };
    let arguments = arguments.join(" ");
    Err(format!("mount failed: {why}\nMounting command: mount\nMounting arguments: {arguments}\nOutput: {output}"))
}
