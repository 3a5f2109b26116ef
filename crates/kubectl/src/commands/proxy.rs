//! `kubectl proxy`: serves the API on a local port or socket, with the credentials of the kubeconfig.
//!
//! Every client of the port has the user's permissions. Therefore the proxy listens on the loopback address, accepts only
//! requests for this host, and rejects exec and attach, unless flags allow more.

mod site;

use crate::error::{Error, Result, os_message, text};
use crate::kube::Kube;
use bytes::Bytes;
use client::{Client, Upgrade};
use http::{HeaderMap, Request, Response, StatusCode, Uri, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nix::sys::stat::{Mode, umask};
use regex::Regex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    pub words: Vec<String>,
    /// Directory of static files to serve.
    #[arg(short = 'w', long, default_value = "", hide_default_value = true)]
    pub www: String,
    /// Path prefix of the static files.
    #[arg(short = 'P', long, default_value = "/static/", hide_default_value = true)]
    pub www_prefix: String,
    /// Path prefix of the API.
    #[arg(long, default_value = "/", hide_default_value = true)]
    pub api_prefix: String,
    /// Regular expressions of accepted paths.
    #[arg(long, default_value = "^.*", hide_default_value = true)]
    pub accept_paths: String,
    /// Regular expressions of rejected paths.
    #[arg(long, default_value = "^/api/.*/pods/.*/exec,^/api/.*/pods/.*/attach", hide_default_value = true)]
    pub reject_paths: String,
    /// Regular expressions of accepted hosts.
    #[arg(long, default_value = "^localhost$,^127\\.0\\.0\\.1$,^\\[::1\\]$", hide_default_value = true)]
    pub accept_hosts: String,
    /// Regular expressions of rejected methods.
    #[arg(long, default_value = "^$", hide_default_value = true)]
    pub reject_methods: String,
    /// Port; 0 chooses a free one.
    #[arg(short = 'p', long, default_value = "8001", hide_default_value = true)]
    pub port: i64,
    /// Local address to listen on.
    #[arg(long, default_value = "127.0.0.1", hide_default_value = true)]
    pub address: String,
    /// Accept every request. Any web page can then use the port.
    #[arg(long)]
    pub disable_filter: bool,
    /// Unix socket instead of the port.
    #[arg(short = 'u', long, default_value = "", hide_default_value = true)]
    pub unix_socket: String,
    /// Accepted without effect: keep-alive interval of connections to the server.
    #[arg(long, default_value = "0s", hide_default_value = true)]
    pub keepalive: String,
    /// Prepend the path of the server's address to every path.
    #[arg(long)]
    pub append_server_path: bool,
}

type Body = UnsyncBoxBody<Bytes, client::Error>;

/// Which requests are accepted.
struct Filter {
    accept_paths: Vec<Regex>,
    reject_paths: Vec<Regex>,
    accept_hosts: Vec<Regex>,
    reject_methods: Vec<Regex>,
}

/// The exit code of upstream's program after a fatal log message.
const FATAL: u8 = 255;

fn expressions(k: &Kube, given: &str) -> Result<Vec<Regex>> {
    let compile = |e: &str| {
        Regex::new(e).map_err(|why| {
            let head = client::log::head('F', k.now(), &k.shell.zone, "proxy_server.go:83");
            let error =
                Error::Bare(format!("{head}Error compiling re: error parsing regexp: {}", explain_regex(e, &why)));
            Error::Code { code: FATAL, error: Box::new(error) }
        })
    };
    given.split(',').filter(|_| !given.is_empty()).map(compile).collect()
}

/// Explains why a regular expression is invalid; common causes as Go's package `regexp` does.
fn explain_regex(expression: &str, e: &regex::Error) -> String {
    let why = e.to_string();
    let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
    match why {
        "unclosed group" => format!("missing closing ): `{expression}`"),
        "unclosed character class" => {
            let from = expression.rfind('[').unwrap_or_default();
            format!("missing closing ]: `{}`", &expression[from..])
        }
        "unopened group" => format!("unexpected ): `{expression}`"),
        "repetition operator missing expression" => {
            let from = expression.find(['*', '+', '?']).unwrap_or_default();
            format!("missing argument to repetition operator: `{}`", &expression[from..][..1])
        }
        other => format!("{other}: `{expression}`"),
    }
}

