//! Runs hooks of the OCI runtime specification ([`crate::Hooks`]).
//!
//! The agent runs those of the machine: `prestart` and `createRuntime` while the shim's child waits, `poststart`, and `poststop`. The
//! process that becomes the container runs `createContainer` and `startContainer`.
//!
//! **Invariants.** A hook has the variables and arguments of its specification, `/` as working directory, the state of the container as
//! input, and no other descriptor. It does not outlive its time, and no process that it leaves outlives it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use serde::Serialize;

use crate::api::Hook;
use crate::cgroup::{self, CgroupDirectory};
use crate::{descriptors, sys};

/// The version of the specification that the state follows.
const VERSION: &str = "1.2.1";
/// Bytes of an error of a hook that are kept: the last ones.
const MAX_ERROR: usize = 2048;
/// How often it is checked whether a hook that has closed its error stream has ended, in milliseconds.
const TICK: u16 = 10;
/// How long it is tried to end what a hook has left behind.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The state of a container, as a hook reads it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct State<'a> {
    pub oci_version: &'static str,
    pub id: &'a str,
    pub status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    pub bundle: &'a std::path::Path,
    pub annotations: &'a std::collections::BTreeMap<String, String>,
}

impl<'a> State<'a> {
    /// `status` is a word of the specification. `pid` is that of the container's process, as the hook sees it.
    pub fn new(
        (id, bundle): (&'a str, &'a std::path::Path),
        annotations: &'a std::collections::BTreeMap<String, String>,
        status: &'static str,
        pid: Option<i32>,
    ) -> Self {
        Self { oci_version: VERSION, id, status, pid, bundle, annotations }
    }
}

/// Which processes are a hook's.
#[derive(Clone, Copy)]
pub enum Within<'a> {
    /// A cgroup that the hook gets for itself.
    Cgroup(&'a HookCgroup),
    /// The caller's cgroup. If the caller is process 1 of a pid namespace, all other processes there are the hook's.
    Caller,
}

/// A cgroup for hooks, opened for a process that may lose the privilege to do so.
pub struct HookCgroup {
    directories: Vec<CgroupDirectory>,
    /// Its lists of processes.
    lists: Vec<File>,
}

impl HookCgroup {
    /// Opens an existing cgroup. The lists are closed on exec.
    pub fn open(directories: Vec<CgroupDirectory>) -> io::Result<Self> {
        let open = |c: &CgroupDirectory| {
            let path = c.directory.join("cgroup.procs");
            File::options()
                .read(true)
                .write(true)
                .open(&path)
                .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
        };
        let lists = directories.iter().map(open).collect::<io::Result<_>>()?;
        Ok(Self { directories, lists })
    }

    /// Removes the cgroup, whose processes have ended. Errors if it is not this process's to remove.
    pub fn remove(&self) -> io::Result<()> {
        self.directories.iter().try_for_each(|c| cgroup::remove_tree(&c.directory))
    }

    /// Whether a process is in it.
    fn has_processes(&self) -> bool {
        self.lists.iter().any(|list| list.read_at(&mut [0], 0).is_ok_and(|length| length > 0))
    }

    /// Ends its processes. Some may be making others meanwhile, and the kernel ends them in its own time. Errors if some are still there:
    /// they have the machine's privileges, so the program of the container must not run beside them.
    fn end(&self) -> io::Result<()> {
        let end = sys::uptime() + END_LIMIT;
        loop {
            cgroup::kill_all(&self.directories);
            if !self.has_processes() {
                return Ok(());
            }
            if sys::uptime() >= end {
                return Err(io::Error::other(format!(
                    "what it left did not end within {} seconds",
                    END_LIMIT.as_secs()
                )));
            }
            let _ = poll(&mut [], TICK);
        }
    }
}

/// Hooks of one moment.
pub struct Stage<'a> {
    /// The moment, as the specification names it.
    pub name: &'static str,
    pub hooks: &'a [Hook],
    pub state: State<'a>,
    pub within: Within<'a>,
    /// How long each of them may take at most.
    pub limit: Duration,
}

