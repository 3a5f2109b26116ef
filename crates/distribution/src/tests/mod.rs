//! Pulls from registries that answer, hang, lie and break.

mod hostile;
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use runtime::ImageStore;
use serde_json::json;

use crate::blob::digest_of;
use crate::manifest::MAX_DOCUMENT;
use crate::{Credentials, Error, Limits, Pulled, Puller};
use server::{Content, INDEX, MANIFEST, Reply, Request, Server, descriptor, own, ranged};

/// A store, and what pulls into it.
struct Node {
    directory: tempfile::TempDir,
    store: ImageStore,
    puller: Puller,
}

impl Node {
    fn new() -> Node {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::open(directory.path().join("images")).unwrap();
        let limits = Limits {
            response: Duration::from_millis(300),
            connect: Duration::from_millis(300),
            stall: Duration::from_millis(300),
            progress: 1024,
            retry_delay: Duration::from_millis(5),
            ..Limits::default()
        };
        let puller = Puller::new(store.clone(), directory.path().join("registries.yaml"), limits);
        Node { directory, store, puller }
    }

    fn configure(&self, text: &str) {
        std::fs::write(self.directory.path().join("registries.yaml"), text).unwrap();
    }

    async fn pull(&self, server: &Server) -> Result<Pulled, Arc<Error>> {
        self.puller.pull(&format!("{}/a/b:1", server.address), &[]).await
    }

    async fn error(&self, server: &Server) -> String {
        let error = self.pull(server).await.unwrap_err();
        self.check_clean();
        error.to_string().replace(&server.address, "HOST")
    }

    /// Nothing of a failed pull stays.
    fn check_clean(&self) {
        assert!(self.store.list().is_empty());
        for directory in ["downloads", "layers", "incoming"] {
            let entries = std::fs::read_dir(self.directory.path().join("images").join(directory));
            assert_eq!(entries.into_iter().flatten().count(), 0, "{directory}");
        }
    }
}

fn user(name: &str, password: &str) -> Credentials {
    Credentials { username: name.into(), password: password.into() }
}

/// The configuration of servers without TLS.
fn plain(servers: &[&Server]) -> String {
    let mirror = |s: &&Server| format!("  \"{0}\": {{endpoint: [\"http://{0}\"]}}\n", s.address);
    format!("mirrors:\n{}", servers.iter().map(mirror).collect::<String>())
}

async fn serve(content: &Content, other: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static) -> Server {
    let content = content.clone();
    Server::start(move |r| other(r).unwrap_or_else(|| content.reply(r))).await
}

#[tokio::test]
async fn pulls_by_tag_and_digest() {
    let (node, content) = (Node::new(), Content::new(5000));
    let server = serve(&content, |_| None).await;
    let pulled = node.pull(&server).await.unwrap();
    let tag = format!("{}/a/b:1", server.address);
    let by_digest = format!("{}/a/b@{}", server.address, content.digest());
    assert_eq!(pulled.image.id, digest_of(&content.config));
    assert_eq!(pulled.image.names, [tag.clone(), by_digest.clone()].into());
    assert_eq!(pulled.image.config.cmd, ["/file"]);
    assert_eq!(pulled.image.reference(&tag), by_digest);
    let file = node.store.layers_root().join(&pulled.image.layers[0]).join("file");
    assert_eq!(std::fs::metadata(file).unwrap().len(), 5000);
    // Only the manifest is fetched again while it is the same.
    assert_eq!(server.count("blobs"), 2);
    node.pull(&server).await.unwrap();
    let pulled = node.puller.pull(&by_digest, &[]).await.unwrap();
    assert_eq!((pulled.image.names.len(), server.count("blobs"), server.count("manifests")), (2, 2, 3));
    // The digest goes with the last tag.
    node.store.remove(&tag, |_| None).unwrap();
    node.check_clean();
    node.puller.pull(&by_digest, &[]).await.unwrap();
    assert_eq!(node.store.list()[0].names, [by_digest].into());
}

#[tokio::test]
async fn equal_pulls_are_one() {
    let (node, content) = (Node::new(), Content::new(100));
    let server = serve(&content, |_| None).await;
    let (a, b, c) = tokio::join!(node.pull(&server), node.pull(&server), node.pull(&server));
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    assert_eq!((server.count("manifests"), server.count("blobs")), (1, 2));
}

