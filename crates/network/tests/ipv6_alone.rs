//! Pods and services with addresses of IPv6 alone, in network namespaces without any of IPv4. Needs root and `nft`.
#![allow(clippy::unwrap_used)] // a broken setup is a failed test

mod node;

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;

use network::policies::{self, Block, Peers, PodPolicy, PolicyRules, Ports, Rule};
use network::*;
use node::{NODE6, Node, OUTSIDE6, read_reply, serve};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Services with a node port and a load balancer, host ports, policies and the way out.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_needs_no_address_of_ipv4() {
    let node = Node::v6();
    namespace::run_in(Some(&node.node), || std::fs::write("/proc/sys/net/ipv4/ip_forward", "0")).unwrap();
    let learns = || std::fs::read_to_string("/proc/sys/net/ipv6/conf/default/accept_ra");
    let learns = || namespace::run_in(Some(&node.node), learns).unwrap();
    let before = learns();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    assert_eq!(learns(), before, "devices that come later learn no routes because this node forwards");
    let [a, b] = [network.attach("a").await, network.attach("b").await].map(Result::unwrap);
    assert_eq!((a.address(), b.addresses.as_slice()), (ip("fd00:1:0:3::2"), [ip("fd00:1:0:3::3")].as_slice()));
    serve(&b.namespace, 80, "b");
    serve(&node.outside, 82, "outside");
    let own = node.ip(&a.namespace, "-4 -o addr show dev eth0");
    assert_eq!(own.trim(), "", "the pod has no other address");
    let forwarding = |name: &str| {
        let path = format!("/proc/sys/net/ipv4/{name}");
        namespace::run_in(Some(&node.node), || std::fs::read_to_string(path)).unwrap().trim().to_owned()
    };
    let bridge = format!("conf/{}/forwarding", node.options.bridge());
    assert_eq!((forwarding("ip_forward"), forwarding(&bridge)), ("0".into(), "0".into()), "IPv4 is not forwarded");
    let rules = ServiceRules::open(node.service_options()).unwrap();
    let web = ServicePort {
        name: "default/web:http".into(),
        cluster_ip: ip("fd00:96::10"),
        protocol: Protocol::Tcp,
        port: 8080,
        node_port: Some(30080),
        external_ips: vec![],
        load_balancer_ips: vec![ip("fd00:97::1")],
        source_ranges: vec![],
        endpoints: vec![Endpoint { address: b.address(), port: 80, cluster: true, local: true }],
        affinity: Affinity::None,
        internal_policy: Policy::Cluster,
        external_policy: Policy::Cluster,
    };
    rules.apply(&[web]).await.unwrap();
    let published = HostPort { address: None, protocol: Protocol::Tcp, port: 9090, target: 80 };
    network.publish("b", &[published]).await.unwrap();
    for round in ["first", "after a restart"] {
        assert_eq!(read_reply(&a.namespace, b.address(), 80).unwrap(), "b fd00:1:0:3::2", "{round}");
        assert_eq!(read_reply(&node.node, b.address(), 80).unwrap(), "b fd00:1:0:3::1", "{round}");
        assert_eq!(read_reply(&a.namespace, ip("fd00:96::10"), 8080).unwrap(), "b fd00:1:0:3::2", "{round}");
        assert_eq!(read_reply(&b.namespace, ip("fd00:96::10"), 8080).unwrap(), "b fd00:1:0:3::1", "{round}: to itself");
        assert_eq!(read_reply(&a.namespace, ip("fd00:97::1"), 8080).unwrap(), "b fd00:1:0:3::1", "{round}");
        assert_eq!(read_reply(&node.outside, ip(NODE6), 30080).unwrap(), "b fd00:1:0:3::1", "{round}");
        assert_eq!(read_reply(&node.outside, ip(NODE6), 9090).unwrap(), format!("b {OUTSIDE6}"), "{round}");
        assert_eq!(read_reply(&a.namespace, ip(OUTSIDE6), 82).unwrap(), format!("outside {NODE6}"), "{round}");
        drop(PodNetwork::open(node.options.clone()).await.unwrap());
    }
    assert!(read_reply(&a.namespace, ip("fd00:96::11"), 8080).is_err(), "no service has this address");

    let options = policies::Options {
        id: node.options.id.clone(),
        node_namespace: Some(node.node.clone()),
        bridge: node.options.bridge(),
        dns: None,
        families: node.options.pod_ranges.families().collect(),
    };
    let policy = PolicyRules::open(options.clone()).unwrap();
    let allowed = Block { cidr: "fd00:1::/56".parse().unwrap(), except: vec![Cidr::single(a.address())] };
    let peers = Peers::These(vec![policies::Peer::Block(allowed)]);
    let ingress = Some(vec![Arc::new(Rule { peers, ports: Ports::Any, endpoints: None })]);
    let c = network.attach("c").await.unwrap();
    let open = |pod: &Attachment| PodPolicy { addresses: pod.addresses.clone(), ingress: None, egress: None };
    policy.apply(Some(&[PodPolicy { ingress, ..open(&b) }, open(&a), open(&c)])).await.unwrap();
    let reaches = |from: &Attachment| read_reply(&from.namespace, b.address(), 80).is_ok();
    assert_eq!((reaches(&a), reaches(&c)), (false, true));
    PolicyRules::purge(&options).await.unwrap();
    assert!(reaches(&a));

    // A pod does not send with the address of another one.
    let receiver = namespace::run_in(Some(&b.namespace), || UdpSocket::bind("[::]:5000")).unwrap();
    receiver.set_read_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
    node.ip(&a.namespace, &format!("addr add {}/128 dev eth0 nodad", c.address()));
    for (own, arrives) in [(a.address(), true), (c.address(), false)] {
        let send = || UdpSocket::bind((own, 0))?.send_to(b"x", (b.address(), 5000));
        let _ = namespace::run_in(Some(&a.namespace), send);
        assert_eq!(receiver.recv(&mut [0; 4]).is_ok(), arrives, "{own}");
    }
    ServiceRules::purge(&node.service_options()).await.unwrap();
    node.finish().await;
}

