//! The registration of plugins: sockets in the directory `plugins_registry` of the kubelet.
//!
//! [`follow`] searches the directory. For each socket it asks the plugin what it is, gives it to the [`Handler`] of its type, and tells
//! it the outcome; what fails is tried again with back-off. When the socket is gone, or another one is in its place, the plugin
//! is deregistered. Follows upstream's `pkg/kubelet/pluginmanager`.

mod scan;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use supervisor::blocking;
use supervisor::panics::{Panicked, caught};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::api::registration::{GET_INFO, InfoRequest, NOTIFY_REGISTRATION_STATUS, PluginInfo, RegistrationStatus};
use crate::{Connection, Limits, SocketPath};
use scan::Identity;

/// The time that a plugin has for `GetInfo` and for `NotifyRegistrationStatus`.
const DEADLINE: Duration = Duration::from_secs(5);
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(122);
/// Sockets that are followed at a time; there is one for each plugin of the node.
const MAX_SOCKETS: usize = 256;
/// Bytes of a name, and of the path of an endpoint.
const MAX_NAME: usize = 253;
const MAX_PATH: usize = 4096;
const MAX_VERSIONS: usize = 64;

/// A plugin that has announced itself. What it says is checked for its form only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// The name, which is not empty, has at most 253 bytes, and no control characters.
    pub name: String,
    /// The socket of the plugin's API: an absolute path as the plugin names it.
    pub endpoint: PathBuf,
    /// Versions of the API that the plugin supports.
    pub versions: Vec<String>,
    /// The socket by which it has registered, which tells two plugins with the same name apart.
    pub socket: PathBuf,
}

/// What happens to plugins of one type. The methods may take long: a plugin has a task of its own.
#[async_trait::async_trait]
pub trait Handler: Send + Sync {
    /// Errors if the plugin cannot be used, with the reason that the plugin receives.
    fn validate(&self, plugin: &Plugin) -> Result<(), String>;

    /// Begins to use the plugin. An error is the reason that the plugin receives; it is tried again later.
    async fn register(&self, plugin: &Plugin) -> Result<(), String>;

    /// Ends the use of a registered plugin whose socket is gone. Another plugin may have registered under its name meanwhile.
    async fn deregister(&self, plugin: &Plugin);
}

/// What [`follow`] needs.
pub struct Options {
    /// The directory, which is created if it is missing. Sockets may be in directories below it.
    pub directory: PathBuf,
    /// The path of [`Options::directory`] as plugins see it.
    pub shown_as: PathBuf,
    /// How often the directory is searched.
    pub interval: Duration,
    /// The handler of each type of plugin.
    pub handlers: BTreeMap<&'static str, Arc<dyn Handler>>,
}

/// A socket that is followed: its task ends, after it has deregistered the plugin, when `present` is dropped.
struct Followed {
    identity: Identity,
    _present: watch::Sender<()>,
    /// Finished when the task is.
    ended: futures::future::Shared<futures::future::BoxFuture<'static, ()>>,
}

/// Registers and deregisters plugins until the future is dropped. Plugins stay registered then; their sockets are found again.
pub async fn follow(options: Options) {
    let options = Arc::new(options);
    let mut followed: BTreeMap<PathBuf, Followed> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    let mut timer = tokio::time::interval(options.interval);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last_error = String::new();
    loop {
        timer.tick().await;
        while tasks.try_join_next().is_some() {}
        let directory = options.directory.clone();
        let found = match blocking(move || scan::sockets(&directory, MAX_SOCKETS)).await {
            Ok(found) => found,
            Err(error) => {
                let text = error.to_string();
                if text != last_error {
                    tracing::warn!(directory = %options.directory.display(), %error, "searching for plugins failed");
                    last_error = text;
                }
                continue;
            }
        };
        last_error.clear();
        let before = std::mem::take(&mut followed);
        let mut gone: BTreeMap<PathBuf, _> = BTreeMap::new();
        for (path, f) in before {
            match found.get(&path) == Some(&f.identity) {
                true => drop(followed.insert(path, f)),
                false => drop(gone.insert(path, f.ended)),
            }
        }
        for (path, identity) in found {
            if followed.contains_key(&path) {
                continue;
            }
            let (present, absent) = watch::channel(());
            let (options, predecessor, relative) = (options.clone(), gone.remove(&path), path.clone());
            let (done, is_done) = tokio::sync::oneshot::channel::<()>();
            tasks.spawn(async move {
                if let Some(predecessor) = predecessor {
                    predecessor.await;
                }
                let key = relative.display().to_string();
                if let Err(Panicked) = caught("plugin", key, serve(&options, &relative, absent)).await {
                    tracing::error!(socket = %relative.display(), "the registration of a plugin panicked");
                }
                drop(done);
            });
            let ended = is_done.map(drop).boxed().shared();
            followed.insert(path, Followed { identity, _present: present, ended });
        }
    }
}

