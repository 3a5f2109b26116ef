//! Commands, attached clients and forwarded ports: the streams of a runtime's streaming server, over SPDY.
//!
//! The runtime answers with a URL. WebSockets would do too, but servers of the interface do not know its fifth protocol, without which an
//! input cannot end before its command.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use k8s_cri::v1;
use parking_lot::Mutex;
use runtime::{
    AttachSession, ContainerState, Error, ExecControl, ExecRequest, ExecSession, PortForward, Reader, Resizer, Result,
    TerminalSize, Writer,
};
use serde_json::{Value, json};
use spdy::{Client, Input, Output, Stream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;

use crate::Inner;

const COMMAND: &str = "v4.channel.k8s.io";
const PORTS: &str = "portforward.k8s.io";
/// Bytes between a stream and its reader or writer.
const BUFFER: usize = 64 << 10;
/// Bytes of a status or of the message of a refusal.
const MAX_STATUS: usize = 64 << 10;
/// How long the server may take to answer.
const ANSWER: Duration = Duration::from_secs(30);
/// How long the cause of an ended connection is waited for.
const CAUSE: Duration = Duration::from_secs(1);

impl Inner {
    pub(crate) async fn exec(&self, id: &str, request: ExecRequest) -> Result<ExecSession> {
        let container = self.running(id).await?;
        let ExecRequest { command, tty, stdin, stdout, stderr } = request;
        let stderr = stderr && !tty;
        let message = v1::ExecRequest { container_id: id.to_owned(), cmd: command, tty, stdin, stdout, stderr };
        let url = self.connection.exec(message).await?;
        let fail = |message| Error::Exec { container: container.name.clone(), message };
        let streams = Streams::open(&url, Selection { stdin, stdout, stderr, tty }).await.map_err(fail)?;
        let control = Control { status: streams.status, resizer: streams.resizer, container: container.name };
        Ok(ExecSession {
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
            control: Box::new(control),
        })
    }

    pub(crate) async fn attach(&self, id: &str, stdin: bool) -> Result<AttachSession> {
        let container = self.running(id).await?;
        let record = crate::records::container_record(&self.connection.container_status(id).await?.status.annotations);
        let (stdin, tty) = (stdin && record.stdin, record.tty);
        let message = v1::AttachRequest { container_id: id.to_owned(), stdin, tty, stdout: true, stderr: !tty };
        let url = self.connection.attach(message).await?;
        let fail = |message| Error::Exec { container: container.name.clone(), message };
        let selection = Selection { stdin, stdout: true, stderr: !tty, tty };
        let streams = Streams::open(&url, selection).await.map_err(fail)?;
        Ok(AttachSession {
            stdin: streams.stdin,
            stdout: streams.stdout.unwrap_or_else(|| Box::new(tokio::io::empty())),
            stderr: streams.stderr,
            resizer: streams.resizer,
        })
    }

    async fn running(&self, id: &str) -> Result<runtime::Container> {
        let container = self.container(id).await?;
        match container.state {
            ContainerState::Running => Ok(container),
            state => Err(Error::State { container: id.to_owned(), state, expected: "running" }),
        }
    }

    pub(crate) async fn forward_port(&self, pod: &str, port: u16) -> Result<PortForward> {
        let sandbox = self.sandbox(pod).await?;
        let url = self.connection.port_forward(&sandbox.id, port).await?;
        let fail = |message| Error::PodStart { pod: pod.to_owned(), message };
        let client = Arc::new(connect(&url, PORTS).await.map_err(fail)?);
        let number = port.to_string();
        let headers = |kind| [("streamtype", kind), ("port", number.as_str()), ("requestid", "0")];
        let ended = || fail("the streaming server has closed the connection".to_owned());
        let mut error = client.open(&headers("error")).await.ok_or_else(ended)?;
        let data = client.open(&headers("data")).await.ok_or_else(ended)?;
        error.output.finish().await;
        let (ours, theirs) = tokio::io::duplex(BUFFER);
        let (from, mut to) = tokio::io::split(theirs);
        let cause: Cause = Arc::default();
        tokio::spawn(send(from, data.output, client.clone()));
        let (mut input, found) = (data.input, cause.clone());
        tokio::spawn(async move {
            receive(&mut input, &mut to).await;
            if let Ok(Some(text)) = tokio::time::timeout(CAUSE, error.input.next()).await {
                *found.lock() = Some(String::from_utf8_lossy(&text).into_owned());
            }
            let _ = to.shutdown().await;
            drop(client);
        });
        Ok(PortForward::Stream(Box::new(Forwarded { io: ours, cause })))
    }
}

/// Why a connection has ended, if not by itself.
type Cause = Arc<Mutex<Option<String>>>;

/// A connection to a port. A read at its end is an error if the runtime could not connect.
struct Forwarded {
    io: DuplexStream,
    cause: Cause,
}

impl AsyncRead for Forwarded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        let cause = if buffer.filled().len() == before { self.cause.lock().take() } else { None };
        Poll::Ready(cause.map_or(Ok(()), |cause| Err(io::Error::other(cause))))
    }
}

