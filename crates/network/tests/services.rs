//! Services for packets, and packets without a service.
#![allow(clippy::unwrap_used)] // helpers of tests

mod node;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use network::*;
use node::{ANY, LOOPBACK, NODE, Node, OUTSIDE, OWN_PORT, ip, leaked, read_reply, send, serve};

const WEB: IpAddr = ip(10, 96, 0, 10);

fn web(endpoints: &[(IpAddr, bool)]) -> ServicePort {
    ServicePort {
        name: "default/web:http".into(),
        cluster_ip: WEB,
        protocol: Protocol::Tcp,
        port: 80,
        node_port: Some(30080),
        external_ips: vec![],
        load_balancer_ips: vec![],
        source_ranges: vec![],
        endpoints: endpoints
            .iter()
            .map(|(address, local)| Endpoint { address: *address, port: 8080, cluster: true, local: *local })
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
    let both = web(&[(a.address(), true), (b.address(), true)]);
    rules.apply(std::slice::from_ref(&both)).await.unwrap();

    let names = |from: &std::path::Path, to, port| -> BTreeSet<String> {
        (0..40).map(|_| read_reply(from, to, port).unwrap().split(' ').next().unwrap().to_owned()).collect()
    };
    let all = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
    assert_eq!(names(&client.namespace, WEB, 80), all, "from a pod");
    assert_eq!(names(&a.namespace, WEB, 80), all, "from an endpoint, itself included");
    assert_eq!(names(&node.node, WEB, 80), all, "from the node");
    assert_eq!(names(&node.outside, NODE, 30080), all, "node port from outside");
    assert_eq!(names(&node.node, NODE, 30080), all, "node port from the node");
    assert_eq!(names(&client.namespace, NODE, 30080), all, "node port from a pod");
    let seen = read_reply(&client.namespace, WEB, 80).unwrap();
    assert!(seen.ends_with(&client.address().to_string()), "pods see who asks: {seen}");

    rules.apply(&[web(&[(b.address(), true)])]).await.unwrap();
    assert_eq!(names(&client.namespace, WEB, 80), BTreeSet::from(["b".to_owned()]));
    let before = rules.dump().await.unwrap();
    rules.apply(&[web(&[(b.address(), true)])]).await.unwrap();
    assert_eq!(rules.dump().await.unwrap(), before);

    // No endpoints: refused at once, from everywhere.
    rules.apply(&[web(&[])]).await.unwrap();
    assert!(refused(read_reply(&client.namespace, WEB, 80)));
    assert!(refused(read_reply(&node.node, WEB, 80)));
    assert!(refused(read_reply(&node.outside, NODE, 30080)));
    assert!(refused(read_reply(&client.namespace, WEB, 81)), "a port nobody has");

    // A second process replaces what the first one left, and a foreign change does not stop it.
    let rules = ServiceRules::open(node.service_options()).unwrap();
    rules.apply(std::slice::from_ref(&both)).await.unwrap();
    assert_eq!(names(&client.namespace, WEB, 80), all);
    node.nft(&format!("delete table ip kemudi-{}", node.options.id));
    rules.apply(&[web(&[(a.address(), true)])]).await.unwrap();
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
    let external = ip(192, 168, 99, 9);
    let local = ServicePort {
        external_policy: Policy::Local,
        external_ips: vec![external],
        ..web(&[(a.address(), true), (b.address(), false)])
    };
    rules.apply(&[local]).await.unwrap();
    node.ip(&node.outside, &format!("route add {external} via {NODE}"));
    for (to, port) in [(NODE, 30080), (external, 80)] {
        for _ in 0..10 {
            assert_eq!(read_reply(&node.outside, to, port).unwrap(), format!("a {OUTSIDE}"));
        }
    }
    // From pods and the node, all endpoints are used.
    for (from, to, port) in [(&client.namespace, external, 80), (&node.node, external, 80), (&node.node, NODE, 30080)] {
        let mut seen = BTreeSet::new();
        for _ in 0..40 {
            seen.insert(read_reply(from, to, port).unwrap().split(' ').next().unwrap().to_owned());
        }
        assert_eq!(seen.len(), 2, "{seen:?}");
    }

    // A load balancer with ranges of clients.
    let balancer = ip(10, 97, 0, 1);
    node.ip(&node.outside, &format!("route add {balancer} via {NODE}"));
    let balanced = |ranges: &[&str]| ServicePort {
        load_balancer_ips: vec![balancer],
        source_ranges: ranges.iter().map(|r| r.parse().unwrap()).collect(),
        ..web(&[(a.address(), true)])
    };
    let reached = || [&node.outside, &client.namespace, &node.node].map(|from| read_reply(from, balancer, 80).is_ok());
    rules.apply(&[balanced(&[])]).await.unwrap();
    assert_eq!(reached(), [true; 3]);
    rules.apply(&[balanced(&["192.168.77.0/24", "192.168.77.2/32"])]).await.unwrap();
    assert_eq!(reached(), [true, false, false]);
    assert!(read_reply(&client.namespace, WEB, 80).is_ok(), "other addresses are open");
    rules.apply(&[balanced(&["10.1.0.0/16"])]).await.unwrap();
    assert_eq!(reached(), [false, true, true]);
    // What users write takes no address of a load balancer.
    let thief =
        ServicePort { name: "a/thief".into(), external_ips: vec![balancer], port: 81, ..web(&[(b.address(), true)]) };
    let thief = ServicePort { cluster_ip: ip(10, 96, 0, 66), node_port: None, ..thief };
    rules.apply(&[thief, balanced(&[])]).await.unwrap();
    assert!(refused(read_reply(&client.namespace, balancer, 81)));
    assert!(refused(read_reply(&node.node, ip(10, 97, 0, 9), 80)), "an address without a service");

    let internal = ServicePort { internal_policy: Policy::Local, ..web(&[(a.address(), false), (b.address(), true)]) };
    rules.apply(&[internal]).await.unwrap();
    for _ in 0..10 {
        assert_eq!(read_reply(&client.namespace, WEB, 80).unwrap(), format!("b {}", client.address()));
    }

    let affinity = Affinity::ClientIp(Duration::from_secs(600));
    rules.apply(&[ServicePort { affinity, ..web(&[(a.address(), true), (b.address(), true)]) }]).await.unwrap();
    let first = read_reply(&client.namespace, WEB, 80).unwrap();
    for _ in 0..20 {
        assert_eq!(read_reply(&client.namespace, WEB, 80).unwrap(), first);
    }
    // A change elsewhere does not make it forget.
    let mut other = web(&[(a.address(), true)]);
    (other.name, other.cluster_ip, other.node_port) = ("default/other".into(), ip(10, 96, 0, 11), None);
    let same = ServicePort { affinity, ..web(&[(a.address(), true), (b.address(), true)]) };
    rules.apply(&[same, other]).await.unwrap();
    for _ in 0..20 {
        assert_eq!(read_reply(&client.namespace, WEB, 80).unwrap(), first);
    }
    node.finish().await;
}

/// Users that may write services may write any address into their status.
#[tokio::test(flavor = "multi_thread")]
async fn no_service_takes_what_the_node_serves() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let a = network.attach("a").await.unwrap();
    serve(&a.namespace, 8080, "thief");
    serve(&node.node, OWN_PORT, "node");
    let rules = ServiceRules::open(node.service_options()).unwrap();
    let local = LOOPBACK;
    let addresses = vec![local, NODE, network.gateway(), ANY];
    for endpoints in [&[][..], &[(a.address(), true)]] {
        let greedy = |name: &str, port, node_port| ServicePort {
            name: name.into(),
            external_ips: addresses.clone(),
            port,
            node_port: Some(node_port),
            ..web(endpoints)
        };
        rules.apply(&[greedy("evil/a", OWN_PORT, 30080), greedy("evil/b", 81, OWN_PORT)]).await.unwrap();
        let places = [
            (&node.node, local),
            (&node.node, NODE),
            (&node.node, network.gateway()),
            (&node.outside, NODE),
            (&a.namespace, NODE),
            (&a.namespace, network.gateway()),
        ];
        for (from, to) in places {
            let answer = read_reply(from, to, OWN_PORT).unwrap();
            assert!(answer.starts_with("node "), "{} to {to}: {answer}", from.display());
        }
    }
    // Other ports of its address are the service's, as in Kubernetes.
    assert!(read_reply(&node.outside, NODE, 81).unwrap().starts_with("thief "));
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_stay_where_they_are_while_it_is_there_and_they_come() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let client = network.attach("client").await.unwrap();
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut pods = Vec::new();
    for name in names {
        let pod = network.attach(name).await.unwrap();
        serve(&pod.namespace, 8080, name);
        pods.push(pod.address());
    }
    let rules = ServiceRules::open(node.service_options()).unwrap();
    let sticky = |pods: &[IpAddr], seconds| ServicePort {
        affinity: Affinity::ClientIp(Duration::from_secs(seconds)),
        ..web(&pods.iter().map(|p| (*p, true)).collect::<Vec<_>>())
    };
    let who = || {
        let answer = read_reply(&client.namespace, WEB, 80).unwrap();
        names.iter().position(|n| answer.starts_with(n)).unwrap()
    };
    let stays = |at: usize, why: &str| (0..20).for_each(|_| assert_eq!(who(), at, "{why}"));
    rules.apply(&[sticky(&pods[1..4], 600)]).await.unwrap();
    let first = who();
    stays(first, "at first");
    rules.apply(&[sticky(&pods, 600)]).await.unwrap();
    stays(first, "others come");
    rules.apply(&[sticky(&pods, 700)]).await.unwrap();
    stays(first, "another time");
    let rest: Vec<IpAddr> = pods.iter().copied().filter(|p| *p != pods[first]).collect();
    rules.apply(&[sticky(&rest, 700)]).await.unwrap();
    let second = who();
    assert_ne!(second, first);
    stays(second, "its endpoint has gone");
    rules.apply(&[sticky(&pods, 700)]).await.unwrap();
    stays(second, "the former one is back");

    // The affinity of a client that sends in time is extended, and ends otherwise.
    let elements = || node.nft(&format!("list table ip kemudi-{}", node.options.id)).matches("expires").count();
    assert_eq!(elements(), 1);
    rules.apply(&[web(&[(pods[0], true)])]).await.unwrap();
    rules.apply(&[sticky(&pods, 2)]).await.unwrap();
    let third = who();
    let begun = tokio::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        assert_eq!(who(), third);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let begun = tokio::time::Instant::now();
    while elements() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "remembered for ever");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    node.finish().await;
}

