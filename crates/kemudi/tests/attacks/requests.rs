//! Requests that cost the server more than they cost the client: duplicate keys, aliases, patterns, depth, rules that take longer
//! than they cost, and one namespace that sends more than its share.

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

pub const TESTS: &[Case] = &[
    ("requests::large_bodies_hold_nobody_up", large_bodies),
    ("requests::rules_take_no_longer_than_they_may", rules),
    ("requests::one_namespace_has_one_share", one_namespace),
    ("requests::large_quotas_are_read_one_by_one", large_quotas),
];

/// What others wait for an answer while large bodies are worked on, on a slow and busy machine. Without threads of their own,
/// and with quadratic decoders, it takes as long as the bodies do: minutes.
const ANSWER: Duration = Duration::from_secs(5);
/// How long the process takes to stop while it works on such bodies.
const STOP: Duration = Duration::from_secs(40);
/// What it may take of memory for several bodies of 3 MB at a time, in MB. One body alone could take any amount.
const PEAK: usize = 1200;
/// The same for objects with rules.
const RULES_PEAK: usize = 300;
/// What a create may take more while the quotas of its namespace are read, in MB. Read together, those of the test take 150.
const QUOTAS_PEAK: usize = 50;
/// What a large request waits behind those of another namespace: the few that are worked on, and no line of them.
const TURN: Duration = Duration::from_secs(15);
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

/// Forgets the most memory the process has taken so far. Returns what it takes now, in MB, which is the most from here on.
fn forget_peak(server: &Running) -> usize {
    std::fs::write(format!("/proc/{}/clear_refs", server.pid()), "5").unwrap();
    peak_memory(server)
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
    token_of(server, "default", "nobody").await
}

