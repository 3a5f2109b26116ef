//! Bootstrap tokens for machines that join the cluster (`kemudi token create`).

use crate::bootstrap::JOINING;
use crate::output::{note, print_line};
use crate::system::{SystemClock, SystemRng};
use client::kubeconfig::{Overrides, Sources};
use client::{ApiResource, Client, Https, WriteOptions};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use meta::{Clock, Object, Rng};
use node::join::{CaHash, Token};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Subcommand)]
pub enum Command {
    /// Creates a bootstrap token, and prints the command with which a machine joins the cluster.
    Create(CreateOptions),
}

#[derive(clap::Args)]
pub struct CreateOptions {
    /// How long the token is valid; 0 for ever.
    #[arg(long, default_value = "24h")]
    ttl: SignedDuration,
    /// Description of the token.
    #[arg(long, default_value = "made by kemudi token create")]
    description: String,
    /// Kubeconfig of the cluster. Default: the one that `kubectl` uses.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Data directory of the cluster, whose kubeconfig is used.
    #[arg(long, conflicts_with = "kubeconfig")]
    data_dir: Option<PathBuf>,
    /// Prints only the token.
    #[arg(long)]
    token_only: bool,
}

/// A new token.
pub fn generate(rng: &dyn Rng) -> Token {
    const CHARACTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut text = String::new();
    while text.len() < 22 {
        let mut byte = [0];
        rng.fill(&mut byte);
        // The largest multiple of 36: each character is as likely as the others.
        if byte[0] < 252 {
            text.push(char::from(CHARACTERS[usize::from(byte[0] % 36)]));
        }
    }
    text.insert(6, '.');
    match text.parse() {
        Ok(token) => token,
        Err(e) => unreachable!("characters of a token: {e}"),
    }
}

/// The secret that makes a token valid.
pub fn secret(token: &Token, group: &str, expires: Timestamp, description: &str) -> Value {
    let mut secret = secret_for_ever(token, group, description);
    secret["stringData"]["expiration"] = meta::time::format(expires).into();
    secret
}

fn secret_for_ever(token: &Token, group: &str, description: &str) -> Value {
    let bearer = token.bearer();
    let (id, secret) = bearer.split_once('.').unwrap_or_default();
    json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": "kube-system"},
        "stringData": {"token-id": id, "token-secret": secret, "description": description,
            "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true", "auth-extra-groups": group}})
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Client(#[from] client::Error),
    #[error("--ttl must not be negative")]
    Ttl,
}

pub fn main(command: &Command) -> ExitCode {
    let Command::Create(options) = command;
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            note!("error: starting the runtime: {e}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(create(options)) {
        Ok(text) => {
            print_line!("{text}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            note!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

async fn create(options: &CreateOptions) -> Result<String, Error> {
    if options.ttl.is_negative() {
        return Err(Error::Ttl);
    }
    let variable = |name: &str| std::env::var(name).ok();
    let file = options.data_dir.as_ref().map(|directory| directory.join("kubeconfig")).or(options.kubeconfig.clone());
    let resolved = Sources::find(file, variable).resolve(&Overrides::default(), variable)?;
    let config = resolved.config().await?;
    let client = Client::new(Https::new(&config)?, "kemudi-token").with_impersonation(&resolved.impersonation)?;
    let token = generate(&SystemRng);
    let object = match options.ttl.is_zero() {
        true => secret_for_ever(&token, JOINING, &options.description),
        false => secret(&token, JOINING, SystemClock.now() + options.ttl, &options.description),
    };
    let secrets = client.dynamic(&ApiResource::typed::<Secret>()).namespace("kube-system");
    secrets.create(&WriteOptions::default(), &Object::from_value(object).unwrap_or_default()).await?;
    if options.token_only {
        return Ok(token.bearer());
    }
    let information = client.api::<ConfigMap>().namespace("kube-public").get("cluster-info").await?;
    let hash = information.data.and_then(|d| hash(d.get("kubeconfig")?));
    let hash = hash.map(|h| format!(" --ca-hash {h}")).unwrap_or_default();
    Ok(format!("kemudi agent --join {} --token {}{hash}", config.server, token.bearer()))
}

/// The hash of the CA in the kubeconfig of `cluster-info`.
fn hash(kubeconfig: &str) -> Option<CaHash> {
    CaHash::of(&node::join::ca_of(kubeconfig)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_random() {
        let all: std::collections::BTreeSet<String> = (0..100).map(|_| generate(&SystemRng).bearer()).collect();
        assert_eq!(all.len(), 100);
        assert!(all.iter().all(|t| t.len() == 23 && t.parse::<Token>().is_ok()));
    }
}
