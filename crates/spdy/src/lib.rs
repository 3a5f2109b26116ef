//! SPDY/3.1, the part that Kubernetes' streaming protocols use: clients open streams with headers, both sides send data, and either
//! may end its half. The server never opens a stream.
//!
//! Unread data blocks the whole connection, which slows down a fast sender. **Invariant**: the memory of a connection is bounded:
//! streams, their headers, and bytes that wait for their readers. Window updates are sent for clients that respect windows, but the
//! windows of clients are ignored: existing clients (`moby/spdystream`) never open them, and a sender that respected them would stop
//! after 64 KiB.

mod headers;

use bytes::{Bytes, BytesMut};
use headers::{Headers, Reader, Writer};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;

const VERSION: u32 = 3;
const SYN_STREAM: u32 = 1;
const SYN_REPLY: u32 = 2;
const RST_STREAM: u32 = 3;
const PING: u32 = 6;
const GOAWAY: u32 = 7;
const HEADERS: u32 = 8;
const WINDOW_UPDATE: u32 = 9;
const FIN: u8 = 1;

const PROTOCOL_ERROR: u32 = 1;
const REFUSED_STREAM: u32 = 3;

/// Maximum number of streams, including ended ones that were not accepted yet.
const STREAMS: usize = 1000;
/// Number of headers kept for a stream, and the maximum length of a value.
const KEPT: [&str; 3] = ["streamtype", "port", "requestid"];
const VALUE: usize = 64;
/// The longest control frame.
const CONTROL: usize = 64 * 1024;
/// Data is passed on in pieces of at most this size.
const PIECE: usize = 32 * 1024;
/// Bytes of a connection that may wait for their readers; a piece counts as `SMALLEST` at least.
const UNREAD: usize = 256 * 1024;
const SMALLEST: usize = 1024;
/// Frames that may wait to be sent, and streams that may wait to be accepted.
const PENDING: usize = 4;

/// The server's end of a connection. Dropping it ends everything.
pub struct Session {
    incoming: mpsc::Receiver<Stream>,
    tasks: Tasks,
}

/// The client's end of a connection. Dropping it ends everything.
pub struct Client {
    frames: mpsc::Sender<Out>,
    streams: Streams,
    places: Arc<Semaphore>,
    unread: Arc<Semaphore>,
    /// The number of the next stream; held until its first frame is queued, since numbers only grow.
    next: tokio::sync::Mutex<u32>,
    _tasks: Tasks,
}

/// The tasks of a connection, which end with it.
struct Tasks([JoinHandle<()>; 2]);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Where the data of each stream goes.
type Streams = Arc<Mutex<HashMap<u32, mpsc::UnboundedSender<Piece>>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Client,
    Server,
}

/// A stream of a connection.
pub struct Stream {
    /// The number of the stream in its connection.
    pub id: u32,
    headers: Headers,
    /// The data from the other side.
    pub input: Input,
    /// The data to the other side.
    pub output: Output,
    /// One of the streams of the connection.
    _place: OwnedSemaphorePermit,
}

/// The data that the other side sends.
pub struct Input {
    pieces: mpsc::UnboundedReceiver<Piece>,
    /// The budget of the last piece that was returned.
    room: Option<OwnedSemaphorePermit>,
}

/// A piece of data, with its share of the bytes that may wait.
type Piece = (Bytes, OwnedSemaphorePermit);

/// The data to the other side. Dropping it does not end the stream.
#[derive(Clone)]
pub struct Output {
    id: u32,
    frames: mpsc::Sender<Out>,
}

enum Out {
    Open(u32, Headers),
    Reply(u32),
    Data {
        id: u32,
        fin: bool,
        data: Bytes,
    },
    /// A control frame of numbers.
    Control(u32, [u32; 2], usize),
}

