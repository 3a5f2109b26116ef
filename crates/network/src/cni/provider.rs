//! The pod network as a CNI plugin, for container runtimes that create the network namespaces of pods themselves.
//!
//! The runtime executes the plugin ([`plugin`]), which passes the call on to the agent over a socket; the agent ([`serve`]) attaches the
//! namespace as it does for its own containers, so that addresses, network policies and limits are the same.
//!
//! **Invariants.** Only pods for which the agent has reserved an address are attached. A call for an older sandbox of a pod does not
//! detach the newer one. A deletion succeeds without the agent, which detaches pods that are gone when it starts.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use supervisor::blocking;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::Mutex;

use super::specification::{
    FAILED, Failure, INCOMPATIBLE, INVALID_CONFIGURATION, INVALID_ENVIRONMENT, TRY_AGAIN, Version, in_version,
};
use crate::ports::pod_hardware_address as hardware_address;
use crate::{Error, PodNetwork, Result};

/// The type of the plugin, and the name of its program.
pub const PLUGIN: &str = "kemudi-cni";
/// A plugin that runtimes execute before others, and the name of its program. It has nothing to do.
pub const LOOPBACK: &str = "loopback";
/// The version of the configuration that this program writes, and of results without another one.
const VERSION: Version = Version::V1_0_0;
/// The versions of results that the plugin writes. Runtimes use old ones for the loopback.
const VERSIONS: [Version; 4] = [Version::V0_3_0, Version::V0_3_1, Version::V0_4_0, VERSION];
/// Bytes of a call.
const MAX_CALL: u64 = 64 << 10;
/// How long a call may take to arrive.
const ARRIVAL: Duration = Duration::from_secs(10);
/// How long the plugin waits for the agent. Network policies may delay a pod.
const PATIENCE: Duration = Duration::from_secs(120);

/// A call of a runtime, as the plugin passes it on.
#[derive(Debug, Serialize, Deserialize)]
struct Call {
    command: String,
    container: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    interface: String,
    #[serde(default)]
    pod: String,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = if matches!(error, Error::Policies) { TRY_AGAIN } else { FAILED };
        Self::new(code, error.to_string())
    }
}

/// The files of the plugin below a directory of the agent.
#[derive(Clone, Debug)]
pub struct Files(PathBuf);

impl Files {
    /// The files below `directory`.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// The directory of the network configuration, for the runtime.
    pub fn configuration(&self) -> PathBuf {
        self.0.join("net.d")
    }

    /// The directory of the plugin's programs, for the runtime.
    pub fn programs(&self) -> PathBuf {
        self.0.join("bin")
    }

    fn socket(&self) -> PathBuf {
        self.0.join("agent.sock")
    }

    fn owners(&self) -> PathBuf {
        self.0.join("sandboxes.json")
    }

    /// Writes the configuration, and links the programs to `program`. Blocks.
    pub fn install(&self, program: &Path) -> Result<()> {
        let fail = |path: &Path| Error::io(path.display().to_string());
        for directory in [self.configuration(), self.programs()] {
            std::fs::create_dir_all(&directory).map_err(fail(&directory))?;
        }
        for name in [PLUGIN, LOOPBACK] {
            let (link, new) = (self.programs().join(name), self.programs().join(format!(".{name}")));
            let _ = std::fs::remove_file(&new);
            symlink(program, &new).and_then(|()| std::fs::rename(&new, &link)).map_err(fail(&link))?;
        }
        let list =
            json!({"cniVersion": VERSION, "name": "kemudi", "plugins": [{"type": PLUGIN, "socket": self.socket()}]});
        let file = self.configuration().join("10-kemudi.conflist");
        replace(&file, format!("{list:#}\n").as_bytes()).map_err(fail(&file))
    }
}

/// Writes a file whole, or not at all.
fn replace(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, content)?;
    std::fs::rename(new, path)
}

/// Serves the calls of the plugin, for ever.
pub async fn serve(network: PodNetwork, files: Files) -> Result<()> {
    let socket = files.socket();
    let fail = || Error::io(socket.display().to_string());
    match std::fs::remove_file(&socket) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(fail()(e)),
        _ => {}
    }
    let listener = UnixListener::bind(&socket).map_err(fail())?;
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600)).map_err(fail())?;
    let server = Arc::new(Server { network, owners: Mutex::new(Owners::open(files.owners())?) });
    loop {
        let (stream, _) = listener.accept().await.map_err(fail())?;
        let server = server.clone();
        tokio::spawn(async move {
            if let Err(error) = server.connection(stream).await {
                tracing::debug!(%error, "a call of the CNI plugin broke");
            }
        });
    }
}