impl AsyncWrite for Forwarded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Connects to a streaming server and upgrades to SPDY. Errors with a message.
async fn connect(url: &str, protocol: &str) -> Result<Client, String> {
    let connected = tokio::time::timeout(ANSWER, upgrade(url, protocol)).await;
    connected.unwrap_or_else(|_| Err("the streaming server of the container runtime does not answer".into()))
}

async fn upgrade(url: &str, protocol: &str) -> Result<Client, String> {
    let uri: Uri = url.parse().map_err(|_| "the container runtime returned an invalid URL".to_owned())?;
    let (tls, port) = match uri.scheme_str() {
        Some("http") => (Tls::No, 80),
        Some("https") => (Tls::Yes, 443),
        _ => return Err("the container runtime returned a URL that is neither of http nor of https".into()),
    };
    let authority = uri.authority().ok_or("the container runtime returned a URL without a host")?.clone();
    let failed = |e: &dyn std::fmt::Display| format!("the streaming server of the container runtime: {e}");
    let host = authority.host().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(port))).await.map_err(|e| failed(&e))?;
    let _ = stream.set_nodelay(true);
    let stream: Box<dyn Socket> = match tls {
        Tls::No => Box::new(stream),
        Tls::Yes => {
            let trust = trust(stream.peer_addr().map_err(|e| failed(&e))?.ip());
            begin_tls(stream, host, trust).await.map_err(|e| failed(&e))?
        }
    };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| failed(&e))?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to a streaming server ended");
        }
    });
    let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let request = Request::post(path)
        .header(header::HOST, authority.as_str())
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "SPDY/3.1")
        .header("X-Stream-Protocol-Version", protocol)
        .body(Empty::<Bytes>::new())
        .map_err(|e| failed(&e))?;
    let response = sender.send_request(request).await.map_err(|e| failed(&e))?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_STATUS).collect().await;
        let text = body.map(|b| String::from_utf8_lossy(&b.to_bytes()).trim().to_owned()).unwrap_or_default();
        return Err(failed(&format!("{status}: {text}")));
    }
    let upgraded = hyper::upgrade::on(response).await.map_err(|e| failed(&e))?;
    Ok(Client::start(TokioIo::new(upgraded)))
}

/// Whether the streaming server uses TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tls {
    No,
    Yes,
}

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

/// Which certificates a streaming server may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Anything,
    /// Those with a root that this machine trusts.
    System,
}

/// The certificate of a server on this machine is not verified: runtimes make their own, and the URL has come over a socket that only root
/// can listen on.
fn trust(address: std::net::IpAddr) -> Trust {
    if address.to_canonical().is_loopback() { Trust::Anything } else { Trust::System }
}

async fn begin_tls(stream: TcpStream, host: &str, trust: Trust) -> io::Result<Box<dyn Socket>> {
    let config = match trust {
        Trust::Anything => client::https::unverified(),
        Trust::System => client::https::verified(client::https::Roots::System),
    };
    let name = rustls::pki_types::ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let connector = TlsConnector::from(config.map_err(io::Error::other)?);
    Ok(Box::new(connector.connect(name, stream).await?))
}

