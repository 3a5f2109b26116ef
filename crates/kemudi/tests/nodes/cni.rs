//! Pods in the networks of CNI plugins: the reference plugins of Debian, which `./x test` fetches, and one of this test.

use crate::connects_from;
use crate::machine::{KEMUDI, Machine, WEB, WEB_SERVICE};
use serde_json::{Value, json};
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Logs its calls. The file `mode` beside it says how it fails; otherwise it leaves the pod to the plugins after it.
const SCRIPT: &str = r#"#!/bin/sh
directory=${0%/*}; mode=$(cat "$directory/mode"); input=$(cat)
printf '%s\t%s\t%s\n' "$CNI_COMMAND" "$CNI_ARGS" "$input" >> "$directory/log"
case $mode-$CNI_COMMAND in
  rubbish-ADD) echo rubbish; exit 0 ;;
  crash-ADD) kill -SEGV $$ ;;
  hang-ADD) sleep 1000 ;;
  no-deletion-DEL) echo '{"code": 50, "msg": "not now"}'; exit 1 ;;
  *-ADD) echo '{"cniVersion": "1.0.0"}' ;;
esac
"#;

const ON_HOST: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: on-host}\nspec:\n  hostNetwork: true\n  nodeName: 'n'\n  containers:\n  - {name: c, image: 'kemudi.local/demo:latest', args: [sleep]}\n";

/// The directory of the reference plugins.
fn reference_plugins() -> Option<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"));
    let fetched = target.join("clients/cni/usr/lib/cni");
    [PathBuf::from("/usr/lib/cni"), PathBuf::from("/opt/cni/bin"), fetched]
        .into_iter()
        .find(|d| ["bridge", "host-local", "portmap"].iter().all(|name| d.join(name).is_file()))
}

struct Network<'a> {
    machine: &'a Machine,
    directory: PathBuf,
}

impl Network<'_> {
    fn write(&self, name: &str, content: &str) {
        // Nobody reads half a file.
        let path = self.directory.join(name);
        let new = path.with_extension("new");
        fs::write(&new, content).unwrap();
        fs::rename(new, path).unwrap();
    }

    fn mode(&self, mode: &str) {
        self.write("bin/mode", mode);
    }

    fn calls(&self, command: &str) -> Vec<(String, Value)> {
        let text = fs::read_to_string(self.directory.join("bin/log")).unwrap_or_default();
        let call = |line: &str| {
            let [first, arguments, input] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
            (first == command).then(|| (arguments.to_owned(), serde_json::from_str(input).unwrap()))
        };
        text.lines().filter_map(call).collect()
    }

    /// The addresses that host-local has given away.
    fn reserved(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory.join("addresses/pods")).into_iter().flatten().flatten();
        let names = entries.map(|e| e.file_name().into_string().unwrap());
        names.filter(|n| n.parse::<Ipv4Addr>().is_ok()).collect()
    }

    fn pod(&self, name: &str, container: &Value, annotations: &Value) {
        let mut c = json!({"name": "c", "image": "kemudi.local/demo:latest"});
        c.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}, "annotations": annotations},
            "spec": {"nodeName": "n", "terminationGracePeriodSeconds": 1, "containers": [c]}});
        self.machine.apply(&pod.to_string());
    }

    fn ready(&self, name: &str) -> Value {
        self.machine.eventually(&format!("{name} is ready"), || {
            let pod = self.machine.json(&["pod", name]);
            let mut conditions = pod["status"]["conditions"].as_array()?.iter();
            conditions.any(|c| c["type"] == "Ready" && c["status"] == "True").then_some(pod)
        })
    }
}

fn namespace(m: &Machine, pod: &Value) -> PathBuf {
    m.data().join("netns").join(format!("{}-0", pod["metadata"]["uid"].as_str().unwrap()))
}

/// Clauses: K01.cni
#[test]
fn plugins_connect_pods() {
    let Some(plugins) = reference_plugins() else {
        println!("skipped: the CNI plugins of Debian (containernetworking-plugins) are not on this machine");
        return;
    };
    let mut m = Machine::new("cni");
    m.kubelet.push_str("\nruntimeRequestTimeout: 3s");
    let directory = m.directory.path().join("cni");
    for name in ["conf", "bin"] {
        fs::create_dir_all(directory.join(name)).unwrap();
    }
    let script = directory.join("bin/first");
    fs::write(&script, SCRIPT).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let (configurations, programs) =
        (directory.join("conf").display().to_string(), format!("{}/bin,{}", directory.display(), plugins.display()));
    let up = [
        "up",
        "--node-name",
        "n",
        "--pod-network",
        "cni",
        "--cni-conf-dir",
        &configurations,
        "--cni-bin-dir",
        &programs,
    ];
    // What Kubernetes asks of a node whose plugin has a bridge.
    let _ = m.command("sysctl").args(["-qw", "net.bridge.bridge-nf-call-iptables=1"]).status();
    let server = m.start(&up);
    let not_ready = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns \
                     error: cni plugin not initialized";
    m.eventually("the node is not ready", || {
        let c = m.condition("n", "Ready");
        (c["status"] == "False" && c["reason"] == "KubeletNotReady" && c["message"] == not_ready).then_some(())
    });
    let n = Network { machine: &m, directory };
    m.apply(ON_HOST);
    m.eventually("a pod in the node's network runs", || {
        (m.json(&["pod", "on-host"])["status"]["phase"] == "Running").then_some(())
    });
    n.pod("early", &json!({}), &json!({}));
    m.event("early", "NetworkNotReady", &format!("network is not ready: {not_ready}"));
    n.write("conf/50-first.conflist", "{");
    m.eventually("the invalid file is named", || {
        let message = m.condition("n", "Ready")["message"].as_str()?.to_owned();
        (message.starts_with(not_ready) && message.contains("50-first.conflist: error parsing configuration"))
            .then_some(())
    });
    failures(&n);
    let before = connected(&n);
    // The agent is killed, and a pod is deleted whose plugin cannot.
    n.mode("no-deletion");
    m.ok(&["delete", "pod", "early", "--wait=false"]);
    let message = m.event("early", "FailedKillPod", "plugin type=");
    assert!(
        message.starts_with("error killing pod: failed to \"KillPodSandbox\" for \"") && message.contains("not now"),
        "{message}"
    );
    m.kill(server);
    let server = m.start(&up);
    m.ready(&["n"]);
    let n = Network { machine: &m, directory: m.directory.path().join("cni") };
    assert_eq!(n.ready("web")["status"]["podIP"], before["status"]["podIP"]);
    assert!(!m.json(&["pod", "early"]).is_null(), "it is not gone before its network is");
    n.mode("fine");
    m.eventually("the pod is gone", || m.json(&["pod", "early"]).is_null().then_some(()));
    assert!(n.calls("DEL").iter().any(|(arguments, input)| {
        arguments.contains("K8S_POD_NAME=early") && input["prevResult"]["ips"][0]["address"].is_string()
    }));
    assert_eq!(n.reserved().len(), 2, "web and client");
    // Not with its pods into another network.
    m.kill(server);
    let refused = m.command(KEMUDI).arg("up").arg("--data-dir").arg(m.data()).output().unwrap();
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && error.contains("are in the network of CNI plugins"), "{error}");
    let n = Network { machine: &m, directory: m.directory.path().join("cni") };
    m.purge();
    assert_eq!(n.reserved(), Vec::<String>::new());
    // The bridge and the tables are the plugins'.
    let left: Vec<String> = m.left().into_iter().filter(|l| l.contains("kemudi") || l.contains("veth")).collect();
    assert_eq!(left, Vec::<String>::new());
}

/// Plugins that do not do what they should.
fn failures(n: &Network<'_>) {
    let m = n.machine;
    let list = |kind: &str| json!({"cniVersion": "1.0.0", "name": "broken", "plugins": [{"type": kind}]}).to_string();
    for (mode, part) in [
        ("rubbish", "the result cannot be decoded"),
        ("crash", "netplugin failed with no error message: signal: 11"),
        ("hang", "netplugin did not end within 3s and was killed"),
        ("nothing", "it has no address of eth0"),
    ] {
        n.mode(mode);
        n.write("conf/50-first.conflist", &list("first"));
        m.ready(&["n"]);
        n.pod(mode, &json!({}), &json!({}));
        let message = m.event(mode, "FailedCreatePodSandBox", part);
        let start = "Failed to create pod sandbox: failed to setup network for sandbox \"";
        assert!(message.starts_with(start), "{message}");
        assert_eq!(m.json(&["pod", mode])["status"]["phase"], "Pending");
        m.ok(&["delete", "pod", mode]);
    }
    n.write("conf/50-first.conflist", &list("absent"));
    n.pod("missing", &json!({}), &json!({}));
    m.event("missing", "FailedCreatePodSandBox", "failed to find plugin \"absent\" in path [");
    m.ok(&["delete", "pod", "missing", "--wait=false"]);
    let path = n.directory.join("bin/absent");
    fs::write(&path, SCRIPT).unwrap();
    n.pod("forbidden", &json!({}), &json!({}));
    m.event("forbidden", "FailedCreatePodSandBox", "bin/absent: Permission denied");
    m.ok(&["delete", "pod", "forbidden", "--wait=false"]);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["missing", "forbidden"] {
        m.eventually("it is gone once the plugin can be executed", || m.json(&["pod", name]).is_null().then_some(()));
    }
}

/// The reference plugins, after the one of this test.
fn connected(n: &Network<'_>) -> Value {
    let m = n.machine;
    n.mode("fine");
    let all = json!({"portMappings": true, "bandwidth": true, "dns": true, "ipRanges": true});
    let ipam =
        json!({"type": "host-local", "dataDir": n.directory.join("addresses"), "routes": [{"dst": "0.0.0.0/0"}]});
    let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
        {"type": "first", "capabilities": all},
        {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true, "ipam": ipam,
         "capabilities": {"ipRanges": true}},
        {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
    ]});
    n.write("conf/10-pods.conflist", &list.to_string());
    let probe = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1});
    n.pod(
        "web",
        &json!({"readinessProbe": probe, "ports": [{"containerPort": 8080, "hostPort": 18080}]}),
        &json!({"kubernetes.io/egress-bandwidth": "8M"}),
    );
    n.pod("client", &json!({"readinessProbe": probe}), &json!({}));
    let [web, client] = ["web", "client"].map(|name| n.ready(name));
    n.ready("early");
    let ip = |pod: &Value| pod["status"]["podIP"].as_str().unwrap().parse::<Ipv4Addr>().unwrap();
    assert!(ip(&web).octets()[..3] == [10, 244, 0] && ip(&web) != ip(&client), "{web}");
    assert_eq!(web["status"]["podIPs"], json!([{"ip": web["status"]["podIP"]}]));
    assert!(m.ip("-o link").contains("cni0"));
    // The node, other pods, host ports, services and DNS.
    assert_eq!(m.get(ip(&web), 8080, "/hostname").unwrap(), "web");
    m.eventually("the host port", || {
        m.get(Ipv4Addr::new(10, 244, 0, 1), 18080, "/hostname").ok().filter(|t| t == "web")
    });
    m.apply("{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}}");
    let service: Ipv4Addr = m.json(&["service", "web"])["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
    m.eventually("the service answers the node", || m.get(service, 80, "/hostname").ok().filter(|t| t == "web"));
    let from = namespace(m, &client);
    assert!(connects_from(&from, ip(&web), 8080), "pods reach each other");
    assert!(connects_from(&from, Ipv4Addr::new(10, 96, 0, 10), 53), "pods reach DNS");
    if m.command("sysctl").args(["-n", "net.bridge.bridge-nf-call-iptables"]).output().unwrap().stdout == b"1\n" {
        assert!(connects_from(&from, service, 80), "pods reach pods of the same bridge through services");
    }
    let adds = n.calls("ADD");
    let (arguments, input) = adds.iter().find(|(arguments, _)| arguments.contains("K8S_POD_NAME=web;")).unwrap();
    let uid = web["metadata"]["uid"].as_str().unwrap();
    assert_eq!(
        *arguments,
        format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID={uid}-0;K8S_POD_UID={uid}"
        )
    );
    let capabilities = &input["runtimeConfig"];
    assert_eq!(capabilities["portMappings"], json!([{"hostPort": 18080, "containerPort": 8080, "protocol": "tcp"}]));
    assert_eq!(capabilities["bandwidth"]["egressRate"], 8_000_000);
    assert_eq!(capabilities["ipRanges"], json!([[{"subnet": "10.244.0.0/24"}]]));
    assert_eq!(capabilities["dns"]["servers"], json!(["10.96.0.10"]));
    let summary: Value = serde_json::from_str(&m.ok(&["get", "--raw", "/api/v1/nodes/n/proxy/stats/summary"])).unwrap();
    let of_web = summary["pods"].as_array().unwrap().iter().find(|p| p["podRef"]["name"] == "web").unwrap();
    assert!(of_web["network"]["rxBytes"].as_u64().unwrap() > 0, "{of_web}");
    web
}

/// The nodes of one machine share the configuration and programs of plugins, and each has the state of its own.
///
/// Clauses: K01.cni
#[test]
fn plugins_connect_pods_of_nodes_of_one_machine() {
    let Some(plugins) = reference_plugins() else {
        println!("skipped: the CNI plugins of Debian (containernetworking-plugins) are not on this machine");
        return;
    };
    let mut m = Machine::new("cnis");
    let configurations = m.directory.path().join("conf");
    fs::create_dir_all(&configurations).unwrap();
    // Unique on the machine, since without a state of their own nodes would share the directory of this name.
    let name = format!("kemudi-test-{}", std::process::id());
    let ipam = json!({"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}]});
    let list = json!({"cniVersion": "1.0.0", "name": name, "plugins": [
        {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true, "ipam": ipam,
         "capabilities": {"ipRanges": true}},
    ]});
    fs::write(configurations.join("10-pods.conflist"), list.to_string()).unwrap();
    let (configurations, programs) = (configurations.display().to_string(), plugins.display().to_string());
    let flags = ["--pod-network", "cni", "--cni-conf-dir", &configurations, "--cni-bin-dir", &programs];
    let up = [&["up", "--nodes", "2"], &flags[..]].concat();
    let server = m.start(&up);
    let names = ["node-1", "node-2"];
    m.ready(&names);
    m.apply(&format!("{WEB}{WEB_SERVICE}"));
    let pods = |m: &Machine| -> Vec<(String, Ipv4Addr, PathBuf)> {
        let list = m.json(&["pods", "-l", "app=web"]);
        let items = list["items"].as_array().into_iter().flatten();
        let ready = items.filter(|p| p["status"]["containerStatuses"][0]["ready"] == true);
        let mut found: Vec<_> = ready
            .map(|p| {
                let node = p["spec"]["nodeName"].as_str().unwrap();
                let sandbox = format!("{}-0", p["metadata"]["uid"].as_str().unwrap());
                let namespace = m.data().join("nodes").join(node).join("netns").join(sandbox);
                let ip = p["status"]["podIP"].as_str().unwrap().parse().unwrap();
                (p["metadata"]["name"].as_str().unwrap().to_owned(), ip, namespace)
            })
            .collect();
        found.sort_by_key(|(_, ip, _)| *ip);
        found
    };
    let web = m.eventually("a pod on both nodes", || Some(pods(&m)).filter(|p| p.len() == 2));
    for (number, node) in names.iter().enumerate() {
        let range = m.json(&["node", node])["spec"]["podCIDR"].as_str().unwrap().parse::<network::Cidr>().unwrap();
        assert_eq!(web.iter().filter(|(_, ip, _)| range.contains(*ip)).count(), 1, "{node} {number}: {range} {web:?}");
        let state = m.data().join("nodes").join(node).join("network/plugins/networks").join(&name);
        let given: Vec<_> = fs::read_dir(&state).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(given.iter().filter(|g| g.to_str().unwrap().parse::<Ipv4Addr>().is_ok()).count(), 1, "{given:?}");
    }
    assert!(!Path::new("/var/lib/cni/networks").join(&name).exists(), "the machine's own directory is not used");
    for (from, _, namespace) in &web {
        for (to, ip, _) in &web {
            m.eventually(&format!("{from} reaches {to}"), || connects_from(namespace, *ip, 8080).then_some(()));
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    m.eventually("both pods answer at a node port", || {
        seen.extend(m.get(Ipv4Addr::new(10, 89, 0, 11), 30080, "/hostname"));
        (seen.len() == 2).then_some(())
    });
    // Restarts, and garbage collection with them, take no addresses away.
    m.kill(server);
    m.start(&up);
    m.ready(&names);
    m.ok(&["delete", "pod", &web[0].0]);
    let again = m.eventually("another pod", || {
        Some(pods(&m)).filter(|p| p.len() == 2 && p.iter().all(|(name, ..)| *name != web[0].0))
    });
    assert!(again.iter().any(|(name, ip, _)| (name, ip) == (&web[1].0, &web[1].1)), "{again:?}");
    let said = m.purge();
    assert!(!said.contains("warning"), "{said}");
    assert_eq!(m.left(), Vec::<String>::new());
}

#[test]
fn flags_that_do_not_fit_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for (flags, error) in [
        (&["--cni-conf-dir", "/x"][..], "--cni-conf-dir has no effect without --pod-network cni"),
        (
            &["--pod-network", "cni", "--container-runtime-endpoint", "unix:///x.sock"],
            "--pod-network cni cannot be used with a container runtime endpoint",
        ),
    ] {
        let output = Command::new(KEMUDI)
            .arg("up")
            .arg("--data-dir")
            .arg(directory.path().join("d"))
            .args(flags)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(error), "{flags:?}: {said}");
        assert!(!directory.path().join("d").exists());
    }
}
