//! The kubelet's API, from inside a pod and from a service account with too few permissions.

use crate::connections::{PATIENCE, head};
use crate::runner::Case;
use crate::story::Story;
use ::network::namespace::run_in;
use client::https::{ClientIdentity, Roots};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustls::ClientConfig;
use serde_json::json;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub const TESTS: &[Case] = &[
    ("kubelet::nobody_gets_in_without_credentials", nobody),
    ("kubelet::accounts_see_what_their_roles_allow", roles),
    ("kubelet::silent_connections_stop_nothing", silence),
    ("kubelet::tokens_of_nobody_stop_nothing", tokens),
];

const FOREVER: &str = "echo ready; trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// A pod of an attacker, and the address of the node agent.
struct Attacker {
    namespace: PathBuf,
    agent: SocketAddr,
}

impl Attacker {
    fn start(s: &Story) -> Self {
        Self::start_as(s, "attacker")
    }

    fn start_as(s: &Story, name: &str) -> Self {
        // With a share of the processor: a program in it must not wait for the attack, which works on the same processors.
        s.shell_pod(name, FOREVER, json!({}), json!({"resources": {"requests": {"cpu": "150m"}}}));
        let pod = s.ready(name);
        let node = s.get_at("/api/v1/nodes/e2e");
        let addresses = node["status"]["addresses"].as_array().unwrap();
        let own = addresses.iter().find(|a| a["type"] == "InternalIP").unwrap()["address"].as_str().unwrap();
        let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64().unwrap();
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        let namespace = s.cluster.directory.join("data/netns").join(uid);
        Self { namespace, agent: format!("{own}:{port}").parse().unwrap() }
    }

    fn tcp(&self) -> TcpStream {
        self.dial(Duration::from_secs(10)).unwrap()
    }

    fn dial(&self, limit: Duration) -> std::io::Result<TcpStream> {
        let dial = || std::net::TcpStream::connect_timeout(&self.agent, limit);
        let socket = run_in(Some(&self.namespace), dial)?;
        socket.set_nonblocking(true)?;
        TcpStream::from_std(socket)
    }

    async fn tls(&self) -> std::io::Result<TlsStream<TcpStream>> {
        self.tls_as(client::https::unverified().unwrap()).await
    }

    async fn tls_as(&self, config: Arc<ClientConfig>) -> std::io::Result<TlsStream<TcpStream>> {
        self.tls_over(config, self.tcp()).await
    }

    async fn tls_over(&self, config: Arc<ClientConfig>, socket: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        let name = rustls::pki_types::ServerName::try_from(self.agent.ip().to_string()).unwrap();
        TlsConnector::from(config).connect(name, socket).await
    }

    /// Returns status code and body of the response. Without a token if `token` is empty.
    async fn response(&self, method: &str, path: &str, token: &str) -> (u16, String) {
        let c = timeout(PATIENCE, self.tls()).await.unwrap().unwrap();
        Self::response_over(c, method, path, token).await
    }

    async fn response_over(mut c: TlsStream<TcpStream>, method: &str, path: &str, token: &str) -> (u16, String) {
        let mut text = head(method, path, token, 0).replacen("\r\n", "\r\nConnection: close\r\n", 1);
        if token.is_empty() {
            text = text.replace("Authorization: Bearer \r\n", "");
        }
        c.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = timeout(PATIENCE, c.read_to_end(&mut answer)).await.unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let code = answer.get(9..12).and_then(|c| c.parse().ok()).unwrap_or_else(|| panic!("{path}: {answer:?}"));
        (code, answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned())
    }
}

fn paths(ns: &str) -> Vec<(&'static str, String)> {
    let get = ["/healthz", "/pods", "/runningpods/", "/configz", "/logs/", "/stats/summary", "/metrics", "/", "/none"];
    let more =
        ["/metrics/resource", "/metrics/cadvisor", "/metrics/probes", "/debug/pprof/", "//pods", "/stats/../pods"];
    let of_pod = |m, p: &str| (m, format!("/{p}/{ns}/attacker/c?cmd=id&command=id&stdout=true"));
    let pods = [("GET", "containerLogs"), ("GET", "exec"), ("POST", "exec"), ("POST", "attach"), ("POST", "run")];
    let pods = pods.map(|(m, p)| of_pod(m, p));
    let forward = [("POST", format!("/portForward/{ns}/attacker"))];
    get.into_iter().chain(more).map(|p| ("GET", p.to_owned())).chain(pods).chain(forward).collect()
}