struct Server {
    network: PodNetwork,
    owners: Mutex<Owners>,
}

/// The sandbox of the runtime that has the address of each pod.
struct Owners {
    path: PathBuf,
    by_pod: BTreeMap<String, String>,
}

impl Owners {
    fn open(path: PathBuf) -> Result<Self> {
        let by_pod = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|e| Error::Corrupt { path: path.clone(), message: e.to_string() })?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(e) => return Err(Error::io(path.display().to_string())(e)),
        };
        Ok(Self { path, by_pod })
    }

    fn set(&mut self, pod: &str, container: Option<&str>) -> Result<()> {
        match container {
            Some(container) => self.by_pod.insert(pod.to_owned(), container.to_owned()),
            None => self.by_pod.remove(pod),
        };
        let fail = || Error::io(self.path.display().to_string());
        let bytes = serde_json::to_vec(&self.by_pod).map_err(|e| fail()(e.into()))?;
        replace(&self.path, &bytes).map_err(fail())
    }
}

impl Server {
    async fn connection(&self, mut stream: tokio::net::UnixStream) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        tokio::time::timeout(ARRIVAL, (&mut stream).take(MAX_CALL).read_to_end(&mut bytes)).await??;
        let answer = match serde_json::from_slice::<Call>(&bytes) {
            Ok(call) => self.answer(&call).await,
            Err(e) => Err(Failure::new(INVALID_CONFIGURATION, format!("the call cannot be decoded: {e}"))),
        };
        let answer = match answer {
            Ok(result) => json!({"result": result}),
            Err(failure) => json!({"failure": failure}),
        };
        stream.write_all(answer.to_string().as_bytes()).await?;
        stream.shutdown().await
    }

    async fn answer(&self, call: &Call) -> std::result::Result<Value, Failure> {
        match call.command.as_str() {
            "ADD" => self.add(call).await,
            "DEL" => self.delete(call).await.map(|()| Value::Null).map_err(Failure::from),
            "CHECK" if self.network.attached().await.contains_key(&call.pod) => Ok(Value::Null),
            "CHECK" => Err(Failure::new(FAILED, format!("pod {:?} has no address", call.pod))),
            other => Err(Failure::new(INVALID_ENVIRONMENT, format!("CNI_COMMAND {other:?} is not supported"))),
        }
    }

    async fn add(&self, call: &Call) -> std::result::Result<Value, Failure> {
        if call.interface != "eth0" {
            let message = format!("CNI_IFNAME is {:?}: pods have one interface, eth0", call.interface);
            return Err(Failure::new(INVALID_ENVIRONMENT, message));
        }
        if !self.network.attached().await.contains_key(&call.pod) {
            let message = format!("the node agent has not started a pod with the UID {:?}", call.pod);
            return Err(Failure::new(FAILED, message));
        }
        let path = call.namespace.clone();
        let namespace: OwnedFd = blocking(move || File::open(&path))
            .await
            .map_err(|e| Failure::new(INVALID_ENVIRONMENT, format!("CNI_NETNS {:?}: {e}", call.namespace)))?
            .into();
        self.owners.lock().await.set(&call.pod, Some(&call.container))?;
        let attached = self.network.attach_namespace(&call.pod, Some(&namespace)).await?;
        let mac = hardware_address(&attached.addresses).map(|byte| format!("{byte:02x}")).join(":");
        let pairs = || attached.addresses.iter().zip(&attached.gateways);
        let address = |(ip, gateway): (&IpAddr, &IpAddr)| json!({"address": format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 }), "gateway": gateway, "interface": 0});
        let route = |(ip, gateway): (&IpAddr, &IpAddr)| json!({"dst": if ip.is_ipv4() { "0.0.0.0/0" } else { "::/0" }, "gw": gateway});
        Ok(json!({
            "interfaces": [{"name": "eth0", "mac": mac, "sandbox": call.namespace}],
            "ips": pairs().map(address).collect::<Vec<_>>(),
            "routes": pairs().map(route).collect::<Vec<_>>(),
            "dns": {},
        }))
    }

    async fn delete(&self, call: &Call) -> Result<()> {
        let mut owners = self.owners.lock().await;
        if owners.by_pod.get(&call.pod) != Some(&call.container) {
            return Ok(());
        }
        self.network.detach(&call.pod).await?;
        owners.set(&call.pod, None)
    }
}

