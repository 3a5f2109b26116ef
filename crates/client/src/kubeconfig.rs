//! Kubeconfig files: server, user and namespace.
//!
//! Follows client-go `tools/clientcmd`: `KUBECONFIG` is a list of files, the first of which that sets a value wins; relative paths
//! are relative to their file; flags override files. Left out: writing files, and auth provider plugins.

mod check;
mod exec;
mod exec_transport;
mod load;
mod proxies;

pub use crate::https::os_error;
pub use load::{Sources, in_cluster};
pub use proxies::from_environment as proxy_from_environment;

use crate::error::Error;
use crate::https::{ClientIdentity, Config, Credentials, Https, Proxy, Roots};
use crate::{Client, Impersonation, Transport};
use base64::Engine;
use meta::Clock;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A kubeconfig file. Unknown fields are kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Kubeconfig {
    /// `v1`.
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    /// `Config`.
    pub kind: String,
    /// Name of the context in use; may be empty.
    pub current_context: String,
    /// Clusters by name.
    #[serde(deserialize_with = "list")]
    pub clusters: Vec<Named<Cluster>>,
    /// Contexts by name.
    #[serde(deserialize_with = "list")]
    pub contexts: Vec<Named<Context>>,
    /// Users by name.
    #[serde(deserialize_with = "list")]
    pub users: Vec<Named<User>>,
    /// Unknown fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Reads a list that may be `null`, as Go writes an empty one.
fn list<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::<Vec<T>>::deserialize(d)?.unwrap_or_default())
}

/// An entry of one of the three lists. Its value is under the list's name in the singular.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Named<T> {
    /// Name of the entry.
    pub name: String,
    /// Value of the entry.
    pub value: T,
}

/// The value type of one of the three lists.
pub trait Entry {
    /// Field of an entry that holds the value: `cluster`.
    const KEY: &'static str;
}

impl Entry for Cluster {
    const KEY: &'static str = "cluster";
}

impl Entry for Context {
    const KEY: &'static str = "context";
}

impl Entry for User {
    const KEY: &'static str = "user";
}

impl<T: Entry + Serialize> Serialize for Named<T> {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut m = s.serialize_map(Some(2))?;
        m.serialize_entry(T::KEY, &self.value)?;
        m.serialize_entry("name", &self.name)?;
        m.end()
    }
}

impl<'de, T: Entry + Default + serde::de::DeserializeOwned> Deserialize<'de> for Named<T> {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let mut m = Map::<String, Value>::deserialize(d)?;
        let name = m.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let value = match m.remove(T::KEY) {
            None | Some(Value::Null) => T::default(),
            Some(v) => serde_json::from_value(v).map_err(|e| D::Error::custom(format!("{} {name:?}: {e}", T::KEY)))?,
        };
        Ok(Self { name, value })
    }
}

