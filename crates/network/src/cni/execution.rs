//! Runs the program of a plugin, with a limit of its time and output.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

use super::Error;
use super::specification::{Failure, MAX_BYTES};
use crate::namespace::in_thread;

/// Bytes of the standard error that are read.
const MAX_STDERR: u64 = 16 << 10;
/// How often a program that is open for writing is tried again, and the pause between tries.
const MAX_BUSY: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// Characters of foreign output in an error.
const MAX_QUOTED: usize = 512;

/// The directory of the state of plugins, such as the addresses that they gave away.
const STATE: &str = "/var/lib/cni";

/// Where plugins run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The network namespace of the node; `None` for that of this process.
    pub namespace: Option<PathBuf>,
    /// The directory that plugins see as `/var/lib/cni`, for a node that shares its file system with others; `None` for that of the machine.
    pub state: Option<PathBuf>,
}

impl Place {
    /// The file that records that the directory of the machine was missing.
    fn record(state: &Path) -> PathBuf {
        state.with_extension("made")
    }

    /// Creates the directories.
    fn prepare(&self) -> io::Result<()> {
        let Some(state) = &self.state else { return Ok(()) };
        std::fs::create_dir_all(state)?;
        if !Path::new(STATE).exists() {
            std::fs::write(Self::record(state), "")?;
            std::fs::create_dir_all(STATE)?;
        }
        Ok(())
    }

    /// Removes the state, and the directory of the machine if it was made here and is empty.
    pub fn remove(&self) {
        let Some(state) = &self.state else { return };
        if std::fs::remove_file(Self::record(state)).is_ok() {
            let _ = std::fs::remove_dir(STATE);
        }
        let _ = std::fs::remove_dir_all(state);
    }

    /// Starts a program there. Blocks for a moment.
    fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        if *self == Self::default() {
            return command.spawn();
        }
        let namespace = self.namespace.as_ref().map(File::open).transpose()?;
        let runtime = tokio::runtime::Handle::current();
        // The program inherits the namespaces of the thread that starts it.
        in_thread(|| {
            if let Some(namespace) = namespace {
                setns(namespace, CloneFlags::CLONE_NEWNET)?;
            }
            if let Some(state) = &self.state {
                // A copy of the mounts, which changes with the machine's and not the other way.
                unshare(CloneFlags::CLONE_NEWNS)?;
                let none = None::<&str>;
                mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)?;
                mount(Some(state), STATE, none, MsFlags::MS_BIND, none)?;
            }
            let _entered = runtime.enter();
            command.spawn()
        })
    }
}

/// A call of a plugin.
pub struct Call<'a> {
    /// `ADD`, `DEL`, …
    pub command: &'static str,
    /// Variables besides those that all calls have.
    pub variables: Vec<(&'static str, OsString)>,
    pub configuration: Value,
    pub directories: &'a [PathBuf],
    pub place: &'a Place,
    pub time_limit: Duration,
}

/// Kills a plugin and what it has started, unless it has ended.
struct ProcessGroup(Option<Pid>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

/// The program of a plugin: the first regular file of that name.
fn find(name: &str, directories: &[PathBuf]) -> Result<PathBuf, Error> {
    directories.iter().map(|d| d.join(name)).find(|p| p.is_file()).ok_or_else(|| Error::Missing {
        name: name.to_owned(),
        directories: directories.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(" "),
    })
}

/// Runs a plugin. Returns its standard output, decoded; `null` if there is none. If the result is dropped, the plugin is killed.
pub async fn run(call: Call<'_>) -> Result<Value, Error> {
    let name = call.configuration["type"].as_str().unwrap_or_default().to_owned();
    let program = find(&name, call.directories)?;
    let command = command_word(call.command);
    let failed = |message: String| Error::Plugin { name: name.clone(), command, message };
    let output = tokio::time::timeout(call.time_limit, execute(&program, &call)).await;
    let (succeeded, ended, stdout, stderr) = match output {
        Ok(output) => {
            output.map_err(|e| failed(format!("netplugin failed with no error message: {}: {e}", program.display())))?
        }
        Err(_) => return Err(failed(format!("netplugin did not end within {:?} and was killed", call.time_limit))),
    };
    if !succeeded {
        return Err(failed(failure(&ended, &stdout, &stderr)));
    }
    if !stderr.is_empty() {
        tracing::debug!(plugin = name, command, stderr = quoted(&stderr), "a CNI plugin wrote to its standard error");
    }
    if stdout.len() as u64 > MAX_BYTES {
        return Err(failed(format!("the result has more than {MAX_BYTES} bytes")));
    }
    if stdout.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&stdout)
        .map_err(|e| failed(format!("the result cannot be decoded: {e}: {}", quoted(&stdout))))
}

