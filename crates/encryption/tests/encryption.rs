//! Secrets on the disk: encrypted, moved, lost, and encrypted again with other keys while the server runs.
//! Clauses: K09.default, K09.rotation
#![allow(clippy::unwrap_used)] // a broken setup is a failed test

use encryption::{Encryption, Source};
use meta::Rng;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::*;

/// Distinct numbers, which is enough for nonces and names in tests.
struct Count(AtomicU64);

impl Rng for Count {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }
}

/// A data directory.
struct Place(tempfile::TempDir);

/// Every start has random numbers of its own.
static SEED: AtomicU64 = AtomicU64::new(7);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn keys(&self) -> PathBuf {
        self.0.path().join("keys/encryption.yaml")
    }

    fn load(&self, file: Option<&Path>) -> Result<Arc<Encryption>, encryption::Error> {
        let source = Source { directory: self.0.path().join("keys"), file: file.map(Into::into) };
        Encryption::load(source, Arc::new(Count(SEED.fetch_add(1, Ordering::Relaxed).into())))
    }

    async fn open(&self, transform: Option<Arc<dyn Transform>>) -> Result<Store, Error> {
        let options = Options {
            index: Arc::new(|_, _| Index::default()),
            transform,
            retention: Retention::default(),
            clock: Arc::new(|| 1_000),
        };
        let engine = Lmdb::open(&self.0.path().join("store"), LmdbOptions { reserve: 0, ..LmdbOptions::default() })?;
        match Store::open(engine.clone(), options).await {
            Ok(store) => Ok(store),
            Err(error) => {
                engine.close().await;
                Err(error)
            }
        }
    }

    /// As a server starts.
    async fn start(&self, file: Option<&Path>) -> (Store, Arc<Encryption>) {
        let encryption = self.load(file).unwrap();
        let store = self.open(Some(encryption.clone())).await.unwrap();
        encryption.keep().unwrap();
        (store, encryption)
    }

    /// How the records of a resource begin, with their names.
    async fn stored(&self, resource: &str) -> Vec<(String, Vec<u8>)> {
        let store = self.open(None).await.unwrap();
        let entries = store.snapshot().range(resource, None, None).cloned().collect::<Vec<_>>();
        store.close().await;
        entries.iter().map(|entry| (entry.key.name.to_string(), entry.value.to_vec())).collect()
    }

    fn files_contain(&self, text: &str) -> bool {
        let files = std::fs::read_dir(self.0.path().join("store")).unwrap();
        files
            .map(|file| std::fs::read(file.unwrap().path()).unwrap())
            .any(|bytes| bytes.windows(text.len()).any(|window| window == text.as_bytes()))
    }
}

fn put(resource: &str, name: &str, value: &str) -> Op {
    let key = Key::new(resource, "default", name);
    Op { key, expect: Expect::Any, action: Action::Put(value.to_owned().into()) }
}

fn value(store: &Store, resource: &str, name: &str) -> String {
    let entry = store.snapshot().get(&Key::new(resource, "default", name)).unwrap();
    String::from_utf8(entry.value.to_vec()).unwrap()
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect(what);
}

#[tokio::test]
async fn secrets_are_encrypted_by_default_and_nothing_else() {
    let place = Place::new();
    let (store, _) = place.start(None).await;
    store.commit(vec![put("secrets", "s", "correct horse battery")]).await.unwrap();
    store.commit(vec![put("configmaps", "c", "a public staple")]).await.unwrap();
    store.commit(vec![put("example.com/secrets", "x", "another public staple")]).await.unwrap();
    assert_eq!(value(&store, "secrets", "s"), "correct horse battery");
    store.close().await;
    assert!(!place.files_contain("correct horse"));
    assert!(place.files_contain("a public staple") && place.files_contain("another public staple"));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&place.keys()), mode(place.keys().parent().unwrap())), (0o600, 0o700));

    let (store, _) = place.start(None).await;
    assert_eq!(value(&store, "secrets", "s"), "correct horse battery");
    assert_eq!(value(&store, "configmaps", "c"), "a public staple");
    let copy = place.0.path().join("copy");
    assert_eq!(store.backup(&copy, 0).await.unwrap().objects, 3);
    store.close().await;
    let bytes = std::fs::read(copy.join("data.mdb")).unwrap();
    assert!(!bytes.windows(7).any(|window| window == b"correct"), "a backup is encrypted as well");
}

