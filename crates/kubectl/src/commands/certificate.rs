//! `kubectl certificate approve` and `deny`: decide on certificate signing requests.

use crate::discovery::dotted;
use crate::error::{Error, Result, text};
use crate::flags::{DryRunStrategy, FileFlags, PrintFlags};
use crate::kube::Kube;
use crate::printer::Printer;
use crate::resource::file::{self, Document};
use crate::resource::select::{Selection, gather};
use crate::resource::{Info, locate};
use client::WriteOptions;
use meta::{Object, Value};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(clap::Subcommand, Clone, Debug)]
pub enum Command {
    /// Approve a certificate signing request.
    Approve(TargetFlags),
    /// Deny a certificate signing request.
    Deny(TargetFlags),
}

#[derive(clap::Args, Clone, Debug)]
pub struct TargetFlags {
    /// Names of certificate signing requests.
    pub names: Vec<String>,
    /// Update the request even if it already has this condition.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub files: FileFlags,
    #[command(flatten)]
    pub print: PrintFlags,
}

struct Decision {
    condition: &'static str,
    opposite: &'static str,
    reason: &'static str,
    message: &'static str,
    operation: &'static str,
}

const APPROVE: Decision = Decision {
    condition: "Approved",
    opposite: "Denied",
    reason: "KubectlApprove",
    message: "This CSR was approved by kubectl certificate approve.",
    operation: "approved",
};

const DENY: Decision = Decision {
    condition: "Denied",
    opposite: "Approved",
    reason: "KubectlDeny",
    message: "This CSR was denied by kubectl certificate deny.",
    operation: "denied",
};

/// How many times an update is tried when others write at the same time.
const ATTEMPTS: usize = 10;

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    let (which, verdict) = match a.command {
        Command::Approve(w) => (w, APPROVE),
        Command::Deny(w) => (w, DENY),
    };
    let mut printer = Printer::new(&which.print, DryRunStrategy::None)?.typed();
    if which.names.is_empty() && which.files.is_empty() {
        return text("one or more CSRs must be specified as <name> or -f <filename>");
    }
    let mut words = which.names.clone();
    if !words.is_empty() {
        words.insert(0, "certificatesigningrequests".into());
    }
    let (mut found, mut errors) = gather(k, &words, &FileFlags::default(), &Selection::default()).await?;
    for d in file::read(k, &which.files).await? {
        match locate_file(k, d?).await {
            Ok(i) => found.push(i),
            Err(e) => errors.push(e),
        }
    }
    let mut count = 0;
    for i in found {
        match decide(k, &i, &verdict, which.force).await {
            Ok(()) => {
                count += 1;
                printer.print(k, &i.object.unwrap_or_default(), verdict.operation)?;
            }
            Err(e) => errors.push(e),
        }
    }
    if count == 0 && errors.is_empty() {
        k.println("No resources found");
    }
    Error::collect(errors)
}

/// Finds the object of a file on the server. Signing requests are cluster-scoped, so other objects get no namespace.
async fn locate_file(k: &mut Kube, d: Document) -> Result<Info> {
    if let Some(resource) = k.resource_of(&d.object.gvk().unwrap_or_default()).await?
        && d.object.namespace().is_empty()
    {
        let name = d.object.name().to_owned();
        Info { resource, namespace: String::new(), name, source: String::new(), object: None }.check_namespace()?;
    }
    let mut i = locate(k, &d.source, d.object).await?;
    i.object = Some(i.fetch(k).await?);
    Ok(i)
}

async fn decide(k: &mut Kube, i: &Info, v: &Decision, force: bool) -> Result {
    if i.resource.kind != "CertificateSigningRequest" {
        return text(format!(
            "can only handle CertificateSigningRequest.certificates.k8s.io objects, got {}",
            dotted(&i.resource.kind, &i.resource.group)
        ));
    }
    let api = k.api(&i.resource, "").await?;
    for n in 0.. {
        let mut o: Object = api.get(&i.name).await?;
        let mut all = o.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
        if all.iter().any(|c| c["type"] == v.opposite) {
            return text(format!("certificate signing request {:?} is already {}", i.name, v.opposite));
        }
        let present = all.iter().any(|c| c["type"] == v.condition);
        if present && !force {
            break;
        }
        if !present {
            all.push(json!({
                "type": v.condition, "status": "True", "reason": v.reason, "message": v.message,
                "lastUpdateTime": meta::time::format(k.now()),
            }));
            o.set(&["status", "conditions"], all);
        }
        let done = api.update_subresource::<Object, Object>(&i.name, "approval", &WriteOptions::default(), &o).await;
        match done {
            Err(e) if e.is_conflict() && n < ATTEMPTS => {}
            other => {
                other?;
                break;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    #[tokio::test]
    async fn approves_and_denies_requests() {
        let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests/r";
        let csr = |conditions| json!({"kind": "CertificateSigningRequest", "apiVersion": "certificates.k8s.io/v1", "metadata": {"name": "r"}, "status": {"conditions": conditions}});
        let put = format!("PUT {path}/approval");
        let s = Server::new().on(&format!("GET {path}"), 200, csr(json!([]))).on(&put, 200, csr(json!([])));
        let operation = snapshot(&s, "certificate approve r", "").await;
        assert_eq!(operation, "certificatesigningrequest.certificates.k8s.io/r approved\n");
        assert_eq!(
            s.body_of(&put)["status"]["conditions"],
            json!([{"type": "Approved", "status": "True", "reason": "KubectlApprove", "lastUpdateTime": "2026-11-21T12:00:00Z",
                "message": "This CSR was approved by kubectl certificate approve."}])
        );
        let s = Server::new().on(&format!("GET {path}"), 200, csr(json!([{"type": "Approved"}])));
        for (line, expected) in [
            ("certificate approve r", "certificatesigningrequest.certificates.k8s.io/r approved\n"),
            ("certificate deny r", "! error: certificate signing request \"r\" is already Approved\nexit 1\n"),
            (
                "certificate deny x",
                "! Error from server (NotFound): certificatesigningrequests.certificates.k8s.io \"x\" not found\nexit 1\n",
            ),
            ("certificate approve", "! error: one or more CSRs must be specified as <name> or -f <filename>\nexit 1\n"),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }
}
