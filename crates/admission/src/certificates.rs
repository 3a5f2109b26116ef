//! CertificateApproval, CertificateSigning and CertificateSubjectRestriction: restrict approving and signing to users
//! with permission for the signer, and reject requests for the group `system:masters`.

use crate::{Operation, Plugin, Review};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::certificate;
use meta::{Object, Status};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;
use x509_parser::x509::X509Name;

const GROUP: &str = "certificates.k8s.io";
const REQUESTS: &str = "certificatesigningrequests";

pub struct CertificateApproval;
pub struct CertificateSigning;
pub struct CertificateSubjectRestriction;

/// Whether the user may act on a signer, by its name or for its whole domain.
fn may(review: &Review<'_>, verb: &str, object: &Object) -> Result<(), Status> {
    let signer = object.str_at(&["spec", "signerName"]).unwrap_or_default();
    let domain = format!("{}/*", signer.split('/').next().unwrap_or_default());
    let allowed = |name: &str| review.may(verb, GROUP, "signers", "", "", name);
    if allowed(signer) || allowed(&domain) {
        return Ok(());
    }
    Err(review.forbidden(&format!("user not permitted to {verb} requests with signerName {signer:?}")))
}

impl Plugin for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        match object {
            Some(o) if review.is_part(GROUP, REQUESTS, "approval") => may(review, "approve", o),
            _ => Ok(()),
        }
    }
}

impl Plugin for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        let (Some(new), Some(old)) = (object, review.old) else { return Ok(()) };
        let signed = ["certificate", "conditions"].iter().any(|f| new.at(&["status", f]) != old.at(&["status", f]));
        if review.is_part(GROUP, REQUESTS, "status") && signed { may(review, "sign", new) } else { Ok(()) }
    }
}

impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
        let created = review.is(GROUP, REQUESTS) && review.operation == Operation::Create;
        let Some(object) = object.filter(|o| created && o.str_at(&["spec", "signerName"]) == Some(SIGNER)) else {
            return Ok(());
        };
        let groups = organizations(object.str_at(&["spec", "request"]).unwrap_or_default());
        let Some(groups) = groups else {
            return Err(review.forbidden("failed to parse CSR: it is no certificate signing request in PEM"));
        };
        let Some(groups) = groups else {
            return Err(review.forbidden("failed to parse CSR: the subject has a value that is no text"));
        };
        if groups.iter().any(|g| g == auth::user::GROUP_MASTERS) {
            let group = auth::user::GROUP_MASTERS;
            return Err(review.forbidden(&format!("use of {SIGNER} signer with {group} group is not allowed")));
        }
        Ok(())
    }
}

/// The organizations (groups) in the subject of a PEM certificate request in base64; empty unless all can be parsed.
fn organizations(request: &str) -> Option<Option<Vec<String>>> {
    let found = |subject: &X509Name| {
        let all = subject.iter_organization().filter_map(|o| o.as_str().ok()).map(str::to_owned);
        certificate::is_readable(subject).then(|| all.collect())
    };
    subject(request, found)
}

/// The common name in a PEM certificate request in base64.
pub(crate) fn common_name(request: &str) -> Option<String> {
    let found = |subject: &X509Name| certificate::common_name(subject).map(str::to_owned);
    subject(request, found).map(Option::unwrap_or_default)
}

fn subject<T>(request: &str, read: impl FnOnce(&X509Name) -> T) -> Option<T> {
    let pem = STANDARD.decode(request).ok()?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).ok()?;
    let (_, csr) = X509CertificationRequest::from_der(&pem.contents).ok()?;
    Some(read(&csr.certification_request_info.subject))
}