#[tokio::test]
async fn a_lost_key_is_a_clear_error_and_no_new_key_is_made() {
    let place = Place::new();
    let (store, _) = place.start(None).await;
    store.commit(vec![put("secrets", "s", "x")]).await.unwrap();
    store.close().await;
    let text = std::fs::read_to_string(place.keys()).unwrap();
    std::fs::remove_file(place.keys()).unwrap();
    let refused = place.open(Some(place.load(None).unwrap())).await.map(drop).unwrap_err();
    let Error::Engine(why) = refused else { panic!("{refused}") };
    let (why, keys) = (why.whole(), place.keys().display().to_string());
    assert!(why.starts_with("secrets/default/s: it is encrypted by aesgcm (v1) with the key \"key-"), "{why}");
    assert!(why.ends_with(&format!("which is not known; the keys are in {keys}")), "{why}");
    assert!(!place.keys().exists());
    std::fs::write(place.keys(), "kind: [").unwrap();
    let broken = place.load(None).map(drop).unwrap_err().to_string();
    assert!(broken.starts_with(&keys), "{broken}");
    std::fs::write(place.keys(), text).unwrap();
    let (store, _) = place.start(None).await;
    assert_eq!(value(&store, "secrets", "s"), "x");
    store.close().await;
}

#[tokio::test]
async fn a_record_that_was_moved_or_changed_is_an_error_of_that_object_only() {
    let place = Place::new();
    let (store, _) = place.start(None).await;
    for name in ["a", "b", "c"] {
        store.commit(vec![put("secrets", name, &format!("value of {name}"))]).await.unwrap();
    }
    store.close().await;
    let store = place.open(None).await.unwrap();
    let record = |name: &str| store.snapshot().get(&Key::new("secrets", "default", name)).unwrap().value.clone();
    let mut changed = record("c").to_vec();
    *changed.last_mut().unwrap() ^= 1;
    let raw = |name: &str, value: Vec<u8>| Op { action: Action::Put(value.into()), ..put("secrets", name, "") };
    store.commit(vec![raw("b", record("a").to_vec()), raw("c", changed)]).await.unwrap();
    store.close().await;
    let (store, _) = place.start(None).await;
    assert_eq!(value(&store, "secrets", "a"), "value of a");
    for name in ["b", "c"] {
        let damaged = store.snapshot().damaged(&Key::new("secrets", "default", name)).unwrap();
        let text = damaged.error.to_string();
        assert!(text.starts_with(&format!("secrets/default/{name}: it does not open with its key")), "{text}");
    }
    store.close().await;
}

#[tokio::test]
async fn what_was_plain_is_encrypted_after_the_start() {
    let place = Place::new();
    let store = place.open(None).await.unwrap();
    for first in (0..1_500).step_by(100) {
        let ops = (first..first + 100).map(|at| put("secrets", &format!("s{at}"), &format!("{{\"n\":{at}}}")));
        store.commit(ops.collect()).await.unwrap();
    }
    store.commit(vec![put("configmaps", "c", "{}")]).await.unwrap();
    let before = store.revision();
    store.close().await;

    let (store, encryption) = place.start(None).await;
    let (stop, shutdown) = supervisor::shutdown();
    let running = tokio::spawn(encryption.run(store.clone(), Duration::from_millis(5), shutdown));
    eventually("all is encrypted", async || store.stale("secrets").await.unwrap().is_empty()).await;
    stop.trigger();
    running.await.unwrap();
    assert_eq!(store.revision(), before + 1_500, "each was written once");
    assert_eq!(value(&store, "secrets", "s77"), "{\"n\":77}");
    store.close().await;
    assert!(place.stored("secrets").await.iter().all(|(_, record)| record.starts_with(b"k8s:enc:aesgcm:v1:key-")));
    assert_eq!(place.stored("configmaps").await, [("c".to_owned(), b"{}".to_vec())]);
    // Nothing is left to do at the next start.
    let (store, encryption) = place.start(None).await;
    let (stop, shutdown) = supervisor::shutdown();
    stop.trigger();
    encryption.run(store.clone(), Duration::from_millis(5), shutdown).await;
    drop(stop);
    assert_eq!(store.revision(), before + 1_500);
    store.close().await;
}

