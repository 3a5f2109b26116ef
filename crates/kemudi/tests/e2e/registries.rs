//! Images from a registry, which is Debian's `docker-registry`.

use crate::cluster::{KEMUDI, PLUGIN_REGISTRY};
use crate::runner::Case;
use crate::story::{Story, names};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use client::Transport;
use client::https::{Config, Credentials, Https};
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};

pub const TESTS: &[Case] = &[
    ("registries::serve_pods_with_secrets", serve_pods_with_secrets),
    ("registries::credential_providers", credential_providers),
];

/// For container runtimes behind the CRI, whose messages are their own.
pub const ON_OTHERS: &[Case] =
    &[("registries::other_runtimes_keep_images_private", other_runtimes_keep_images_private)];

/// The bcrypt hash of the password `right`.
const HASH: &str = "$2y$04$abcdefghijklmnopqrstuuFmEfrkTQnczNzw475xE2VhDrK1uwJiC";
const REPOSITORY: &str = "team/app";

struct Registry<'a> {
    story: &'a Story,
    child: Child,
    address: String,
}

impl Drop for Registry<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl<'a> Registry<'a> {
    /// `None` if the program is not on this machine.
    fn start(story: &'a Story) -> Option<Self> {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        Self::start_at(story, address)
    }

    fn start_at(story: &'a Story, address: String) -> Option<Self> {
        let program = "docker-registry";
        let version = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if version.is_err() {
            println!("registries: skipped: there is no docker-registry on this machine (Debian's docker-registry)");
            return None;
        }
        story.file("htpasswd", &format!("user:{HASH}\n"));
        let at = |name: &str| story.dir.join(name).display().to_string();
        let config = json!({
            "version": "0.1", "log": {"accesslog": {"disabled": false}},
            "storage": {"filesystem": {"rootdirectory": at("registry")}},
            "http": {"addr": address, "secret": "none"},
            "auth": {"htpasswd": {"realm": "test", "path": at("htpasswd")}},
        });
        story.file("registry.yml", &config.to_string());
        let log = File::create(story.dir.join("registry.log")).unwrap();
        let child = Command::new(program)
            .args(["serve", &at("registry.yml")])
            .stdin(Stdio::null())
            .stderr(log.try_clone().unwrap())
            .stdout(log)
            .spawn()
            .unwrap();
        let registry = Self { story, child, address };
        story.eventually("the registry to listen", || TcpStream::connect(&registry.address).ok());
        Some(registry)
    }

    fn send(&self, method: Method, path: &str, kind: &str, body: Vec<u8>) -> http::response::Parts {
        let credentials = Credentials::Basic { user: "user".into(), password: "right".into() };
        let config = Config { credentials, ..Config::new(format!("http://{}", self.address)) };
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        let request = request.body(Bytes::from(body)).unwrap();
        let transport = Https::new(&config).unwrap();
        self.story.cluster.runtime.block_on(transport.send(request)).unwrap().into_parts().0
    }

    /// Pushes a blob and returns its descriptor.
    fn push(&self, kind: &str, name: &str, content: Vec<u8>) -> Value {
        std::fs::write(self.story.dir.join(name), &content).unwrap();
        let digest = self.digest(name);
        let begun = self.send(Method::POST, &format!("/v2/{REPOSITORY}/blobs/uploads/"), "", Vec::new());
        assert_eq!(begun.status, StatusCode::ACCEPTED);
        let location = begun.headers["location"].to_str().unwrap().parse::<http::Uri>().unwrap();
        let path = location.path_and_query().unwrap();
        let separator = if location.query().is_some() { '&' } else { '?' };
        let size = content.len();
        let path = format!("{path}{separator}digest={digest}");
        let done = self.send(Method::PUT, &path, "application/octet-stream", content);
        assert_eq!(done.status, StatusCode::CREATED);
        json!({"mediaType": kind, "digest": digest, "size": size})
    }

    fn digest(&self, name: &str) -> String {
        let o = Command::new("sha256sum").arg(self.story.dir.join(name)).output().unwrap();
        format!("sha256:{}", String::from_utf8(o.stdout).unwrap().split(' ').next().unwrap())
    }

