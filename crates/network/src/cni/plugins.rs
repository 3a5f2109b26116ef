//! Pods in the networks of CNI plugins.
//!
//! **Invariants.** A sandbox has a record from before its first plugin runs until the plugins have disconnected it, so that it is
//! disconnected also after a crash, by the configuration that connected it. A sandbox has an id and a namespace of its own: plugins that
//! disconnect an old one never touch the one that replaced it. No sandbox is connected while the plugins collect garbage.
//!
//! Services and DNS work in these networks if the plugin sends what pods send to other networks through the node; network policies, the
//! limits of pods and source addresses are the plugin's.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use supervisor::blocking;
use tokio::sync::{Mutex, RwLock};

use super::Error as CniError;
use super::configuration::{self, Network, is_identifier};
use super::execution::{self, Call, Place};
use super::records::{self, Record, Records};
use super::specification::{Version, addresses, in_version};
use crate::host_ports::HostPort;
use crate::link::Netlink;
use crate::{Error, Result, namespace};

/// The interface of pods.
const INTERFACE: &str = "eth0";
/// How long a plugin may take for calls that pods wait for, although they do not need them: to report its status, and to remove what it has
/// of pods that are gone.
const STATUS_LIMIT: Duration = Duration::from_secs(10);
/// How often it is tried to remove garbage while pods are connected or disconnected.
const GARBAGE_WAIT: Duration = Duration::from_secs(1);

/// The options of a [`PluginNetwork`].
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory of network configurations.
    pub configuration_directory: PathBuf,
    /// The directories of plugins; the first that has one wins.
    pub program_directories: Vec<PathBuf>,
    /// The directory of the records of connected pods.
    pub state_directory: PathBuf,
    /// The directory of the pods' namespaces.
    pub namespace_directory: PathBuf,
    /// The ranges of the addresses of this node's pods, for plugins with the capability `ipRanges`.
    pub ranges: Vec<String>,
    /// Where plugins run.
    pub place: Place,
    /// How long a plugin may run.
    pub time_limit: Duration,
}

/// Limits of a pod in bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bandwidth {
    /// What the pod receives.
    pub ingress: Option<u64>,
    /// What the pod sends.
    pub egress: Option<u64>,
}

/// A pod, as plugins know it.
#[derive(Clone, Debug, Default)]
pub struct Sandbox {
    /// The UID of the pod.
    pub uid: String,
    /// The name of the pod.
    pub name: String,
    /// The namespace of the pod in the API.
    pub namespace: String,
    /// Its host ports, for plugins with the capability `portMappings`.
    pub ports: Vec<HostPort>,
    /// For plugins with the capability `bandwidth`.
    pub bandwidth: Bandwidth,
    /// For plugins with the capability `dns`: name servers, search domains, options.
    pub dns: [Vec<String>; 3],
}

/// The network of a pod that plugins have connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginAttachment {
    /// The addresses of the pod, IPv4 first; at least one.
    pub addresses: Vec<IpAddr>,
    /// Path of the pod's network namespace.
    pub namespace: PathBuf,
}

/// The pods of a node in the network of CNI plugins. Cheap to clone.
#[derive(Clone)]
pub struct PluginNetwork {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    records: Arc<Mutex<Records>>,
    /// Held to read while pods are connected and disconnected, and to write while garbage is collected.
    changes: RwLock<()>,
}

impl PluginNetwork {
    /// Reads the records of connected pods.
    pub async fn open(options: Options) -> Result<Self> {
        let (directory, namespaces) =
            (records::directory(&options.state_directory), options.namespace_directory.clone());
        let records = blocking(move || {
            std::fs::create_dir_all(&namespaces).map_err(Error::io(namespaces.display().to_string()))?;
            Records::open(directory)
        });
        let records = Arc::new(Mutex::new(records.await?));
        Ok(Self { inner: Arc::new(Inner { options, records, changes: RwLock::default() }) })
    }

    /// Whether there is a network configuration, and its plugins can connect pods (`STATUS`, since version 1.1).
    pub async fn status(&self) -> Result<()> {
        let network = self.inner.configuration().await?;
        if network.version < Version::V1_1_0 {
            return Ok(());
        }
        let limit = STATUS_LIMIT.min(self.inner.options.time_limit);
        for plugin in &network.plugins {
            let call = Call {
                command: "STATUS",
                variables: Vec::new(),
                configuration: common(&network, plugin),
                directories: &self.inner.options.program_directories,
                place: &self.inner.options.place,
                time_limit: limit,
            };
            execution::run(call).await?;
        }
        Ok(())
    }

