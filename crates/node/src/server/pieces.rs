//! Splits messages of a WebSocket. A client may send messages of any length, and the library returns whole ones. So the stream of a
//! client is rewritten: a message becomes messages of at most [`PIECE`] bytes, each of which starts with the message's channel if
//! there are channels (RFC 6455; `k8s.io/apimachinery/pkg/util/httpstream/wsstream`).
//!
//! **Invariant**: memory does not grow with the length of a message. Control frames pass unchanged. Long text is base64: its pieces
//! end after a multiple of four characters.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of a piece without its channel. A multiple of four.
const PIECE: usize = 32 * 1024;
/// Size of a read, in bytes.
const BLOCK: usize = 8 * 1024;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;
const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CONTROL: u8 = 8;
/// Maximum length of a control frame.
const MAX_CONTROL: u64 = 125;

pub(super) struct Pieces<S> {
    io: S,
    /// Whether the first byte of each message is its channel.
    channels: bool,
    frame: Frame,
    message: Option<Message>,
    /// Rewritten bytes; those from `at` on are not read yet.
    out: Vec<u8>,
    at: usize,
}

/// The position in a frame.
enum Frame {
    Head(Vec<u8>),
    /// In a control frame: the remaining bytes.
    Control(u64),
    Data {
        left: u64,
        mask: [u8; 4],
        /// Bytes of the frame so far, for the mask.
        seen: usize,
        ends: bool,
    },
}

struct Message {
    kind: u8,
    channel: Option<u8>,
    piece: Vec<u8>,
    /// Whether a piece of the message was written.
    begun: bool,
}

fn wrong(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl<S> Pieces<S> {
    pub fn new(io: S, channels: bool) -> Self {
        Self { io, channels, frame: Frame::Head(Vec::new()), message: None, out: Vec::new(), at: 0 }
    }

    fn take(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match &mut self.frame {
                Frame::Head(head) => {
                    head.push(bytes[0]);
                    bytes = &bytes[1..];
                    if head.len() == head_length(head) {
                        let head = std::mem::take(head);
                        self.begin(&head)?;
                    }
                }
                Frame::Control(left) => {
                    let n = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    self.out.extend_from_slice(&bytes[..n]);
                    bytes = &bytes[n..];
                    *left -= n as u64;
                    if *left == 0 {
                        self.frame = Frame::Head(Vec::new());
                    }
                }
                Frame::Data { left, mask, seen, ends } => {
                    let n = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    let plain = bytes[..n].iter().enumerate().map(|(i, b)| b ^ mask[(*seen + i) % 4]);
                    if let Some(m) = &mut self.message {
                        m.add(plain, self.channels, &mut self.out);
                    }
                    bytes = &bytes[n..];
                    (*left, *seen) = (*left - n as u64, *seen + n);
                    if *left == 0 {
                        let ends = *ends;
                        self.end_frame(ends);
                    }
                }
            }
        }
        Ok(())
    }

    /// Starts a frame whose head is complete.
    fn begin(&mut self, head: &[u8]) -> io::Result<()> {
        let (kind, ends) = (head[0] & 0x0f, head[0] & FIN != 0);
        if head[0] & RESERVED != 0 || head[1] & MASKED == 0 {
            return Err(wrong("a frame with reserved bits, or without a mask"));
        }
        let (length, mask) = head[2..].split_at(head.len() - 6);
        let left = match length {
            [] => u64::from(head[1] & !MASKED),
            more => more.iter().fold(0, |n, b| n << 8 | u64::from(*b)),
        };
        if kind >= CONTROL {
            if left > MAX_CONTROL || !ends {
                return Err(wrong("a control frame that is too long, or in parts"));
            }
            self.out.extend_from_slice(head);
            self.frame = if left == 0 { Frame::Head(Vec::new()) } else { Frame::Control(left) };
            return Ok(());
        }
        match (kind, &self.message) {
            (TEXT | BINARY, None) => {
                self.message = Some(Message { kind, channel: None, piece: Vec::new(), begun: false });
            }
            (CONTINUATION, Some(_)) => {}
            _ => return Err(wrong("a frame out of its order")),
        }
        let mask = <[u8; 4]>::try_from(mask).map_err(|_| wrong("a mask"))?;
        self.frame = Frame::Data { left, mask, seen: 0, ends };
        if left == 0 {
            self.end_frame(ends);
        }
        Ok(())
    }

    fn end_frame(&mut self, ends: bool) {
        self.frame = Frame::Head(Vec::new());
        if ends && let Some(mut m) = self.message.take() {
            let rest = m.piece.len() > usize::from(m.channel.is_some());
            if rest || !m.begun {
                m.give(&mut self.out);
            }
        }
    }
}

impl Message {
    fn add(&mut self, plain: impl Iterator<Item = u8>, channels: bool, out: &mut Vec<u8>) {
        for b in plain {
            if channels && self.channel.is_none() {
                self.channel = Some(b);
            }
            // A full piece is written when more data follows.
            if self.piece.len() >= PIECE + usize::from(self.channel.is_some()) {
                self.give(out);
                self.piece.extend(self.channel);
            }
            self.piece.push(b);
        }
    }

