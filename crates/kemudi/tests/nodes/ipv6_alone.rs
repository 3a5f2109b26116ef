//! Clusters whose nodes, pods and services have addresses of IPv6 alone, on machines without IPv4 beyond loopback.

use crate::dual_stack::{answer, pods, resolve, texts};
use crate::machine::{KEMUDI, Machine, WEB};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::Duration;

const RANGES: [&str; 4] = ["--cluster-cidr", "fd00:10:244::/56", "--service-cluster-ip-range", "fd00:10:96::/112"];

const SERVICES: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, selector: {app: web}, ports: [{port: 8080}]}
";

/// Web servers that are also reached at a port of their node, and their services.
fn web() -> String {
    let ports = "ports: [{containerPort: 8080, hostPort: 9090}]\n        readinessProbe";
    format!("{}{SERVICES}", WEB.replace("readinessProbe", ports))
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Waits until `want` of these pods have answered, and no other one.
fn balanced(m: &Machine, pods: &BTreeSet<String>, what: &str, want: usize, ask: &dyn Fn() -> std::io::Result<String>) {
    let mut seen = BTreeSet::new();
    m.eventually(what, || {
        seen.extend(ask());
        (seen.len() >= want && seen.is_subset(pods)).then_some(())
    });
}

/// Clauses: K01.ipv6-alone K01.load-balancer
#[test]
fn three_nodes_with_ipv6_alone() {
    let mut m = Machine::new("ipv6");
    let up = [&["up", "--nodes", "3"], &RANGES[..]].concat();
    let refused = |flags: &[&str]| {
        let output = m.kemudi(&[&up[..], flags].concat());
        assert!(!output.status.success(), "{flags:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let nodes = refused(&["--node-network", "10.89.0.0/24"]);
    assert!(nodes.contains("--node-network 10.89.0.0/24 has no range of IPv6, by which nodes"), "{nodes}");
    let balancers = refused(&["--load-balancer-cidr", "10.97.0.0/24"]);
    assert!(
        balancers.contains("--load-balancer-cidr 10.97.0.0/24 is of a family that --service-cluster-ip-range"),
        "{balancers}"
    );
    assert_eq!(m.left(), Vec::<String>::new(), "a start that is refused leaves nothing");
    let server = m.start(&up);
    let names = ["node-1", "node-2", "node-3"];
    m.ready(&names);
    m.apply(&web());
    let web = m.eventually("a pod on every node", || Some(pods(&m)).filter(|p| p.len() == 3));
    let all: BTreeSet<String> = web.iter().map(|p| p.name.clone()).collect();
    assert!(web.iter().all(|p| matches!(p.addresses.as_slice(), [IpAddr::V6(_)])), "one address each");
    let own = texts(&m.json(&["node", "node-1"])["status"]["addresses"], "address");
    assert_eq!(own, ["fd00:10:89::b", "node-1"]);
    for (service, expect) in [("kubernetes", "fd00:10:96::1"), ("web", "fd00:10:96::")] {
        let address = m.json(&["service", service])["spec"]["clusterIP"].as_str().unwrap().to_owned();
        assert!(address.starts_with(expect), "{service}: {address}");
    }

    // Pods of all nodes, from each pod and from this machine.
    for to in &web {
        for from in &web {
            m.eventually(&format!("{} reaches {}", from.name, to.name), || {
                (answer(&from.namespace, to.addresses[0], 8080).ok()? == to.name).then_some(())
            });
        }
        assert_eq!(m.get(to.addresses[0], 8080, "/hostname").unwrap(), to.name, "from this machine");
        let proxied =
            m.ok(&["get", "--raw", &format!("/api/v1/namespaces/default/pods/{}:8080/proxy/hostname", to.name)]);
        assert_eq!(proxied.trim(), to.name, "the API server reaches the pods of every node");
        assert!(!m.ok(&["logs", &to.name]).is_empty(), "logs of every node");
        let exec = m.kubectl(&["exec", &to.name, "--", "/missing"]).unwrap_err();
        assert!(exec.contains("no such file or directory") || exec.contains("not found"), "exec on every node: {exec}");
    }
    let service = m.json(&["service", "web"]);
    let cluster_ip = ip(service["spec"]["clusterIP"].as_str().unwrap());
    balanced(&m, &all, "all pods answer at the service", 3, &|| answer(&web[0].namespace, cluster_ip, 80));
    let ingress = || m.json(&["service", "web"])["status"]["loadBalancer"]["ingress"][0]["ip"].as_str()?.parse().ok();
    let balancer: IpAddr = m.eventually("an address of the load balancer", ingress);
    assert_eq!(balancer, ip("fd00:10:97::1"));
    balanced(&m, &all, "all pods answer at the load balancer", 3, &|| m.get(balancer, 80, "/hostname"));
    for node in ["fd00:10:89::b", "fd00:10:89::c", "fd00:10:89::d"] {
        // With the traffic policy `Local`, the node's own pod.
        balanced(&m, &all, &format!("the node port of {node}"), 1, &|| m.get(ip(node), 30080, "/hostname"));
        balanced(&m, &all, &format!("the host port of {node}"), 1, &|| m.get(ip(node), 9090, "/hostname"));
        let health = u16::try_from(service["spec"]["healthCheckNodePort"].as_u64().unwrap()).unwrap();
        m.eventually("the health check counts an endpoint", || {
            m.get(ip(node), health, "/healthz").ok().filter(|text| text.contains("\"localEndpoints\": 1,"))
        });
    }
    let connect = || TcpStream::connect_timeout(&SocketAddr::from((ip("fd00:10:96::1"), 443)), Duration::from_secs(3));
    m.eventually("pods reach the API server", || network::namespace::run_in(Some(&web[0].namespace), connect).ok());
    for (name, expect) in [
        ("web.default.svc.cluster.local", [cluster_ip].into()),
        ("headless.default.svc.cluster.local", web.iter().map(|p| p.addresses[0]).collect::<BTreeSet<_>>()),
    ] {
        m.eventually(name, || {
            let found: BTreeSet<IpAddr> =
                resolve(&web[1].namespace, ip("fd00:10:96::a"), name).ok()?.into_iter().collect();
            (found == expect).then_some(())
        });
    }
    let mut forward = m.command(KEMUDI);
    forward.args(["kubectl", "port-forward", &web[2].name, "18080:8080"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut forward = forward.spawn().unwrap();
    m.eventually("port forwarding", || (m.get(ip("::1"), 18080, "/hostname").ok()? == web[2].name).then_some(()));
    forward.kill().unwrap();
    forward.wait().unwrap();

    // A policy, and an agent that is cut off and comes back.
    m.apply(&format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: web}}, spec: {{podSelector: {{matchLabels: {{app: web}}}}, \
         ingress: [{{from: [{{ipBlock: {{cidr: 'fd00:10:244::/56', except: ['{}/128']}}}}]}}]}}}}",
        web[1].addresses[0]
    ));
    for (from, reached) in [(&web[1], false), (&web[2], true)] {
        m.eventually(&format!("{} reaches {}: {reached}", from.name, web[0].name), || {
            (answer(&from.namespace, web[0].addresses[0], 8080).is_ok() == reached).then_some(())
        });
    }
    m.ok(&["delete", "networkpolicy", "web"]);
    assert!(m.kemudi(&["node", "cut", "node-2"]).status.success());
    m.eventually("node-2 is not ready", || (!m.is_ready("node-2")).then_some(()));
    assert!(m.kemudi(&["node", "heal", "node-2"]).status.success());
    m.ready(&["node-2"]);

    // The server is killed and started again; its ranges stay what they are.
    m.kill(server);
    let changed = [&["up", "--nodes", "3", "--cluster-cidr", "fd00:10:244::/57"], &RANGES[2..]].concat();
    m.eventually("the agents end", || {
        let output = m.kemudi(&changed);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        text.contains("--cluster-cidr fd00:10:244::/57: the cluster in ").then_some(())
    });
    m.start(&up);
    m.ready(&names);
    for from in &web {
        balanced(&m, &all, "pods went on", 3, &|| answer(&from.namespace, cluster_ip, 80));
    }
    m.purge();
    assert_eq!(m.left(), Vec::<String>::new());
}

