//! kubectl: one file per command.
//!
//! A command is an argument struct and one `run`, with its snapshot test beside it. What commands share: [`resource`] (files,
//! types, names, selectors), [`discovery`], [`printer`], [`jsonpath`], [`error`]. Output, messages and exit codes follow
//! upstream's kubectl of v1.36, since scripts read them; the prose of the help is our own.
//!
//! Invariant: streams, environment, clock and chance come from the [`shell`], so that every command runs in a test as it
//! runs in a terminal.

mod base64;
mod cli;
mod commands;
mod discovery;
mod error;
mod flags;

mod kube;
mod kuberc;
mod ownership;
mod printer;
mod resource;
pub mod shell;
#[cfg(test)]
mod testing;

pub use cli::command;
pub use error::Error;
pub use shell::Shell;

use std::ffi::OsString;
use std::process::ExitCode;

/// What this kubectl says it is.
pub const VERSION: &str = meta::KUBERNETES_VERSION;

/// Runs a command line of this process, the program's name first, on a runtime of its own, on this thread.
pub fn main(args: Vec<OsString>) -> ExitCode {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(run(args, Shell::process()));
            // A thread that waits for standard input must not hold the process.
            runtime.shutdown_background();
            ExitCode::from(code)
        }
        Err(e) => {
            eprintln!("error: starting: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a command line in a shell and gives back its exit code.
pub async fn run(args: Vec<OsString>, shell: Shell) -> u8 {
    let (out, err) = (shell.out.clone(), shell.err.clone());
    let words: Vec<String> = args.iter().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    let words = match kuberc::apply(words, &shell) {
        Ok(w) => w,
        Err(e) => {
            err.write(e.report().as_bytes());
            err.flush();
            return e.exit_code();
        }
    };
    let args: Vec<OsString> = args.into_iter().take(1).chain(words.iter().map(OsString::from)).collect();
    if let Some(code) = commands::plugin::instead(&words, &shell) {
        out.flush();
        return code;
    }
    if words.first().is_some_and(|w| w.starts_with("__complete")) {
        return commands::completion::instead(&words, shell).await.unwrap_or(1);
    }
    let result = match cli::parse(args) {
        Ok((global, command)) => match cli::profile(&global.profile, &command) {
            Ok(()) => {
                let mut k = kube::Kube::new(shell, global);
                // Told as often as the flag is there.
                for _ in 0..k.global.recorded {
                    k.warn("Flag --record has been deprecated, --record will be removed in the future");
                }
                if let Some((place, said)) = k.global.dry_run.as_deref().and_then(flags::deprecated_dry_run) {
                    let head = client::log::head('W', k.now(), &k.shell.zone, place);
                    k.warn(format!("{head}{said}"));
                }
                match command.run(&mut k).await {
                    Ok(()) => k.end(),
                    failed => failed,
                }
            }
            Err(e) => Err(e),
        },
        Err(cli::Refusal::Help(text)) => {
            out.write(text.as_bytes());
            Ok(())
        }
        Err(cli::Refusal::Wrong(e)) => Err(e),
    };
    if let Err(e) = &result {
        out.write(e.output().as_bytes());
    }
    out.flush();
    match result {
        Ok(()) => 0,
        Err(e) => {
            err.write(e.report().as_bytes());
            err.flush();
            e.exit_code()
        }
    }
}
