//! Pods in networks of CNI plugins, which are scripts here.
#![allow(clippy::unwrap_used)] // a broken setup is a failed test

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use network::cni::{Bandwidth, Options, PluginNetwork, Sandbox};
use network::{HostPort, Protocol, namespace};
use serde_json::{Value, json};

/// Logs its call, and fails or answers as files beside it say.
const SCRIPT: &str = r#"#!/bin/sh
directory=${0%/*}; name=${0##*/}; input=$(cat)
printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$name" "$CNI_COMMAND" "$CNI_CONTAINERID" "$CNI_NETNS" "$CNI_ARGS" "$input" >> "$directory/log"
if test -e "$directory/$name-fails-$CNI_COMMAND"; then echo '{"code": 50, "msg": "out of order"}'; exit 1; fi
if test "$CNI_COMMAND" = ADD; then cat "$directory/$name-result"; fi
"#;

struct Setup(tempfile::TempDir);

/// A call of a plugin, from the log.
struct Call {
    plugin: String,
    command: String,
    sandbox: String,
    namespace: String,
    arguments: String,
    input: Value,
}

impl Setup {
    fn new(version: &str) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "these tests make network namespaces: run them as root");
        let setup = Self(tempfile::tempdir().unwrap());
        for directory in ["bin", "conf"] {
            std::fs::create_dir(setup.path(directory)).unwrap();
        }
        for name in ["one", "two"] {
            setup.install(name);
        }
        setup.write("bin/one-result", r#"{"interfaces": [{"name": "veth1"}]}"#);
        let result = json!({
            "cniVersion": version, "interfaces": [{"name": "veth1"}, {"name": "eth0", "sandbox": "/n"}],
            "ips": [{"address": "fd00::5/64", "interface": 1}, {"address": "10.9.0.5/24", "interface": 1}],
        });
        setup.write("bin/two-result", &result.to_string());
        setup.configure("10-net.conflist", "net", version);
        setup
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.path(name), content).unwrap();
    }

    fn install(&self, name: &str) {
        let path = self.path("bin").join(name);
        std::fs::write(&path, SCRIPT).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn configure(&self, file: &str, name: &str, version: &str) {
        let capabilities = json!({"portMappings": true, "bandwidth": true, "dns": false});
        let list = json!({"cniVersion": version, "name": name, "plugins": [
            {"type": "one", "capabilities": {"ipRanges": true, "dns": true}}, {"type": "two", "capabilities": capabilities},
        ]});
        self.write(&format!("conf/{file}"), &list.to_string());
    }

    fn options(&self) -> Options {
        Options {
            configuration_directory: self.path("conf"),
            program_directories: vec![self.path("bin")],
            state_directory: self.path("state"),
            namespace_directory: self.path("netns"),
            ranges: vec!["10.9.0.0/24".into()],
            place: Default::default(),
            time_limit: Duration::from_secs(20),
        }
    }

    async fn open(&self) -> PluginNetwork {
        PluginNetwork::open(self.options()).await.unwrap()
    }

    /// The calls since the last time.
    fn calls(&self) -> Vec<Call> {
        let text = std::fs::read_to_string(self.path("bin/log")).unwrap_or_default();
        let _ = std::fs::remove_file(self.path("bin/log"));
        let call = |line: &str| {
            let [plugin, command, sandbox, namespace, arguments, input] =
                line.split('\t').map(str::to_owned).collect::<Vec<_>>().try_into().unwrap();
            Call { plugin, command, sandbox, namespace, arguments, input: serde_json::from_str(&input).unwrap() }
        };
        text.lines().map(call).collect()
    }

    /// The plugins and commands of the calls since the last time.
    fn commands(&self) -> Vec<String> {
        self.calls().iter().map(|c| format!("{} {}", c.command, c.plugin)).collect()
    }

    fn break_plugin(&self, name: &str, command: &str) {
        self.write(&format!("bin/{name}-fails-{command}"), "");
    }

    fn mend_plugin(&self, name: &str, command: &str) {
        std::fs::remove_file(self.path(&format!("bin/{name}-fails-{command}"))).unwrap();
    }

    fn namespaces(&self) -> usize {
        std::fs::read_dir(self.path("netns")).unwrap().count()
    }
}

fn sandbox(uid: &str) -> Sandbox {
    let port = HostPort { address: None, protocol: Protocol::Tcp, port: 8000, target: 80 };
    Sandbox {
        uid: uid.into(),
        name: "web".into(),
        namespace: "default".into(),
        ports: vec![port],
        bandwidth: Bandwidth { ingress: Some(1_000_000), egress: None },
        dns: [vec!["10.96.0.10".into()], Vec::new(), Vec::new()],
    }
}