/// An unknown object in the table conflicts with one service.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_the_way_of_one_service_is_replaced() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let a = network.attach("a").await.unwrap();
    serve(&a.namespace, 8080, "a");
    let rules = ServiceRules::open(node.service_options()).unwrap();
    let affinity = Affinity::ClientIp(Duration::from_secs(600));
    let service = ServicePort { affinity, ..web(&[(a.address(), true)]) };
    rules.apply(std::slice::from_ref(&service)).await.unwrap();
    let dump = rules.dump().await.unwrap();
    let map = dump.split_whitespace().find(|w| w.starts_with("ends-")).unwrap().to_owned();
    rules.apply::<ServicePort>(&[]).await.unwrap();
    let table = format!("kemudi-{}", node.options.id);
    node.nft(&format!("add map ip {table} {map} {{ type ipv4_addr : ipv4_addr; }}"));
    let mut others: Vec<ServicePort> = (1..20)
        .map(|n| ServicePort {
            name: format!("other{n}/web:http").into(),
            cluster_ip: ip(10, 96, 1, n),
            node_port: None,
            ..web(&[(a.address(), true)])
        })
        .collect();
    others.push(service);
    rules.apply(&others).await.unwrap();
    for service in &others {
        assert!(read_reply(&node.node, service.cluster_ip, 80).unwrap().starts_with("a "), "{}", service.name);
    }
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_addresses_never_leave_by_the_default_route() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let a = network.attach("a").await.unwrap();
    let rules = ServiceRules::open(node.service_options()).unwrap();
    rules.apply(&[web(&[(a.address(), true)])]).await.unwrap();
    let pod_elsewhere = ip(10, 1, 9, 9);
    let unknown_service = ip(10, 96, 44, 44);
    let try_all = || {
        for to in [pod_elsewhere, unknown_service, WEB, ip(10, 1, 3, 200)] {
            for from in [&node.node, &a.namespace] {
                let _ = send(from, to, 53); // refused or swallowed, both are fine
                let _ = send(from, to, 80);
            }
        }
    };
    // Other packets of the machine may appear (address resolution), so cluster addresses are matched.
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
        let socket = namespace::run_in(Some(&pod.namespace), || std::net::UdpSocket::bind((ANY, 8080))).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 16];
            while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(name, from);
            }
        });
    }
    let rules = ServiceRules::open(node.service_options()).unwrap();
    let dns = |endpoints: &[(IpAddr, bool)]| ServicePort { protocol: Protocol::Udp, ..web(endpoints) };
    let socket = namespace::run_in(Some(&client.namespace), || std::net::UdpSocket::bind((ANY, 0))).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let read_reply = || {
        socket.send_to(b"?", (WEB, 80)).unwrap();
        let mut buffer = [0; 1];
        socket.recv(&mut buffer).map(|_| char::from(buffer[0]))
    };
    rules.apply(&[dns(&[])]).await.unwrap();
    assert!(read_reply().is_err(), "nobody is there yet");
    for (pod, name) in [(&a, 'a'), (&b, 'b'), (&a, 'a')] {
        rules.apply(&[dns(&[(pod.address(), true)])]).await.unwrap();
        assert_eq!(read_reply().unwrap(), name);
        assert_eq!(read_reply().unwrap(), name);
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
    let addresses: BTreeSet<IpAddr> = pods.into_iter().map(|p| p.unwrap().address()).collect();
    assert_eq!(addresses.len(), 8);
    let begin = tokio::time::Instant::now();
    let one = network.attach("one").await.unwrap();
    println!("one pod attached: {:?}", begin.elapsed());
    serve(&one.namespace, 8080, "one");

    let service = |i: u16| {
        let endpoint = |last| (ip(10, 1, 100, last), false);
        let mut service = web(&[1, 2, 3, 4, 5].map(endpoint));
        service.name = format!("default/s{i}").into();
        service.cluster_ip = ip(10, 96, 1 + (i / 250) as u8, (i % 250) as u8);
        service.node_port = None;
        service
    };
    let mut services: Vec<ServicePort> = (0..1000).map(service).collect();
    let rules = ServiceRules::open(node.service_options()).unwrap();
    let begin = tokio::time::Instant::now();
    rules.apply(&services).await.unwrap();
    println!("1,000 services with 5 endpoints each: {:?}", begin.elapsed());
    services[500].endpoints = vec![Endpoint { address: one.address(), port: 8080, cluster: true, local: true }];
    let begin = tokio::time::Instant::now();
    rules.apply(&services).await.unwrap();
    println!("one of them changed: {:?}", begin.elapsed());
    assert_eq!(read_reply(&node.node, services[500].cluster_ip, 80).unwrap().split(' ').next(), Some("one"));
    node.finish().await;
}