    /// Pushes an image with the tools of the tests as `tag`, and returns the digest of its manifest.
    fn push_image(&self, tag: &str) -> String {
        const KIND: &str = "application/vnd.docker.distribution.manifest.v2+json";
        let tools = Command::new("tar").arg("-C").arg(&self.story.cluster.directory).args(["-c", "bin"]).output();
        let layer = self.push("application/vnd.docker.image.rootfs.diff.tar", "layer", tools.unwrap().stdout);
        let config = json!({"architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }, "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
            "config": {"Env": ["PATH=/bin"], "Cmd": ["sh", "-c", "echo pulled; sleep 1000"], "Labels": {"registry": self.address}}});
        let config = config.to_string().into_bytes();
        let config = self.push("application/vnd.docker.container.image.v1+json", "config", config);
        let manifest = json!({"schemaVersion": 2, "mediaType": KIND, "config": config, "layers": [layer]});
        let manifest = manifest.to_string().into_bytes();
        std::fs::write(self.story.dir.join("manifest"), &manifest).unwrap();
        let done = self.send(Method::PUT, &format!("/v2/{REPOSITORY}/manifests/{tag}"), KIND, manifest);
        assert_eq!(done.status, StatusCode::CREATED);
        self.digest("manifest")
    }

    /// Successful requests of the node for parts of images of this kind.
    fn pulls(&self, kind: &str) -> usize {
        let log = std::fs::read_to_string(self.story.dir.join("registry.log")).unwrap();
        let is_pull = |l: &&str| l.contains(&format!("\"GET /v2/{REPOSITORY}/{kind}/")) && l.contains("\" 200 ");
        log.lines().filter(is_pull).count()
    }

    fn secret(&self, password: &str) -> Value {
        let auth = STANDARD.encode(format!("user:{password}"));
        let config = json!({"auths": {format!("http://{}/v2/", self.address): {"auth": auth}}});
        json!({".dockerconfigjson": STANDARD.encode(config.to_string())})
    }
}

fn pod(name: &str, image: &str, policy: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": image, "imagePullPolicy": policy}]}})
}

fn pull(s: &Story, image: &str, password: &str) -> Output {
    let mut c = Command::new(KEMUDI);
    c.args(["image", "pull", image, "--username", "user", "--password-stdin", "--data-dir"]);
    c.arg(s.cluster.directory.join("data"));
    Story::feed(c, password)
}

/// Waits for an event whose message starts so, and returns the message.
fn reported(s: &Story, name: &str, reason: &str, start: &str) -> String {
    s.eventually(&format!("{name}: {reason} {start}"), || {
        s.events(name).into_iter().find(|(r, m)| r == reason && m.starts_with(start)).map(|(_, m)| m)
    })
}

/// A program of the node has the credentials: pods need no secret, neither for the pull nor for an image that is present.
///
/// Clauses: K03.credential-providers
fn credential_providers(s: &Story) {
    let Some(registry) = Registry::start_at(s, PLUGIN_REGISTRY.into()) else { return };
    registry.push_image("1");
    let image = format!("{PLUGIN_REGISTRY}/{REPOSITORY}:1");
    s.create("pods", pod("first", &image, "IfNotPresent"));
    s.ready("first");
    let request = std::fs::read_to_string(s.cluster.directory.join("credentials/request")).unwrap();
    let request: Value = serde_json::from_str(&request).unwrap();
    assert_eq!(request["image"], format!("{PLUGIN_REGISTRY}/{REPOSITORY}"));
    s.create("pods", pod("second", &image, "IfNotPresent"));
    s.ready("second");
    let present = format!("Container image \"{image}\" already present on machine and can be accessed by the pod");
    assert_eq!(s.event("second", "Pulled"), present);
    assert_eq!(registry.pulls("manifests"), 1);
}