/// Whether the loopback interface of a namespace is up.
fn has_loopback(path: &Path) -> bool {
    let connect = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        std::net::TcpStream::connect_timeout(&listener.local_addr()?, Duration::from_secs(1)).map(drop)
    };
    namespace::run_in(Some(path), connect).is_ok()
}

#[tokio::test]
async fn plugins_are_chained() {
    let setup = Setup::new("1.0.0");
    let network = setup.open().await;
    network.status().await.unwrap();
    assert!(setup.calls().is_empty(), "STATUS is of version 1.1");
    let attached = network.attach(&sandbox("u"), None).await.unwrap();
    assert_eq!(attached.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.9.0.5", "fd00::5"]);
    assert!(has_loopback(&attached.namespace));
    let calls = setup.calls();
    let [one, two] = &calls[..] else { panic!("{} calls", calls.len()) };
    assert_eq!((one.command.as_str(), one.plugin.as_str(), two.plugin.as_str()), ("ADD", "one", "two"));
    assert_eq!((one.sandbox.as_str(), Path::new(&one.namespace)), ("u-0", attached.namespace.as_path()));
    assert_eq!(
        one.arguments,
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=u-0;K8S_POD_UID=u"
    );
    assert_eq!((&one.input["name"], &one.input["cniVersion"]), (&json!("net"), &json!("1.0.0")));
    assert!(one.input["prevResult"].is_null());
    assert_eq!(two.input["prevResult"], json!({"cniVersion": "1.0.0", "interfaces": [{"name": "veth1"}]}));
    assert_eq!(
        one.input["runtimeConfig"],
        json!({"ipRanges": [[{"subnet": "10.9.0.0/24"}]], "dns": {"servers": ["10.96.0.10"], "searches": [], "options": []}})
    );
    assert_eq!(
        two.input["runtimeConfig"],
        json!({"portMappings": [{"hostPort": 8000, "containerPort": 80, "protocol": "tcp"}],
            "bandwidth": {"ingressRate": 1_000_000, "ingressBurst": i32::MAX}})
    );
    // The result has not changed, and the plugins find the pod as it was.
    assert_eq!(network.attach(&sandbox("u"), None).await.unwrap(), attached);
    assert_eq!(setup.commands(), ["CHECK one", "CHECK two"]);
    // An agent that starts later, with another configuration.
    std::fs::remove_file(setup.path("conf/10-net.conflist")).unwrap();
    drop(network);
    let network = setup.open().await;
    assert_eq!(network.attached().await["u"], attached.addresses);
    network.detach("u").await.unwrap();
    let calls = setup.calls();
    assert_eq!(calls.iter().map(|c| format!("{} {}", c.command, c.plugin)).collect::<Vec<_>>(), ["DEL two", "DEL one"]);
    assert!(calls.iter().all(|c| c.input["prevResult"]["ips"][0]["address"] == "fd00::5/64"));
    assert!(network.attached().await.is_empty() && setup.namespaces() == 0);
    network.detach("u").await.unwrap();
    assert!(setup.calls().is_empty());
}

#[tokio::test]
async fn a_failed_connection_is_undone() {
    let setup = Setup::new("0.4.0");
    let network = setup.open().await;
    setup.break_plugin("two", "ADD");
    let error = network.attach(&sandbox("u"), None).await.unwrap_err().to_string();
    assert_eq!(error, "failed to setup network for sandbox \"u-0\": plugin type=\"two\" failed (add): out of order");
    assert_eq!(setup.commands(), ["ADD one", "ADD two", "DEL two", "DEL one"]);
    assert!(network.attached().await.is_empty() && setup.namespaces() == 0);
    setup.mend_plugin("two", "ADD");
    setup.write("bin/two-result", r#"{"ips": []}"#);
    let error = network.attach(&sandbox("u"), None).await.unwrap_err().to_string();
    assert!(error.ends_with("the result of network \"net\" cannot be used: it has no address of eth0"), "{error}");
    setup.write("bin/two-result", "");
    let error = network.attach(&sandbox("u"), None).await.unwrap_err().to_string();
    assert!(error.ends_with("plugin type=\"two\" failed (add): netplugin returned no result"), "{error}");
    assert!(network.attached().await.is_empty() && setup.namespaces() == 0);
    assert!(network.attach(&sandbox("u;K8S_POD_NAME=x"), None).await.is_err());
}

#[tokio::test]
async fn disconnecting_is_repeated_until_it_succeeds() {
    let setup = Setup::new("1.0.0");
    let network = setup.open().await;
    network.attach(&sandbox("u"), None).await.unwrap();
    setup.break_plugin("one", "DEL");
    for _ in 0..2 {
        let error = network.detach("u").await.unwrap_err().to_string();
        assert_eq!(
            error,
            "failed to destroy network for sandbox \"u-0\": plugin type=\"one\" failed (delete): out of order"
        );
    }
    // After a restart, and with the plugins elsewhere.
    drop(network);
    let network = setup.open().await;
    assert!(network.attached().await.contains_key("u"));
    setup.mend_plugin("one", "DEL");
    // The namespace is gone after a restart of the machine.
    namespace::remove(&setup.path("netns/u-0")).unwrap();
    setup.calls();
    network.detach("u").await.unwrap();
    assert!(setup.calls().iter().all(|c| c.namespace.is_empty()));
    assert!(network.attached().await.is_empty());
}

#[tokio::test]
async fn a_pod_that_lost_its_connection_is_connected_again() {
    let setup = Setup::new("0.4.0");
    let network = setup.open().await;
    network.attach(&sandbox("u"), None).await.unwrap();
    setup.break_plugin("one", "CHECK");
    setup.calls();
    network.attach(&sandbox("u"), None).await.unwrap();
    assert_eq!(setup.commands(), ["CHECK one", "DEL two", "DEL one", "ADD one", "ADD two"]);
    setup.mend_plugin("one", "CHECK");
    // Another network, whose predecessor's plugin has lost its way.
    setup.break_plugin("one", "CHECK");
    setup.break_plugin("one", "DEL");
    assert!(network.attach(&sandbox("u"), None).await.is_err(), "the same network");
    setup.configure("00-new.conflist", "new", "0.4.0");
    let attached = network.attach(&sandbox("u"), None).await.unwrap();
    assert_eq!(attached.namespace, setup.path("netns/u-1"), "the old namespace is not the new one's");
    setup.calls();
    setup.mend_plugin("one", "DEL");
    network.detach("u").await.unwrap();
    let ids: Vec<String> = setup.calls().into_iter().map(|c| c.sandbox).collect();
    assert_eq!(ids, ["u-0", "u-0", "u-1", "u-1"]);
    assert_eq!(setup.namespaces(), 0);
}

#[tokio::test]
async fn plugins_report_their_status_and_collect_garbage() {
    let setup = Setup::new("1.1.0");
    let network = setup.open().await;
    network.status().await.unwrap();
    assert_eq!(setup.commands(), ["STATUS one", "STATUS two"]);
    setup.break_plugin("two", "STATUS");
    let error = network.status().await.unwrap_err().to_string();
    assert_eq!(error, "plugin type=\"two\" failed (status): out of order");
    network.attach(&sandbox("u"), None).await.unwrap();
    setup.calls();
    setup.break_plugin("one", "GC");
    network.collect_garbage().await.unwrap_err();
    let calls = setup.calls();
    assert_eq!(calls.iter().map(|c| c.plugin.as_str()).collect::<Vec<_>>(), ["one", "two"], "all are asked");
    let valid = json!([{"containerID": "u-0", "ifname": "eth0"}]);
    assert!(calls.iter().all(|c| c.command == "GC" && c.input["cni.dev/valid-attachments"] == valid));
    std::fs::remove_file(setup.path("conf/10-net.conflist")).unwrap();
    assert_eq!(network.status().await.unwrap_err().to_string(), "cni plugin not initialized");
    drop(network);
    setup.break_plugin("one", "DEL");
    // The plugins of the records are found without options.
    let options = Options { program_directories: Vec::new(), ..setup.options() };
    let errors = PluginNetwork::purge(options).await.unwrap();
    assert_eq!(errors.len(), 1);
    assert!(setup.namespaces() == 0 && !setup.path("state/attachments").exists());
}

/// An agent that is killed while a plugin runs knows what it has begun.
#[tokio::test]
async fn a_connection_that_was_interrupted_is_undone() {
    let setup = Setup::new("1.0.0");
    let network = setup.open().await;
    let fifo = setup.path("bin/two-result");
    std::fs::remove_file(&fifo).unwrap();
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let pod = sandbox("u");
    tokio::select! {
        _ = network.attach(&pod, None) => panic!("nobody writes to the pipe"),
        () = async {
            while !std::fs::read_to_string(setup.path("bin/log")).is_ok_and(|log| log.contains("two\tADD")) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        } => {}
    }
    drop(network);
    let network = setup.open().await;
    assert_eq!(network.attached().await["u"], Vec::<std::net::IpAddr>::new());
    setup.calls();
    network.detach("u").await.unwrap();
    assert_eq!(setup.commands(), ["DEL two", "DEL one"]);
    assert_eq!(setup.namespaces(), 0);
}
