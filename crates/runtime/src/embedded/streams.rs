//! Exec and attach: pipes or a terminal connect the process directly with the agent; the shim only passes the descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::net::unix::pipe;
use tokio::sync::watch;

use super::Inner;
use super::containers::late;
use super::shim_link::Peer;
use crate::api::*;
use crate::spec::{Call, Message, Notice, Request};
use crate::sys::set_terminal_size;

/// How long output of processes that a finished command left is still read.
const DRAIN: Duration = Duration::from_secs(2);

impl Inner {
    pub(super) async fn exec(&self, id: &str, request: ExecRequest) -> Result<ExecSession> {
        let entry = self.container(id)?;
        let state = entry.state.borrow().state;
        if state != ContainerState::Running {
            return Err(Error::State { container: id.to_owned(), state, expected: "running" });
        }
        let pod = &entry.record.pod;
        let fail = |source: io::Error| Error::io(format!("exec in container {id}"))(source);
        let peer = Peer::connect(&self.pod_directory(pod)).map_err(fail)?;
        let ExecRequest { command: argv, tty, stdin, stdout, stderr } = request;
        let (mut ours, mut theirs) = (Pipes::default(), Vec::new());
        if !tty {
            // All three are always passed; one that was not requested ends at once, like /dev/null.
            let (child, we) = pipe2(OFlag::O_CLOEXEC).map_err(|e| fail(e.into()))?;
            theirs.push(child);
            ours.stdin = if stdin { Some(sender(we).map_err(fail)?) } else { None };
            for (is_requested, slot) in [(stdout, &mut ours.stdout), (stderr, &mut ours.stderr)] {
                let (we, child) = pipe2(OFlag::O_CLOEXEC).map_err(|e| fail(e.into()))?;
                if is_requested {
                    *slot = Some(receiver(we).map_err(fail)?);
                    theirs.push(child);
                } else {
                    let null = std::fs::File::options().write(true).open("/dev/null").map_err(fail)?;
                    theirs.push(null.into());
                }
            }
        }
        let raw: Vec<RawFd> = theirs.iter().map(|fd| fd.as_raw_fd()).collect();
        let call = Call::Exec { container: id.to_owned(), argv, tty };
        let limit = self.options.start_timeout;
        let Ok(answer) = tokio::time::timeout(limit, peer.request(call, &raw)).await else {
            // When the connection closes, the shim kills the command if it has started.
            return Err(Error::Exec { container: entry.record.config.name.clone(), message: late(limit) });
        };
        let answer = answer.map_err(fail)?;
        drop(theirs);
        let mut terminal = None;
        match answer {
            None => return Err(Error::ShimGone { pod: pod.clone() }),
            Some((Err(message), _)) => {
                return Err(Error::Exec { container: entry.record.config.name.clone(), message });
            }
            Some((Ok(()), fds)) => terminal = fds.into_iter().next().or(terminal),
        }
        if let Some(master) = &terminal {
            let copy = || master.try_clone().map_err(fail);
            ours.stdin = if stdin { Some(sender(copy()?).map_err(fail)?) } else { None };
            ours.stdout = Some(receiver(copy()?).map_err(fail)?);
        }
        let control = Control { peer, exit: None, terminal: terminal.map(Arc::new), pod: pod.clone() };
        Ok(ExecSession { stdin: ours.stdin, stdout: ours.stdout, stderr: ours.stderr, control: Box::new(control) })
    }

    pub(super) async fn exec_sync(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: Option<Duration>,
        most: u64,
    ) -> Result<ExecResult> {
        let shown = command.join(" ");
        let request = ExecRequest { command, tty: false, stdin: false, stdout: true, stderr: true };
        let limit = timeout.unwrap_or(Duration::MAX);
        let started = tokio::time::Instant::now();
        let mut session = match tokio::time::timeout(limit, self.exec(id, request)).await {
            Ok(session) => session?,
            Err(_) => return Err(Error::Timeout { command: shown, after: limit }),
        };
        let collect = |reader: Option<Reader>| async move {
            let mut output = Vec::new();
            if let Some(mut reader) = reader {
                let _ = (&mut reader).take(most).read_to_end(&mut output).await;
                let _ = tokio::io::copy(&mut reader, &mut tokio::io::sink()).await;
            }
            output
        };
        let (out, err) = (session.stdout.take(), session.stderr.take());
        let out = tokio::spawn(collect(out));
        let err = tokio::spawn(collect(err));
        let left = limit.saturating_sub(started.elapsed());
        let exit_code = match tokio::time::timeout(left, session.control.wait()).await {
            Ok(code) => code?,
            Err(_) => {
                session.control.kill().await?;
                out.abort();
                err.abort();
                return Err(Error::Timeout { command: shown, after: limit });
            }
        };
        let (stop_out, stop_err) = (out.abort_handle(), err.abort_handle());
        let output = tokio::time::timeout(DRAIN, async { (out.await, err.await) }).await;
        stop_out.abort();
        stop_err.abort();
        let (stdout, stderr) = output.unwrap_or((Ok(Vec::new()), Ok(Vec::new())));
        Ok(ExecResult { stdout: stdout.unwrap_or_default(), stderr: stderr.unwrap_or_default(), exit_code })
    }