#[tokio::test]
async fn tokens_are_fetched_with_credentials_and_cached() {
    let (node, content) = (Node::new(), Content::new(100));
    let server = serve(&content, move |r| {
        let host = r.header("host").unwrap().to_owned();
        if let Some(query) = r.path.strip_prefix("/token?x=1&") {
            assert_eq!(query, "service=reg&scope=repository%3Aa%2Fb%3Apull");
            // user:right
            return Some(match r.header("authorization") {
                Some("Basic dXNlcjpyaWdodA==") => Reply::new(200, r#"{"access_token":"t1"}"#),
                _ => Reply::new(401, r#"{"errors":[{"code":"UNAUTHORIZED","message":"wrong password"}]}"#),
            });
        }
        let challenge = format!("Bearer realm=\"http://{host}/token?x=1\",service=\"reg\"");
        (r.header("authorization") != Some("Bearer t1"))
            .then(|| Reply::new(401, "").with("www-authenticate", challenge))
    })
    .await;
    let name = format!("{}/a/b:1", server.address);
    let wrong = node.puller.pull(&name, &[user("user", "wrong")]).await.unwrap_err();
    assert!(
        wrong
            .to_string()
            .ends_with("authorization failed: failed to fetch a token: UNAUTHORIZED: authentication required")
    );
    assert!(node.pull(&server).await.is_err(), "without credentials");
    let both = node.puller.pull(&name, &[user("user", "wrong"), user("other", "wrong")]).await.unwrap_err();
    assert!(matches!(&*both, Error::Several(all) if all.len() == 2), "{both}");
    node.check_clean();
    let before = server.count("/token");
    node.puller.pull(&name, &[user("user", "wrong"), user("user", "right")]).await.unwrap();
    assert_eq!(server.count("/token") - before, 2);
}

#[tokio::test]
async fn basic_credentials_stay_with_their_registry() {
    let (node, content) = (Node::new(), Content::new(100));
    let blobs = serve(&content, |r| r.header("authorization").map(|_| Reply::new(400, "credentials"))).await;
    let elsewhere = blobs.address.clone();
    let server = serve(&content, move |r| match r.header("authorization") {
        Some("Basic dXNlcjpyaWdodA==") if r.path.contains("/blobs/") => {
            Some(Reply::new(307, "").with("location", format!("http://{elsewhere}{}?sig=1", r.path)))
        }
        Some("Basic dXNlcjpyaWdodA==") => None,
        _ => Some(Reply::new(401, "").with("www-authenticate", "Basic realm=\"r\"")),
    })
    .await;
    let name = format!("{}/a/b:1", server.address);
    node.configure(&plain(&[&server, &blobs]));
    let error = node.pull(&server).await.unwrap_err();
    assert!(error.to_string().ends_with("authorization failed: no basic auth credentials"), "{error}");
    node.puller.pull(&name, &[user("user", "right")]).await.unwrap();
    assert_eq!((blobs.count("sig=1"), blobs.count("Basic")), (2, 0));
}

#[tokio::test]
async fn mirrors_get_no_credentials_and_the_registry_is_last() {
    let (node, content) = (Node::new(), Content::new(100));
    let broken = Server::start(|_| Reply::new(404, "")).await;
    let mirror = serve(&content, |r| r.header("authorization").map(|_| Reply::new(400, "credentials"))).await;
    node.configure(&format!(
        "mirrors: {{reg.example: {{endpoint: [\"http://{}\", \"http://{}/x/\"]}}}}",
        broken.address, mirror.address
    ));
    let error = node.puller.pull("reg.example/a/b:1", &[user("u", "p")]).await.unwrap_err();
    assert!(error.to_string().starts_with("reg.example: "), "{error}");
    assert!(mirror.log()[0].starts_with("/x/v2/a/b/manifests/1?ns=reg.example"), "{:?}", mirror.log());
    node.configure(&format!("mirrors: {{reg.example: {{endpoint: [\"http://{}\"]}}}}", mirror.address));
    let pulled = node.puller.pull("reg.example/a/b:1", &[user("u", "p")]).await.unwrap();
    assert!(pulled.image.names.contains("reg.example/a/b:1"));
    node.configure("mirrors: {reg.example: {endpoints: []}}");
    let error = node.puller.pull("reg.example/a/b:1", &[]).await.unwrap_err();
    assert!(error.to_string().contains("unknown field `endpoints`"), "{error}");
}

#[tokio::test]
async fn certificates_are_verified_with_the_configured_authority() {
    let (node, content) = (Node::new(), Content::new(100));
    let ca = node.directory.path().join("ca.pem");
    let (acceptor, replies) = (server::tls(&ca), content.clone());
    let server = Server::start_with(move |r| replies.reply(r), Some(acceptor)).await;
    node.configure(&format!("configs: {{\"{}\": {{tls: {{}}}}}}", server.address));
    let error = node.error(&server).await;
    assert!(error.contains("certificate"), "{error}");
    node.configure(&format!("configs: {{\"{}\": {{tls: {{ca_file: {}}}}}}}", server.address, ca.display()));
    node.pull(&server).await.unwrap();
}

#[tokio::test]
async fn indexes_have_images_for_platforms() {
    let (node, content) = (Node::new(), Content::new(100));
    let entry = |architecture: &str| {
        let mut d = descriptor(MANIFEST, &content.manifest);
        d["platform"] = json!({"os": "linux", "architecture": architecture});
        d
    };
    let other = json!({"mediaType": MANIFEST, "digest": digest_of(b"x"), "size": 1,
        "platform": {"os": "linux", "architecture": "s390x"}});
    let attestation = json!({"mediaType": MANIFEST, "digest": digest_of(b"y"), "size": 1,
        "platform": {"os": "unknown", "architecture": "unknown"}});
    let index = |manifests| json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}).to_string();
    let both = index(json!([other, attestation, entry(own())]));
    let digest = digest_of(both.as_bytes());
    let text = both.clone();
    let server = serve(&content, move |r| {
        r.path.ends_with("/manifests/1").then(|| Reply::new(200, text.clone()).with("content-type", INDEX))
    })
    .await;
    let pulled = node.pull(&server).await.unwrap();
    assert_eq!(pulled.image.reference(""), format!("{}/a/b@{digest}", server.address));

    let node = Node::new();
    let text = index(json!([other, attestation]));
    let server = serve(&content, move |_| Some(Reply::new(200, text.clone()))).await;
    let platform = format!("no image for linux/{}: there are images for linux/s390x", own());
    assert_eq!(node.error(&server).await, platform);
    // A single image of another architecture, with the same error.
    let foreign = Content::with_architecture(100, "s390x");
    let server = serve(&foreign, |_| None).await;
    assert_eq!(node.error(&server).await, platform);
    assert_eq!(server.count(&digest_of(&foreign.layer)), 0, "no layer is downloaded");
}

