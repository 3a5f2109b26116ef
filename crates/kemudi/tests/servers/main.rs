//! Several servers on one etcd. Everything is on loopback, in directories of its own.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod checker;
mod cluster;
mod tls;

use client::{Api, ApiResource, Client, ListOptions, WriteOptions};
use cluster::{Cluster, Etcd, PATIENCE, Server, eventually, failed_start, has_etcd, maps};
use meta::Object;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

fn resource(client: &Client, group: &str, plural: &str, kind: &str, namespace: &str) -> Api<Object> {
    client.dynamic(&ApiResource::named(group, "v1", plural, kind, true)).namespace(namespace)
}

fn object(value: Value) -> Object {
    Object::from_value(value).unwrap()
}

async fn create(api: &Api<Object>, value: Value) -> Object {
    api.create(&WriteOptions::default(), &object(value)).await.unwrap()
}

/// The process that holds a lease of `kube-system`.
async fn holder(client: &Client, lease: &str) -> String {
    let leases = resource(client, "coordination.k8s.io", "leases", "Lease", "kube-system");
    let found = leases.get_opt(lease).await.unwrap();
    found.and_then(|l| Some(l.str_at(&["spec", "holderIdentity"])?.to_owned())).unwrap_or_default()
}

/// How many servers have written that they lead.
fn leads(server: &Server, lease: &str) -> usize {
    server.log().matches(&format!("this server leads lease=\"{lease}\"")).count()
}

