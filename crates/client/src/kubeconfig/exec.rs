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
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    pub command: String,
    pub args: Option<Vec<String>>,
    pub env: Option<Vec<EnvVar>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub install_hint: Option<String>,
    /// Never, IfAvailable (if there is a terminal) or Always.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interactive_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provide_cluster_info: Option<bool>,
    /// Cluster information for the plugin, if `provideClusterInfo` is set.
    #[serde(skip)]
    pub(super) cluster: Option<Value>,
    /// The command itself reads standard input.
    #[serde(skip)]
    pub(super) stdin_in_use: bool,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EnvVar {
    pub name: String,
    #[serde(default)]
    pub value: String,
}

/// Error text for a plugin that is not installed, before its own install hint.
const ABSENT: &str = "\n\nA credential plugin of the kubeconfig is not installed on this machine.";
const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
/// The cluster extension with the plugin's configuration.
const EXTENSION: &str = "client.authentication.k8s.io/exec";

impl Exec {
    /// Stores the cluster information that the plugin requested.
    pub(super) fn set_cluster_info(&mut self, c: &super::Cluster) {
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

    /// Runs the plugin and adds its token or certificate to `config`. Returns when the credentials expire, if the plugin says so.
    pub(super) async fn apply(&self, config: &mut Config) -> Result<Option<Timestamp>, Error> {
        if !VERSIONS.contains(&self.api_version.as_str()) {
            return Err(Error::Credentials(format!("exec plugin: invalid apiVersion {:?}", self.api_version)));
        }
        let wrong = Error::Plugin;
        let interactive = self.interactive(std::io::stdin().is_terminal()).map_err(wrong)?;
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
        // As upstream, a program found relative to the current directory does not count.
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
        let answer = self.read(&output.stdout).map_err(wrong)?;
        let status = &answer["status"];
        if status.is_null() {
            return Err(wrong("exec plugin didn't return a status field".into()));
        }
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

    /// Whether the plugin may prompt the user.
    fn interactive(&self, terminal: bool) -> Result<bool, String> {
        let cannot = |why: &str| Err(format!("exec plugin cannot support interactive mode: {why}"));
        match self.interactive_mode.as_deref() {
            Some("Never") => Ok(false),
            Some("Always") if !terminal => cannot("standard input is not a terminal"),
            Some("Always") if self.stdin_in_use => {
                cannot("standard input is unavailable: used by stdin resource manifest reader")
            }
            _ => Ok(terminal && !self.stdin_in_use),
        }
    }

    /// Parses the plugin's output as an `ExecCredential` of the requested version. Missing fields are accepted.
    fn read(&self, printed: &[u8]) -> Result<Value, String> {
        let failed = |why: &str| format!("decoding stdout: {why}");
        let text = String::from_utf8_lossy(printed);
        let read = codec::yaml::parse(&text).map_err(|e| failed(&e.to_string()))?;
        let answer = read.into_iter().next().unwrap_or_default();
        let kind = match &answer {
            Value::Object(_) | Value::Null => "",
            Value::Array(_) => "array",
            Value::String(_) => "string",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
        };
        if !kind.is_empty() {
            let head = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
            let why = format!("json parse error: json: cannot unmarshal {kind} into Go value of type {head}");
            return Err(failed(&format!("couldn't get version/kind; {why}")));
        }
        let version = answer["apiVersion"].as_str().unwrap_or("client.authentication.k8s.io/__internal");
        let kind = answer["kind"].as_str().unwrap_or("ExecCredential");
        let scheme = "k8s.io/client-go/plugin/pkg/client/auth/exec/exec.go:64";
        if kind != "ExecCredential" || !version.starts_with("client.authentication.k8s.io/") {
            let why = format!("no kind {kind:?} is registered for version {version:?} in scheme {scheme:?}");
            return Err(failed(&why));
        }
        match version == self.api_version {
            true => Ok(answer),
            false => Err(format!(
                "exec plugin is configured to use API version {}, plugin returned version {version}",
                self.api_version
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interactive_mode_needs_an_unused_terminal() {
        let cannot = |why: &str| Err(format!("exec plugin cannot support interactive mode: standard input {why}"));
        for (mode, terminal, in_use, want) in [
            ("Never", true, false, Ok(false)),
            ("IfAvailable", true, false, Ok(true)),
            ("IfAvailable", false, false, Ok(false)),
            ("IfAvailable", true, true, Ok(false)),
            ("Always", true, false, Ok(true)),
            ("Always", false, false, cannot("is not a terminal")),
            ("Always", false, true, cannot("is not a terminal")),
            ("Always", true, true, cannot("is unavailable: used by stdin resource manifest reader")),
        ] {
            let e = Exec { interactive_mode: Some(mode.into()), stdin_in_use: in_use, ..Exec::default() };
            assert_eq!(e.interactive(terminal), want, "{mode} {terminal} {in_use}");
        }
    }

    #[test]
    fn output_is_parsed_and_rejected_as_in_client_go() {
        let version = "client.authentication.k8s.io/v1";
        let e = Exec { api_version: version.into(), ..Exec::default() };
        assert!(e.read(br#"{"apiVersion":"client.authentication.k8s.io/v1","status":{}}"#).is_ok());
        for (printed, want) in [
            ("a\nb\n", "decoding stdout: couldn't get version/kind; json parse error: json: cannot unmarshal string into Go value of type struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }".to_owned()),
            ("{}", format!("exec plugin is configured to use API version {version}, plugin returned version client.authentication.k8s.io/__internal")),
            ("{apiVersion: client.authentication.k8s.io/v1beta1}", format!("exec plugin is configured to use API version {version}, plugin returned version client.authentication.k8s.io/v1beta1")),
            ("{apiVersion: v1, kind: Pod}", "decoding stdout: no kind \"Pod\" is registered for version \"v1\" in scheme \"k8s.io/client-go/plugin/pkg/client/auth/exec/exec.go:64\"".to_owned()),
        ] {
            assert_eq!(e.read(printed.as_bytes()), Err(want), "{printed}");
        }
    }
}