/// Two machines on one link without IPv4. The node that joins finds its address: the lasting one of the link.
///
/// Clauses: K01.ipv6-alone
#[test]
fn a_machine_joins_by_ipv6() {
    let (mut server, mut other) = (Machine::new("server6"), Machine::new("other6"));
    server.ip(&format!("link add link0 type veth peer name link0 netns {}", other.name));
    for (m, addresses) in [
        (&server, &["fd79::1/64"][..]),
        // The kernel prefers the last one as a source, but it is deprecated soon after.
        (&other, &["fd79::2/64", "fd79::9/64 preferred_lft 0"]),
    ] {
        for address in addresses {
            m.ip(&format!("addr add {address} dev link0 nodad"));
        }
        m.ip("link set link0 up");
    }
    let url = "https://[fd79::1]:6443";
    let up =
        [&["up", "--bind-address", "fd79::1", "--node-ip", "fd79::1", "--node-name", "first"], &RANGES[..]].concat();
    server.start(&up);
    server.ready(&["first"]);
    let token = server.command(KEMUDI).args(["token", "create"]).output().unwrap();
    let join = String::from_utf8(token.stdout).unwrap();
    let words: Vec<&str> = join.split_whitespace().collect();
    assert_eq!(words[..4], ["kemudi", "agent", "--join", url], "{join}{}", String::from_utf8_lossy(&token.stderr));
    let args = ["agent", "--join", url, "--token", words[5], "--ca-hash", words[7], "--node-name", "second"];
    let wrong = other.kemudi(&[&args[..], &["--node-ip", "192.0.2.1"]].concat());
    let wrong = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(
        wrong.contains(
            "--node-ip 192.0.2.1: nodes of a cluster with --cluster-cidr fd00:10:244::/56 reach each other by IPv6"
        ),
        "{wrong}"
    );
    other.start(&args);
    server.ready(&["second"]);
    assert_eq!(texts(&server.json(&["node", "second"])["status"]["addresses"], "address"), ["fd79::2", "second"]);
    server.apply(&web());
    let count = || server.json(&["daemonset", "web"])["status"]["numberReady"].as_u64().filter(|n| *n == 2);
    server.eventually("a pod on both nodes", count);
    let mut seen = BTreeSet::new();
    let ingress = ip("fd00:10:97::1");
    server.eventually("both pods answer", || {
        seen.extend(server.get(ingress, 80, "/hostname"));
        (seen.len() == 2).then_some(())
    });
    for name in &seen {
        server.eventually("logs are read", || server.kubectl(&["logs", name]).ok());
    }
    for m in [&other, &server] {
        m.purge();
        let left: Vec<String> =
            m.left().into_iter().filter(|l| !l.contains("link0") && !l.contains("fd79::")).collect();
        assert_eq!(left, Vec::<String>::new());
    }
}