/// Controllers and scheduler run on one server; when it is killed, another one takes over in time, and clients go on.
#[tokio::test(flavor = "multi_thread")]
async fn another_server_takes_over() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::start().await;
    let deployment = |name: &str| {
        let template =
            json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        json!({"metadata": {"name": name}, "spec": {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": template}})
    };
    let pods = async |client: &Client, app: &str| -> usize {
        let options = ListOptions { label_selector: format!("app={app}"), ..ListOptions::default() };
        let pods = resource(client, "", "pods", "Pod", "default").list(&options).await;
        pods.map_or(0, |list| list.items.len())
    };
    let deployments = |client: &Client| resource(client, "apps", "deployments", "Deployment", "default");
    create(&deployments(&cluster.clients[1]), deployment("first")).await;
    eventually("the controllers run", || async { pods(&cluster.clients[2], "first").await == 2 }).await;
    for lease in ["kube-controller-manager", "kube-scheduler"] {
        let leaders: usize = cluster.servers.iter().map(|s| leads(s, lease)).sum();
        assert_eq!(leaders, 1, "{lease}");
    }
    // Twice: the last server leads in the end.
    for round in ["second", "third"] {
        let living = |c: &Cluster| (0..3).filter(|n| c.servers[*n].process.is_running()).collect::<Vec<_>>();
        let before = holder(&cluster.clients[living(&cluster)[0]], "kube-controller-manager").await;
        let leader = living(&cluster)
            .into_iter()
            .max_by_key(|n| leads(&cluster.servers[*n], "kube-controller-manager"))
            .unwrap();
        cluster.servers[leader].process.kill();
        let killed = Instant::now();
        let other = living(&cluster)[0];
        let client = &cluster.clients[other];
        create(&deployments(client), deployment(round)).await;
        eventually("another server's controllers run", || async { pods(client, round).await == 2 }).await;
        let took = killed.elapsed();
        println!("a killed leader was replaced after {took:?}");
        assert_ne!(holder(client, "kube-controller-manager").await, before);
        assert!(took < Duration::from_secs(15), "{took:?}");
    }
    // A server that stops in order hands its leases over at once.
    for n in 0..3 {
        if !cluster.servers[n].process.is_running() {
            cluster.servers[n].process.start();
            cluster.servers[n].ready().await;
        }
    }
    let leader = (0..3).max_by_key(|n| leads(&cluster.servers[*n], "kube-controller-manager")).unwrap();
    let other = (leader + 1) % 3;
    let before = holder(&cluster.clients[other], "kube-controller-manager").await;
    for n in 0..3 {
        cluster.servers[n].process.signal(Signal::SIGTERM);
        assert_eq!(cluster.servers[n].process.wait(), Some(0), "{}", cluster.servers[n].log());
        if n == 0 {
            cluster.servers[n].process.start();
            cluster.servers[n].ready().await;
        }
    }
    let client = &cluster.clients[0];
    eventually("the last server leads", || async {
        let now = holder(client, "kube-controller-manager").await;
        !now.is_empty() && now != before
    })
    .await;
}

/// Acknowledged writes, and what watchers see, under kills of servers and of etcd members. `KEMUDI_KILLS` and `KEMUDI_SEED` set how many and
/// which.
#[tokio::test(flavor = "multi_thread")]
async fn kills_lose_nothing() {
    if !has_etcd() {
        return;
    }
    let number = |name: &str, default| std::env::var(name).ok().and_then(|t| t.parse().ok()).unwrap_or(default);
    let mut cluster = Cluster::start().await;
    let (kills, seed) = (number("KEMUDI_KILLS", 10), number("KEMUDI_SEED", 1));
    let report = checker::check(&mut cluster, kills as usize, seed).await;
    println!("{kills} kills: {report:?}");
    assert!(report.acknowledged > 20 && report.history >= report.acknowledged, "there was no load: {report:?}");
}

/// What a server answers is never older than what another one answered before.
#[tokio::test(flavor = "multi_thread")]
async fn every_server_sees_writes_of_others_at_once() {
    if !has_etcd() {
        return;
    }
    let cluster = Cluster::start().await;
    let [one, two, three] = [0, 1, 2].map(|n| maps(&cluster.clients[n]));
    let map = |name: &str, value: usize| json!({"metadata": {"name": name}, "data": {"v": value.to_string()}});
    for round in 0..30 {
        let name = format!("m{round}");
        let made = create(&one, map(&name, 0)).await;
        let seen = two.get(&name).await.unwrap();
        assert_eq!(seen.resource_version(), made.resource_version());
        // The version is known to the second server, although the third one wrote it.
        let mut changed = three.update(&name, &WriteOptions::default(), &seen).await.unwrap();
        changed.set(&["data", "v"], "1");
        let changed = three.update(&name, &WriteOptions::default(), &changed).await.unwrap();
        let mut next = changed.clone();
        next.set(&["data", "v"], "2");
        let next = two.update(&name, &WriteOptions::default(), &next).await.unwrap();
        assert!(two.update(&name, &WriteOptions::default(), &changed).await.unwrap_err().is_conflict());
        let list = one.list(&ListOptions::default()).await.unwrap();
        let listed = list.items.iter().find(|o| o.name() == name).unwrap();
        assert_eq!(listed.resource_version(), next.resource_version());
        let exact = ListOptions { resource_version: list.resource_version, ..ListOptions::default() };
        assert!(three.list(&exact).await.is_ok(), "a version of another server is not too new");
        one.delete(&name, &Default::default()).await.unwrap();
        assert!(two.get_opt(&name).await.unwrap().is_none());
        assert!(create(&two, map(&name, 3)).await.uid() != made.uid());
    }
    // A namespace, and objects in it, through different servers.
    let namespaces = |client: &Client| client.dynamic(&ApiResource::named("", "v1", "namespaces", "Namespace", false));
    for round in 0..10 {
        let name = format!("n{round}");
        create(&namespaces(&cluster.clients[0]), json!({"metadata": {"name": name}})).await;
        let inside = resource(&cluster.clients[1], "", "configmaps", "ConfigMap", &name);
        create(&inside, map("m", round)).await;
    }
    // Addresses and ports are unique over all servers.
    let mut services = tokio::task::JoinSet::new();
    for n in 0..60 {
        let api = resource(&cluster.clients[n % 3], "", "services", "Service", "default");
        services.spawn(async move {
            create(
                &api,
                json!({"metadata": {"name": format!("s{n}")}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}}),
            )
            .await
        });
    }
    let services: Vec<Object> = services.join_all().await;
    let distinct =
        |path: &dyn Fn(&Object) -> String| services.iter().map(path).collect::<std::collections::BTreeSet<_>>().len();
    assert_eq!(distinct(&|o| o.str_at(&["spec", "clusterIP"]).unwrap().to_owned()), 60);
    assert_eq!(distinct(&|o| o.at(&["spec", "ports"]).unwrap()[0]["nodePort"].to_string()), 60);
}

/// The service `kubernetes` has the addresses of the servers that run. (Nobody dials them here.)
#[tokio::test(flavor = "multi_thread")]
async fn the_service_has_the_running_servers() {
    if !has_etcd() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(directory.path(), 1, None, &[]);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |n: usize, token: Option<&std::path::Path>| {
        let (address, bind) = (format!("192.0.2.{n}"), format!("127.0.0.{n}"));
        let flags = ["--advertise-address", &address, "--bind-address", &bind];
        Server::start_at(directory.path(), &format!("s{n}"), &etcd.urls, token, &flags, (&bind, port))
    };
    let first = start(1, None);
    let client = first.ready().await;
    let token = first.data.join("cluster.token");
    let (mut second, mut third) = (start(2, Some(&token)), start(3, Some(&token)));
    second.ready().await;
    third.ready().await;
    let addresses = async || -> Vec<String> {
        let slices = resource(&client, "discovery.k8s.io", "endpointslices", "EndpointSlice", "default");
        let slice = slices.get_opt("kubernetes").await.unwrap();
        let endpoints = slice.and_then(|s| s.at(&["endpoints"]).cloned()).unwrap_or_default();
        endpoints.as_array().into_iter().flatten().map(|e| e["addresses"][0].as_str().unwrap().to_owned()).collect()
    };
    let have = async |want: &[&str]| eventually(&format!("{want:?}"), || async { addresses().await == want }).await;
    have(&["192.0.2.1", "192.0.2.2", "192.0.2.3"]).await;
    second.process.signal(Signal::SIGTERM);
    assert_eq!(second.process.wait(), Some(0));
    assert_eq!(addresses().await, ["192.0.2.1", "192.0.2.3"], "one that stops leaves at once");
    third.process.kill();
    have(&["192.0.2.1"]).await;
    second.process.start();
    have(&["192.0.2.1", "192.0.2.2"]).await;
    let endpoints = resource(&client, "", "endpoints", "Endpoints", "default").get("kubernetes").await.unwrap();
    assert_eq!(endpoints.at(&["subsets"]).unwrap()[0]["addresses"].as_array().unwrap().len(), 2);
}

/// TLS with client certificates, keys that are shared, and starts that fail with a reason.
#[tokio::test(flavor = "multi_thread")]
async fn servers_join_with_the_token_and_certificates() {
    if !has_etcd() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let files = tls::Files::create(directory.path(), "etcd");
    let etcd = Etcd::start(directory.path(), 1, Some(&files), &[]);
    let text = |p: &std::path::PathBuf| p.display().to_string();
    let (ca, crt, key) = (text(&files.authority), text(&files.certificate), text(&files.key));
    let certificates = ["--etcd-cafile", &ca, "--etcd-certfile", &crt, "--etcd-keyfile", &key];
    let first = Server::start(directory.path(), "first", &etcd.urls, None, &certificates);
    let client = first.ready().await;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"k": "v"}});
    create(&resource(&client, "", "secrets", "Secret", "default"), secret).await;

    let failed = |name: &str, token: Option<&std::path::Path>, more: &[&str]| {
        failed_start(directory.path(), name, &etcd.urls, token, more)
    };
    let message = failed("a", None, &certificates);
    assert!(message.contains("this etcd has a cluster already: to join it, copy cluster.token"), "{message}");
    let other = directory.path().join("other.token");
    std::fs::write(&other, "x".repeat(40)).unwrap();
    let message = failed("b", Some(&other), &certificates);
    assert!(message.contains("the cluster token does not open the keys of the cluster"), "{message}");
    let message = failed("c", None, &["--etcd-cafile", &ca, "--etcd-certfile", &crt]);
    assert!(message.contains("--etcd-keyfile"), "{message}");
    let message = failed_start(directory.path(), "d", &["localhost:1".into()], None, &[]);
    assert!(message.contains("--etcd-servers: \"localhost:1\" is no URL"), "{message}");

    let (ok, text) = kemudi(&["up", "--data-dir", &text(&directory.path().join("e")), "--etcd-servers", &etcd.urls[0]]);
    assert!(!ok && text.contains("use `kemudi server`"), "{text}");
    assert!(!directory.path().join("e").exists());

    let token = first.data.join("cluster.token");
    let second = Server::start(directory.path(), "second", &etcd.urls, Some(&token), &certificates);
    let joined = second.ready().await;
    for name in ["pki/ca.key", "pki/sa.key", "admin.token", "keys/encryption.yaml"] {
        let read = |s: &Server| std::fs::read(s.data.join(name)).unwrap();
        assert_eq!(read(&first), read(&second), "{name}");
    }
    let read = resource(&joined, "", "secrets", "Secret", "default").get("s").await.unwrap();
    assert_eq!(read.str_at(&["data", "k"]), Some("dg=="), "encrypted by one server, decrypted by another");
    // A data directory of another cluster is not taken over.
    std::fs::write(second.data.join("pki/sa.key"), "other").unwrap();
    drop(second);
    let message = failed("second", Some(&token), &certificates);
    assert!(message.contains("the data directory belongs to another cluster"), "{message}");
}

