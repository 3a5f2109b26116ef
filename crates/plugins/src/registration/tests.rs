use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::task::AbortHandle;
use tonic::Status;

use super::*;
use crate::api::registration::RegistrationStatusResponse;
use crate::{Running, Server};

/// Notes what happens, in order.
#[derive(Default)]
struct Noted {
    log: Mutex<Vec<String>>,
    refuses: AtomicUsize,
}

impl Noted {
    fn add(&self, text: impl Into<String>) {
        self.log.lock().push(text.into());
    }

    async fn wait(&self, what: &str, condition: impl Fn(&[String]) -> bool) {
        let wait = async {
            while !condition(&self.log.lock()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), wait).await;
        assert!(waited.is_ok(), "{what}: {:#?}", self.log.lock());
    }

    async fn wait_for(&self, entry: &str) {
        self.wait(entry, |log| log.iter().any(|e| e.contains(entry))).await;
    }

    fn count(&self, entry: &str) -> usize {
        self.log.lock().iter().filter(|e| e.contains(entry)).count()
    }
}

#[async_trait::async_trait]
impl Handler for Noted {
    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        match plugin.versions.iter().any(|v| v == "1.0.0") {
            true => Ok(()),
            false => Err(format!("no supported version in {:?}", plugin.versions)),
        }
    }

    async fn register(&self, plugin: &Plugin) -> Result<(), String> {
        if self.refuses.load(Ordering::SeqCst) > 0 {
            self.refuses.fetch_sub(1, Ordering::SeqCst);
            return Err("not yet".into());
        }
        self.add(format!("register {} {}", plugin.name, plugin.endpoint.display()));
        Ok(())
    }

    async fn deregister(&self, plugin: &Plugin) {
        self.add(format!("deregister {}", plugin.name));
    }
}

struct Lab {
    directory: TempDir,
    handler: Arc<Noted>,
    /// The outcomes that plugins received.
    told: Arc<Noted>,
    follower: AbortHandle,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

impl Lab {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let handler = Arc::new(Noted::default());
        let handlers: BTreeMap<_, Arc<dyn Handler>> = [("CSIPlugin", handler.clone() as _)].into();
        let options = Options {
            directory: directory.path().join("registry"),
            shown_as: "/var/lib/kubelet/plugins_registry".into(),
            interval: Duration::from_millis(10),
            handlers,
        };
        std::fs::create_dir(&options.directory).unwrap();
        let follower = tokio::spawn(follow(options)).abort_handle();
        Self { directory, handler, told: Arc::default(), follower }
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.directory.path().join("registry").join(name)
    }

    fn plugin(&self, socket: &str, info: PluginInfo) -> Running {
        self.plugin_that(socket, move || Ok(info.clone()))
    }

    fn plugin_that(
        &self,
        socket: &str,
        info: impl Fn() -> Result<PluginInfo, Status> + Clone + Send + Sync + 'static,
    ) -> Running {
        let told = self.told.clone();
        let server = Server::new()
            .unary(&GET_INFO, move |_| {
                let info = info();
                async move { info }
            })
            .unary(&NOTIFY_REGISTRATION_STATUS, move |status: RegistrationStatus| {
                told.add(format!("{} {}", status.plugin_registered, status.error));
                async { Ok(RegistrationStatusResponse {}) }
            });
        server.serve(&SocketPath::machine(self.socket(socket))).unwrap()
    }
}

fn info(name: &str) -> PluginInfo {
    PluginInfo {
        kind: "CSIPlugin".into(),
        name: name.into(),
        endpoint: format!("/var/lib/kubelet/plugins/{name}/csi.sock"),
        supported_versions: vec!["1.0.0".into()],
    }
}

#[tokio::test]
async fn a_plugin_is_registered_and_told_and_deregistered_when_its_socket_is_gone() {
    let lab = Lab::new();
    let _plugin = lab.plugin("a-reg.sock", info("a"));
    lab.handler.wait_for("register a /var/lib/kubelet/plugins/a/csi.sock").await;
    lab.told.wait_for("true ").await;
    std::fs::remove_file(lab.socket("a-reg.sock")).unwrap();
    lab.handler.wait_for("deregister a").await;
    let _again = lab.plugin("a-reg.sock", info("a"));
    lab.handler.wait("registered again", |log| log.iter().filter(|e| e.starts_with("register a")).count() == 2).await;
}

