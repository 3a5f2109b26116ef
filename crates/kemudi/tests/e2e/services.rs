//! Services: addresses, ports, names.

use crate::runner::Case;
use crate::story::{Story, http_get};
use serde_json::{Value, json};
use std::collections::BTreeSet;

pub const TESTS: &[Case] = &[
    ("services::one_address_for_many_pods", one_address_for_many_pods),
    ("services::a_port_of_the_node", a_port_of_the_node),
    ("services::have_names", have_names),
    ("services::headless_names_are_the_pods", headless_names_are_the_pods),
    ("services::external_names_lead_elsewhere", external_names_lead_elsewhere),
    ("services::without_pods_refuse", without_pods_refuse),
    ("services::load_balancers_have_addresses", load_balancers_have_addresses),
    ("services::ports_of_the_node_lead_to_pods", ports_of_the_node_lead_to_pods),
    ("services::the_proxy_says_how_it_is", the_proxy_says_how_it_is),
];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// Two servers that say their names, and somebody inside the cluster to ask.
fn servers(s: &Story) -> [Value; 2] {
    for name in ["one", "two"] {
        let probe = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1});
        let ports = json!([{"name": "http", "containerPort": 8080}]);
        let labels = json!({"app": "web"});
        let c = json!({"name": "c", "image": crate::story::IMAGE, "ports": ports, "readinessProbe": probe});
        let spec =
            json!({"terminationGracePeriodSeconds": 1, "containers": [c], "hostname": name, "subdomain": "named"});
        s.create("pods", json!({"metadata": {"name": name, "labels": labels}, "spec": spec}));
    }
    [s.ready("one"), s.ready("two")]
}

fn asker(s: &Story) {
    s.shell_pod("asker", FOREVER, json!({}), json!({}));
    s.ready("asker");
}

fn service(s: &Story, name: &str, spec: Value) -> Value {
    s.create("services", json!({"metadata": {"name": name}, "spec": spec}))
}

fn ip(o: &Value) -> String {
    o["status"]["podIP"].as_str().unwrap().to_owned()
}

/// Asks until both have answered.
fn both_answer(s: &Story, mut ask: impl FnMut() -> Option<String>) {
    let mut seen = BTreeSet::new();
    s.eventually("answers of both", || {
        seen.extend(ask().map(|a| a.trim().to_owned()));
        (seen.len() == 2).then_some(())
    });
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["one", "two"]);
}

/// The addresses that a name has, asked from a pod.
fn lookup(s: &Story, name: &str) -> Vec<String> {
    let o = s.exec("asker", &["nslookup", name]);
    let text = String::from_utf8_lossy(&o.stdout).into_owned();
    let (_, answers) = text.split_once("\n\n").unwrap_or_default();
    let mut found: Vec<String> =
        answers.lines().filter_map(|l| l.strip_prefix("Address: ")).map(|a| a.trim().to_owned()).collect();
    found.sort();
    found
}

/// Clauses: K01.clusterip K01.target-port K01.from-pods K04.selector
fn one_address_for_many_pods(s: &Story) {
    servers(s);
    asker(s);
    let web = service(s, "web", json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]}));
    let address = web["spec"]["clusterIP"].as_str().unwrap().to_owned();
    both_answer(s, || http_get(&address, "/hostname"));
    let url = format!("http://{address}/hostname");
    both_answer(s, || {
        let o = s.exec("asker", &["wget", "-q", "-O", "-", &url]);
        o.status.success().then(|| String::from_utf8_lossy(&o.stdout).into_owned())
    });
    // One that is taken out by its label is asked no more.
    s.ok(&["label", "pod", "two", "app=other", "--overwrite"]);
    s.until("endpoints/web", |e| e["subsets"][0]["addresses"].as_array().is_some_and(|a| a.len() == 1));
    s.eventually("only one", || {
        let answers: Vec<_> = (0..10).map(|_| http_get(&address, "/hostname")).collect();
        answers.iter().all(|a| a.as_deref() == Some("one\n")).then_some(())
    });
}

