//! Certificate signing requests (PKCS #10 in PEM), and the checks of the signers of Kubernetes
//! (`k8s.io/kubernetes/pkg/apis/certificates/helpers.go`).

use client::certificate::{common_name, is_readable};
use std::net::IpAddr;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::OID_X509_EXT_SUBJECT_ALT_NAME;
use x509_parser::prelude::{FromDer, ParsedCriAttribute};

pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
pub const LEGACY: &str = "kubernetes.io/legacy-unknown";

/// A request whose signature is valid.
#[derive(Debug, Default)]
pub struct Request {
    /// Subject, public key and alternative names, unchanged (DER).
    pub subject: Vec<u8>,
    pub public_key: Vec<u8>,
    pub alternative_names: Option<Vec<u8>>,
    pub common_name: String,
    pub organizations: Vec<String>,
    pub has: Names,
    /// The DNS names and IP addresses among the alternative names.
    pub hosts: Vec<String>,
}

/// The types of alternative names in a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Names {
    pub dns: bool,
    pub email: bool,
    pub ip: bool,
    pub uri: bool,
    /// Other types, and what cannot be read.
    pub other: bool,
}

impl Request {
    pub fn parse(pem: &[u8]) -> Result<Self, String> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem).map_err(|e| e.to_string())?;
        if pem.label != "CERTIFICATE REQUEST" {
            return Err("PEM block type must be CERTIFICATE REQUEST".into());
        }
        let (_, csr) = X509CertificationRequest::from_der(&pem.contents).map_err(|e| e.to_string())?;
        csr.verify_signature().map_err(|e| e.to_string())?;
        let info = &csr.certification_request_info;
        if !is_readable(&info.subject) {
            return Err("the subject has a value that is no text".into());
        }
        let text = |a: &x509_parser::x509::AttributeTypeAndValue<'_>| a.as_str().unwrap_or_default().to_owned();
        let mut r = Self {
            subject: info.subject.as_raw().to_vec(),
            public_key: info.subject_pki.raw.to_vec(),
            common_name: common_name(&info.subject).unwrap_or_default().to_owned(),
            organizations: info.subject.iter_organization().map(text).collect(),
            ..Self::default()
        };
        for attribute in info.iter_attributes() {
            let ParsedCriAttribute::ExtensionRequest(requested) = attribute.parsed_attribute() else { continue };
            for e in requested.extensions.iter().filter(|e| e.oid == OID_X509_EXT_SUBJECT_ALT_NAME) {
                // What is checked is what is signed: nothing that is skipped here may come into the certificate.
                if r.alternative_names.replace(e.value.to_vec()).is_some() {
                    return Err("there is more than one subjectAltName extension".into());
                }
                let ParsedExtension::SubjectAlternativeName(names) = e.parsed_extension() else {
                    return Err("the subjectAltName extension cannot be read".into());
                };
                for n in &names.general_names {
                    match n {
                        GeneralName::DNSName(name) => {
                            r.has.dns = true;
                            r.hosts.push((*name).to_owned());
                        }
                        GeneralName::RFC822Name(_) => r.has.email = true,
                        GeneralName::IPAddress(bytes) => {
                            r.has.ip = true;
                            r.hosts.push(ip(bytes));
                        }
                        GeneralName::URI(_) => r.has.uri = true,
                        _ => r.has.other = true,
                    }
                }
            }
        }
        Ok(r)
    }

    /// Why the signer must not issue a certificate for these usages, if so; none for a signer of another controller.
    pub fn fits(&self, signer: &str, usages: &[&str]) -> Option<Result<(), String>> {
        Some(match signer {
            CLIENT => client_usages(usages),
            KUBELET_CLIENT => self.kubelet_client(usages),
            KUBELET_SERVING => self.kubelet_serving(usages),
            // Any purpose; it only needs an approval.
            LEGACY => Ok(()),
            _ => return None,
        })
    }

    fn kubelet_client(&self, usages: &[&str]) -> Result<(), String> {
        self.is_node()?;
        let n = self.has;
        for (there, what) in [(n.dns, "DNS"), (n.email, "Email"), (n.ip, "IP"), (n.uri, "URI"), (n.other, "Other")] {
            if there {
                return Err(format!("{what} subjectAltNames are not allowed"));
            }
        }
        self.has_node_subject()?;
        exactly(usages, "client auth")
    }

    fn kubelet_serving(&self, usages: &[&str]) -> Result<(), String> {
        self.is_node()?;
        if !self.has.dns && !self.has.ip {
            return Err("DNS or IP subjectAltName is required".into());
        }
        for (there, what) in [(self.has.email, "Email"), (self.has.uri, "URI"), (self.has.other, "Other")] {
            if there {
                return Err(format!("{what} subjectAltNames are not allowed"));
            }
        }
        self.has_node_subject()?;
        exactly(usages, "server auth")
    }

    fn is_node(&self) -> Result<(), String> {
        if self.organizations == ["system:nodes"] {
            return Ok(());
        }
        Err("subject organization is not system:nodes".into())
    }

    fn has_node_subject(&self) -> Result<(), String> {
        if self.common_name.starts_with("system:node:") {
            return Ok(());
        }
        Err("subject common name does not begin with system:node:".into())
    }
}