impl Filter {
    fn accepts(&self, method: &str, path: &str, host: &str) -> bool {
        let any = |all: &[Regex], text: &str| all.iter().any(|r| r.is_match(text));
        let rejected = any(&self.reject_paths, path) || any(&self.reject_methods, method);
        !rejected && any(&self.accept_paths, path) && any(&self.accept_hosts, host)
    }
}

struct Site {
    client: Client,
    filter: Option<Filter>,
    api_prefix: String,
    www: Option<(String, PathBuf)>,
}

fn slashed(prefix: &str) -> String {
    if prefix.ends_with('/') { prefix.to_owned() } else { format!("{prefix}/") }
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    if a.port != 8001 && !a.unix_socket.is_empty() {
        return text("cannot set --unix-socket and --port at the same time");
    }
    if !a.www.is_empty() {
        match std::fs::metadata(&a.www) {
            Err(e) => {
                k.warn(format!("Failed to stat static file directory {}: stat {}: {}", a.www, a.www, os_message(&e)))
            }
            Ok(m) if !m.is_dir() => k.warn(format!("Static file directory {} is not a directory", a.www)),
            Ok(_) => {}
        }
    }
    let filter = match a.disable_filter {
        true => {
            if a.unix_socket.is_empty() {
                k.warn("Request filter disabled, your proxy is vulnerable to XSRF attacks, please be cautious");
            }
            None
        }
        false => Some(Filter {
            accept_paths: expressions(k, &a.accept_paths)?,
            reject_paths: expressions(k, &a.reject_paths)?,
            accept_hosts: expressions(k, &a.accept_hosts)?,
            reject_methods: expressions(k, &a.reject_methods)?,
        }),
    };
    let site = Arc::new(Site {
        client: k.client().await?,
        filter,
        api_prefix: slashed(&a.api_prefix),
        www: (!a.www.is_empty()).then(|| (slashed(&a.www_prefix), PathBuf::from(&a.www))),
    });
    let serving = async {
        if a.unix_socket.is_empty() {
            let Ok(port) = u16::try_from(a.port) else {
                return text(format!("listen tcp: address {}: invalid port", a.port));
            };
            let at = (a.address.as_str(), port);
            let l = tokio::net::TcpListener::bind(at).await.map_err(|e| listening(&a, &e))?;
            let shown = l.local_addr().map_err(|e| listening(&a, &e))?;
            k.println(format!("Starting to serve on {shown}"));
            k.out.flush();
            loop {
                match l.accept().await {
                    Ok((s, _)) => _ = tokio::spawn(serve(s, site.clone())),
                    Err(e) => return text(format!("accept: {}", os_message(&e))),
                }
            }
        }
        let path = Path::new(&a.unix_socket);
        // Remove the socket of a previous run.
        if std::fs::symlink_metadata(path).is_ok_and(|m| std::os::unix::fs::FileTypeExt::is_socket(&m.file_type())) {
            let _ = std::fs::remove_file(path);
        }
        let l = private_socket(path)
            .map_err(|e| Error::Text(format!("listen unix {}: bind: {}", a.unix_socket, os_message(&e))))?;
        k.println(format!("Starting to serve on {}", a.unix_socket));
        k.out.flush();
        loop {
            match l.accept().await {
                Ok((s, _)) => _ = tokio::spawn(serve(s, site.clone())),
                Err(e) => return text(format!("accept: {}", os_message(&e))),
            }
        }
    };
    serving.await
}

/// Creates a socket that only its owner may use, from the beginning.
fn private_socket(path: &Path) -> std::io::Result<tokio::net::UnixListener> {
    let old = umask(Mode::from_bits_truncate(0o077));
    let made = tokio::net::UnixListener::bind(path);
    umask(old);
    made
}

fn listening(a: &Arguments, e: &std::io::Error) -> Error {
    Error::Text(format!("listen tcp {}:{}: bind: {}", a.address, a.port, os_message(e)))
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, site: Arc<Site>) {
    let service = service_fn(move |r| {
        let site = site.clone();
        async move { Ok::<_, std::convert::Infallible>(respond(r, &site).await) }
    });
    // A browser that disconnects is no error.
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
}

