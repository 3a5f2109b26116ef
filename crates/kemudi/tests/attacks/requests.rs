//! Requests that cost the server more than they cost the client: duplicate keys, aliases, patterns, depth.

use crate::runner::Case;
use crate::running::{self, Running};
use crate::story::Story;
use client::https::Https;
use client::kubeconfig::{Kubeconfig, Overrides};
use client::{Client, client::request};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

pub const TESTS: &[Case] = &[("large_bodies_hold_nobody_up", large_bodies)];

/// What others wait for an answer while large bodies are worked on, on a slow and busy machine. Without threads of their own,
/// and with quadratic decoders, it takes as long as the bodies do: minutes.
const ANSWER: Duration = Duration::from_secs(5);
/// How long the process takes to stop while it works on such bodies.
const STOP: Duration = Duration::from_secs(40);
/// What it may take of memory for several bodies of 3 MB at a time, in MB. One body alone could take any amount.
const PEAK: usize = 3000;
/// How long one body is worked on, at most.
const BODY: Duration = Duration::from_secs(60);

/// An answer is no larger than what was sent, once in its message and once in its causes.
const LARGEST: usize = 6 << 20;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";

/// A client with a token of its own, on a connection of its own.
async fn client_of(data: &Path, token: &str) -> Client {
    let written = std::fs::read_to_string(data.join("kubeconfig")).unwrap();
    let (head, tail) = written.split_once("token: ").unwrap();
    let tail = tail.split_once('\n').unwrap().1;
    let config = Kubeconfig::parse(&format!("{head}token: {token}\n{tail}")).unwrap();
    let resolved = config.resolve(&Overrides::default()).unwrap();
    Client::new(Https::new(&resolved.config().await.unwrap()).unwrap(), "attack")
}

/// The most memory the process has taken, in MB.
fn peak_memory(server: &Running) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() >> 10
}

/// The code and the size of an answer; none if the connection ended.
async fn send(client: &Client, method: Method, path: &str, media: &str, body: Vec<u8>) -> Option<(StatusCode, usize)> {
    let body = (!body.is_empty()).then_some((media, body));
    let answer = client.raw(request(method, path, JSON, body).unwrap()).await.ok()?;
    let code = answer.status();
    Some((code, client::client::collect(answer.into_body()).await.ok()?.len()))
}

/// A token of a service account without any role.
async fn token_without_role(server: &Running) -> String {
    let path = "/api/v1/namespaces/default/serviceaccounts";
    let made = server.call("POST", path, &json!({"metadata": {"name": "nobody"}})).await;
    assert_eq!(made.0, 201, "{}", made.1);
    let (code, answer) = server.call("POST", &format!("{path}/nobody/token"), &json!({"spec": {}})).await;
    assert_eq!(code, 201, "{answer}");
    answer["status"]["token"].as_str().unwrap().to_owned()
}