/// A token of a new service account.
async fn token_of(server: &Running, namespace: &str, name: &str) -> String {
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    let made = server.call("POST", &path, &json!({"metadata": {"name": name}})).await;
    assert_eq!(made.0, 201, "{}", made.1);
    let (code, answer) = server.call("POST", &format!("{path}/{name}/token"), &json!({"spec": {}})).await;
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

/// The most memory the process has taken for something, in MB.
fn took(what: &str, server: &Running) -> usize {
    let peak = peak_memory(server);
    println!("{what}: {peak} MB");
    peak
}

fn large_bodies(_: &Story) {
    let data = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut server = Running::start(&mut running::up(data.path())).await.unwrap();
        let token = token_without_role(&server).await;
        let admin_token = std::fs::read_to_string(data.path().join("admin.token")).unwrap();
        let other = client_of(data.path(), admin_token.trim()).await;
        let mut peak = 0;
        for (what, media, body) in bodies() {
            forget_peak(&server);
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
            peak = peak.max(took(what, &server));
        }
        for (what, path, body, wanted) in written() {
            forget_peak(&server);
            let writer = client_of(data.path(), admin_token.trim()).await;
            let work = timeout(BODY, send(&writer, Method::POST, path, JSON, body.to_string().into_bytes()));
            let (answer, longest) = meanwhile(&other, work).await;
            let (code, size) = answer.unwrap_or_else(|_| panic!("{what}: no answer")).unwrap();
            assert!(code.as_u16() == wanted && size < LARGEST, "{what}: {code}, {size} bytes");
            assert!(longest < ANSWER, "{what}: others waited {longest:?}");
            peak = peak.max(took(what, &server));
        }
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

/// Definitions with rules, and objects that make the most of them: each rule takes nearly what one evaluation may, by upstream's
/// cost a thousandth of it.
fn dear() -> Vec<(&'static str, Vec<String>, Value)> {
    let each = |rule: &dyn Fn(usize) -> String| (0..10).map(rule).collect::<Vec<_>>();
    let numbers = |n: usize| vec![1; n];
    let patterns: Vec<String> = (0..2000).map(|i| format!("(\\pL{{{}}}x{i}){{9}}", 100 + i % 50)).collect();
    vec![
        (
            "positions",
            each(&|i| format!("self.l.all(x, self.s.charAt(19999) != 'x{i}')")),
            json!({"l": numbers(4000), "s": "é".repeat(20_000)}),
        ),
        (
            "longpositions",
            each(&|i| format!("self.l.all(x, self.s.charAt(199999) != 'x{i}')")),
            json!({"l": numbers(400), "s": "é".repeat(200_000)}),
        ),
        (
            "sizes",
            each(&|i| format!("self.l.all(x, size(self.s) > {i})")),
            json!({"l": numbers(20_000), "s": "é".repeat(200_000)}),
        ),
        ("patterns", each(&|i| format!("self.p.all(x, 'a{i}'.matches(x) || true)")), json!({"p": patterns})),
        (
            "texts",
            each(&|i| format!("self.l.all(x, '%s'.format([[self.p]]) != '{i}')")),
            json!({"l": numbers(9000), "p": patterns}),
        ),
    ]
}

/// The editor of a namespace makes objects of definitions that others have made.
fn rules(_: &Story) {
    let data = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut server = Running::start(&mut running::up(data.path())).await.unwrap();
        let token = token_without_role(&server).await;
        let admin_token = std::fs::read_to_string(data.path().join("admin.token")).unwrap();
        let other = client_of(data.path(), admin_token.trim()).await;
        let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
        let role = json!({"metadata": {"name": "editor"}, "rules": [{"apiGroups": ["cel.example.com"], "resources": ["*"], "verbs": ["*"]}]});
        assert_eq!(server.call("POST", &format!("{rbac}/roles"), &role).await.0, 201);
        let binding = json!({"metadata": {"name": "editor"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "editor"},
            "subjects": [{"kind": "ServiceAccount", "name": "nobody", "namespace": "default"}]});
        assert_eq!(server.call("POST", &format!("{rbac}/rolebindings"), &binding).await.0, 201);
        for (what, rules, spec) in dear() {
            let rules: Vec<Value> = rules.iter().map(|r| json!({"rule": r})).collect();
            let properties = json!({"l": {"type": "array", "maxItems": 20_000, "items": {"type": "integer"}},
                "s": {"type": "string", "maxLength": 200_000},
                "p": {"type": "array", "maxItems": 2000, "items": {"type": "string", "maxLength": 60}}});
            let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties,
                "x-kubernetes-validations": rules}}});
            let definition = json!({"metadata": {"name": format!("{what}.cel.example.com")}, "spec": {"group": "cel.example.com",
                "scope": "Namespaced", "names": {"plural": what, "kind": what.to_uppercase()},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
            let made = server.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
            assert_eq!(made.0, 201, "{what}: {}", made.1);
            let path = format!("/apis/cel.example.com/v1/namespaces/default/{what}");
            while server.call("GET", &path, &Value::Null).await.0 != 200 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let object = json!({"apiVersion": "cel.example.com/v1", "kind": what.to_uppercase(), "metadata": {"name": "a"}, "spec": spec});
            let (body, path) = (object.to_string().into_bytes(), format!("{path}?dryRun=All"));
            let mut attackers = Vec::new();
            for _ in 0..4 {
                attackers.push(client_of(data.path(), &token).await);
            }
            let all = futures::future::join_all(
                attackers.iter().map(|c| send(c, Method::POST, &path, JSON, body.clone())),
            );
            let begun = Instant::now();
            let (answers, longest) = meanwhile(&other, timeout(BODY * 4, all)).await;
            let answers = answers.unwrap_or_else(|_| panic!("{what}: no answer"));
            println!("{what}: {} bytes, 4 answers after {:?}, others waited {longest:?}", body.len(), begun.elapsed());
            for (code, size) in answers.into_iter().map(Option::unwrap) {
                assert!((code == 422 || code == 201) && size < 1 << 20, "{what}: {code}, {size} bytes");
            }
            assert!(longest < ANSWER / 2, "{what}: others waited {longest:?}");
        }
        let peak = peak_memory(&server);
        println!("the server took {peak} MB at most");
        assert!(peak < RULES_PEAK, "{peak} MB");
        let code = tokio::task::spawn_blocking(move || server.stop()).await.unwrap();
        assert_eq!(code, Some(0));
    });
}

