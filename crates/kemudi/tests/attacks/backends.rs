//! What the server dials for users: endpoints written by users of a namespace, and backends that do not respond.

use crate::connections::{admin, tls};
use crate::runner::Case;
use crate::story::Story;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub const TESTS: &[Case] = &[
    ("backends::services_lead_to_no_address_of_the_machine", services_lead_to_no_address_of_the_machine),
    ("backends::nothing_outlives_the_client_of_a_proxy", nothing_outlives_the_client_of_a_proxy),
];

/// An administrator's webhooks and API services name a service; what is behind it is written by a user of its namespace.
fn services_lead_to_no_address_of_the_machine(s: &Story) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let ports = json!([{"name": "https", "port": port}]);
    s.create("services", json!({"metadata": {"name": "named"}, "spec": {"ports": ports}}));
    // A name that looks like an address: what is no address is not checked as one.
    s.create(
        "endpointslices",
        json!({"metadata": {"name": "named", "labels": {"kubernetes.io/service-name": "named"}}, "addressType": "FQDN",
            "ports": ports, "endpoints": [{"addresses": ["127.0.0.1"]}]}),
    );
    let outside = |name: &str, to: &str| {
        s.create("services", json!({"metadata": {"name": name}, "spec": {"type": "ExternalName", "externalName": to}}));
    };
    outside("loopback", "127.0.0.1");
    outside("localhost", "localhost");
    outside("link", "169.254.169.254");
    let kinds = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    for (service, why) in [
        ("named", "no endpoints available for service \"named\""),
        ("loopback", "address not allowed"),
        ("localhost", "address not allowed"),
        ("link", "address not allowed"),
    ] {
        let name = format!("{service}.{}.example.com", s.ns);
        let hook = json!({"name": name, "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 10,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": s.ns}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
            "clientConfig": {"service": {"namespace": s.ns, "name": service, "port": port}}});
        s.post(kinds, json!({"metadata": {"name": name}, "webhooks": [hook]}));
        let complaint = s.eventually(&format!("the webhook of {service} is asked"), || {
            let o = s.k(&["create", "configmap", &format!("asks-{service}"), "--dry-run=server"]);
            (!o.status.success()).then(|| String::from_utf8_lossy(&o.stderr).into_owned())
        });
        assert!(complaint.contains(why), "{service}: {complaint}");
        s.ok(&["delete", "validatingwebhookconfiguration", &name]);

        let group = format!("{service}.{}.example.com", s.ns);
        let name = format!("v1.{group}");
        let spec = json!({"group": group, "version": "v1", "groupPriorityMinimum": 10, "versionPriority": 10,
            "insecureSkipTLSVerify": true, "service": {"namespace": s.ns, "name": service, "port": port}});
        s.post(services, json!({"metadata": {"name": name}, "spec": spec}));
        let has_message =
            |o: &Value| o["status"]["conditions"][0]["message"].as_str().unwrap_or_default().contains(why);
        let o = s.until_at(&format!("{services}/{name}"), has_message);
        assert_eq!(o["status"]["conditions"][0]["status"], "False", "{service}");
        s.ok(&["delete", "apiservice", &name]);
    }
    assert!(listener.accept().is_err(), "somebody was led here");
}

/// Sockets that are connected to a port of an address and still held by somebody.
fn held_towards(address: Ipv4Addr, port: u16) -> usize {
    let all = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let remote = format!("{:08X}:{port:04X}", u32::from_ne_bytes(address.octets()));
    let rows = all.lines().map(|l| l.split_ascii_whitespace().collect::<Vec<_>>());
    rows.filter(|r| r.len() > 9 && r[2] == remote && r[9] != "0").count()
}

/// A backend that answers a little and then nothing; and the same on a connection that has become something else.
fn nothing_outlives_the_client_of_a_proxy(s: &Story) {
    let node = s.get_at("/api/v1/nodes/e2e");
    let addresses = node["status"]["addresses"].as_array().unwrap();
    let own = addresses.iter().find(|a| a["type"] == "InternalIP").unwrap()["address"].as_str().unwrap();
    let own: Ipv4Addr = own.parse().unwrap();
    let listener = TcpListener::bind((own, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    s.create(
        "services",
        json!({"metadata": {"name": "silent"}, "spec": {"ports": [{"port": 80, "targetPort": port}]}}),
    );
    s.create(
        "endpointslices",
        json!({"metadata": {"name": "silent", "labels": {"kubernetes.io/service-name": "silent"}}, "addressType": "IPv4",
            "ports": [{"name": "", "port": port}], "endpoints": [{"addresses": [own]}]}),
    );
    let config = std::fs::read_to_string(&s.cluster.kubeconfig).unwrap();
    let server = config.lines().find_map(|l| l.trim().strip_prefix("server: ")).unwrap();
    let api: u16 = server.rsplit(':').next().unwrap().trim_matches('/').parse().unwrap();
    let token = admin(&s.cluster.directory.join("data"));
    let path = format!("/api/v1/namespaces/{}/services/silent/proxy/x", s.ns);
    for (more, answer) in [
        ("", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"),
        (
            "Connection: Upgrade\r\nUpgrade: silence\r\n",
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: silence\r\n\r\nhello",
        ),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{more}\r\n");
        let mut client = s.cluster.runtime.block_on(async {
            let mut client = tls(api, b"http/1.1").await;
            client.write_all(request.as_bytes()).await.unwrap();
            client.flush().await.unwrap();
            client
        });
        let (mut backend, _) = listener.accept().unwrap();
        answer_with(&mut backend, answer);
        s.cluster.runtime.block_on(async {
            let mut text = Vec::new();
            while !String::from_utf8_lossy(&text).contains("hello") {
                assert!(client.read_buf(&mut text).await.unwrap() > 0, "{}", String::from_utf8_lossy(&text));
            }
        });
        assert_eq!(held_towards(own, port), 1);
        // In order, as clients do: what breaks off is noticed anyway.
        s.cluster.runtime.block_on(async {
            client.shutdown().await.unwrap();
            drop(client);
        });
        s.eventually("the server gives the connection up", || (held_towards(own, port) == 0).then_some(()));
        drop(backend);
    }
}

/// Reads the head of a request and answers.
fn answer_with(backend: &mut TcpStream, answer: &str) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        backend.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    backend.write_all(answer.as_bytes()).unwrap();
}
