//! A pod with `NET_RAW` that forges addresses: hardware addresses, ARP, source addresses.
#![allow(clippy::unwrap_used)] // helpers of tests

mod node;

use std::collections::BTreeSet;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use network::*;
use node::frames::{Attack, FALSE, Wire};
use node::{ANY, LOOPBACK, Node, ip, read_reply, serve, v4};

const PORT: u16 = 5999;

/// Datagrams as a server in a namespace has got them. It sends each back.
type Received = Arc<Mutex<Vec<(IpAddr, Vec<u8>)>>>;

fn echo(namespace: &Path, on: IpAddr) -> Received {
    let socket = namespace::run_in(Some(namespace), || UdpSocket::bind((on, PORT))).unwrap();
    let all = Received::default();
    let seen = all.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 100];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            seen.lock().unwrap().push((from.ip(), buffer[..length].to_vec()));
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    all
}

/// Sends a datagram and waits for it to come back.
fn exchange(socket: &UdpSocket, to: IpAddr, text: &[u8]) -> bool {
    socket.send_to(text, (to, PORT)).unwrap();
    let mut buffer = [0; 100];
    socket.recv(&mut buffer).is_ok_and(|n| &buffer[..n] == text)
}

fn client(namespace: &Path) -> UdpSocket {
    let socket = namespace::run_in(Some(namespace), || UdpSocket::bind((ANY, 0))).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    socket
}

/// Two pods talk to each other and to the node, while a third does what it can.
async fn attack(node: &Node, network: &PodNetwork) {
    let [attacker, server, friend] =
        [network.attach("evil").await, network.attach("server").await, network.attach("friend").await]
            .map(Result::unwrap);
    let gateway = network.gateway();
    // Another program of the machine may have allowed it for all devices.
    namespace::set(Some(&node.node), vec![("ipv4/conf/all/route_localnet".into(), "1".into())]).await.unwrap();
    // So that the node's own clients reach the server by its loopback.
    let port = HostPort { address: None, protocol: Protocol::Tcp, port: 7000, target: 80 };
    network.publish("server", &[port]).await.unwrap();
    serve(&server.namespace, 80, "server");
    let received = [(&server.namespace, ANY), (&node.node, gateway), (&node.node, LOOPBACK)]
        .map(|(namespace, on)| echo(namespace, on));
    let everybody = ANY;
    let friends = [echo(&friend.namespace, everybody)];
    let wire = namespace::run_in(Some(&attacker.namespace), || Wire::open("eth0")).unwrap();
    let plan = Attack {
        own: v4(attacker.address()),
        gateway: v4(gateway),
        victims: vec![v4(server.address()), v4(friend.address())],
    };
    let (own, theirs) = (client(&attacker.namespace), client(&friend.namespace));
    let (mut lost, mut overheard) = (0, 0);
    for round in 0..20 {
        plan.takeover().iter().for_each(|f| wire.send(f));
        for to in [server.address(), gateway] {
            lost += u32::from(!exchange(&theirs, to, format!("secret {round}").as_bytes()));
        }
        let requested = read_reply(&friend.namespace, server.address(), 80);
        lost += u32::from(requested.ok() != Some(format!("server {}", friend.address())));
        plan.false_sources(PORT).iter().for_each(|f| wire.send(f));
        // Afterwards the attacker can still send with its own address.
        for to in [server.address(), friend.address(), gateway] {
            lost += u32::from(!exchange(&own, to, b"own"));
        }
        overheard += wire.received_for_others(v4(attacker.address())).len();
    }
    let false_ones: Vec<_> = received
        .iter()
        .chain(&friends)
        .map(|r| {
            let all = r.lock().unwrap();
            all.iter().filter(|(_, text)| text == FALSE).map(|(from, _)| *from).collect::<BTreeSet<_>>()
        })
        .collect();
    assert_eq!(
        (lost, overheard, false_ones),
        (0, 0, vec![BTreeSet::new(); 4]),
        "lost, overheard, and who was believed"
    );
    namespace::set(Some(&node.node), vec![("ipv4/conf/all/route_localnet".into(), "0".into())]).await.unwrap();
}

