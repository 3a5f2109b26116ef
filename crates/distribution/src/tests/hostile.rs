//! Pulls from registries that attack the node, and pod authors that attack others through a registry.

use super::*;

/// The answer of a server that an image name or a redirect chooses was quoted in the events of a pod.
#[tokio::test]
async fn errors_quote_nothing_of_answers() {
    let secret = "s3cr3t";
    let replies: Vec<fn(&str) -> Reply> = vec![
        |s| Reply::new(200, format!("\"{s}\"")),
        |s| Reply::new(200, s),
        |s| Reply::new(200, "{}").with("content-type", s),
        |s| Reply::new(200, json!({"manifests": [{"digest": s, "size": 1}]}).to_string()),
        |s| {
            Reply::new(
                200,
                json!({"manifests": [{"digest": digest_of(b""), "size": 1,
            "platform": {"os": s, "architecture": s}}]})
                .to_string(),
            )
        },
        |s| Reply::new(200, json!({"config": {"mediaType": s, "digest": s, "size": 1}, "layers": []}).to_string()),
        |s| Reply::new(200, json!({"schemaVersion": s}).to_string()),
        |s| Reply::new(403, json!({"errors": [{"code": s, "message": s}]}).to_string()),
        |s| Reply::new(404, json!({"errors": [{"code": "NAME_UNKNOWN", "message": s}]}).to_string()),
        |s| Reply::new(418, s),
        |s| Reply::new(500, json!({"errors": [{"code": s, "message": s}]}).to_string()),
        |s| Reply::new(302, "").with("location", s),
        |s| Reply::new(302, "").with("location", format!("/{s} {s}")),
        |s| Reply::new(401, "").with("www-authenticate", format!("Bearer realm=\"{s}\"")),
        |s| Reply::new(401, "").with("www-authenticate", s),
    ];
    for (i, reply) in replies.into_iter().enumerate() {
        let (node, server) = (Node::new(), Server::start(move |_| reply(secret)).await);
        let error = node.pull(&server).await.unwrap_err();
        assert!(!format!("{error}").contains(secret), "case {i}: {error}");
    }
}

/// A registry decided the size of the status of pods.
#[tokio::test]
async fn errors_are_short() {
    let long = "x".repeat(3_000_000);
    for config in [json!(long), json!({"os": "linux", "architecture": long}), json!({"os": long})] {
        let mut content = Content::new(10);
        content.config = config.to_string().into_bytes();
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "layers": [],
            "config": descriptor("application/vnd.oci.image.config.v1+json", &content.config)});
        content.manifest = manifest.to_string().into_bytes();
        let (node, server) = (Node::new(), serve(&content, |_| None).await);
        let error = node.error(&server).await;
        assert!(error.len() <= 1024, "{} bytes", error.len());
    }
    // Whatever a variant contains.
    let several = Error::Several((0..1000).map(|_| Error::Manifest(long[..5000].to_owned())).collect());
    assert!(several.to_string().len() < 1100);
}