    /// Connects a pod, or returns its addresses if it is connected already and the plugins agree (`CHECK`). `given` is the pod's namespace
    /// if it has one already. If the result is dropped before it is there, the pod has to be detached.
    pub async fn attach(&self, sandbox: &Sandbox, given: Option<&OwnedFd>) -> Result<PluginAttachment> {
        let inner = &self.inner;
        if !is_identifier(&sandbox.uid) {
            return Err(Error::Invalid { field: "pod id", message: format!("{:?}", sandbox.uid) });
        }
        let _changes = inner.changes.read().await;
        let before = inner.records.lock().await.pod(&sandbox.uid);
        for (id, record) in before {
            if let Some(attachment) = inner.still_connected(&id, &record, given).await {
                return Ok(attachment);
            }
            match inner.disconnect(&id, &record).await {
                Ok(()) => {}
                // It is tried again when the pod ends.
                Err(error) if inner.configuration().await.is_ok_and(|now| now != record.network) => {
                    tracing::warn!(sandbox = id, %error, "disconnecting a pod from its former network failed");
                }
                Err(error) => return Err(error),
            }
        }
        let network = inner.configuration().await?;
        let (id, mut record) = inner.begin(sandbox, network).await?;
        let connected = async {
            inner.make_namespace(&record.namespace, given).await?;
            inner.add(&id, &record).await
        };
        match connected.await {
            Ok((result, addresses)) => {
                record.result = Some(result);
                let namespace = record.namespace.clone();
                inner.write(&id, record).await?;
                Ok(PluginAttachment { addresses, namespace })
            }
            Err(source) => {
                if let Err(error) = inner.disconnect(&id, &record).await {
                    tracing::warn!(sandbox = id, %error, "disconnecting a pod that could not be connected failed");
                }
                Err(CniError::SetUp { sandbox: id, source: Box::new(source) }.into())
            }
        }
    }

    /// Disconnects a pod. No error if it is not connected; otherwise it has to be tried again.
    pub async fn detach(&self, pod: &str) -> Result<()> {
        let _changes = self.inner.changes.read().await;
        let records = self.inner.records.lock().await.pod(pod);
        for (id, record) in records {
            self.inner.disconnect(&id, &record).await?;
        }
        Ok(())
    }

    /// The connected pods, also those that plugins have only begun to connect, which have no addresses.
    pub async fn attached(&self) -> BTreeMap<String, Vec<IpAddr>> {
        let mut all: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        for record in self.inner.records.lock().await.all().values() {
            let found = record.result.as_ref().and_then(|r| addresses(r, INTERFACE).ok());
            all.entry(record.pod.clone()).or_default().extend(found.unwrap_or_default());
        }
        all
    }

    /// The namespaces of connected pods, by their UIDs.
    pub async fn namespaces(&self) -> BTreeMap<String, PathBuf> {
        let records = self.inner.records.lock().await;
        let connected = records.all().values().filter(|r| r.result.is_some());
        connected.map(|r| (r.pod.clone(), r.namespace.clone())).collect()
    }

