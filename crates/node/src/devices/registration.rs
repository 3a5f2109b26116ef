//! The registration of device plugins, and the streams of their devices.

use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use plugins::api::devices::{
    Device, Empty, GET_OPTIONS, LIST_AND_WATCH, PluginOptions, REGISTER, RegisterRequest, VERSION,
};
use plugins::registration::{Handler, Plugin as Registered};
use plugins::{Connection, Limits, Server, SocketPath, Status};
use supervisor::blocking;
use tokio::time::Instant;

use super::{DeviceState, Devices, Plugin, Resource};
use crate::resources::is_extended;

/// The directory of the sockets, below the kubelet's root.
pub const DIRECTORY: &str = "device-plugins";
const SOCKET: &str = "kubelet.sock";
/// The time that a plugin has to describe itself and to begin its list of devices.
const DEADLINE: Duration = Duration::from_secs(10);
/// Bytes of the name of a resource.
const MAX_NAME: usize = 253;
/// Bytes of the id of a device.
const MAX_ID: usize = 253;
/// Resources of plugins.
const MAX_RESOURCES: usize = 256;

/// Serves the registration of device plugins, for ever.
pub async fn run(devices: Arc<Devices>) {
    let directory = devices.root.path.join(DIRECTORY);
    loop {
        let path = directory.clone();
        let prepared = blocking(move || prepare(&path)).await;
        let socket = SocketPath::below(&directory, SOCKET);
        let own = devices.clone();
        let server = Server::new().unary(&REGISTER, move |request| register(own.clone(), request));
        match prepared.and_then(|()| server.serve(&socket)) {
            // Plugins notice that the socket is new, and register again.
            Ok(_running) => return std::future::pending().await,
            Err(error) => {
                tracing::warn!(directory = %directory.display(), %error, "serving the registration of device plugins failed; it is tried again");
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        }
    }
}

/// Creates the directory, and removes sockets of plugins that knew an earlier agent, as upstream: they make new ones and register again.
fn prepare(directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    std::fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o750))?;
    for entry in std::fs::read_dir(directory)?.flatten() {
        if entry.file_type().is_ok_and(|t| t.is_socket())
            && let Err(error) = std::fs::remove_file(entry.path())
        {
            tracing::warn!(path = %entry.path().display(), %error, "removing the socket of a device plugin failed");
        }
    }
    Ok(())
}

fn check(version: &str, resource: &str) -> Result<(), String> {
    if version != VERSION {
        return Err(format!(
            "requested API version {version:?} is not supported by kubelet. Supported version is [\"{VERSION}\"]"
        ));
    }
    let is_name = resource.len() <= MAX_NAME && meta::names::qualified_name(resource).is_empty();
    if !is_name || !is_extended(resource) {
        let resource: String = resource.chars().take(MAX_NAME).collect();
        return Err(format!("the ResourceName {resource:?} is invalid"));
    }
    Ok(())
}

async fn register(devices: Arc<Devices>, request: RegisterRequest) -> Result<Empty, Status> {
    let RegisterRequest { version, endpoint, resource_name, .. } = request;
    check(&version, &resource_name).map_err(Status::unknown)?;
    let is_plain = !endpoint.is_empty() && !endpoint.contains(['/', '\0']) && endpoint != "." && endpoint != "..";
    if !is_plain {
        return Err(Status::unknown("failed to dial device plugin: the endpoint is no name of a socket"));
    }
    let socket = SocketPath {
        name: devices.root.shown_as.join(DIRECTORY).join(&endpoint),
        ..SocketPath::below(devices.root.path.join(DIRECTORY), endpoint)
    };
    connect(&devices, &resource_name, socket).await.map_err(Status::unknown)?;
    Ok(Empty {})
}

/// Begins to use a plugin. An earlier one of the resource is replaced.
async fn connect(devices: &Arc<Devices>, resource: &str, socket: SocketPath) -> Result<(), String> {
    let connection = Connection::new(socket, Limits::default());
    let options = connection.call(&GET_OPTIONS, Empty {}, DEADLINE).await;
    let options = options.map_err(|e| format!("failed to get device plugin options: {e}"))?;
    let generation = devices.begin(resource, connection.clone(), options)?;
    tracing::info!(resource, "device plugin registered");
    let (devices, resource) = (devices.clone(), resource.to_owned());
    tokio::spawn(async move {
        let why = watch(&devices, &resource, generation, &connection).await;
        if devices.end(&resource, generation).await {
            tracing::info!(resource, why, "device plugin disconnected");
        }
    });
    Ok(())
}