#[tokio::test]
async fn broken_downloads_are_resumed() {
    let (node, content) = (Node::new(), Content::new(200_000));
    let (layer, breaks) = (content.clone(), AtomicUsize::new(0));
    // It breaks more often than a request is tried, but brings something each time.
    let server = serve(&content, move |r| {
        let reply = layer.is_layer(r).then(|| ranged(r, &layer.layer))?;
        (breaks.fetch_add(1, Ordering::Relaxed) < 7).then(|| reply.cut(20_000))
    })
    .await;
    node.pull(&server).await.unwrap();
    let ranges = server.log().iter().filter(|l| l.contains("bytes=")).count();
    assert_eq!(ranges, 7, "{:?}", server.log());

    // A server without ranges starts again.
    let node = Node::new();
    let (layer, breaks) = (content.clone(), AtomicUsize::new(0));
    let server = serve(&content, move |r| {
        let reply = layer.is_layer(r).then(|| Reply::new(200, layer.layer.clone()))?;
        Some(if breaks.fetch_add(1, Ordering::Relaxed) < 2 { reply.cut(20_000) } else { reply })
    })
    .await;
    node.pull(&server).await.unwrap();

    // One that never brings anything fails.
    let node = Node::new();
    let layer = content.clone();
    let server = serve(&content, move |r| layer.is_layer(r).then(|| Reply::new(200, layer.layer.clone()).cut(0))).await;
    assert!(node.pull(&server).await.unwrap_err().is_unavailable());
    assert_eq!(server.count(&digest_of(&content.layer)), 4);
    node.check_clean();
}

#[tokio::test]
async fn hanging_registries_delay_no_other() {
    let (node, content) = (Node::new(), Content::new(200_000));
    let hanging = Server::start(|_| Reply::hang()).await;
    let good = serve(&content, |_| None).await;
    let names: Vec<String> = (0..20).map(|i| format!("{}/a/b:{i}", hanging.address)).collect();
    let waiting: Vec<_> = names.iter().map(|n| node.puller.pull(n, &[])).collect();
    let waiting = futures::future::join_all(waiting);
    let pulled = tokio::select! {
        pulled = node.pull(&good) => pulled,
        _ = waiting => panic!("the hanging registry is given up first"),
    };
    pulled.unwrap();
    assert_eq!(hanging.count("manifests"), Limits::default().pulls, "the limit for one registry");
    let error = node.pull(&hanging).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("waiting for a response: no data for"), "{error}");

    // In the middle of a layer.
    let node = Node::new();
    let layer = content.clone();
    let stalls = serve(&content, move |r| layer.is_layer(r).then(|| ranged(r, &layer.layer).stall(10))).await;
    let error = node.error(&stalls).await;
    assert_eq!(error, "HOST: downloading a layer: no data for 300ms");
}