/// Bodies that anybody may send, each below the largest size of a request.
fn bodies() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let review = |more: String| {
        let spec = r#""spec":{"nonResourceAttributes":{"path":"/","verb":"get"}}"#;
        let text =
            format!(r#"{{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1",{spec},{more}}}"#);
        text.into_bytes()
    };
    let list = |n: usize, item: &dyn Fn(usize) -> String| (0..n).map(item).collect::<Vec<_>>().join(",");
    let duplicates = review(list(60_000, &|i| format!(r#""k{}":1"#, i / 2)));
    let unknown = review(list(80_000, &|i| format!(r#""k{i}":1"#)));
    let inner = list(60_000, &|_| r#""p":{"a":1,"a":2}"#.into());
    let long = review(format!(r#""{}":{{{inner}}}"#, "x".repeat(400_000)));
    let mut merges = String::from("kind: SelfSubjectAccessReview\na0: &a0 {k: x}\n");
    for i in 1..20_000 {
        merges.push_str(&format!("a{i}: &a{i} {{<<: *a{}, k{i}: x, l{i}: x}}\n", i - 1));
    }
    let repeated = format!("a: &a {}\nb: [{}]\n", "x".repeat(1_000_000), vec!["*a"; 300_000].join(","));
    let tagged = |directives: String, tag: &str, nodes: usize| {
        format!("{directives}---\nkind: SelfSubjectAccessReview\nz: [{}c]\n", format!("{tag} c,").repeat(nodes))
    };
    let long_tag = tagged(format!("%TAG !a! {}\n", "x".repeat(300_000)), "!a!b", 5_000);
    let many_tags = tagged((0..60_000).map(|i| format!("%TAG !{i}! x\n")).collect(), "!59999!b", 60_000);
    let requirements = review(format!(
        r#""spec":{{"resourceAttributes":{{"verb":"get","resource":"pods","labelSelector":{{"requirements":[{}]}}}}}}"#,
        list(800_000, &|_| "{}".into())
    ));
    let deep = review(format!(r#""a":{}1{}"#, "[".repeat(400_000), "]".repeat(400_000)));
    vec![
        ("duplicate keys", JSON, duplicates),
        ("unknown fields", JSON, unknown),
        ("duplicates below a long key", JSON, long),
        ("merge keys", YAML, merges.into_bytes()),
        ("aliases of a long text", YAML, repeated.into_bytes()),
        ("depth", JSON, deep),
        ("a long tag prefix", YAML, long_tag.into_bytes()),
        ("many tag directives", YAML, many_tags.into_bytes()),
        ("requirements", JSON, requirements),
    ]
}

/// Bodies of those who may write in one namespace, or define resources, and what the answer to them is.
fn written() -> Vec<(&'static str, &'static str, Value, u16)> {
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let managers: Vec<Value> = (0..12_000)
        .map(|i| {
            json!({"manager": format!("m{i}"), "operation": "Update", "apiVersion": format!("v{i}"), "fieldsType": "FieldsV1",
                "fieldsV1": {"f:data": {format!("f:k{i}"): {}}}, "time": "2026-01-01T00:00:00Z"})
        })
        .collect();
    let map = json!({"metadata": {"name": "a", "managedFields": managers}, "data": {"k1": "v"}});
    let containers: Vec<Value> = (0..20_000).map(|_| json!({"name": "A", "image": ""})).collect();
    let pod = json!({"metadata": {"name": "a"}, "spec": {"serviceAccountName": "nobody", "containers": containers}});
    let owner = |i| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": format!("o{i}"), "uid": format!("u{i}"), "controller": true});
    let owners: Vec<Value> = (0..20_000).map(owner).collect();
    let owned = json!({"metadata": {"name": "b", "ownerReferences": owners}});
    let files: Vec<Value> = (0..20_000).map(|i| json!({"key": format!("k{i}"), "path": "a"})).collect();
    let volume = json!({"name": "v", "configMap": {"name": "a", "items": files}});
    let mounting = json!({"metadata": {"name": "c"}, "spec": {"serviceAccountName": "nobody",
        "containers": [{"name": "c", "image": "i"}], "volumes": [volume]}});
    let claims: Vec<Value> = (0..10_000).map(|i| json!({"name": format!("c{i}"), "resourceClaimName": "c"})).collect();
    let used: Vec<Value> = (0..10_000).map(|i| json!({"name": format!("u{i}")})).collect();
    let claiming = json!({"metadata": {"name": "d"}, "spec": {"serviceAccountName": "nobody", "resourceClaims": claims,
        "containers": [{"name": "c", "image": "i", "resources": {"claims": used}}]}});
    let patterns: serde_json::Map<String, Value> = (0..300)
        .map(|i| (format!("p{i}"), json!({"type": "string", "pattern": format!("^\\pL{{{}}}$", 200 + i)})))
        .collect();
    let definition = json!({"metadata": {"name": "as.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "as", "kind": "A"}, "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": patterns}}}]}});
    vec![
        ("managed fields", MAPS, map, 201),
        ("owners", MAPS, owned, 422),
        ("errors", PODS, pod, 422),
        ("files at one place", PODS, mounting, 201),
        ("claims that are not there", PODS, claiming, 422),
        ("patterns", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition, 422),
    ]
}

/// Asks as another user until the work is done, and says how long the longest answer took.
async fn meanwhile<T>(client: &Client, work: impl Future<Output = T>) -> (T, Duration) {
    tokio::pin!(work);
    let mut longest = Duration::ZERO;
    loop {
        for path in ["/readyz", "/api/v1/namespaces/default"] {
            let begun = Instant::now();
            let code = send(client, Method::GET, path, JSON, Vec::new()).await.map(|a| a.0);
            assert_eq!(code, Some(StatusCode::OK), "{path}");
            longest = longest.max(begun.elapsed());
        }
        if let Ok(done) = timeout(Duration::from_millis(20), &mut work).await {
            return (done, longest);
        }
    }
}

fn large_bodies(_: &Story) {
    let data = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut server = Running::start(&mut running::up(data.path())).await.unwrap();
        let token = token_without_role(&server).await;
        let admin_token = std::fs::read_to_string(data.path().join("admin.token")).unwrap();
        let other = client_of(data.path(), admin_token.trim()).await;
        for (what, media, body) in bodies() {
            let mut attackers = Vec::new();
            for _ in 0..4 {
                attackers.push(client_of(data.path(), &token).await);
            }
            let all = futures::future::join_all(
                attackers.iter().map(|c| send(c, Method::POST, REVIEWS, media, body.clone())),
            );
            let (answers, longest) = meanwhile(&other, timeout(BODY * 4, all)).await;
            let answers = answers.unwrap_or_else(|_| panic!("{what}: no answer"));
            for (code, size) in answers.into_iter().map(Option::unwrap) {
                assert!(
                    (code.is_success() || code.is_client_error()) && size < 1 << 20,
                    "{what}: {code}, {size} bytes"
                );
            }
            assert!(longest < ANSWER, "{what}: others waited {longest:?}");
        }
        for (what, path, body, wanted) in written() {
            let writer = client_of(data.path(), admin_token.trim()).await;
            let work = timeout(BODY, send(&writer, Method::POST, path, JSON, body.to_string().into_bytes()));
            let (answer, longest) = meanwhile(&other, work).await;
            let (code, size) = answer.unwrap_or_else(|_| panic!("{what}: no answer")).unwrap();
            assert!(code.as_u16() == wanted && size < LARGEST, "{what}: {code}, {size} bytes");
            assert!(longest < ANSWER, "{what}: others waited {longest:?}");
        }
        let peak = peak_memory(&server);
        println!("the server took {peak} MB at most");
        assert!(peak < PEAK, "{peak} MB");
        // Told to stop while it works on more than it can.
        let mut attacks = JoinSet::new();
        for _ in 0..8 {
            let attacker = client_of(data.path(), &token).await;
            attacks.spawn(async move {
                for (_, media, body) in bodies().into_iter().cycle() {
                    if send(&attacker, Method::POST, REVIEWS, media, body).await.is_none() {
                        return;
                    }
                }
            });
        }
        let (_, longest) = meanwhile(&other, tokio::time::sleep(Duration::from_secs(2))).await;
        assert!(longest < ANSWER, "all together: others waited {longest:?}");
        let begun = Instant::now();
        let code = tokio::task::spawn_blocking(move || server.stop()).await.unwrap();
        assert_eq!(code, Some(0));
        assert!(begun.elapsed() < STOP, "it took {:?} to stop", begun.elapsed());
        attacks.shutdown().await;
    });
}
