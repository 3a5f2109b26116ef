//! Credential plugins: a program that prints an `ExecCredential` (`client.authentication.k8s.io`).

use crate::error::Error;
use crate::https::{ClientIdentity, Config, Credentials};
use crate::program::look_path;
use base64::Engine as _;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::io::IsTerminal as _;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Exec {
    pub api_version: String,
    pub command: String,
    pub args: Option<Vec<String>>,
    pub env: Option<Vec<EnvVar>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub install_hint: Option<String>,
    /// Never, IfAvailable (a terminal is) or Always.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interactive_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provide_cluster_info: Option<bool>,
    /// What the program is told of the cluster, if it wants to know.
    #[serde(skip)]
    pub(super) cluster: Option<Value>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EnvVar {
    pub name: String,
    #[serde(default)]
    pub value: String,
}

/// Said of a program that is not there, before what its own hint says.
const ABSENT: &str = "\n\nA credential plugin of the kubeconfig is not installed on this machine.";
const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
/// The entry of a cluster's extensions that is for plugins.
const EXTENSION: &str = "client.authentication.k8s.io/exec";

impl Exec {
    /// Keeps what the program wants to know of the cluster.
    pub(super) fn tell(&mut self, c: &super::Cluster) {
        if self.provide_cluster_info != Some(true) {
            return;
        }
        let mut info = json!({"server": c.server});
        for (key, v) in [
            ("tls-server-name", &c.tls_server_name),
            ("proxy-url", &c.proxy_url),
            ("certificate-authority-data", &c.certificate_authority_data),
        ] {
            if !v.is_empty() {
                info[key] = v.as_str().into();
            }
        }
        if c.insecure_skip_tls_verify {
            info["insecure-skip-tls-verify"] = true.into();
        }
        if c.certificate_authority_data.is_empty()
            && let Ok(pem) = std::fs::read(&c.certificate_authority)
        {
            info["certificate-authority-data"] = base64::engine::general_purpose::STANDARD.encode(pem).into();
        }
        let extensions = c.other.get("extensions").and_then(Value::as_array);
        if let Some(e) = extensions.into_iter().flatten().find(|e| e["name"] == EXTENSION) {
            info["config"] = e["extension"].clone();
        }
        self.cluster = Some(info);
    }

    /// Runs the program and takes its token or its certificate. Gives the moment until which it is good, if the program says one.
    pub(super) async fn apply(&self, config: &mut Config) -> Result<Option<Timestamp>, Error> {
        if !VERSIONS.contains(&self.api_version.as_str()) {
            return Err(Error::Credentials(format!("exec plugin: invalid apiVersion {:?}", self.api_version)));
        }
        let wrong = Error::Plugin;
        let terminal = std::io::stdin().is_terminal();
        let interactive = match self.interactive_mode.as_deref() {
            Some("Never") => false,
            Some("Always") if !terminal => {
                let why = "exec plugin cannot support interactive mode: standard input is not a terminal";
                return Err(wrong(why.into()));
            }
            _ => terminal,
        };
        let mut info = json!({
            "apiVersion": self.api_version, "kind": "ExecCredential", "spec": {"interactive": interactive},
        });
        if let Some(c) = &self.cluster {
            info["spec"]["cluster"] = c.clone();
        }
        let input = if interactive { std::process::Stdio::inherit() } else { std::process::Stdio::null() };
        let shown = &self.command;
        let absent = || {
            let hint = self.install_hint.as_deref().map(|h| format!("\n\n{h}")).unwrap_or_default();
            wrong(format!("exec: executable {shown} not found{ABSENT}{hint}"))
        };
        // As upstream, one that is found relative to the current directory is none.
        let program = look_path(&self.command, std::env::var_os("PATH").as_deref()).map_err(|_| absent())?;
        let output = tokio::process::Command::new(program)
            .arg0(shown)
            .args(self.args.iter().flatten())
            .envs(self.env.iter().flatten().map(|e| (&e.name, &e.value)))
            .env("KUBERNETES_EXEC_INFO", info.to_string())
            .stdin(input)
            .stderr(std::process::Stdio::inherit())
            .output()
            .await
            .map_err(|e| match e.kind() {
                std::io::ErrorKind::NotFound => absent(),
                _ => wrong(format!("exec: {shown}: {e}")),
            })?;
        if !output.status.success() {
            let how = match output.status.code() {
                Some(c) => format!("failed with exit code {c}"),
                None => format!("ended: {}", output.status),
            };
            return Err(wrong(format!("exec: executable {shown} {how}")));
        }
        let answer: Value =
            serde_json::from_slice(&output.stdout).map_err(|e| wrong(format!("decoding stdout: {e}")))?;
        let said = answer["apiVersion"].as_str().unwrap_or_default();
        if said != self.api_version {
            return Err(wrong(format!(
                "exec plugin is configured to use API version {}, plugin returned version {said}",
                self.api_version
            )));
        }
        let status = &answer["status"];
        let text = |k: &str| status[k].as_str().filter(|s| !s.is_empty());
        match (text("clientCertificateData"), text("clientKeyData")) {
            (Some(c), Some(k)) => {
                config.identity = Some(ClientIdentity { certificates: c.into(), key: k.into() });
            }
            (None, None) if text("token").is_none() => {
                return Err(wrong("exec plugin didn't return a token or cert/key pair".into()));
            }
            (None, None) => {}
            _ => return Err(wrong("exec plugin returned only certificate or key, not both".into())),
        }
        if let Some(token) = text("token") {
            config.credentials = Credentials::Bearer(token.to_owned());
        }
        let until = |t: &str| meta::time::parse(t).ok_or_else(|| wrong(format!("decoding stdout: parsing time {t:?}")));
        text("expirationTimestamp").map(until).transpose()
    }
}
