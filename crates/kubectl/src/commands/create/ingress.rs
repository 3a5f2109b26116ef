//! Creates ingresses.

use super::{Generator, WriteFlags};
use crate::error::{Error, Result, text};
use meta::{Map, Value};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Ingress {
    /// Name of the ingress.
    pub name: String,
    #[allow(rustdoc::broken_intra_doc_links, reason = "the text is the help of the flag")]
    /// Rule HOST/PATH[*]=SERVICE:PORT[,tls[=SECRET]]; may be repeated.
    #[arg(long)]
    pub rule: Vec<String>,
    /// Ingress class.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub class: String,
    /// Default backend SERVICE:PORT.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub default_backend: String,
    /// Annotation KEY=VALUE; may be repeated.
    #[arg(long)]
    pub annotation: Vec<String>,
    #[command(flatten)]
    pub write: WriteFlags,
}

fn backend(s: &str) -> Result<Value> {
    let Some((service, port)) = s.split_once(':') else {
        return text("default-backend should be in format servicename:serviceport".to_owned());
    };
    let port = match port.parse::<i64>() {
        Ok(n) => json!({"number": n}),
        Err(_) => json!({"name": port}),
    };
    Ok(json!({"service": {"name": service, "port": port}}))
}

impl Generator for Ingress {
    fn build(&self) -> Result<Value> {
        if self.rule.is_empty() && self.default_backend.is_empty() {
            return text(
                "not enough information provided: every ingress has to either specify a default-backend (which catches all traffic) or a list of rules (which catch specific paths)",
            );
        }
        let mut spec = json!({});
        if !self.class.is_empty() {
            spec["ingressClassName"] = self.class.clone().into();
        }
        if !self.default_backend.is_empty() {
            spec["defaultBackend"] = backend(&self.default_backend)?;
        }
        let mut rules: Vec<(String, Vec<Value>)> = Vec::new();
        let (mut tls, mut tls_hosts): (Vec<Value>, Vec<&str>) = (Vec::new(), Vec::new());
        for r in &self.rule {
            let wrong = || {
                Error::Text(format!(
                    "rule {r} is invalid and should be in format host/path=svcname:svcport[,tls[=secret]]"
                ))
            };
            let (main, options) = r.split_once(',').unwrap_or((r, ""));
            let (place, to) = main.split_once('=').ok_or_else(wrong)?;
            let (host, path) = place.split_once('/').ok_or_else(wrong)?;
            let path = format!("/{path}");
            let (path, kind) = match path.strip_suffix('*') {
                Some(p) => (p.to_owned(), "Prefix"),
                None => (path, "Exact"),
            };
            let path_entry = json!({"backend": backend(to).map_err(|_| wrong())?, "path": path, "pathType": kind});
            match rules.iter_mut().find(|(h, _)| h == host) {
                Some((_, all)) => all.push(path_entry),
                None => rules.push((host.to_owned(), vec![path_entry])),
            }
            let secret = match options.split_once('=') {
                None if options.is_empty() => continue,
                None if options == "tls" => "",
                Some(("tls", secret)) => secret,
                _ => return Err(wrong()),
            };
            // Each host appears once.
            if tls_hosts.contains(&host) {
                continue;
            }
            tls_hosts.push(host);
            let same = tls.iter_mut().find(|t| !secret.is_empty() && t["secretName"] == secret);
            if let Some(t) = same {
                match t["hosts"].as_array_mut() {
                    Some(all) => all.push(host.into()),
                    None => t["hosts"] = json!([host]),
                }
                continue;
            }
            let mut t = json!({});
            if !host.is_empty() {
                t["hosts"] = json!([host]);
            }
            if !secret.is_empty() {
                t["secretName"] = secret.into();
            }
            if t != json!({}) {
                tls.push(t);
            }
        }
        if !rules.is_empty() {
            spec["rules"] = rules
                .into_iter()
                .map(|(host, paths)| {
                    let mut r = json!({"http": {"paths": paths}});
                    if !host.is_empty() {
                        r["host"] = host.into();
                    }
                    r
                })
                .collect();
        }
        if !tls.is_empty() {
            spec["tls"] = tls.into();
        }
        let mut metadata = json!({"name": self.name});
        if !self.annotation.is_empty() {
            let mut all = Map::new();
            for a in &self.annotation {
                let Some((k, v)) = a.split_once('=') else {
                    return text(format!("annotation {a} is invalid and should be in format key=[value]"));
                };
                all.insert(k.to_owned(), v.into());
            }
            metadata["annotations"] = all.into();
        }
        Ok(json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": metadata, "spec": spec,
            "status": {"loadBalancer": {}},
        }))
    }
}