impl Session {
    /// Serves a connection.
    pub fn start<S: AsyncRead + AsyncWrite + Send + 'static>(io: S) -> Self {
        let (side, write, out, incoming) = Side::new(io, Role::Server);
        Self { incoming, tasks: side.start(write, out) }
    }

    /// Accepts the next stream; `None` when the connection has ended.
    pub async fn accept(&mut self) -> Option<Stream> {
        self.incoming.recv().await
    }

    /// Waits until the client has read everything and ends the connection, for `patience` at most.
    pub async fn close(mut self, patience: Duration) {
        let end = async { while self.incoming.recv().await.is_some() {} };
        let _ = tokio::time::timeout(patience, end).await;
        drop(self.tasks);
    }
}

impl Client {
    /// Starts the client's side of a connection that was upgraded.
    pub fn start<S: AsyncRead + AsyncWrite + Send + 'static>(io: S) -> Self {
        let (side, write, out, _) = Side::new(io, Role::Client);
        let (frames, streams) = (side.frames.clone(), side.streams.clone());
        let (places, unread) = (side.places.clone(), side.unread.clone());
        let tasks = side.start(write, out);
        Self { frames, streams, places, unread, next: tokio::sync::Mutex::new(1), _tasks: tasks }
    }

    /// Opens a stream. `None` if the connection has ended, or has too many streams.
    pub async fn open(&self, headers: &[(&str, &str)]) -> Option<Stream> {
        let place = self.places.clone().try_acquire_owned().ok()?;
        let headers: Headers = headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let (sender, pieces) = mpsc::unbounded_channel();
        let mut next = self.next.lock().await;
        let id = *next;
        // Before the frame is sent: the answer may come at once.
        self.streams.lock().insert(id, sender);
        if self.unread.is_closed() || self.frames.send(Out::Open(id, headers.clone())).await.is_err() {
            self.streams.lock().remove(&id);
            return None;
        }
        *next += 2;
        let output = Output { id, frames: self.frames.clone() };
        Some(Stream { id, headers, input: Input { pieces, room: None }, output, _place: place })
    }
}

impl Stream {
    /// A header by its name in lower case.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(k, _)| k == name).map_or("", |(_, v)| v)
    }
}

impl Input {
    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Option<Bytes> {
        // The piece returned before has been processed.
        self.room = None;
        let (bytes, room) = self.pieces.recv().await?;
        self.room = Some(room);
        Some(bytes)
    }
}

impl Output {
    /// Sends data. Returns `false` when the stream or connection has ended.
    pub async fn send(&self, data: &[u8]) -> bool {
        let data = Bytes::copy_from_slice(data);
        self.frames.send(Out::Data { id: self.id, fin: false, data }).await.is_ok()
    }

    /// Ends our half.
    pub async fn finish(&self) {
        let _ = self.frames.send(Out::Data { id: self.id, fin: true, data: Bytes::new() }).await;
    }

    /// Resets the stream.
    pub async fn reset(&self) {
        let _ = self.frames.send(Out::Control(RST_STREAM, [self.id, PROTOCOL_ERROR], 2)).await;
    }
}

