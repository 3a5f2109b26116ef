//! The agent's end of a shim's socket.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, socket};
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use crate::shim::SOCKET;
use crate::spec::{Call, Message, Request};
use crate::wire;

/// One connection.
pub struct Peer(AsyncFd<OwnedFd>);

impl Peer {
    pub fn new(socket: OwnedFd) -> io::Result<Peer> {
        // SAFETY: the descriptor is owned by the AsyncFd from here on and stays open until it is deregistered on drop.
        Ok(Peer(unsafe { AsyncFd::register(socket)? }))
    }

    /// Connects to the shim of a pod directory, however long that path is.
    pub fn connect(directory: &Path) -> io::Result<Peer> {
        let directory = File::open(directory)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        let path = format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd());
        connect(socket.as_raw_fd(), &UnixAddr::new(path.as_str())?)?;
        Peer::new(socket)
    }

    pub async fn send(&self, request: &Request, fds: &[RawFd]) -> io::Result<()> {
        let packet = serde_json::to_vec(request)?;
        self.0
            .async_io(tokio::io::Interest::WRITABLE, |fd| wire::send(fd.as_fd(), &packet, fds, MsgFlags::MSG_DONTWAIT))
            .await
    }

    /// The next message with its descriptors; `None` when the shim is gone.
    pub async fn receive(&self) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
        let readable = tokio::io::Interest::READABLE;
        let receive = |fd: &OwnedFd| wire::receive(fd.as_fd(), MsgFlags::MSG_DONTWAIT);
        match self.0.async_io(readable, receive).await {
            Ok((packet, _)) if packet.is_empty() => Ok(None),
            Ok((packet, fds)) => Ok(Some((serde_json::from_slice(&packet)?, fds))),
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Sends a request and returns its answer, on a connection that has no other reader.
    pub async fn request(&self, call: Call, fds: &[RawFd]) -> io::Result<Option<(Result<(), String>, Vec<OwnedFd>)>> {
        self.send(&Request { seq: 1, call }, fds).await?;
        loop {
            match self.receive().await? {
                None => return Ok(None),
                Some((Message::Reply { result, .. }, fds)) => return Ok(Some((result, fds))),
                Some((Message::Notice(_), _)) => {}
            }
        }
    }
}

/// The connection to a pod's shim for requests and notices. One task reads it; see `pods.rs`.
pub struct Link {
    pub peer: Peer,
    calls: Mutex<Calls>,
    /// Notified when the connection ends.
    pub gone: tokio::sync::watch::Sender<bool>,
}

#[derive(Default)]
struct Calls {
    next: u64,
    waiting: BTreeMap<u64, oneshot::Sender<Result<(), String>>>,
    closed: bool,
}

impl Link {
    pub fn new(peer: Peer) -> Link {
        Link { peer, calls: Mutex::default(), gone: tokio::sync::watch::channel(false).0 }
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` when the shim is gone.
    pub async fn call(&self, call: Call) -> Option<Result<(), String>> {
        let (reply_sender, reply) = oneshot::channel();
        let seq = {
            let mut calls = self.calls();
            if calls.closed {
                return None;
            }
            calls.next += 1;
            let seq = calls.next;
            calls.waiting.insert(seq, reply_sender);
            seq
        };
        match self.peer.send(&Request { seq, call }, &[]).await {
            Ok(()) => reply.await.ok(),
            Err(e) if matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => None,
            Err(e) => {
                self.calls().waiting.remove(&seq);
                Some(Err(e.to_string()))
            }
        }
    }

    pub fn answer(&self, seq: u64, result: Result<(), String>) {
        if let Some(reply_sender) = self.calls().waiting.remove(&seq) {
            let _ = reply_sender.send(result); // the receiver may have given up
        }
    }

    pub fn close(&self) {
        let mut calls = self.calls();
        calls.closed = true;
        calls.waiting.clear();
        drop(calls);
        self.gone.send_replace(true);
    }

    pub async fn wait_gone(&self) {
        let _ = self.gone.subscribe().wait_for(|gone| *gone).await;
    }
}