    /// Lets the plugins of the current configuration remove what they have of pods that are not connected (`GC`, since version 1.1).
    pub async fn collect_garbage(&self) -> Result<()> {
        // A waiting writer would keep later pods from being connected until the plugins that run now have ended.
        let _changes = loop {
            match self.inner.changes.try_write() {
                Ok(changes) => break changes,
                Err(_) => tokio::time::sleep(GARBAGE_WAIT).await,
            }
        };
        let network = self.inner.configuration().await?;
        if network.version < Version::V1_1_0 || network.disable_gc {
            return Ok(());
        }
        let valid: Vec<Value> = {
            let records = self.inner.records.lock().await;
            let of_network = records.all().iter().filter(|(_, r)| r.network.name == network.name);
            of_network.map(|(id, _)| json!({"containerID": id, "ifname": INTERFACE})).collect()
        };
        let mut first_error = None;
        for plugin in &network.plugins {
            let mut configuration = common(&network, plugin);
            // The specification first had the second name.
            for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
                configuration[key] = valid.clone().into();
            }
            let call = Call {
                command: "GC",
                variables: Vec::new(),
                configuration,
                directories: &self.inner.options.program_directories,
                place: &self.inner.options.place,
                time_limit: STATUS_LIMIT.min(self.inner.options.time_limit),
            };
            if let Err(error) = execution::run(call).await {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Disconnects all pods of a node that does not run. Returns the errors; what plugins keep then has to be removed by hand.
    pub async fn purge(options: Options) -> Result<Vec<Error>> {
        let network = Self::open(options).await?;
        let mut errors = Vec::new();
        let all = network.inner.records.lock().await.all().clone();
        for (id, record) in all {
            if let Err(error) = network.inner.disconnect(&id, &record).await {
                errors.push(error);
                network.inner.forget(&id, &record).await?;
            }
        }
        let directory = records::directory(&network.inner.options.state_directory);
        let _ = tokio::fs::remove_dir(directory).await; // files of others stay
        let place = network.inner.options.place.clone();
        blocking(move || place.remove()).await;
        Ok(errors)
    }
}

impl Inner {
    async fn configuration(&self) -> Result<Network> {
        let directory = self.options.configuration_directory.clone();
        Ok(blocking(move || configuration::first(&directory)).await?)
    }

    /// The directories of plugins now, and those when a pod was connected.
    fn directories(&self, record: &Record) -> Vec<PathBuf> {
        let mut seen = BTreeSet::new();
        let all = self.options.program_directories.iter().chain(&record.directories);
        all.filter(|d| seen.insert(*d)).cloned().collect()
    }

    /// Writes the record of a new sandbox.
    async fn begin(&self, sandbox: &Sandbox, network: Network) -> Result<(String, Record)> {
        let id = self.records.lock().await.new_id(&sandbox.uid);
        let namespace = self.options.namespace_directory.join(&id);
        let mut record = Records::record(&sandbox.uid, namespace, network, self.options.program_directories.clone());
        record.arguments = arguments(sandbox, &id);
        record.capabilities = capabilities(sandbox, &self.options.ranges);
        self.write(&id, record.clone()).await?;
        Ok((id, record))
    }

    async fn write(&self, id: &str, record: Record) -> Result<()> {
        let mut records = self.records.clone().lock_owned().await;
        let id = id.to_owned();
        blocking(move || records.set(&id, record)).await
    }

    /// Creates the namespace of a sandbox with its loopback interface.
    async fn make_namespace(&self, path: &Path, given: Option<&OwnedFd>) -> Result<()> {
        let given = given.map(OwnedFd::try_clone).transpose().map_err(Error::io("network namespace"))?;
        let (path, runtime) = (path.to_owned(), tokio::runtime::Handle::current());
        let inside = blocking(move || {
            // A crash may have left it.
            namespace::remove(&path)?;
            namespace::bind(&path, given.as_ref(), move || {
                let _entered = runtime.enter();
                Netlink::here()
            })
        });
        inside.await?.up(1).await // lo is the first device of every namespace
    }

    /// Runs the plugins one after the other. Returns the result of the last one, and the pod's addresses.
    async fn add(&self, id: &str, record: &Record) -> Result<(Value, Vec<IpAddr>)> {
        let network = &record.network;
        let mut result = None;
        for plugin in &network.plugins {
            let answer = self.call("ADD", id, record, plugin, result.as_ref()).await?;
            if !answer.is_object() {
                let name = plugin["type"].as_str().unwrap_or_default().to_owned();
                let message = "netplugin returned no result".into();
                return Err(CniError::Plugin { name, command: "add", message }.into());
            }
            result = Some(in_version(answer, network.version.as_str()));
        }
        let result = result.unwrap_or_default();
        match addresses(&result, INTERFACE) {
            Ok(addresses) => Ok((result, addresses)),
            Err(message) => Err(CniError::Result { network: network.name.clone(), message }.into()),
        }
    }

    /// The network of a sandbox whose namespace exists, if its plugins find it connected.
    async fn still_connected(&self, id: &str, record: &Record, given: Option<&OwnedFd>) -> Option<PluginAttachment> {
        let result = record.result.as_ref()?;
        let namespace = record.namespace.clone();
        let is_there = namespace::exists(&namespace) && given.is_none_or(|g| namespace::is_bound(&namespace, g));
        let addresses = addresses(result, INTERFACE).ok().filter(|_| is_there)?;
        if record.network.version >= Version::V0_4_0 && !record.network.disable_check {
            for plugin in &record.network.plugins {
                if let Err(error) = self.call("CHECK", id, record, plugin, Some(result)).await {
                    tracing::info!(sandbox = id, %error, "a pod is not connected as it was; it is connected again");
                    return None;
                }
            }
        }
        Some(PluginAttachment { addresses, namespace })
    }

    /// Runs the plugins in reverse order, and removes namespace and record once all have succeeded.
    async fn disconnect(&self, id: &str, record: &Record) -> Result<()> {
        for plugin in record.network.plugins.iter().rev() {
            let result = record.result.as_ref().filter(|_| record.network.version >= Version::V0_4_0);
            self.call("DEL", id, record, plugin, result)
                .await
                .map_err(|source| CniError::TearDown { sandbox: id.to_owned(), source: Box::new(source) })?;
        }
        self.forget(id, record).await
    }

    /// Removes namespace and record of a sandbox.
    async fn forget(&self, id: &str, record: &Record) -> Result<()> {
        let mut records = self.records.clone().lock_owned().await;
        let (id, path) = (id.to_owned(), record.namespace.clone());
        blocking(move || {
            namespace::remove(&path)?;
            records.remove(&id)
        })
        .await
    }

    async fn call(
        &self,
        command: &'static str,
        id: &str,
        record: &Record,
        plugin: &Map<String, Value>,
        result: Option<&Value>,
    ) -> Result<Value> {
        let mut configuration = common(&record.network, plugin);
        if let Some(result) = result {
            configuration["prevResult"] = result.clone();
        }
        let capabilities = of_plugin(plugin, &record.capabilities);
        if !capabilities.is_empty() {
            configuration["runtimeConfig"] = capabilities.into();
        }
        // After a restart of the machine there is no namespace.
        let namespace = match namespace::exists(&record.namespace) {
            true => record.namespace.clone().into_os_string(),
            false => OsString::new(),
        };
        let directories = self.directories(record);
        let call = Call {
            command,
            variables: vec![
                ("CNI_CONTAINERID", id.into()),
                ("CNI_NETNS", namespace),
                ("CNI_IFNAME", INTERFACE.into()),
                ("CNI_ARGS", record.arguments.clone().into()),
            ],
            configuration,
            directories: &directories,
            place: &self.options.place,
            time_limit: self.options.time_limit,
        };
        Ok(execution::run(call).await?)
    }
}

/// `CNI_ARGS`, with the names that Kubernetes uses.
fn arguments(sandbox: &Sandbox, id: &str) -> String {
    let Sandbox { uid, name, namespace, .. } = sandbox;
    format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={id};K8S_POD_UID={uid}"
    )
}

/// The arguments of all capabilities that Kubernetes has.
fn capabilities(sandbox: &Sandbox, ranges: &[String]) -> Map<String, Value> {
    let mut all = Map::new();
    if !sandbox.ports.is_empty() {
        let mapping = |p: &HostPort| {
            let mut mapping = json!({"hostPort": p.port, "containerPort": p.target, "protocol": p.protocol.word()});
            if let Some(address) = p.address {
                mapping["hostIP"] = address.to_string().into();
            }
            mapping
        };
        all.insert("portMappings".into(), sandbox.ports.iter().map(mapping).collect());
    }
    let mut bandwidth = Map::new();
    for (direction, rate) in [("ingress", sandbox.bandwidth.ingress), ("egress", sandbox.bandwidth.egress)] {
        if let Some(rate) = rate {
            bandwidth.insert(format!("{direction}Rate"), rate.into());
            // As much at once as the plugin allows.
            bandwidth.insert(format!("{direction}Burst"), i32::MAX.into());
        }
    }
    if !bandwidth.is_empty() {
        all.insert("bandwidth".into(), bandwidth.into());
    }
    let [servers, searches, options] = &sandbox.dns;
    if sandbox.dns.iter().any(|list| !list.is_empty()) {
        all.insert("dns".into(), json!({"servers": servers, "searches": searches, "options": options}));
    }
    if !ranges.is_empty() {
        let range = |range: &String| json!([{"subnet": range}]);
        all.insert("ipRanges".into(), ranges.iter().map(range).collect());
    }
    all
}

/// The arguments of the capabilities that a plugin has by its configuration.
fn of_plugin(plugin: &Map<String, Value>, all: &Map<String, Value>) -> Map<String, Value> {
    let declared = plugin.get("capabilities").and_then(Value::as_object).into_iter().flatten();
    let has = declared.filter(|(_, on)| **on == Value::Bool(true));
    has.filter_map(|(name, _)| Some((name.clone(), all.get(name)?.clone()))).collect()
}

/// The configuration of a plugin, with the name and version of its network.
fn common(network: &Network, plugin: &Map<String, Value>) -> Value {
    let mut configuration = Value::Object(plugin.clone());
    configuration["name"] = network.name.clone().into();
    configuration["cniVersion"] = network.version.as_str().into();
    configuration
}