/// Fifty service accounts of one namespace send large bodies, as many as are taken; somebody else sends one now and then.
fn one_namespace(_: &Story) {
    let data = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut server = Running::start(&mut running::up(data.path())).await.unwrap();
        let admin_token = std::fs::read_to_string(data.path().join("admin.token")).unwrap();
        assert_eq!(server.call("POST", "/api/v1/namespaces", &json!({"metadata": {"name": "evil"}})).await.0, 201);
        let review = |n: usize| {
            let list = (0..n).map(|i| format!(r#""k{i}":1"#)).collect::<Vec<_>>().join(",");
            format!(r#"{{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{{"nonResourceAttributes":{{"path":"/","verb":"get"}}}},{list}}}"#).into_bytes()
        };
        let (large, modest) = (review(80_000), review(12_000));
        let done = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let mut attacks = JoinSet::new();
        for i in 0..50 {
            let attacker = client_of(data.path(), &token_of(&server, "evil", &format!("sa{i}")).await).await;
            let (large, done) = (large.clone(), done.clone());
            attacks.spawn(async move {
                while send(&attacker, Method::POST, REVIEWS, JSON, large.clone()).await.is_some() {
                    done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
        let other = client_of(data.path(), admin_token.trim()).await;
        let mut longest = Duration::ZERO;
        let mut answered = 0;
        // The attack is on its way once some of it was answered.
        while answered < 8 || done.load(std::sync::atomic::Ordering::Relaxed) < 20 {
            let begun = Instant::now();
            let code = timeout(BODY, send(&other, Method::POST, REVIEWS, JSON, modest.clone())).await.expect("an answer");
            assert_eq!(code.unwrap().0, StatusCode::CREATED);
            longest = longest.max(begun.elapsed());
            answered += 1;
        }
        println!("{answered} large requests of somebody else, {} of the others: {longest:?} at most",
            done.load(std::sync::atomic::Ordering::Relaxed));
        assert!(longest < TURN, "a large request of somebody else took {longest:?}");
        attacks.shutdown().await;
        let code = tokio::task::spawn_blocking(move || server.stop()).await.unwrap();
        assert_eq!(code, Some(0));
    });
}

/// Each create in a namespace reads its quotas. However many there are, they are in memory one after the other.
fn large_quotas(_: &Story) {
    const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
    let data = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut server = Running::start(&mut running::up(data.path())).await.unwrap();
        let amounts: serde_json::Map<String, Value> =
            (0..5_000).map(|i| (format!("requests.a{i}.io/x"), "1".into())).collect();
        let spec = json!({"hard": amounts});
        for i in 0..40 {
            let quota = json!({"metadata": {"name": format!("q{i}")}, "spec": spec});
            assert_eq!(server.call("POST", QUOTAS, &quota).await.0, 201);
        }
        // Until the controller has counted them.
        for i in 0..40 {
            while server.call("GET", &format!("{QUOTAS}/q{i}"), &Value::Null).await.1["status"]["used"].is_null() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        let before = forget_peak(&server);
        let map = json!({"metadata": {"name": "a"}});
        let made = server.call("POST", "/api/v1/namespaces/default/configmaps?dryRun=All", &map).await;
        assert_eq!(made.0, 201, "{}", made.1);
        let more = took("large quotas", &server).saturating_sub(before);
        assert!(more < QUOTAS_PEAK, "{more} MB more than {before}");
        let code = tokio::task::spawn_blocking(move || server.stop()).await.unwrap();
        assert_eq!(code, Some(0));
    });
}
