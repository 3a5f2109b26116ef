//! `/statusz` and `/flagz`: version, start time and flags of this process, as text; as JSON or YAML for the kinds of
//! `config.k8s.io` (`k8s.io/apiserver/pkg/server/statusz`, `flagz`).

use crate::answer::bytes;
use crate::body::Body;
use crate::content::{self, Encoding, Negotiated};
use crate::health::VERSION;
use crate::{Server, discovery};
use http::Response;
use http::header::ACCEPT;
use http::request::Parts;
use meta::{Status, Value};
use serde_json::json;
use std::collections::BTreeSet;
use std::fmt::Write as _;

const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees \
    and is for debugging purposes only.\n";
/// A random delimiter, so that clients do not depend on the format.
const DELIMITERS: [&str; 4] = [":", ": ", "=", " "];
/// Paths that are omitted as unhelpful for debugging.
const OTHERS: [&str; 5] = ["/apis", "/api", "/openid", "/openapi", "/.well-known"];

pub(crate) fn answer(server: &Server, parts: &Parts) -> Option<Result<Response<Body>, Status>> {
    let kind = match parts.uri.path() {
        "/statusz" => "Statusz",
        "/flagz" => "Flagz",
        _ => return None,
    };
    let accept = parts.headers.get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let Some(form) = negotiate(accept, kind) else {
        let why = "only the following media types are accepted: application/json, application/yaml, text/plain";
        return Some(Err(Status::not_acceptable(why)));
    };
    let Form::Structured(encoding, version) = form else {
        return Some(Ok(bytes(200, "text/plain; charset=utf-8", text(server, kind))));
    };
    let mut v = if kind == "Statusz" { status(server) } else { json!({"flags": server.options.flags}) };
    v["kind"] = kind.into();
    v["apiVersion"] = format!("config.k8s.io/{version}").into();
    v["metadata"] = json!({"name": "kube-apiserver"});
    let (media, body) = content::write(&Negotiated { encoding, ..Negotiated::json() }, &v);
    Some(Ok(bytes(200, media, body)))
}

#[derive(Debug, PartialEq, Eq)]
enum Form {
    Text,
    Structured(Encoding, &'static str),
}

fn negotiate(accept: &str, kind: &str) -> Option<Form> {
    if accept.trim().is_empty() {
        return Some(Form::Text);
    }
    accept.split(',').find_map(|clause| {
        let mut parts = clause.split(';').map(str::trim);
        let encoding = match parts.next()? {
            "text/plain" | "text/*" | "*/*" => return Some(Form::Text),
            "application/json" => Encoding::Json,
            "application/yaml" => Encoding::Yaml,
            _ => return None,
        };
        let parameters: Vec<(&str, &str)> = parts.filter_map(|p| p.split_once('=')).collect();
        let is = |k: &str, v: &str| parameters.contains(&(k, v));
        let version = ["v1beta1", "v1alpha1"].into_iter().find(|v| is("v", v))?;
        (is("g", "config.k8s.io") && is("as", kind)).then_some(Form::Structured(encoding, version))
    })
}

fn status(server: &Server) -> Value {
    let up = server.registry.clock.now().duration_since(server.started).as_secs();
    let all = discovery::paths(server, &server.registry.rows());
    let roots = all["paths"].as_array().into_iter().flatten().filter_map(Value::as_str).map(|p| {
        let end = p.match_indices('/').nth(1).map_or(p.len(), |(i, _)| i);
        &p[..end]
    });
    let paths: BTreeSet<&str> = roots.filter(|p| !OTHERS.contains(p)).collect();
    json!({"startTime": meta::time::format(server.started), "uptimeSeconds": up, "goVersion": "none",
        "binaryVersion": VERSION.trim_start_matches('v'), "emulationVersion": "1.36", "paths": paths})
}

fn text(server: &Server, kind: &str) -> String {
    let delimiter = DELIMITERS[(server.registry.rng.next_u64() % 4) as usize];
    let mut out = format!("\nkube-apiserver {}\n{WARNING}", kind.to_lowercase());
    if kind == "Flagz" {
        for (name, value) in &server.options.flags {
            let _ = writeln!(out, "{name}{delimiter}{value}");
        }
        return out;
    }
    let v = status(server);
    let up = v["uptimeSeconds"].as_i64().unwrap_or(0);
    let field = |k: &str| v[k].as_str().unwrap_or_default().to_owned();
    let paths: Vec<&str> = v["paths"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let lines = [
        ("Started", server.started.strftime("%a %b %e %H:%M:%S UTC %Y").to_string()),
        ("Up", format!("{} hr {:02} min {:02} sec", up / 3600, up / 60 % 60, up % 60)),
        ("Go version", field("goVersion")),
        ("Binary version", field("binaryVersion")),
        ("Emulation version", field("emulationVersion")),
        ("Paths", paths.join(" ")),
    ];
    out.push('\n');
    for (name, value) in lines {
        let _ = writeln!(out, "{name}{delimiter} {value}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_get_text_and_programs_a_kind() {
        let check =
            |accept: &str, expected: Option<Form>| assert_eq!(negotiate(accept, "Statusz"), expected, "{accept}");
        check("", Some(Form::Text));
        check("*/*", Some(Form::Text));
        check("application/json", None);
        check("application/json;g=config.k8s.io;v=v1beta1;as=Flagz", None);
        check(
            "application/json;g=config.k8s.io;v=v1beta1;as=Statusz",
            Some(Form::Structured(Encoding::Json, "v1beta1")),
        );
        check(
            "application/xml, application/yaml; as=Statusz; v=v1alpha1; g=config.k8s.io",
            Some(Form::Structured(Encoding::Yaml, "v1alpha1")),
        );
    }
}