/// What is bridged passes the rules for routed packets, or not (`br_netfilter`).
async fn with_bridge_filter(value: &'static str) {
    let node = Node::new();
    if Path::new("/proc/sys/net/bridge").exists() {
        namespace::set(Some(&node.node), vec![("bridge/bridge-nf-call-iptables".into(), value.into())]).await.unwrap();
    }
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    attack(&node, &network).await;
    // The service rules work as before, also for a pod that reaches itself.
    let rules = ServiceRules::open(node.service_options()).unwrap();
    let [server, friend] = [network.attach("server").await, network.attach("friend").await].map(Result::unwrap);
    let ip = ip(10, 96, 0, 10);
    let endpoint = Endpoint { address: server.address(), port: 80, cluster: true, local: true };
    let service = ServicePort {
        name: "default/web:http".into(),
        cluster_ip: ip,
        protocol: Protocol::Tcp,
        port: 8080,
        node_port: None,
        external_ips: vec![],
        load_balancer_ips: vec![],
        source_ranges: vec![],
        endpoints: vec![endpoint],
        affinity: Affinity::None,
        internal_policy: Policy::Cluster,
        external_policy: Policy::Cluster,
    };
    rules.apply(&[service]).await.unwrap();
    assert_eq!(read_reply(&friend.namespace, ip, 8080).unwrap(), format!("server {}", friend.address()));
    assert!(read_reply(&server.namespace, ip, 8080).unwrap().starts_with("server "));
    assert!(read_reply(&node.node, ip, 8080).unwrap().starts_with("server "));
    // An address that is used again is its new owner's.
    network.detach("server").await.unwrap();
    assert!(!node.ip(&node.node, "neigh show nud permanent").contains(&server.address().to_string()));
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_cannot_forge_addresses() {
    with_bridge_filter("0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_cannot_forge_addresses_with_bridge_filter() {
    with_bridge_filter("1").await;
}

/// Ports as they were before: named by the pod's id, learning, open to all.
#[tokio::test(flavor = "multi_thread")]
async fn ports_of_earlier_versions_are_brought_up_to_date() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let attachments = [network.attach("evil").await, network.attach("server").await].map(Result::unwrap);
    drop(network);
    let table = format!("kemudi-pods-{}", node.options.id);
    node.nft(&format!("delete table bridge {table}"));
    let mut names = Vec::new();
    for (pod, attachment) in ["evil", "server"].into_iter().zip(&attachments) {
        let hash = pod.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        let former = format!("km{:013x}", hash & 0xf_ffff_ffff_ffff);
        let name = format!("km{:08x}", u32::from(v4(attachment.address())));
        for change in [
            format!("link set {name} down"),
            format!("link set {name} name {former}"),
            format!("link set {former} up"),
            format!(
                "link set {former} type bridge_slave learning on locked off flood on mcast_flood on bcast_flood on"
            ),
            format!("neigh flush dev {} nud permanent", node.options.bridge()),
        ] {
            node.ip(&node.node, &change);
        }
        names.push(name);
    }
    node.ip(&node.node, "link add kmlost type veth peer name other");
    node.ip(&node.node, &format!("link set kmlost master {}", node.options.bridge()));

    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    for (name, attachment) in names.iter().zip(&attachments) {
        let port = node.ip(&node.node, &format!("-d link show {name}"));
        for setting in ["learning off", "locked on", " flood off", "mcast_flood off", "bcast_flood off", "hairpin on"] {
            assert!(port.contains(setting), "{setting}:\n{port}");
        }
        let known = node.ip(&node.node, &format!("neigh show {}", attachment.address()));
        assert!(known.contains("PERMANENT"), "{known}");
    }
    assert!(!node.ip(&node.node, "-o link").contains("kmlost"), "a port of no pod stayed");
    assert_eq!(network.attach("evil").await.unwrap(), attachments[0], "its namespace is the same");
    attack(&node, &network).await;
    node.finish().await;
}
