//! A pod with `NET_RAW` (which is the default) that impersonates another pod or the node; a pod without privileges that
//! takes all connections; and a user of a namespace who writes services and slices. (The tests of the crate `network` have more
//! variants, and the rules of services.)

use crate::frames::{Attack, FALSE, Wire};
use crate::runner::Case;
use crate::story::Story;
use ::network::namespace::run_in;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const TESTS: &[Case] = &[
    ("network::pods_are_nobody_else", pods_are_nobody_else),
    ("network::no_pod_fills_the_table_of_connections", no_pod_fills_the_table_of_connections),
    ("network::very_many_endpoints_hold_up_nobody", very_many_endpoints_hold_up_nobody),
];

/// Where it succeeds, no other test reaches the API server.
pub const ALONE: &[Case] = &[("network::no_service_takes_the_api_server", no_service_takes_the_api_server)];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
const PORT: u16 = 5999;

struct Place {
    namespace: Option<PathBuf>,
    address: Ipv4Addr,
}

fn pod(s: &Story, name: &str) -> Place {
    s.shell_pod(name, FOREVER, json!({}), json!({}));
    let pod = s.ready(name);
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let namespace = s.cluster.directory.join("data/netns").join(uid);
    Place { namespace: Some(namespace), address: pod["status"]["podIP"].as_str().unwrap().parse().unwrap() }
}

/// A server that sends back what it gets, and the datagrams from false addresses that it has got.
fn echo(place: &Place) -> Arc<Mutex<BTreeSet<SocketAddr>>> {
    let socket = run_in(place.namespace.as_deref(), || UdpSocket::bind((place.address, PORT))).unwrap();
    let believed = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = believed.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 100];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            if &buffer[..length] == FALSE {
                seen.lock().unwrap().insert(from);
            }
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    believed
}

fn pods_are_nobody_else(s: &Story) {
    let [attacker, server, friend] = ["attacker", "server", "friend"].map(|name| pod(s, name));
    let raw = s.sh("attacker", "grep CapBnd /proc/self/status");
    let bounds = u64::from_str_radix(raw.split_ascii_whitespace().last().unwrap(), 16).unwrap();
    assert!(bounds & (1 << 13) != 0, "a pod has NET_RAW by default");
    let gateway = Place { namespace: None, address: gateway(s) };
    let believed = [&server, &friend, &gateway].map(echo);
    let client = |place: &Place| {
        let socket = run_in(place.namespace.as_deref(), || UdpSocket::bind((place.address, 0))).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        socket
    };
    let (mine, theirs) = (client(&attacker), client(&friend));
    let exchange = |socket: &UdpSocket, to: Ipv4Addr, text: &str| {
        socket.send_to(text.as_bytes(), (to, PORT)).unwrap();
        let mut buffer = [0; 100];
        u32::from(!socket.recv(&mut buffer).is_ok_and(|n| &buffer[..n] == text.as_bytes()))
    };
    let wire = run_in(attacker.namespace.as_deref(), || Wire::open("eth0")).unwrap();
    let attack =
        Attack { own: attacker.address, gateway: gateway.address, victims: vec![server.address, friend.address] };
    let (mut lost, mut overheard) = (0, 0);
    for round in 0..20 {
        attack.takeover().iter().for_each(|f| wire.send(f));
        for to in [server.address, gateway.address] {
            lost += exchange(&theirs, to, &format!("secret {round}"));
        }
        attack.false_sources(PORT).iter().for_each(|f| wire.send(f));
        // Heard after everything else, and under its own name.
        for to in [server.address, friend.address, gateway.address] {
            lost += exchange(&mine, to, "own");
        }
        overheard += wire.received_for_others(attacker.address).len();
    }
    let believed = believed.map(|b| b.lock().unwrap().clone());
    assert_eq!((lost, overheard, believed), (0, 0, Default::default()), "lost, overheard, and who was believed");
    // The cluster's own traffic goes on.
    s.sh("friend", "nslookup kubernetes.default.svc.cluster.local > /dev/null");
    // What was known of a pod goes with it.
    s.ok(&["delete", "pod", "server", "--grace-period=1"]);
    s.gone("pods/server");
    let neighbours = std::process::Command::new("ip").args(["neigh", "show", "nud", "permanent"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&neighbours.stdout).contains(&format!("{} ", server.address)));
}

/// Connections from more and more ports to more and more ports. In a full table there is no room for those of others.
fn no_pod_fills_the_table_of_connections(s: &Story) {
    let read = |name: &str| -> u32 {
        std::fs::read_to_string(format!("/proc/sys/net/netfilter/{name}")).unwrap().trim().parse().unwrap()
    };
    let places = ["one", "two", "server", "friend"].map(|name| pod(s, name));
    let max = read("nf_conntrack_max");
    let [one, two, server, friend] = &places;
    let flood = |attacker: &Place| {
        let mut left = max / 5;
        while left > 0 {
            let socket = run_in(attacker.namespace.as_deref(), || UdpSocket::bind((attacker.address, 0))).unwrap();
            for to in [server.address, friend.address] {
                for port in 1..=u16::MAX {
                    // An unreachable port is reported as the error of a later send.
                    let _ = socket.send_to(b"x", (to, port));
                }
                left = left.saturating_sub(u32::from(u16::MAX));
            }
        }
    };
    std::thread::scope(|scope| {
        for attacker in [one, two] {
            scope.spawn(|| flood(attacker));
        }
    });
    let filled = read("nf_conntrack_count");
    assert!(filled < max / 20, "two pods fill {filled} of {max} connections");
    s.sh("friend", "nslookup kubernetes.default.svc.cluster.local > /dev/null");
}