/// A server and how to verify it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Cluster {
    /// URL of the server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub server: String,
    /// Path of a PEM file with certificate authorities.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub certificate_authority: String,
    /// PEM in base64.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub certificate_authority_data: String,
    /// Accepts any server certificate.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure_skip_tls_verify: bool,
    /// Name that the server's certificate must have; empty for the host of `server`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tls_server_name: String,
    /// URL of a proxy (`http://` only); empty for that of the environment.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub proxy_url: String,
    /// Unknown fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A cluster, a user and a default namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Context {
    /// Name of the cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// Name of the user.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Default namespace; empty for `default`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Unknown fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Credentials of a user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct User {
    /// Path of a PEM file with the certificate chain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_certificate: String,
    /// Certificate chain as PEM in base64; takes precedence over the file.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_certificate_data: String,
    /// Path of a PEM file with the private key.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_key: String,
    /// Private key as PEM in base64; takes precedence over the file.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_key_data: String,
    /// Bearer token.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub token: String,
    /// Path of a file with a bearer token; takes precedence over `token`.
    #[serde(rename = "tokenFile", skip_serializing_if = "String::is_empty")]
    pub token_file: String,
    /// User name of basic authentication.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub username: String,
    /// Password of basic authentication.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub password: String,
    /// User to impersonate.
    #[serde(rename = "as", skip_serializing_if = "String::is_empty")]
    pub impersonate: String,
    /// UID to impersonate.
    #[serde(rename = "as-uid", skip_serializing_if = "String::is_empty")]
    pub impersonate_uid: String,
    /// Groups to impersonate.
    #[serde(rename = "as-groups", skip_serializing_if = "Vec::is_empty")]
    pub impersonate_groups: Vec<String>,
    /// Credential plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<exec::Exec>,
    /// Unknown fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Values of flags; empty fields are not set.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Context to use (`--context`).
    pub context: String,
    /// Cluster of the kubeconfig to use (`--cluster`).
    pub cluster: String,
    /// User of the kubeconfig to use (`--user`).
    pub user: String,
    /// Namespace of requests (`--namespace`).
    pub namespace: String,
    /// URL of the server (`--server`).
    pub server: String,
    /// Path of a PEM file with certificate authorities (`--certificate-authority`).
    pub certificate_authority: String,
    /// Accepts any server certificate (`--insecure-skip-tls-verify`).
    pub insecure_skip_tls_verify: bool,
    /// Name that the server's certificate must have (`--tls-server-name`).
    pub tls_server_name: String,
    /// Path of a PEM file with the client certificate (`--client-certificate`).
    pub client_certificate: String,
    /// Path of a PEM file with the private key (`--client-key`).
    pub client_key: String,
    /// Bearer token (`--token`).
    pub token: String,
    /// User name of basic authentication (`--username`).
    pub username: String,
    /// Password of basic authentication (`--password`).
    pub password: String,
    /// User to impersonate (`--as`, `--as-group`, `--as-uid`).
    pub impersonation: Impersonation,
    /// Time limit of each request (`--request-timeout`); none for no limit.
    pub request_timeout: Option<Duration>,
    /// Uses HTTP/1.1 only.
    pub disable_http2: bool,
    /// The command reads standard input, so an exec plugin cannot prompt there.
    pub stdin_in_use: bool,
}

/// The configuration of one context.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// Name of the context; empty if there is none.
    pub context: String,
    /// `default` unless the context or a flag names another.
    pub namespace: String,
    /// Whether a flag or the context named the namespace.
    pub namespace_given: bool,
    /// Connection to the server, without the credentials of a plugin.
    pub https: Config,
    /// User to impersonate.
    pub impersonation: Impersonation,
    /// Time limit of each request; none for no limit.
    pub request_timeout: Option<Duration>,
    exec: Option<exec::Exec>,
}

impl Resolved {
    /// The exec plugin that provides credentials, if any.
    pub fn plugin(&self) -> Option<&str> {
        self.exec.as_ref().map(|e| e.command.as_str())
    }

    /// The configuration of a short-lived connection; runs the exec plugin if there is one.
    pub async fn config(&self) -> Result<Config, Error> {
        let mut config = self.https.clone();
        if let Some(plugin) = &self.exec {
            plugin.apply(&mut config).await?;
        }
        Ok(config)
    }

    /// A long-lived transport. Runs an exec plugin at once, and again whenever its credentials expire.
    pub async fn transport(&self, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Transport>, Error> {
        transport(self.https.clone(), self.exec.clone(), clock).await
    }

    /// A client over [`Resolved::transport`].
    pub async fn client(&self, user_agent: &str, clock: &Arc<dyn Clock>) -> Result<Client, Error> {
        let mut client = Client::shared(self.transport(clock).await?, user_agent);
        if self.impersonation != Impersonation::default() {
            client = client.with_impersonation(&self.impersonation)?;
        }
        Ok(match self.request_timeout {
            Some(t) => client.with_limit(t),
            None => client,
        })
    }
}

async fn transport(
    https: Config,
    plugin: Option<exec::Exec>,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Transport>, Error> {
    Ok(match plugin {
        Some(program) => Arc::new(exec_transport::ExecTransport::open(https, program, clock.clone()).await?),
        None => Arc::new(Https::new(&https)?),
    })
}

fn find<'a, T>(list: &'a [Named<T>], name: &str) -> Option<&'a T> {
    list.iter().find(|n| n.name == name).map(|n| &n.value)
}

fn first<'a>(a: &'a str, b: &'a str) -> &'a str {
    if a.is_empty() { b } else { a }
}

fn read(path: &str) -> Result<Vec<u8>, Error> {
    std::fs::read(Path::new(path)).map_err(|e| Error::Credentials(format!("open {path}: {}", os_error(&e))))
}

