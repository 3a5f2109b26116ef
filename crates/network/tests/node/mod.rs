//! What the tests share: a node in a network namespace of its own, joined to an "outside" namespace by a default route, so
//! that a packet which leaves by it is seen there and never reaches the machine's network.
#![allow(dead_code, clippy::unwrap_used)] // every test binary uses its part; a broken setup is a failed test

pub mod frames;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use network::*;

pub const NODE: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 1);
pub const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 2);

/// A port that the node itself serves.
pub const OWN_PORT: u16 = 6443;

static NEXT: AtomicU32 = AtomicU32::new(0);

pub struct Node {
    pub directory: tempfile::TempDir,
    pub node: PathBuf,
    pub outside: PathBuf,
    pub options: Options,
}

impl Node {
    pub fn new() -> Node {
        assert!(nix::unistd::geteuid().is_root(), "these tests make network namespaces: run them as root");
        assert!(Path::new("/usr/sbin/nft").exists(), "these tests need nft: install nftables");
        let directory = tempfile::tempdir().unwrap();
        let (node, outside) = (directory.path().join("node"), directory.path().join("outside"));
        namespace::create(&node, || Ok(())).unwrap();
        namespace::create(&outside, || Ok(())).unwrap();
        let id = format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let options = Options {
            id,
            state_directory: directory.path().join("state"),
            namespace_directory: directory.path().join("pods"),
            node_namespace: Some(node.clone()),
            interfaces: network::PodInterfaces::Bridge,
            pod_range: "10.1.3.0/24".parse().unwrap(),
            cluster_range: "10.1.0.0/16".parse().unwrap(),
            service_range: "10.96.0.0/16".parse().unwrap(),
            load_balancer_range: Some("10.97.0.0/24".parse().unwrap()),
            tunnel: None,
            mtu: None,
            masquerade: true,
            forward: true,
        };
        let this = Node { directory, node, outside, options };
        let other = this.outside.to_str().unwrap().to_owned();
        this.ip(&this.node, "link set lo up");
        this.ip(&this.node, &format!("link add up0 type veth peer name up0 netns {other}"));
        // Without addresses of IPv6 nothing speaks there of its own accord, and what comes out can be counted.
        for end in [&this.node, &this.outside] {
            this.ip(end, "link set up0 addrgenmode none");
        }
        this.ip(&this.node, &format!("addr add {NODE}/24 dev up0"));
        this.ip(&this.node, "link set up0 up");
        this.ip(&this.outside, &format!("addr add {OUTSIDE}/24 dev up0"));
        this.ip(&this.outside, "link set up0 up");
        this.ip(&this.outside, "link set lo up");
        this.ip(&this.node, &format!("route add default via {OUTSIDE}"));
        this
    }

    pub fn ip(&self, namespace: &Path, args: &str) -> String {
        let net = format!("--net={}", namespace.display());
        run(Command::new("nsenter").arg(net).arg("ip").args(args.split(' ')))
    }

    pub fn nft(&self, args: &str) -> String {
        let net = format!("--net={}", self.node.display());
        run(Command::new("nsenter").arg(net).arg("/usr/sbin/nft").args(args.split(' ')))
    }

    pub fn service_options(&self) -> ServiceOptions {
        ServiceOptions {
            id: self.options.id.clone(),
            node_namespace: Some(self.node.clone()),
            cluster_range: self.options.cluster_range,
            service_range: self.options.service_range,
            load_balancer_range: self.options.load_balancer_range,
            own_ports: vec![HostPort { address: None, protocol: Protocol::Tcp, port: OWN_PORT, target: OWN_PORT }],
        }
    }

    pub async fn finish(self) {
        ServiceRules::purge(&self.service_options()).await.unwrap();
        PodNetwork::purge(&self.options).await.unwrap();
        assert_eq!(self.nft("list ruleset").trim(), "", "rules are left");
        let links = self.ip(&self.node, "-o link");
        assert!(!links.contains("kemudi") && !links.contains(": km"), "interfaces are left:\n{links}");
        let routes = self.ip(&self.node, "route");
        assert!(!routes.contains("10."), "routes are left:\n{routes}");
        namespace::remove(&self.node).unwrap();
        namespace::remove(&self.outside).unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(self.directory.path().to_str().unwrap()), "mounts are left:\n{mounts}");
    }
}

impl Drop for Node {
    /// For a test that failed; the kernel frees what was in the namespaces.
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.directory.path().join("pods")).into_iter().flatten().flatten() {
            let _ = namespace::remove(&entry.path());
        }
        let _ = namespace::remove(&self.node);
        let _ = namespace::remove(&self.outside);
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A server in a namespace that sends every client `name`, a space, and the client's address.
pub fn serve(namespace: &Path, port: u16, name: &'static str) {
    let listener = namespace::run_in(Some(namespace), || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let peer = stream.peer_addr().unwrap().ip();
            let _ = write!(stream, "{name} {peer}");
        }
    });
}

/// Connects to a server and returns its reply.
pub fn read_reply(namespace: &Path, to: Ipv4Addr, port: u16) -> std::io::Result<String> {
    namespace::run_in(Some(namespace), || {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::from((to, port)), Duration::from_secs(3))?;
        stream.set_read_timeout(Some(Duration::from_secs(3)))?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    })
}

/// Sends a datagram.
pub fn send(namespace: &Path, to: Ipv4Addr, port: u16) -> std::io::Result<()> {
    namespace::run_in(Some(namespace), || {
        UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?.send_to(b"x", (to, port)).map(drop)
    })
}

/// Packets that came out at the other end of the node's default route.
pub fn leaked(node: &Node) -> u64 {
    let text = node.ip(&node.outside, "-s -o link show up0");
    let received = text.split("RX:").nth(1).unwrap().split('\\').nth(1).unwrap();
    received.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The address of IPv4 of a pod.
pub trait V4 {
    fn v4(&self) -> Ipv4Addr;
}

impl V4 for Attachment {
    fn v4(&self) -> Ipv4Addr {
        match self.address() {
            std::net::IpAddr::V4(address) => address,
            std::net::IpAddr::V6(address) => panic!("{address}"),
        }
    }
}