    pub(super) async fn attach(&self, id: &str, stdin: bool) -> Result<AttachSession> {
        let entry = self.container(id)?;
        let pod = &entry.record.pod;
        let fail = |source: io::Error| Error::io(format!("attaching to container {id}"))(source);
        let pair = || pipe2(OFlag::O_CLOEXEC).map_err(|e| fail(e.into()));
        let ((out, shim_out), (err, shim_err), (shim_in, input)) = (pair()?, pair()?, pair()?);
        let peer = Peer::connect(&self.pod_directory(pod)).map_err(fail)?;
        let stdin = stdin && entry.record.config.stdin;
        let mut fds = vec![shim_out.as_raw_fd(), shim_err.as_raw_fd()];
        if stdin {
            fds.push(shim_in.as_raw_fd());
        }
        match peer.request(Call::Attach { container: id.to_owned(), stdin }, &fds).await.map_err(fail)? {
            None => return Err(Error::ShimGone { pod: pod.clone() }),
            Some((Err(message), _)) => return Err(fail(io::Error::other(message))),
            Some((Ok(()), _)) => {}
        }
        let (link, container) = (self.link(pod)?, id.to_owned());
        let resizer = newest(move |size: TerminalSize| {
            let (link, container) = (link.clone(), container.clone());
            let call = Call::Resize { container, rows: size.rows, columns: size.columns };
            async move { drop(link.call(call).await) }
        });
        Ok(AttachSession {
            stdin: if stdin { Some(sender(input).map_err(fail)?) } else { None },
            stdout: receiver(out).map_err(fail)?,
            stderr: if entry.record.config.tty { None } else { Some(receiver(err).map_err(fail)?) },
            resizer,
        })
    }
}

/// Resizes one after the other. Of the sizes that arrive meanwhile, only the newest is applied.
fn newest<F: Future<Output = ()> + Send>(resize: impl Fn(TerminalSize) -> F + Send + 'static) -> Resizer {
    let (sizes, mut newest) = watch::channel(None);
    tokio::spawn(async move {
        // Ends with the session.
        while newest.changed().await.is_ok() {
            let size = *newest.borrow_and_update();
            if let Some(size) = size {
                resize(size).await;
            }
        }
    });
    Arc::new(move |size| {
        sizes.send_replace(Some(size));
    })
}

#[derive(Default)]
struct Pipes {
    stdin: Option<Writer>,
    stdout: Option<Reader>,
    stderr: Option<Reader>,
}

fn nonblocking(fd: OwnedFd) -> io::Result<OwnedFd> {
    fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(fd)
}

/// Unchecked, since a terminal is not a pipe but is read and written like one.
fn sender(fd: OwnedFd) -> io::Result<Writer> {
    Ok(Box::new(pipe::Sender::from_owned_fd_unchecked(nonblocking(fd)?)?))
}

fn receiver(fd: OwnedFd) -> io::Result<Reader> {
    Ok(Box::new(Output(pipe::Receiver::from_owned_fd_unchecked(nonblocking(fd)?)?)))
}

/// A terminal that all processes have closed returns EIO, which is the end.
struct Output(pipe::Receiver);

impl AsyncRead for Output {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.0).poll_read(cx, buffer) {
            Poll::Ready(Err(e)) if e.raw_os_error() == Some(libc::EIO) => Poll::Ready(Ok(())),
            other => other,
        }
    }
}

struct Control {
    peer: Peer,
    exit: Option<i32>,
    terminal: Option<Arc<OwnedFd>>,
    pod: String,
}

#[async_trait]
impl ExecControl for Control {
    async fn wait(&mut self) -> Result<i32> {
        loop {
            if let Some(code) = self.exit {
                return Ok(code);
            }
            match self.peer.receive().await {
                Ok(Some((Message::Notice(Notice::ExecExited { exit_code }), _))) => self.exit = Some(exit_code),
                Ok(Some(_)) => {}
                Ok(None) => return Err(Error::ShimGone { pod: self.pod.clone() }),
                Err(e) => return Err(Error::io("waiting for a command")(e)),
            }
        }
    }

    fn resizer(&self) -> Resizer {
        let terminal = self.terminal.clone();
        Arc::new(move |size: TerminalSize| {
            if let Some(terminal) = &terminal {
                let _ = set_terminal_size(terminal.as_fd(), size.rows, size.columns);
            }
        })
    }

    async fn kill(&mut self) -> Result<()> {
        let request = Request { seq: 2, call: Call::KillExec };
        self.peer.send(&request, &[]).await.map_err(Error::io("killing a command"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_storm_of_resizes_is_one_at_a_time() {
        let (done, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let resize = newest(move |size: TerminalSize| {
            let done = done.clone();
            async move {
                tokio::task::yield_now().await;
                let _ = done.send(size.rows);
            }
        });
        for round in 0..3 {
            for n in 0..1000 {
                resize(TerminalSize { rows: n, columns: 1 });
            }
            let mut carried_out = Vec::new();
            while carried_out.last() != Some(&999) {
                carried_out.push(seen.recv().await.unwrap_or(999));
            }
            assert!(carried_out.len() <= 2, "{round}: {carried_out:?}");
        }
        drop(resize);
        assert!(seen.recv().await.is_none(), "the task ends with the session");
    }
}