fn decode(what: &str, data: &str) -> Result<Vec<u8>, Error> {
    let compact: String = data.split_whitespace().collect();
    base64::engine::general_purpose::STANDARD
        .decode(compact)
        .map_err(|e| Error::Credentials(format!("{what}: illegal base64 data: {e}")))
}

/// Reads PEM from `data`, or else from `file`. `None` when neither is given.
fn pem(what: &str, file: &str, data: &str) -> Result<Option<Vec<u8>>, Error> {
    if !data.is_empty() {
        return decode(what, data).map(Some);
    }
    if file.is_empty() { Ok(None) } else { read(file).map(Some) }
}

/// Applies flags to a cluster. A flag for either the CA or skipping verification replaces both settings.
fn override_cluster(c: &mut Cluster, o: &Overrides) {
    if o.insecure_skip_tls_verify || !o.certificate_authority.is_empty() {
        c.insecure_skip_tls_verify = o.insecure_skip_tls_verify;
        c.certificate_authority.clone_from(&o.certificate_authority);
        c.certificate_authority_data.clear();
    }
    // The TLS server name in the file does not belong to the server of the flag.
    if !o.tls_server_name.is_empty() || !o.server.is_empty() {
        c.tls_server_name.clone_from(&o.tls_server_name);
    }
    if !o.server.is_empty() {
        c.server.clone_from(&o.server);
    }
}

/// Applies flags to a user; each replaces the setting of the same kind.
fn override_user(u: &mut User, o: &Overrides) {
    let set = |to: &mut String, from: &str| {
        if !from.is_empty() {
            from.clone_into(to);
        }
    };
    if !o.token.is_empty() {
        u.token_file.clear();
    }
    for (file, data, flag) in [
        (&mut u.client_certificate, &mut u.client_certificate_data, &o.client_certificate),
        (&mut u.client_key, &mut u.client_key_data, &o.client_key),
    ] {
        if !flag.is_empty() {
            data.clear();
            set(file, flag);
        }
    }
    set(&mut u.token, &o.token);
    set(&mut u.username, &o.username);
    set(&mut u.password, &o.password);
    set(&mut u.impersonate, &o.impersonation.user);
    set(&mut u.impersonate_uid, &o.impersonation.uid);
    if !o.impersonation.groups.is_empty() {
        u.impersonate_groups.clone_from(&o.impersonation.groups);
    }
}

impl User {
    /// Adds the user's credentials to `https` and returns the exec plugin to run, if any. As in client-go, a server without TLS gets
    /// none, because they would be readable on the network.
    fn add_credentials(&self, https: &mut Config) -> Result<Option<exec::Exec>, Error> {
        if !https.is_tls() {
            return Ok(None);
        }
        let certificates = pem("client-certificate-data", &self.client_certificate, &self.client_certificate_data)?;
        let key = pem("client-key-data", &self.client_key, &self.client_key_data)?;
        // A key without a certificate is ignored.
        https.identity = certificates.zip(key).map(|(certificates, key)| ClientIdentity { certificates, key });
        https.credentials = if !self.token_file.is_empty() {
            Credentials::BearerFile(PathBuf::from(&self.token_file))
        } else if !self.token.is_empty() {
            Credentials::Bearer(self.token.clone())
        } else if !self.username.is_empty() {
            Credentials::Basic { user: self.username.clone(), password: self.password.clone() }
        } else {
            Credentials::None
        };
        Ok(self.exec.clone().filter(|_| https.credentials == Credentials::None && https.identity.is_none()))
    }