/// An etcd that is slow, gone, or full.
#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_fails_is_reported_and_returns() {
    if !has_etcd() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut etcd = Etcd::start(directory.path(), 1, None, &["--quota-backend-bytes", "2000000"]);
    let server = Server::start(directory.path(), "server", &etcd.urls, None, &[]);
    let client = server.ready().await;
    let map = |name: &str, size: usize| json!({"metadata": {"name": name}, "data": {"v": "v".repeat(size)}});
    create(&maps(&client), map("kept", 1)).await;

    // Slow: it answers nothing for a while, and requests wait.
    etcd.members[0].signal(Signal::SIGSTOP);
    etcd.members[0].until_stopped();
    let api = maps(&client);
    let waiting = tokio::spawn(async move { api.get("kept").await });
    tokio::time::timeout(Duration::from_millis(500), std::future::pending::<()>()).await.unwrap_err();
    let early = waiting.is_finished();
    etcd.members[0].signal(Signal::SIGCONT);
    let read = waiting.await.unwrap();
    assert!(!early && read.is_ok(), "answered while etcd was stopped: {early}; {read:?}");

    // Gone: an error that says so, readiness fails, and it is used again when it is back.
    etcd.members[0].kill();
    let refused = maps(&client).create(&WriteOptions::default(), &object(map("lost", 1))).await.unwrap_err();
    assert!(refused.to_string().contains("etcd"), "{refused}");
    let ready = async || client.raw(client::client::request(http::Method::GET, "/readyz", "*/*", None).unwrap()).await;
    eventually("readiness fails", || async { ready().await.is_ok_and(|r| r.status() == 500) }).await;
    // An old state is served to those who accept it.
    let any = ListOptions { resource_version: "0".into(), ..ListOptions::default() };
    assert!(maps(&client).list(&any).await.unwrap().items.iter().any(|o| o.name() == "kept"));
    etcd.members[0].start();
    eventually("it is ready again", || async { ready().await.is_ok_and(|r| r.status() == 200) }).await;
    let end = Instant::now() + PATIENCE;
    while maps(&client).get("kept").await.is_err() {
        assert!(Instant::now() < end, "reads work again");
    }
    assert!(maps(&client).get_opt("lost").await.unwrap().is_none());

    // Full: writes are refused with the reason, and reads go on.
    let mut refused = None;
    for n in 0..20 {
        let made = maps(&client).create(&WriteOptions::default(), &object(map(&format!("full-{n}"), 400_000))).await;
        if let Err(e) = made {
            refused = Some(e.to_string());
            break;
        }
    }
    let refused = refused.expect("the database is full");
    assert!(refused.contains("database space exceeded"), "{refused}");
    assert_eq!(maps(&client).get("kept").await.unwrap().str_at(&["data", "v"]), Some("v"));
}