impl Stage<'_> {
    /// Runs the hooks until one fails. Blocks.
    pub fn run(&self) -> Result<(), String> {
        self.hooks.iter().enumerate().try_for_each(|(number, hook)| self.run_one(number, hook))
    }

    /// Runs all hooks and returns the errors of those that fail. Blocks.
    pub fn run_all(&self) -> Vec<String> {
        self.hooks.iter().enumerate().filter_map(|(number, hook)| self.run_one(number, hook).err()).collect()
    }

    fn run_one(&self, number: usize, hook: &Hook) -> Result<(), String> {
        let failed = |why: String| format!("error running {} hook #{number}: {why}", self.name);
        let input = serde_json::to_vec(&self.state).map_err(|e| failed(e.to_string()))?;
        let mut child = self.spawn(hook).map_err(|e| failed(format!("{}: {e}", hook.path.display())))?;
        let mut errors = Vec::new();
        let outcome = watch(&mut child, &input, &mut errors, hook.patience(self.limit));
        let status = end(&mut child);
        let rest = self.end_rest();
        let why = match (outcome, status, rest) {
            (Err(e), ..) | (_, Err(e), _) => e.to_string(),
            (_, Ok(status), _) if !status.success() => describe(status),
            (.., Err(e)) => e.to_string(),
            (Ok(()), Ok(_), Ok(())) => return Ok(()),
        };
        let text = String::from_utf8_lossy(&errors);
        let text = text.trim();
        Err(failed(if text.is_empty() { why } else { format!("{why}, stderr: {text}") }))
    }

    fn spawn(&self, hook: &Hook) -> io::Result<Child> {
        let mut command = Command::new(&hook.path);
        let mut args = hook.args.iter();
        if let Some(name) = args.next() {
            command.arg0(name);
        }
        let variables = hook.env.iter().filter_map(|v| v.split_once('='));
        command.args(args).env_clear().envs(variables).current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        if let Within::Cgroup(cgroup) = self.within {
            let mut lists = cgroup.lists.iter().map(File::try_clone).collect::<io::Result<Vec<_>>>()?;
            let enter = move || {
                // Also those that a library of this process has opened without the flag.
                descriptors::close_on_exec()?;
                lists.iter_mut().try_for_each(|list| list.write_all(b"0"))
            };
            // SAFETY: between fork and exec this makes system calls with numbers and a constant, and allocates nothing.
            unsafe { command.pre_exec(enter) };
        }
        command.spawn()
    }

    /// Ends what a hook has left behind.
    fn end_rest(&self) -> io::Result<()> {
        match self.within {
            Within::Cgroup(cgroup) => return cgroup.end(),
            Within::Caller if std::process::id() == 1 => {
                let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
                while matches!(waitpid(None, None), Ok(_) | Err(Errno::EINTR)) {}
            }
            Within::Caller => {}
        }
        Ok(())
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or_default()),
    }
}

/// Writes the input and reads the error stream until the process has ended, or errors when its time is over. It is not reaped.
fn watch(child: &mut Child, input: &[u8], errors: &mut Vec<u8>, patience: Duration) -> io::Result<()> {
    let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    let (mut stdin, mut stderr, mut rest) = (child.stdin.take(), child.stderr.take(), input);
    for stream in [stdin.as_ref().map(|s| s.as_fd()), stderr.as_ref().map(|s| s.as_fd())].into_iter().flatten() {
        fcntl(stream, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    }
    let end = sys::uptime() + patience;
    loop {
        if let Some(pipe) = &mut stdin {
            match pipe.write(rest) {
                Ok(length) => rest = &rest[length..],
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) => rest = &[], // it reads no input
            }
            if rest.is_empty() {
                stdin = None;
            }
        }
        let is_over = !matches!(
            waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT),
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR)
        );
        if let Some(pipe) = &mut stderr
            && !read(pipe, errors)
        {
            stderr = None;
        }
        if is_over {
            return Ok(());
        }
        if sys::uptime() >= end {
            return Err(io::Error::other(format!("it did not end within {} seconds", patience.as_secs())));
        }
        let mut set = Vec::new();
        set.extend(stderr.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)));
        set.extend(stdin.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)));
        match poll(&mut set, TICK) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Reads what is there and keeps the end of it. Whether more may come.