/// A registry of this machine, or one that is configured, led requests to any service of this machine.
#[tokio::test]
async fn redirects_and_token_servers_reach_no_other_service_of_this_machine() {
    let (node, content) = (Node::new(), Content::new(100));
    let service = serve(&content, |r| r.path.contains("/token").then(|| Reply::new(200, r#"{"token":"t"}"#))).await;
    let (elsewhere, tokens) = (service.address.clone(), service.address.clone());
    let redirects =
        serve(&content, move |r| Some(Reply::new(307, "").with("location", format!("http://{elsewhere}{}", r.path))))
            .await;
    let challenges = serve(&content, move |r| {
        let challenge = format!("Bearer realm=\"http://{tokens}/token\"");
        r.header("authorization").is_none().then(|| Reply::new(401, "").with("www-authenticate", challenge))
    })
    .await;
    for configured in [false, true] {
        for server in [&redirects, &challenges] {
            if configured {
                node.configure(&plain(&[server]));
            }
            let error = node.pull(server).await.unwrap_err().to_string();
            assert!(error.ends_with("address not allowed"), "{error}");
        }
    }
    assert!(service.log().is_empty());
    for server in [&redirects, &challenges] {
        node.configure(&plain(&[server, &service]));
        node.pull(server).await.unwrap();
        node.store.remove(&format!("{}/a/b:1", server.address), |_| None).unwrap();
    }
}

/// A server that alternates between progress and restarts sent a layer without end.
#[tokio::test]
async fn restarts_of_a_layer_are_bounded() {
    let (node, content) = (Node::new(), Content::new(300_000));
    let layer = content.clone();
    let server = serve(&content, move |r| {
        let start = r.header("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
        layer.is_layer(r).then(|| match start {
            Some(at) if at < 200_000 => ranged(r, &layer.layer).cut(110_000),
            _ => Reply::new(200, layer.layer.clone()).cut(100_000),
        })
    })
    .await;
    assert!(node.pull(&server).await.unwrap_err().is_unavailable());
    let requests = server.count(&digest_of(&content.layer));
    assert!(requests <= 12, "{requests} requests");
    node.check_clean();
    // Each restart gets a little further.
    let (layer, restarts) = (content.clone(), AtomicUsize::new(1));
    let server = serve(&content, move |r| {
        layer
            .is_layer(r)
            .then(|| Reply::new(200, layer.layer.clone()).cut(5000 * restarts.fetch_add(1, Ordering::Relaxed)))
    })
    .await;
    let error = node.error(&server).await;
    assert_eq!(error, "HOST: downloading a layer: the server started again 4 times instead of continuing");
    assert_eq!(server.count(&digest_of(&content.layer)), 5);
}

/// A server that sends just enough on every connection, and less than a layer takes as a whole.
#[tokio::test(start_paused = true)]
async fn a_slow_layer_ends() {
    let limits = Limits::default();
    let pace = crate::pace::Pace::start(&limits);
    let begun = tokio::time::Instant::now();
    let mut bytes = 0;
    let error = loop {
        tokio::time::advance(limits.stall - Duration::from_secs(1)).await;
        bytes += limits.progress;
        if let Err(error) = pace.check("h", bytes) {
            break error;
        }
    };
    assert!(error.is_unavailable() && begun.elapsed() < Duration::from_secs(15 * 60), "{error}");
}

/// The pods of one namespace blocked all pulls from a registry.
#[tokio::test]
async fn namespaces_share_a_registry() {
    let (node, content) = (Node::new(), Content::new(100));
    let server = serve(&content, |r| r.path.contains("/manifests/slow").then(Reply::hang)).await;
    let slow = format!("{}/a/b:slow", server.address);
    // The same image with different credentials is pulled for each.
    let users: Vec<_> = (0..20).map(|i| [user("u", &i.to_string())]).collect();
    let waiting = users.iter().map(|user| node.puller.pull_for("attacker", &slow, user));
    let waiting = futures::future::join_all(waiting);
    let good = format!("{}/a/b:1", server.address);
    let pulled = tokio::select! {
        biased;
        _ = waiting => panic!("the slow pulls are waited for"),
        pulled = async {
            while server.count("manifests/slow") < Limits::default().pulls {
                tokio::task::yield_now().await;
            }
            node.puller.pull_for("other", &good, &[]).await
        } => pulled,
    };
    pulled.unwrap();
    assert_eq!(server.count("manifests/slow"), Limits::default().pulls);
}

/// Files of a killed pull stayed once they had filled the disk.
#[tokio::test]
async fn files_of_killed_pulls_go_before_the_room_is_measured() {
    let (directory, content) = (tempfile::tempdir().unwrap(), Content::new(8 << 20));
    let flags = nix::mount::MsFlags::empty();
    nix::mount::mount(Some("none"), directory.path(), Some("tmpfs"), flags, Some("size=40m")).unwrap();
    let store = ImageStore::open(directory.path().join("images")).unwrap();
    let puller = Puller::new(store.clone(), directory.path().join("registries.yaml"), Limits::default());
    let leave = || {
        let left = store.downloads_root().join("1-1");
        std::fs::create_dir_all(&left).unwrap();
        std::fs::write(left.join("lock"), "").unwrap();
        std::fs::write(left.join("blob"), vec![0; 30 << 20]).unwrap();
        left
    };
    let server = serve(&content, |_| None).await;
    let left = leave();
    let pulled = puller.pull(&format!("{}/a/b:1", server.address), &[]).await;
    assert!(pulled.is_ok() && !left.exists(), "{pulled:?}");
    let left = leave();
    puller.remove_leftovers();
    assert!(!left.exists());
    // Small layers were written without a look at the disk.
    std::fs::remove_dir_all(store.downloads_root()).unwrap();
    store.remove(&format!("{}/a/b:1", server.address), |_| None).unwrap();
    let (layer, filler) = (content.clone(), directory.path().join("filler"));
    let server = serve(&content, move |r| {
        if layer.is_layer(r) {
            std::fs::write(&filler, vec![0; 34 << 20]).unwrap();
        }
        None
    })
    .await;
    let error = puller.pull(&format!("{}/a/b:1", server.address), &[]).await.unwrap_err();
    assert!(matches!(&*error, Error::NoRoom { .. }), "{error}");
    nix::mount::umount2(directory.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
}

/// A tag that names another image with each request: what is imported is one of them, and both keep their digests.
#[tokio::test]
async fn tags_that_change_name_one_image_at_a_time() {
    let (node, first, second) = (Node::new(), Content::new(100), Content::new(200));
    let (images, requests) = ([first.clone(), second.clone()], AtomicUsize::new(0));
    let server = Server::start(move |r| {
        if r.path.ends_with("/manifests/1") {
            return images[requests.fetch_add(1, Ordering::Relaxed) % 2].reply(r);
        }
        let found = images.iter().find(|i| [&i.config, &i.layer].iter().any(|b| r.path.contains(&digest_of(b))));
        found.unwrap_or(&images[0]).reply(r)
    })
    .await;
    let tag = format!("{}/a/b:1", server.address);
    for content in [&first, &second, &first] {
        let pulled = node.pull(&server).await.unwrap();
        assert_eq!(pulled.image.id, digest_of(&content.config));
        assert_eq!(node.store.resolve(&tag).unwrap().id, pulled.image.id);
        assert_eq!(pulled.image.reference(&tag), format!("{}/a/b@{}", server.address, content.digest()));
    }
    assert_eq!(node.store.list().iter().filter(|i| i.names.contains(&tag)).count(), 1);
}

/// Several images with the same layer, pulled at the same time for several namespaces.
#[tokio::test(flavor = "multi_thread")]
async fn a_layer_is_pulled_by_several_at_once() {
    let (node, content) = (Node::new(), Content::new(200_000));
    let server = serve(&content, |_| None).await;
    let (tag, by_digest) =
        (format!("{}/a/b:1", server.address), format!("{}/a/b@{}", server.address, content.digest()));
    let mut pulls = Vec::new();
    for namespace in ["a", "b", "c", "d"] {
        for name in [&tag, &by_digest] {
            pulls.push(node.puller.pull_for(namespace, name, &[]));
        }
    }
    for pulled in futures::future::join_all(pulls).await {
        pulled.unwrap();
    }
    let images = node.store.list();
    assert_eq!((images.len(), &images[0].names), (1, &[tag, by_digest].into()));
    assert!(server.count("blobs") <= 4, "{} requests: one pull for each name", server.count("blobs"));
    assert_eq!(node.puller.progress(), crate::Progress::default());
}

/// What a registry over TLS names as its token server or as the place of a layer gets no credentials without TLS.
#[tokio::test]
async fn credentials_stay_in_tls() {
    let (node, content) = (Node::new(), Content::new(100));
    let plain_server = serve(&content, |_| Some(Reply::new(200, r#"{"token":"t"}"#))).await;
    let ca = node.directory.path().join("ca.pem");
    for header in ["location", "www-authenticate"] {
        let elsewhere = plain_server.address.clone();
        let acceptor = server::tls(&ca);
        let server = Server::start_with(
            move |_| match header {
                "location" => Reply::new(307, "").with("location", format!("http://{elsewhere}/x")),
                _ => Reply::new(401, "").with(header, format!("Bearer realm=\"http://{elsewhere}/token\"")),
            },
            Some(acceptor),
        )
        .await;
        let mirror = plain(&[&plain_server]);
        let (host, ca) = (&server.address, ca.display());
        node.configure(&format!("{mirror}configs: {{\"{host}\": {{tls: {{ca_file: {ca}}}}}}}"));
        let name = format!("{}/a/b:1", server.address);
        let error = node.puller.pull(&name, &[user("user", "secret")]).await.unwrap_err().to_string();
        assert!(error.ends_with("without TLS"), "{error}");
    }
    assert!(plain_server.log().is_empty());
}