/// The packets of the tunnel are of IPv6.
#[tokio::test(flavor = "multi_thread")]
async fn pods_of_two_nodes_reach_each_other() {
    let [a, b] = Node::pair(Node::v6, "fd00:1:0:4::/64", [ip("fd78::1"), ip("fd78::2")]);
    let first = PodNetwork::open(a.options.clone()).await.unwrap();
    let second = PodNetwork::open(b.options.clone()).await.unwrap();
    let (client, server) = (first.attach("client").await.unwrap(), second.attach("server").await.unwrap());
    serve(&server.namespace, 80, "server");
    let is_reached = || read_reply(&client.namespace, server.address(), 80);
    first.set_peers(&[b.peer()]).await.unwrap();
    assert!(is_reached().is_err(), "the other node knows no peer");
    second.set_peers(&[a.peer()]).await.unwrap();
    assert_eq!(is_reached().unwrap(), format!("server {}", client.address()));
    let mtu = a.ip(&a.node, &format!("-o link show dev kemvx-{}", a.options.id));
    assert!(mtu.contains("mtu 1430"), "{mtu}");
    // Full packets pass without fragments.
    let large = || UdpSocket::bind("[::]:0")?.send_to(&[0; 1430 - 48], (server.address(), 5000));
    let receiver = namespace::run_in(Some(&server.namespace), || UdpSocket::bind("[::]:5000")).unwrap();
    receiver.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
    namespace::run_in(Some(&client.namespace), large).unwrap();
    assert_eq!(receiver.recv(&mut [0; 1500]).unwrap(), 1430 - 48);

    // Strangers on the link, and pods, send nothing into it.
    let counted = |chain: &str| {
        let rules = b.nft(&format!("list chain ip6 kemudi-tunnel-{} {chain}", b.options.id));
        rules.split("packets ").nth(1).unwrap().split(' ').next().unwrap().parse::<u32>().unwrap()
    };
    a.ip(&a.node, "addr add fd78::9/64 dev link0 nodad");
    for (own, dropped) in [("fd78::1", 0), ("fd78::9", 1)] {
        let send = || UdpSocket::bind((ip(own), 0))?.send_to(&[8, 0, 0, 0, 0, 0, 1, 0], (ip("fd78::2"), TUNNEL_PORT));
        namespace::run_in(Some(&a.node), send).unwrap();
        assert_eq!(counted("arriving"), dropped, "{own}");
    }
    let send = || UdpSocket::bind("[::]:0")?.send_to(b"forged", (ip("fd78::1"), TUNNEL_PORT));
    namespace::run_in(Some(&server.namespace), send).unwrap();
    assert_eq!(counted("of-pods"), 1);

    // False peers are skipped. A new process finds the others, and removes those that are gone.
    let with = |range: &str, address: &str| Peer { ranges: range.parse().unwrap(), address: ip(address) };
    let false_ones = [
        with("fd00:1:0:5::/64", "192.0.2.1"),
        with("10.1.5.0/24", "fd78::3"),
        with("fd00:1:0:5::/64", "fe80::1"),
        with("fd00:1:0:5::/64", "::ffff:192.0.2.1"),
        with("fd00:1:0:5::/64", "fd00:1:0:4::9"),
        with("fd00:1:0:5::/64", "ff02::1"),
        with("fd00:1:0:3::/64", "fd78::3"),
        // Ranges whose hardware address is that of another node, or of this one.
        with("fd00:1:0:5::100:0/128", "fd78::3"),
        with("fd00:1:0:5::600:0/128", "fd78::3"),
    ];
    first.set_peers(&[&[b.peer()], &false_ones[..]].concat()).await.unwrap();
    let routes = a.ip(&a.node, "-6 route");
    assert!(routes.contains("fd00:1:0:4::/64 via fd00:1:0:4::") && !routes.contains("fd00:1:0:5::"), "{routes}");
    let first = PodNetwork::open(a.options.clone()).await.unwrap();
    first.set_peers(&[b.peer()]).await.unwrap();
    assert_eq!(is_reached().unwrap(), format!("server {}", client.address()));
    let first = PodNetwork::open(a.options.clone()).await.unwrap();
    first.set_peers(&[]).await.unwrap();
    assert!(is_reached().is_err(), "the peer is gone");
    let device = format!("kemvx-{}", a.options.id);
    for left in ["-6 route", &format!("-6 neigh show dev {device}")] {
        assert!(!a.ip(&a.node, left).contains("fd00:1:0:4::"), "{left}");
    }
    let net = format!("--net={}", a.node.display());
    let entries = std::process::Command::new("nsenter").args([&net, "bridge", "fdb", "show", "dev", &device]).output();
    assert_eq!(String::from_utf8_lossy(&entries.unwrap().stdout).trim(), "");
    for node in [a, b] {
        node.finish().await;
    }
}