/// Runs the plugin that a runtime has executed as `program`: reads the call from the environment and the standard input, and writes the
/// result to the standard output. Returns the exit code.
pub fn plugin(program: &str) -> u8 {
    let mut input = Vec::new();
    let read = std::io::stdin().take(MAX_CALL).read_to_end(&mut input);
    let configuration: Value = read.ok().and_then(|_| serde_json::from_slice(&input).ok()).unwrap_or_default();
    let version = configuration["cniVersion"].as_str().unwrap_or(VERSION.as_str()).to_owned();
    let (output, code) = match executed(program, &configuration, &version) {
        Ok(Value::Null) => return 0,
        Ok(result) => (in_version(result, &version), 0),
        Err(failure) => (json!({"cniVersion": version, "code": failure.code, "msg": failure.msg}), 1),
    };
    match std::io::stdout().write_all(output.to_string().as_bytes()) {
        Ok(()) => code,
        Err(_) => 1,
    }
}

fn executed(program: &str, configuration: &Value, version: &str) -> std::result::Result<Value, Failure> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let command = variable("CNI_COMMAND");
    if command == "VERSION" {
        return Ok(json!({"supportedVersions": VERSIONS.map(Version::as_str)}));
    }
    // A deletion has no result.
    if !VERSIONS.iter().any(|v| v.as_str() == version) && command != "DEL" {
        let versions = VERSIONS.map(Version::as_str).join(", ");
        let message = format!("cniVersion {version:?} is not supported: use one of {versions}");
        return Err(Failure::new(INCOMPATIBLE, message));
    }
    let arguments = variable("CNI_ARGS");
    let pod = arguments.split(';').find_map(|a| a.strip_prefix("K8S_POD_UID=")).unwrap_or_default().to_owned();
    let call = Call {
        command,
        container: variable("CNI_CONTAINERID"),
        namespace: variable("CNI_NETNS"),
        interface: variable("CNI_IFNAME"),
        pod,
    };
    if program == LOOPBACK {
        return Ok(loopback(&call));
    }
    let Some(socket) = configuration["socket"].as_str() else {
        return Err(Failure::new(INVALID_CONFIGURATION, "the network configuration has no socket"));
    };
    match ask(Path::new(socket), &call) {
        Ok(answer) => match serde_json::from_value(answer["failure"].clone()) {
            Ok(failure) => Err(failure),
            Err(_) => Ok(answer["result"].clone()),
        },
        Err(_) if call.command == "DEL" => Ok(Value::Null),
        Err(e) => Err(Failure::new(TRY_AGAIN, format!("the node agent does not answer on {socket}: {e}"))),
    }
}

/// The result for the loopback interface, which the pod network sets up.
fn loopback(call: &Call) -> Value {
    match call.command.as_str() {
        "ADD" => json!({
            "interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": call.namespace}],
            "ips": [{"address": "127.0.0.1/8", "interface": 0}], "dns": {},
        }),
        _ => Value::Null,
    }
}

fn ask(socket: &Path, call: &Call) -> std::io::Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&serde_json::to_vec(call)?)?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    stream.take(MAX_CALL).read_to_end(&mut answer)?;
    Ok(serde_json::from_slice(&answer)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_versions_have_the_protocol_of_addresses() {
        let call = Call {
            command: "ADD".into(),
            container: "c".into(),
            namespace: "/run/netns/x".into(),
            interface: "lo".into(),
            pod: String::new(),
        };
        let old = in_version(loopback(&call), "0.3.1");
        assert_eq!((&old["ips"][0]["version"], &old["cniVersion"]), (&json!("4"), &json!("0.3.1")));
        let new = in_version(loopback(&call), VERSION.as_str());
        assert!(new["ips"][0]["version"].is_null() && new["interfaces"][0]["sandbox"] == "/run/netns/x");
    }

    #[test]
    fn the_plugin_is_installed_again_and_again() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::new(directory.path().join("cni"));
        for program in ["/bin/true", "/bin/false"] {
            files.install(Path::new(program)).unwrap();
            for name in [PLUGIN, LOOPBACK] {
                assert_eq!(std::fs::read_link(files.programs().join(name)).unwrap(), Path::new(program));
            }
        }
        let list = std::fs::read(files.configuration().join("10-kemudi.conflist")).unwrap();
        let list: Value = serde_json::from_slice(&list).unwrap();
        assert_eq!((&list["plugins"][0]["type"], &list["cniVersion"]), (&json!(PLUGIN), &json!(VERSION)));
        assert!(VERSIONS.contains(&VERSION));
    }

    #[test]
    fn the_owner_of_an_address_is_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Owners::open(directory.path().join("sandboxes.json")).unwrap();
        open().set("uid", Some("one")).unwrap();
        assert_eq!(open().by_pod["uid"], "one");
        open().set("uid", None).unwrap();
        assert!(open().by_pod.is_empty());
    }
}
