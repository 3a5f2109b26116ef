//! From a command to the arguments of `execve`: the file of the program, its arguments and its environment.

use std::ffi::CString;
use std::io;

/// Finds the file of a command's program. Errors are those that users know from other runtimes.
pub fn find(argv: &[String], environment: &[(String, String)]) -> Result<CString, String> {
    let Some(name) = argv.first().filter(|n| !n.is_empty()) else {
        return Err("no command specified".into());
    };
    let c_name = |path: &str| CString::new(path).map_err(|_| "command contains a NUL byte".to_owned());
    let executable = |path: &str| nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok();
    if name.contains('/') {
        let metadata = std::fs::metadata(name).map_err(|e| format!("exec: {name:?}: stat {name}: {}", lower(&e)))?;
        if metadata.is_dir() {
            return Err(format!("exec: {name:?}: is a directory"));
        }
        if !executable(name) {
            return Err(format!("exec: {name:?}: permission denied"));
        }
        return c_name(name);
    }
    let path = environment.iter().rev().find(|(k, _)| k == "PATH").map_or("", |(_, v)| v.as_str());
    let mut denied = false;
    for directory in path.split(':') {
        let candidate = format!("{}/{name}", if directory.is_empty() { "." } else { directory });
        if std::fs::metadata(&candidate).is_ok_and(|m| m.is_file()) {
            if executable(&candidate) {
                return c_name(&candidate);
            }
            denied = true;
        }
    }
    let why = if denied { "permission denied" } else { "executable file not found in $PATH" };
    Err(format!("exec: {name:?}: {why}"))
}

fn lower(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".into(),
        io::ErrorKind::PermissionDenied => "permission denied".into(),
        _ => error.to_string(),
    }
}

pub fn c_strings(words: &[String]) -> Result<Vec<CString>, String> {
    words.iter().map(|w| CString::new(w.as_str()).map_err(|_| format!("argument {w:?} contains a NUL byte"))).collect()
}

pub fn c_environment(pairs: &[(String, String)]) -> Result<Vec<CString>, String> {
    pairs
        .iter()
        .map(|(k, v)| CString::new(format!("{k}={v}")).map_err(|_| format!("variable {k:?} contains a NUL byte")))
        .collect()
}
