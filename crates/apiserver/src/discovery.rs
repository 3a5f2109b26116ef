//! Discovery: aggregated (`apidiscovery.k8s.io/v2`) and legacy, both derived from the rows.
//!
//! Discovery is public, so each document is built once per change of the rows and cached ([`crate::documents`]).

use crate::Server;
use crate::answer::{bytes, method_not_allowed};
use crate::body::Body;
use crate::content::{self, Encoding, Negotiated, Offer};
use crate::documents::Document;
use crate::order;
use crate::path::Target;
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use http::header::{ACCEPT, ETAG, IF_NONE_MATCH, VARY};
use http::request::Parts;
use http::{HeaderValue, Method, Response};
use meta::{Status, Value};
use registry::{Resource, Rows};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) fn answer(server: &Server, parts: &Parts, target: &Target) -> Result<Response<Body>, Status> {
    let rows = server.registry.rows();
    let path = parts.uri.path().trim_end_matches('/');
    let accept = parts.headers.get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let offer = Offer { cbor: server.options.cbor, messages: true, tables: false, metadata: false };
    let kept = |key: &str, change: u64, make: &dyn Fn() -> Value| {
        let document = server.documents.get(key, change, || order::json(&make(), false).into());
        encoded(parts, &offer, document)
    };
    if target.odd {
        return Err(Status::no_such_path());
    }
    match path {
        "/api" | "/apis" => {
            if accepts_aggregated(accept) {
                return Ok(aggregated(server, parts, &rows, path == "/api"));
            }
            match path {
                "/api" => kept(path, 0, &core_versions),
                _ => kept(path, change(server, &rows), &|| groups(server, &rows)),
            }
        }
        "" => {
            let make = || order::json(&paths(server, &rows), true).into();
            let document = server.documents.get("/", change(server, &rows), make);
            Ok(bytes(200, "application/json", Body::Full(document.text)))
        }
        _ => {
            let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
            if let (Some(gv), true) = (&target.group_version, target.resource.is_empty()) {
                let is_of = |r: &&Arc<Resource>| *r.kind.group == *gv.group && *r.kind.version == *gv.version;
                let is_core = segments[0] == "api";
                if is_core == gv.group.is_empty() && rows.iter().any(|r| is_of(&r)) {
                    if rows.iter().any(|r| is_of(&r) && r.bare_items) {
                        if parts.method == Method::HEAD {
                            return Err(method_not_allowed());
                        }
                        content::check_route(&parts.headers, content::documents(offer.cbor))?;
                    }
                    let list = || resources(&gv.to_string(), &rows.iter().filter(is_of).collect::<Vec<_>>());
                    return kept(path, rows.change(Some(gv)), &list);
                }
            }
            if let ["apis", group] = segments[..]
                && is_group(server, &rows, group)
            {
                return kept(path, change(server, &rows), &|| {
                    let found = group_list(server, &rows).into_iter().find(|g| g["name"] == group);
                    let mut g = found.unwrap_or_default();
                    g["kind"] = "APIGroup".into();
                    g["apiVersion"] = "v1".into();
                    g
                });
            }
            Err(Status::no_such_path())
        }
    }
}

/// The version of the rows and of other servers' documents. The upper bits are those of other servers.
pub(crate) fn change(server: &Server, rows: &Rows) -> u64 {
    rows.change(None) | server.aggregator.table().change << 40
}

/// Whether the group exists.
fn is_group(server: &Server, rows: &Rows, name: &str) -> bool {
    let is = || {
        let mut others = Vec::new();
        server.aggregator.table().add_groups(&mut others);
        others.iter().any(|g| g["name"] == name)
    };
    rows.iter().any(|r| *r.kind.group == *name) || is()
}

/// A document in the encoding that the client accepts. There are only objects.
fn encoded(parts: &Parts, offer: &Offer, document: Document) -> Result<Response<Body>, Status> {
    let negotiated = Negotiated::negotiate_offer(&parts.headers, offer)?;
    if negotiated.encoding == Encoding::Json {
        return Ok(bytes(200, "application/json", Body::Full(document.text)));
    }
    let value: Value = serde_json::from_slice(&document.text).map_err(Status::internal)?;
    let (media, body) = content::write(&negotiated, &value);
    Ok(bytes(200, media, body))
}