#[tokio::test]
async fn a_socket_that_is_replaced_is_another_plugin() {
    let lab = Lab::new();
    let first = lab.plugin("a-reg.sock", info("a"));
    lab.handler.wait_for("register a").await;
    drop(first);
    let _second = lab.plugin("a-reg.sock", info("b"));
    lab.handler.wait_for("register b").await;
    let log: Vec<String> = lab.handler.log.lock().iter().map(|e| e.chars().take(12).collect()).collect();
    assert_eq!(log, ["register a /", "deregister a", "register b /"]);
}

#[tokio::test]
async fn an_endpoint_that_is_left_out_is_the_socket_of_the_registration_also_in_a_directory() {
    let lab = Lab::new();
    std::fs::create_dir(lab.socket("d")).unwrap();
    let _plugin = lab.plugin("d/a.sock", PluginInfo { endpoint: String::new(), ..info("a") });
    lab.handler.wait_for("register a /var/lib/kubelet/plugins_registry/d/a.sock").await;
}

#[tokio::test]
async fn plugins_are_told_why_they_are_refused() {
    let lab = Lab::new();
    let mut running = Vec::new();
    let cases = [
        (PluginInfo { kind: "Other".into(), ..info("a") }, "no handler registered for plugin type: Other"),
        (PluginInfo { supported_versions: vec!["0.3.0".into()], ..info("a") }, "no supported version in [\"0.3.0\"]"),
        (PluginInfo { name: String::new(), ..info("a") }, "invalid plugin name"),
        (PluginInfo { name: "a\nb".into(), ..info("a") }, "invalid plugin name"),
        (PluginInfo { endpoint: "csi.sock".into(), ..info("a") }, "is not an absolute path"),
        (PluginInfo { supported_versions: vec![String::new(); 65], ..info("a") }, "too many or too long"),
    ];
    for (i, (info, _)) in cases.iter().enumerate() {
        running.push(lab.plugin(&format!("{i}.sock"), info.clone()));
    }
    for (_, why) in &cases {
        lab.told.wait_for(why).await;
    }
    assert_eq!(lab.handler.count("register"), 0);
    assert_eq!(lab.told.count("true"), 0);
}

#[tokio::test]
async fn a_plugin_that_fails_first_is_tried_again() {
    let lab = Lab::new();
    lab.handler.refuses.store(1, Ordering::SeqCst);
    let failed = Arc::new(AtomicBool::new(false));
    let _plugin = lab.plugin_that("a.sock", move || match failed.swap(true, Ordering::SeqCst) {
        true => Ok(info("a")),
        false => Err(Status::internal("starting")),
    });
    lab.told.wait_for("false RegisterPlugin error -- plugin registration failed with err: not yet").await;
    lab.handler.wait_for("register a").await;
    lab.told.wait_for("true").await;
}

#[tokio::test]
async fn plugins_that_hang_or_are_no_plugins_delay_no_other() {
    let lab = Lab::new();
    // Accepts connections and never answers.
    let _silent = tokio::net::UnixListener::bind(lab.socket("silent.sock")).unwrap();
    // Nobody listens any more.
    drop(tokio::net::UnixListener::bind(lab.socket("dead.sock")).unwrap());
    std::fs::write(lab.socket("file.sock"), "x").unwrap();
    let _hidden = lab.plugin(".hidden.sock", info("hidden"));
    std::os::unix::fs::symlink(lab.socket("silent.sock"), lab.socket("link.sock")).unwrap();
    let _hangs = Server::new()
        .unary(&GET_INFO, |_| futures::future::pending())
        .serve(&SocketPath::machine(lab.socket("hangs.sock")))
        .unwrap();
    let _plugin = lab.plugin("z.sock", info("z"));
    lab.handler.wait_for("register z").await;
    assert_eq!(lab.handler.log.lock().len(), 1);
}