/// The largest share of a namespace, written and changed; others' transactions come between.
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_with_many_endpoints_does_not_delay_others() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let one = network.attach("one").await.unwrap();
    serve(&one.namespace, 8080, "one");
    let endpoints: Vec<_> = (0..999u32).map(|n| (IpAddr::from((0xac10_0000 + n).to_be_bytes()), false)).collect();
    let service = |n: u8, seconds| ServicePort {
        name: format!("greedy/s{n:02}").into(),
        cluster_ip: ip(10, 96, 1, n),
        node_port: None,
        affinity: Affinity::ClientIp(Duration::from_secs(seconds)),
        ..web(&endpoints)
    };
    let modest = web(&[(one.address(), true)]);
    let all = |seconds| -> Vec<ServicePort> { (0..20).map(|n| service(n, seconds)).chain([modest.clone()]).collect() };
    let rules = ServiceRules::open(node.service_options()).unwrap();
    let longest = std::sync::Mutex::new(Duration::ZERO);
    for seconds in [600, 700] {
        let all = all(seconds);
        let begin = tokio::time::Instant::now();
        let write = async {
            rules.apply(&all).await.unwrap();
            println!("20 services with 999 endpoints each: {:?}", begin.elapsed());
        };
        let others = async {
            loop {
                let begin = tokio::time::Instant::now();
                network
                    .publish("one", &[HostPort { address: None, protocol: Protocol::Tcp, port: 7000, target: 80 }])
                    .await
                    .unwrap();
                network.publish("one", &[]).await.unwrap();
                let mut longest = longest.lock().unwrap();
                *longest = begin.elapsed().max(*longest);
            }
        };
        tokio::select! { () = write => {}, () = others => {} }
        println!("two transactions of others take at most {:?}", longest.lock().unwrap());
        assert!(read_reply(&node.node, WEB, 80).unwrap().starts_with("one "));
    }
    assert!(*longest.lock().unwrap() < Duration::from_secs(5));
    // What comes while much is being written does not wait for the rest of it, however often that changes.
    let newcomer = ServicePort {
        name: "modest/new".into(),
        cluster_ip: ip(10, 96, 2, 1),
        node_port: None,
        ..web(&[(one.address(), true)])
    };
    let mut next = all(800);
    assert_eq!(rules.apply_next(&next).await.unwrap(), Progress::Partial);
    next = all(900);
    next.push(newcomer.clone());
    assert_eq!(rules.apply_next(&next).await.unwrap(), Progress::Partial);
    assert!(read_reply(&node.node, newcomer.cluster_ip, 80).unwrap().starts_with("one "));
    rules.apply(&next).await.unwrap();
    assert_eq!(rules.apply_next(&next).await.unwrap(), Progress::Complete);
    let begin = tokio::time::Instant::now();
    rules.apply(&[modest]).await.unwrap();
    println!("all of them deleted: {:?}", begin.elapsed());
    node.finish().await;
}