fn nobody(s: &Story) {
    let attacker = Attacker::start(s);
    let account = s.ok(&["create", "token", "default"]);
    let foreign = foreign_token();
    let authority = std::fs::read(s.cluster.directory.join("data/pki/ca.crt")).unwrap();
    s.cluster.runtime.block_on(async {
        for (method, path) in paths(&s.ns) {
            for token in ["", "nobody", foreign] {
                let (code, body) = attacker.response(method, &path, token).await;
                assert_eq!((code, body.as_str()), (401, "Unauthorized"), "{method} {path} with {token:?}");
            }
            // The pod's own account may do nothing here.
            let (code, body) = attacker.response(method, &path, account.trim()).await;
            assert_eq!(code, 403, "{method} {path}: {body}");
            let user = format!("Forbidden (user=system:serviceaccount:{}:default, verb=", s.ns);
            assert!(body.starts_with(&user), "{method} {path}: {body}");
            // A certificate with an administrator's name, signed by an unknown CA.
            let config = client::https::mutual(Roots::Pem(authority.clone()), self_signed()).unwrap();
            let c = attacker.tls_as(config).await.unwrap();
            assert_eq!(
                Attacker::response_over(c, method, &path, "").await,
                (401, "Unauthorized".into()),
                "{method} {path}"
            );
        }
    });
}

fn self_signed() -> ClientIdentity {
    let key = KeyPair::generate().unwrap();
    let mut p = CertificateParams::default();
    p.distinguished_name.push(DnType::OrganizationName, "system:masters");
    p.distinguished_name.push(DnType::CommonName, "kube-apiserver-kubelet-client");
    p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = p.self_signed(&key).unwrap();
    ClientIdentity { certificates: certificate.pem().into_bytes(), key: key.serialize_pem().into_bytes() }
}

/// A token in the form of a service account token, with an invalid signature.
fn foreign_token() -> &'static str {
    "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJodHRwczovL2t1YmVybmV0ZXMuZGVmYXVsdC5zdmMuY2x1c3Rlci5sb2NhbCIsInN1YiI6InN5c3RlbTphZG1pbiJ9.AAAA"
}

/// `KubeletFineGrainedAuthz`: who may see pods may not run anything in them.
fn roles(s: &Story) {
    let attacker = Attacker::start(s);
    let all = ["/pods", "/healthz", "/configz", "/stats/summary", "/metrics", "/logs/", "/debug/pprof/"];
    for (subresource, verb, allowed) in [
        ("pods", "get", &["/pods"][..]),
        ("healthz", "get", &["/healthz"]),
        ("configz", "get", &["/configz"]),
        ("stats", "get", &["/stats/summary"]),
        ("metrics", "get", &["/metrics"]),
        ("log", "get", &["/logs/"]),
        ("proxy", "get", &["/pods", "/healthz", "/configz", "/debug/pprof/"]),
        ("proxy", "create", &[]),
    ] {
        let name = format!("{subresource}-{verb}");
        let role = format!("{}-{name}", s.ns);
        s.ok(&["create", "serviceaccount", &name]);
        let resource = format!("--resource=nodes/{subresource}");
        s.ok(&["create", "clusterrole", &role, &format!("--verb={verb}"), &resource]);
        let account = format!("--serviceaccount={}:{name}", s.ns);
        s.ok(&["create", "clusterrolebinding", &role, &format!("--clusterrole={role}"), &account]);
        let token = s.ok(&["create", "token", &name]);
        s.cluster.runtime.block_on(async {
            for path in all {
                let (code, body) = attacker.response("GET", path, token.trim()).await;
                assert_eq!(code != 403, allowed.contains(&path), "{path} by {name}: {code} {body}");
            }
            let run = format!("/run/{}/attacker/c?cmd=id", s.ns);
            let (code, body) = attacker.response("POST", &run, token.trim()).await;
            assert_eq!(code != 403, (subresource, verb) == ("proxy", "create"), "run by {name}: {code} {body}");
        });
        s.ok(&["delete", "clusterrole", &role]);
        s.ok(&["delete", "clusterrolebinding", &role]);
    }
}