/// Makes a service.
fn service(s: &Story, name: &str, spec: Value) -> Ipv4Addr {
    let path = format!("/api/v1/namespaces/{}/services", s.ns);
    let service = s.post(&path, json!({"metadata": {"name": name}, "spec": spec}));
    service["spec"]["clusterIP"].as_str().unwrap().parse().unwrap()
}

/// Makes a slice of a service.
fn slice(s: &Story, name: &str, service: &str, addresses: Vec<String>, port: u16) {
    let endpoints: Vec<_> = addresses.into_iter().map(|a| json!({"addresses": [a]})).collect();
    let object = json!({"metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "p", "port": port}]});
    s.post(&format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", s.ns), object);
}

/// The node's address on the pod network.
fn gateway(s: &Story) -> Ipv4Addr {
    let node = s.get_at("/api/v1/nodes/e2e");
    let own = node["status"]["addresses"].as_array().unwrap().iter().find(|a| a["type"] == "InternalIP").unwrap();
    own["address"].as_str().unwrap().parse().unwrap()
}

/// Makes a service that leads to the DNS server, and waits until it does.
fn leads(s: &Story, name: &str) {
    let to = SocketAddr::from((service(s, name, json!({"ports": [{"name": "p", "port": 80}]})), 80));
    slice(s, name, name, vec![gateway(s).to_string()], 53);
    let begun = tokio::time::Instant::now();
    while let Err(e) = TcpStream::connect_timeout(&to, Duration::from_secs(1)) {
        assert!(begun.elapsed() < Duration::from_secs(10), "{name} at {to}: {e}");
    }
}

/// Who may write the status of services names any address there.
fn no_service_takes_the_api_server(s: &Story) {
    let kubeconfig = std::fs::read_to_string(&s.cluster.kubeconfig).unwrap();
    let (_, rest) = kubeconfig.split_once("https://127.0.0.1:").expect("the API server is on the loopback");
    let api: u16 = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    let own = gateway(s).to_string();
    let addresses = ["127.0.0.1", &own, "0.0.0.0"];
    let ingress: Vec<_> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    for (name, endpoints) in [("without", vec![]), ("with", vec!["10.244.0.99".to_owned()])] {
        let ports = json!([{"name": "p", "port": api}, {"name": "q", "port": 7777}]);
        service(s, name, json!({"type": "LoadBalancer", "ports": ports}));
        slice(s, name, name, endpoints, 9999);
        let status = json!({"status": {"loadBalancer": {"ingress": ingress}}}).to_string();
        s.ok(&["patch", "service", name, "--subresource=status", "--type=merge", "-p", &status]);
    }
    leads(s, "later"); // what came later is in the rules, and so are these
    for address in &addresses[..2] {
        let to = SocketAddr::new(address.parse().unwrap(), api);
        TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap_or_else(|e| panic!("{to}: {e}"));
    }
}

/// One service with session affinity and more endpoints than anybody has; each change of it took a minute, in which no pod started.
fn very_many_endpoints_hold_up_nobody(s: &Story) {
    let spec = json!({"sessionAffinity": "ClientIP", "ports": [{"name": "p", "port": 80}]});
    service(s, "many", spec);
    for number in 0..12 {
        let addresses = (0..1000).map(|n| format!("172.16.{}.{}", number * 4 + n / 250, n % 250 + 1)).collect();
        slice(s, &format!("many-{number}"), "many", addresses, 9999);
    }
    for seconds in [77, 78] {
        let patch = json!({"spec": {"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}}}).to_string();
        s.ok(&["patch", "service", "many", "-p", &patch]);
        let name = format!("victim-{seconds}");
        leads(s, &name);
        pod(s, &name);
    }
    // Names go on being found while others ask for what nobody has.
    let victim = pod(s, "resolver");
    let socket = run_in(victim.namespace.as_deref(), || UdpSocket::bind((victim.address, 0))).unwrap();
    let server = s.get_at("/api/v1/namespaces/kube-system/services/kube-dns");
    let server: Ipv4Addr = server["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
    let mut question = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in ["9", "9", "9", "9", "in-addr", "arpa"] {
        question.push(label.len() as u8);
        question.extend(label.bytes());
    }
    question.extend([0, 0, 12, 0, 1]);
    for _ in 0..2000 {
        let _ = socket.send_to(&question, (server, 53));
    }
    let begun = tokio::time::Instant::now();
    s.sh("victim-77", "nslookup kubernetes.default.svc.cluster.local > /dev/null");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}