/// Whether aggregated discovery is preferred to its legacy form.
fn accepts_aggregated(accept: &str) -> bool {
    let parameters = ["as=APIGroupDiscoveryList", "g=apidiscovery.k8s.io", "v=v2"];
    accept.split(',').any(|clause| parameters.iter().all(|p| clause.split(';').any(|c| c.trim() == *p)))
}

fn core_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}]})
}

/// Group names in discovery order, with their versions: built-in groups as described, then custom ones by name, their
/// versions by stability.
fn grouped(rows: &Rows) -> Vec<(String, Vec<String>)> {
    let mut own: Vec<(String, Vec<String>)> = Vec::new();
    let mut custom: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for r in rows.iter() {
        let (g, v) = (&*r.kind.group, &*r.kind.version);
        let versions = match own.iter_mut().find(|(n, _)| n == g) {
            Some((_, versions)) => versions,
            None if r.bare_items => {
                own.push((g.to_owned(), Vec::new()));
                match own.last_mut() {
                    Some((_, versions)) => versions,
                    None => continue,
                }
            }
            None => custom.entry(g).or_default(),
        };
        if !versions.iter().any(|x| x == v) {
            versions.push(v.to_owned());
        }
    }
    for (g, mut versions) in custom {
        versions.sort_by_key(|v| priority(v));
        own.push((g.to_owned(), versions));
    }
    own
}

/// Orders `v2`, `v1`, `v1beta2`, `v1alpha1`, then other names alphabetically (`k8s.io/apimachinery/pkg/version`).
fn priority(v: &str) -> (u8, Reverse<u64>, Reverse<u64>, String) {
    let parse = || {
        let rest = v.strip_prefix('v')?;
        let split = |s: &str, by: &str| s.split_once(by).map(|(a, b)| (a.to_owned(), b.to_owned()));
        let (class, major, minor) = match (split(rest, "alpha"), split(rest, "beta")) {
            (Some((a, b)), _) => (2, a, b),
            (None, Some((a, b))) => (1, a, b),
            (None, None) => (0, rest.to_owned(), "0".to_owned()),
        };
        Some((class, Reverse(major.parse().ok()?), Reverse(minor.parse().ok()?), String::new()))
    };
    parse().unwrap_or((3, Reverse(0), Reverse(0), v.to_owned()))
}

fn group_list(server: &Server, rows: &Rows) -> Vec<Value> {
    let mut list: Vec<Value> = grouped(rows)
        .into_iter()
        .filter(|(g, _)| !g.is_empty())
        .map(|(g, versions)| {
            let versions: Vec<Value> =
                versions.iter().map(|v| json!({"groupVersion": format!("{g}/{v}"), "version": v})).collect();
            json!({"name": g, "versions": versions, "preferredVersion": versions[0]})
        })
        .collect();
    server.aggregator.table().add_groups(&mut list);
    list
}

fn groups(server: &Server, rows: &Rows) -> Value {
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": group_list(server, rows)})
}

