//! Messages of exec and attach that WebSocket and SPDY share: the status at the end, and sizes of terminals.

use runtime::TerminalSize;
use serde_json::{Value, json};

/// The status of a command that succeeded.
pub(super) fn success() -> Value {
    json!({"metadata": {}, "status": "Success"})
}

/// The status of a command that ended with `code`.
pub(super) fn outcome(code: runtime::Result<i32>) -> Value {
    match code {
        Ok(0) => success(),
        Ok(code) => non_zero(code),
        Err(e) => not_executed(&e),
    }
}

/// The status of a command that could not be started.
pub(super) fn not_executed(why: &runtime::Error) -> Value {
    internal(&format!("error executing command in container: {why}"))
}

/// The status of an attach that failed.
pub(super) fn not_attached(why: &runtime::Error) -> Value {
    internal(&format!("error attaching to container: {why}"))
}

/// `NewInternalError` of upstream's API.
fn internal(message: &str) -> Value {
    json!({"metadata": {}, "status": "Failure", "message": format!("Internal error occurred: {message}"), "reason": "InternalError", "code": 500,
        "details": {"causes": [{"message": message}]}})
}

/// The status of a command that failed, from which clients read the exit code (`remotecommand.NonZeroExitCodeReason`).
pub(super) fn non_zero(code: i32) -> Value {
    json!({
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": format!("command terminated with non-zero exit code: command terminated with exit code {code}"),
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}

/// Parses the size of a terminal: `{"Width":…,"Height":…}`.
pub(super) fn terminal_size(json: &[u8]) -> Option<TerminalSize> {
    let size: Value = serde_json::from_slice(json).ok()?;
    let get = |name: &str| size[name].as_u64().and_then(|n| u16::try_from(n).ok());
    Some(TerminalSize { rows: get("Height")?, columns: get("Width")? })
}
