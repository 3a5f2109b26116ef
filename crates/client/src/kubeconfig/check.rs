//! Validation of a kubeconfig and flags before connecting (client-go `clientcmd/validation.go`).

use super::{Cluster, Kubeconfig, User};
use crate::error::Error;
use crate::https::os_error;
use std::path::Path;

/// Returns the error for a list of problems; a single problem is reported without a list.
pub(super) fn done(mut problems: Vec<String>) -> Result<(), Error> {
    match problems.len() {
        0 => Ok(()),
        1 => Err(Error::Credentials(problems.remove(0))),
        _ => Err(Error::Configuration(problems)),
    }
}

/// Rejects a file that is not a v1 kubeconfig. A missing `apiVersion` or `kind` is accepted, as in client-go.
pub(super) fn kind(k: &Kubeconfig) -> Result<(), Error> {
    let or = |value: &str, default: &str| if value.is_empty() { default.to_owned() } else { value.to_owned() };
    let (version, kind) = (or(&k.api_version, "v1"), or(&k.kind, "Config"));
    if version.matches('/').count() > 1 {
        return Err(Error::Credentials(format!(
            "couldn't get version/kind; json parse error: unexpected GroupVersion string: {version}"
        )));
    }
    if version == "v1" && kind == "Config" {
        return Ok(());
    }
    let scheme = "k8s.io/client-go/tools/clientcmd/api/latest/latest.go:50";
    Err(Error::Credentials(format!("no kind {kind:?} is registered for version {version:?} in scheme {scheme:?}")))
}

pub(super) fn user(name: &str, u: &User, problems: &mut Vec<String>) {
    let mut methods = Vec::new();
    if !u.token.is_empty() {
        methods.push("token");
    }
    if !u.username.is_empty() || !u.password.is_empty() {
        methods.push("basicAuth");
    }
    if !u.client_certificate.is_empty() || !u.client_certificate_data.is_empty() {
        let both = |a: &str, b: &str| !a.is_empty() && !b.is_empty();
        if both(&u.client_certificate, &u.client_certificate_data) {
            problems.push(format!(
                "client-cert-data and client-cert are both specified for {name}. client-cert-data will override."
            ));
        }
        if both(&u.client_key, &u.client_key_data) {
            problems.push(format!(
                "client-key-data and client-key are both specified for {name}; client-key-data will override"
            ));
        }
        if u.client_key.is_empty() && u.client_key_data.is_empty() {
            problems.push(format!(
                "client-key-data or client-key must be specified for {name} to use the clientCert authentication method."
            ));
        }
        readable("client-cert", &u.client_certificate, name, problems);
        readable("client-key", &u.client_key, name, problems);
    }
    if let Some(e) = &u.exec {
        let mut must = |what: &str| {
            problems.push(format!("{what} must be specified for {name} to use exec authentication plugin"));
        };
        if e.command.is_empty() {
            must("command");
        }
        if e.api_version.is_empty() {
            must("apiVersion");
        }
        if e.env.iter().flatten().any(|v| v.name.is_empty()) {
            must("env variable name");
        }
        match e.interactive_mode.as_deref().unwrap_or_default() {
            "Never" | "IfAvailable" | "Always" => {}
            // v1beta1 has no such field.
            "" if e.api_version.ends_with("/v1beta1") => {}
            "" => must("interactiveMode"),
            other => problems.push(format!("invalid interactiveMode for {name}: {other:?}")),
        }
    }
    if methods.len() > 1 {
        problems.push(format!(
            "more than one authentication method found for {name}; found [{}], only one is allowed",
            methods.join(" ")
        ));
    }
    let impersonates = !u.impersonate_uid.is_empty() || !u.impersonate_groups.is_empty();
    if impersonates && u.impersonate.is_empty() {
        problems.push(format!("requesting uid, groups or user-extra for {name} without impersonating a user"));
    }
}

pub(super) fn cluster(name: &str, c: &Cluster, problems: &mut Vec<String>) {
    if c.server.is_empty() && !name.is_empty() {
        problems.push(format!("no server found for cluster {name:?}"));
    }
    if !c.certificate_authority.is_empty() && !c.certificate_authority_data.is_empty() {
        problems.push(format!(
            "certificate-authority-data and certificate-authority are both specified for {name}. certificate-authority-data will override."
        ));
    }
    readable("certificate-authority", &c.certificate_authority, name, problems);
}

fn readable(what: &str, path: &str, name: &str, problems: &mut Vec<String>) {
    if !path.is_empty()
        && let Err(e) = std::fs::File::open(Path::new(path))
    {
        problems.push(format!("unable to read {what} {path} for {name} due to open {path}: {}", os_error(&e)));
    }
}
