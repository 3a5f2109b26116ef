use super::*;
use crate::volumes::token;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

struct World {
    directory: tempfile::TempDir,
    clock: Arc<Manual>,
}

/// Seconds since 1970.
#[derive(Default)]
struct Manual(std::sync::atomic::AtomicI64);

impl Clock for Manual {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.0.load(std::sync::atomic::Ordering::Relaxed)).unwrap()
    }
}

struct Fake;

#[async_trait::async_trait]
impl Accounts for Fake {
    async fn account(&self, namespace: &str, name: &str) -> Result<Option<ServiceAccount>, client::Error> {
        let annotations = if name == "opted-in" { json!({"example.com/role": "puller"}) } else { json!({}) };
        let metadata =
            json!({"namespace": namespace, "name": name, "uid": format!("uid-{name}"), "annotations": annotations});
        Ok((name != "gone").then(|| serde_json::from_value(json!({ "metadata": metadata })).unwrap()))
    }
}

#[async_trait::async_trait]
impl Tokens for Fake {
    async fn issue(&self, pod: &Pod, audience: Option<&str>, _: Option<i64>) -> Result<token::Issued, token::Error> {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let token = format!("token-of-{name}-for-{}", audience.unwrap_or_default());
        Ok(token::Issued { token, expires: Timestamp::MAX })
    }
}

fn pod(name: &str, account: &str) -> Pod {
    serde_json::from_value(json!({"metadata": {"namespace": "n", "name": name, "uid": name},
        "spec": {"serviceAccountName": account, "containers": []}}))
    .unwrap()
}