/// The size that the proxy has to cope with; run it with `--release` for the figures.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_services_load_and_change() {
    let node = Node::new();
    let network = PodNetwork::open(node.options.clone()).await.unwrap();
    let one = network.attach("one").await.unwrap();
    serve(&one.namespace, 8080, "one");
    let service = |i: u16| {
        let endpoint = |last| (ip(10, 1, 100 + (i % 100) as u8, last), false);
        let mut service = web(&[1, 2, 3, 4, 5].map(endpoint));
        service.name = format!("n{}/s{i}:http", i / 100).into();
        service.cluster_ip = ip(10, 96, 1 + (i / 250) as u8, (i % 250) as u8);
        service.node_port = None;
        service
    };
    let mut services: Vec<Arc<ServicePort>> = (0..10_000).map(|i| Arc::new(service(i))).collect();
    let rules = ServiceRules::open(node.service_options()).unwrap();
    let begin = tokio::time::Instant::now();
    rules.apply(&services).await.unwrap();
    println!("10,000 services with 5 endpoints each: {:?}", begin.elapsed());
    let mut times = Vec::new();
    for round in 0..20 {
        Arc::make_mut(&mut services[5000 + round]).endpoints =
            vec![Endpoint { address: one.address(), port: 8080, cluster: true, local: true }];
        let begin = tokio::time::Instant::now();
        rules.apply(&services).await.unwrap();
        times.push(begin.elapsed());
    }
    times.sort();
    println!("one of them changed: {:?}, at most {:?}", times[10], times[19]);
    assert_eq!(read_reply(&node.node, services[5000].cluster_ip, 80).unwrap().split(' ').next(), Some("one"));
    node.finish().await;
}
