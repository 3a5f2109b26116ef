//! Network policies for packets.
#![allow(clippy::unwrap_used)] // helpers of tests

mod node;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use network::policies::*;
use network::*;
use node::{NODE, Node, OUTSIDE, ip, read_reply, serve};

const TCP_80: PortRange = PortRange { protocol: Protocol::Tcp, ports: Some((80, 80)) };

fn options(node: &Node) -> policies::Options {
    policies::Options {
        id: node.options.id.clone(),
        node_namespace: Some(node.node.clone()),
        families: node.options.pod_ranges.families().collect(),
        bridge: node.options.bridge(),
        dns: Some(ip(10, 96, 0, 53)),
    }
}

fn pods(name: &str, addresses: &[IpAddr]) -> policies::Peer {
    policies::Peer::Pods(Arc::new(AddressSet { name: name.into(), addresses: addresses.iter().copied().collect() }))
}

fn block(cidr: &str, except: &[&str]) -> policies::Peer {
    let except = except.iter().map(|e| e.parse().unwrap()).collect();
    policies::Peer::Block(Block { cidr: cidr.parse().unwrap(), except })
}

fn rule(peers: Vec<policies::Peer>, ports: Ports) -> Vec<Arc<Rule>> {
    vec![Arc::new(Rule { peers: Peers::These(peers), ports, endpoints: None })]
}

fn open(address: IpAddr) -> PodPolicy {
    PodPolicy { addresses: vec![address], ingress: None, egress: None }
}

