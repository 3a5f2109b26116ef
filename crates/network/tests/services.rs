//! Services as packets meet them, and what happens to packets nobody wants.
#![allow(clippy::unwrap_used)] // helpers of tests

mod node;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::time::Duration;

use kemudi_network::*;
use node::{NODE, Node, OUTSIDE, ask, leaked, send, serve};

const WEB: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);

fn web(endpoints: &[(Ipv4Addr, bool)]) -> ServicePort {
    ServicePort {
        name: "default/web:http".into(),
        cluster_ip: WEB,
        protocol: Protocol::Tcp,
        port: 80,
        node_port: Some(30080),
        external_ips: vec![],
        endpoints: endpoints
            .iter()
            .map(|(address, local)| Endpoint { address: *address, port: 8080, local: *local })
            .collect(),
        affinity: Affinity::None,
        internal_policy: Policy::Cluster,
        external_policy: Policy::Cluster,
    }
}

fn refused(result: std::io::Result<String>) -> bool {
    matches!(result, Err(e) if e.kind() == ErrorKind::ConnectionRefused)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_spreads_over_its_endpoints_and_follows_them() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let [a, b, client] =
        [network.attach("a").await, network.attach("b").await, network.attach("c").await].map(Result::unwrap);
    serve(&a.namespace, 8080, "a");
    serve(&b.namespace, 8080, "b");
    let rules = ServiceRules::open(node.service_options()).unwrap();
    let both = web(&[(a.address, true), (b.address, true)]);
    rules.apply(std::slice::from_ref(&both)).await.unwrap();

    let names = |from: &std::path::Path, to, port| -> BTreeSet<String> {
        (0..40).map(|_| ask(from, to, port).unwrap().split(' ').next().unwrap().to_owned()).collect()
    };
    let all = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
    assert_eq!(names(&client.namespace, WEB, 80), all, "from a pod");
    assert_eq!(names(&a.namespace, WEB, 80), all, "from an endpoint, itself included");
    assert_eq!(names(&node.node, WEB, 80), all, "from the node");
    assert_eq!(names(&node.outside, NODE, 30080), all, "node port from outside");
    assert_eq!(names(&node.node, NODE, 30080), all, "node port from the node");
    assert_eq!(names(&client.namespace, NODE, 30080), all, "node port from a pod");
    let seen = ask(&client.namespace, WEB, 80).unwrap();
    assert!(seen.ends_with(&client.address.to_string()), "pods see who asks: {seen}");

    rules.apply(&[web(&[(b.address, true)])]).await.unwrap();
    assert_eq!(names(&client.namespace, WEB, 80), BTreeSet::from(["b".to_owned()]));
    let before = rules.dump().await.unwrap();
    rules.apply(&[web(&[(b.address, true)])]).await.unwrap();
    assert_eq!(rules.dump().await.unwrap(), before);

    // No endpoints: refused at once, from everywhere.
    rules.apply(&[web(&[])]).await.unwrap();
    assert!(refused(ask(&client.namespace, WEB, 80)));
    assert!(refused(ask(&node.node, WEB, 80)));
    assert!(refused(ask(&node.outside, NODE, 30080)));
    assert!(refused(ask(&client.namespace, WEB, 81)), "a port nobody has");

    // A second process replaces what the first one left, and a foreign change does not stop it.
    let rules = ServiceRules::open(node.service_options()).unwrap();
    rules.apply(std::slice::from_ref(&both)).await.unwrap();
    assert_eq!(names(&client.namespace, WEB, 80), all);
    node.nft(&format!("delete table ip kemudi-{}", node.options.id));
    rules.apply(&[web(&[(a.address, true)])]).await.unwrap();
    assert_eq!(names(&client.namespace, WEB, 80), BTreeSet::from(["a".to_owned()]));
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_external_addresses_and_affinity() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let [a, b, client] =
        [network.attach("a").await, network.attach("b").await, network.attach("c").await].map(Result::unwrap);
    serve(&a.namespace, 8080, "a");
    serve(&b.namespace, 8080, "b");
    let rules = ServiceRules::open(node.service_options()).unwrap();

    // Local: only endpoints of this node, and they see the client.
    let external = Ipv4Addr::new(192, 168, 99, 9);
    let local = ServicePort {
        external_policy: Policy::Local,
        external_ips: vec![external],
        ..web(&[(a.address, true), (b.address, false)])
    };
    rules.apply(&[local]).await.unwrap();
    node.ip(&node.outside, &format!("route add {external} via {NODE}"));
    for (to, port) in [(NODE, 30080), (external, 80)] {
        for _ in 0..10 {
            assert_eq!(ask(&node.outside, to, port).unwrap(), format!("a {OUTSIDE}"));
        }
    }
    let internal = ServicePort { internal_policy: Policy::Local, ..web(&[(a.address, false), (b.address, true)]) };
    rules.apply(&[internal]).await.unwrap();
    for _ in 0..10 {
        assert_eq!(ask(&client.namespace, WEB, 80).unwrap(), format!("b {}", client.address));
    }

    let affinity = Affinity::ClientIp(Duration::from_secs(600));
    rules.apply(&[ServicePort { affinity, ..web(&[(a.address, true), (b.address, true)]) }]).await.unwrap();
    let first = ask(&client.namespace, WEB, 80).unwrap();
    for _ in 0..20 {
        assert_eq!(ask(&client.namespace, WEB, 80).unwrap(), first);
    }
    // A change elsewhere does not make it forget.
    let mut other = web(&[(a.address, true)]);
    (other.name, other.cluster_ip, other.node_port) = ("default/other".into(), Ipv4Addr::new(10, 96, 0, 11), None);
    let same = ServicePort { affinity, ..web(&[(a.address, true), (b.address, true)]) };
    rules.apply(&[same, other]).await.unwrap();
    for _ in 0..20 {
        assert_eq!(ask(&client.namespace, WEB, 80).unwrap(), first);
    }
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_addresses_never_leave_by_the_default_route() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let a = network.attach("a").await.unwrap();
    let rules = ServiceRules::open(node.service_options()).unwrap();
    rules.apply(&[web(&[(a.address, true)])]).await.unwrap();
    let pod_elsewhere = Ipv4Addr::new(10, 1, 9, 9);
    let unknown_service = Ipv4Addr::new(10, 96, 44, 44);
    let try_all = || {
        for to in [pod_elsewhere, unknown_service, WEB, Ipv4Addr::new(10, 1, 3, 200)] {
            for from in [&node.node, &a.namespace] {
                let _ = send(from, to, 53); // refused or swallowed, both are fine
                let _ = send(from, to, 80);
            }
        }
    };
    // Something else of the machine may speak (address resolution); cluster addresses are looked for by name.
    let seen = "add table ip seen; add chain ip seen in { type filter hook prerouting priority -400; }; \
                add rule ip seen in ip daddr { 10.0.0.0/8 } counter";
    let net = format!("--net={}", node.outside.display());
    let count = || {
        let list = ["/usr/sbin/nft", "list", "table", "ip", "seen"];
        let output = std::process::Command::new("nsenter").arg(&net).args(list).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let after = text.split("counter packets ").nth(1).unwrap();
        after.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let made = std::process::Command::new("nsenter").arg(&net).args(["/usr/sbin/nft", seen]).status().unwrap();
    assert!(made.success());

    try_all();
    assert_eq!(count(), 0, "with everything in force");
    ServiceRules::purge(&node.service_options()).await.unwrap();
    try_all();
    assert_eq!(count(), 0, "with the service rules gone");
    node.ip(&node.node, &format!("link del kemudi-{}", node.options.id));
    try_all();
    assert_eq!(count(), 0, "with the bridge and its routes gone");
    node.ip(&node.node, "route del unreachable 10.96.0.0/16 metric 4294967295");
    node.ip(&node.node, "route del unreachable 10.1.0.0/16 metric 4294967295");
    try_all();
    assert_eq!(count(), 0, "with the routes of last resort gone");
    node.nft(&format!("delete table ip kemudi-guard-{}", node.options.id));
    try_all();
    assert!(count() > 0, "without the guard the test itself must see packets");
    assert!(leaked(&node) > 0);
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn udp_clients_that_keep_their_port_follow_the_endpoints() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let [a, b, client] =
        [network.attach("a").await, network.attach("b").await, network.attach("c").await].map(Result::unwrap);
    for (pod, name) in [(&a, b"a"), (&b, b"b")] {
        let socket =
            namespace::run_in(Some(&pod.namespace), || std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 8080)))
                .unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 16];
            while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(name, from);
            }
        });
    }
    let rules = ServiceRules::open(node.service_options()).unwrap();
    let dns = |endpoints: &[(Ipv4Addr, bool)]| ServicePort { protocol: Protocol::Udp, ..web(endpoints) };
    let socket =
        namespace::run_in(Some(&client.namespace), || std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let ask = || {
        socket.send_to(b"?", (WEB, 80)).unwrap();
        let mut buffer = [0; 1];
        socket.recv(&mut buffer).map(|_| char::from(buffer[0]))
    };
    rules.apply(&[dns(&[])]).await.unwrap();
    assert!(ask().is_err(), "nobody is there yet");
    for (pod, name) in [(&a, 'a'), (&b, 'b'), (&a, 'a')] {
        rules.apply(&[dns(&[(pod.address, true)])]).await.unwrap();
        assert_eq!(ask().unwrap(), name);
        assert_eq!(ask().unwrap(), name);
    }
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_services_are_one_transaction_and_a_change_is_small() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let begin = tokio::time::Instant::now();
    let pods = futures::future::join_all(["a", "b", "c", "d", "e", "f", "g", "h"].map(|p| network.attach(p))).await;
    println!("eight pods attached at once: {:?}", begin.elapsed());
    let addresses: BTreeSet<Ipv4Addr> = pods.into_iter().map(|p| p.unwrap().address).collect();
    assert_eq!(addresses.len(), 8);
    let begin = tokio::time::Instant::now();
    let one = network.attach("one").await.unwrap();
    println!("one pod attached: {:?}", begin.elapsed());
    serve(&one.namespace, 8080, "one");

    let service = |i: u16| {
        let endpoint = |last| (Ipv4Addr::new(10, 1, 100, last), false);
        let mut service = web(&[1, 2, 3, 4, 5].map(endpoint));
        service.name = format!("default/s{i}");
        service.cluster_ip = Ipv4Addr::new(10, 96, 1 + (i / 250) as u8, (i % 250) as u8);
        service.node_port = None;
        service
    };
    let mut services: Vec<ServicePort> = (0..1000).map(service).collect();
    let rules = ServiceRules::open(node.service_options()).unwrap();
    let begin = tokio::time::Instant::now();
    rules.apply(&services).await.unwrap();
    println!("1,000 services with 5 endpoints each: {:?}", begin.elapsed());
    services[500].endpoints = vec![Endpoint { address: one.address, port: 8080, local: true }];
    let begin = tokio::time::Instant::now();
    rules.apply(&services).await.unwrap();
    println!("one of them changed: {:?}", begin.elapsed());
    assert_eq!(ask(&node.node, services[500].cluster_ip, 80).unwrap().split(' ').next(), Some("one"));
    node.finish().await;
}
