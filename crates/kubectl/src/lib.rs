//! kubectl: one file per command.
//!
//! A command is an argument struct and one `run`, with its snapshot test beside it. Commands share `resource` (files,
//! types, names, selectors), `discovery`, `printer`, `flags` and `error`. Output, messages and exit codes follow
//! upstream's kubectl v1.36, since scripts read them; the help texts are our own.
//!
//! Invariant: streams, environment, clock and random numbers come from the `shell`, so that every command runs in a test
//! as it runs in a terminal.

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
mod temporary;
#[cfg(test)]
mod testing;

pub use cli::command;
pub use error::Error;
pub use shell::Shell;

use std::ffi::OsString;
use std::process::ExitCode;

/// The version that this kubectl reports.
pub const VERSION: &str = meta::KUBERNETES_VERSION;

/// Runs a command line of this process on a new runtime on this thread. The first argument is the name of the program.
pub fn main(args: Vec<OsString>) -> ExitCode {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(run(args, Shell::process()));
            // A thread that waits for standard input must not delay the exit.
            runtime.shutdown_background();
            ExitCode::from(code)
        }
        Err(e) => {
            eprintln!("error: starting: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The exit code of a program that `SIGPIPE` ends, as shells report it.
const BROKEN_PIPE: u8 = 128 + 13;

/// Runs a command line in a shell and returns its exit code. As `SIGPIPE` ends upstream's program, a command ends once it
/// has written to a pipe without a reader, even if it still waits for something.
pub async fn run(args: Vec<OsString>, shell: Shell) -> u8 {
    let (out, err) = (shell.out.clone(), shell.err.clone());
    let code = tokio::select! {
        code = command_line(args, shell) => code,
        () = out.broken() => BROKEN_PIPE,
        () = err.broken() => BROKEN_PIPE,
    };
    if out.is_broken() || err.is_broken() { BROKEN_PIPE } else { code }
}

async fn command_line(args: Vec<OsString>, shell: Shell) -> u8 {
    let (out, err) = (shell.out.clone(), shell.err.clone());
    let words: Vec<String> = args.iter().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    let words = match kuberc::rewrite::apply(words, &shell) {
        Ok(w) => w,
        Err(e) => {
            err.write(e.report().as_bytes());
            err.flush();
            return e.exit_code();
        }
    };
    let args: Vec<OsString> = args.into_iter().take(1).chain(words.iter().map(OsString::from)).collect();
    if let Some(code) = commands::plugin::run_plugin(&words, &shell) {
        out.flush();
        return code;
    }
    if words.first().is_some_and(|w| w.starts_with("__complete")) {
        return commands::completion::run_hidden_command(&words, shell).await.unwrap_or(1);
    }
    let result = match cli::parse(args) {
        Ok((global, command)) => match cli::profile(&global.profile, &command) {
            Ok(()) => {
                let mut k = kube::Kube::new(shell, global);
                // The warning repeats for each occurrence of the flag.
                for _ in 0..k.global.recorded {
                    k.warn("Flag --record has been deprecated, --record will be removed in the future");
                }
                if let Some((place, message)) = k.global.dry_run.as_deref().and_then(flags::deprecated_dry_run) {
                    let head = client::log::head('W', k.now(), &k.shell.zone, place);
                    k.warn(format!("{head}{message}"));
                }
                match command.run(&mut k).await {
                    Ok(()) => k.check_warnings(),
                    failed => failed,
                }
            }
            Err(e) => Err(e),
        },
        Err(cli::ParseStop::Help(text)) => {
            out.write(text.as_bytes());
            Ok(())
        }
        Err(cli::ParseStop::Error(e)) => Err(e),
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

#[cfg(test)]
mod tests {
    use crate::shell::Stream;
    use crate::testing::{Server, shell};
    use futures::SinkExt as _;
    use serde_json::json;
    use std::io::{Error, ErrorKind, Write};
    use tokio_tungstenite::tungstenite::Message;

    /// A pipe that closes after some bytes, as `head` does.
    struct Head(usize);

    impl Write for Head {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or_else(|| Error::from(ErrorKind::BrokenPipe))?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Regression: `kubectl exec POD -- yes | head -2` ended only when the program in the container did.
    #[tokio::test]
    async fn commands_end_when_the_reader_of_their_output_is_gone() {
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "namespace": "default"}, "spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Running"}});
        let s = Server::new().on("GET /api/v1/namespaces/default/pods/a", 200, pod).on_upgrade(|mut ws| {
            Box::pin(async move { while ws.send(Message::Binary(b"\x01y\ny\n".to_vec().into())).await.is_ok() {} })
        });
        for line in [&["exec", "a", "--", "yes"][..], &["get", "pod", "a", "-o", "json"]] {
            let (mut shell, _, err) = shell(&s, "", |_| None);
            shell.out = Stream::new(Head(8));
            let args = std::iter::once("kubectl").chain(line.iter().copied()).map(Into::into).collect();
            assert_eq!((super::run(args, shell).await, err.text().as_str()), (141, ""), "{line:?}");
        }
    }
}