#[derive(Clone, Copy)]
struct Selection {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

/// The streams of a command or container.
struct Streams {
    stdin: Option<Writer>,
    stdout: Option<Reader>,
    stderr: Option<Reader>,
    resizer: Resizer,
    status: Status,
}

/// The end of a command: a stream, which keeps the connection.
struct Status {
    stream: Stream,
    /// `None` once the command is given up.
    client: Option<Arc<Client>>,
}

impl Streams {
    async fn open(url: &str, selection: Selection) -> Result<Self, String> {
        let client = Arc::new(connect(url, COMMAND).await?);
        let open = async |kind: &str| {
            let stream = client.open(&[("streamtype", kind)]).await;
            stream.ok_or("the streaming server has closed the connection".to_owned())
        };
        let optional = async |kind: &str, is_selected: bool| -> Result<Option<Stream>, String> {
            if is_selected { open(kind).await.map(Some) } else { Ok(None) }
        };
        // All of them before any data: the server reads none until it has all streams.
        let status = open("error").await?;
        let stdin = optional("stdin", selection.stdin).await?;
        let stdout = optional("stdout", selection.stdout).await?;
        let stderr = optional("stderr", selection.stderr).await?;
        let resize = optional("resize", selection.tty).await?;
        Ok(Self {
            stdin: stdin.map(|stream| writer(stream, &client)),
            stdout: stdout.map(|stream| reader(stream, &client)),
            stderr: stderr.map(|stream| reader(stream, &client)),
            resizer: resize.map_or_else(|| Arc::new(|_: TerminalSize| {}) as Resizer, resizer),
            status: Status { stream: status, client: Some(client) },
        })
    }
}

/// The data of a stream. Its own direction is not used.
fn reader(stream: Stream, client: &Arc<Client>) -> Reader {
    let (ours, mut theirs) = tokio::io::duplex(BUFFER);
    let client = client.clone();
    tokio::spawn(async move {
        let mut input = stream.input;
        receive(&mut input, &mut theirs).await;
        drop(client);
    });
    Box::new(ours)
}

/// The input of a stream, which ends when it is shut down or dropped.
fn writer(stream: Stream, client: &Arc<Client>) -> Writer {
    let (ours, theirs) = tokio::io::duplex(BUFFER);
    tokio::spawn(send(theirs, stream.output, client.clone()));
    Box::new(ours)
}

async fn receive(input: &mut Input, to: &mut (impl AsyncWrite + Unpin)) {
    while let Some(piece) = input.next().await {
        if to.write_all(&piece).await.is_err() {
            return;
        }
    }
}

async fn send(mut from: impl AsyncRead + Unpin, output: Output, client: Arc<Client>) {
    let mut block = vec![0; BUFFER / 2];
    while let Ok(n @ 1..) = from.read(&mut block).await {
        if !output.send(&block[..n]).await {
            break;
        }
    }
    output.finish().await;
    drop(client);
}

/// Sends sizes one after the other. Of those that arrive meanwhile, only the newest is sent.
fn resizer(stream: Stream) -> Resizer {
    let (sizes, mut newest) = watch::channel(None);
    tokio::spawn(async move {
        // Ends with the session.
        while newest.changed().await.is_ok() {
            let Some(TerminalSize { rows, columns }) = *newest.borrow_and_update() else { continue };
            let size = json!({"Width": columns, "Height": rows}).to_string();
            if !stream.output.send(size.as_bytes()).await {
                return;
            }
        }
    });
    Arc::new(move |size| {
        sizes.send_replace(Some(size));
    })
}

struct Control {
    status: Status,
    resizer: Resizer,
    container: String,
}

#[async_trait]
impl ExecControl for Control {
    async fn wait(&mut self) -> Result<i32> {
        let mut text = Vec::new();
        while let Some(piece) = self.status.stream.input.next().await {
            text.extend_from_slice(&piece);
            if text.len() > MAX_STATUS {
                break;
            }
        }
        exit_code(&text).map_err(|message| Error::Exec { container: self.container.clone(), message })
    }

    fn resizer(&self) -> Resizer {
        self.resizer.clone()
    }