    /// A transport with this user's credentials to a server that is not in the kubeconfig. Runs an exec plugin at once, and again
    /// whenever its credentials expire.
    pub async fn transport(&self, mut https: Config, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Transport>, Error> {
        if self.other.get("auth-provider").is_some_and(|p| !p.is_null()) {
            return Err(Error::Credentials("auth provider not supported".into()));
        }
        let bearer = !self.token.is_empty() || !self.token_file.is_empty();
        if bearer && !self.username.is_empty() {
            let why = "username/password or bearer token may be set, but not both";
            return Err(Error::Credentials(why.into()));
        }
        if self.token.is_empty() && !self.token_file.is_empty() {
            read(&self.token_file)?;
        }
        let plugin = self.add_credentials(&mut https)?;
        transport(https, plugin, clock).await
    }

    /// The user to impersonate.
    pub fn impersonation(&self) -> Impersonation {
        let extra = self.other.get("as-user-extra").and_then(Value::as_object).into_iter().flatten();
        let texts = |v: &Value| -> Vec<String> {
            v.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Impersonation {
            user: self.impersonate.clone(),
            uid: self.impersonate_uid.clone(),
            groups: self.impersonate_groups.clone(),
            extra: extra.flat_map(|(k, v)| texts(v).into_iter().map(|v| (k.clone(), v))).collect(),
        }
    }
}

impl Kubeconfig {
    /// The entry of a user.
    pub fn user(&self, name: &str) -> Option<&User> {
        find(&self.users, name)
    }

    /// The user of the current context.
    pub fn current_user(&self) -> Option<&str> {
        find(&self.contexts, &self.current_context).map(|c| c.user.as_str()).filter(|u| !u.is_empty())
    }

    /// Parses YAML or JSON. Keeps relative paths; see [`Sources::load`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |e: &dyn std::fmt::Display| Error::Credentials(e.to_string());
        let document = codec::yaml::parse(text).map_err(|e| wrong(&e))?.into_iter().next().unwrap_or_default();
        if document.is_null() {
            return Ok(Self::default());
        }
        let config: Self = serde_json::from_value(document).map_err(|e| wrong(&e))?;
        check::kind(&config)?;
        Ok(config)
    }

    /// Resolves the context that `o` or the file names.
    pub fn resolve(&self, o: &Overrides) -> Result<Resolved, Error> {
        let (mut problems, mut context_missing) = (Vec::new(), false);
        let name = first(&o.context, &self.current_context);
        let context = match find(&self.contexts, name) {
            Some(c) => c.clone(),
            None if name.is_empty() => Context::default(),
            None => {
                context_missing = true;
                problems.push(format!("context was not found for specified context: {name}"));
                Context::default()
            }
        };
        let cluster_name = first(&o.cluster, &context.cluster);
        let mut cluster = find(&self.clusters, cluster_name).cloned().unwrap_or_default();
        override_cluster(&mut cluster, o);
        let user_name = first(&o.user, &context.user);
        let mut user = match find(&self.users, user_name) {
            Some(u) => u.clone(),
            None if user_name.is_empty() || context_missing => User::default(),
            None => return Err(Error::Credentials(format!("auth info {user_name:?} does not exist"))),
        };
        override_user(&mut user, o);
        check::user(user_name, &user, &mut problems);
        check::cluster(cluster_name, &cluster, &mut problems);
        // A context that is not found is always reported as a list of problems, also alone.
        if context_missing {
            return Err(Error::Configuration(problems));
        }
        check::done(problems)?;

        let server = match cluster.server.as_str() {
            "" => "http://localhost:8080".to_owned(),
            s if s.contains("://") => s.to_owned(),
            s => format!("http://{s}"),
        };
        let mut https = Config::new(server);
        https.insecure = cluster.insecure_skip_tls_verify;
        let ca =
            pem("certificate-authority-data", &cluster.certificate_authority, &cluster.certificate_authority_data)?;
        if https.insecure && ca.is_some() && https.server.starts_with("https") {
            return Err(Error::Credentials(
                "specifying a root certificates file with the insecure flag is not allowed".into(),
            ));
        }
        https.roots = ca.map_or(Roots::System, Roots::Pem);
        https.server_name = (!cluster.tls_server_name.is_empty()).then(|| cluster.tls_server_name.clone());
        https.proxy = match cluster.proxy_url.as_str() {
            "" => None,
            url => Some(Proxy::parse(url)?),
        };
        https.disable_http2 = o.disable_http2;

        let mut exec = user.add_credentials(&mut https)?;
        if let Some(e) = &mut exec {
            e.set_cluster_info(&cluster);
            e.stdin_in_use = o.stdin_in_use;
        }
        let mut impersonation = user.impersonation();
        if !o.impersonation.extra.is_empty() {
            impersonation.extra.clone_from(&o.impersonation.extra);
        }
        let namespace = first(&o.namespace, &context.namespace);
        Ok(Resolved {
            context: name.to_owned(),
            namespace_given: !namespace.is_empty(),
            namespace: first(namespace, "default").to_owned(),
            https,
            impersonation,
            request_timeout: o.request_timeout,
            exec,
        })
    }
}
