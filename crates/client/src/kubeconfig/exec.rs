//! Credential plugins: a program that prints an `ExecCredential` (`client.authentication.k8s.io`).

use crate::error::Error;
use crate::https::{ClientIdentity, Config, Credentials};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Exec {
    pub api_version: String,
    pub command: String,
    pub args: Option<Vec<String>>,
    pub env: Option<Vec<EnvVar>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub install_hint: Option<String>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EnvVar {
    pub name: String,
    #[serde(default)]
    pub value: String,
}

impl Exec {
    /// Runs the program and takes its token or its certificate.
    pub(super) async fn apply(&self, config: &mut Config) -> Result<(), Error> {
        let wrong = |why: String| {
            let hint = self.install_hint.as_deref().map(|h| format!("\n\n{h}")).unwrap_or_default();
            Error::Credentials(format!("exec: {}: {why}{hint}", self.command))
        };
        let info = json!({
            "apiVersion": self.api_version, "kind": "ExecCredential", "spec": {"interactive": false},
        });
        let output = tokio::process::Command::new(&self.command)
            .args(self.args.iter().flatten())
            .envs(self.env.iter().flatten().map(|e| (&e.name, &e.value)))
            .env("KUBERNETES_EXEC_INFO", info.to_string())
            .stdin(std::process::Stdio::null())
            .stderr(std::process::Stdio::inherit())
            .output()
            .await
            .map_err(|e| wrong(e.to_string()))?;
        if !output.status.success() {
            return Err(wrong(output.status.to_string()));
        }
        let answer: Value =
            serde_json::from_slice(&output.stdout).map_err(|e| wrong(format!("decoding stdout: {e}")))?;
        let said = answer["apiVersion"].as_str().unwrap_or_default();
        if said != self.api_version {
            return Err(wrong(format!("plugin returned version {said:?}, not {:?}", self.api_version)));
        }
        let status = &answer["status"];
        let text = |k: &str| status[k].as_str().filter(|s| !s.is_empty());
        match (text("clientCertificateData"), text("clientKeyData")) {
            (Some(c), Some(k)) => {
                config.identity = Some(ClientIdentity { certificates: c.into(), key: k.into() });
            }
            (None, None) if text("token").is_none() => {
                return Err(wrong("plugin returned neither a token nor a certificate".into()));
            }
            (None, None) => {}
            _ => return Err(wrong("plugin returned half of a certificate and key".into())),
        }
        if let Some(token) = text("token") {
            config.credentials = Credentials::Bearer(token.to_owned());
        }
        Ok(())
    }
}
