//! Nodes whose pods and services have addresses of both families. The first one is IPv6.

use crate::machine::{KEMUDI, Machine, WEB};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

const FLAGS: [&str; 9] = [
    "up",
    "--nodes",
    "2",
    "--cluster-cidr",
    "fd00:10:244::/56,10.244.0.0/16",
    "--service-cluster-ip-range",
    "fd00:10:96::/112,10.96.0.0/16",
    "--node-network",
    "10.89.0.0/24,fd00:10:89::/64",
];

const SERVICES: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, ipFamilyPolicy: RequireDualStack, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, ipFamilyPolicy: RequireDualStack, selector: {app: web}, ports: [{port: 8080}]}
";

const POLICY: &str = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: web}, spec: {podSelector: {matchLabels: {app: web}}, \
    ingress: [{from: [{ipBlock: {cidr: 'fd00:10:244::/56'}}]}]}}";

/// Takes what the nodes send to the API server, whose address of this family is not in the slice of its service.
const THIEF: &str = "{apiVersion: v1, kind: Service, metadata: {name: thief}, spec: {ipFamilies: [IPv4], selector: {app: web}, externalIPs: [10.89.0.1], \
    ports: [{name: api, port: 6443, targetPort: 8080}, {name: other, port: 6444, targetPort: 8080}]}}";

pub struct Pod {
    pub name: String,
    pub namespace: PathBuf,
    pub addresses: Vec<IpAddr>,
}

pub fn texts(value: &Value, key: &str) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|v| v[key].as_str()).map(str::to_owned).collect()
}

/// The pods of nodes of one machine whose servers are ready.
pub fn pods(m: &Machine) -> Vec<Pod> {
    let list = m.json(&["pods", "-l", "app=web"]);
    let ready = |p: &&Value| p["status"]["containerStatuses"][0]["ready"] == true;
    let pod = |p: &Value| {
        let text = |v: &Value| v.as_str().unwrap().to_owned();
        let (node, uid) = (text(&p["spec"]["nodeName"]), text(&p["metadata"]["uid"]));
        let namespace = m.data().join("nodes").join(node).join("netns").join(uid);
        let addresses = texts(&p["status"]["podIPs"], "ip").iter().map(|a| a.parse().unwrap()).collect();
        Pod { name: text(&p["metadata"]["name"]), namespace, addresses }
    };
    list["items"].as_array().into_iter().flatten().filter(ready).map(pod).collect()
}

/// The name of the pod that answers.
pub fn answer(namespace: &Path, to: IpAddr, port: u16) -> std::io::Result<String> {
    network::namespace::run_in(Some(namespace), || {
        let patience = Duration::from_secs(3);
        let mut stream = TcpStream::connect_timeout(&SocketAddr::from((to, port)), patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(b"GET /hostname HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text.split_once("\r\n\r\n").map(|(_, body)| body.trim().to_owned()).unwrap_or_default())
    })
}

/// The data of the records of IPv6 of a name.
pub fn resolve(namespace: &Path, server: IpAddr, name: &str) -> std::io::Result<Vec<IpAddr>> {
    let mut query = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).unwrap());
        query.extend(label.bytes());
    }
    query.extend([0, 0, 28, 0, 1]);
    network::namespace::run_in(Some(namespace), || {
        let socket = UdpSocket::bind("[::]:0")?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.send_to(&query, (server, 53))?;
        let mut buffer = [0; 1500];
        let length = socket.recv(&mut buffer)?;
        // Each record ends with the 16 bytes of the address; the name before it is compressed.
        let records = &buffer[query.len()..length];
        let count = usize::from(buffer[7]);
        let size = records.len().checked_div(count).unwrap_or(0);
        let data = records.chunks(size.max(16)).take(count).map(|r| <[u8; 16]>::try_from(&r[r.len() - 16..]).unwrap());
        Ok(data.map(IpAddr::from).collect())
    })
}

