//! The environment of a container: its own variables, those of config maps and secrets, and those of services.
//!
//! Follows kubelet's `makeEnvironmentVariables` and `envvars.FromServices`. Errors are shown to users: the container waits with
//! `CreateContainerConfigError`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use client::informer::or_default;
use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::Mutex;
use serde::Deserialize;

mod file;

use crate::fields::{self, NodeInfo};
use crate::objects::{Data, Kind, Objects, Reference};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{kind} \"{name}\" not found")]
    NotFound { kind: &'static str, name: String },
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    Key { key: String, kind: &'static str, namespace: String, name: String },
    #[error(transparent)]
    Objects(#[from] crate::objects::Error),
    #[error(transparent)]
    Field(#[from] fields::Error),
    #[error(transparent)]
    File(#[from] file::Error),
    #[error("environment variable {0}: this source is not supported by this node")]
    Source(String),
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

/// Bytes of the environment, command and arguments of a container together: the largest limit that a kernel can have (`execve`). The
/// runtime checks the limit of this kernel, mostly a third of it.
pub const MAX_BYTES: usize = 6 << 20;

/// A text exceeds its limit, for example through variables that double each other.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("argument list too long: environment, command and arguments take more than {0} bytes")]
pub struct TooLong(usize);

/// A limit on bytes, and what remains of it.
pub struct Budget {
    most: usize,
    left: usize,
}

impl Budget {
    pub fn new(most: usize) -> Self {
        Self { most, left: most }
    }

    pub fn taken(&self) -> usize {
        self.most - self.left
    }

    pub fn take(&mut self, bytes: usize) -> Result<(), TooLong> {
        self.left = self.left.checked_sub(bytes).ok_or(TooLong(self.most))?;
        Ok(())
    }
}

/// The variables, and by their source the keys that were skipped because they are no valid names.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Environment {
    pub variables: Vec<(String, String)>,
    pub skipped: Vec<(String, Vec<String>)>,
}

/// A source of config maps and secrets: the agent's [`Objects`], or a table in tests.
#[async_trait::async_trait]
pub trait Source: Send + Sync {
    async fn data(&self, kind: Kind, namespace: &str, name: &str) -> Result<Option<Arc<Data>>, crate::objects::Error>;
}

#[async_trait::async_trait]
impl Source for Objects {
    async fn data(&self, kind: Kind, namespace: &str, name: &str) -> Result<Option<Arc<Data>>, crate::objects::Error> {
        Ok(Objects::data(self, kind, namespace, name).await?.map(Arc::new))
    }
}

/// Bytes that a [`CachedSource`] keeps, and bytes that it reads in all.
const MAX_KEPT: usize = 32 << 20;
const MAX_READ: usize = 256 << 20;

/// A source for one container or pod. It reads an object once for all that refer to it, and limits what is read in all.
pub struct CachedSource<'a> {
    source: &'a dyn Source,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    data: BTreeMap<(Kind, String), Option<Arc<Data>>>,
    kept: usize,
    read: usize,
}

impl<'a> CachedSource<'a> {
    pub fn new(source: &'a dyn Source) -> Self {
        Self { source, seen: Mutex::default() }
    }
}

#[async_trait::async_trait]
impl Source for CachedSource<'_> {
    /// All calls must be for the same namespace.
    async fn data(&self, kind: Kind, namespace: &str, name: &str) -> Result<Option<Arc<Data>>, crate::objects::Error> {
        let key = (kind, name.to_owned());
        if let Some(known) = self.seen.lock().data.get(&key) {
            return Ok(known.clone());
        }
        let data = self.source.data(kind, namespace, name).await?;
        // Decoding an object may take long.
        tokio::task::yield_now().await;
        let size = 64 + data.iter().flat_map(|d| d.iter()).map(|(k, v)| 64 + k.len() + v.len()).sum::<usize>();
        let mut seen = self.seen.lock();
        seen.read += size;
        if seen.read > MAX_READ {
            return Err(crate::objects::Error::TooMuch(MAX_READ >> 20));
        }
        if seen.kept + size <= MAX_KEPT {
            seen.kept += size;
            seen.data.insert(key, data.clone());
        }
        Ok(data)
    }
}

/// Variables in the order in which they were first set.
#[derive(Default)]
struct Variables {
    list: Vec<(String, String)>,
    at: BTreeMap<String, usize>,
}

impl Variables {
    fn set(&mut self, name: &str, value: String) {
        match self.at.get(name) {
            Some(i) => self.list[*i].1 = value,
            None => {
                self.at.insert(name.to_owned(), self.list.len());
                self.list.push((name.to_owned(), value));
            }
        }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.at.get(name).map(|i| self.list[*i].1.as_str())
    }
}

/// Builds the environment of a container. `services` are the variables of services, `volumes` the directories of the pod's volumes.
pub async fn build(
    pod: &Pod,
    container: &Container,
    source: &dyn Source,
    services: &BTreeMap<String, String>,
    volumes: &BTreeMap<String, PathBuf>,
    node: &NodeInfo,
) -> Result<Environment, Error> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let source = CachedSource::new(source);
    let mut out = Variables::default();
    let mut budget = Budget::new(MAX_BYTES);
    let mut skipped = Vec::new();
    let mut read = 0;
    for from in container.env_from.iter().flatten() {
        let (kind, name, optional) = match (&from.config_map_ref, &from.secret_ref) {
            (Some(r), _) => (Kind::ConfigMap, &r.name, r.optional),
            (None, Some(r)) => (Kind::Secret, &r.name, r.optional),
            (None, None) => continue,
        };
        let Some(data) = source.data(kind, namespace, name).await? else {
            if optional == Some(true) {
                continue;
            }
            return Err(Error::NotFound { kind: kind.noun(), name: name.clone() });
        };
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let mut bad = Vec::new();
        for (key, value) in &*data {
            let key = format!("{prefix}{key}");
            budget.take(key.len() + value.len())?;
            if meta::names::env_var_name(&key).is_empty() {
                out.set(&key, String::from_utf8_lossy(value).into_owned());
            } else {
                bad.push(key);
            }
        }
        if !bad.is_empty() {
            let title = if kind == Kind::ConfigMap { "ConfigMap" } else { "Secret" };
            skipped.push((format!("{title} {namespace}/{name}"), bad));
        }
    }
    for e in container.env.iter().flatten() {
        let Some(from) = &e.value_from else {
            let lookup = |name: &str| out.get(name).or_else(|| services.get(name).map(String::as_str));
            let value = expand(e.value.as_deref().unwrap_or_default(), lookup, &mut budget)?;
            budget.take(e.name.len())?;
            out.set(&e.name, value);
            continue;
        };
        let key_ref = match (&from.config_map_key_ref, &from.secret_key_ref) {
            (Some(r), _) => Some((Kind::ConfigMap, "ConfigMap", &r.name, &r.key, r.optional)),
            (None, Some(r)) => Some((Kind::Secret, "Secret", &r.name, &r.key, r.optional)),
            (None, None) => None,
        };
        let value = if let Some(r) = &from.field_ref {
            fields::field(pod, &r.field_path, node)?
        } else if let Some(r) = &from.resource_field_ref {
            fields::resource(pod, &container.name, r, node)?
        } else if let Some((kind, title, name, key, optional)) = key_ref {
            let optional = optional == Some(true);
            match source.data(kind, namespace, name).await? {
                None if optional => continue,
                None => return Err(Error::NotFound { kind: kind.noun(), name: name.clone() }),
                Some(data) => match data.get(key) {
                    Some(v) => String::from_utf8_lossy(v).into_owned(),
                    None if optional => continue,
                    None => {
                        let (key, name) = (key.clone(), name.clone());
                        return Err(Error::Key { key, kind: title, namespace: namespace.to_owned(), name });
                    }
                },
            }
        } else if let Some(r) = &from.file_key_ref {
            let (value, size) = file::read(volumes, r).await?;
            // Each variable reads its file again.
            read += size;
            if read > MAX_READ {
                return Err(crate::objects::Error::TooMuch(MAX_READ >> 20).into());
            }
            match value.is_empty() {
                false => value,
                true if r.optional == Some(true) => continue,
                true => return Err(file::Error::missing(volumes, r).into()),
            }
        } else {
            return Err(Error::Source(e.name.clone()));
        };
        budget.take(e.name.len() + value.len())?;
        out.set(&e.name, value);
    }
    for (name, value) in services {
        if out.get(name).is_none() {
            budget.take(name.len() + value.len())?;
            out.set(name, value.clone());
        }
    }
    Ok(Environment { variables: out.list, skipped })
}

/// Replaces `$(NAME)` where the name is known; `$$` stands for `$` (`third_party/forked/golang/expansion`).
///
/// # Errors When the result exceeds the budget.
pub fn expand<'a>(
    text: &str,
    lookup: impl Fn(&str) -> Option<&'a str>,
    budget: &mut Budget,
) -> Result<String, TooLong> {
    let mut out = String::new();
    let mut push = |piece: &str| {
        budget.take(piece.len())?;
        out.push_str(piece);
        Ok(())
    };
    let mut rest = text;
    while let Some(i) = rest.find('$') {
        push(&rest[..i])?;
        rest = &rest[i + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            push("$")?;
            rest = after;
        } else if let Some(inner) = rest.strip_prefix('(')
            && let Some(end) = inner.find(')')
        {
            let name = &inner[..end];
            match lookup(name) {
                Some(value) => push(value)?,
                None => ["$(", name, ")"].into_iter().try_for_each(&mut push)?,
            }
            rest = &inner[end + 1..];
        } else {
            push("$")?;
        }
    }
    push(rest)?;
    Ok(out)
}

