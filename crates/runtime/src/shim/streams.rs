//! Standard input, output and error of a new process.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::sys::socket::MsgFlags;
use nix::sys::stat::{Mode, fstat, makedev};
use nix::unistd::{Gid, Uid, dup2_stderr, dup2_stdin, dup2_stdout, fchown};

use super::report::REPORT_TERMINAL;
use crate::api::FileKind;
use crate::beneath::{Directory, Leaf, Links};
use crate::sys;
use crate::wire;

/// The streams of a new process.
pub enum Streams {
    Pipes {
        stdin: Option<OwnedFd>,
        stdout: Option<OwnedFd>,
        stderr: Option<OwnedFd>,
    },
    /// A terminal of the container, which is opened later.
    Terminal,
}

impl Streams {
    pub fn descriptors(&self) -> Vec<RawFd> {
        match self {
            Streams::Pipes { stdin, stdout, stderr } => {
                [stdin, stdout, stderr].into_iter().flatten().map(|fd| fd.as_raw_fd()).collect()
            }
            Streams::Terminal => Vec::new(),
        }
    }

    /// Makes a user of the host the owner of the pipes.
    pub fn give_to(&self, user: u32) -> nix::Result<()> {
        let Streams::Pipes { stdin, stdout, stderr } = self else { return Ok(()) };
        for stream in [stdin, stdout, stderr].into_iter().flatten() {
            if FileKind::from_mode(fstat(stream)?.st_mode) == FileKind::Pipe {
                fchown(stream, Some(Uid::from_raw(user)), Some(Gid::from_raw(user)))?;
            }
        }
        Ok(())
    }

    /// Opens what is missing, in the container that is the root of this process. The terminal of a first process is also the console.
    pub fn open(self, first: bool) -> Result<Opened, String> {
        match self {
            Streams::Pipes { stdin, stdout, stderr } => {
                let or_null = |fd: Option<OwnedFd>| fd.map_or_else(open_null, Ok);
                Ok(Opened { streams: [or_null(stdin)?, or_null(stdout)?, or_null(stderr)?], master: None })
            }
            Streams::Terminal => {
                let (master, terminal) = open_terminal(first)?;
                let copy = || terminal.try_clone().map_err(|e| format!("terminal: {e}"));
                Ok(Opened { streams: [copy()?, copy()?, terminal], master: Some(master) })
            }
        }
    }
}

/// Opened streams for this process.
pub struct Opened {
    streams: [OwnedFd; 3],
    master: Option<OwnedFd>,
}

impl Opened {
    /// Passes the master of the terminal, if there is one, to the shim. The kernel counts descriptors on their way for each user, root of
    /// containers included, and limits who has no privilege.
    pub fn pass(mut self, report: BorrowedFd) -> Result<Opened, String> {
        if let Some(master) = self.master.take() {
            wire::send(report, &[REPORT_TERMINAL], &[master.as_raw_fd()], MsgFlags::empty())
                .map_err(|e| format!("passing the terminal: {e}"))?;
        }
        Ok(self)
    }

    /// Makes them the streams of this process.
    pub fn connect(self) -> Result<(), String> {
        let say = |what: &'static str| move |e: nix::Error| format!("{what}: {e}");
        let [stdin, stdout, stderr] = &self.streams;
        dup2_stdin(stdin).map_err(say("stdin"))?;
        dup2_stdout(stdout).map_err(say("stdout"))?;
        dup2_stderr(stderr).map_err(say("stderr"))
    }
}

/// Opens the null device of the container, which may have replaced it.
fn open_null() -> Result<OwnedFd, String> {
    let fail = |e: io::Error| format!("/dev/null: {e}");
    let root = Directory::open(Path::new("/"), Links::Refuse).map_err(fail)?;
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY;
    let null = root.open_at(Path::new("dev/null"), flags, Mode::empty()).map_err(fail)?;
    let stat = fstat(&null).map_err(|e| fail(e.into()))?;
    if FileKind::from_mode(stat.st_mode) == FileKind::CharacterDevice && stat.st_rdev == makedev(1, 3) {
        return Ok(null);
    }
    Err("/dev/null: it is not the null device".into())
}

/// Opens a new terminal: its master, and the side of the program.
fn open_terminal(first: bool) -> Result<(OwnedFd, OwnedFd), String> {
    let root = Directory::open(Path::new("/"), Links::Refuse).map_err(|e| format!("opening /: {e}"))?;
    let master = root.open_at(Path::new("dev/pts/ptmx"), OFlag::O_RDWR | OFlag::O_NOCTTY, Mode::empty());
    let master = master.map_err(|e| format!("/dev/pts/ptmx: {e}"))?;
    let terminal = sys::open_terminal_peer(master.as_fd()).map_err(|e| format!("terminal: {e}"))?;
    if first {
        let fail = |e: io::Error| format!("/dev/console: {e}");
        let console = root.make(Path::new("dev/console"), Leaf::File, Mode::empty()).map_err(fail)?;
        let tree = sys::clone_mount(terminal.as_fd(), false).map_err(fail)?;
        sys::move_mount(tree.as_fd(), console.as_fd()).map_err(fail)?;
    }
    Ok((master, terminal))
}

/// Gives pipes and sockets among the streams of this process to a user, since programs open their own streams again (`/dev/stdout`).
/// Files and devices keep their owners.
pub fn give_own_to(uid: Uid) -> io::Result<()> {
    for stream in 0..3 {
        // SAFETY: streams 0 to 2 are open, and not closed while this is borrowed.
        let fd = unsafe { BorrowedFd::borrow_raw(stream) };
        let stat = fstat(fd)?;
        let kind = FileKind::from_mode(stat.st_mode);
        if stat.st_uid == uid.as_raw() || !matches!(kind, FileKind::Pipe | FileKind::Socket) {
            continue;
        }
        match fchown(fd, Some(uid), None) {
            // A stream of another user namespace has no mapped owner here.
            Ok(()) | Err(nix::Error::EPERM | nix::Error::EINVAL) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}