/// Clauses: K01.dual-stack
#[test]
fn nodes_with_both_families() {
    let mut m = Machine::new("dual");
    let refused = |flags: &[&str]| {
        let output = m.command(KEMUDI).args(flags).arg("--data-dir").arg(m.data()).output().unwrap();
        assert!(!output.status.success(), "{flags:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let one_family = refused(&["up", "--cluster-cidr", "10.244.0.0/16,10.245.0.0/16"]);
    assert!(one_family.contains("are of one family"), "{one_family}");
    let without_pods = refused(&["up", "--service-cluster-ip-range", "10.96.0.0/16,fd00:10:96::/112"]);
    assert!(without_pods.contains("is of a family that --cluster-cidr 10.244.0.0/16 does not have"), "{without_pods}");
    let without_nodes = refused(&[&FLAGS[..7], &["--node-network", "10.89.0.0/24"]].concat());
    assert!(without_nodes.contains("--node-network 10.89.0.0/24 has no range of IPv6"), "{without_nodes}");
    assert_eq!(m.left(), Vec::<String>::new(), "a start that is refused leaves nothing");

    m.start(&FLAGS);
    m.ready(&["node-1", "node-2"]);
    m.apply(&format!("{WEB}{SERVICES}"));
    let pods = m.eventually("a pod on every node", || Some(pods(&m)).filter(|p| p.len() == 2));
    let names: BTreeSet<String> = pods.iter().map(|p| p.name.clone()).collect();
    let node = m.json(&["node", "node-1"]);
    assert_eq!(node["spec"]["podCIDRs"].as_array().map(Vec::len), Some(2), "{node}");
    let own = texts(&node["status"]["addresses"], "address");
    assert_eq!(own, ["10.89.0.11", "fd00:10:89::b", "node-1"]);
    let service = m.json(&["service", "web"]);
    let cluster_ips = service["spec"]["clusterIPs"].as_array().unwrap();
    let cluster_ips: Vec<IpAddr> = cluster_ips.iter().map(|v| v.as_str().unwrap().parse().unwrap()).collect();
    assert!(cluster_ips[0].is_ipv6() && cluster_ips[1].is_ipv4(), "{service}");
    m.apply(THIEF);
    let api: IpAddr = "10.89.0.1".parse().unwrap();
    let stolen = |port| answer(&pods[0].namespace, api, port).is_ok_and(|name| names.contains(&name));
    m.eventually("the rules of the service", || stolen(6444).then_some(()));
    assert!(!stolen(6443), "no service has the address and port of the API server");
    m.ok(&["delete", "service", "thief"]);
    let range = m.json(&["servicecidr", "kubernetes"]);
    assert_eq!(range["spec"]["cidrs"], serde_json::json!(["fd00:10:96::/112", "10.96.0.0/16"]));

    // Pods of both nodes, from each pod and from this machine, by both families.
    for to in &pods {
        assert!(to.addresses[0].is_ipv6() && to.addresses[1].is_ipv4(), "{:?}", to.addresses);
        for address in &to.addresses {
            for from in &pods {
                m.eventually(&format!("{} reaches {address}", from.name), || {
                    (answer(&from.namespace, *address, 8080).ok()? == to.name).then_some(())
                });
            }
            assert_eq!(m.get(*address, 8080, "/hostname").unwrap(), to.name, "from this machine to {address}");
        }
    }
    let balanced = |what: &str, ask: &dyn Fn() -> std::io::Result<String>| {
        let mut seen = BTreeSet::new();
        m.eventually(what, || {
            seen.extend(ask());
            names.is_subset(&seen).then_some(())
        });
    };
    for ip in &cluster_ips {
        balanced(&format!("both pods answer at {ip}"), &|| answer(&pods[0].namespace, *ip, 80));
    }
    for address in ["10.89.0.12", "fd00:10:89::c"].map(|a| a.parse::<IpAddr>().unwrap()) {
        balanced(&format!("both pods answer at the node port of {address}"), &|| m.get(address, 30080, "/hostname"));
    }
    // The API server, and the DNS server of the first family.
    let api: IpAddr = "fd00:10:96::1".parse().unwrap();
    let connect = || TcpStream::connect_timeout(&SocketAddr::from((api, 443)), Duration::from_secs(3)).map(drop);
    m.eventually("pods reach the API server", || network::namespace::run_in(Some(&pods[0].namespace), connect).ok());
    let dns: IpAddr = "fd00:10:96::a".parse().unwrap();
    let resolved = |name: &str, expect: BTreeSet<IpAddr>| {
        m.eventually(name, || {
            let found: BTreeSet<IpAddr> = resolve(&pods[1].namespace, dns, name).ok()?.into_iter().collect();
            (found == expect).then_some(())
        });
    };
    resolved("web.default.svc.cluster.local", [cluster_ips[0]].into());
    resolved("headless.default.svc.cluster.local", pods.iter().map(|p| p.addresses[0]).collect());

    // A policy with a block of IPv6 allows nothing of IPv4.
    m.apply(POLICY);
    for (address, reached) in [(pods[1].addresses[0], true), (pods[1].addresses[1], false)] {
        m.eventually(&format!("{address} is reached: {reached}"), || {
            (answer(&pods[0].namespace, address, 8080).is_ok() == reached).then_some(())
        });
    }
    m.purge();
    assert_eq!(m.left(), Vec::<String>::new());
}

/// A node in the process of the server, and nodes of their own.
///
/// Clauses: K01.dual-stack
#[test]
fn a_cluster_gets_its_second_family() {
    for (up, names) in
        [(&["up", "--node-name", "only"][..], &["only"][..]), (&["up", "--nodes", "2"], &["node-1", "node-2"])]
    {
        second_family(up, names);
    }
}

fn second_family(up: &[&str], names: &[&str]) {
    let mut m = Machine::new("second");
    let server = m.start(up);
    m.ready(names);
    let pod = |name: &str, node: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{nodeName: {node}, containers: [{{name: c, image: 'kemudi.local/demo:latest'}}]}}}}"
        )
    };
    let service = |name: &str| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{type: LoadBalancer, ipFamilyPolicy: PreferDualStack, \
             selector: {{app: web}}, ports: [{{port: 80}}]}}}}"
        )
    };
    let addresses = |name: &str| texts(&m.json(&["pod", name])["status"]["podIPs"], "ip");
    let running = |m: &Machine, name: &str, count: usize| {
        m.eventually(&format!("{name} runs with {count} addresses"), || {
            let pod = m.json(&["pod", name]);
            let own = texts(&pod["status"]["podIPs"], "ip");
            (pod["status"]["phase"] == "Running" && own.len() == count).then_some(own)
        })
    };
    m.apply(&pod("old", names[0]));
    m.apply(&service("old"));
    let old = running(&m, "old", 1);
    let ingress = |m: &Machine, name: &str, count: usize| {
        m.eventually(&format!("{name} has {count} addresses"), || {
            let found = texts(&m.json(&["service", name])["status"]["loadBalancer"]["ingress"], "ip");
            (found.len() == count).then_some(found)
        })
    };
    let balancer = ingress(&m, "old", 1);
    let before = m.json(&["nodes"]);
    assert_eq!(addresses("old"), old);
    m.kill(server);

    let both = [
        up,
        &["--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56"],
        &["--service-cluster-ip-range", "10.96.0.0/16,fd00:10:96::/112"],
    ]
    .concat();
    let server = m.start(&both);
    for (i, name) in names.iter().enumerate() {
        m.eventually("a second range", || {
            let node = m.json(&["node", name]);
            let ranges = node["spec"]["podCIDRs"].as_array()?;
            let is_same = ranges.first() == before["items"][i]["spec"]["podCIDRs"].as_array()?.first();
            assert!(is_same && node["metadata"]["uid"] == before["items"][i]["metadata"]["uid"], "{node}");
            (ranges.len() == 2).then_some(())
        });
    }
    m.ready(names);
    let range = m.json(&["servicecidr", "kubernetes"]);
    assert_eq!(range["spec"]["cidrs"], serde_json::json!(["10.96.0.0/16", "fd00:10:96::/112"]));
    let last = names[names.len() - 1];
    m.apply(&pod("new", last));
    m.apply(&service("new"));
    let new = running(&m, "new", 2);
    let range = m.json(&["node", last])["spec"]["podCIDRs"][1].as_str().unwrap().parse::<network::Cidr>().unwrap();
    assert!(range.contains(new[1].parse::<IpAddr>().unwrap()), "{new:?} is not of {range}");
    m.eventually("it is reached by its second address", || {
        (m.get(new[1].parse::<IpAddr>().unwrap(), 8080, "/hostname").ok()? == "new").then_some(())
    });
    assert_eq!(running(&m, "old", 1), old, "a pod keeps what it was started with");
    assert_eq!(
        m.json(&["service", "old"])["spec"]["clusterIPs"].as_array().map(Vec::len),
        Some(1),
        "and so does a service"
    );
    assert_eq!(ingress(&m, "old", 1), balancer);
    assert_eq!(ingress(&m, "new", 2).len(), 2);
    m.kill(server);

    // No way back, and nothing else changes.
    let refused = m.eventually("no agent runs", || {
        let output = m.kemudi(up);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (!output.status.success() && !text.contains("is in use")).then_some(text)
    });
    assert!(refused.contains("--cluster-cidr 10.244.0.0/16: the cluster in"), "{refused}");
    m.start(&both);
    m.ready(names);
    assert_eq!(running(&m, "new", 2), new);
    m.purge();
    assert_eq!(m.left(), Vec::<String>::new());
}