/// The objects that variables of the pod's containers read.
pub fn references(pod: &Pod) -> BTreeSet<Reference> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let mut out = BTreeSet::new();
    let mut add = |kind, name: &str| {
        out.insert(Reference { kind, namespace: namespace.clone(), name: name.to_owned() });
    };
    let Some(spec) = &pod.spec else { return BTreeSet::new() };
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers).map(|c| (&c.env, &c.env_from));
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| (&c.env, &c.env_from));
    for (env, env_from) in containers.chain(ephemeral) {
        for e in env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
            if let Some(r) = &e.config_map_key_ref {
                add(Kind::ConfigMap, &r.name);
            }
            if let Some(r) = &e.secret_key_ref {
                add(Kind::Secret, &r.name);
            }
        }
        for e in env_from.iter().flatten() {
            if let Some(r) = &e.config_map_ref {
                add(Kind::ConfigMap, &r.name);
            }
            if let Some(r) = &e.secret_ref {
                add(Kind::Secret, &r.name);
            }
        }
    }
    out
}

/// The fields of a service that variables show.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceView {
    spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceSpec {
    #[serde(rename = "clusterIP", deserialize_with = "or_default")]
    cluster_ip: String,
    #[serde(deserialize_with = "or_default")]
    ports: Vec<ServicePort>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ServicePort {
    name: Option<String>,
    protocol: Option<String>,
    port: i32,
}

/// Variables of the services that a pod sees: those of its namespace, and that of the API. `services` are pairs of namespace and
/// name with the service; the first of a name wins. Errors, without reading further services, when the variables exceed the limit of
/// a container.
pub fn service_variables<'a>(
    services: impl Iterator<Item = (&'a str, &'a str, &'a ServiceView)>,
    namespace: &str,
    links: bool,
) -> Result<BTreeMap<String, String>, TooLong> {
    let mut out = BTreeMap::new();
    let mut budget = Budget::new(MAX_BYTES);
    let mut set = |name: String, value: String| {
        budget.take(name.len() + value.len())?;
        out.insert(name, value);
        Ok(())
    };
    let mut done = BTreeSet::new();
    for (ns, name, ServiceView { spec }) in services {
        let own = ns == namespace && links;
        let api = ns == "default" && name == "kubernetes";
        if !(own || api) || !done.insert(name.to_owned()) {
            continue;
        }
        let (ip, ports) = (spec.cluster_ip.as_str(), &spec.ports);
        if ip.is_empty() || ip == "None" || ports.is_empty() {
            continue;
        }
        let upper = |t: &str| t.to_ascii_uppercase().replace(['-', '.'], "_");
        let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
        let p = upper(name);
        set(format!("{p}_SERVICE_HOST"), ip.to_owned())?;
        set(format!("{p}_SERVICE_PORT"), ports[0].port.to_string())?;
        for (i, port) in ports.iter().enumerate() {
            if let Some(n) = port.name.as_deref().filter(|n| !n.is_empty()) {
                set(format!("{p}_SERVICE_PORT_{}", upper(n)), port.port.to_string())?;
            }
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let url = format!("{}://{host}:{}", protocol.to_ascii_lowercase(), port.port);
            if i == 0 {
                set(format!("{p}_PORT"), url.clone())?;
            }
            let link = format!("{p}_PORT_{}_{}", port.port, protocol.to_ascii_uppercase());
            set(format!("{link}_PROTO"), protocol.to_ascii_lowercase())?;
            set(format!("{link}_PORT"), port.port.to_string())?;
            set(format!("{link}_ADDR"), ip.to_owned())?;
            set(link, url)?;
        }
    }
    Ok(out)
}

#[cfg(test)]
#[path = "env_tests.rs"]
mod tests;
