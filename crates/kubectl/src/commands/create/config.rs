//! Creates config maps and secrets.

use super::{Generator, Needs, Resolved, WriteFlags};
use crate::error::{Error, Result, os_message, text};
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use meta::{Map, Value};
use serde_json::json;
use std::path::Path;

/// The sources of data.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Sources {
    /// KEY=VALUE; may be repeated.
    #[arg(long)]
    pub from_literal: Vec<String>,
    /// FILE, KEY=FILE or a directory; may be repeated.
    #[arg(long)]
    pub from_file: Vec<String>,
    /// File with lines KEY=VALUE; may be repeated.
    #[arg(long)]
    pub from_env_file: Vec<String>,
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| Error::Text(format!("open {}: {}", path.display(), os_message(&e))))
}

/// Appends a hash of the content to the name of an object (`k8s.io/kubectl/pkg/util/hash`).
fn append_hash(o: &mut Value) {
    let secret = o["kind"] == "Secret";
    let data = if o["data"].is_null() { json!({}) } else { o["data"].clone() };
    let mut hashed = json!({"data": data, "kind": o["kind"], "name": o["metadata"]["name"]});
    if secret {
        hashed["type"] = if o["type"].is_null() { "".into() } else { o["type"].clone() };
    } else if !o["binaryData"].is_null() {
        hashed["binaryData"] = o["binaryData"].clone();
    }
    let sum = digest(&SHA256, &codec::json::to_vec(&hashed, codec::json::Html::Escape));
    let hex: String = sum.as_ref().iter().take(5).map(|b| format!("{b:02x}")).collect();
    // Without vowels the hash forms no words.
    let kind: String = hex
        .chars()
        .map(|c| match c {
            '0' => 'g',
            '1' => 'h',
            '3' => 'k',
            'a' => 'm',
            'e' => 't',
            c => c,
        })
        .collect();
    o["metadata"]["name"] = format!("{}-{kind}", o["metadata"]["name"].as_str().unwrap_or_default()).into();
}

/// Error for a duplicate key.
fn duplicate_key(key: &str) -> String {
    format!("cannot add key {key}, another key by that name already exists")
}