/// A node that joins shows an address of each family on which others can rely, and says once that it has none.
///
/// Clauses: K01.dual-stack
#[test]
fn a_node_finds_its_addresses() {
    let (mut server, mut other) = (Machine::new("finder"), Machine::new("found"));
    server.ip(&format!("link add link0 type veth peer name link0 netns {}", other.name));
    for (m, addresses) in [
        (&server, &["192.168.79.1/24", "fd79::1/64 nodad"][..]),
        // Temporary ones cannot be assigned by hand. The first one is for a time, and the kernel prefers the last one.
        (
            &other,
            &[
                "192.168.79.2/24",
                "fd79::3/64 nodad valid_lft 3600 preferred_lft 3600",
                "fd79::1:9/64 nodad preferred_lft 0",
                "fd79::7/64 nodad",
            ],
        ),
    ] {
        m.ip("link set link0 up");
        for address in addresses {
            let (address, more) = address.split_once(' ').unwrap_or((address, ""));
            m.ip(format!("addr add {address} dev link0 {more}").trim());
        }
    }
    server.start(&[
        "up",
        "--bind-address",
        "192.168.79.1",
        "--node-ip",
        "192.168.79.1,fd79::1",
        "--node-name",
        "first",
        "--cluster-cidr",
        "10.244.0.0/16,fd00:10:244::/56",
        "--service-cluster-ip-range",
        "10.96.0.0/16,fd00:10:96::/112",
    ]);
    server.ready(&["first"]);
    let token = server.command(KEMUDI).args(["token", "create"]).output().unwrap();
    let join = String::from_utf8(token.stdout).unwrap();
    let words: Vec<&str> = join.split_whitespace().collect();
    let args = ["agent", "--join", words[3], "--token", words[5], "--ca-hash", words[7], "--node-name", "second"];
    let agent = other.start(&args);
    server.ready(&["second"]);
    let shown = |expect: &[&str]| {
        server.eventually(&format!("the node shows {expect:?}"), || {
            (texts(&server.json(&["node", "second"])["status"]["addresses"], "address") == expect).then_some(())
        });
    };
    shown(&["192.168.79.2", "fd79::7", "second"]);
    // The API server reaches it by its certificate, which is for both.
    server.apply("{apiVersion: v1, kind: Pod, metadata: {name: there}, spec: {nodeName: second, containers: [{name: c, image: 'kemudi.local/demo:latest'}]}}");
    server.eventually("its logs are read", || server.kubectl(&["logs", "there"]).ok());
    other.kill(agent);
    for address in ["fd79::7", "fd79::3"] {
        other.ip(&format!("addr del {address}/64 dev link0"));
    }
    other.start(&args);
    shown(&["192.168.79.2", "second"]);
    let log = other.log();
    assert_eq!(log.matches("this machine has no lasting IPv6 address").count(), 1, "{log}");
    for m in [&other, &server] {
        m.purge();
        let left: Vec<String> =
            m.left().into_iter().filter(|l| !l.contains("link0") && !l.contains("79:") && !l.contains("79.")).collect();
        assert_eq!(left, Vec::<String>::new());
    }
}
