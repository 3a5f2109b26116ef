use super::*;
use tokio::io::DuplexStream;

/// The other side, which sends and receives frames.
struct Peer {
    io: DuplexStream,
    headers: Writer,
}

impl Peer {
    fn new() -> (Self, Session) {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        (Self { io: ours, headers: Writer::new().unwrap() }, Session::start(theirs))
    }

    async fn open(&mut self, id: u32, flags: u8, headers: &[(&str, &str)]) {
        let headers: Headers = headers.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let mut body = id.to_be_bytes().to_vec();
        body.extend_from_slice(&[0; 6]);
        body.extend(self.headers.write(&headers).unwrap());
        let mut frame = control(SYN_STREAM, &body);
        frame[4] = flags;
        self.io.write_all(&frame).await.unwrap();
    }

    async fn data(&mut self, id: u32, fin: bool, data: &[u8]) {
        self.io.write_all(&data_head(id, fin, data.len())).await.unwrap();
        self.io.write_all(data).await.unwrap();
    }

    /// The first word of the next frame, its flags and its body.
    async fn next(&mut self) -> (u32, u8, Vec<u8>) {
        let mut head = [0; 8];
        self.io.read_exact(&mut head).await.unwrap();
        let mut body = vec![0; u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize];
        self.io.read_exact(&mut body).await.unwrap();
        (u32::from_be_bytes([head[0], head[1], head[2], head[3]]), head[4], body)
    }

    async fn next_control(&mut self, kind: u32) -> Vec<u8> {
        let (word, _, body) = self.next().await;
        assert_eq!(word, 1 << 31 | VERSION << 16 | kind);
        body
    }
}

#[tokio::test]
async fn streams_carry_data_both_ways() {
    let (mut c, mut session) = Peer::new();
    c.open(1, 0, &[("streamtype", "data"), ("port", "80")]).await;
    assert_eq!(c.next_control(SYN_REPLY).await[..4], 1u32.to_be_bytes());
    let mut s = session.accept().await.unwrap();
    assert_eq!((s.id, s.header("streamtype"), s.header("port"), s.header("none")), (1, "data", "80", ""));

    c.data(1, false, b"hello").await;
    assert_eq!(&s.input.next().await.unwrap()[..], b"hello");
    assert_eq!(c.next_control(WINDOW_UPDATE).await, [0, 0, 0, 1, 0, 0, 0, 5], "the window is opened again");
    c.data(1, true, b"!").await;
    assert_eq!(&s.input.next().await.unwrap()[..], b"!");
    assert_eq!(s.input.next().await, None);

    assert!(s.output.send(b"back").await);
    assert_eq!(c.next().await, (1, 0, b"back".to_vec()));
    s.output.finish().await;
    assert_eq!(c.next().await, (1, FIN, Vec::new()));
    // The second block of headers belongs to the same compressed stream; this stream is empty from the start.
    c.open(3, FIN, &[("streamtype", "error")]).await;
    assert_eq!(c.next_control(SYN_REPLY).await[..4], 3u32.to_be_bytes());
    let mut s = session.accept().await.unwrap();
    assert_eq!(s.header("streamtype"), "error");
    assert_eq!(s.input.next().await, None);
    drop(c);
    assert!(session.accept().await.is_none());
}

#[tokio::test]
async fn large_frames_come_in_pieces() {
    let (mut c, mut session) = Peer::new();
    c.open(1, 0, &[]).await;
    c.next_control(SYN_REPLY).await;
    let mut s = session.accept().await.unwrap();
    let sent = vec![7; PIECE * 3 + 5];
    let copy = sent.clone();
    let write = tokio::spawn(async move {
        c.data(1, true, &copy).await;
        c
    });
    let mut got = Vec::new();
    while let Some(p) = s.input.next().await {
        assert!(p.len() <= PIECE);
        got.extend_from_slice(&p);
    }
    assert_eq!(got, sent);
    let mut c = write.await.unwrap();
    assert_eq!(c.next_control(WINDOW_UPDATE).await[..4], [0; 4], "the connection's window");
    let out = s.output.clone();
    tokio::spawn(async move { out.send(&sent).await });
    for _ in 0..3 {
        assert_eq!(c.next().await.2.len(), PIECE);
    }
    assert_eq!(c.next().await.2.len(), 5);
}

#[tokio::test]
async fn pings_come_back_and_bad_streams_do_not() {
    let (mut c, mut session) = Peer::new();
    c.io.write_all(&control(PING, &9u32.to_be_bytes())).await.unwrap();
    assert_eq!(c.next_control(PING).await, 9u32.to_be_bytes());
    // Even numbers are the server's, and numbers only grow.
    c.open(2, 0, &[]).await;
    assert_eq!(c.next_control(RST_STREAM).await, [0, 0, 0, 2, 0, 0, 0, 1]);
    c.open(5, 0, &[]).await;
    c.next_control(SYN_REPLY).await;
    c.open(5, 0, &[]).await;
    assert_eq!(c.next_control(RST_STREAM).await, [0, 0, 0, 5, 0, 0, 0, 1]);
    let mut s = session.accept().await.unwrap();
    // Data for an unknown stream is ignored, and a reset ends a stream.
    c.data(77, false, b"lost").await;
    c.io.write_all(&control(RST_STREAM, &[0, 0, 0, 5, 0, 0, 0, 5])).await.unwrap();
    assert_eq!(s.input.next().await, None);
    // Invalid frames end the connection.
    c.io.write_all(b"\x80\x02\x00\x01\x00\x00\x00\x00").await.unwrap();
    assert!(session.accept().await.is_none());
}

