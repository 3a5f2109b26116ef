//! Several nodes: on one machine (`kemudi up --nodes`), and on machines of their own (`kemudi agent`), which are network namespaces here.
#![allow(clippy::unwrap_used)] // a broken setup is a failed test

mod cni;
mod dual_stack;
mod egress;
mod growing;
mod hugepages;
mod ipv6_alone;
mod machine;
mod pressure;
mod stop_signals;

use machine::{KEMUDI, Machine, WEB, WEB_SERVICE};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

/// Held by tests that reserve memory of the machine or depend on how much there is.
static MEMORY: std::sync::Mutex<()> = std::sync::Mutex::new(());

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

/// A pod that leaves a node that is cut off, and the secret that it uses.
const MOVER: &str = "
apiVersion: v1
kind: Secret
metadata: {name: mine}
stringData: {word: open}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: mover}
spec:
  selector: {matchLabels: {app: mover}}
  template:
    metadata: {labels: {app: mover}}
    spec:
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - {weight: 100, preference: {matchFields: [{key: metadata.name, operator: In, values: [node-2]}]}}
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      containers:
      - {name: c, image: 'kemudi.local/demo:latest', args: [sleep], env: [{name: W, valueFrom: {secretKeyRef: {name: mine, key: word}}}]}
";

/// A pod in the network of its node.
const ON_HOST: &str = "
apiVersion: v1
kind: Pod
metadata: {name: on-host}
spec:
  hostNetwork: true
  nodeName: node-1
  containers:
  - {name: c, image: 'kemudi.local/demo:latest', readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}}
";

fn address(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 89, 0, 11 + u8::try_from(node).unwrap())
}

/// The running pods of an application, as (name, node, restarts).
fn pods(m: &Machine, app: &str) -> BTreeSet<(String, String, i64)> {
    let list = m.json(&["pods", "-l", &format!("app={app}")]);
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let items = list["items"].as_array().into_iter().flatten();
    let running = items.filter(|p| p["status"]["phase"] == "Running" && p["metadata"]["deletionTimestamp"].is_null());
    let status = |p: &Value| p["status"]["containerStatuses"][0]["restartCount"].as_i64().unwrap_or(-1);
    running.map(|p| (text(&p["metadata"]["name"]), text(&p["spec"]["nodeName"]), status(p))).collect()
}

/// How often the container of the DaemonSet was started again on each node.
fn restarts(m: &Machine) -> Vec<i64> {
    let web = pods(m, "web");
    NODES.iter().filter_map(|node| web.iter().find(|p| p.1 == *node)).map(|p| p.2).collect()
}

