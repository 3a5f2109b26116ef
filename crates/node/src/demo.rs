//! The program of the built-in demo image: an HTTP server that describes itself, or a program that sleeps.
//!
//! It uses threads and the standard library only, since it shares its pages with nothing in its container. On SIGTERM the server
//! logs a line and keeps serving while requests arrive, for [`LINGER`] at least: endpoints are removed a moment after a pod gets its
//! signal, and a rolling update must not lose a request.
//!
//! ```text
//! demo-app [--port N]      /healthz  /hostname  /env  /exit?code=N  anything else is echoed
//! demo-app sleep [SECONDS]
//! ```

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::AsFd;

/// How long the server goes on after SIGTERM without a request.
const LINGER: Duration = Duration::from_secs(2);
/// How long an idle connection is kept.
const IDLE: Duration = Duration::from_secs(30);
const MAX_HEAD: u64 = 64 * 1024;
const MAX_BODY: u64 = 16 * 1024 * 1024;

/// Runs the program; `args` are those after its name.
pub fn main(args: &[String]) -> ExitCode {
    let result = match args.first().map(String::as_str) {
        Some("sleep") => sleep(args.get(1)),
        _ => parse_port(args).and_then(serve),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("demo-app: {e}");
            ExitCode::from(2)
        }
    }
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

fn parse_port(args: &[String]) -> io::Result<u16> {
    let mut port = 8080;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let value = match arg.split_once('=') {
            Some(("--port", v)) => v.to_owned(),
            None if arg == "--port" => args.next().cloned().ok_or_else(|| invalid("--port needs a number".into()))?,
            _ => {
                return Err(invalid(format!("unknown argument {arg:?}; usage: demo-app [--port N] | sleep [SECONDS]")));
            }
        };
        port = value.parse().map_err(|_| invalid(format!("{value:?} is not a port")))?;
    }
    Ok(port)
}

/// A descriptor that becomes readable when the program gets SIGTERM.
fn signals() -> io::Result<SignalFd> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.add(Signal::SIGINT);
    set.thread_block()?;
    Ok(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

fn sleep(seconds: Option<&String>) -> io::Result<()> {
    let limit = match seconds {
        None => PollTimeout::NONE,
        Some(s) => {
            let seconds: u32 = s.parse().map_err(|_| invalid(format!("{s:?} is not a number of seconds")))?;
            PollTimeout::try_from(u64::from(seconds) * 1000).unwrap_or(PollTimeout::MAX)
        }
    };
    let signals = signals()?;
    wait(&[PollFd::new(signals.as_fd(), PollFlags::POLLIN)], limit).map(drop)
}

/// Which descriptors are ready; none after the timeout.
fn wait(fds: &[PollFd<'_>], limit: PollTimeout) -> io::Result<Vec<bool>> {
    let mut fds = fds.to_vec();
    loop {
        match poll(&mut fds, limit) {
            Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
            Ok(_) => return Ok(fds.iter().map(|f| f.any().unwrap_or(false)).collect()),
        }
    }
}

/// What the connections share.
#[derive(Default)]
struct State {
    ending: AtomicBool,
    in_flight: AtomicUsize,
    served: AtomicUsize,
}

fn serve(port: u16) -> io::Result<()> {
    let signals = signals()?;
    // On the addresses of both families, if the pod has them.
    let listener = TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)))?;
    println!("listening on port {port} as {}", hostname());
    let state = Arc::new(State::default());
    {
        let state = state.clone();
        let end = move || {
            if wait(&[PollFd::new(signals.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).is_ok() {
                println!("termination signal received: finishing requests in progress");
                state.ending.store(true, Ordering::SeqCst);
                linger(&state);
                println!("done");
            }
            std::process::exit(0);
        };
        std::thread::Builder::new().stack_size(128 * 1024).spawn(end)?;
    }
    for stream in listener.incoming() {
        match stream {
            Ok(stream) => {
                let state = state.clone();
                let named = std::thread::Builder::new().stack_size(128 * 1024);
                // Without a thread to serve it, the connection is closed, which the client sees.
                let _ = named.spawn(move || connection(stream, &state));
            }
            Err(e) => eprintln!("demo-app: accept: {e}"),
        }
    }
    Ok(())
}

/// Returns when no request has arrived for [`LINGER`]; after five times that, as soon as no request is in flight.
fn linger(state: &State) {
    const TICK: u16 = 100;
    let ticks = LINGER.as_millis() as u32 / u32::from(TICK);
    let (mut quiet, mut served) = (0, state.served.load(Ordering::SeqCst));
    for tick in 0.. {
        let _ = wait(&[], PollTimeout::from(TICK));
        let now = state.served.load(Ordering::SeqCst);
        let idle = state.in_flight.load(Ordering::SeqCst) == 0;
        quiet = if idle && now == served { quiet + 1 } else { 0 };
        served = now;
        if quiet >= ticks || (idle && tick >= 5 * ticks) {
            return;
        }
    }
}

fn hostname() -> String {
    nix::unistd::gethostname().map(|h| h.to_string_lossy().into_owned()).unwrap_or_default()
}

struct Request {
    line: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }
}