/// The reading half of a connection.
struct Side<S> {
    read: ReadHalf<S>,
    frames: mpsc::Sender<Out>,
    opened: mpsc::Sender<Stream>,
    streams: Streams,
    role: Role,
    places: Arc<Semaphore>,
    unread: Arc<Semaphore>,
    last: u32,
    /// Bytes of the connection for which no window update was sent yet.
    unsaid: u32,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Headers(#[from] headers::Error),
    #[error("{0}")]
    Protocol(&'static str),
}

impl<S: AsyncRead + AsyncWrite + Send + 'static> Side<S> {
    fn new(io: S, role: Role) -> (Self, WriteHalf<S>, mpsc::Receiver<Out>, mpsc::Receiver<Stream>) {
        let (read, write) = tokio::io::split(io);
        let (frames, out) = mpsc::channel(PENDING);
        let (opened, incoming) = mpsc::channel(PENDING);
        let side = Side {
            read,
            frames,
            opened,
            streams: Streams::default(),
            role,
            places: Arc::new(Semaphore::new(STREAMS)),
            unread: Arc::new(Semaphore::new(UNREAD)),
            last: 0,
            unsaid: 0,
        };
        (side, write, out, incoming)
    }

    fn start(self, write: WriteHalf<S>, out: mpsc::Receiver<Out>) -> Tasks {
        let reader = tokio::spawn(async move {
            let (streams, unread) = (self.streams.clone(), self.unread.clone());
            if let Err(error) = self.run().await {
                tracing::debug!(%error, "a SPDY connection ended");
            }
            // All inputs end, and no stream is opened any more.
            unread.close();
            streams.lock().clear();
        });
        let writer = tokio::spawn(async move {
            if let Err(error) = write_all(write, out).await {
                tracing::debug!(%error, "writing to a SPDY connection failed");
            }
        });
        Tasks([reader, writer])
    }

    async fn run(mut self) -> Result<(), Error> {
        let mut headers = Reader::new();
        loop {
            let mut head = [0; 8];
            if let Err(e) = self.read.read_exact(&mut head).await {
                return if e.kind() == std::io::ErrorKind::UnexpectedEof { Ok(()) } else { Err(e.into()) };
            }
            let [a, b, c, d, flags, x, y, z] = head;
            let (first, length) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([0, x, y, z]));
            if first >> 31 == 0 {
                self.data(first, flags, length).await?;
                continue;
            }
            if (first >> 16) & 0x7fff != VERSION {
                return Err(Error::Protocol("another version of SPDY"));
            }
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > CONTROL {
                return Err(Error::Protocol("a control frame is too long"));
            }
            let mut frame = vec![0; length];
            self.read.read_exact(&mut frame).await?;
            let number = |at: usize| -> Result<u32, Error> {
                let bytes = frame.get(at..).and_then(<[u8]>::first_chunk::<4>);
                bytes.map(|b| u32::from_be_bytes(*b)).ok_or(Error::Protocol("a control frame is too short"))
            };
            match first & 0xffff {
                SYN_STREAM if self.role == Role::Server => {
                    let block = frame.get(10..).ok_or(Error::Protocol("a control frame is too short"))?;
                    let read = headers.read(block)?;
                    self.open(number(0)? & 0x7fff_ffff, flags, read).await?;
                }
                SYN_STREAM => return Err(Error::Protocol("the server opens a stream")),
                // Nothing of a reply matters, but its headers are part of the compressed stream.
                SYN_REPLY | HEADERS => drop(headers.read(frame.get(4..).unwrap_or_default())?),
                RST_STREAM => drop(self.streams.lock().remove(&(number(0)? & 0x7fff_ffff))),
                // Pings of the client have odd numbers, those of the server even ones. The other side's are echoed.
                PING if (number(0)? % 2 == 1) == (self.role == Role::Server) => {
                    self.send(Out::Control(PING, [number(0)?, 0], 1)).await?
                }
                GOAWAY => tracing::trace!("no more streams are opened"),
                _ => {}
            }
        }
    }

    /// Grants the other side as many further bytes of a stream, or of the connection (0). Servers (`moby/spdystream`) ignore windows, and a
    /// client that waited for its turn to write could wait for ever: for a server that does not read before its own data is read.
    async fn grant(&mut self, id: u32, bytes: u32) -> Result<(), Error> {
        match self.role {
            Role::Server => self.send(Out::Control(WINDOW_UPDATE, [id, bytes], 2)).await,
            Role::Client => Ok(()),
        }
    }

    async fn send(&mut self, out: Out) -> Result<(), Error> {
        if self.role == Role::Client {
            // A server that has said everything may close before it has read everything.
            let _ = self.frames.try_send(out);
            return Ok(());
        }
        self.frames.send(out).await.map_err(|_| Error::Protocol("the connection cannot be written to"))
    }

