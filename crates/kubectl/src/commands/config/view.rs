//! `kubectl config view`: prints the kubeconfig.

use crate::error::{Error, Result, text};
use crate::flags::{DryRunStrategy, PrintFlags};
use crate::kube::Kube;
use crate::printer::Printer;
use base64::Engine as _;
use client::kubeconfig::Sources;
use meta::{Map, Object, Value};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[arg(hide = true)]
    pub words: Vec<String>,
    /// Show secrets.
    #[arg(long)]
    pub raw: bool,
    /// Only the current context with its cluster and user.
    #[arg(long)]
    pub minify: bool,
    /// Embed the content of files instead of their paths.
    #[arg(long)]
    pub flatten: bool,
    /// Merge all files; otherwise only the file of --kubeconfig.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub merge: Option<String>,
    #[command(flatten)]
    pub print: PrintFlags,
}

/// Replaces the path of a file by its content.
fn flatten(v: &mut Map<String, Value>, field: &str) -> Result {
    let Some(path) = v.remove(field) else { return Ok(()) };
    let data = format!("{field}-data");
    let path = path.as_str().unwrap_or_default();
    if !path.is_empty() && !v.contains_key(&data) {
        let bytes =
            std::fs::read(path).map_err(|e| Error::Text(format!("open {path}: {}", crate::error::os_message(&e))))?;
        v.insert(data, base64::engine::general_purpose::STANDARD.encode(bytes).into());
    }
    Ok(())
}

fn mask(v: &mut Map<String, Value>) {
    let omitted = ["certificate-authority-data", "client-certificate-data", "client-key-data"];
    for (key, shown) in
        omitted.map(|k| (k, "DATA+OMITTED")).into_iter().chain(["token", "password"].map(|k| (k, "REDACTED")))
    {
        if v.get(key).is_some_and(|v| v != "") {
            v.insert(key.into(), shown.into());
        }
    }
}

pub fn run(a: &Arguments, k: &mut Kube) -> Result {
    if !a.words.is_empty() {
        let see = "See 'kubectl config view -h' for help and examples";
        return text(format!("unexpected arguments: [{}]\n{see}", a.words.join(" ")));
    }
    let flags = k.print_flags(&a.print);
    let mut printer = Printer::new(&flags, DryRunStrategy::None)?.kubeconfig();
    let merge = match &a.merge {
        Some(m) => crate::flags::go_bool(m).map_err(Error::Text)?,
        None => true,
    };
    let sources: Sources = k.sources();
    if !merge && sources.explicit.is_none() {
        return text("if merge==false a precise file must be specified");
    }
    // A missing file counts as empty, even if it is named.
    let mut all = match &sources.explicit {
        Some(p) if !p.exists() => client::kubeconfig::Kubeconfig::default(),
        _ if a.flatten => sources.load()?,
        _ => sources.load_as_written()?,
    };
    if a.minify {
        if !k.global.context.is_empty() {
            all.current_context.clone_from(&k.global.context);
        }
        let current = all.current_context.clone();
        if current.is_empty() {
            return text("current-context must exist in order to minify");
        }
        all.contexts.retain(|c| c.name == current);
        let Some(c) = all.contexts.first() else {
            return text(format!("cannot locate context {current}"));
        };
        let (cluster, user) = (c.value.cluster.clone(), c.value.user.clone());
        all.clusters.retain(|c| c.name == cluster);
        all.users.retain(|u| u.name == user);
        if all.clusters.is_empty() && !cluster.is_empty() {
            return text(format!("cannot locate cluster {cluster}"));
        }
        if all.users.is_empty() && !user.is_empty() {
            return text(format!("cannot locate user {user}"));
        }
    }
    let content = serde_json::to_value(&all).map_err(|e| Error::Text(e.to_string()))?;
    let list = |name: &str, key: &str, always: &[&str]| -> Result<Value> {
        let mut out = Vec::new();
        for e in content[name].as_array().into_iter().flatten() {
            let mut v = e[key].as_object().cloned().unwrap_or_default();
            always.iter().for_each(|f| _ = v.entry(*f).or_insert_with(|| "".into()));
            if a.flatten {
                for field in ["certificate-authority", "client-certificate", "client-key"] {
                    flatten(&mut v, field)?;
                }
            } else if !a.raw {
                mask(&mut v);
            }
            out.push(json!({"name": e["name"], key: v}));
        }
        out.sort_by(|x, y| x["name"].as_str().cmp(&y["name"].as_str()));
        Ok(if out.is_empty() { Value::Null } else { out.into() })
    };
    let mut shown = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": all.current_context,
        "clusters": list("clusters", "cluster", &["server"])?,
        "contexts": list("contexts", "context", &["cluster", "user"])?,
        "users": list("users", "user", &[])?,
    });
    for key in ["extensions", "preferences"] {
        if content[key].as_object().is_some_and(|m| !m.is_empty())
            || content[key].as_array().is_some_and(|l| !l.is_empty())
        {
            shown[key] = content[key].clone();
        }
    }
    printer.print(k, &Object::from_value(shown).unwrap_or_default(), "")
}