fn provider(name: &str, images: &[&str]) -> Value {
    json!({"name": name, "matchImages": images, "defaultCacheDuration": "10m",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1"})
}

impl World {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), clock: Arc::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A program that counts its calls, and writes its request to a file.
    fn program(&self, name: &str, response: &str) {
        let (path, calls, request) = (self.path(name), self.path("calls"), self.path("request"));
        let text = format!("#!/bin/sh\necho >> {}\ncat > {}\n{response}\n", calls.display(), request.display());
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn calls(&self) -> usize {
        std::fs::read_to_string(self.path("calls")).map_or(0, |t| t.lines().count())
    }

    fn configured(&self, providers: &[Value]) -> Result<Plugins, String> {
        let file = json!({"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": providers});
        std::fs::write(self.path("config.json"), file.to_string()).unwrap();
        Plugins::read(&self.path("config.json"), self.directory.path()).map_err(|e| e.to_string())
    }

    fn start(&self, providers: &[Value]) -> Providers {
        Providers::new(self.configured(providers).unwrap(), self.clock.clone(), Arc::new(Fake), Arc::new(Fake))
    }
}

fn answer(cache: &str, duration: Option<&str>, auth: &Value) -> String {
    let duration = duration.map(|d| format!(", \"cacheDuration\": \"{d}\"")).unwrap_or_default();
    format!(
        "echo '{{\"apiVersion\": \"credentialprovider.kubelet.k8s.io/v1\", \"kind\": \"CredentialProviderResponse\", \
         \"cacheKeyType\": \"{cache}\"{duration}, \"auth\": {auth}}}'"
    )
}

async fn users(providers: &Providers, pod: &Pod, image: &str) -> Vec<String> {
    providers.find(pod, image).await.into_iter().map(|c| c.credentials.username).collect()
}

/// Clauses: K03.credential-providers
#[tokio::test]
async fn programs_return_credentials_for_their_images() {
    let w = World::new();
    let auth = json!({"*.example.com": {"username": "all", "password": "p"},
        "a.example.com/team": {"username": "team", "password": "p"}, "other.com": {"username": "other", "password": "p"}});
    w.program("plugin", &answer("Registry", None, &auth));
    let mut configured = provider("plugin", &["*.example.com"]);
    configured["args"] = json!(["get"]);
    let p = w.start(&[configured]);
    let pod = pod("p", "default");
    assert_eq!(users(&p, &pod, "a.example.com/team/app").await, ["team", "all"], "the longest path first");
    let request: Value = serde_json::from_str(&std::fs::read_to_string(w.path("request")).unwrap()).unwrap();
    assert_eq!(
        request,
        json!({"kind": "CredentialProviderRequest", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "image": "a.example.com/team/app"})
    );
    // Kept for the registry, until the time is over.
    assert_eq!(users(&p, &pod, "a.example.com/x").await, ["all"]);
    assert_eq!(w.calls(), 1);
    assert_eq!(users(&p, &pod, "b.example.com/x").await, ["all"]);
    assert_eq!(w.calls(), 2);
    w.clock.0.fetch_add(601, std::sync::atomic::Ordering::Relaxed);
    users(&p, &pod, "a.example.com/x").await;
    assert_eq!(w.calls(), 3);
    assert!(users(&p, &pod, "quay.io/x").await.is_empty(), "no program is for it");
    assert_eq!(w.calls(), 3);
}

#[tokio::test]
async fn a_response_without_a_duration_is_not_kept() {
    let w = World::new();
    let auth = json!({"r.io": {"username": "u", "password": "p"}});
    for (duration, calls) in [(Some("0s"), 2), (Some("1h"), 3)] {
        w.program("plugin", &answer("Global", duration, &auth));
        let p = w.start(&[provider("plugin", &["r.io"])]);
        for image in ["r.io/a", "r.io/b"] {
            assert_eq!(users(&p, &pod("p", "default"), image).await, ["u"]);
        }
        assert_eq!(w.calls(), calls);
    }
}

/// Whatever a program does, the image is pulled without its credentials.
#[tokio::test]
async fn programs_that_fail_give_nothing() {
    let w = World::new();
    let auth = json!({"r.io": {"username": "u", "password": "p"}});
    for response in [
        "exit 3".to_owned(),
        "echo nonsense".into(),
        "head -c 3000000 /dev/zero".into(),
        answer("Sometimes", None, &auth),
        answer("Image", None, &auth).replace("kubelet.k8s.io/v1", "kubelet.k8s.io/v1beta1"),
        answer("Image", None, &auth).replace("ProviderResponse", "ProviderRequest"),
    ] {
        w.program("plugin", &response);
        let p = w.start(&[provider("plugin", &["r.io"])]);
        assert!(users(&p, &pod("p", "default"), "r.io/a").await.is_empty(), "{response}");
    }
}

#[tokio::test]
async fn programs_act_for_service_accounts() {
    let w = World::new();
    let auth = json!({"r.io": {"username": "u", "password": "p"}});
    w.program("plugin", &answer("Image", None, &auth));
    let attributes = |cache: &str| {
        json!({"serviceAccountTokenAudience": "r.io", "cacheType": cache, "requireServiceAccount": true,
            "requiredServiceAccountAnnotationKeys": ["example.com/role"]})
    };
    let with = |cache: &str| {
        let mut configured = provider("plugin", &["r.io"]);
        configured["tokenAttributes"] = attributes(cache);
        w.start(&[configured])
    };
    let p = with("ServiceAccount");
    for account in ["", "gone", "default"] {
        assert!(users(&p, &pod("p", account), "r.io/a").await.is_empty(), "{account:?}");
    }
    assert_eq!(w.calls(), 0);
    let found = p.find(&pod("p", "opted-in"), "r.io/a").await;
    let account = PullAccount { namespace: "n".into(), name: "opted-in".into(), uid: "uid-opted-in".into() };
    assert_eq!(found[0].source, PullSource::Account(account));
    let request: Value = serde_json::from_str(&std::fs::read_to_string(w.path("request")).unwrap()).unwrap();
    assert_eq!(request["serviceAccountToken"], "token-of-p-for-r.io");
    assert_eq!(request["serviceAccountAnnotations"], json!({"example.com/role": "puller"}));
    // Another pod of the account uses the same response; with a token for each pod, it does not.
    users(&p, &pod("q", "opted-in"), "r.io/a").await;
    assert_eq!(w.calls(), 1);
    let p = with("Token");
    for name in ["p", "q", "p"] {
        users(&p, &pod(name, "opted-in"), "r.io/a").await;
    }
    assert_eq!(w.calls(), 3);
    // The token itself may be the password only if it is kept for one token.
    let echo = json!({"r.io": {"username": "u", "password": "token-of-p-for-r.io"}});
    w.program("plugin", &answer("Image", None, &echo));
    assert!(users(&with("ServiceAccount"), &pod("p", "opted-in"), "r.io/a").await.is_empty());
    assert_eq!(users(&with("Token"), &pod("p", "opted-in"), "r.io/a").await, ["u"]);
}

#[test]
fn wrong_configurations_are_refused() {
    let w = World::new();
    w.program("plugin", "");
    let good = || provider("plugin", &["r.io"]);
    let with = |pointer: &str, value: Value| {
        let mut p = good();
        p[pointer] = value;
        p
    };
    let whole = "failed to validate credential provider config: ";
    let mut token = good();
    token["tokenAttributes"] = json!({"serviceAccountTokenAudience": "a", "requireServiceAccount": false, "cacheType": "Pod",
        "requiredServiceAccountAnnotationKeys": ["x"]});
    for (providers, expect) in [
        (vec![], format!("{whole}providers: Required value: at least 1 item in plugins is required")),
        (
            vec![with("name", json!("a/b"))],
            format!("{whole}providers.name: Invalid value: \"a/b\": provider name cannot contain '/'"),
        ),
        (
            vec![with("apiVersion", json!("v1"))],
            format!(
                "{whole}providers.apiVersion: Unsupported value: \"v1\": supported values: \"credentialprovider.kubelet.k8s.io/v1\", \"credentialprovider.kubelet.k8s.io/v1alpha1\", \"credentialprovider.kubelet.k8s.io/v1beta1\""
            ),
        ),
        (
            vec![with("matchImages", json!([]))],
            format!("{whole}providers.matchImages: Required value: at least 1 item in matchImages is required"),
        ),
        (
            vec![with("defaultCacheDuration", json!("-1s"))],
            format!(
                "{whole}providers.defaultCacheDuration: Invalid value: \"-1s\": must be greater than or equal to 0"
            ),
        ),
        (
            vec![token],
            format!(
                "{whole}[providers.tokenAttributes.requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set, providers.tokenAttributes.cacheType: Unsupported value: \"Pod\": supported values: \"ServiceAccount\", \"Token\"]"
            ),
        ),
        (vec![good(), good()], "duplicate provider name \"plugin\" found in configuration file(s)".into()),
        (
            vec![provider("absent", &["r.io"])],
            format!("plugin binary executable {} did not exist", w.path("absent").display()),
        ),
    ] {
        assert_eq!(w.configured(&providers).unwrap_err(), expect);
    }
    let unknown = w.configured(&[with("image", json!("x"))]).unwrap_err();
    assert!(unknown.contains("unknown field \"providers[0].image\""), "{unknown}");
    let nowhere = Plugins::read(&w.path("config.json"), &w.path("nowhere")).unwrap_err().to_string();
    assert!(nowhere.contains("unknown field"), "the configuration is read first: {nowhere}");
}

/// Pods that start together run a program only so often at a time, and all of them get credentials.
/// Clauses: K03.credential-providers
#[tokio::test]
async fn a_program_runs_a_few_times_at_a_time() {
    let w = World::new();
    let (running, go) = (w.path("running"), w.path("go"));
    std::fs::create_dir(&running).unwrap();
    let auth = json!({"r.io": {"username": "u", "password": "p"}});
    let script = format!(
        "touch {running}/$$\nwhile ! test -e {go}; do sleep 0.01; done\nrm {running}/$$\n{}",
        answer("Image", Some("0s"), &auth),
        running = running.display(),
        go = go.display()
    );
    w.program("plugin", &script);
    let providers = Arc::new(w.start(&[provider("plugin", &["r.io"])]));
    let (all, pod) = (3 * MOST_RUNNING, Arc::new(pod("p", "default")));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..all {
        let (providers, pod) = (providers.clone(), pod.clone());
        tasks.spawn(async move { users(&providers, &pod, &format!("r.io/app-{number}")).await });
    }
    let count = || std::fs::read_dir(&running).unwrap().count();
    let begun = tokio::time::Instant::now();
    // More would come soon after the last one that may run.
    let mut rounds_after = 0;
    while rounds_after < 30 {
        assert!(count() <= MOST_RUNNING, "{} run at a time", count());
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{} run", count());
        rounds_after += u32::from(count() == MOST_RUNNING);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    std::fs::write(&go, "").unwrap();
    let found = tasks.join_all().await;
    assert!(found.len() == all && found.iter().all(|users| users == &["u"]), "{found:?}");
    assert_eq!(w.calls(), all);
}
