//! `set-cluster`, `set-context` and `set-credentials`: set fields of one entry. Most of their flags are global ones, which
//! count even if they are empty.

use super::files::Files;
use super::unexpected;
use crate::error::{Error, Result, os_message, text};
use crate::kube::Kube;
use base64::Engine as _;
use meta::{Map, Value};
use serde_json::json;
use std::path::Path;

#[derive(clap::Args, Clone, Debug)]
pub struct Cluster {
    /// Name of the cluster.
    pub words: Vec<String>,
    /// Address of the API server.
    // In place of the global flag, whose short form does not exist here.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub server: String,
    /// Embed the certificates in the kubeconfig.
    #[arg(long)]
    pub embed_certs: bool,
    /// URL of the proxy to the server.
    #[arg(long)]
    pub proxy_url: Option<String>,
}

#[derive(clap::Args, Clone, Debug)]
pub struct Context {
    /// Name of the context.
    pub words: Vec<String>,
    /// Change the current context.
    #[arg(long)]
    pub current: bool,
}

#[derive(clap::Args, Clone, Debug)]
pub struct Credentials {
    /// Name of the user.
    pub words: Vec<String>,
    /// Embed certificate and key in the kubeconfig.
    #[arg(long)]
    pub embed_certs: bool,
    /// Authentication provider.
    #[arg(long)]
    pub auth_provider: Option<String>,
    /// Argument KEY=VALUE for the provider, KEY- to remove.
    #[arg(long, value_delimiter = ',')]
    pub auth_provider_arg: Vec<String>,
    /// Command of the credential plugin.
    #[arg(long)]
    pub exec_command: Option<String>,
    /// Argument of the credential plugin; may be repeated.
    #[arg(long, value_delimiter = ',')]
    pub exec_arg: Vec<String>,
    /// Environment variable KEY=VALUE of the credential plugin, KEY- to remove.
    #[arg(long)]
    pub exec_env: Vec<String>,
    /// API version of the credential plugin's responses.
    #[arg(long)]
    pub exec_api_version: Option<String>,
    /// When the plugin may be interactive: IfAvailable, Never or Always.
    #[arg(long)]
    pub exec_interactive_mode: Option<String>,
    /// Pass the cluster to the credential plugin.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub exec_provide_cluster_info: Option<String>,
}

/// Returns the value of a global flag that the command line sets, even if empty.
fn given<'a>(k: &Kube, flag: &str, value: &'a str) -> Option<&'a str> {
    k.global.given.iter().any(|g| g == flag).then_some(value)
}

/// Empty values are not written.
fn put(e: &mut Map<String, Value>, field: &str, v: &str) {
    match v {
        "" => _ = e.remove(field),
        v => _ = e.insert(field.into(), v.into()),
    }
}

fn absolute(path: &str) -> String {
    let from = if path.is_empty() { "." } else { path };
    super::files::absolute(Path::new(from)).to_string_lossy().into_owned()
}

/// Stores a file in an entry: by its path, or with its content.
fn put_file(e: &mut Map<String, Value>, field: &str, path: &str, embed: bool) {
    let data = format!("{field}-data");
    if embed {
        let bytes = std::fs::read(path).unwrap_or_default();
        put(e, &data, &base64::engine::general_purpose::STANDARD.encode(bytes));
        e.remove(field);
    } else {
        e.insert(field.into(), absolute(path).into());
        e.remove(&data);
    }
}

fn check_exists(flag: &str, path: &str) -> Result {
    match std::fs::metadata(path) {
        Ok(_) => Ok(()),
        Err(e) => text(format!("could not stat {flag} file {path}: stat {path}: {}", os_message(&e))),
    }
}