/// Follows one socket until it is gone.
async fn serve(options: &Options, path: &Path, mut absent: watch::Receiver<()>) {
    let shown = options.shown_as.join(path);
    let socket = SocketPath { name: shown.clone(), ..SocketPath::below(&options.directory, path) };
    let connection = Connection::new(socket, Limits { message: 64 << 10, ..Limits::default() });
    let mut retry = FIRST_RETRY;
    let (plugin, handler) = loop {
        let attempt = register(options, &connection, &shown);
        let registered = tokio::select! {
            registered = attempt => registered,
            _ = absent.changed() => return,
        };
        match registered {
            Ok(registered) => break registered,
            Err(error) => {
                tracing::warn!(socket = %shown.display(), error, retry_in = ?retry, "registering a plugin failed");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(retry) => {}
            _ = absent.changed() => return,
        }
        retry = (retry * 2).min(LAST_RETRY);
    };
    tracing::info!(plugin = plugin.name, socket = %shown.display(), "plugin registered");
    // Resolves when the sender is dropped.
    while absent.changed().await.is_ok() {}
    handler.deregister(&plugin).await;
    tracing::info!(plugin = plugin.name, socket = %shown.display(), "plugin deregistered");
}

/// Registers a plugin. Errors with the reason.
async fn register(
    options: &Options,
    connection: &Connection,
    socket: &Path,
) -> Result<(Plugin, Arc<dyn Handler>), String> {
    let info = connection.call(&GET_INFO, InfoRequest {}, DEADLINE).await;
    let info = info.map_err(|e| format!("failed to get plugin info using RPC GetInfo: {e}"))?;
    let outcome = accept(options, &info, socket).await;
    let status = match &outcome {
        Ok(_) => RegistrationStatus { plugin_registered: true, error: String::new() },
        Err(error) => RegistrationStatus { plugin_registered: false, error: error.clone() },
    };
    if let Err(error) = connection.call(&NOTIFY_REGISTRATION_STATUS, status, DEADLINE).await {
        tracing::warn!(socket = %socket.display(), %error, "a plugin did not take the outcome of its registration");
    }
    outcome
}

async fn accept(options: &Options, info: &PluginInfo, socket: &Path) -> Result<(Plugin, Arc<dyn Handler>), String> {
    let kind: String = info.kind.chars().take(MAX_NAME).collect();
    let Some(handler) = options.handlers.get(kind.as_str()).cloned() else {
        let socket = socket.display();
        return Err(format!(
            "RegisterPlugin error -- no handler registered for plugin type: {kind} at socket {socket}"
        ));
    };
    let plugin = form(info, socket)
        .and_then(|plugin| handler.validate(&plugin).map(|()| plugin))
        .map_err(|e| format!("RegisterPlugin error -- plugin validation failed with err: {e}"))?;
    let registered = handler.register(&plugin).await;
    registered.map_err(|e| format!("RegisterPlugin error -- plugin registration failed with err: {e}"))?;
    Ok((plugin, handler))
}

/// What the plugin says of itself, if it has the right form.
fn form(info: &PluginInfo, socket: &Path) -> Result<Plugin, String> {
    let PluginInfo { name, endpoint, supported_versions: versions, .. } = info;
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err("invalid plugin name".into());
    }
    if endpoint.len() > MAX_PATH || endpoint.contains('\0') {
        return Err("invalid endpoint".into());
    }
    if versions.len() > MAX_VERSIONS || versions.iter().any(|v| v.len() > MAX_NAME) {
        return Err("too many or too long supported versions".into());
    }
    let endpoint = if endpoint.is_empty() { socket.to_owned() } else { PathBuf::from(endpoint) };
    if !endpoint.is_absolute() {
        return Err(format!("endpoint {endpoint:?} is not an absolute path"));
    }
    Ok(Plugin { name: name.clone(), endpoint, versions: versions.clone(), socket: socket.to_owned() })
}

#[cfg(test)]
mod tests;
