//! What the tests share: a node in a network namespace of its own, joined to an "outside" namespace by a default route, so
//! that a packet which leaves by it is seen there and never reaches the machine's network.
#![allow(dead_code, clippy::unwrap_used)] // every test binary uses its part; a broken setup is a failed test

pub mod frames;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use network::*;

/// An address of IPv4.
pub const fn ip(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

/// The same, for frames.
pub fn v4(address: IpAddr) -> Ipv4Addr {
    match address {
        IpAddr::V4(address) => address,
        IpAddr::V6(address) => panic!("{address}"),
    }
}

pub const ANY: IpAddr = ip(0, 0, 0, 0);
pub const LOOPBACK: IpAddr = ip(127, 0, 0, 1);
pub const NODE: IpAddr = ip(192, 168, 77, 1);
pub const OUTSIDE: IpAddr = ip(192, 168, 77, 2);

pub const NODE6: &str = "fd77::1";
pub const OUTSIDE6: &str = "fd77::2";

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
            pod_ranges: "10.1.3.0/24".parse().unwrap(),
            cluster_ranges: "10.1.0.0/16".parse().unwrap(),
            service_ranges: "10.96.0.0/16".parse().unwrap(),
            load_balancer_ranges: Some("10.97.0.0/24".parse().unwrap()),
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

    /// The same with both families. The first one is that of IPv4.
    pub fn dual() -> Node {
        let mut this = Node::new();
        this.options.pod_ranges = "10.1.3.0/24,fd00:1:0:3::/64".parse().unwrap();
        this.options.cluster_ranges = "10.1.0.0/16,fd00:1::/56".parse().unwrap();
        this.options.service_ranges = "10.96.0.0/16,fd00:96::/112".parse().unwrap();
        this.options.load_balancer_ranges = Some("10.97.0.0/24,fd00:97::/120".parse().unwrap());
        for (end, address) in [(&this.node, NODE6), (&this.outside, OUTSIDE6)] {
            this.ip(end, &format!("addr add {address}/64 dev up0 nodad"));
        }
        this.ip(&this.node, &format!("-6 route add default via {OUTSIDE6}"));
        this
    }

    /// The same with IPv6 alone. The node has no other addresses, either.
    pub fn v6() -> Node {
        let mut this = Node::dual();
        this.options.pod_ranges = "fd00:1:0:3::/64".parse().unwrap();
        this.options.cluster_ranges = "fd00:1::/56".parse().unwrap();
        this.options.service_ranges = "fd00:96::/112".parse().unwrap();
        this.options.load_balancer_ranges = Some("fd00:97::/120".parse().unwrap());
        for end in [&this.node, &this.outside] {
            this.ip(end, "-4 addr flush dev up0");
        }
        this
    }

    /// Two nodes of a kind on one link, whose ends of the tunnel have these addresses. The second one has other ranges of pods.
    pub fn pair(make: fn() -> Node, second_ranges: &str, addresses: [IpAddr; 2]) -> [Node; 2] {
        let mut nodes = [make(), make()];
        nodes[1].options.pod_ranges = second_ranges.parse().unwrap();
        let [a, b] = &nodes;
        a.ip(&a.node, &format!("link add link0 type veth peer name link0 netns {}", b.node.display()));
        for (node, address) in nodes.iter_mut().zip(addresses) {
            node.options.tunnel = Some(address);
            let of_family = if address.is_ipv4() { "24 dev link0" } else { "64 dev link0 nodad" };
            node.ip(&node.node, "link set link0 addrgenmode none");
            node.ip(&node.node, &format!("addr add {address}/{of_family}"));
            node.ip(&node.node, "link set link0 up");
        }
        nodes
    }

    /// What other nodes know of this one.
    pub fn peer(&self) -> Peer {
        Peer { ranges: self.options.pod_ranges, address: self.options.tunnel.unwrap() }
    }

    pub fn ip(&self, namespace: &Path, args: &str) -> String {
        let net = format!("--net={}", namespace.display());
        run(Command::new("nsenter").arg(net).arg("ip").args(args.split(' ')))
    }

    pub fn nft(&self, args: &str) -> String {
        self.nft_in(&self.node, args)
    }

    pub fn nft_in(&self, namespace: &Path, args: &str) -> String {
        let net = format!("--net={}", namespace.display());
        run(Command::new("nsenter").arg(net).arg("/usr/sbin/nft").args(args.split(' ')))
    }

    pub fn service_options(&self) -> ServiceOptions {
        ServiceOptions {
            id: self.options.id.clone(),
            node_namespace: Some(self.node.clone()),
            cluster_ranges: self.options.cluster_ranges,
            service_ranges: self.options.service_ranges,
            load_balancer_ranges: self.options.load_balancer_ranges,
            own_ports: vec![HostPort { address: None, protocol: Protocol::Tcp, port: OWN_PORT, target: OWN_PORT }],
        }
    }

    pub async fn finish(self) {
        ServiceRules::purge(&self.service_options()).await.unwrap();
        PodNetwork::purge(&self.options).await.unwrap();
        assert_eq!(self.nft("list ruleset").trim(), "", "rules are left");
        let links = self.ip(&self.node, "-o link");
        assert!(!links.contains("kemudi") && !links.contains(": km"), "interfaces are left:\n{links}");
        let routes = self.ip(&self.node, "-6 route") + &self.ip(&self.node, "route");
        assert!(!routes.contains("fd00:"), "routes are left:\n{routes}");
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
    // On the addresses of both families.
    let listener = namespace::run_in(Some(namespace), || TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let peer = stream.peer_addr().unwrap().ip().to_canonical();
            let _ = write!(stream, "{name} {peer}");
        }
    });
}

/// Connects to a server and returns its reply.
pub fn read_reply(namespace: &Path, to: IpAddr, port: u16) -> std::io::Result<String> {
    namespace::run_in(Some(namespace), || {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::from((to, port)), Duration::from_secs(3))?;
        stream.set_read_timeout(Some(Duration::from_secs(3)))?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    })
}

/// Sends a datagram.
pub fn send(namespace: &Path, to: IpAddr, port: u16) -> std::io::Result<()> {
    namespace::run_in(Some(namespace), || UdpSocket::bind((ANY, 0))?.send_to(b"x", (to, port)).map(drop))
}

/// Packets that came out at the other end of the node's default route.
pub fn leaked(node: &Node) -> u64 {
    let text = node.ip(&node.outside, "-s -o link show up0");
    let received = text.split("RX:").nth(1).unwrap().split('\\').nth(1).unwrap();
    received.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}