pub(crate) fn paths(server: &Server, rows: &Rows) -> Value {
    let mut paths = vec!["/api".to_owned(), "/api/v1".into(), "/apis".into()];
    for g in group_list(server, rows) {
        paths.push(format!("/apis/{}", g["name"].as_str().unwrap_or_default()));
        let versions = g["versions"].as_array().into_iter().flatten().filter_map(|v| v["groupVersion"].as_str());
        paths.extend(versions.map(|gv| format!("/apis/{gv}")));
    }
    paths.extend(
        ["/flagz", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/statusz", "/version"]
            .map(str::to_owned),
    );
    paths.sort();
    json!({"paths": paths})
}

fn resources(gv: &str, rows: &[&Arc<Resource>]) -> Value {
    let mut list = Vec::new();
    for r in rows {
        let k = &r.kind;
        let mut v = json!({"name": &*k.plural, "singularName": &*k.singular, "namespaced": k.namespaced,
            "kind": &*k.kind, "verbs": strings(&k.verbs)});
        if !k.short_names.is_empty() {
            v["shortNames"] = strings(&k.short_names);
        }
        if !k.categories.is_empty() {
            v["categories"] = strings(&k.categories);
        }
        if r.stored().is_some() {
            v["storageVersionHash"] = storage_hash(r).into();
        }
        list.push(v);
        for s in &k.subresources {
            let mut v = json!({"name": format!("{}/{}", k.plural, s.name), "singularName": "", "namespaced": k.namespaced,
                "kind": s.speaks.as_ref().map_or(&*k.kind, |g| &g.kind), "verbs": strings(&s.verbs)});
            if let Some(g) = s.speaks.as_ref().filter(|g| g.api_version() != gv) {
                v["group"] = g.group.clone().into();
                v["version"] = g.version.clone().into();
            }
            list.push(v);
        }
    }
    list.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    let mut all = json!({"kind": "APIResourceList", "groupVersion": gv, "resources": list});
    // The core group has no `group` field.
    if gv.contains('/') {
        all["apiVersion"] = "v1".into();
    }
    all
}

fn strings(list: &[schema::Str]) -> Value {
    list.iter().map(|s| Value::from(&**s)).collect()
}

/// The storage version hash, a short hash as published by upstream.
fn storage_hash(r: &Resource) -> String {
    let text = r.stored().map(|(_, v)| format!("{}/{}/{}", v.group, v.version, v.kind)).unwrap_or_default();
    let hash = digest(&SHA256, text.as_bytes());
    base64::engine::general_purpose::STANDARD.encode(&hash.as_ref()[..8])
}

fn aggregated(server: &Server, parts: &Parts, rows: &Rows, core: bool) -> Response<Body> {
    let key = format!("{} aggregated", if core { "/api" } else { "/apis" });
    let make = || order::json(&group_discovery(server, rows, core), false).into();
    let document = server.documents.get(&key, change(server, rows), make);
    let etag = format!("\"{}\"", document.hash.to_lowercase());
    let same = parts.headers.get(IF_NONE_MATCH).is_some_and(|t| t.as_bytes() == etag.as_bytes());
    let media = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let mut r =
        bytes(if same { 304 } else { 200 }, media, if same { Body::empty() } else { Body::Full(document.text) });
    if let Ok(t) = HeaderValue::from_str(&etag) {
        r.headers_mut().insert(ETAG, t);
    }
    r.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    r
}

fn group_discovery(server: &Server, rows: &Rows, core: bool) -> Value {
    let mut items: Vec<Value> = grouped(rows)
        .into_iter()
        .filter(|(g, _)| g.is_empty() == core)
        .map(|(g, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|v| {
                    let list = rows.iter().filter(|r| *r.kind.group == *g && *r.kind.version == **v);
                    let mut list: Vec<Value> = list.map(|r| described(r)).collect();
                    list.sort_by(|a, b| a["resource"].as_str().cmp(&b["resource"].as_str()));
                    json!({"version": v, "resources": list, "freshness": "Current"})
                })
                .collect();
            let metadata = if g.is_empty() { json!({}) } else { json!({"name": g}) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    if !core {
        server.aggregator.table().add_aggregated(&mut items);
    }
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {}, "items": items})
}

fn described(r: &Resource) -> Value {
    let k = &r.kind;
    let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let mut v = json!({"resource": &*k.plural, "responseKind": kind("", "", &k.kind),
        "scope": if k.namespaced { "Namespaced" } else { "Cluster" }, "singularResource": &*k.singular,
        "verbs": strings(&k.verbs)});
    if !r.bare_items {
        v["responseKind"] = kind(&k.group, &k.version, &k.kind);
    }
    if !k.short_names.is_empty() {
        v["shortNames"] = strings(&k.short_names);
    }
    if !k.categories.is_empty() {
        v["categories"] = strings(&k.categories);
    }
    let subs: Vec<Value> = k
        .subresources
        .iter()
        .map(|s| {
            let speaks = match &s.speaks {
                // Kinds of the core group omit the version, as upstream does.
                Some(g) if g.group.is_empty() => kind("", "", &g.kind),
                Some(g) => kind(&g.group, &g.version, &g.kind),
                None if r.bare_items => kind("", "", &k.kind),
                None => kind(&k.group, &k.version, &k.kind),
            };
            json!({"subresource": &*s.name, "responseKind": speaks, "verbs": strings(&s.verbs)})
        })
        .collect();
    if !subs.is_empty() {
        v["subresources"] = subs.into();
    }
    v
}