/// Clauses: K01.nodeport
fn a_port_of_the_node(s: &Story) {
    servers(s);
    asker(s);
    let web = service(
        s,
        "web",
        json!({"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}),
    );
    let port = web["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    assert!((30000..=32767).contains(&port));
    let node = s.get_at("/api/v1/nodes/e2e");
    let addresses = node["status"]["addresses"].as_array().unwrap();
    let internal = addresses.iter().find(|a| a["type"] == "InternalIP").unwrap();
    let address = format!("{}:{port}", internal["address"].as_str().unwrap());
    both_answer(s, || http_get(&address, "/hostname"));
    let url = format!("http://{address}/hostname");
    both_answer(s, || {
        let o = s.exec("asker", &["wget", "-q", "-O", "-", &url]);
        o.status.success().then(|| String::from_utf8_lossy(&o.stdout).into_owned())
    });
    // Two may not have the same.
    let second = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: second}}\nspec:\n  type: NodePort\n  ports: [{{port: 80, nodePort: {port}}}]\n"
    );
    assert!(s.apply_fails(&second).contains("provided port is already allocated"));
}

/// Clauses: K01.load-balancer
fn load_balancers_have_addresses(s: &Story) {
    servers(s);
    asker(s);
    let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "selector": {"app": "web"},
        "ports": [{"port": 80, "targetPort": 8080}]});
    let web = service(s, "web", spec);
    let web = s.until("services/web", |w| w["status"]["loadBalancer"]["ingress"][0]["ip"].is_string() && *w != web);
    let ingress = &web["status"]["loadBalancer"]["ingress"][0];
    assert_eq!(ingress["ipMode"], "VIP");
    let address = ingress["ip"].as_str().unwrap();
    assert!(address.starts_with("10.97.0."), "{address}");
    s.event("web", "EnsuredLoadBalancer");
    both_answer(s, || http_get(address, "/hostname"));
    let url = format!("http://{address}/hostname");
    both_answer(s, || {
        let o = s.exec("asker", &["wget", "-q", "-O", "-", &url]);
        o.status.success().then(|| String::from_utf8_lossy(&o.stdout).into_owned())
    });
    let check = format!("127.0.0.1:{}", web["spec"]["healthCheckNodePort"]);
    let health: Value = serde_json::from_str(&http_get(&check, "/healthz").unwrap()).unwrap();
    assert_eq!(health["localEndpoints"], 2, "{health}");
    // Clients of other addresses are not let in.
    s.patch("services/web", json!({"spec": {"loadBalancerSourceRanges": ["192.0.2.0/24"]}}));
    s.eventually("no answer", || http_get(address, "/hostname").is_none().then_some(()));
    s.ok(&["delete", "service", "web"]);
    s.gone("services/web");
}

/// On the ports of kube-proxy: load balancers take a node out that the cluster autoscaler is about to remove.
fn the_proxy_says_how_it_is(s: &Story) {
    let health = |path: &str| http_get("127.0.0.1:10256", path).map(|t| serde_json::from_str::<Value>(&t).unwrap());
    let healthy = s.eventually("the proxy is healthy", || health("/healthz"));
    assert_eq!((&healthy["nodeEligible"], &healthy["status"]["IPv4"]["healthy"]), (&json!(true), &json!(true)));
    let leaving = "ToBeDeletedByClusterAutoscaler=1:PreferNoSchedule";
    s.ok(&["taint", "node", "e2e", leaving]);
    s.eventually("no new connections", || health("/healthz").is_none().then_some(()));
    assert!(health("/livez").unwrap().get("nodeEligible").is_none());
    s.ok(&["taint", "node", "e2e", &format!("{leaving}-")]);
    s.eventually("new connections", || health("/healthz"));

    let machine = |path: &str| http_get("127.0.0.1:10249", path);
    assert_eq!(machine("/proxyMode").as_deref(), Some("nftables"));
    let metrics = machine("/metrics").unwrap();
    assert!(metrics.contains("kubeproxy_sync_proxy_rules_duration_seconds_count"), "{metrics}");
    assert_eq!(machine("/nothing"), None);

    // And on that of the kubelet.
    let kubelet = |path: &str| http_get("127.0.0.1:10248", path);
    assert_eq!((kubelet("/healthz").as_deref(), kubelet("/healthz/ping").as_deref()), (Some("ok"), Some("ok")));
    assert_eq!(kubelet("/healthz?verbose").as_deref(), Some("[+]ping ok\nhealthz check passed\n"));
    assert_eq!(kubelet("/metrics"), None);
}