#[tokio::test]
async fn lies_are_found() {
    let content = Content::new(5000);
    let mut wrong = content.layer.clone();
    wrong[100] ^= 1;
    let found = digest_of(&wrong);
    let layer_digest = digest_of(&content.layer);
    let length = content.layer.len();
    let short = content.layer[..length - 1].to_vec();
    let long = [content.layer.as_slice(), b"x"].concat();
    for (body, expect) in [
        (wrong, format!("{layer_digest}: the content has the digest {found}")),
        (short, format!("{layer_digest} has {} bytes, and {length} according to the manifest", length - 1)),
        (long, format!("{layer_digest} has {} bytes, and {length} according to the manifest", length + 1)),
    ] {
        let (node, layer) = (Node::new(), content.clone());
        let server = serve(&content, move |r| layer.is_layer(r).then(|| Reply::new(200, body.clone()))).await;
        assert_eq!(node.error(&server).await, expect);
    }
    // Another manifest than the digest names.
    let (node, other) = (Node::new(), Content::new(10));
    let server =
        serve(&content, move |r| r.path.contains("/manifests/").then(|| Reply::new(200, other.manifest.clone()))).await;
    let name = format!("{}/a/b@{}", server.address, content.digest());
    let error = node.puller.pull(&name, &[]).await.unwrap_err();
    assert!(matches!(&*error, Error::Digest { .. }), "{error}");
    node.check_clean();
}

#[tokio::test]
async fn documents_and_redirects_are_bounded() {
    let node = Node::new();
    let huge = Server::start(|_| Reply::new(200, vec![b' '; MAX_DOCUMENT as usize + 1])).await;
    assert_eq!(node.error(&huge).await, format!("the manifest is larger than {MAX_DOCUMENT} bytes"));
    let circle = Server::start(|r| Reply::new(302, "").with("location", r.path.clone())).await;
    assert_eq!(node.error(&circle).await, "HOST: unexpected status 302 Found");
    assert_eq!(circle.log().len(), 6);
    let nowhere = Server::start(|_| Reply::new(302, "").with("location", "file:///etc/passwd")).await;
    assert_eq!(node.error(&nowhere).await, "HOST: redirects to what is no URL of a server");
    let enormous = json!({"schemaVersion": 2, "config": descriptor("", b"{}"),
        "layers": [{"digest": digest_of(b""), "size": u64::MAX}]})
    .to_string();
    let server = Server::start(move |_| Reply::new(200, enormous.clone())).await;
    assert!(node.error(&server).await.starts_with("the layers take 18446744073709551615 bytes"));
    for (manifest, message) in [
        ("no json", "the manifest cannot be used: it is no JSON at line 1 column 2"),
        ("{}", "the manifest cannot be used: it is no image"),
        (r#"{"schemaVersion":1}"#, "the manifest cannot be used: Docker's schema 1"),
        (r#"{"manifests":[{"digest":"sha256:../x","size":1}]}"#, "the manifest cannot be used: unknown digest"),
        (
            r#"{"layers":[],"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json","digest":"x","size":1}}"#,
            "the manifest cannot be used: it is no container image",
        ),
    ] {
        let server = Server::start(move |_| Reply::new(200, manifest)).await;
        let error = node.error(&server).await;
        assert!(error.starts_with(message), "{manifest}: {error}");
    }
}

/// Reachable services of this machine are no target of a registry elsewhere.
#[tokio::test]
async fn untrusted_names_do_not_reach_this_machine() {
    let (node, content) = (Node::new(), Content::new(10));
    let server = serve(&content, |_| None).await;
    let port = server.address.rsplit_once(':').unwrap().1;
    let error = node.puller.pull(&format!("0.0.0.0:{port}/a/b:1"), &[]).await.unwrap_err();
    assert!(error.to_string().ends_with("address not allowed"), "{error}");
    assert!(server.log().is_empty());
}

#[tokio::test]
async fn overload_is_waited_for() {
    let (node, content, requests) = (Node::new(), Content::new(100), AtomicUsize::new(0));
    let server = serve(&content, move |_| match requests.fetch_add(1, Ordering::Relaxed) {
        0 => Some(Reply::new(429, "").with("retry-after", "0")),
        1 => Some(Reply::new(503, "")),
        2 => Some(Reply::new(200, "").with("content-length-is", "broken").cut(0)),
        _ => None,
    })
    .await;
    // An empty manifest is an error; the next pull succeeds.
    assert!(node.error(&server).await.starts_with("the manifest cannot be used"));
    node.pull(&server).await.unwrap();
    let down = Server::start(|_| Reply::new(500, r#"{"errors":[{"code":"X","message":"a\nb"}]}"#)).await;
    let node = Node::new();
    let error = node.pull(&down).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().ends_with("500 Internal Server Error"), "{error}");
    assert_eq!(down.log().len(), 4);
    let refused = node.puller.pull("127.0.0.1:1/a/b:1", &[]).await.unwrap_err();
    assert!(refused.is_unavailable(), "{refused}");
    let missing = Server::start(|_| Reply::new(404, "")).await;
    assert!(!node.pull(&missing).await.unwrap_err().is_unavailable());
}
