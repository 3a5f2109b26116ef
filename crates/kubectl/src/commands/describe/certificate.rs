//! Describes certificate signing requests with their content.

use super::page::{Page, list, pairs};
use crate::error::{Result, text as text_error};
use base64::Engine as _;
use meta::Object;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, ParsedExtension, X509CertificationRequest};

pub fn request(p: &mut Page, o: &Object) -> Result {
    let text = |path: &[&str]| o.str_at(path).unwrap_or_default().to_owned();
    let plain = |path: &[&str]| match pairs(o.at(path)).map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>() {
        all if all.is_empty() => "<none>".to_owned(),
        all => all.join(","),
    };
    p.field("Name", o.name());
    p.field("Labels", plain(&["metadata", "labels"]));
    p.field("Annotations", plain(&["metadata", "annotations"]));
    p.field("CreationTimestamp", p.time(o.creation_timestamp()));
    p.field("Requesting User", text(&["spec", "username"]));
    if let Some(s) = o.str_at(&["spec", "signerName"]).filter(|s| !s.is_empty()) {
        p.field("Signer", s);
    }
    if let Some(s) = o.int_at(&["spec", "expirationSeconds"]) {
        p.field("Requested Duration", kinds::columns::duration(s));
    }
    p.field("Status", status(o));
    let pem = base64::engine::general_purpose::STANDARD.decode(text(&["spec", "request"])).unwrap_or_default();
    match content(p, &pem) {
        Some(()) => Ok(()),
        None => text_error("Error parsing CSR: PEM block type must be CERTIFICATE REQUEST"),
    }
}

/// Formats the status as `get` does.
fn status(o: &Object) -> String {
    let conditions = list(o.at(&["status", "conditions"]));
    let has = |kind: &str| conditions.iter().any(|c| c["type"] == kind);
    let mut out = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (_, true) => "Approved",
        _ => "Pending",
    }
    .to_owned();
    if has("Failed") {
        out.push_str(",Failed");
    }
    if o.str_at(&["status", "certificate"]).is_some_and(|c| !c.is_empty()) {
        out.push_str(",Issued");
    }
    out
}

/// Writes subject and names; `None` if the bytes are no request.
fn content(p: &mut Page, bytes: &[u8]) -> Option<()> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(bytes).ok()?;
    let (_, csr) = X509CertificationRequest::from_der(&pem.contents).ok()?;
    let subject = &csr.certification_request_info.subject;
    let values_of = |oid: &str| -> Vec<String> {
        let matching = subject.iter_attributes().filter(|a| a.attr_type().to_id_string() == oid);
        matching.filter_map(|a| a.as_str().ok().map(str::to_owned)).collect()
    };
    p.line(0, "Subject:");
    p.line(0, format!("\tCommon Name:\t{}", values_of("2.5.4.3").pop().unwrap_or_default()));
    p.line(0, format!("\tSerial Number:\t{}", values_of("2.5.4.5").pop().unwrap_or_default()));
    for (title, oid) in [
        ("Organization", "2.5.4.10"),
        ("Organizational Unit", "2.5.4.11"),
        ("Country", "2.5.4.6"),
        ("Locality", "2.5.4.7"),
        ("Province", "2.5.4.8"),
        ("StreetAddress", "2.5.4.9"),
        ("PostalCode", "2.5.4.17"),
    ] {
        several(p, title, &values_of(oid));
    }
    let mut names: [(&str, Vec<String>); 4] =
        [("DNS Names", vec![]), ("Email Addresses", vec![]), ("URIs", vec![]), ("IP Addresses", vec![])];
    for e in csr.requested_extensions().into_iter().flatten() {
        let ParsedExtension::SubjectAlternativeName(all) = e else { continue };
        for n in &all.general_names {
            match n {
                GeneralName::DNSName(v) => names[0].1.push((*v).to_owned()),
                GeneralName::RFC822Name(v) => names[1].1.push((*v).to_owned()),
                GeneralName::URI(v) => names[2].1.push((*v).to_owned()),
                GeneralName::IPAddress(v) => names[3].1.extend(address(v)),
                _ => {}
            }
        }
    }
    if names.iter().any(|(_, v)| !v.is_empty()) {
        p.line(0, "Subject Alternative Names:");
        names.iter().for_each(|(title, values)| several(p, title, values));
    }
    Some(())
}

fn address(bytes: &[u8]) -> Option<String> {
    let four = <[u8; 4]>::try_from(bytes).map(|b| std::net::IpAddr::from(b).to_string());
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(|b| std::net::IpAddr::from(b).to_string())).ok()
}

/// Writes the first value beside the title, the others below it; nothing without values.
fn several(p: &mut Page, title: &str, values: &[String]) {
    if !values.is_empty() {
        p.line(0, format!("\t{title}:\t{}", values.join("\n\t\t")));
    }
}
