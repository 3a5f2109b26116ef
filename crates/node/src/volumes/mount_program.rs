//! Runs the machine's `mount`, which knows the options and the programs of all file systems.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

/// The time that mounting may take; a server may not answer.
const TIME: Duration = Duration::from_secs(120);
/// Characters of the program's output in an event.
const OUTPUT: usize = 500;

/// Runs `mount` with these arguments. Errors with kubelet's text, which shows the command and its output.
pub(crate) async fn run(arguments: &[String]) -> Result<(), String> {
    let running = Command::new("mount").args(arguments).stdin(Stdio::null()).kill_on_drop(true).output();
    let (why, output) = match tokio::time::timeout(TIME, running).await {
        Err(_) => ("it did not end in time".to_owned(), Vec::new()),
        Ok(Err(e)) => (e.to_string(), Vec::new()),
        Ok(Ok(ended)) if ended.status.success() => return Ok(()),
        Ok(Ok(ended)) => (ended.status.to_string(), ended.stderr),
    };
    let output: String = String::from_utf8_lossy(&output).trim().chars().take(OUTPUT).collect();
    let arguments = arguments.join(" ");
    Err(format!("mount failed: {why}\nMounting command: mount\nMounting arguments: {arguments}\nOutput: {output}"))
}
