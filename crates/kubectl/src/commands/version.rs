//! `kubectl version`: shows the versions of client and server.

use crate::error::{Result, text};
use crate::kube::{Kube, arch};
use crate::printer::shape::{Order, Shape};
use meta::Value;
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[arg(hide = true)]
    pub words: Vec<String>,
    /// Show only the client version.
    #[arg(long)]
    pub client: bool,
    /// Output format: json or yaml.
    #[arg(short = 'o', long, default_value = "", hide_default_value = true)]
    pub output: String,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    if !a.words.is_empty() {
        return text(format!("extra arguments: [{}]", a.words.join(" ")));
    }
    if !matches!(a.output.as_str(), "" | "json" | "yaml") {
        return text("--output must be 'yaml' or 'json'");
    }
    let server = if a.client {
        None
    } else {
        let client = k.client().await?;
        Some(client.get::<Value>("/version").await)
    };
    if a.output.is_empty() {
        k.println(format!("Client Version: {}", crate::VERSION));
        k.println(format!("Kustomize Version: {}", kustomize::VERSION));
        if let Some(v) = server {
            k.println(format!("Server Version: {}", v?["gitVersion"].as_str().unwrap_or_default()));
        }
        return Ok(());
    }
    let mut numbers = crate::VERSION.trim_start_matches('v').split('.');
    let mut part = || numbers.next().unwrap_or_default();
    let mut v = json!({"clientVersion": {
        "major": part(), "minor": part(), "gitVersion": crate::VERSION,
        // As the server reports itself: the version of this program in place of a commit.
        "gitCommit": env!("CARGO_PKG_VERSION"), "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, arch()),
    }, "kustomizeVersion": kustomize::VERSION});
    let failed = match server {
        Some(Ok(s)) => {
            v["serverVersion"] = s;
            None
        }
        Some(Err(e)) => Some(e),
        None => None,
    };
    // As in upstream: two spaces, where other commands indent by four, and an empty line after YAML.
    let text = match a.output.as_str() {
        "json" => Shape::new(&v, Order::Version).json_indented(2),
        _ => format!("{}\n", codec::yaml::to_string(&v)),
    };
    k.out.write(text.as_bytes());
    failed.map_or(Ok(()), |e| Err(e.into()))
}