/// A pod without a part in the attack: what is executed in it does not share the processor time of the attacker's pod.
fn start_bystander(s: &Story) {
    let _idle = Attacker::start_as(s, "bystander");
    s.logged("bystander", "ready");
}

/// What users need of the agent, while there is an attack.
fn others_are_served(s: &Story) {
    for command in [&["logs", "bystander"][..], &["exec", "bystander", "--", "echo", "ready"]] {
        let begun = Instant::now();
        assert_eq!(s.ok(command), "ready\n", "{command:?}");
        // The attack runs on the same processors, and starting a process takes several turns: usually milliseconds, 29 s at worst on a
        // machine that had other work.
        assert!(begun.elapsed() < PATIENCE, "{command:?} took {:?}", begun.elapsed());
    }
}

/// More silent connections of a pod than the listener accepts: before TLS, after it, and within a request.
fn silence(s: &Story) {
    // The node limits the connections of a pod: several share the attack, and another one asks at the end.
    let attackers = ["attacker", "second", "third"].map(|name| Attacker::start_as(s, name));
    let client = Attacker::start_as(s, "client");
    start_bystander(s);
    s.logged("attacker", "ready");
    let silent = s.cluster.runtime.block_on(async {
        let mut silent: Vec<Box<dyn Send>> = Vec::new();
        for n in 0..1500 {
            let attacker = &attackers[n / 3 % attackers.len()];
            // A connection that is refused, or closed for another one, is an attack that failed already.
            let Ok(socket) = attacker.dial(Duration::from_secs(2)) else { continue };
            if n % 3 == 0 {
                silent.push(Box::new(socket));
                continue;
            }
            let tls = attacker.tls_over(client::https::unverified().unwrap(), socket);
            let Ok(Ok(mut c)) = timeout(PATIENCE, tls).await else { continue };
            if n % 3 == 2 {
                let _ = c.write_all(b"POST /run/a/b/c HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx").await;
            }
            silent.push(Box::new(c));
        }
        silent
    });
    assert!(silent.len() > 1000, "there was no attack: {} connections", silent.len());
    others_are_served(s);
    let token = s.ok(&["create", "token", "default"]);
    let (code, _) = s.cluster.runtime.block_on(client.response("GET", "/pods", token.trim()));
    assert_eq!(code, 403, "the agent answers");
}

/// Many tokens at a time, all different, each of which needs a TokenReview.
fn tokens(s: &Story) {
    let attacker = Arc::new(Attacker::start(s));
    start_bystander(s);
    s.logged("attacker", "ready");
    // Dropped when this test ends, however it ends: the attack must not go on beside the others.
    let (running, ended) = tokio::sync::watch::channel(());
    let attack: Vec<_> = (0..32)
        .map(|n| {
            let (attacker, ended) = (attacker.clone(), ended.clone());
            s.cluster.runtime.spawn(async move {
                let (mut sent, mut refused) = (0u32, 0u32);
                while ended.has_changed().is_ok() {
                    // The node refuses connections of a pod that has very many.
                    let Ok(socket) = attacker.dial(Duration::from_secs(2)) else {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        continue;
                    };
                    let c = attacker.tls_over(client::https::unverified().unwrap(), socket);
                    let c = timeout(PATIENCE, c).await.unwrap().unwrap();
                    let (code, _) = Attacker::response_over(c, "GET", "/pods", &format!("{n}-{sent}")).await;
                    assert!(matches!(code, 401 | 429), "{code}");
                    sent += 1;
                    refused += u32::from(code == 401);
                }
                refused
            })
        })
        .collect();
    others_are_served(s);
    others_are_served(s);
    drop(running);
    let refused: u32 = s.cluster.runtime.block_on(async {
        let mut sum = 0;
        for a in attack {
            sum += a.await.unwrap();
        }
        sum
    });
    assert!(refused > 0, "there was no attack");
}
