//! Logs requests and responses, like `-v=6` to `-v=10` of client-go's programs.
//!
//! A layer around a transport; without it there is no overhead. Levels and texts are those of client-go v1.36
//! (`transport/round_trippers.go`, `rest/request.go`), the line format is klog's. Credentials are never logged; bodies are from level 8 on,
//! except those of streams.

use crate::client::collect;
use crate::error::Error;
use crate::https::{ConnectionTrace, Step, traced};
use crate::transport::{Body, Transport, Upgrade};
use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use meta::Clock;
use serde_json::json;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

type Write = dyn Fn(&str) + Send + Sync;

/// A transport that logs what it sends and receives.
pub struct Logged {
    /// The transport that sends the requests.
    pub inner: Arc<dyn Transport>,
    /// 6: one line per request; 7: request headers; 8: response headers and bodies, cut at 1,024 bytes; 9: a curl command, connections with
    /// their durations, bodies cut at 10,240 bytes; 10: complete bodies.
    pub level: i32,
    /// The server's URL, the prefix of request paths.
    pub server: String,
    /// The scheme of the credentials that the transport adds, if any: `Bearer`, `Basic`.
    pub authorization: Option<&'static str>,
    /// Clock of the line prefix.
    pub clock: Arc<dyn Clock>,
    /// Time zone of the line prefix.
    pub zone: TimeZone,
    /// Writes a line; the line ends with a newline.
    pub write: Box<Write>,
}

/// The lowest level at which requests are logged.
pub const LEAST: i32 = 6;

/// The prefix of a klog line: severity, local time, process ID, upstream's source location.
pub fn head(severity: char, now: Timestamp, zone: &TimeZone, source: &str) -> String {
    let time = now.to_zoned(zone.clone()).strftime("%m%d %H:%M:%S%.6f").to_string();
    format!("{severity}{time} {:7} {source}] ", std::process::id())
}

impl Logged {
    /// Writes a klog line: prefix, message and pairs of names and values.
    fn line(&self, source: &str, message: &str, pairs: &[(&str, Shown)]) {
        let mut text = format!("{}{message:?}", head('I', self.clock.now(), &self.zone, source));
        for (key, shown) in pairs {
            let _ = write!(text, " {key}=");
            match shown {
                Shown::Number(n) => _ = write!(text, "{n}"),
                Shown::Plain(t) => text.push_str(t),
                Shown::Text(t) if t.contains('\n') => {
                    text.push_str("<\n");
                    t.lines().for_each(|l| _ = writeln!(text, "\t{l}"));
                    text.push_str(" >");
                }
                Shown::Text(t) => _ = write!(text, "{t:?}"),
            }
        }
        text.push('\n');
        (self.write)(&text);
    }

    fn headers(&self, all: &HeaderMap, sent: bool) -> Vec<(String, String)> {
        let mut out: Vec<(String, String)> = all
            .iter()
            .map(|(k, v)| {
                let value = String::from_utf8_lossy(v.as_bytes()).into_owned();
                (canonical(k.as_str()), if k == http::header::AUTHORIZATION { masked(&value) } else { value })
            })
            .collect();
        if let Some(scheme) = self.authorization.filter(|_| sent && !all.contains_key(http::header::AUTHORIZATION)) {
            out.push(("Authorization".into(), format!("{scheme} <masked>")));
        }
        out.sort();
        out
    }

    fn request(&self, r: &Request<Bytes>, url: &str) {
        if self.level >= 8 {
            self.line("request.go:1152", "Request Body", &[("body", self.body(r.body()))]);
        }
        let headers = || self.headers(r.headers(), true);
        if self.level >= 9 {
            let mut curl = format!("curl -v -X{} ", r.method());
            headers().iter().for_each(|(k, v)| _ = write!(curl, " -H {:?}", format!("{k}: {v}")));
            let _ = writeln!(curl, " '{url}'");
            self.line("round_trippers.go:527", "Request", &[("curlCommand", Shown::Text(curl))]);
        } else if self.level >= 7 {
            let (verb, url) = (Shown::Text(r.method().to_string()), Shown::Text(url.to_owned()));
            let pairs = [("verb", verb), ("url", url), ("headers", Shown::Text(lines(&headers())))];
            self.line("round_trippers.go:527", "Request", &pairs);
        }
    }