fn connection(stream: TcpStream, state: &State) {
    let served = stream.set_read_timeout(Some(IDLE)).and_then(|()| {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut writer = stream;
        while let Some(request) = read(&mut reader, &mut writer)? {
            state.in_flight.fetch_add(1, Ordering::SeqCst);
            // A server that is ending asks its clients to connect to another one.
            let close = request.header("connection").is_some_and(|c| c.eq_ignore_ascii_case("close"))
                || request.line.ends_with("HTTP/1.0")
                || state.ending.load(Ordering::SeqCst);
            let answered = answer(&request, close, &mut writer);
            // Probes do not count as requests, since they continue to the end.
            if !request.line.contains(" /healthz ") {
                state.served.fetch_add(1, Ordering::SeqCst);
            }
            state.in_flight.fetch_sub(1, Ordering::SeqCst);
            if let Some(code) = answered? {
                std::process::exit(code);
            }
            if close {
                break;
            }
        }
        Ok(())
    });
    match served {
        Err(e) if !matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            eprintln!("demo-app: connection: {e}");
        }
        _ => {}
    }
}

/// The next request of a connection; `None` when it has ended.
fn read(reader: &mut BufReader<TcpStream>, writer: &mut TcpStream) -> io::Result<Option<Request>> {
    let bad = |m: &str| io::Error::new(io::ErrorKind::InvalidData, m.to_owned());
    let mut head = reader.by_ref().take(MAX_HEAD);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if head.read_line(&mut line)? == 0 {
            return if lines.is_empty() { Ok(None) } else { Err(bad("the request ends early or is too long")) };
        }
        let line = line.trim_end_matches(['\r', '\n']);
        match (line.is_empty(), lines.is_empty()) {
            (true, true) => {}
            (true, false) => break,
            (false, _) => lines.push(line.to_owned()),
        }
    }
    let mut lines = lines.into_iter();
    let line = lines.next().unwrap_or_default();
    let headers = lines.filter_map(|l| l.split_once(':').map(|(n, v)| (n.trim().to_owned(), v.trim().to_owned())));
    let mut request = Request { line, headers: headers.collect(), body: Vec::new() };
    if request.header("expect").is_some_and(|e| e.eq_ignore_ascii_case("100-continue")) {
        writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    if request.header("transfer-encoding").is_some_and(|t| t.to_ascii_lowercase().contains("chunked")) {
        loop {
            let mut size = String::new();
            reader.by_ref().take(1024).read_line(&mut size)?;
            let digits = size.trim().split(';').next().unwrap_or_default();
            let n = u64::from_str_radix(digits, 16).map_err(|_| bad("a chunk has no size"))?;
            if request.body.len() as u64 + n > MAX_BODY {
                return Err(bad("the body is too long"));
            }
            reader.by_ref().take(n).read_to_end(&mut request.body)?;
            let mut end = String::new();
            reader.by_ref().take(1024).read_line(&mut end)?;
            if n == 0 {
                break;
            }
        }
    } else if let Some(length) = request.header("content-length") {
        let n: u64 = length.parse().map_err(|_| bad("Content-Length is no number"))?;
        if n > MAX_BODY {
            return Err(bad("the body is too long"));
        }
        reader.by_ref().take(n).read_to_end(&mut request.body)?;
    }
    Ok(Some(request))
}

/// Writes the response. `Some` is the code to exit with.
fn answer(request: &Request, close: bool, writer: &mut TcpStream) -> io::Result<Option<i32>> {
    let mut words = request.line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or("/"));
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut exit = None;
    let (status, body) = match path {
        "/healthz" => ("200 OK", b"ok\n".to_vec()),
        "/hostname" => ("200 OK", format!("{}\n", hostname()).into_bytes()),
        "/env" => {
            let mut all: Vec<String> = std::env::vars_os()
                .map(|(k, v)| format!("{}={}\n", k.to_string_lossy(), v.to_string_lossy()))
                .collect();
            all.sort();
            ("200 OK", all.concat().into_bytes())
        }
        "/exit" => {
            let code = query.split('&').find_map(|p| p.strip_prefix("code=")).unwrap_or("0");
            match code.parse::<u8>() {
                Ok(code) => {
                    exit = Some(i32::from(code));
                    ("200 OK", format!("exiting with {code}\n").into_bytes())
                }
                Err(_) => ("400 Bad Request", format!("code: {code:?} is not between 0 and 255\n").into_bytes()),
            }
        }
        _ => {
            let mut text = format!("{}\n", request.line).into_bytes();
            for (name, value) in &request.headers {
                text.extend_from_slice(format!("{name}: {value}\n").as_bytes());
            }
            text.push(b'\n');
            text.extend_from_slice(&request.body);
            ("200 OK", text)
        }
    };
    let connection = if close || exit.is_some() { "close" } else { "keep-alive" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: {connection}\r\n\r\n",
        body.len()
    );
    // In one piece: the second of two small ones would wait for the acknowledgement of the first, which clients delay by 40 ms.
    let mut response = head.into_bytes();
    if method != "HEAD" {
        response.extend_from_slice(&body);
    }
    writer.write_all(&response)?;
    writer.flush()?;
    Ok(exit)
}
