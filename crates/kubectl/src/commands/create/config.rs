//! Config maps and secrets.

use super::{Generator, WriteFlags};
use crate::error::{Error, Result, text};
use crate::resource::file::os;
use base64::Engine as _;
use meta::{Map, Value};
use serde_json::json;
use std::path::Path;

/// Where values come from.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Sources {
    /// KEY=VALUE; may be repeated.
    #[arg(long)]
    pub from_literal: Vec<String>,
    /// FILE, KEY=FILE or a directory; may be repeated.
    #[arg(long)]
    pub from_file: Vec<String>,
    /// A file of lines KEY=VALUE; may be repeated.
    #[arg(long)]
    pub from_env_file: Vec<String>,
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| Error::Text(format!("open {}: {}", path.display(), os(&e))))
}

impl Sources {
    /// Keys and values in order; a key may be there once only.
    fn read(&self) -> Result<Vec<(String, Vec<u8>)>> {
        if !self.from_env_file.is_empty() && (!self.from_literal.is_empty() || !self.from_file.is_empty()) {
            return text("from-env-file cannot be combined with from-file or from-literal");
        }
        let mut out: Vec<(String, Vec<u8>)> = Vec::new();
        let mut add = |key: String, value: Vec<u8>| -> Result {
            if let Some(why) = meta::names::config_map_key(&key).first() {
                return text(format!("{key:?} is not a valid key name: {why}"));
            }
            if out.iter().any(|(k, _)| *k == key) {
                return text(format!("cannot add key {key}, another key by that name already exists"));
            }
            out.push((key, value));
            Ok(())
        };
        for f in &self.from_file {
            let (key, path) = match f.split_once('=') {
                Some(("", _)) => return text(format!("key name for file path {} missing", &f[1..])),
                Some((k, "")) => return text(format!("file path for key name {k} missing")),
                Some((k, p)) => (Some(k), Path::new(p)),
                None => (None, Path::new(f.as_str())),
            };
            let meta = std::fs::metadata(path)
                .map_err(|e| Error::Text(format!("error reading {}: {}", path.display(), os(&e))))?;
            if meta.is_dir() {
                if key.is_some() {
                    return text("cannot give a key name for a directory path");
                }
                let mut entries: Vec<_> = std::fs::read_dir(path)
                    .map_err(|e| Error::Text(format!("error listing files in {}: {}", path.display(), os(&e))))?
                    .flatten()
                    .filter(|e| e.path().is_file())
                    .collect();
                entries.sort_by_key(std::fs::DirEntry::file_name);
                for e in entries {
                    add(e.file_name().to_string_lossy().into_owned(), read(&e.path())?)?;
                }
            } else {
                let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                add(key.map_or(name, str::to_owned), read(path)?)?;
            }
        }
        for l in &self.from_literal {
            match l.split_once('=') {
                Some((k, v)) if !k.is_empty() => {
                    // Quotes that the shell left are not part of the value.
                    let bare = v.strip_prefix(['"', '\'']).and_then(|r| r.strip_suffix(['"', '\''])).unwrap_or(v);
                    add(k.to_owned(), bare.as_bytes().to_vec())?;
                }
                _ => return text(format!("invalid literal source {l}, expected key=value")),
            }
        }
        for f in &self.from_env_file {
            let content = String::from_utf8(read(Path::new(f))?)
                .map_err(|_| Error::Text(format!("env file {f} contains invalid utf-8 bytes")))?;
            for line in content.trim_start_matches('\u{feff}').lines() {
                let line = line.trim_start();
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                let (k, v) = line.split_once('=').unwrap_or((line, ""));
                add(k.to_owned(), v.as_bytes().to_vec())?;
            }
        }
        Ok(out)
    }
}

fn base64(b: &[u8]) -> Value {
    base64::engine::general_purpose::STANDARD.encode(b).into()
}