/// Clauses: K03.secrets K03.service-account K03.always K03.if-not-present P08.err-image-pull P08.image-pull-back-off P08.registry-unavailable
fn serve_pods_with_secrets(s: &Story) {
    let Some(registry) = Registry::start(s) else { return };
    let digest = registry.push_image("1");
    let image = format!("{}/{REPOSITORY}:1", registry.address);
    let by_digest = format!("{}/{REPOSITORY}@{digest}", registry.address);
    let reason = |reason: &'static str| move |c: &Value| c["state"]["waiting"]["reason"] == reason;

    // Without a secret, and with a wrong password.
    s.create("pods", pod("none", &image, "IfNotPresent"));
    let mut private = pod("private", &image, "IfNotPresent");
    private["spec"]["imagePullSecrets"] = json!([{"name": "key"}, {"name": "missing"}]);
    let secret = json!({"metadata": {"name": "key"}, "type": "kubernetes.io/dockerconfigjson", "data": registry.secret("wrong")});
    s.create("secrets", secret);
    s.create("pods", private);
    for name in ["none", "private"] {
        let c = s.container(name, reason("ImagePullBackOff"));
        let message = c["state"]["waiting"]["message"].as_str().unwrap().to_owned();
        let start =
            format!("Back-off pulling image \"{image}\": ErrImagePull: {}: authorization failed: ", registry.address);
        assert!(message.starts_with(&start), "{message}");
        assert_eq!((&c["image"], &c["imageID"]), (&json!(image), &json!("")));
        for (reason, message) in [
            ("Pulling", format!("Pulling image \"{image}\"")),
            ("BackOff", format!("Back-off pulling image \"{image}\"")),
            ("Failed", "Error: ErrImagePull".into()),
            ("Failed", "Error: ImagePullBackOff".into()),
            ("Failed", format!("Failed to pull image \"{image}\": {}: authorization failed: ", registry.address)),
        ] {
            reported(s, name, reason, &message);
        }
    }
    let missing = s.event("private", "FailedToRetrieveImagePullSecret");
    let expected =
        "Unable to retrieve some image pull secrets (missing); attempting to pull the image may not succeed.";
    assert_eq!(missing, expected);
    assert_eq!(registry.pulls("manifests"), 0);
    s.ok(&["delete", "pod", "none"]);

    // A corrected secret is used for the next pull.
    s.patch("secrets/key", json!({"data": registry.secret("right")}));
    s.ready("private");
    s.logged("private", "pulled");
    let c = s.container("private", |c| c["state"]["running"].is_object());
    assert_eq!((&c["image"], &c["imageID"]), (&json!(image), &json!(by_digest)));
    let start = format!("Successfully pulled image \"{image}\" in ");
    let message = reported(s, "private", "Pulled", &start);
    assert!(message.contains(" including waiting). Image size: ") && message.ends_with(" bytes."), "{message}");
    assert_eq!((registry.pulls("manifests"), registry.pulls("blobs")), (1, 2));

    // One that is present is not pulled, but by `Always`, which needs credentials: here those of the service account.
    let mut present = pod("present", &image, "IfNotPresent");
    present["spec"]["imagePullSecrets"] = json!([{"name": "key"}]);
    s.create("pods", present);
    s.ready("present");
    let present = format!("Container image \"{image}\" already present on machine and can be accessed by the pod");
    assert_eq!(s.event("present", "Pulled"), present);
    for (name, policy) in [("always-denied", "Always"), ("present-denied", "IfNotPresent")] {
        s.create("pods", pod(name, &image, policy));
        s.container(name, reason("ErrImagePull"));
    }
    s.patch("serviceaccounts/default", json!({"imagePullSecrets": [{"name": "key"}]}));
    s.create("pods", pod("always", &image, "Always"));
    s.ready("always");
    reported(s, "always", "Pulled", &start);
    s.create("pods", pod("digest", &by_digest, "Never"));
    s.ready("digest");
    assert_eq!((registry.pulls("manifests"), registry.pulls("blobs")), (2, 2), "the layers are present");
    s.create("pods", pod("unknown", &format!("{}/{REPOSITORY}:2", registry.address), "IfNotPresent"));
    s.container("unknown", reason("ErrImagePull"));
    let unknown = reported(s, "unknown", "Failed", "Failed to pull image");
    assert!(unknown.contains("manifests/2: not found: MANIFEST_UNKNOWN: manifest unknown"), "{unknown}");

    // Users pull as well.
    let refused = pull(s, &image, "wrong");
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("authorization failed"), "{why}");
    let pulled = pull(s, &image, "right\n");
    assert_eq!(String::from_utf8_lossy(&pulled.stdout), format!("Pulled image: {by_digest}\n"));
    let node = s.until_at("/api/v1/nodes/e2e", |n| n["status"]["images"].to_string().contains(&by_digest));
    let images = node["status"]["images"].as_array().unwrap();
    let own = images.iter().find(|i| i["names"][0] == by_digest).unwrap();
    assert_eq!(own["names"], json!([by_digest, image]));
    let pods = names(&s.items("pods"));
    s.ok(&[&["delete", "pod"], &pods.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat());
    s.eventually("the image to be removed", || {
        let data = s.cluster.directory.join("data");
        let o = Command::new(KEMUDI).args(["image", "rm", &image, "--data-dir"]).arg(data).output().unwrap();
        o.status.success().then_some(())
    });
    // A registry that is down has a reason of its own.
    let address = registry.address.clone();
    drop(registry);
    s.create("pods", pod("down", &image, "IfNotPresent"));
    let c = s.container("down", reason("RegistryUnavailable"));
    let start = format!("image pull failed for {image} because the registry is unavailable: {address}: dial tcp ");
    assert!(c["state"]["waiting"]["message"].as_str().unwrap().starts_with(&start), "{c}");
}

