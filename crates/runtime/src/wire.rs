//! Messages between agent and shim: one packet of a `SOCK_SEQPACKET` Unix socket each, JSON, with file descriptors beside
//! it. Packets keep their boundaries, so neither side ever parses half a message.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::cmsg_space;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixCredentials, recv, recvmsg, sendmsg};

/// Largest packet either side sends.
pub const MAX_PACKET: usize = 160 * 1024;
const MAX_FDS: usize = 4;

/// Sends one packet. `EMSGSIZE` if it is too large.
pub fn send(socket: BorrowedFd, bytes: &[u8], fds: &[RawFd], flags: MsgFlags) -> io::Result<()> {
    let iov = [IoSlice::new(bytes)];
    let rights = [ControlMessage::ScmRights(fds)];
    let control: &[ControlMessage] = if fds.is_empty() { &[] } else { &rights };
    loop {
        match sendmsg::<()>(socket.as_raw_fd(), &iov, control, flags | MsgFlags::MSG_NOSIGNAL, None) {
            Ok(_) => return Ok(()),
            Err(nix::Error::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Receives one packet (empty: the other side is gone) and its descriptors. Memory is allocated for what has arrived, not for what
/// might: an agent waits for packets of every pod.
pub fn receive(socket: BorrowedFd, flags: MsgFlags) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let too_large = || io::Error::new(io::ErrorKind::InvalidData, "packet too large");
    let peek = flags | MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC;
    let length = loop {
        match recv(socket.as_raw_fd(), &mut [], peek) {
            Ok(length) => break length,
            Err(nix::Error::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    };
    if length > MAX_PACKET {
        return Err(too_large());
    }
    let mut buffer = vec![0; length];
    let packet = receive_into(socket, &mut buffer, flags, cmsg_space!([RawFd; MAX_FDS]))?.ok_or_else(too_large)?;
    buffer.truncate(packet.length);
    Ok((buffer, packet.fds))
}

/// A packet, and who sent it.
pub struct Signed {
    pub length: usize,
    pub fds: Vec<OwnedFd>,
    /// The sender's process id in this pid namespace, from the kernel. `None` when the other side is gone.
    pub sender: Option<i32>,
}

/// Whether a packet may bring a descriptor with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    ForOne,
    ForNone,
}

/// Receives one packet on a socket with `SO_PASSCRED`, to which any process may write. `None` for one that is too large or has too
/// many descriptors, which is discarded.
pub fn receive_signed(
    socket: BorrowedFd,
    buffer: &mut [u8],
    flags: MsgFlags,
    room: Room,
) -> io::Result<Option<Signed>> {
    let control = match room {
        Room::ForOne => cmsg_space!(UnixCredentials, RawFd),
        Room::ForNone => cmsg_space!(UnixCredentials),
    };
    receive_into(socket, buffer, flags, control)
}

/// `control`: the buffer for control messages. `None` for a packet that does not fit.
fn receive_into(
    socket: BorrowedFd,
    buffer: &mut [u8],
    flags: MsgFlags,
    mut control: Vec<u8>,
) -> io::Result<Option<Signed>> {
    loop {
        let mut iov = [IoSliceMut::new(buffer)];
        let message =
            match recvmsg::<()>(socket.as_raw_fd(), &mut iov, Some(&mut control), flags | MsgFlags::MSG_CMSG_CLOEXEC) {
                Ok(message) => message,
                Err(nix::Error::EINTR) => continue,
                Err(e) => return Err(e.into()),
            };
        let mut packet = Signed { length: message.bytes, fds: Vec::new(), sender: None };
        // Fails if the buffer is too small: then the kernel has installed no descriptor.
        let Ok(items) = message.cmsgs() else { return Ok(None) };
        for item in items {
            match item {
                ControlMessageOwned::ScmCredentials(credentials) => packet.sender = Some(credentials.pid()),
                // SAFETY: the kernel has just installed these descriptors for us; and they have no other owner.
                ControlMessageOwned::ScmRights(raw) => {
                    packet.fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
                }
                _ => {}
            }
        }
        return Ok((!message.flags.contains(MsgFlags::MSG_TRUNC)).then_some(packet));
    }
}