pub fn cluster(a: &Cluster, k: &Kube) -> Result {
    let [name] = a.words.as_slice() else { return Err(unexpected("set-cluster", &a.words)) };
    let g = &k.global;
    if name.is_empty() {
        return text("you must specify a non-empty cluster name");
    }
    if g.insecure_skip_tls_verify && !g.certificate_authority.is_empty() {
        return text("you cannot specify a certificate authority and insecure mode at the same time");
    }
    if a.embed_certs {
        if g.certificate_authority.is_empty() {
            return text("you must specify a --certificate-authority to embed");
        }
        check_exists("certificate-authority", &g.certificate_authority)?;
    }
    let mut f = Files::load(k)?;
    let mut e = f.entry("clusters", name).unwrap_or_default();
    if let Some(s) = given(k, "server", &a.server) {
        put(&mut e, "server", s);
        e.remove("tls-server-name");
    }
    if let Some(s) = given(k, "tls_server_name", &g.tls_server_name) {
        put(&mut e, "tls-server-name", s);
    }
    if given(k, "insecure_skip_tls_verify", "").is_some() {
        e.remove("insecure-skip-tls-verify");
        if g.insecure_skip_tls_verify {
            e.insert("insecure-skip-tls-verify".into(), true.into());
            e.remove("certificate-authority");
            e.remove("certificate-authority-data");
        }
    }
    if let Some(path) = given(k, "certificate_authority", &g.certificate_authority) {
        put_file(&mut e, "certificate-authority", path, a.embed_certs);
        e.remove("insecure-skip-tls-verify");
    }
    if let Some(p) = &a.proxy_url {
        put(&mut e, "proxy-url", p);
    }
    f.put("clusters", name, e);
    f.save()?;
    k.println(format!("Cluster {name:?} set."));
    Ok(())
}

pub fn context(a: &Context, k: &Kube) -> Result {
    let name = match a.words.as_slice() {
        [] => "",
        [name] => name,
        _ => return Err(unexpected("set-context", &a.words)),
    };
    if name.is_empty() && !a.current {
        return text("you must specify a non-empty context name or --current");
    }
    if !name.is_empty() && a.current {
        return text("you cannot specify both a context name and --current");
    }
    let mut f = Files::load(k)?;
    let name = if a.current { f.current().to_owned() } else { name.to_owned() };
    if name.is_empty() {
        return text("no current context is set");
    }
    let found = f.entry("contexts", &name);
    let word = if found.is_some() { "modified" } else { "created" };
    let mut e = found.unwrap_or_default();
    let g = &k.global;
    let user = g.user.last().map(String::as_str).unwrap_or_default();
    for (flag, value) in [("cluster", g.cluster.as_str()), ("user", user), ("namespace", g.namespace.as_str())] {
        if let Some(v) = given(k, flag, value) {
            put(&mut e, flag, v);
        }
    }
    f.put("contexts", &name, e);
    f.save()?;
    k.println(format!("Context {name:?} {word}."));
    Ok(())
}