    async fn open(&mut self, id: u32, flags: u8, mut headers: Headers) -> Result<(), Error> {
        if id.is_multiple_of(2) || id <= self.last {
            return self.send(Out::Control(RST_STREAM, [id, PROTOCOL_ERROR], 2)).await;
        }
        self.last = id;
        self.streams.lock().retain(|_, s| !s.is_closed());
        headers.retain(|(name, _)| KEPT.contains(&name.as_str()));
        let is_short = headers.len() <= KEPT.len() && headers.iter().all(|(_, value)| value.len() <= VALUE);
        let Some(place) = self.places.clone().try_acquire_owned().ok().filter(|_| is_short) else {
            return self.send(Out::Control(RST_STREAM, [id, REFUSED_STREAM], 2)).await;
        };
        let (sender, pieces) = mpsc::unbounded_channel();
        if flags & FIN == 0 {
            self.streams.lock().insert(id, sender);
        }
        self.send(Out::Reply(id)).await?;
        let output = Output { id, frames: self.frames.clone() };
        let stream = Stream { id, headers, input: Input { pieces, room: None }, output, _place: place };
        self.opened.send(stream).await.map_err(|_| Error::Protocol("streams are no longer accepted"))
    }

    async fn data(&mut self, id: u32, flags: u8, length: u32) -> Result<(), Error> {
        let mut left = usize::try_from(length).unwrap_or(usize::MAX);
        while left > 0 {
            let size = left.min(PIECE);
            let room = self.unread.clone().acquire_many_owned(size.max(SMALLEST) as u32).await;
            let room = room.map_err(|_| Error::Protocol("the session has ended"))?;
            let mut piece = BytesMut::zeroed(size);
            self.read.read_exact(&mut piece).await?;
            left -= size;
            if let Some(s) = self.streams.lock().get(&id) {
                let _ = s.send((piece.freeze(), room));
            }
        }
        if flags & FIN != 0 {
            self.streams.lock().remove(&id);
        } else if length > 0 && self.streams.lock().contains_key(&id) {
            self.grant(id, length).await?;
        }
        // The connection's own window.
        self.unsaid += length;
        if self.unsaid >= PIECE as u32 {
            let n = std::mem::take(&mut self.unsaid);
            self.grant(0, n).await?;
        }
        Ok(())
    }
}

async fn write_all<S: AsyncWrite>(mut to: WriteHalf<S>, mut out: mpsc::Receiver<Out>) -> Result<(), Error> {
    let mut headers = Writer::new()?;
    while let Some(frame) = out.recv().await {
        match frame {
            Out::Open(id, of_stream) => {
                let block = headers.write(&of_stream)?;
                let mut body = id.to_be_bytes().to_vec();
                // No associated stream, and the highest priority.
                body.extend_from_slice(&[0; 6]);
                body.extend_from_slice(&block);
                to.write_all(&control(SYN_STREAM, &body)).await?;
            }
            Out::Reply(id) => {
                let block = headers.write(&[])?;
                let mut body = id.to_be_bytes().to_vec();
                body.extend_from_slice(&block);
                to.write_all(&control(SYN_REPLY, &body)).await?;
            }
            Out::Control(kind, numbers, count) => {
                let body: Vec<u8> = numbers.iter().take(count).flat_map(|n| n.to_be_bytes()).collect();
                to.write_all(&control(kind, &body)).await?;
            }
            Out::Data { id, fin, data } => {
                for (i, piece) in data.chunks(PIECE).enumerate() {
                    let last = (i + 1) * PIECE >= data.len();
                    to.write_all(&data_head(id, fin && last, piece.len())).await?;
                    to.write_all(piece).await?;
                }
                if data.is_empty() {
                    to.write_all(&data_head(id, fin, 0)).await?;
                }
            }
        }
        if out.is_empty() {
            to.flush().await?;
        }
    }
    Ok(())
}

fn control(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut frame = (1 << 31 | VERSION << 16 | kind).to_be_bytes().to_vec();
    frame.extend_from_slice(&(body.len() as u32).to_be_bytes());
    frame.extend_from_slice(body);
    frame
}

fn data_head(id: u32, fin: bool, length: usize) -> [u8; 8] {
    let [a, b, c, d] = id.to_be_bytes();
    let [_, x, y, z] = (length as u32).to_be_bytes();
    [a, b, c, d, u8::from(fin), x, y, z]
}

#[cfg(test)]
mod tests;