/// Clauses: K01.dns K01.search-path
fn have_names(s: &Story) {
    servers(s);
    asker(s);
    let web = service(s, "web", json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}));
    let address = web["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let full = format!("web.{}.svc.cluster.local", s.ns);
    s.eventually("the name", || (lookup(s, &full) == [address.clone()]).then_some(()));
    // By its short names, as programs in pods ask: the search path leads to it.
    for short in ["web".to_owned(), format!("web.{}", s.ns), format!("web.{}.svc", s.ns)] {
        let o = s.exec("asker", &["getent", "hosts", &short]);
        let found = String::from_utf8_lossy(&o.stdout).into_owned();
        assert_eq!(found.split_whitespace().collect::<Vec<_>>(), [address.as_str(), full.as_str()], "{short}");
    }
    assert!(lookup(s, &format!("nothing.{}.svc.cluster.local", s.ns)).is_empty());
    let resolv = s.sh("asker", "cat /etc/resolv.conf");
    assert!(resolv.contains(&format!("search {}.svc.cluster.local svc.cluster.local cluster.local", s.ns)), "{resolv}");
    assert!(resolv.contains("options ndots:5"), "{resolv}");
}

/// Clauses: K01.headless K01.pod-names
fn headless_names_are_the_pods(s: &Story) {
    let pods = servers(s);
    asker(s);
    let named = service(
        s,
        "named",
        json!({"clusterIP": "None", "selector": {"app": "web"}, "ports": [{"name": "http", "port": 8080}]}),
    );
    assert_eq!(named["spec"]["clusterIP"], "None");
    let mut expected: Vec<String> = pods.iter().map(ip).collect();
    expected.sort();
    let full = format!("named.{}.svc.cluster.local", s.ns);
    s.eventually("the addresses of both", || (lookup(s, &full) == expected).then_some(()));
    assert_eq!(lookup(s, &format!("one.{full}")), [ip(&pods[0])]);
    assert_eq!(lookup(s, &format!("two.{full}")), [ip(&pods[1])]);
}

/// Clauses: K01.external-name
fn external_names_lead_elsewhere(s: &Story) {
    asker(s);
    let spec = json!({"type": "ExternalName", "externalName": "kubernetes.default.svc.cluster.local"});
    let outside = service(s, "outside", spec);
    assert!(outside["spec"]["clusterIP"].is_null());
    let full = format!("outside.{}.svc.cluster.local", s.ns);
    s.eventually("the other name", || {
        let text = String::from_utf8_lossy(&s.exec("asker", &["nslookup", &full]).stdout).into_owned();
        text.contains("canonical name = kubernetes.default.svc.cluster.local").then_some(())
    });
}

/// Clauses: K01.no-endpoints
fn without_pods_refuse(s: &Story) {
    let web = service(s, "web", json!({"selector": {"app": "nobody"}, "ports": [{"port": 80}]}));
    let address = format!("{}:80", web["spec"]["clusterIP"].as_str().unwrap());
    s.eventually("a refusal", || {
        let limit = std::time::Duration::from_secs(2);
        let refused = std::net::TcpStream::connect_timeout(&address.parse().unwrap(), limit);
        refused.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused).then_some(())
    });
}

/// Conformance has it so: one number leads to three pods, by address of the node and by protocol.
fn ports_of_the_node_lead_to_pods(s: &Story) {
    const PORT: u16 = 54323;
    let node = s.get_at("/api/v1/nodes/e2e");
    let addresses = node["status"]["addresses"].as_array().unwrap();
    let internal = addresses.iter().find(|a| a["type"] == "InternalIP").unwrap()["address"].as_str().unwrap();
    let pod = |name: &str, address: &str, protocol: &str| {
        let port = json!({"containerPort": 8080, "hostPort": PORT, "hostIP": address, "protocol": protocol});
        let probe = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1});
        let c = json!({"name": "c", "image": crate::story::IMAGE, "ports": [port], "readinessProbe": probe});
        let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [c], "hostname": name});
        s.create("pods", json!({"metadata": {"name": name}, "spec": spec}));
    };
    pod("loopback", "127.0.0.1", "TCP");
    pod("internal", internal, "TCP");
    pod("datagrams", internal, "UDP");
    for name in ["loopback", "internal", "datagrams"] {
        s.ready(name);
    }
    let ask = |address: &str| http_get(&format!("{address}:{PORT}"), "/hostname").unwrap_or_default();
    assert_eq!(ask("127.0.0.1").trim(), "loopback");
    assert_eq!(ask(internal).trim(), "internal");
    asker(s);
    assert_eq!(s.sh("asker", &format!("wget -q -O - http://{internal}:{PORT}/hostname")).trim(), "internal");
    pod("late", "", "TCP");
    let message = s.event("late", "FailedScheduling");
    assert!(message.contains("1 node(s) didn't have free ports for the requested pod ports"), "{message}");
    for name in ["loopback", "internal"] {
        s.ok(&["delete", "pod", name]);
    }
    s.ready("late");
    for address in ["127.0.0.1", internal] {
        s.eventually("the port leads to the next pod", || (ask(address).trim() == "late").then_some(()));
    }
}