fn node(m: &Machine, action: &str, name: &str) {
    let output = m.kemudi(&["node", action, name]);
    assert!(output.status.success(), "{action} {name}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The process of a node's agent.
fn agent(m: &Machine, name: &str) -> Option<i32> {
    let text = String::from_utf8(m.kemudi(&["node", "list"]).stdout).unwrap();
    let line = text.lines().find(|l| l.starts_with(name)).map(str::to_owned)?;
    line.split("pid ").nth(1)?.trim().parse().ok()
}

/// Waits until pods of all nodes answer at the node port of each node.
fn all_answer(m: &Machine, nodes: &[usize], want: &BTreeSet<String>) {
    for n in nodes {
        let mut seen = BTreeSet::new();
        m.eventually(&format!("{want:?} answer at node {n}"), || {
            seen.extend(m.get(address(*n), 30080, "/hostname"));
            want.is_subset(&seen).then_some(())
        });
    }
}

/// Reads the secret with the credentials of a node.
fn read_as(m: &Machine, name: &str) -> Result<String, String> {
    let pki = m.data().join("nodes").join(name).join("pki");
    let (pair, ca) = (pki.join("client.pem"), pki.join("ca.crt"));
    let (pair, ca) = (pair.to_str().unwrap(), ca.to_str().unwrap());
    let kubeconfig = m.directory.path().join("none");
    std::fs::write(&kubeconfig, "").unwrap();
    let args = [
        "--kubeconfig",
        kubeconfig.to_str().unwrap(),
        "--server",
        "https://10.89.0.1:6443",
        "--certificate-authority",
        ca,
    ];
    m.kubectl(&[&args[..], &["--client-certificate", pair, "--client-key", pair, "get", "secret", "mine"]].concat())
}

/// Whether a pod, in its network namespace, connects to an address.
fn connects(m: &Machine, pod: &str, to: Ipv4Addr, port: u16) -> bool {
    let pod = m.json(&["pod", pod]);
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let (node, uid) = (text(&pod["spec"]["nodeName"]), text(&pod["metadata"]["uid"]));
    let namespace = m.data().join("nodes").join(node).join("netns").join(uid);
    connects_from(&namespace, to, port)
}

/// Whether a process in a network namespace connects to an address.
fn connects_from(namespace: &std::path::Path, to: Ipv4Addr, port: u16) -> bool {
    let connect = || std::net::TcpStream::connect_timeout(&(to, port).into(), std::time::Duration::from_millis(500));
    network::namespace::run_in(Some(namespace), connect).is_ok()
}

/// Network policies between pods of different nodes, and a load balancer for all of them and this machine.
fn policies_and_balancers(m: &Machine, names: &BTreeSet<String>) {
    m.apply(
        "{apiVersion: v1, kind: Service, metadata: {name: balanced}, spec: {type: LoadBalancer, externalTrafficPolicy: Local, \
         selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}}",
    );
    let ingress =
        || m.json(&["service", "balanced"])["status"]["loadBalancer"]["ingress"][0]["ip"].as_str()?.parse().ok();
    let balancer: Ipv4Addr = m.eventually("the load balancer has an address", ingress);
    let mut seen = BTreeSet::new();
    m.eventually("pods of all nodes answer there", || {
        seen.extend(m.get(balancer, 80, "/hostname"));
        names.is_subset(&seen).then_some(())
    });
    let ip = |name: &String| m.json(&["pod", name])["status"]["podIP"].as_str().unwrap().parse::<Ipv4Addr>().unwrap();
    let reach = |expect: bool| {
        for from in names {
            m.eventually(&format!("{from} reaches the others: {expect}"), || {
                let others = names.iter().filter(|to| *to != from).map(ip);
                others.into_iter().all(|to| connects(m, from, to, 8080) == expect).then_some(())
            });
        }
    };
    reach(true);
    for name in names {
        m.eventually("every pod reaches the load balancer", || connects(m, name, balancer, 80).then_some(()));
    }
    let policy = |app: &str| {
        m.apply(&format!(
            "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: web}}, spec: {{podSelector: {{matchLabels: {{app: web}}}}, \
             ingress: [{{from: [{{podSelector: {{matchLabels: {{app: {app}}}}}}}]}}]}}}}"
        ));
    };
    policy("other");
    reach(false);
    policy("web");
    reach(true);
    m.ok(&["delete", "networkpolicy/web", "service/balanced"]);
}

/// Clauses: K10.node-authorizer K01.network-policy K01.load-balancer
#[test]
fn three_nodes_on_one_machine() {
    let mut m = Machine::new("nodes");
    let up = ["up", "--nodes", "3"];
    let small = m.kemudi(&["up", "--nodes", "5", "--node-network", "10.89.0.0/28"]);
    assert!(String::from_utf8_lossy(&small.stderr).contains("no free address in 10.89.0.0/28"));
    assert_eq!(m.left(), Vec::<String>::new(), "a start that is refused leaves nothing");
    let server = m.start(&up);
    m.ready(&NODES);
    m.apply(&format!("{WEB}{WEB_SERVICE}"));
    m.apply(MOVER);
    let web = m.eventually("a pod on every node", || Some(pods(&m, "web")).filter(|p| p.len() == 3));
    let names: BTreeSet<String> = web.iter().map(|(name, ..)| name.clone()).collect();
    assert_eq!(web.iter().map(|(_, node, _)| node.as_str()).collect::<Vec<_>>().len(), 3);
    all_answer(&m, &[0, 1, 2], &names);
    for name in &names {
        let proxied = m.ok(&["get", "--raw", &format!("/api/v1/namespaces/default/pods/{name}:8080/proxy/hostname")]);
        assert_eq!(proxied.trim(), name, "the API server reaches the pods of every node");
        assert!(!m.ok(&["logs", name]).is_empty(), "logs of every node");
    }
    policies_and_balancers(&m, &names);
    let slices = m.json(&["endpointslices", "kube-dns", "-n", "kube-system"]);
    assert_eq!(slices["endpoints"].as_array().map(Vec::len), Some(3), "every node has a DNS server: {slices}");

    let images = String::from_utf8(m.kemudi(&["image", "list"]).stdout).unwrap();
    let demo: Vec<&str> = images.lines().filter(|l| l.starts_with("kemudi.local/demo")).collect();
    assert!(demo.len() == 1 && demo[0].ends_with(&NODES.join(",")), "one image with one id: {images}");

    m.apply(ON_HOST);
    let answer = m.eventually("a pod in the network of its node", || m.get(address(0), 8080, "/hostname").ok());
    assert_eq!(answer, "node-1", "each node has a host name of its own");

    // Secrets only reach the node of the pod that uses them.
    let on = |m: &Machine| m.eventually("the pod runs", || pods(m, "mover").pop_first());
    assert_eq!(on(&m).1, "node-2");
    read_as(&m, "node-2").unwrap();
    let refused = read_as(&m, "node-1").unwrap_err();
    assert!(refused.contains("no relationship found between node 'node-1' and this object"), "{refused}");

    // A node that is cut off: its pods go elsewhere, and when it returns, it ends the former ones.
    let former = on(&m).0;
    let uid = m.json(&["pod", &former])["metadata"]["uid"].as_str().unwrap().to_owned();
    let refused = m.kemudi(&["node", "shutdown"]);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && message.contains("cannot be shut down one by one"), "{message}");
    node(&m, "cut", "node-2");
    m.eventually("node-2 is not ready", || (!m.is_ready("node-2")).then_some(()));
    let moved = m.eventually("the pod moved", || pods(&m, "mover").into_iter().find(|p| p.1 != "node-2"));
    assert_ne!(moved.0, former);
    let there = m.data().join("nodes/node-2/node/pods").join(&uid);
    assert!(there.exists(), "the former one runs on, on its own");
    node(&m, "heal", "node-2");
    m.ready(&["node-2"]);
    m.eventually("the former pod is gone", || (!there.exists() && m.json(&["pod", &former]).is_null()).then_some(()));
    all_answer(&m, &[0, 1, 2], &names);

    // An agent that is killed is started again, and its pods go on. A node that loses its power starts its pods again.
    let before = agent(&m, "node-1").unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(before), nix::sys::signal::Signal::SIGKILL).unwrap();
    m.eventually("the agent of node-1 is back", || agent(&m, "node-1").filter(|pid| *pid != before));
    node(&m, "stop", "node-3");
    assert!(agent(&m, "node-3").is_none());
    node(&m, "start", "node-3");
    m.eventually("the pod of node-3 was started again", || (restarts(&m) == [0, 0, 1]).then_some(()));
    all_answer(&m, &[0, 1, 2], &names);
    let unknown = m.kemudi(&["node", "stop", "node-9"]);
    assert!(!unknown.status.success());
    assert!(
        String::from_utf8_lossy(&unknown.stderr)
            .contains("there is no node \"node-9\"; the nodes are node-1, node-2, node-3")
    );

    // The server is killed, and its agents end; pods go on, also when it is started again.
    let agents: Vec<i32> = NODES.iter().filter_map(|n| agent(&m, n)).collect();
    m.kill(server);
    m.eventually("the agents end", || {
        let ended = |pid: &i32| nix::sys::signal::kill(nix::unistd::Pid::from_raw(*pid), None).is_err();
        agents.iter().all(ended).then_some(())
    });
    all_answer(&m, &[0], &names);
    m.start(&up);
    m.ready(&NODES);
    all_answer(&m, &[0, 1, 2], &names);
    assert_eq!(restarts(&m), [0, 0, 1]);

    m.purge();
    assert_eq!(m.left(), Vec::<String>::new());
}