fn connects(from: &std::path::Path, to: IpAddr, port: u16) -> bool {
    namespace::run_in(Some(from), || {
        std::net::TcpStream::connect_timeout(&(to, port).into(), Duration::from_millis(300))
    })
    .is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn isolated_pods_get_allowed_connections_only() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let [server, friend, other] =
        [network.attach("server").await, network.attach("friend").await, network.attach("other").await]
            .map(Result::unwrap);
    for port in [80, 81, 8081] {
        serve(&server.namespace, port, "server");
    }
    serve(&node.node, 9000, "node");
    serve(&node.outside, 9000, "outside");
    node.ip(&node.outside, &format!("route add 10.1.0.0/16 via {NODE}"));
    let rules = PolicyRules::open(options(&node)).unwrap();
    let all = [&friend, &other].map(|p| p.namespace.clone());
    let reach = |port| -> Vec<bool> {
        let pods = all.iter().map(|from| connects(from, server.address(), port));
        let others = [&node.node, &node.outside, &server.namespace].map(|from| connects(from, server.address(), port));
        pods.chain(others).collect()
    };
    // From: friend, other, node, outside, the server itself.
    assert_eq!(reach(80), [true; 5], "without policies");

    let with = |ingress, egress| {
        let server = PodPolicy { addresses: vec![server.address()], ingress, egress };
        [server, open(friend.address()), open(other.address())]
    };
    rules.apply(Some(&with(Some(vec![]), None))).await.unwrap();
    assert_eq!(reach(80), [false, false, true, false, true], "default deny");
    let set = pods("pods-x", &[friend.address()]);
    rules.apply(Some(&with(Some(rule(vec![set.clone()], Ports::Any)), None))).await.unwrap();
    assert_eq!(reach(80), [true, false, true, false, true], "by pods");
    let set = pods("pods-x", &[friend.address(), other.address()]);
    rules.apply(Some(&with(Some(rule(vec![set.clone()], Ports::These(vec![TCP_80]))), None))).await.unwrap();
    assert_eq!(reach(80), [true, true, true, false, true], "a pod more");
    assert_eq!(reach(81), [false, false, true, false, true], "another port");
    let range = PortRange { protocol: Protocol::Tcp, ports: Some((8000, 8081)) };
    let overlapping = vec![TCP_80, range, PortRange { ports: Some((8010, 8090)), ..range }];
    rules.apply(Some(&with(Some(rule(vec![set], Ports::These(overlapping))), None))).await.unwrap();
    assert_eq!(reach(8081), [true, true, true, false, true], "a range of ports");
    let udp = PortRange { protocol: Protocol::Udp, ports: None };
    let sctp = PortRange { protocol: Protocol::Sctp, ports: Some((80, 80)) };
    rules
        .apply(Some(&with(Some(rule(vec![block("0.0.0.0/0", &[])], Ports::These(vec![udp, sctp]))), None)))
        .await
        .unwrap();
    assert_eq!(reach(80), [false, false, true, false, true], "other protocols");
    let except = format!("{}/32", friend.address());
    let peers = vec![block("0.0.0.0/0", &["10.1.3.0/24", &except, "10.1.0.0/16"])];
    rules.apply(Some(&with(Some(rule(peers, Ports::Any)), None))).await.unwrap();
    assert_eq!(reach(80), [false, false, true, true, true], "all but the pods");
    let peers = vec![block("10.1.3.0/24", &[&except]), block(&except, &[])];
    rules.apply(Some(&with(Some(rule(peers, Ports::Any)), None))).await.unwrap();
    assert_eq!(reach(80), [true, true, true, false, true], "excepted by one, allowed by another");

    // Egress.
    let friend_with = |egress| {
        let friend = PodPolicy { addresses: vec![friend.address()], ingress: None, egress };
        [open(server.address()), friend, open(other.address())]
    };
    let from_friend = || {
        [(server.address(), 80), (server.address(), 81), (NODE, 9000), (OUTSIDE, 9000)]
            .map(|(to, port)| connects(&friend.namespace, to, port))
    };
    rules.apply(Some(&friend_with(Some(vec![])))).await.unwrap();
    assert_eq!(from_friend(), [false, false, true, false], "nothing but the node");
    assert!(connects(&other.namespace, server.address(), 80));
    rules.apply(Some(&friend_with(Some(rule(vec![block("192.168.77.0/24", &[])], Ports::Any))))).await.unwrap();
    assert_eq!(from_friend(), [false, false, true, true], "out of the cluster");
    let endpoints = EndpointSet { name: "ports-x".into(), endpoints: [(server.address(), Protocol::Tcp, 81)].into() };
    let named = Rule { peers: Peers::Any, ports: Ports::These(vec![]), endpoints: Some(Arc::new(endpoints)) };
    rules.apply(Some(&friend_with(Some(vec![Arc::new(named)])))).await.unwrap();
    assert_eq!(from_friend(), [false, true, true, false], "ports of pods");

    // A service leads to the pod behind it, also the pod itself.
    let services = ServiceRules::open(node.service_options()).unwrap();
    let address = ip(10, 96, 0, 10);
    services
        .apply(&[ServicePort {
            name: "default/web:http".into(),
            cluster_ip: address,
            protocol: Protocol::Tcp,
            port: 800,
            node_port: None,
            external_ips: vec![],
            load_balancer_ips: vec![],
            source_ranges: vec![],
            endpoints: vec![Endpoint { address: server.address(), port: 80, cluster: true, local: true }],
            affinity: Affinity::None,
            internal_policy: Policy::Cluster,
            external_policy: Policy::Cluster,
        }])
        .await
        .unwrap();
    let set = pods("pods-y", &[friend.address()]);
    rules.apply(Some(&with(Some(rule(vec![set], Ports::These(vec![TCP_80]))), Some(vec![])))).await.unwrap();
    let by_service = [&friend, &other, &server].map(|from| connects(&from.namespace, address, 800));
    assert_eq!(by_service, [true, false, true]);

    // Without policies nothing is left.
    rules.apply(None).await.unwrap();
    assert_eq!(rules.dump().await.unwrap(), "");
    assert_eq!(reach(80), [true; 5]);
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_and_a_restart_have_no_gap() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let [server, client] = [network.attach("server").await, network.attach("client").await].map(Result::unwrap);
    serve(&server.namespace, 80, "server");
    let echo = namespace::run_in(Some(&server.namespace), || std::net::TcpListener::bind("0.0.0.0:7")).unwrap();
    std::thread::spawn(move || {
        for stream in echo.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || std::io::copy(&mut stream.try_clone().unwrap(), &mut stream));
        }
    });
    let connect = || std::net::TcpStream::connect((server.address(), 7));
    let stream = namespace::run_in(Some(&client.namespace), connect).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    let echoes = || {
        use std::io::{Read, Write};
        let mut byte = [0];
        (&stream).write_all(b"x").unwrap();
        (&stream).read_exact(&mut byte).is_ok()
    };
    let closed = [PodPolicy { ingress: Some(vec![]), ..open(server.address()) }, open(client.address())];
    let rules = PolicyRules::open(options(&node)).unwrap();
    rules.apply(Some(&closed)).await.unwrap();
    assert!(echoes(), "a connection that was allowed goes on");
    assert!(!connects(&client.namespace, server.address(), 80));

    // While a new process replaces the rules, and others change, no connection passes.
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let attempts = std::thread::spawn({
        let (stop, from, to) = (stop.clone(), client.namespace.clone(), server.address());
        move || {
            let mut passed = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let connect = || std::net::TcpStream::connect_timeout(&(to, 80).into(), Duration::from_millis(1));
                passed += u32::from(namespace::run_in(Some(&from), connect).is_ok());
            }
            passed
        }
    });
    for round in 0..10 {
        let rules = PolicyRules::open(options(&node)).unwrap();
        rules.apply(Some(&closed)).await.unwrap();
        for last in 0..10 {
            let peer = pods(&format!("pods-{round}-{last}"), &[ip(10, 1, 9, last)]);
            let other = [
                PodPolicy { ingress: Some(rule(vec![peer], Ports::Any)), ..open(server.address()) },
                closed[1].clone(),
            ];
            rules.apply(Some(&other)).await.unwrap();
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(attempts.join().unwrap(), 0);
    assert!(echoes());
    rules.apply(None).await.unwrap();
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_starts_with_its_rules_and_ends_without() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let server = network.attach("server").await.unwrap();
    serve(&server.namespace, 80, "server");
    let (gate, rules) = (network.gate(), Arc::new(PolicyRules::open(options(&node)).unwrap()));
    gate.close();
    rules.apply(Some(&[open(server.address())])).await.unwrap();
    gate.set_applied(gate.pods().version, Some(["server".to_owned()].into()));
    // Follows the pods, as the service of the node does.
    let follow = tokio::spawn({
        let (gate, rules) = (gate.clone(), rules.clone());
        async move {
            let mut last = gate.pods().version;
            loop {
                gate.changed(last).await;
                tokio::time::sleep(Duration::from_millis(200)).await;
                let Pods { version, pods } = gate.pods();
                let all: Vec<PodPolicy> = pods.values().map(|a| open(a[0])).collect();
                rules.apply(Some(&all)).await.unwrap();
                gate.set_applied(version, Some(pods.into_keys().collect()));
                last = version;
            }
        }
    });
    let pod = network.attach("pod").await.unwrap();
    assert!(rules.dump().await.unwrap().contains(&format!("{} : return", pod.address())));
    assert_eq!(read_reply(&pod.namespace, server.address(), 80).unwrap(), format!("server {}", pod.address()));
    network.detach("pod").await.unwrap();
    assert!(!rules.dump().await.unwrap().contains(&pod.address().to_string()));
    follow.abort();
    let attached: BTreeSet<String> = network.attached().await.into_keys().collect();
    assert_eq!(attached, BTreeSet::from(["server".to_owned()]));
    rules.apply(None).await.unwrap();
    node.finish().await;
}

/// A thousand policies with many pods of other nodes: a change must be short.
#[tokio::test(flavor = "multi_thread")]
async fn changes_are_short_with_many_policies() {
    let node = Node::new();
    let _network = PodNetwork::open(node.options.clone()).await.unwrap();
    let rules = PolicyRules::open(options(&node)).unwrap();
    let address = |i: u32| IpAddr::from((0x0a01_0000 + i).to_be_bytes());
    let all = |changed: Option<u32>| -> Vec<PodPolicy> {
        let set = |i: u32| {
            let members = (0..100)
                .map(|n| address(i % 100 * 100 + n))
                .chain(changed.filter(|c| *c == i).map(|_| address(60_000)));
            pods(&format!("pods-{i}"), &members.collect::<Vec<_>>())
        };
        let rules =
            |pod: u32| (0..10).flat_map(|n| rule(vec![set(pod * 10 + n)], Ports::These(vec![TCP_80]))).collect();
        (0..100).map(|pod| PodPolicy { ingress: Some(rules(pod)), ..open(address(50_000 + pod)) }).collect()
    };
    let desired = all(None);
    let begin = tokio::time::Instant::now();
    rules.apply(Some(&desired)).await.unwrap();
    println!("1,000 policies with 100 peers each: {:?}", begin.elapsed());
    let desired = all(Some(500));
    let begin = tokio::time::Instant::now();
    rules.apply(Some(&desired)).await.unwrap();
    println!("a peer more: {:?}", begin.elapsed());
    assert!(rules.dump().await.unwrap().contains(&address(60_000).to_string()));
    rules.apply(None).await.unwrap();
    node.finish().await;
}