/// Everything that a server stores, without revisions: they are those of the store.
async fn contents(client: &Client) -> std::collections::BTreeMap<String, Value> {
    let mut all = std::collections::BTreeMap::new();
    for (group, plural, kind) in [
        ("", "configmaps", "ConfigMap"),
        ("", "secrets", "Secret"),
        ("", "services", "Service"),
        ("apps", "deployments", "Deployment"),
        ("", "pods", "Pod"),
        ("networking.k8s.io", "ipaddresses", "IPAddress"),
    ] {
        let api = client.dynamic(&ApiResource::named(group, "v1", plural, kind, plural != "ipaddresses"));
        for mut o in api.list(&ListOptions::default()).await.unwrap().items {
            o.set_resource_version("");
            all.insert(format!("{plural} {} {}", o.namespace(), o.name()), o.into_value());
        }
    }
    all
}

fn kemudi(arguments: &[&str]) -> (bool, String) {
    let output = std::process::Command::new(cluster::BINARY).args(arguments).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// From an embedded store to etcd and back, while the servers run. Old watches are told that they expired.
#[tokio::test(flavor = "multi_thread")]
async fn backups_move_between_the_embedded_store_and_etcd() {
    if !has_etcd() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let first =
        Server::start(directory.path(), "embedded", &[], None, &["--disable-admission-plugins", "ServiceAccount"]);
    let client = first.ready().await;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"k": "v"}});
    create(&resource(&client, "", "secrets", "Secret", "default"), secret).await;
    let service = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
    create(&resource(&client, "", "services", "Service", "default"), service).await;
    for n in 0..300 {
        let map = json!({"metadata": {"name": format!("m{n}")}, "data": {"v": "v".repeat(n * 20)}});
        create(&maps(&client), map).await;
    }
    let before = maps(&client).list(&ListOptions::default()).await.unwrap().resource_version;
    let (ok, text) = kemudi(&["backup", "--data-dir", &path("embedded"), &path("one")]);
    assert!(ok && text.contains(" objects at revision "), "{text}");
    let (ok, text) = kemudi(&["backup", "--data-dir", &path("embedded"), &path("one")]);
    assert!(!ok && text.contains("exists already"), "{text}");
    let (ok, text) = kemudi(&["restore", &path("nothing"), "--data-dir", &path("x")]);
    assert!(!ok && text.contains("is not a backup of kemudi"), "{text}");
    let (ok, text) = kemudi(&["restore", &path("one"), "--data-dir", &path("embedded")]);
    assert!(!ok && text.contains("is not empty"), "{text}");
    let original = contents(&client).await;
    drop(first);

    let etcd = Etcd::start(directory.path(), 1, None, &[]);
    let urls = etcd.urls.join(",");
    let to_etcd = ["restore", &path("one"), "--data-dir", &path("shared"), "--etcd-servers", &urls];
    let (ok, text) = kemudi(&to_etcd);
    assert!(ok && text.contains(" objects restored"), "{text}");
    let again = ["restore", &path("one"), "--data-dir", &path("again"), "--etcd-servers", &urls];
    let (ok, text) = kemudi(&again);
    assert!(!ok && text.contains("this etcd has a cluster already"), "{text}");
    let (ok, text) = kemudi(&[&again[..], &["--cluster-token-file", &path("shared/cluster.token")]].concat());
    assert!(!ok && text.contains("objects under /registry"), "{text}");
    assert!(!directory.path().join("again").exists());
    let second = Server::start(directory.path(), "shared", &etcd.urls, None, &[]);
    let client = second.ready().await;
    let expired = |version: &str| client::WatchOptions { resource_version: version.into(), ..Default::default() };
    let first_event = async |client: &Client, version: &str| {
        use futures::StreamExt;
        let mut events = maps(client).watch(&expired(version)).await?;
        events.next().await.unwrap_or_else(|| panic!("the watch ended"))
    };
    assert!(first_event(&client, &before).await.unwrap_err().is_expired());
    let moved = contents(&client).await;
    let missing: Vec<&String> = original.iter().filter(|(k, v)| moved.get(*k) != Some(v)).map(|(k, _)| k).collect();
    // The server's own objects name its address.
    let own = ["configmaps kube-public cluster-info", "configmaps kube-system extension-apiserver-authentication"];
    assert!(missing.iter().all(|k| own.contains(&k.as_str())), "{missing:?}");

    let (ok, text) = kemudi(&["backup", "--data-dir", &path("shared"), "--etcd-servers", &urls, &path("two")]);
    assert!(ok, "{text}");
    let before = maps(&client).list(&ListOptions::default()).await.unwrap().resource_version;
    drop((second, etcd));
    let (ok, text) = kemudi(&["restore", &path("two"), "--data-dir", &path("back")]);
    assert!(ok, "{text}");
    let third = Server::start(directory.path(), "back", &[], None, &[]);
    let client = third.ready().await;
    assert!(first_event(&client, &before).await.unwrap_err().is_expired());
    let returned = contents(&client).await;
    let missing: Vec<&String> = original.iter().filter(|(k, v)| returned.get(*k) != Some(v)).map(|(k, _)| k).collect();
    assert!(missing.iter().all(|k| own.contains(&k.as_str())), "{missing:?}");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(directory.path().join("two")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o700, "it contains keys");
}