    /// Logs how the connection was opened.
    fn connection(&self, seen: &ConnectionTrace) {
        let text = |t: &str| Shown::Text(t.to_owned());
        for step in &seen.steps {
            match step {
                Step::Lookup { host, addresses } => {
                    let all: Vec<_> = addresses.iter().map(|ip| json!({"IP": ip, "Zone": ""}).to_string()).collect();
                    let pairs = [("host", text(host)), ("address", Shown::Plain(format!("[{}]", all.join(","))))];
                    self.line("round_trippers.go:547", "HTTP Trace: DNS Lookup resolved", &pairs);
                }
                Step::Dial { address, error } => {
                    let mut pairs = vec![("network", text("tcp")), ("address", text(address))];
                    let (source, message) = match error {
                        None => ("round_trippers.go:562", "HTTP Trace: Dial succeed"),
                        Some(why) => {
                            pairs.push(("err", text(why)));
                            ("round_trippers.go:560", "HTTP Trace: Dial failed")
                        }
                    };
                    self.line(source, message, &pairs);
                }
            }
        }
    }

    /// `answer` is none if there was no response.
    fn response(
        &self,
        verb: &str,
        url: &str,
        answer: Option<(StatusCode, &HeaderMap)>,
        begun: Instant,
        seen: &ConnectionTrace,
    ) {
        if self.level >= 9 {
            self.connection(seen);
        }
        let mut pairs = Vec::new();
        if self.level == 6 || self.level >= 9 {
            pairs.extend([("verb", Shown::Text(verb.to_owned())), ("url", Shown::Text(url.to_owned()))]);
        }
        let status = answer.map(|(s, _)| format!("{} {}", s.as_u16(), s.canonical_reason().unwrap_or_default()));
        pairs.push(("status", Shown::Text(status.unwrap_or_default())));
        if self.level >= 8 {
            let headers = answer.map(|(_, h)| lines(&self.headers(h, false))).unwrap_or_default();
            pairs.push(("headers", Shown::Text(headers)));
        }
        pairs.push(("milliseconds", Shown::Number(begun.elapsed().as_millis())));
        if self.level >= 9 {
            let mut took = |name, time: Duration| pairs.push((name, Shown::Number(time.as_millis())));
            if seen.steps.is_empty() {
                // An open connection was reused.
                took("getConnectionMilliseconds", Duration::ZERO);
            } else {
                took("dnsLookupMilliseconds", seen.lookup);
                took("dialMilliseconds", seen.dial);
                took("tlsHandshakeMilliseconds", seen.handshake);
            }
            if answer.is_some() {
                took("serverProcessingMilliseconds", seen.ready.unwrap_or(begun).elapsed());
            }
        }
        self.line("round_trippers.go:632", "Response", &pairs);
    }

    fn body(&self, body: &[u8]) -> Shown {
        let most = match self.level {
            ..9 => 1024,
            9 => 10240,
            _ => usize::MAX,
        };
        let mut text = String::from_utf8_lossy(&body[..body.len().min(most)]).into_owned();
        if body.len() > most {
            let _ = write!(text, " [truncated {} chars]", body.len() - most);
        }
        Shown::Text(text)
    }
}

enum Shown {
    Text(String),
    /// Printed without quotes.
    Plain(String),
    Number(u128),
}

/// Converts a header name like `content-type` to `Content-Type`.
fn canonical(name: &str) -> String {
    let part = |p: &str| p[..1.min(p.len())].to_uppercase() + &p[1.min(p.len())..];
    name.split('-').map(part).collect::<Vec<_>>().join("-")
}

/// Masks the secret part of an `Authorization` header.
fn masked(value: &str) -> String {
    let (scheme, secret) = value.split_once(' ').unwrap_or((value, ""));
    match scheme.to_lowercase().as_str() {
        "bearer" | "basic" | "negotiate" if secret.is_empty() => scheme.to_owned(),
        "bearer" | "basic" | "negotiate" => format!("{scheme} <masked>"),
        "" => String::new(),
        _ => "<masked>".into(),
    }
}

fn lines(headers: &[(String, String)]) -> String {
    headers.iter().map(|(k, v)| format!("{k}: {v}\n")).collect()
}

/// Whether the response body may be endless.
fn is_stream(r: &Request<Bytes>) -> bool {
    let query = r.uri().query().unwrap_or_default();
    r.uri().path().ends_with("/log") || query.split('&').any(|p| matches!(p, "watch=true" | "watch=1" | "follow=true"))
}

#[async_trait]
impl Transport for Logged {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Body>, Error> {
        let (verb, url) = (request.method().to_string(), format!("{}{}", self.server, request.uri()));
        let stream = is_stream(&request);
        self.request(&request, &url);
        let begun = Instant::now();
        let (answer, seen) = traced(self.inner.send(request)).await;
        self.response(&verb, &url, answer.as_ref().ok().map(|r| (r.status(), r.headers())), begun, &seen);
        if self.level < 8 || stream {
            return answer;
        }
        let (head, body) = answer?.into_parts();
        let bytes = collect(body).await?;
        self.line("request.go:1206", "Response Body", &[("body", self.body(&bytes))]);
        Ok(Response::from_parts(head, Full::new(bytes).map_err(|e| match e {}).boxed_unsync()))
    }