    /// The interface has no such call: the runtime kills the command when the connection closes, if it does.
    async fn kill(&mut self) -> Result<()> {
        self.status.stream.output.reset().await;
        self.status.client = None;
        Ok(())
    }
}

/// The exit code in a `Status` of the fourth protocol; an error is the message.
fn exit_code(status: &[u8]) -> Result<i32, String> {
    let Ok(status) = serde_json::from_slice::<Value>(status) else {
        let text = String::from_utf8_lossy(status).into_owned();
        return Err(if text.is_empty() { "the connection to the command broke".into() } else { text });
    };
    if status["status"] == "Success" {
        return Ok(0);
    }
    let causes = status["details"]["causes"].as_array();
    let code = causes.into_iter().flatten().find(|c| c["reason"] == "ExitCode").and_then(|c| c["message"].as_str());
    match code.and_then(|code| code.parse().ok()) {
        Some(code) if status["reason"] == "NonZeroExitCode" => Ok(code),
        _ => Err(status["message"].as_str().unwrap_or_default().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_has_the_exit_code() {
        let code = |status: Value| exit_code(status.to_string().as_bytes());
        assert_eq!(code(json!({"status": "Success"})), Ok(0));
        let causes = json!({"causes": [{"reason": "Other"}, {"reason": "ExitCode", "message": "7"}]});
        assert_eq!(code(json!({"status": "Failure", "reason": "NonZeroExitCode", "details": causes})), Ok(7));
        assert_eq!(code(json!({"status": "Failure", "reason": "InternalError", "message": "m"})), Err("m".into()));
        assert_eq!(exit_code(b"plain"), Err("plain".into()));
        assert!(exit_code(b"").is_err());
    }

    /// TLS with a certificate that nobody has signed.
    fn acceptor() -> tokio_rustls::TlsAcceptor {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_no_client_auth();
        Arc::new(config.with_single_cert(vec![certificate.der().clone()], key).unwrap()).into()
    }

    /// A server that upgrades and speaks SPDY, as streaming servers do.
    async fn server(answer: &'static str, tls: Tls) -> (String, tokio::task::JoinHandle<Option<spdy::Session>>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if tls == Tls::Yes { "https" } else { "http" };
        let url = format!("{scheme}://{}/exec/token?a=b", listener.local_addr().unwrap());
        let task = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream: Box<dyn Socket> = match tls {
                Tls::No => Box::new(stream),
                Tls::Yes => Box::new(acceptor().accept(stream).await.unwrap()),
            };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap().to_lowercase();
            assert!(head.starts_with("post /exec/token?a=b http/1.1") && head.contains("upgrade: spdy/3.1"), "{head}");
            stream.write_all(answer.as_bytes()).await.unwrap();
            answer.contains("101").then(|| spdy::Session::start(stream))
        });
        (url, task)
    }

    const SWITCHING: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n";

    #[tokio::test]
    async fn a_command_has_its_streams_over_spdy() {
        for tls in [Tls::No, Tls::Yes] {
            has_streams(tls).await;
        }
    }

    async fn has_streams(tls: Tls) {
        let (url, task) = server(SWITCHING, tls).await;
        let selection = Selection { stdin: true, stdout: true, stderr: false, tty: true };
        let mut streams = Streams::open(&url, selection).await.unwrap();
        let mut session = task.await.unwrap().unwrap();
        let mut there = std::collections::BTreeMap::new();
        for _ in 0..4 {
            let stream = session.accept().await.unwrap();
            there.insert(stream.header("streamtype").to_owned(), stream);
        }
        assert_eq!(there.keys().collect::<Vec<_>>(), ["error", "resize", "stdin", "stdout"]);
        let mut stdin = streams.stdin.take().unwrap();
        stdin.write_all(b"in").await.unwrap();
        stdin.shutdown().await.unwrap();
        let there_in = &mut there.get_mut("stdin").unwrap().input;
        assert_eq!((there_in.next().await.unwrap(), there_in.next().await), (Bytes::from("in"), None));
        (streams.resizer)(TerminalSize { rows: 4, columns: 9 });
        let size = there.get_mut("resize").unwrap().input.next().await.unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&size).unwrap(), json!({"Width": 9, "Height": 4}));
        let out = &there["stdout"].output;
        assert!(out.send(b"out").await);
        out.finish().await;
        let mut text = String::new();
        streams.stdout.take().unwrap().read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "out");
        let error = &there["error"].output;
        assert!(error.send(br#"{"status":"Success"}"#).await);
        error.finish().await;
        let resizer = streams.resizer.clone();
        let mut control = Control { status: streams.status, resizer, container: "c".into() };
        assert_eq!(control.wait().await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_refusal_is_the_error() {
        let (url, task) = server("HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\n\r\nnope", Tls::No).await;
        let error = connect(&url, COMMAND).await.err().unwrap();
        assert!(error.ends_with("403 Forbidden: nope"), "{error}");
        assert!(task.await.unwrap().is_none());
        let error = connect("ftp://127.0.0.1:1/exec/x", COMMAND).await.err().unwrap();
        assert!(error.contains("neither of http nor of https"), "{error}");
    }

    /// Only a server on this machine needs no certificate that this machine trusts.
    #[tokio::test]
    async fn certificates_of_other_machines_are_verified() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let there = tokio::spawn(async move { acceptor().accept(accepted).await.is_ok() });
        let error = begin_tls(stream, "runtime.example", Trust::System).await.err().unwrap();
        assert!(error.to_string().contains("certificate"), "{error}");
        assert!(!there.await.unwrap());
        assert_eq!(trust("127.0.0.2".parse().unwrap()), Trust::Anything);
        assert_eq!(trust("::ffff:127.0.0.1".parse().unwrap()), Trust::Anything);
        assert_eq!(trust("192.0.2.1".parse().unwrap()), Trust::System);
    }
}