fn plain(code: StatusCode, message: &str) -> Response<Body> {
    let body = Full::new(Bytes::from(format!("{message}\n"))).map_err(|e| match e {}).boxed_unsync();
    let mut r = Response::new(body);
    *r.status_mut() = code;
    r.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain; charset=utf-8"));
    r
}

async fn respond(r: Request<Incoming>, site: &Site) -> Response<Body> {
    let path = r.uri().path().to_owned();
    let www = site.www.as_ref().map_or(site.api_prefix.as_str(), |(prefix, _)| prefix);
    if let Some(moved) = site::redirect_unclean(&path, r.uri().query(), &[&site.api_prefix, www]) {
        return moved;
    }
    if let Some((prefix, directory)) = &site.www
        && let Some(rest) = path.strip_prefix(prefix.as_str())
        // The longest matching prefix counts.
        && (prefix.len() >= site.api_prefix.len() || !path.starts_with(site.api_prefix.as_str()))
    {
        return site::file(directory, rest, r.uri().query());
    }
    let Some(rest) = path.strip_prefix(site.api_prefix.as_str()) else {
        return plain(StatusCode::NOT_FOUND, "404 page not found");
    };
    // Below /api the path is the server's own; elsewhere the prefix is removed.
    let path = if site.api_prefix.starts_with("/api") { path.clone() } else { format!("/{rest}") };
    let host = r.headers().get(header::HOST).and_then(|h| h.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').filter(|(_, p)| p.parse::<u16>().is_ok()).map_or(host, |(h, _)| h);
    if site.filter.as_ref().is_some_and(|f| !f.accepts(r.method().as_str(), &path, name)) {
        return plain(StatusCode::FORBIDDEN, "Forbidden");
    }
    let query = r.uri().query().map(|q| format!("?{q}")).unwrap_or_default();
    match forward(r, &format!("{path}{query}"), &site.client).await {
        Ok(respond) => respond,
        Err(e) => plain(StatusCode::INTERNAL_SERVER_ERROR, &e.to_string()),
    }
}

/// Removes hop-by-hop headers.
fn strip(h: &mut HeaderMap, upgrade: bool) {
    for name in ["host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "content-length"] {
        h.remove(name);
    }
    if !upgrade {
        h.remove(header::CONNECTION);
        h.remove(header::UPGRADE);
    }
}

async fn forward(mut r: Request<Incoming>, to: &str, client: &Client) -> Result<Response<Body>> {
    let upgrade = r.headers().contains_key(header::UPGRADE);
    let switched = upgrade.then(|| hyper::upgrade::on(&mut r));
    let (mut parts, body) = r.into_parts();
    parts.uri = to.parse::<Uri>().map_err(|e| Error::Text(format!("{to}: {e}")))?;
    strip(&mut parts.headers, upgrade);
    let body = body.collect().await.map_err(|e| Error::Text(format!("reading the request: {e}")))?.to_bytes();
    let mut request = Request::new(body);
    (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) = (parts.method, parts.uri, parts.headers);
    let Some(switched) = switched else {
        let (mut parts, body) = client.raw(request).await?.into_parts();
        strip(&mut parts.headers, false);
        return Ok(Response::from_parts(parts, body));
    };
    match client.upgrade(request).await? {
        Upgrade::Refused(respond) => {
            let (mut parts, body) = respond.into_parts();
            strip(&mut parts.headers, false);
            Ok(Response::from_parts(parts, body))
        }
        Upgrade::Switched(parts, mut server) => {
            tokio::spawn(async move {
                if let Ok(browser) = switched.await {
                    let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(browser), &mut server).await;
                }
            });
            let mut respond = Response::new(Full::new(Bytes::new()).map_err(|e| match e {}).boxed_unsync());
            *respond.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            *respond.headers_mut() = parts.headers;
            Ok(respond)
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, shell, snapshot};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn get(at: &str, path: &str, host: &str) -> String {
        let mut c = tokio::net::TcpStream::connect(at).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        c.write_all(request.as_bytes()).await.unwrap();
        let mut respond = String::new();
        c.read_to_string(&mut respond).await.unwrap();
        let code = respond.split(' ').nth(1).unwrap_or_default().to_owned();
        format!("{code} {}", respond.split_once("\r\n\r\n").map_or("", |(_, b)| b))
    }

    #[tokio::test]
    async fn forwards_requests_to_the_server() {
        tokio::task::LocalSet::new().run_until(requests()).await;
    }

    async fn requests() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f.txt"), "file").unwrap();
        let s = Server::new().on_bytes("GET /version?x=1", 200, b"{}".to_vec());
        let (sh, out, err) = shell(&s, "", |_| None);
        let www = format!("--www={}", dir.path().display());
        let line = ["kubectl", "proxy", "--port=0", &www].map(Into::into).to_vec();
        let task = tokio::task::spawn_local(crate::run(line, sh));
        let at = loop {
            tokio::task::yield_now().await;
            if let Some(at) = out.text().strip_prefix("Starting to serve on ") {
                break at.trim().to_owned();
            }
            assert!(!task.is_finished(), "{}", err.text());
        };
        for (path, host, expected) in [
            ("/version?x=1", "localhost", "200 {}"),
            ("/version?x=1", "127.0.0.1:8001", "200 {}"),
            ("/version?x=1", "evil.example", "403 Forbidden\n"),
            ("/api/v1/namespaces/a/pods/b/exec", "localhost", "403 Forbidden\n"),
            ("/static/f.txt", "localhost", "200 file"),
            ("/static", "localhost", "307 <a href=\"/static/\">Temporary Redirect</a>.\n\n"),
            ("//version?x=1", "localhost", "307 <a href=\"/version?x=1\">Temporary Redirect</a>.\n\n"),
            ("/static/../f.txt", "localhost", "307 <a href=\"/f.txt\">Temporary Redirect</a>.\n\n"),
        ] {
            assert_eq!(get(&at, path, host).await, expected, "{path} {host}");
        }
        task.abort();
        let output = snapshot(&s, "proxy --port=1 --unix-socket=/x", "").await;
        assert_eq!(output, "! error: cannot set --unix-socket and --port at the same time\nexit 1\n");
    }

    /// The longest matching prefix counts, whichever of the two it is.
    #[tokio::test]
    async fn filters_paths_and_selects_prefixes() {
        for (expression, expected) in [
            ("(", "missing closing ): `(`"),
            ("a[b", "missing closing ]: `[b`"),
            ("*", "missing argument to repetition operator: `*`"),
        ] {
            let (code, out, err) =
                crate::testing::run_with(&Server::new(), &["proxy", &format!("--accept-paths={expression}")], "").await;
            let expected = format!("Error compiling re: error parsing regexp: {expected}\n");
            assert!(code == 255 && out.is_empty() && err.ends_with(&expected), "{code} {err}");
        }
        for port in ["99999", "-1"] {
            let output = snapshot(&Server::new(), &format!("proxy --port={port}"), "").await;
            assert_eq!(output, format!("! error: listen tcp: address {port}: invalid port\nexit 1\n"));
        }
        tokio::task::LocalSet::new().run_until(prefixes()).await;
    }

    async fn prefixes() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f.txt"), "file").unwrap();
        let s = Server::new().on_bytes("GET /version", 200, b"{}".to_vec());
        let (sh, out, err) = shell(&s, "", |_| None);
        let www = format!("--www={}", dir.path().display());
        let line = ["kubectl", "proxy", "--port=0", &www, "--www-prefix=/s/", "--api-prefix=/custom/"];
        let task = tokio::task::spawn_local(crate::run(line.map(Into::into).to_vec(), sh));
        let at = loop {
            tokio::task::yield_now().await;
            if let Some(at) = out.text().strip_prefix("Starting to serve on ") {
                break at.trim().to_owned();
            }
            assert!(!task.is_finished(), "{}", err.text());
        };
        for (path, expected) in
            [("/s/f.txt", "200 file"), ("/custom/version", "200 {}"), ("/x", "404 404 page not found\n")]
        {
            assert_eq!(get(&at, path, "localhost").await, expected, "{path}");
        }
        task.abort();
    }
}