impl Sources {
    /// Reads keys and values in order. Errors on duplicate keys.
    fn read(
        &self,
        environment: &dyn Fn(&str) -> Option<String>,
        kind: &str,
        duplicate_key: impl Fn(&str) -> String,
    ) -> Result<Vec<(String, Vec<u8>)>> {
        if !self.from_env_file.is_empty() && (!self.from_literal.is_empty() || !self.from_file.is_empty()) {
            return text("from-env-file cannot be combined with from-file or from-literal");
        }
        let mut out: Vec<(String, Vec<u8>)> = Vec::new();
        let mut add = |key: String, value: Vec<u8>| -> Result {
            if let Some(why) = meta::names::config_map_key(&key).first() {
                return text(match kind {
                    "Secret" => format!("{key:?} is not valid key name for a Secret {why}"),
                    kind => format!("{key:?} is not a valid key name for a {kind}: {why}"),
                });
            }
            if out.iter().any(|(k, _)| *k == key) {
                return text(duplicate_key(&key));
            }
            out.push((key, value));
            Ok(())
        };
        for f in &self.from_file {
            if f.matches('=').count() > 1 {
                return text("key names or file paths cannot contain '='");
            }
            let (key, path) = match f.split_once('=') {
                Some(("", _)) => return text(format!("key name for file path {} missing", &f[1..])),
                Some((k, "")) => return text(format!("file path for key name {k} missing")),
                Some((k, p)) => (Some(k), Path::new(p)),
                None => (None, Path::new(f.as_str())),
            };
            let meta = std::fs::metadata(path)
                .map_err(|e| Error::Text(format!("error reading {}: {}", path.display(), os_message(&e))))?;
            if meta.is_dir() {
                if key.is_some() {
                    return text("cannot give a key name for a directory path");
                }
                let mut entries: Vec<_> = std::fs::read_dir(path)
                    .map_err(|e| Error::Text(format!("error listing files in {}: {}", path.display(), os_message(&e))))?
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
                    add(k.to_owned(), v.as_bytes().to_vec())?;
                }
                _ => return text(format!("invalid literal source {l}, expected key=value")),
            }
        }
        for f in &self.from_env_file {
            let file = std::fs::read(f).map_err(|e| Error::Text(format!("error reading {f}: {}", os_message(&e))))?;
            for (n, line) in file.split(|b| *b == b'\n').enumerate() {
                let Ok(line) = std::str::from_utf8(line) else {
                    let bytes: Vec<String> = line.iter().map(u8::to_string).collect();
                    return text(format!(
                        "env file {f} contains invalid utf8 bytes at line {}: [{}]",
                        n + 1,
                        bytes.join(" ")
                    ));
                };
                let line = if n == 0 { line.trim_start_matches('\u{feff}') } else { line };
                let line = line.trim_start().trim_end_matches('\r');
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                let (k, v) = line.split_once('=').map_or((line, None), |(k, v)| (k, Some(v.to_owned())));
                let wrong = crate::flags::env_var_name(k);
                if !wrong.is_empty() {
                    return text(format!("{k:?} is not a valid key name: {}", wrong.join(";")));
                }
                // A name without value takes the value of the environment variable.
                let v = v.or_else(|| environment(k)).unwrap_or_default();
                add(k.to_owned(), v.into_bytes())?;
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
    /// Name of the config map.
    pub name: String,
    #[command(flatten)]
    pub sources: Sources,
    /// Append a hash of the content to the name.
    #[arg(long)]
    pub append_hash: bool,
    #[command(flatten)]
    pub write: WriteFlags,
}

/// Returns the environment variables that [`Generator::build_with`] received.
fn variables<'a>(found: &'a Resolved<'_>) -> impl Fn(&str) -> Option<String> + 'a {
    move |n| match found {
        Resolved::Environment(e) => e(n),
        _ => None,
    }
}

impl Generator for ConfigMap {
    fn needs(&self) -> Needs<'_> {
        Needs::Environment
    }

    fn build(&self) -> Result<Value> {
        self.build_with(Resolved::Nothing)
    }

    fn build_with(&self, found: Resolved<'_>) -> Result<Value> {
        let duplicate_key = |key: &str| {
            let name = &self.name;
            format!("cannot add key {key:?}, another key by that name already exists in Data for ConfigMap {name:?}")
        };
        let (mut data, mut binary) = (Map::new(), Map::new());
        for (k, v) in self.sources.read(&variables(&found), "ConfigMap", duplicate_key)? {
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
        if self.append_hash {
            append_hash(&mut o);
        }
        Ok(o)
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct Secret {
    #[command(subcommand)]
    secret_type: SecretType,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum SecretType {
    /// Create a secret from literals, files and directories.
    Generic(Generic),
    /// Create a secret from a certificate and its key.
    Tls(Tls),
    /// Create a secret for an image registry.
    DockerRegistry(Registry),
}

impl Secret {
    pub fn generator(&self) -> (&dyn Generator, &WriteFlags) {
        match &self.secret_type {
            SecretType::Generic(a) => (a, &a.write),
            SecretType::Tls(a) => (a, &a.write),
            SecretType::DockerRegistry(a) => (a, &a.write),
        }
    }
}

fn secret(name: &str, ty: &str, data: Vec<(String, Vec<u8>)>, hash: bool) -> Value {
    let mut o = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
    if !ty.is_empty() {
        o["type"] = ty.into();
    }
    if !data.is_empty() {
        o["data"] = data.into_iter().map(|(k, v)| (k, base64(&v))).collect::<Map<_, _>>().into();
    }
    if hash {
        append_hash(&mut o);
    }
    o
}

#[derive(clap::Args, Clone, Debug)]
pub struct Generic {
    /// Name of the secret.
    pub name: String,
    #[command(flatten)]
    pub sources: Sources,
    /// Type of the secret.
    #[arg(long = "type", default_value = "", hide_default_value = true)]
    pub ty: String,
    /// Append a hash of the content to the name.
    #[arg(long)]
    pub append_hash: bool,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for Generic {
    fn needs(&self) -> Needs<'_> {
        Needs::Environment
    }

    fn build(&self) -> Result<Value> {
        self.build_with(Resolved::Nothing)
    }

    fn build_with(&self, found: Resolved<'_>) -> Result<Value> {
        Ok(secret(
            &self.name,
            &self.ty,
            self.sources.read(&variables(&found), "Secret", duplicate_key)?,
            self.append_hash,
        ))
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct Tls {
    /// Name of the secret.
    pub name: String,
    /// PEM file with the certificate.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub cert: String,
    /// PEM file with the private key.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub key: String,
    /// Append a hash of the content to the name.
    #[arg(long)]
    pub append_hash: bool,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for Tls {
    fn build(&self) -> Result<Value> {
        if self.cert.is_empty() || self.key.is_empty() {
            return text("key and cert must be specified");
        }
        let pem =
            |path: &String| read(Path::new(path)).map_err(|e| Error::Text(format!("Cannot read file {path}, {e}")));
        let cert = pem(&self.cert)?;
        let key = pem(&self.key)?;
        super::key_pair::check(&cert, &key).map_err(Error::Text)?;
        Ok(secret(
            &self.name,
            "kubernetes.io/tls",
            vec![("tls.crt".into(), cert), ("tls.key".into(), key)],
            self.append_hash,
        ))
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct Registry {
    /// Name of the secret.
    pub name: String,
    /// User name at the registry.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub docker_username: String,
    /// Password at the registry.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub docker_password: String,
    /// E-mail address at the registry.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub docker_email: String,
    /// Address of the registry.
    #[arg(long, default_value = "https://index.docker.io/v1/", hide_default_value = true)]
    pub docker_server: String,
    /// Complete .dockerconfigjson file.
    #[arg(long)]
    pub from_file: Vec<String>,
    /// Append a hash of the content to the name.
    #[arg(long)]
    pub append_hash: bool,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for Registry {
    fn build(&self) -> Result<Value> {
        let key = ".dockerconfigjson";
        let ty = "kubernetes.io/dockerconfigjson";
        if self.from_file.len() > 1 {
            return text(duplicate_key(key));
        }
        if !self.from_file.is_empty() {
            let sources = Sources { from_file: self.from_file.clone(), ..Sources::default() };
            let data = sources
                .read(&|_| None, "Secret", duplicate_key)?
                .into_iter()
                .map(|(_, v)| (key.to_owned(), v))
                .collect();
            return Ok(secret(&self.name, ty, data, self.append_hash));
        }
        if self.docker_username.is_empty() || self.docker_password.is_empty() {
            return text(
                "either --from-file or the combination of --docker-username, --docker-password and --docker-server is required",
            );
        }
        let auth = base64(format!("{}:{}", self.docker_username, self.docker_password).as_bytes());
        // The usual order of these fields.
        let q = |s: &str| codec::json::to_string(&s.into(), codec::json::Html::Escape);
        let email =
            if self.docker_email.is_empty() { String::new() } else { format!("\"email\":{},", q(&self.docker_email)) };
        let config = format!(
            "{{\"auths\":{{{}:{{\"username\":{},\"password\":{},{email}\"auth\":{auth}}}}}}}",
            q(&self.docker_server),
            q(&self.docker_username),
            q(&self.docker_password)
        );
        Ok(secret(&self.name, ty, vec![(key.into(), config.into_bytes())], self.append_hash))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, run_in, snapshot};

    #[tokio::test]
    async fn appends_hashes_and_reads_environment_variables() {
        let s = Server::new();
        for (line, expected) in [
            ("create cm c --from-literal=a=b --append-hash --dry-run=client -o name", "configmap/c-m4h6ctkgb2\n"),
            (
                "create secret generic s --from-literal=a=b --append-hash --dry-run=client -o name",
                "secret/s-7fd2tm89d8\n",
            ),
            ("create cm c --from-literal=q='x' --dry-run=client -o jsonpath={.data.q}", "'x'"),
            ("create secret tls s", "! error: key and cert must be specified\nexit 1\n"),
            (
                "create secret tls s --cert=/no --key=/no",
                "! error: Cannot read file /no, open /no: no such file or directory\nexit 1\n",
            ),
            (
                "create cm",
                "! error: exactly one NAME is required, got 0\n! See 'kubectl create configmap -h' for help and examples\nexit 1\n",
            ),
            (
                "create cm a b",
                "! error: exactly one NAME is required, got 2\n! See 'kubectl create configmap -h' for help and examples\nexit 1\n",
            ),
            (
                "create secret generic x --foo",
                "! error: unknown flag: --foo\n! See 'kubectl create secret generic --help' for usage.\nexit 1\n",
            ),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("env");
        std::fs::write(&path, "# c\nA=1\n  HOME\nNONE\n").unwrap();
        let flag = format!("--from-env-file={}", path.display());
        let line = ["create", "cm", "c", &flag, "--dry-run=client", "-o", "jsonpath={.data}"];
        let done = run_in(&s, &line, "", |n| (n == "HOME").then(|| "/h".to_owned())).await;
        assert_eq!(done, (0, "{\"A\":\"1\",\"HOME\":\"/h\",\"NONE\":\"\"}".into(), String::new()));
        std::fs::write(&path, "9=1\n").unwrap();
        let done = run_in(&s, &line, "", |_| None).await;
        assert!(done.2.starts_with("error: \"9\" is not a valid key name: a valid environment"), "{}", done.2);
    }
}
