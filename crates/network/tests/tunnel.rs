//! Pods of two nodes, whose networks are joined by the tunnel.
#![allow(clippy::unwrap_used)] // helpers of tests

mod node;

use network::*;
use node::{NODE, Node, ip, read_reply, serve};
use std::net::{IpAddr, UdpSocket};

const A: IpAddr = ip(192, 168, 78, 1);
const B: IpAddr = ip(192, 168, 78, 2);

/// Two nodes on one link, with the ranges 10.1.3.0/24 and 10.1.4.0/24.
fn pair() -> [Node; 2] {
    Node::pair(Node::new, "10.1.4.0/24", [A, B])
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_two_nodes_reach_each_other() {
    let [a, b] = pair();
    let [first, second] =
        [PodNetwork::open(a.options.clone()).await.unwrap(), PodNetwork::open(b.options.clone()).await.unwrap()];
    let (client, server) = (first.attach("client").await.unwrap(), second.attach("server").await.unwrap());
    serve(&server.namespace, 80, "server");
    assert!(read_reply(&client.namespace, server.address(), 80).is_err(), "there is no peer yet");
    first.set_peers(&[b.peer()]).await.unwrap();
    assert!(read_reply(&client.namespace, server.address(), 80).is_err(), "the other node knows no peer");
    second.set_peers(&[a.peer()]).await.unwrap();
    assert_eq!(read_reply(&client.namespace, server.address(), 80).unwrap(), format!("server {}", client.address()));
    assert_eq!(read_reply(&a.node, server.address(), 80).unwrap(), "server 10.1.3.0", "from the node itself");

    // Services send to endpoints of both nodes, and to those of the other node alone.
    let rules = ServiceRules::open(a.service_options()).unwrap();
    let web = ServicePort {
        name: "default/web:http".into(),
        cluster_ip: "10.96.0.10".parse().unwrap(),
        protocol: Protocol::Tcp,
        port: 8080,
        node_port: Some(30080),
        external_ips: vec![],
        load_balancer_ips: vec![],
        source_ranges: vec![],
        endpoints: vec![Endpoint { address: server.address(), port: 80, cluster: true, local: false }],
        affinity: Affinity::None,
        internal_policy: Policy::Cluster,
        external_policy: Policy::Cluster,
    };
    rules.apply(&[web]).await.unwrap();
    let service = "10.96.0.10".parse().unwrap();
    assert_eq!(read_reply(&client.namespace, service, 8080).unwrap(), format!("server {}", client.address()));
    assert_eq!(read_reply(&a.outside, NODE, 30080).unwrap(), "server 10.1.3.0", "a node port");

    // A second process adopts the tunnel, and removes what is no peer any more.
    drop(first);
    let first = PodNetwork::open(a.options.clone()).await.unwrap();
    first.set_peers(&[b.peer()]).await.unwrap();
    assert_eq!(read_reply(&client.namespace, server.address(), 80).unwrap(), format!("server {}", client.address()));
    drop(first);
    let first = PodNetwork::open(a.options.clone()).await.unwrap();
    first.set_peers(&[]).await.unwrap();
    assert!(read_reply(&client.namespace, server.address(), 80).is_err(), "the peer is gone");
    assert!(!a.ip(&a.node, "route").contains("10.1.4.0/24"));
    ServiceRules::purge(&a.service_options()).await.unwrap();
    drop((first, second));
    a.finish().await;
    b.finish().await;
}

/// Pods cannot forge packets of other nodes, and neither can strangers on the link.
#[tokio::test(flavor = "multi_thread")]
async fn only_peers_send_into_the_tunnel() {
    let [a, b] = pair();
    let first = PodNetwork::open(a.options.clone()).await.unwrap();
    let second = PodNetwork::open(b.options.clone()).await.unwrap();
    let pod = first.attach("pod").await.unwrap();
    second.set_peers(&[a.peer()]).await.unwrap();
    let counted = |chain: &str, rule: usize| {
        let id = &b.options.id;
        let rules = b.nft(&format!("list chain ip kemudi-tunnel-{id} {chain}"));
        rules.split("packets ").nth(rule).unwrap().split(' ').next().unwrap().parse::<u32>().unwrap()
    };
    let dropped = |chain: &str| counted(chain, 1);
    let send_to = |from: &std::path::Path, port: u16| {
        namespace::run_in(Some(from), || UdpSocket::bind("0.0.0.0:0")?.send_to(&[8, 0, 0, 0, 0, 0, 1, 0], (B, port)))
            .unwrap();
    };
    let send = |from: &std::path::Path| send_to(from, TUNNEL_PORT);
    send(&pod.namespace);
    send(&a.node);
    assert_eq!(dropped("arriving"), 0, "the pod's packet was dropped by its node, and the node's is a peer's");
    let id = &a.options.id;
    assert!(a.nft(&format!("list chain ip kemudi-tunnel-{id} of-pods")).contains("packets 1 "));
    a.ip(&a.node, "addr add 192.168.78.9/24 dev link0");
    namespace::run_in(Some(&a.node), || UdpSocket::bind("192.168.78.9:0")?.send_to(b"forged", (B, TUNNEL_PORT)))
        .unwrap();
    assert_eq!(dropped("arriving"), 1, "a stranger");
    // A service whose endpoint is the tunnel: pods reach its port by that of the node, with the address of a peer.
    b.nft("add table ip forged");
    b.nft("add chain ip forged pre { type nat hook prerouting priority -100 ; }");
    b.nft(&format!("add rule ip forged pre udp dport 30000 redirect to :{TUNNEL_PORT}"));
    send_to(&a.node, 30_000);
    assert_eq!((dropped("arriving"), counted("arriving", 2)), (1, 1), "a packet that was translated");
    b.nft("delete table ip forged");
    drop((first, second));
    a.finish().await;
    b.finish().await;
}

/// A node writes its addresses into the API itself.
#[tokio::test(flavor = "multi_thread")]
async fn false_peers_are_skipped() {
    let [a, b] = pair();
    let network = PodNetwork::open(a.options.clone()).await.unwrap();
    let good = b.peer();
    let with = |range: &str, address: &str| Peer { ranges: range.parse().unwrap(), address: address.parse().unwrap() };
    let bad = [
        with("10.1.3.0/24", "192.168.78.3"),
        with("10.1.0.0/16", "192.168.78.3"),
        with("10.0.0.0/8", "192.168.78.3"),
        with("192.168.0.0/24", "192.168.78.3"),
        with("10.1.5.0/24", "10.1.3.9"),
        with("10.1.5.0/24", "10.96.0.1"),
        with("10.1.5.0/24", "127.0.0.1"),
        with("10.1.5.0/24", "0.0.0.0"),
    ];
    // Younger nodes that claim the range of another one, or a part of it.
    let thieves = [with("10.1.4.0/24", "192.168.78.9"), with("10.1.4.0/25", "192.168.78.9")];
    network.set_peers(&[&bad[..], &[good], &thieves].concat()).await.unwrap();
    let device = format!("kemvx-{}", a.options.id);
    let routes = a.ip(&a.node, "route");
    let through: Vec<&str> = routes.lines().filter(|l| l.contains(&device)).collect();
    assert_eq!(through.len(), 1, "{routes}");
    assert!(through[0].starts_with("10.1.4.0/24 via 10.1.4.0"), "{routes}");
    let net = format!("--net={}", a.node.display());
    let forwarding =
        std::process::Command::new("nsenter").args([&net, "bridge", "fdb", "show", "dev", &device]).output().unwrap();
    let forwarding = String::from_utf8(forwarding.stdout).unwrap();
    assert!(forwarding.contains(&B.to_string()) && !forwarding.contains("192.168.78.9"), "{forwarding}");
    drop(network);
    a.finish().await;
    b.finish().await;
}
