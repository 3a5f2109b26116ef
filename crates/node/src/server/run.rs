//! `/run`: runs a command in a container and returns its output after it has ended.

use std::time::Duration;

use http::{Response, StatusCode};

use super::{Body, Error, Handle, text};

/// The timeout of a command.
const LONGEST: Duration = Duration::from_secs(4 * 60 * 60);
/// Bytes of its standard output, and of its standard error, that are returned (as upstream's runtimes do).
const OUTPUT: u64 = 16 << 20;

pub(super) async fn serve(handle: &Handle, id: &str, command: &str) -> Result<Response<Body>, Error> {
    let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
    // The command keeps running if its client leaves.
    let (runtime, id) = (handle.options.runtime.clone(), id.to_owned());
    let done = tokio::spawn(async move { runtime.exec_sync(&id, words, Some(LONGEST), OUTPUT).await });
    let done = done.await.map_err(|e| Error::Internal(e.to_string()))??;
    let output = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    if done.exit_code != 0 {
        return Err(Error::Internal(format!("command '{command}' exited with {}: {output}", done.exit_code)));
    }
    Ok(text(StatusCode::OK, output))
}