/// Writes an `EncryptionConfiguration` for secrets; a key is its name, and its bytes are its first letter.
fn configure(path: &Path, providers: &[(&str, &[&str])]) {
    use base64::Engine;
    let mut text =
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n"
            .to_owned();
    for (provider, keys) in providers {
        match *provider {
            "identity" => text += "  - identity: {}\n",
            provider => {
                text += &format!("  - {provider}:\n      keys:\n");
                for key in *keys {
                    let secret = base64::engine::general_purpose::STANDARD.encode([key.as_bytes()[0]; 32]);
                    text += &format!("      - name: {key}\n        secret: {secret}\n");
                }
            }
        }
    }
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_changed_while_secrets_are_written() {
    let place = Place::new();
    let file = place.0.path().join("config.yaml");
    // What the server's own key encrypted is still read when there is a configuration.
    let (store, _) = place.start(None).await;
    store.commit((0..300).map(|at| put("secrets", &format!("old{at}"), "{}")).collect()).await.unwrap();
    store.close().await;

    configure(&file, &[("aescbc", &["a"]), ("identity", &[])]);
    let (store, encryption) = place.start(Some(&file)).await;
    let (stop, shutdown) = supervisor::shutdown();
    let running = tokio::spawn(encryption.run(store.clone(), Duration::from_millis(5), shutdown.clone()));
    let writer = {
        let (store, ended) = (store.clone(), shutdown);
        tokio::spawn(async move {
            let mut round = 0;
            while !ended.is_triggered() {
                store.commit(vec![put("secrets", &format!("new{}", round % 50), &format!("{round}"))]).await.unwrap();
                round += 1;
            }
        })
    };
    let prefix = async |text: &str| {
        let found = Arc::new(parking_lot::Mutex::new((0, 0)));
        let (finds, text) = (found.clone(), text.to_owned());
        let visit = move |_: &Key, _: u64, record: &[u8]| {
            let mut found = finds.lock();
            found.0 += 1;
            found.1 += usize::from(record.starts_with(text.as_bytes()));
        };
        store.visit("secrets", Arc::new(visit)).await.unwrap();
        let (all, with) = *found.lock();
        (all >= 300, all == with)
    };
    for (providers, expected) in [
        (&[("aescbc", &["a"][..]), ("identity", &[])][..], "k8s:enc:aescbc:v1:a:"),
        (&[("secretbox", &["b"]), ("aescbc", &["a"])], "k8s:enc:secretbox:v1:b:"),
        (&[("aesgcm", &["c"]), ("secretbox", &["b"])], "k8s:enc:aesgcm:v1:c:"),
        (&[("aesgcm", &["d", "c"])], "k8s:enc:aesgcm:v1:d:"),
    ] {
        configure(&file, providers);
        eventually(expected, async || prefix(expected).await == (true, true)).await;
    }
    // A key that is in use cannot go, and nonsense changes nothing.
    configure(&file, &[("aesgcm", &["e"])]);
    store.wait_for(store.revision() + 200).await.unwrap();
    std::fs::write(&file, "nonsense").unwrap();
    store.wait_for(store.revision() + 200).await.unwrap();
    assert_eq!(prefix("k8s:enc:aesgcm:v1:d:").await, (true, true));
    // Back to plain text, with the key still there.
    configure(&file, &[("identity", &[]), ("aesgcm", &["d"])]);
    let plain = async || {
        let found = Arc::new(AtomicU64::new(0));
        let finds = found.clone();
        let visit = move |_: &Key, _: u64, record: &[u8]| {
            finds.fetch_add(u64::from(record.starts_with(b"k8s:enc:")), Ordering::Relaxed);
        };
        store.visit("secrets", Arc::new(visit)).await.unwrap();
        found.load(Ordering::Relaxed) == 0
    };
    eventually("plain", plain).await;
    configure(&file, &[("aesgcm", &["f"]), ("identity", &[])]);
    eventually("encrypted", async || prefix("k8s:enc:aesgcm:v1:f:").await == (true, true)).await;
    stop.trigger();
    running.await.unwrap();
    writer.await.unwrap();
    let count = store.snapshot().count("secrets", None);
    store.close().await;
    let (store, _) = place.start(Some(&file)).await;
    assert_eq!(store.snapshot().count("secrets", None), count);
    assert_eq!(value(&store, "secrets", "old7"), "{}");
    store.close().await;
}