/// Splits arguments into `KEY=VALUE` to set and `KEY-` to remove.
fn pairs<'a>(all: &'a [String], what: &str) -> Result<(Vec<(&'a str, &'a str)>, Vec<&'a str>)> {
    let (mut set, mut remove, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    for p in all {
        match (p.split_once('='), p.strip_suffix('-')) {
            (Some((k, v)), _) if !k.is_empty() => set.push((k, v)),
            (None, Some(k)) if !k.is_empty() => remove.push(k),
            _ => wrong.push(p.as_str()),
        }
    }
    match wrong.is_empty() {
        true => Ok((set, remove)),
        false => text(format!("invalid {what} format: {}", wrong.join(", "))),
    }
}

impl Credentials {
    fn check(&self, k: &Kube) -> Result {
        let g = &k.global;
        let mut methods = Vec::new();
        if !g.token.is_empty() {
            methods.push("--token");
        }
        if !g.username.is_empty() || !g.password.is_empty() {
            methods.push("--username/--password");
        }
        if methods.len() > 1 {
            return text(format!(
                "you cannot specify more than one authentication method at the same time: {}",
                methods.join(", ")
            ));
        }
        if self.embed_certs {
            if g.client_certificate.is_empty() && g.client_key.is_empty() {
                return text("you must specify a --client-certificate or --client-key to embed");
            }
            for (flag, path) in [("client-certificate", &g.client_certificate), ("client-key", &g.client_key)] {
                if !path.is_empty() {
                    check_exists(flag, path)?;
                }
            }
        }
        match self.exec_interactive_mode.as_deref() {
            None | Some("IfAvailable" | "Always" | "Never") => Ok(()),
            _ => text("invalid interactive mode type, can be only IfAvailable, Never, Always"),
        }
    }

    fn exec(&self, e: &mut Map<String, Value>) -> Result {
        if let Some(c) = &self.exec_command {
            let had = e.get("exec").is_some_and(Value::is_object);
            let x = e.entry("exec").or_insert_with(|| json!({"env": null}));
            x["command"] = c.as_str().into();
            x["args"] = Value::Null;
            if !had {
                x["provideClusterInfo"] = false.into();
            }
        }
        let Some(x) = e.get_mut("exec").filter(|x| x.is_object()) else { return Ok(()) };
        if let Some(v) = &self.exec_api_version {
            x["apiVersion"] = v.as_str().into();
        }
        if !self.exec_arg.is_empty() {
            x["args"] = self.exec_arg.clone().into();
        }
        if let Some(m) = &self.exec_interactive_mode {
            x["interactiveMode"] = m.as_str().into();
        }
        if let Some(p) = &self.exec_provide_cluster_info {
            x["provideClusterInfo"] = crate::flags::go_bool(p).map_err(Error::Text)?.into();
        }
        let (set, remove) = pairs(&self.exec_env, "exec-env")?;
        let mut env = x["env"].as_array().cloned().unwrap_or_default();
        env.retain(|v| !remove.iter().any(|r| v["name"] == *r));
        for (n, v) in set {
            match env.iter_mut().find(|e| e["name"] == n) {
                Some(e) => e["value"] = v.into(),
                None => env.push(json!({"name": n, "value": v})),
            }
        }
        if !env.is_empty() || x["env"].is_array() {
            x["env"] = env.into();
        }
        Ok(())
    }
}

pub fn credentials(a: &Credentials, k: &Kube) -> Result {
    let [name] = a.words.as_slice() else {
        return text(format!("unexpected args: [{}]", a.words.join(" ")));
    };
    if name.is_empty() {
        return text("you must specify a non-empty user name");
    }
    a.check(k)?;
    let g = &k.global;
    let mut f = Files::load(k)?;
    let mut e = f.entry("users", name).unwrap_or_default();
    for (flag, field, path) in [
        ("client_certificate", "client-certificate", &g.client_certificate),
        ("client_key", "client-key", &g.client_key),
    ] {
        if let Some(p) = given(k, flag, path) {
            put_file(&mut e, field, p, a.embed_certs);
        }
    }
    let mut set_token = false;
    if let Some(t) = given(k, "token", &g.token) {
        put(&mut e, "token", t);
        set_token = !t.is_empty();
    }
    let mut set_basic = false;
    for (field, value) in [("username", &g.username), ("password", &g.password)] {
        if let Some(v) = given(k, field, value) {
            put(&mut e, field, v);
            set_basic |= !v.is_empty();
        }
    }
    if let Some(p) = &a.auth_provider
        && e.get("auth-provider").is_none_or(|old| old["name"] != p.as_str())
    {
        e.insert("auth-provider".into(), json!({"config": null, "name": p}));
    }
    if let Some(p) = e.get_mut("auth-provider").filter(|p| p.is_object()) {
        let (set, remove) = pairs(&a.auth_provider_arg, "auth-provider-arg")?;
        let mut config = p["config"].as_object().cloned().unwrap_or_default();
        remove.iter().for_each(|r| _ = config.remove(*r));
        config.extend(set.into_iter().map(|(k, v)| (k.to_owned(), v.into())));
        p["config"] = if config.is_empty() { Value::Null } else { config.into() };
    }
    a.exec(&mut e)?;
    if set_token && !set_basic {
        e.remove("username");
        e.remove("password");
    } else if set_basic && !set_token {
        e.remove("token");
    }
    f.put("users", name, e);
    f.save()?;
    k.println(format!("User {name:?} set."));
    Ok(())
}