/// The standard input of a program: a file in memory, which is complete before the program starts. What is written to a pipe afterwards
/// would be missing if this process was killed meanwhile, while the plugin goes on.
fn input(configuration: &Value) -> io::Result<Stdio> {
    let mut file = File::from(memfd_create("cni", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(configuration.to_string().as_bytes())?;
    file.rewind()?;
    Ok(file.into())
}

/// Runs the program until it has ended and closed its output. Returns whether and how it ended, and its outputs.
async fn execute(program: &Path, call: &Call<'_>) -> io::Result<(bool, String, Vec<u8>, Vec<u8>)> {
    let path = std::env::join_paths(call.directories).map_err(io::Error::other)?;
    let mut command = Command::new(program);
    command
        .env("CNI_COMMAND", call.command)
        .env("CNI_PATH", path)
        .envs(call.variables.iter().map(|(name, value)| (name, value)))
        .stdin(input(&call.configuration)?)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let place = call.place.clone();
    supervisor::blocking(move || place.prepare()).await?;
    let mut busy = 0;
    let mut child = loop {
        match call.place.spawn(&mut command) {
            // It is being installed. The time limit of the call ends this, too.
            Err(e) if e.kind() == io::ErrorKind::ExecutableFileBusy && busy < MAX_BUSY => busy += 1,
            child => break child?,
        }
        tokio::time::sleep(BUSY_PAUSE).await;
    };
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    let mut group = ProcessGroup(id.map(Pid::from_raw));
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (stdout, stderr) = tokio::join!(read(stdout, MAX_BYTES + 1), read(stderr, MAX_STDERR));
    let status = child.wait().await?;
    group.0 = None;
    Ok((status.success(), status.to_string(), stdout?, stderr?))
}

/// Reads up to `most` bytes, and drops the rest.
async fn read(stream: Option<impl AsyncRead + Unpin>, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        (&mut stream).take(most).read_to_end(&mut bytes).await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
    }
    Ok(bytes)
}

/// The message of a plugin that failed, as libcni makes it.
fn failure(ended: &str, stdout: &[u8], stderr: &[u8]) -> String {
    match (stdout, stderr) {
        ([], []) => format!("netplugin failed with no error message: {ended}"),
        ([], stderr) => format!("netplugin failed: {}: {ended}", quoted(stderr)),
        (stdout, _) => match serde_json::from_slice::<Failure>(stdout) {
            Ok(failure) => quoted_within(&failure.to_string()),
            Err(e) => format!("netplugin failed but error parsing its diagnostic message {}: {e}", quoted(stdout)),
        },
    }
}

fn quoted(bytes: &[u8]) -> String {
    format!("{:?}", quoted_within(&String::from_utf8_lossy(bytes)))
}

fn quoted_within(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_QUOTED).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// The word for a command in errors, as in libcni.
fn command_word(command: &str) -> &'static str {
    match command {
        "ADD" => "add",
        "DEL" => "delete",
        "CHECK" => "check",
        "GC" => "gc",
        _ => "status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::PermissionsExt;

    struct Programs(tempfile::TempDir);

    impl Programs {
        fn new(script: &str) -> Self {
            let programs = Self(tempfile::tempdir().unwrap());
            let path = programs.0.path().join("x");
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
            programs
        }

        async fn run(&self, name: &str) -> Result<Value, String> {
            let directories = ["/nonexistent".into(), self.0.path().to_owned()];
            let call = Call {
                command: "ADD",
                variables: vec![("CNI_IFNAME", "eth0".into())],
                configuration: json!({"type": name, "key": "value"}),
                directories: &directories,
                place: &Place::default(),
                time_limit: Duration::from_secs(2),
            };
            run(call).await.map_err(|e| e.to_string().replace(&*self.0.path().to_string_lossy(), "DIR"))
        }
    }

    async fn run_script(script: &str) -> Result<Value, String> {
        Programs::new(script).run("x").await
    }

    #[tokio::test]
    async fn a_plugin_gets_its_configuration_and_returns_a_result() {
        let script = r#"key=$(cat); echo "{\"input\": $key, \"env\": \"$CNI_COMMAND $CNI_IFNAME ${CNI_PATH#/nonexistent:}\"}"; echo noise >&2"#;
        let programs = Programs::new(script);
        let result = programs.run("x").await.unwrap();
        assert_eq!(result["input"]["key"], "value");
        assert_eq!(result["env"], format!("ADD eth0 {}", programs.0.path().display()));
        assert_eq!(run_script("exit 0").await.unwrap(), Value::Null);
    }

    #[tokio::test]
    async fn plugins_that_fail_are_errors() {
        for (script, error) in [
            (
                r#"echo '{"code": 11, "msg": "busy", "details": "later"}'; exit 1"#,
                "plugin type=\"x\" failed (add): busy; later",
            ),
            ("exit 3", "netplugin failed with no error message: exit status: 3"),
            ("echo broken >&2; exit 3", "netplugin failed: \"broken\\n\": exit status: 3"),
            ("kill -SEGV $$", "netplugin failed with no error message: signal: 11"),
            ("echo rubbish; exit 1", "netplugin failed but error parsing its diagnostic message \"rubbish\\n\""),
            ("echo rubbish", "the result cannot be decoded: expected value"),
            ("cat /dev/zero | head -c 2000000", "the result has more than 1048576 bytes"),
            ("sleep 100", "netplugin did not end within 2s and was killed"),
            // A process that it leaves behind keeps its output open.
            ("sleep 100 & exit 0", "netplugin did not end within 2s and was killed"),
        ] {
            let found = run_script(script).await.unwrap_err();
            assert!(found.contains(error), "{script}: {found}");
        }
        let programs = Programs::new("exit 0");
        assert_eq!(programs.run("y").await.unwrap_err(), "failed to find plugin \"y\" in path [/nonexistent DIR]");
        std::fs::set_permissions(programs.0.path().join("x"), std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = programs.run("x").await.unwrap_err();
        assert!(error.contains("DIR/x: Permission denied"), "{error}");
    }

    /// A plugin whose agent was killed right after its start read nothing, and failed or did its work without a configuration.
    #[tokio::test]
    async fn the_input_is_complete_before_the_plugin_starts() {
        let script = r#"test -f /proc/self/fd/0 || echo "{\"code\": 50, \"msg\": \"not a file\"}"; cat"#;
        assert_eq!(run_script(script).await.unwrap()["type"], "x");
    }

    #[tokio::test]
    async fn what_a_plugin_has_started_ends_with_it() {
        let programs = Programs::new("sleep 100 & echo $! > ${0%/*}/pid; wait");
        programs.run("x").await.unwrap_err();
        let pid = std::fs::read_to_string(programs.0.path().join("pid")).unwrap();
        let pid = Pid::from_raw(pid.trim().parse().unwrap());
        let begun = tokio::time::Instant::now();
        // Its parent is gone, so that another process reaps it.
        while nix::sys::signal::kill(pid, None).is_ok()
            && std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
        {
            assert!(begun.elapsed() < Duration::from_secs(20), "{pid} lives");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