/// Follows the devices of a plugin. Returns why that ended.
async fn watch(devices: &Devices, resource: &str, generation: u64, connection: &Connection) -> String {
    let mut messages = match connection.stream(&LIST_AND_WATCH, Empty {}, DEADLINE).await {
        Ok(messages) => messages,
        Err(error) => return error.to_string(),
    };
    loop {
        match messages.next().await {
            Ok(Some(list)) => {
                if !devices.update(resource, generation, &list.devices).await {
                    return "another plugin has registered for its resource".into();
                }
            }
            Ok(None) => return "it ended its list of devices".into(),
            Err(error) => return error.to_string(),
        }
    }
}

impl Devices {
    fn begin(&self, resource: &str, connection: Connection, options: PluginOptions) -> Result<u64, String> {
        let mut state = self.state.lock();
        if state.resources.len() >= MAX_RESOURCES && !state.resources.contains_key(resource) {
            return Err(format!("there are {MAX_RESOURCES} resources of device plugins"));
        }
        state.generation += 1;
        let generation = state.generation;
        let known = state.resources.entry(resource.to_owned()).or_default();
        known.plugin = Some(Plugin { connection, options, generation });
        known.gone = None;
        Ok(generation)
    }

    /// Takes a new list of devices. Returns `false` if another plugin has registered for the resource.
    pub(super) async fn update(&self, resource: &str, generation: u64, devices: &[Device]) -> bool {
        let affected = {
            let mut state = self.state.lock();
            let Some(known) = state.resources.get_mut(resource).filter(|r| is_of(r, generation)) else { return false };
            let new = devices.iter().filter(|d| !d.id.is_empty() && d.id.len() <= MAX_ID);
            let new: BTreeMap<String, DeviceState> = new.map(|d| (d.id.clone(), DeviceState::from(d))).collect();
            let old = std::mem::replace(&mut known.devices, new.clone());
            let changed = |id: &String| new.get(id).map(|d| d.healthy) != old.get(id).map(|d| d.healthy);
            state.users(resource, changed)
        };
        self.notify(&affected).await;
        true
    }

    /// Marks the devices of a plugin that is gone as unhealthy. Returns `false` if another plugin has registered for the resource.
    async fn end(&self, resource: &str, generation: u64) -> bool {
        let affected = {
            let mut state = self.state.lock();
            let Some(known) = state.resources.get_mut(resource).filter(|r| is_of(r, generation)) else { return false };
            known.plugin = None;
            known.gone = Some(Instant::now());
            known.devices.values_mut().for_each(|d| d.healthy = false);
            state.users(resource, |_| true)
        };
        self.notify(&affected).await;
        true
    }

    async fn notify(&self, affected: &[String]) {
        self.save().await;
        self.changed.notify_one();
        affected.iter().for_each(|uid| (self.wake)(uid));
    }
}

fn is_of(resource: &Resource, generation: u64) -> bool {
    resource.plugin.as_ref().is_some_and(|p| p.generation == generation)
}

impl super::State {
    /// The pods that have one of these devices.
    fn users(&self, resource: &str, is_one: impl Fn(&String) -> bool) -> Vec<String> {
        let mut out = Vec::new();
        for (uid, containers) in &self.allocations {
            let mut allocations = containers.values().filter_map(|all| all.get(resource));
            if allocations.any(|a| a.ids.iter().any(&is_one)) {
                out.push(uid.clone());
            }
        }
        out
    }
}

/// Device plugins that register in the directory of all plugins.
pub struct Registration(pub Arc<Devices>);

#[async_trait]
impl Handler for Registration {
    fn validate(&self, plugin: &Registered) -> Result<(), String> {
        match plugin.versions.iter().any(|v| v == VERSION) {
            true => check(VERSION, &plugin.name),
            false => {
                Err(format!("manager version, {VERSION}, is not among plugin supported versions {:?}", plugin.versions))
            }
        }
    }

    async fn register(&self, plugin: &Registered) -> Result<(), String> {
        connect(&self.0, &plugin.name, self.0.root.socket(&plugin.endpoint)).await
    }

    async fn deregister(&self, plugin: &Registered) {
        // The stream of its devices ends with it.
        tracing::debug!(resource = plugin.name, "the socket of a device plugin is gone");
    }
}