/// An address as text; that of another length is the address of no host.
fn ip(bytes: &[u8]) -> String {
    let v4 = <[u8; 4]>::try_from(bytes).map(|b| IpAddr::from(b).to_string());
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(|b| IpAddr::from(b).to_string())).unwrap_or_default()
}

/// Requires `purpose` and digital signature, allows key encipherment, and nothing else.
fn exactly(usages: &[&str], purpose: &str) -> Result<(), String> {
    let optional = ["key encipherment"];
    let required = ["digital signature", purpose];
    let none_else = usages.iter().all(|u| required.contains(u) || optional.contains(u));
    if none_else && required.iter().all(|r| usages.contains(r)) {
        return Ok(());
    }
    let mut all = [required[0], optional[0], required[1]];
    all.sort_unstable();
    Err(format!("usages did not match [{}]", all.join(" ")))
}

fn client_usages(usages: &[&str]) -> Result<(), String> {
    let known = ["digital signature", "key encipherment", "client auth"];
    if let Some(u) = usages.iter().find(|u| !known.contains(u)) {
        return Err(format!("invalid usage for client certificate: {u}"));
    }
    if !usages.contains(&"client auth") {
        return Err("missing required usage for client certificate: client auth".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &str, organization: &str, has: Names) -> Request {
        Request { common_name: name.into(), organizations: vec![organization.into()], has, ..Request::default() }
    }

    #[test]
    fn signers_check_subjects_names_and_usages() {
        let none = Names::default();
        let dns = Names { dns: true, ..none };
        let uri = Names { uri: true, ip: true, ..none };
        let node = |has| request("system:node:a", "system:nodes", has);
        let check = |r: Request, signer: &str, usages: &[&str], expect: Result<(), &str>| {
            let have = r.fits(signer, usages).unwrap();
            assert_eq!(have.as_ref().map(|_| ()).map_err(String::as_str), expect, "{signer} {usages:?}");
        };
        let client = ["digital signature", "client auth"];
        check(node(none), KUBELET_CLIENT, &client, Ok(()));
        check(node(none), KUBELET_CLIENT, &["digital signature", "key encipherment", "client auth"], Ok(()));
        let all = Err("usages did not match [client auth digital signature key encipherment]");
        check(node(none), KUBELET_CLIENT, &["client auth"], all);
        check(node(none), KUBELET_CLIENT, &["digital signature", "client auth", "server auth"], all);
        check(node(dns), KUBELET_CLIENT, &client, Err("DNS subjectAltNames are not allowed"));
        let group = request("system:node:a", "system:masters", none);
        check(group, KUBELET_CLIENT, &client, Err("subject organization is not system:nodes"));
        let name = request("jane", "system:nodes", none);
        check(name, KUBELET_CLIENT, &client, Err("subject common name does not begin with system:node:"));
        let server = ["digital signature", "server auth"];
        check(node(dns), KUBELET_SERVING, &server, Ok(()));
        check(node(none), KUBELET_SERVING, &server, Err("DNS or IP subjectAltName is required"));
        check(node(uri), KUBELET_SERVING, &server, Err("URI subjectAltNames are not allowed"));
        check(request("jane", "team", none), CLIENT, &["client auth"], Ok(()));
        check(node(none), CLIENT, &server, Err("invalid usage for client certificate: server auth"));
        let missing = Err("missing required usage for client certificate: client auth");
        check(node(none), CLIENT, &["digital signature"], missing);
        check(request("x", "y", uri), LEGACY, &["any"], Ok(()));
        assert!(node(none).fits("example.com/own", &[]).is_none());
    }

    /// What is checked is what is signed. A node's request with a second extension, which could not be read, got a certificate with
    /// the names of the API server in it.
    #[test]
    fn alternative_names_are_in_one_readable_extension() {
        let key = rcgen::KeyPair::generate().unwrap();
        let san = |elements: &[&[u8]]| {
            let body: Vec<u8> = elements.concat();
            let value = [&[0x30, u8::try_from(body.len()).unwrap()][..], &body].concat();
            rcgen::CustomExtension::from_oid_content(&[2, 5, 29, 17], value)
        };
        let dns = |name: &str| [&[0x82, u8::try_from(name.len()).unwrap()][..], name.as_bytes()].concat();
        let parse = |extensions: Vec<rcgen::CustomExtension>| {
            let mut params = rcgen::CertificateParams::default();
            params.custom_extensions = extensions;
            Request::parse(params.serialize_request(&key).unwrap().pem().unwrap().as_bytes())
        };
        let (own, other) = (dns("node-1"), dns("kubernetes"));
        assert_eq!(parse(vec![san(&[&own])]).unwrap().hosts, ["node-1"]);
        let twice = parse(vec![san(&[&own]), san(&[&other])]).unwrap_err();
        assert_eq!(twice, "there is more than one subjectAltName extension");
        for bad in [&[0x05, 0x00][..], &[0x04, 0x01, 0x00], &[0x00]] {
            let usages = ["digital signature", "server auth"];
            let refused = match parse(vec![san(&[&own, bad])]) {
                Err(_) => true,
                Ok(r) => {
                    let node = Request {
                        common_name: "system:node:a".into(),
                        organizations: vec!["system:nodes".into()],
                        ..r
                    };
                    node.fits(KUBELET_SERVING, &usages).unwrap().is_err()
                }
            };
            assert!(refused, "{bad:?}");
        }
    }
}