/// Two machines on one link: a server with a node, and a node that joins.
#[test]
fn a_machine_joins() {
    let (mut server, mut other) = (Machine::new("server"), Machine::new("other"));
    server.ip(&format!("link add link0 type veth peer name link0 netns {}", other.name));
    for (m, address) in [(&server, "192.168.79.1"), (&other, "192.168.79.2")] {
        m.ip(&format!("addr add {address}/24 dev link0"));
        m.ip("link set link0 up");
    }
    let address = "192.168.79.1";
    let url = "https://192.168.79.1:6443";
    server.start(&["up", "--bind-address", address, "--node-ip", address, "--node-name", "first"]);
    server.ready(&["first"]);
    let token = server.command(KEMUDI).args(["token", "create"]).output().unwrap();
    let join = String::from_utf8(token.stdout).unwrap();
    let words: Vec<&str> = join.split_whitespace().collect();
    assert_eq!(words[..4], ["kemudi", "agent", "--join", url], "{join}{}", String::from_utf8_lossy(&token.stderr));
    let (token, hash) = (words[5], words[7]);

    let refused = |args: &[&str]| {
        let output = other.kemudi(&[&["agent", "--join", url, "--node-name", "second"], args].concat());
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).trim().to_owned()
    };
    assert!(refused(&[]).starts_with("error: second is no node of a cluster yet; give a bootstrap token with --token"));
    assert!(refused(&["--token", "short"]).contains("invalid bootstrap token"));
    let wrong = format!("{}.aaaaaaaaaaaaaaaa", &token[..6]);
    assert!(refused(&["--token", &wrong]).contains("it is not trusted"));
    let zeros = format!("sha256:{}", "0".repeat(64));
    assert!(refused(&["--token", token, "--ca-hash", &zeros]).contains("which is none of --ca-hash"));
    assert!(
        refused(&["--token", "zzzzzz.aaaaaaaaaaaaaaaa"]).contains("has not signed its CA with this bootstrap token")
    );
    let taken = other.kemudi(&["agent", "--join", url, "--node-name", "first", "--token", token, "--ca-hash", hash]);
    let taken = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert!(taken.contains("the node first is ready already, at 192.168.79.1"), "{taken}");
    std::fs::remove_dir_all(other.data().join("pki")).unwrap();

    let agent = other.start(&["agent", "--join", url, "--token", token, "--ca-hash", hash, "--node-name", "second"]);
    server.ready(&["second"]);
    server.apply(&format!("{WEB}{WEB_SERVICE}"));
    let web = server.eventually("a pod on both nodes", || Some(pods(&server, "web")).filter(|p| p.len() == 2));
    let want: BTreeSet<String> = web.iter().map(|(name, ..)| name.clone()).collect();
    let mut seen = BTreeSet::new();
    server.eventually("both pods answer", || {
        seen.extend(server.get(address.parse::<Ipv4Addr>().unwrap(), 30080, "/hostname"));
        want.is_subset(&seen).then_some(())
    });
    let there = web.iter().find(|p| p.1 == "second").unwrap().0.clone();
    server.eventually("its logs are read", || server.kubectl(&["logs", &there]).ok());

    // It needs no token to start again, and its pod goes on.
    other.kill(agent);
    other.start(&["agent", "--join", url, "--node-name", "second"]);
    server.eventually("the agent is back", || server.kubectl(&["logs", &there]).ok());
    assert_eq!(pods(&server, "web"), web);
    for m in [&other, &server] {
        m.purge();
        let left: Vec<String> =
            m.left().into_iter().filter(|l| !l.contains("link0") && !l.contains("192.168.79.")).collect();
        assert_eq!(left, Vec::<String>::new());
    }
}
