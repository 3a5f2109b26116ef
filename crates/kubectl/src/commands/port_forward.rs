//! `kubectl port-forward`: forwards local ports to a pod. Every connection has its own WebSocket (`v4.channel.k8s.io`: a
//! data and an error channel, each of which begins with the port number).

use super::exec::channels::{Socket, V4, socket};
use super::pods;
use crate::error::{Error, Result, os_message, text};
use crate::kube::Kube;
use crate::resource::scheme;
use crate::shell::Stream;
use client::{Api, Client, Query};
use futures::{SinkExt as _, StreamExt as _};
use http::Method;
use jiff::tz::TimeZone;
use meta::{Clock, Object, Rng, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[allow(rustdoc::broken_intra_doc_links, reason = "the text is the help of the flag")]
    /// POD or TYPE/NAME, then [LOCAL:]REMOTE….
    pub words: Vec<String>,
    /// Local addresses to listen on, or localhost.
    #[arg(long, value_delimiter = ',', default_value = "localhost", hide_default_value = true)]
    pub address: Vec<String>,
    /// Time limit until a pod runs.
    #[arg(long, default_value = "1m0s", hide_default_value = true, value_parser = crate::flags::duration_text)]
    pub pod_running_timeout: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Pair {
    local: u16,
    remote: u16,
}

fn split(port: &str) -> (&str, &str) {
    match port.split(':').collect::<Vec<_>>().as_slice() {
        [local, remote] => (local, remote),
        [one, ..] => (one, one),
        [] => ("", ""),
    }
}

fn containers(o: &Object) -> impl Iterator<Item = &Value> {
    let list = |name: &'static str| o.at(&["spec", name]).and_then(Value::as_array).into_iter().flatten();
    list("containers").chain(list("initContainers"))
}

fn ports(v: &Value) -> impl Iterator<Item = &Value> {
    v["ports"].as_array().into_iter().flatten()
}

fn protocol(p: &Value) -> &str {
    p["protocol"].as_str().unwrap_or("TCP")
}

/// Returns the number of a named port of a pod.
fn container_port(pod: &Object, name: &str) -> Result<i64> {
    match containers(pod).flat_map(ports).find(|p| p["name"] == name) {
        Some(p) => Ok(p["containerPort"].as_i64().unwrap_or_default()),
        None => text(format!("Pod '{}' does not have a named port '{name}'", pod.name())),
    }
}

/// Returns the pod's port for a port of its service.
fn service_port(service: &Object, pod: &Object, remote: &str) -> Result<(i64, i64)> {
    let all = service.at(&["spec"]).cloned().unwrap_or_default();
    let found = match remote.parse::<i64>() {
        Ok(n) => ports(&all).find(|p| p["port"] == n),
        Err(_) => ports(&all).find(|p| p["name"] == remote),
    };
    let Some(p) = found else {
        return text(match remote.parse::<i64>() {
            Ok(n) => format!("Service {} does not have a service port {n}", service.name()),
            Err(_) => format!("Service '{}' does not have a named port '{remote}'", service.name()),
        });
    };
    let number = p["port"].as_i64().unwrap_or_default();
    if service.str_at(&["spec", "clusterIP"]) == Some("None") {
        return Ok((number, number));
    }
    let target = match &p["targetPort"] {
        Value::Number(n) if n.as_i64() != Some(0) => n.as_i64().unwrap_or(number),
        Value::String(name) => container_port(pod, name)?,
        _ => number,
    };
    Ok((number, target))
}

/// Rejects UDP ports, which cannot be forwarded.
fn reject_udp(all: &[&Value], field: &str, requested: &[String]) -> Result {
    for w in requested {
        let (_, remote) = split(w);
        let is = |p: &&&Value| match remote.parse::<i64>() {
            Ok(n) => p[field] == n,
            Err(_) => p["name"] == remote,
        };
        let mut found = all.iter().filter(is).peekable();
        if found.peek().is_some() && found.all(|p| protocol(p) == "UDP") {
            return text(format!("UDP protocol is not supported for {remote}"));
        }
    }
    Ok(())
}

/// Resolves local and remote ports to numbers.
fn resolve_ports(words: &[String], target: &Object, pod: &Object) -> Result<Vec<Pair>> {
    let service = target.kind() == "Service";
    let spec = target.at(&["spec"]).cloned().unwrap_or_default();
    match service {
        true => reject_udp(&ports(&spec).collect::<Vec<_>>(), "port", words)?,
        false => reject_udp(&containers(pod).flat_map(ports).collect::<Vec<_>>(), "containerPort", words)?,
    }
    let mut out = Vec::new();
    for w in words {
        let (local, remote) = split(w);
        if remote.is_empty() {
            return text("remote port cannot be empty");
        }
        let (same, number) = if service {
            service_port(target, pod, remote)?
        } else {
            let n = match remote.parse::<i64>() {
                Ok(n) => n,
                Err(_) => container_port(pod, remote)?,
            };
            (n, n)
        };
        if w.split(':').count() > 2 {
            return text(format!("invalid port format '{w}'"));
        }
        let wrong = |what: &str, given: &str| {
            let digits = !given.is_empty() && given.bytes().all(|b| b.is_ascii_digit());
            let why = if digits { "value out of range" } else { "invalid syntax" };
            Error::Text(format!("error parsing {what} port '{given}': strconv.ParseUint: parsing {given:?}: {why}"))
        };
        if local.len() > 5 || local.parse::<u32>().is_ok_and(|n| n > 65535) {
            return Err(wrong("local", local));
        }
        let number = u16::try_from(number).map_err(|_| wrong("remote", &number.to_string()))?;
        if number == 0 {
            return text("remote port must be > 0");
        }
        let local = if local.is_empty() {
            0
        } else if local == remote && local.parse::<u16>().is_err() {
            u16::try_from(same).map_err(|_| wrong("local", local))?
        } else {
            local.parse().map_err(|_| wrong("local", local))?
        };
        out.push(Pair { local, remote: number });
    }
    Ok(out)
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    k.scheme = Some(scheme::CLIENT_GO);
    let Some((target, words)) = a.words.split_first().filter(|(_, w)| !w.is_empty()) else {
        return text(
            "TYPE/NAME and list of ports are required for port-forward\nSee 'kubectl port-forward -h' for help and examples",
        );
    };
    crate::flags::running_timeout(&a.pod_running_timeout, "port-forward")?;
    let info = pods::target(k, std::slice::from_ref(target)).await?;
    let mut target = info.fetch(k).await?;
    target.set_gvk(&info.resource.gvk());
    let pods = pods::find(k, &info, pods::Purpose::Attaching, &a.pod_running_timeout).await?;
    let Some(pod) = pods.into_iter().next() else { return text("timed out waiting for the condition") };
    let o = pod.object.clone().unwrap_or_default();
    let pairs = resolve_ports(words, &target, &o)?;
    let phase = o.str_at(&["status", "phase"]).unwrap_or_default();
    if phase != "Running" {
        return text(format!("unable to forward port because pod is not running. Current status={phase}"));
    }
    let to = To {
        api: k.api(&pod.resource, &pod.namespace).await?,
        client: k.client().await?,
        rng: k.shell.rng.clone(),
        pod: pod.name.clone(),
        out: k.out.clone(),
        err: k.err.clone(),
        clock: k.shell.clock.clone(),
        zone: k.shell.zone.clone(),
    };
    let named = |a: &&String| *a != "localhost" && a.parse::<std::net::IpAddr>().is_err();
    if let Some(wrong) = a.address.iter().find(named) {
        return text(format!("{wrong} is not a valid IP"));
    }
    let loopback = a.address.iter().any(|a| a == "localhost");
    let mut addresses: Vec<String> = Vec::new();
    for address in a.address {
        let known = loopback && ["127.0.0.1", "::1"].contains(&address.as_str());
        if !known && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    let mut listening = Vec::new();
    for p in &pairs {
        match listen(&addresses, p.local).await {
            Ok(all) => listening.extend(all.into_iter().map(|l| (l, p.remote))),
            Err(e) => k.warn(format!("Unable to listen on port {}: {e}", p.local)),
        }
    }
    if listening.is_empty() {
        let all: Vec<String> = pairs.iter().map(|p| format!("{{{} {}}}", p.local, p.remote)).collect();
        return text(format!("unable to listen on any of the requested ports: [{}]", all.join(" ")));
    }
    let mut serving = tokio::task::JoinSet::new();
    let (failed, mut has_failed) = mpsc::channel(1);
    for (l, remote) in listening {
        let Ok(at) = l.local_addr() else { continue };
        k.println(format!("Forwarding from {at} -> {remote}"));
        serving.spawn(accept(l, at.port(), remote, to.clone(), failed.clone()));
    }
    k.out.flush();
    tokio::select! {
        _ = tokio::signal::ctrl_c() => Ok(()),
        _ = serving.join_next() => text("lost connection to pod"),
        _ = has_failed.recv() => text("lost connection to pod"),
    }
}

/// Listens on an address. `localhost` is both loopback addresses, and one of them suffices.
async fn listen(addresses: &[String], port: u16) -> std::result::Result<Vec<TcpListener>, String> {
    let mut out: Vec<TcpListener> = Vec::new();
    let mut wrong = Vec::new();
    for a in addresses {
        let both = a == "localhost";
        let hosts: Vec<&str> = if both { vec!["127.0.0.1", "::1"] } else { vec![a] };
        let before = out.len();
        let mut failed = Vec::new();
        for host in hosts {
            // A port chosen by the system is the same on both addresses.
            let port = match out.get(before).and_then(|l| l.local_addr().ok()) {
                Some(first) if both => first.port(),
                _ => port,
            };
            match TcpListener::bind((host, port)).await {
                Ok(l) => out.push(l),
                Err(e) => {
                    let (net, shown) =
                        if host.contains(':') { ("tcp6", format!("[{host}]")) } else { ("tcp4", host.to_owned()) };
                    let why = os_message(&e);
                    failed.push(format!("unable to create listener: Error listen {net} {shown}:{port}: bind: {why}"));
                }
            }
        }
        if out.len() == before {
            wrong.extend(failed);
        }
    }
    if out.is_empty() {
        return Err(format!("Listeners failed to create with the following errors: [{}]", wrong.join(" ")));
    }
    Ok(out)
}

#[derive(Clone)]
struct To {
    api: Api<Object>,
    client: Client,
    rng: Arc<dyn Rng>,
    pod: String,
    out: Stream,
    err: Stream,
    clock: Arc<dyn Clock>,
    zone: TimeZone,
}

/// Forwards connections. `failed` receives the first error of the pod, because upstream then closes the connection to the
/// pod.
async fn accept(listener: TcpListener, local: u16, remote: u16, to: To, failed: mpsc::Sender<()>) {
    while let Ok((connection, _)) = listener.accept().await {
        to.out.write(format!("Handling connection for {local}\n").as_bytes());
        to.out.flush();
        let (to, failed) = (to.clone(), failed.clone());
        tokio::spawn(async move {
            if let Err(e) = forward(connection, remote, &to).await {
                let head = client::log::head('E', to.clock.now(), &to.zone, "portforward.go:522");
                let why = format!("an error occurred forwarding {local} -> {remote}: {e}");
                to.err.write(format!("{head}\"Unhandled Error\" err={why:?}\n").as_bytes());
                let _ = failed.try_send(());
            }
        });
    }
}

const DATA: u8 = 0;
const ERROR: u8 = 1;

/// How long to wait for data after the local side has closed its writing half; whether it still reads is unknown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

async fn forward(connection: TcpStream, remote: u16, to: &To) -> Result {
    let mut q = Query::default();
    q.add("ports", &remote.to_string());
    let request = to.api.subresource_request(Method::GET, &to.pod, "portforward", &q)?;
    let (ws, _) = socket(&to.client, &*to.rng, request, &[V4]).await?;
    copy(connection, ws).await
}

async fn copy(mut connection: TcpStream, ws: Socket) -> Result {
    let (mut to, mut from) = ws.split();
    let (mut input, mut output) = connection.split();
    let mut block = vec![0u8; 32 * 1024];
    // The first two bytes of each channel are the port.
    let mut port_headers = [2usize; 2];
    let mut open = true;
    loop {
        tokio::select! {
            read = input.read(&mut block[1..]), if open => match read {
                Ok(0) | Err(_) => open = false,
                Ok(n) => {
                    block[0] = DATA;
                    let frame = Message::Binary(bytes::Bytes::copy_from_slice(&block[..=n]));
                    if to.send(frame).await.is_err() {
                        break;
                    }
                }
            },
            m = from.next() => {
                let data = match m {
                    Some(Ok(Message::Binary(data))) => data,
                    Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                    Some(Ok(_)) => continue,
                };
                let Some((&channel @ (DATA | ERROR), mut rest)) = data.split_first() else { continue };
                let head = &mut port_headers[usize::from(channel)];
                let skipped = rest.len().min(*head);
                *head -= skipped;
                rest = &rest[skipped..];
                if rest.is_empty() {
                    continue;
                }
                if channel == ERROR {
                    return text(String::from_utf8_lossy(rest).into_owned());
                }
                if output.write_all(rest).await.is_err() {
                    break;
                }
            }
            () = tokio::time::sleep(DRAIN_TIMEOUT), if !open => break,
        }
    }
    let _ = to.close().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, shell, snapshot};
    use futures::{SinkExt, StreamExt};
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_tungstenite::tungstenite::Message;

    fn server() -> Server {
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "namespace": "default", "labels": {"x": "y"}}, "status": {"phase": "Running"},
            "spec": {"containers": [{"name": "c", "ports": [{"name": "web", "containerPort": 8080}, {"name": "dns", "containerPort": 53, "protocol": "UDP"}]}]}});
        let service = json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "s", "namespace": "default"},
            "spec": {"selector": {"x": "y"}, "ports": [{"name": "http", "port": 80, "targetPort": "web"}]}});
        Server::new()
            .on("GET /api/v1/namespaces/default/pods/a", 200, pod.clone())
            .on("GET /api/v1/namespaces/default/services/s", 200, service)
            .on("GET /api/v1/namespaces/default/pods?labelSelector=x%3Dy&limit=500", 200, json!({"items": [pod]}))
            .on_upgrade(|mut ws| {
                Box::pin(async move {
                    ws.send(Message::Binary(vec![0, 0x90, 0x1f].into())).await.unwrap();
                    ws.send(Message::Binary(vec![1, 0x90, 0x1f].into())).await.unwrap();
                    while let Some(Ok(Message::Binary(m))) = ws.next().await {
                        ws.send(Message::Binary([&[0], m[1..].to_ascii_uppercase().as_slice()].concat().into()))
                            .await
                            .unwrap();
                    }
                })
            })
    }

    #[tokio::test]
    async fn forwards_connections_to_the_pod() {
        tokio::task::LocalSet::new().run_until(connection()).await;
    }

    async fn connection() {
        let s = server();
        let (sh, out, err) = shell(&s, "", |_| None);
        let line = ["kubectl", "port-forward", "svc/s", ":http", "--address=127.0.0.1"].map(Into::into).to_vec();
        let task = tokio::task::spawn_local(crate::run(line, sh));
        let output = loop {
            tokio::task::yield_now().await;
            if out.text().ends_with('\n') {
                break out.text();
            }
            assert!(!task.is_finished(), "{}", err.text());
        };
        let at = output.strip_prefix("Forwarding from ").unwrap().strip_suffix(" -> 8080\n").unwrap().to_owned();
        let mut c = tokio::net::TcpStream::connect(&at).await.unwrap();
        c.write_all(b"hello").await.unwrap();
        let mut got = [0; 5];
        c.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"HELLO");
        let port = at.rsplit(':').next().unwrap();
        assert!(out.text().ends_with(&format!("Handling connection for {port}\n")), "{}", out.text());
        assert_eq!(s.requests().last().unwrap(), "GET /api/v1/namespaces/default/pods/a/portforward?ports=8080");
        task.abort();
    }

    /// Regression: the command continued after the pod had refused a connection.
    #[tokio::test]
    async fn refused_connection_ends_the_command() {
        tokio::task::LocalSet::new().run_until(refused()).await;
    }

    async fn refused() {
        let s = server().on_upgrade(|mut ws| {
            Box::pin(async move {
                let why = [&[1, 0x50, 0][..], b"refused"].concat();
                let _ = ws.send(Message::Binary(why.into())).await;
            })
        });
        let (sh, out, err) = shell(&s, "", |_| None);
        let line = ["kubectl", "port-forward", "a", ":80", "--address=127.0.0.1"].map(Into::into).to_vec();
        let task = tokio::task::spawn_local(crate::run(line, sh));
        let output = loop {
            tokio::task::yield_now().await;
            if out.text().ends_with('\n') {
                break out.text();
            }
            assert!(!task.is_finished(), "{}", err.text());
        };
        let at = output.strip_prefix("Forwarding from ").unwrap().strip_suffix(" -> 80\n").unwrap().to_owned();
        let _connection = tokio::net::TcpStream::connect(&at).await.unwrap();
        assert_eq!(task.await.unwrap(), 1);
        let port = at.rsplit(':').next().unwrap();
        let expected = format!(
            "portforward.go:522] \"Unhandled Error\" err=\"an error occurred forwarding {port} -> 80: refused\"\nerror: lost connection to pod\n"
        );
        assert!(err.text().ends_with(&expected), "{}", err.text());
    }

    #[tokio::test]
    async fn rejects_invalid_targets() {
        let s = server();
        let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = occupied.local_addr().unwrap().port();
        for (line, expected) in [
            ("port-forward a".to_owned(), "! error: TYPE/NAME and list of ports are required for port-forward\n! See 'kubectl port-forward -h' for help and examples\nexit 1\n".to_owned()),
            ("port-forward a dns".into(), "! error: UDP protocol is not supported for dns\nexit 1\n".into()),
            ("port-forward a x".into(), "! error: Pod 'a' does not have a named port 'x'\nexit 1\n".into()),
            ("port-forward svc/s 81".into(), "! error: Service s does not have a service port 81\nexit 1\n".into()),
            ("port-forward a :80 --address=bad".into(), "! error: bad is not a valid IP\nexit 1\n".into()),
            ("port-forward a x:80".into(), "! error: error parsing local port 'x': strconv.ParseUint: parsing \"x\": invalid syntax\nexit 1\n".into()),
            (
                format!("port-forward a {port}:80 --address=127.0.0.1"),
                format!("! Unable to listen on port {port}: Listeners failed to create with the following errors: [unable to create listener: Error listen tcp4 127.0.0.1:{port}: bind: address already in use]\n! error: unable to listen on any of the requested ports: [{{{port} 80}}]\nexit 1\n"),
            ),
        ] {
            assert_eq!(snapshot(&s, &line, "").await, expected, "{line}");
        }
    }
}