    fn host(&self) -> &str {
        self.inner.host()
    }

    async fn upgrade(&self, request: Request<Bytes>) -> Result<Upgrade, Error> {
        let (verb, url) = (request.method().to_string(), format!("{}{}", self.server, request.uri()));
        self.request(&request, &url);
        let begun = Instant::now();
        let (answer, seen) = traced(self.inner.upgrade(request)).await;
        let head = match &answer {
            Ok(Upgrade::Switched(parts, _)) => Some((parts.status, &parts.headers)),
            Ok(Upgrade::Refused(r)) => Some((r.status(), r.headers())),
            Err(_) => None,
        };
        self.response(&verb, &url, head, begun, &seen);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::https::{Config, Https};
    use hyper_util::rt::TokioIo;

    #[test]
    fn lines_have_local_time() {
        let noon = "2026-11-21T12:00:00.25Z".parse().unwrap();
        let tokyo = TimeZone::get("Asia/Tokyo").unwrap();
        let line = head('W', noon, &tokyo, "a.go:1");
        assert_eq!(line, format!("W1121 21:00:00.250000 {:7} a.go:1] ", std::process::id()));
    }

    struct Stopped;

    impl Clock for Stopped {
        fn now(&self) -> Timestamp {
            Timestamp::UNIX_EPOCH
        }
    }

    /// The lines logged for GET requests at level 9, without prefixes and durations.
    async fn logged(server: String, requests: usize) -> String {
        let (sender, lines) = std::sync::mpsc::channel();
        let logged = Logged {
            inner: Arc::new(Https::new(&Config::new(server.clone())).unwrap()),
            level: 9,
            server,
            authorization: None,
            clock: Arc::new(Stopped),
            zone: TimeZone::UTC,
            write: Box::new(move |line| sender.send(line.to_owned()).unwrap()),
        };
        for _ in 0..requests {
            let _ = logged.send(Request::get("/x").body(Bytes::new()).unwrap()).await;
        }
        drop(logged);
        let lines = lines.into_iter().filter(|l| l.contains("HTTP Trace") || l.contains("\"Response\""));
        let text: String = lines.map(|l| l.split_once("] ").unwrap().1.to_owned()).collect();
        regex::Regex::new(r"illiseconds=\d+").unwrap().replace_all(&text, "illiseconds=N").into_owned()
    }

    #[tokio::test]
    async fn level_nine_logs_connections() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = hyper::service::service_fn(|_| async {
                Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from_static(b"ok"))))
            });
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await
        });
        let url = format!("http://{address}");
        let response = |times: &str| {
            format!(
                "\"Response\" verb=\"GET\" url=\"{url}/x\" status=\"200 OK\" headers=H milliseconds=N {times} serverProcessingMilliseconds=N\n"
            )
        };
        let headers = regex::Regex::new("headers=<(?s:.*?)\n >").unwrap();
        let text = logged(url.clone(), 2).await;
        assert_eq!(
            headers.replace_all(&text, "headers=H"),
            format!("\"HTTP Trace: Dial succeed\" network=\"tcp\" address=\"{address}\"\n")
                + &response("dnsLookupMilliseconds=N dialMilliseconds=N tlsHandshakeMilliseconds=N")
                + &response("getConnectionMilliseconds=N")
        );

        // The listener is closed.
        let address = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let text = logged(format!("http://localhost:{}", address.port()), 1).await;
        assert!(
            text.starts_with("\"HTTP Trace: DNS Lookup resolved\" host=\"localhost\" address=[{\"IP\":\""),
            "{text}"
        );
        let failed = format!(
            "\"HTTP Trace: Dial failed\" network=\"tcp\" address=\"{address}\" err=\"dial tcp {address}: connect: connection refused\"\n"
        );
        assert!(text.contains(&failed), "{text}");
        let last = text.lines().last().unwrap();
        assert!(last.contains(" status=\"\" ") && last.ends_with("tlsHandshakeMilliseconds=N"), "{text}");
    }

    #[test]
    fn credentials_are_masked() {
        for (value, want) in [
            ("Bearer abc", "Bearer <masked>"),
            ("bearer", "bearer"),
            ("Basic YTpi", "Basic <masked>"),
            ("Digest abc", "<masked>"),
            ("abc", "<masked>"),
            ("", ""),
        ] {
            assert_eq!(masked(value), want);
        }
        assert_eq!(canonical("x-kubernetes-pf-flowschema-uid"), "X-Kubernetes-Pf-Flowschema-Uid");
    }
}
