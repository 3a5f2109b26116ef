//! Pods and services with addresses of both families, in network namespaces of their own. Needs root and `nft`.
#![allow(clippy::unwrap_used)] // a broken setup is a failed test

mod node;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use network::policies::{self, AddressSet, Block, Peers, PodPolicy, PolicyRules, Ports, Rule};
use network::*;
use node::{NODE, NODE6, Node, OUTSIDE, OUTSIDE6, read_reply, serve};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The address of IPv6 of a pod.
fn v6(pod: &Attachment) -> IpAddr {
    *pod.addresses.iter().find(|a| a.is_ipv6()).unwrap()
}

fn port(cluster_ip: &str, endpoints: &[IpAddr]) -> ServicePort {
    let endpoint = |address: &IpAddr| Endpoint { address: *address, port: 80, cluster: true, local: true };
    ServicePort {
        name: "default/web:http".into(),
        cluster_ip: ip(cluster_ip),
        protocol: Protocol::Tcp,
        port: 8080,
        node_port: Some(30080),
        external_ips: vec![],
        load_balancer_ips: vec![],
        source_ranges: vec![],
        endpoints: endpoints.iter().map(endpoint).collect(),
        affinity: Affinity::None,
        internal_policy: Policy::Cluster,
        external_policy: Policy::Cluster,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_reach_each_other_and_the_outside_by_both_families() {
    let node = Node::dual();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let [a, b] = [network.attach("a").await, network.attach("b").await].map(Result::unwrap);
    assert_eq!((v6(&a), v6(&b)), (ip("fd00:1:0:3::2"), ip("fd00:1:0:3::3")));
    assert_eq!(a.gateways.last(), Some(&ip("fd00:1:0:3::1")));
    serve(&b.namespace, 80, "b");
    serve(&node.node, 81, "node");
    serve(&node.outside, 82, "outside");
    for round in ["first", "after a restart"] {
        assert_eq!(read_reply(&a.namespace, b.address(), 80).unwrap(), "b 10.1.3.2", "{round}");
        assert_eq!(read_reply(&a.namespace, v6(&b), 80).unwrap(), "b fd00:1:0:3::2", "{round}");
        assert_eq!(read_reply(&b.namespace, v6(&b), 80).unwrap(), "b fd00:1:0:3::3", "{round}");
        assert_eq!(read_reply(&node.node, v6(&b), 80).unwrap(), "b fd00:1:0:3::1", "{round}");
        assert_eq!(read_reply(&a.namespace, ip("fd00:1:0:3::1"), 81).unwrap(), "node fd00:1:0:3::2", "{round}");
        // Beyond the cluster with the node's address.
        assert_eq!(read_reply(&a.namespace, ip(OUTSIDE6), 82).unwrap(), format!("outside {NODE6}"), "{round}");
        assert_eq!(read_reply(&a.namespace, OUTSIDE, 82).unwrap(), format!("outside {NODE}"), "{round}");
        let again = PodNetwork::open(node.options.clone()).await.unwrap();
        assert_eq!(again.attach("a").await.unwrap(), a);
    }
    // An address without a pod is unreachable at once, and nothing of it leaves the node.
    node.nft_in(&node.outside, "add table ip6 seen");
    node.nft_in(&node.outside, "add chain ip6 seen arriving { type filter hook prerouting priority -400 ; }");
    node.nft_in(&node.outside, "add rule ip6 seen arriving ip6 daddr fd00::/16 counter");
    for to in ["fd00:1:0:3::99", "fd00:1:0:4::1", "fd00:96::77", "fd00:97::7"] {
        let begun = tokio::time::Instant::now();
        assert!(read_reply(&a.namespace, ip(to), 80).is_err(), "{to}");
        assert!(begun.elapsed() < Duration::from_secs(2), "{to} after {:?}", begun.elapsed());
    }
    let seen = node.nft_in(&node.outside, "list table ip6 seen");
    assert!(seen.contains("counter packets 0 "), "{seen}");
    network.detach("b").await.unwrap();
    assert!(!node.ip(&node.node, "-6 route").contains("fd00:1:0:3::3"));
    assert!(!node.ip(&node.node, "-6 neigh show nud permanent").contains("fd00:1:0:3::3"));
    node.finish().await;
}

/// A cluster gets a second family while pods run: they keep what they have, and new ones have both.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_family_is_added() {
    let mut node = Node::dual();
    let both = node.options.clone();
    node.options.pod_ranges = both.pod_ranges.first().into();
    node.options.cluster_ranges = both.cluster_ranges.first().into();
    node.options.service_ranges = both.service_ranges.first().into();
    node.options.load_balancer_ranges = None;
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let old = network.attach("old").await.unwrap();
    assert_eq!(old.addresses.len(), 1);
    node.options = both;
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    assert_eq!(network.attach("old").await.unwrap(), old);
    let new = network.attach("new").await.unwrap();
    serve(&new.namespace, 80, "new");
    assert_eq!(read_reply(&old.namespace, new.address(), 80).unwrap(), format!("new {}", old.address()));
    assert_eq!(read_reply(&node.node, v6(&new), 80).unwrap(), "new fd00:1:0:3::1");
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_has_rules_in_both_families() {
    let node = Node::dual();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let [client, a, b] =
        [network.attach("client").await, network.attach("a").await, network.attach("b").await].map(Result::unwrap);
    serve(&a.namespace, 80, "a");
    serve(&b.namespace, 80, "b");
    let (four, six) = ("10.96.0.10", "fd00:96::10");
    let rules = ServiceRules::open(node.service_options()).unwrap();
    let both = |pods: &[&Attachment]| {
        let of = |family: fn(&Attachment) -> IpAddr| pods.iter().map(|p| family(p)).collect::<Vec<_>>();
        let mut second = port(six, &of(v6));
        second.external_ips = vec![ip("2001:db8::5"), ip("fe80::5"), ip("fd00:1:0:3::9")];
        second.load_balancer_ips = vec![ip("fd00:97::1")];
        [port(four, &of(|p| p.address())), second]
    };
    rules.apply(&both(&[&a, &b])).await.unwrap();
    let answers = |from: &Path, to: IpAddr, port: u16| -> BTreeSet<String> {
        (0..30).filter_map(|_| read_reply(from, to, port).ok()).map(|r| r[..1].to_owned()).collect()
    };
    let all: BTreeSet<String> = ["a", "b"].map(str::to_owned).into();
    for to in [four, six, "2001:db8::5", "fd00:97::1"] {
        assert_eq!(answers(&client.namespace, ip(to), 8080), all, "from a pod to {to}");
        assert_eq!(answers(&node.node, ip(to), 8080), all, "from the node to {to}");
    }
    let seen = read_reply(&client.namespace, ip(six), 8080).unwrap();
    assert!(seen.ends_with(&v6(&client).to_string()), "pods see who asks: {seen}");
    // From outside by the node's port, with the node's address.
    for (to, from) in [(NODE, "10.1.3.1"), (ip(NODE6), "fd00:1:0:3::1")] {
        assert_eq!(answers(&node.outside, to, 30080), all, "{to}");
        let seen = read_reply(&node.outside, to, 30080).unwrap();
        assert!(seen.ends_with(from), "{to}: {seen}");
    }
    // A pod reaches itself through the service.
    rules.apply(&both(&[&a])).await.unwrap();
    assert_eq!(answers(&a.namespace, ip(six), 8080), ["a".to_owned()].into());
    let affinity = Affinity::ClientIp(Duration::from_secs(60));
    let sticky = both(&[&a, &b]).map(|port| ServicePort { affinity, ..port });
    rules.apply(&sticky).await.unwrap();
    assert_eq!(answers(&client.namespace, ip(six), 8080).len(), 1);
    // A family without endpoints refuses at once; the other one goes on.
    let mut halves = both(&[&a]);
    halves[1].endpoints.clear();
    rules.apply(&halves).await.unwrap();
    assert_eq!(answers(&client.namespace, ip(four), 8080), ["a".to_owned()].into());
    for (to, why) in [(six, "no endpoint"), ("fd00:96::99", "no such service")] {
        let refused = read_reply(&client.namespace, ip(to), 8080).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{why}");
    }
    rules.apply::<ServicePort>(&[]).await.unwrap();
    let text = rules.dump().await.unwrap();
    assert!(text.contains("table ip6 ") && !text.contains("fd00:1:0:3::3"), "{text}");
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_of_the_node_lead_to_pods_in_both_families() {
    let node = Node::dual();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let [a, b] = [network.attach("a").await, network.attach("b").await].map(Result::unwrap);
    serve(&a.namespace, 80, "a");
    serve(&b.namespace, 80, "b");
    let host_port =
        |port, address: Option<&str>| HostPort { address: address.map(ip), protocol: Protocol::Tcp, port, target: 80 };
    network.publish("a", &[host_port(5000, None)]).await.unwrap();
    network.publish("b", &[host_port(5001, Some(NODE6))]).await.unwrap();
    let who = |to: IpAddr, port| read_reply(&node.outside, to, port).ok().map(|r| r[..1].to_owned());
    for to in [NODE, ip(NODE6)] {
        assert_eq!(who(to, 5000).as_deref(), Some("a"), "{to}");
    }
    assert_eq!((who(ip(NODE6), 5001).as_deref(), who(NODE, 5001)), (Some("b"), None));
    assert_eq!(read_reply(&a.namespace, ip(NODE6), 5000).unwrap(), "a fd00:1:0:3::1", "a pod reaches itself");
    network.detach("a").await.unwrap();
    assert_eq!(who(ip(NODE6), 5000), None);
    node.finish().await;
}

/// With its own address a pod sends, with others it does not, and its neighbour discovery changes nothing on the node.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_has_no_other_address_and_is_no_router() {
    let node = Node::dual();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let [evil, friend, server] =
        [network.attach("evil").await, network.attach("friend").await, network.attach("server").await]
            .map(Result::unwrap);
    let receiver = namespace::run_in(Some(&server.namespace), || UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 7))).unwrap();
    let send = |from: IpAddr| {
        namespace::run_in(Some(&evil.namespace), || UdpSocket::bind((from, 0))?.send_to(b"x", (v6(&server), 7)))
    };
    let received = |within: Duration| {
        receiver.set_read_timeout(Some(within)).unwrap();
        let mut buffer = [0; 10];
        receiver.recv_from(&mut buffer).ok().map(|(_, from)| from.ip())
    };
    // A busy machine may lose packets.
    let arrives = |_| {
        send(v6(&evil)).unwrap();
        received(Duration::from_secs(1)) == Some(v6(&evil))
    };
    assert!((0..20).any(arrives));
    while received(Duration::from_millis(500)).is_some() {}
    for false_one in [v6(&friend), ip("2001:db8::1")] {
        node.ip(&evil.namespace, &format!("addr add {false_one}/128 dev eth0 nodad"));
        let _ = send(false_one);
        assert_eq!(received(Duration::from_millis(500)), None, "{false_one}");
    }
    let known = node.ip(&node.node, &format!("-6 neigh show {}", v6(&friend)));
    assert!(known.contains("PERMANENT") && known.contains("0a:58:0a:01:03:03"), "{known}");
    let bridge = node.options.bridge();
    for setting in ["accept_ra", "accept_redirects", "autoconf"] {
        let path = format!("/proc/sys/net/ipv6/conf/{bridge}/{setting}");
        let value = namespace::run_in(Some(&node.node), || std::fs::read_to_string(&path)).unwrap();
        assert_eq!(value.trim(), "0", "{setting}");
    }
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_hold_for_both_families() {
    let node = Node::dual();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let [server, friend, other] =
        [network.attach("server").await, network.attach("friend").await, network.attach("other").await]
            .map(Result::unwrap);
    serve(&server.namespace, 80, "server");
    serve(&node.outside, 82, "outside");
    let options = policies::Options {
        id: node.options.id.clone(),
        node_namespace: Some(node.node.clone()),
        families: node.options.pod_ranges.families().collect(),
        bridge: node.options.bridge(),
        dns: None,
    };
    let rules = PolicyRules::open(options.clone()).unwrap();
    let set = AddressSet { name: "pods-x".into(), addresses: friend.addresses.iter().copied().collect() };
    let rule =
        |peer| Some(vec![Arc::new(Rule { peers: Peers::These(vec![peer]), ports: Ports::Any, endpoints: None })]);
    let open = |pod: &Attachment| PodPolicy { addresses: pod.addresses.clone(), ingress: None, egress: None };
    let connects = |from: &Attachment, to: IpAddr, port| read_reply(&from.namespace, to, port).is_ok();
    let ingress = rule(policies::Peer::Pods(Arc::new(set)));
    rules.apply(Some(&[PodPolicy { ingress, ..open(&server) }, open(&friend), open(&other)])).await.unwrap();
    for to in [server.address(), v6(&server)] {
        assert_eq!((connects(&friend, to, 80), connects(&other, to, 80)), (true, false), "{to}");
    }
    // A block of one family allows nothing in the other one.
    let block = |cidr: &str, except: &[&str]| {
        let except = except.iter().map(|e| e.parse().unwrap()).collect();
        rule(policies::Peer::Block(Block { cidr: cidr.parse().unwrap(), except }))
    };
    let except = format!("{}/128", v6(&other));
    let server_policy = PodPolicy { ingress: block("fd00:1::/56", &[&except]), ..open(&server) };
    let friend_policy = PodPolicy { egress: block("fd77::/64", &[]), ..open(&friend) };
    rules.apply(Some(&[server_policy.clone(), friend_policy, open(&other)])).await.unwrap();
    assert_eq!((connects(&friend, ip(OUTSIDE6), 82), connects(&friend, OUTSIDE, 82)), (true, false));
    assert!(!connects(&friend, v6(&server), 80), "its egress does not lead there");
    rules.apply(Some(&[server_policy, open(&friend), open(&other)])).await.unwrap();
    assert_eq!((connects(&friend, v6(&server), 80), connects(&other, v6(&server), 80)), (true, false));
    assert!(!connects(&friend, server.address(), 80));
    rules.apply(None).await.unwrap();
    assert!(connects(&other, v6(&server), 80));
    PolicyRules::purge(&options).await.unwrap();
    node.finish().await;
}

/// Packets of IPv6 pass the tunnel, whose own packets are of IPv4.
#[tokio::test(flavor = "multi_thread")]
async fn pods_of_two_nodes_reach_each_other_by_ipv6() {
    let addresses = [node::ip(192, 168, 78, 1), node::ip(192, 168, 78, 2)];
    let [a, b] = Node::pair(Node::dual, "10.1.4.0/24,fd00:1:0:4::/64", addresses);
    let first = PodNetwork::open(a.options.clone()).await.unwrap();
    let second = PodNetwork::open(b.options.clone()).await.unwrap();
    let (client, server) = (first.attach("client").await.unwrap(), second.attach("server").await.unwrap());
    serve(&server.namespace, 80, "server");
    first.set_peers(&[b.peer()]).await.unwrap();
    second.set_peers(&[a.peer()]).await.unwrap();
    for (to, own) in [(server.address(), client.address()), (v6(&server), v6(&client))] {
        assert_eq!(read_reply(&client.namespace, to, 80).unwrap(), format!("server {own}"));
    }
    assert_eq!(read_reply(&a.node, v6(&server), 80).unwrap(), "server fd00:1:0:3::", "from the node itself");
    // A new process finds the peers, and removes those that are gone.
    let first = PodNetwork::open(a.options.clone()).await.unwrap();
    first.set_peers(&[b.peer()]).await.unwrap();
    assert_eq!(read_reply(&client.namespace, v6(&server), 80).unwrap(), format!("server {}", v6(&client)));
    let first = PodNetwork::open(a.options.clone()).await.unwrap();
    first.set_peers(&[]).await.unwrap();
    assert!(read_reply(&client.namespace, v6(&server), 80).is_err(), "the peer is gone");
    assert!(!a.ip(&a.node, "-6 route").contains("fd00:1:0:4::"));
    for node in [a, b] {
        node.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_that_do_not_fit_are_refused() {
    let node = Node::dual();
    let refused = async |pods: &str, cluster: &str| {
        let mut options = node.options.clone();
        options.pod_ranges = pods.parse().unwrap();
        options.cluster_ranges = cluster.parse().unwrap();
        PodNetwork::open(options).await.err().map(|e| e.to_string()).unwrap_or_default()
    };
    let all = "10.1.0.0/16,fd00:1::/56";
    assert!(refused("10.1.3.0/24,fd00:2::/64", all).await.contains("fd00:2::/64 is not within"));
    assert!(refused("10.1.3.0/24,fd00:1:0:3::/64", "10.1.0.0/16").await.contains("is not within 10.1.0.0/16"));
    let mut options = node.options.clone();
    options.tunnel = Some(ip(NODE6));
    let family = PodNetwork::open(options).await.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(family.ends_with("reach each other by IPv4"), "{family}");
    node.finish().await;
}