#[derive(clap::Args, Clone, Debug)]
pub struct ConfigMap {
    pub name: String,
    #[command(flatten)]
    pub sources: Sources,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for ConfigMap {
    fn make(&self) -> Result<Value> {
        let (mut data, mut binary) = (Map::new(), Map::new());
        for (k, v) in self.sources.read()? {
            match String::from_utf8(v) {
                Ok(t) => data.insert(k, t.into()),
                Err(e) => binary.insert(k, base64(e.as_bytes())),
            };
        }
        let mut o = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self.name}});
        if !data.is_empty() {
            o["data"] = data.into();
        }
        if !binary.is_empty() {
            o["binaryData"] = binary.into();
        }
        Ok(o)
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct Secret {
    #[command(subcommand)]
    of: SecretOf,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum SecretOf {
    /// From literals, files and directories.
    Generic(Generic),
    /// From a certificate and its key.
    Tls(Tls),
    /// For an image registry.
    DockerRegistry(Registry),
}

impl Secret {
    pub fn generator(&self) -> (&dyn Generator, &WriteFlags) {
        match &self.of {
            SecretOf::Generic(a) => (a, &a.write),
            SecretOf::Tls(a) => (a, &a.write),
            SecretOf::DockerRegistry(a) => (a, &a.write),
        }
    }
}

fn secret(name: &str, ty: &str, data: Vec<(String, Vec<u8>)>) -> Value {
    let mut o = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
    if !ty.is_empty() {
        o["type"] = ty.into();
    }
    if !data.is_empty() {
        o["data"] = data.into_iter().map(|(k, v)| (k, base64(&v))).collect::<Map<_, _>>().into();
    }
    o
}

#[derive(clap::Args, Clone, Debug)]
pub struct Generic {
    pub name: String,
    #[command(flatten)]
    pub sources: Sources,
    /// The type of the secret.
    #[arg(long = "type", default_value = "", hide_default_value = true)]
    pub ty: String,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for Generic {
    fn make(&self) -> Result<Value> {
        Ok(secret(&self.name, &self.ty, self.sources.read()?))
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct Tls {
    pub name: String,
    /// File with the certificate, PEM.
    #[arg(long, required = true)]
    pub cert: String,
    /// File with its private key, PEM.
    #[arg(long, required = true)]
    pub key: String,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for Tls {
    fn make(&self) -> Result<Value> {
        let (cert, key) = (read(Path::new(&self.cert))?, read(Path::new(&self.key))?);
        let has = |b: &[u8], what: &str| {
            String::from_utf8_lossy(b).lines().any(|l| l.starts_with("-----BEGIN") && l.contains(what))
        };
        if !has(&cert, "CERTIFICATE") {
            return text("tls: failed to find any PEM data in certificate input");
        }
        if !has(&key, "PRIVATE KEY") {
            return text("tls: failed to find any PEM data in key input");
        }
        Ok(secret(&self.name, "kubernetes.io/tls", vec![("tls.crt".into(), cert), ("tls.key".into(), key)]))
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct Registry {
    pub name: String,
    #[arg(long, default_value = "", hide_default_value = true)]
    pub docker_username: String,
    #[arg(long, default_value = "", hide_default_value = true)]
    pub docker_password: String,
    #[arg(long, default_value = "", hide_default_value = true)]
    pub docker_email: String,
    #[arg(long, default_value = "https://index.docker.io/v1/", hide_default_value = true)]
    pub docker_server: String,
    /// A file that has it all: .dockerconfigjson.
    #[arg(long)]
    pub from_file: Vec<String>,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for Registry {
    fn make(&self) -> Result<Value> {
        let key = ".dockerconfigjson";
        let ty = "kubernetes.io/dockerconfigjson";
        if !self.from_file.is_empty() {
            let sources = Sources { from_file: self.from_file.clone(), ..Sources::default() };
            let data = sources.read()?.into_iter().map(|(_, v)| (key.to_owned(), v)).collect();
            return Ok(secret(&self.name, ty, data));
        }
        if self.docker_username.is_empty() || self.docker_password.is_empty() {
            return text(
                "either --from-file or the combination of --docker-username, --docker-password and --docker-server is required",
            );
        }
        let auth = base64(format!("{}:{}", self.docker_username, self.docker_password).as_bytes());
        // The order of fields is the one that others write.
        let q = |s: &str| codec::json::to_string(&s.into(), codec::json::Html::Escape);
        let email =
            if self.docker_email.is_empty() { String::new() } else { format!("\"email\":{},", q(&self.docker_email)) };
        let config = format!(
            "{{\"auths\":{{{}:{{\"username\":{},\"password\":{},{email}\"auth\":{auth}}}}}}}",
            q(&self.docker_server),
            q(&self.docker_username),
            q(&self.docker_password)
        );
        Ok(secret(&self.name, ty, vec![(key.into(), config.into_bytes())]))
    }
}