    /// Writes the piece as a message of one frame.
    fn give(&mut self, out: &mut Vec<u8>) {
        out.push(FIN | self.kind);
        match self.piece.len() {
            n @ 0..=125 => out.push(MASKED | n as u8),
            n => {
                out.push(MASKED | 126);
                out.extend_from_slice(&(n as u16).to_be_bytes());
            }
        }
        out.extend_from_slice(&[0; 4]);
        out.append(&mut self.piece);
        self.begun = true;
    }
}

/// The length of a frame's head, as far as its first bytes determine it: at least two bytes and the mask.
fn head_length(head: &[u8]) -> usize {
    match head.get(1).map(|b| b & !MASKED) {
        Some(126) => 8,
        Some(127) => 14,
        _ => 6,
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Pieces<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.at == this.out.len() {
            let mut block = [0; BLOCK];
            let mut read = ReadBuf::new(&mut block);
            ready!(Pin::new(&mut this.io).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            (this.out, this.at) = (Vec::new(), 0);
            this.take(read.filled())?;
        }
        let n = buf.remaining().min(this.out.len() - this.at);
        buf.put_slice(&this.out[this.at..this.at + n]);
        this.at += n;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Pieces<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{SinkExt, StreamExt};
    use tokio::io::AsyncWriteExt;
    use tokio_tungstenite::WebSocketStream;
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

    const LIMIT: usize = 64 << 10;

    async fn pair(
        channels: bool,
    ) -> (WebSocketStream<tokio::io::DuplexStream>, WebSocketStream<Pieces<tokio::io::DuplexStream>>) {
        let (client, server) = tokio::io::duplex(1000);
        let config = WebSocketConfig::default().max_message_size(Some(LIMIT)).max_frame_size(Some(LIMIT));
        let server = WebSocketStream::from_raw_socket(Pieces::new(server, channels), Role::Server, Some(config)).await;
        (WebSocketStream::from_raw_socket(client, Role::Client, None).await, server)
    }

    #[tokio::test]
    async fn a_message_of_any_length_arrives_in_pieces() {
        for length in [0, 1, 2, 125, 126, 127, PIECE - 1, PIECE, PIECE + 1, PIECE + 2, 3 * PIECE + 1, 3_000_000] {
            for channels in [true, false] {
                let (mut client, mut server) = pair(channels).await;
                let sent: Vec<u8> = (0..length).map(|i| if i == 0 { 3 } else { (i * 7) as u8 }).collect();
                let copy = sent.clone();
                tokio::spawn(async move {
                    client.send(Message::Binary(copy.into())).await.unwrap();
                    client.send(Message::Ping(b"p".as_slice().into())).await.unwrap();
                    client.close(None).await.unwrap();
                });
                let (mut got, mut count, mut pinged) = (Vec::new(), 0, false);
                while let Some(Ok(m)) = server.next().await {
                    match m {
                        Message::Binary(b) => {
                            let skip = usize::from(channels && count > 0);
                            assert!(!channels || length == 0 || b[0] == 3, "the channel");
                            got.extend_from_slice(&b[skip..]);
                            count += 1;
                        }
                        Message::Ping(p) => pinged = &p[..] == b"p",
                        _ => {}
                    }
                }
                assert!(got == sent && pinged, "{length} bytes in {count} pieces");
                assert_eq!(count, (length.saturating_sub(usize::from(channels))).div_ceil(PIECE).max(1), "{length}");
            }
        }
    }

    /// A message in many frames that never ends is passed on as it arrives.
    #[tokio::test]
    async fn a_message_that_never_ends_holds_nothing() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let mut server = WebSocketStream::from_raw_socket(Pieces::new(server, true), Role::Server, None).await;
        let mut wire = vec![BINARY, MASKED | 127];
        wire.extend_from_slice(&u64::MAX.to_be_bytes());
        wire.extend_from_slice(&[0; 4]);
        wire.extend_from_slice(&vec![0; 2 * PIECE + 2]);
        client.write_all(&wire).await.unwrap();
        for _ in 0..2 {
            assert_eq!(server.next().await.unwrap().unwrap().len(), PIECE + 1);
        }
        // A continuation without a message, and a frame without a mask, end the connection.
        for bad in
            [[FIN | CONTINUATION, MASKED, 0, 0, 0, 0], [FIN | BINARY, 1, 0, 0, 0, 0], [CONTROL, MASKED, 0, 0, 0, 0]]
        {
            let (mut client, server) = tokio::io::duplex(1 << 20);
            let mut server = WebSocketStream::from_raw_socket(Pieces::new(server, true), Role::Server, None).await;
            client.write_all(&bad).await.unwrap();
            assert!(server.next().await.unwrap().is_err(), "{bad:?}");
        }
    }

    #[tokio::test]
    async fn base64_is_cut_where_four_letters_end() {
        let (mut client, mut server) = pair(true).await;
        let text = format!("0{}", "QUJD".repeat(20_000));
        let sent = Message::Text(text.into());
        tokio::spawn(async move { client.send(sent).await.unwrap() });
        let Some(Ok(Message::Text(first))) = server.next().await else { panic!("no text") };
        assert!(first.starts_with("0QUJD") && (first.len() - 1) % 4 == 0, "{}", first.len());
    }
}