fn read(pipe: &mut impl Read, kept: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 1024];
    // A bounded number of times: another process may write for ever.
    for _ in 0..64 {
        match pipe.read(&mut buffer) {
            Ok(0) => return false,
            Ok(length) => {
                kept.extend_from_slice(&buffer[..length]);
                kept.drain(..kept.len().saturating_sub(MAX_ERROR));
            }
            Err(e) => return matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }
    true
}

/// Ends the hook and its process group, and reaps it.
fn end(child: &mut Child) -> io::Result<ExitStatus> {
    // It is not reaped, so its number is not that of another group.
    if let Ok(pid) = i32::try_from(child.id()) {
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
    child.wait()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn script(text: &str, timeout: Option<u64>) -> Hook {
        let args = ["hook", "-c", text].map(str::to_owned).to_vec();
        Hook { path: "/bin/sh".into(), args, env: vec!["A=b c".into()], timeout }
    }

    fn run(hooks: &[Hook], annotations: &std::collections::BTreeMap<String, String>) -> Result<(), String> {
        let state = State::new(("id", Path::new("/bundle")), annotations, "creating", Some(7));
        let limit = Duration::from_secs(30);
        Stage { name: "createRuntime", hooks, state, within: Within::Caller, limit }.run()
    }

    #[test]
    fn a_hook_gets_its_part_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        let text =
            format!("cat > {0}; echo; (pwd; env | grep -v -e ^_= -e ^SHLVL= -e ^PWD=; echo $0) >> {0}", out.display());
        run(&[script(&text, None)], &Default::default()).unwrap();
        let found = std::fs::read_to_string(out).unwrap();
        let state =
            r#"{"ociVersion":"1.2.1","id":"id","status":"creating","pid":7,"bundle":"/bundle","annotations":{}}"#;
        assert_eq!(found, format!("{state}/\nA=b c\nhook\n"));
    }

    #[test]
    fn the_first_failure_ends_the_stage_and_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        let touch = script(&format!("echo ran >> {}", out.display()), None);
        // More input than a pipe holds, which nobody reads.
        let annotations = [("a".to_owned(), "x".repeat(1 << 20))].into();
        let failing = script("yes noise | head -c 300000 >&2; echo no card >&2; exit 3", None);
        let error = run(&[touch.clone(), failing, touch.clone()], &annotations).unwrap_err();
        assert!(error.starts_with("error running createRuntime hook #1: exit status 3, stderr: noise"), "{error}");
        assert!(error.ends_with("no card") && error.len() < MAX_ERROR + 100, "{error}");
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "ran\n");
        let error = run(&[Hook { path: "/no/such".into(), ..Hook::default() }], &annotations).unwrap_err();
        assert!(error.starts_with("error running createRuntime hook #0: /no/such: No such file"), "{error}");
        let error = run(&[script("kill -9 $$", None)], &annotations).unwrap_err();
        assert!(error.ends_with("hook #0: signal 9"), "{error}");
    }

    #[test]
    fn a_hook_and_what_it_leaves_end_in_time() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("pid");
        let text = format!("sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; wait", out.display());
        let error = run(&[script(&text, Some(1))], &Default::default()).unwrap_err();
        assert!(error.ends_with("it did not end within 1 seconds"), "{error}");
        // Its error stream stays open, and nobody waits for that.
        let text = format!("sleep 1000 & echo $! > {0}", out.display());
        run(&[script(&text, None)], &Default::default()).unwrap();
        let left: i32 = std::fs::read_to_string(&out).unwrap().trim().parse().unwrap();
        let end = sys::uptime() + Duration::from_secs(10);
        while crate::spec::start_time(left).is_some() {
            assert!(sys::uptime() < end, "process {left} is left");
            poll(&mut [], 5u16).unwrap();
        }
    }
}