#[tokio::test]
async fn a_connection_is_closed_by_the_client_or_after_a_while() {
    let (c, session) = Peer::new();
    drop(c);
    session.close(Duration::from_secs(3600)).await;
    tokio::time::pause();
    let (mut c, session) = Peer::new();
    session.close(Duration::from_secs(10)).await;
    let mut byte = [0];
    assert_eq!(c.io.read(&mut byte).await.unwrap(), 0);
}

/// A stream that ended before it was accepted is still accepted.
#[tokio::test]
async fn streams_are_counted_while_they_live() {
    let (mut c, mut session) = Peer::new();
    let mut held = Vec::new();
    for n in 0..STREAMS as u32 {
        c.open(2 * n + 1, FIN, &[("streamtype", "error"), ("port", "80"), ("other", &"x".repeat(1000))]).await;
        c.next_control(SYN_REPLY).await;
        held.push(session.accept().await.unwrap());
    }
    assert!(held.iter().all(|s| s.headers.len() == 2), "unused headers are not kept");
    let next = 2 * STREAMS as u32 + 1;
    c.open(next, FIN, &[]).await;
    assert_eq!(c.next_control(RST_STREAM).await[4..], REFUSED_STREAM.to_be_bytes());
    held.pop();
    c.open(next + 2, FIN, &[]).await;
    c.next_control(SYN_REPLY).await;
    c.open(next + 4, FIN, &[("port", &"8".repeat(VALUE + 1))]).await;
    assert_eq!(c.next_control(RST_STREAM).await[4..], REFUSED_STREAM.to_be_bytes());
}

/// Unread data blocks its connection after some bytes, and no more is buffered.
#[tokio::test(start_paused = true)]
async fn bytes_that_wait_are_bounded() {
    let (mut c, mut session) = Peer::new();
    for id in [1, 3] {
        c.open(id, 0, &[]).await;
        c.next_control(SYN_REPLY).await;
    }
    let (mut one, two) = (session.accept().await.unwrap(), session.accept().await.unwrap());
    let sent = tokio::spawn(async move {
        for _ in 0..UNREAD / PIECE {
            c.data(3, false, &[7; PIECE]).await;
        }
        c.data(1, false, b"behind").await;
        c
    });
    tokio::select! {
        _ = one.input.next() => panic!("it came although nothing was read"),
        () = tokio::time::sleep(Duration::from_millis(200)) => {}
    }
    drop(two);
    assert_eq!(&one.input.next().await.unwrap()[..], b"behind");
    drop(sent);
}

/// Both ends of a connection, joined.
#[tokio::test]
async fn a_client_opens_streams() {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (client, mut session) = (Client::start(ours), Session::start(theirs));
    for (n, kind) in ["error", "data"].into_iter().enumerate() {
        let mut stream = client.open(&[("streamtype", kind), ("port", "80")]).await.unwrap();
        let mut there = session.accept().await.unwrap();
        assert_eq!((there.id, there.header("streamtype")), (2 * n as u32 + 1, kind));
        assert!(stream.output.send(b"to").await && there.output.send(b"fro").await);
        assert_eq!(&there.input.next().await.unwrap()[..], b"to");
        assert_eq!(&stream.input.next().await.unwrap()[..], b"fro");
        there.output.finish().await;
        assert_eq!(stream.input.next().await, None);
        stream.output.finish().await;
        assert_eq!(there.input.next().await, None);
    }
    let mut open = client.open(&[]).await.unwrap();
    drop(session);
    assert_eq!(open.input.next().await, None, "the end of the connection ends its streams");
    while client.open(&[]).await.is_some() {
        tokio::task::yield_now().await;
    }
}

/// A server that reads nothing before its own data is read, and closes with data unread, as when a command ignores its input.
#[tokio::test]
async fn a_client_reads_while_it_cannot_write() {
    let (ours, theirs) = tokio::io::duplex(1024);
    let client = Client::start(ours);
    let mut peer = Peer { io: theirs, headers: Writer::new().unwrap() };
    let mut stream = client.open(&[("streamtype", "data")]).await.unwrap();
    assert_eq!(peer.next_control(SYN_STREAM).await[..4], 1u32.to_be_bytes());
    let output = stream.output.clone();
    let sends = tokio::spawn(async move { while output.send(&[7; PIECE]).await {} });
    for _ in 0..20 {
        peer.data(1, false, &[8; PIECE]).await;
        assert_eq!(stream.input.next().await.unwrap().len(), PIECE);
    }
    peer.data(1, true, b"the end").await;
    drop(peer);
    assert_eq!(&stream.input.next().await.unwrap()[..], b"the end");
    sends.await.unwrap();
}
