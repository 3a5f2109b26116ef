//! `kubectl config`: what the kubeconfig says, and which context is current.

use crate::error::{Error, Result, text};
use crate::kube::Kube;
use crate::printer::table::Aligner;
use meta::Value;
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(clap::Subcommand, Clone, Debug)]
pub enum Command {
    /// Print the joined kubeconfig, secrets left out unless --raw.
    View(View),
    /// Print the name of the current context.
    #[command(name = "current-context")]
    CurrentContext,
    /// Make a context the current one.
    #[command(name = "use-context", visible_alias = "use")]
    UseContext { name: String },
    /// List the contexts.
    #[command(name = "get-contexts")]
    GetContexts(GetContexts),
    /// List the clusters.
    #[command(name = "get-clusters")]
    GetClusters,
    /// List the users.
    #[command(name = "get-users")]
    GetUsers,
}

#[derive(clap::Args, Clone, Debug)]
pub struct View {
    /// With secrets.
    #[arg(long)]
    pub raw: bool,
    /// Only what the current context needs.
    #[arg(long)]
    pub minify: bool,
    /// json, yaml or jsonpath=….
    #[arg(short = 'o', long, default_value = "yaml", hide_default_value = true)]
    pub output: String,
}

#[derive(clap::Args, Clone, Debug)]
pub struct GetContexts {
    pub name: Option<String>,
    /// name.
    #[arg(short = 'o', long, default_value = "", hide_default_value = true)]
    pub output: String,
    #[arg(long)]
    pub no_headers: bool,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    let sources = k.sources();
    let all = sources.load()?;
    match a.command {
        Command::CurrentContext => match all.current_context.as_str() {
            "" => text("current-context is not set"),
            c => {
                k.say(c);
                Ok(())
            }
        },
        Command::UseContext { name } => use_context(k, &name, all.contexts.iter().any(|c| c.name == name)),
        Command::GetClusters => {
            k.say("NAME");
            all.clusters.iter().for_each(|c| k.say(&c.name));
            Ok(())
        }
        Command::GetUsers => {
            k.say("NAME");
            all.users.iter().for_each(|c| k.say(&c.name));
            Ok(())
        }
        Command::GetContexts(g) => {
            let mut rows = Vec::new();
            if !g.no_headers {
                rows.push(["CURRENT", "NAME", "CLUSTER", "AUTHINFO", "NAMESPACE"].map(str::to_owned).to_vec());
            }
            let mut found = all.contexts.clone();
            found.sort_by(|x, y| x.name.cmp(&y.name));
            if let Some(n) = &g.name {
                found.retain(|c| c.name == *n);
                if found.is_empty() {
                    return text(format!("context {n} not found"));
                }
            }
            for c in found {
                if g.output == "name" {
                    k.say(&c.name);
                    continue;
                }
                let mark = if c.name == all.current_context { "*" } else { "" };
                rows.push(vec![mark.into(), c.name, c.value.cluster, c.value.user, c.value.namespace]);
            }
            if g.output != "name" {
                k.out.write(Aligner::default().lines(&rows).as_bytes());
            }
            Ok(())
        }
        Command::View(v) => view(k, &v, &all),
    }
}

fn view(k: &Kube, v: &View, all: &client::kubeconfig::Kubeconfig) -> Result {
    let keep_context = |n: &str| !v.minify || n == all.current_context;
    if v.minify && all.current_context.is_empty() {
        return text("current-context must exist in order to minify");
    }
    let kept: Vec<_> = all.contexts.iter().filter(|c| keep_context(&c.name)).collect();
    let encode = |x: serde_json::Result<Value>| x.map_err(|e| Error::Text(e.to_string()));
    let (mut clusters, mut contexts, mut users) = (Vec::new(), Vec::new(), Vec::new());
    for c in &all.clusters {
        if v.minify && !kept.iter().any(|k| k.value.cluster == c.name) {
            continue;
        }
        let mut value = encode(serde_json::to_value(&c.value))?;
        if !v.raw && !value["certificate-authority-data"].is_null() {
            value["certificate-authority-data"] = "DATA+OMITTED".into();
        }
        clusters.push(json!({"cluster": value, "name": c.name}));
    }
    for c in &kept {
        contexts.push(json!({"context": encode(serde_json::to_value(&c.value))?, "name": c.name}));
    }
    for u in &all.users {
        if v.minify && !kept.iter().any(|k| k.value.user == u.name) {
            continue;
        }
        let mut value = encode(serde_json::to_value(&u.value))?;
        if !v.raw {
            for key in ["client-certificate-data", "client-key-data"] {
                if !value[key].is_null() {
                    value[key] = "DATA+OMITTED".into();
                }
            }
            for key in ["token", "password"] {
                if !value[key].is_null() {
                    value[key] = "REDACTED".into();
                }
            }
        }
        users.push(json!({"name": u.name, "user": value}));
    }
    let or_null = |l: Vec<Value>| if l.is_empty() { Value::Null } else { l.into() };
    let whole = json!({
        "apiVersion": "v1", "kind": "Config", "preferences": {}, "current-context": all.current_context,
        "clusters": or_null(clusters), "contexts": or_null(contexts), "users": or_null(users),
    });
    let said = match v.output.split_once('=') {
        None if v.output == "yaml" => codec::yaml::to_string(&whole),
        None if v.output == "json" => codec::json::to_string_indent(&whole),
        Some(("jsonpath", t)) => {
            codec::jsonpath::Template::parse(t)?.render(&whole, codec::jsonpath::Missing::Allowed)?
        }
        _ => {
            return text(format!(
                "unable to match a printer suitable for the output format {:?}, allowed formats are: json,jsonpath,yaml",
                v.output
            ));
        }
    };
    k.out.write(said.as_bytes());
    Ok(())
}

/// Writes the name into the first file that has a current context, or the first file there is.
fn use_context(k: &Kube, name: &str, known: bool) -> Result {
    if !known {
        return text(format!("no context exists with the name: {name:?}"));
    }
    let s = k.sources();
    let files: Vec<_> = s.explicit.iter().chain(&s.files).filter(|f| f.exists()).cloned().collect();
    let read = |f: &std::path::PathBuf| -> Result<Value> {
        let t = std::fs::read_to_string(f).map_err(|e| Error::Text(format!("{}: {e}", f.display())))?;
        let all = codec::yaml::parse(&t).map_err(|e| Error::Text(format!("{}: {e}", f.display())))?;
        Ok(all.into_iter().next().unwrap_or_else(|| json!({})))
    };
    let mut chosen = None;
    for f in &files {
        let v = read(f)?;
        let has = v["current-context"].as_str().is_some_and(|c| !c.is_empty());
        if has || chosen.is_none() {
            let done = has;
            chosen = Some((f.clone(), v));
            if done {
                break;
            }
        }
    }
    let Some((path, mut v)) = chosen else { return text("no kubeconfig to write to") };
    v["current-context"] = name.into();
    // Beside the file, then over it, so that no reader meets half of it; the file keeps its permissions.
    let fresh = path.with_extension("kemudi-new");
    let wrong = |e: std::io::Error| Error::Text(format!("{}: {e}", path.display()));
    let permissions = std::fs::metadata(&path).map_err(wrong)?.permissions();
    std::fs::write(&fresh, "").map_err(wrong)?;
    std::fs::set_permissions(&fresh, permissions).map_err(wrong)?;
    std::fs::write(&fresh, codec::yaml::to_string(&v)).map_err(wrong)?;
    std::fs::rename(&fresh, &path).map_err(wrong)?;
    k.say(format!("Switched to context {name:?}."));
    Ok(())
}