/// Clauses: K03.secrets K03.always K03.if-not-present P08.err-image-pull P08.image-pull-back-off
fn other_runtimes_keep_images_private(s: &Story) {
    let Some(registry) = Registry::start(s) else { return };
    let digest = registry.push_image("1");
    let image = format!("{}/{REPOSITORY}:1", registry.address);
    let by_digest = format!("{}/{REPOSITORY}@{digest}", registry.address);
    let reason = |reason: &'static str| move |c: &Value| c["state"]["waiting"]["reason"] == reason;
    let with_secret = |name: &str, image: &str, policy: &str| {
        let mut pod = pod(name, image, policy);
        pod["spec"]["imagePullSecrets"] = json!([{"name": "key"}]);
        s.create("pods", pod);
    };
    s.create("pods", pod("none", &image, "IfNotPresent"));
    let secret = json!({"metadata": {"name": "key"}, "type": "kubernetes.io/dockerconfigjson", "data": registry.secret("wrong")});
    s.create("secrets", secret);
    with_secret("private", &image, "IfNotPresent");
    for name in ["none", "private"] {
        let c = s.container(name, reason("ImagePullBackOff"));
        let message = c["state"]["waiting"]["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with(&format!("Back-off pulling image \"{image}\": ErrImagePull: ")), "{message}");
        assert!(message.contains("401 Unauthorized"), "{message}");
    }
    assert_eq!(registry.pulls("manifests"), 0);
    s.ok(&["delete", "pod", "none"]);

    s.patch("secrets/key", json!({"data": registry.secret("right")}));
    s.ready("private");
    s.logged("private", "pulled");
    let c = s.container("private", |c| c["state"]["running"].is_object());
    assert_eq!((&c["image"], &c["imageID"]), (&json!(image), &json!(by_digest)));
    let message = reported(s, "private", "Pulled", &format!("Successfully pulled image \"{image}\" in "));
    assert!(message.contains(" including waiting). Image size: ") && message.ends_with(" bytes."), "{message}");

    // One that is present is for pods with the secret, and not pulled for them.
    with_secret("present", &image, "IfNotPresent");
    s.ready("present");
    let present = format!("Container image \"{image}\" already present on machine and can be accessed by the pod");
    assert_eq!(s.event("present", "Pulled"), present);
    for (name, policy, expected) in [
        ("present-denied", "IfNotPresent", "ErrImagePull"),
        ("always-denied", "Always", "ErrImagePull"),
        ("never-denied", "Never", "ErrImageNeverPull"),
    ] {
        s.create("pods", pod(name, &image, policy));
        s.container(name, reason(expected));
    }
    with_secret("always", &image, "Always");
    s.ready("always");
    with_secret("digest", &by_digest, "Never");
    s.ready("digest");
    let node = s.until_at("/api/v1/nodes/e2e", |n| n["status"]["images"].to_string().contains(&by_digest));
    let images = node["status"]["images"].as_array().unwrap();
    let own = images.iter().find(|i| i["names"][0] == by_digest).unwrap();
    assert_eq!(own["names"], json!([by_digest, image]));
}
