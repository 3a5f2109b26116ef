//! `/healthz`, `/livez`, `/readyz`, `/version`, `/metrics`, `/metrics/slis`.

use crate::Server;
use crate::answer::{bytes, method_not_allowed};
use crate::body::Body;
use crate::path::Query;
use crate::{content, order};
use http::request::Parts;
use http::{Method, Response};
use meta::Status;
use parking_lot::Mutex;
use serde_json::json;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Named conditions for readiness.
#[derive(Default)]
pub struct Readiness {
    checks: Mutex<BTreeMap<&'static str, bool>>,
}

impl Readiness {
    /// Sets whether a condition holds. A condition that was ever set must hold.
    pub fn set(&self, name: &'static str, holds: bool) {
        self.checks.lock().insert(name, holds);
    }

    fn snapshot(&self) -> BTreeMap<&'static str, bool> {
        self.checks.lock().clone()
    }

    pub fn is_ready(&self) -> bool {
        self.checks.lock().values().all(|v| *v)
    }
}

/// The completed startup steps, by upstream's post-start hooks. Health checks list them.
#[derive(Default)]
pub struct StartSteps {
    complete: Mutex<Vec<&'static str>>,
}

impl StartSteps {
    /// Records completed steps.
    pub fn complete(&self, names: &[&'static str]) {
        self.complete.lock().extend(names);
    }
}

/// The Kubernetes version of this server.
pub const VERSION: &str = meta::KUBERNETES_VERSION;

/// As named by Go.
pub const ARCHITECTURE: &str = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };

pub(crate) fn answer(server: &Server, parts: &Parts) -> Option<Result<Response<Body>, Status>> {
    let path = parts.uri.path();
    let (root, check) = match path[1.min(path.len())..].split_once('/') {
        Some((r, c)) => (r, Some(c)),
        None => (&path[1.min(path.len())..], None),
    };
    match root {
        "healthz" | "livez" | "readyz" => Some(health(server, parts, root, check)),
        "version" if check.is_none_or(str::is_empty) => Some(version(parts)),
        "metrics" if check == Some("slis") => {
            for root in ["healthz", "livez", "readyz"] {
                for (name, holds) in checks(server, root) {
                    server.metrics.health.set(&name, root, holds);
                }
            }
            Some(Ok(bytes(200, "text/plain; version=0.0.4; charset=utf-8", server.metrics.health.text())))
        }
        "metrics" if check.is_none() => {
            Some(Ok(bytes(200, "text/plain; version=0.0.4; charset=utf-8", server.metrics.text(server))))
        }
        _ => None,
    }
}

/// The checks of `/healthz`, `/livez` or `/readyz`, in upstream's order. `/healthz` adds one per supervised service of this process; the other
/// two concern the API server alone, and whoever restarts or avoids it because of them.
fn checks(server: &Server, root: &str) -> Vec<(Cow<'static, str>, bool)> {
    // The store is called `etcd` for compatibility.
    let mut checks = vec![("ping", true), ("log", true), ("etcd", server.registry.store.is_healthy())];
    if root == "readyz" {
        checks.extend(server.readiness.snapshot());
    }
    checks.extend(server.start_steps.complete.lock().iter().map(|name| (*name, true)));
    if root == "readyz" {
        checks.push(("shutdown", server.lifecycle.is_ready()));
    }
    let mut checks: Vec<_> = checks.into_iter().map(|(name, holds)| (Cow::Borrowed(name), holds)).collect();
    if root == "healthz" {
        let services = server.registry.supervisor.statuses();
        checks.extend(services.iter().map(|s| (format!("service/{}/{}", s.component, s.name).into(), s.is_healthy())));
    }
    checks
}

fn health(server: &Server, parts: &Parts, root: &str, check: Option<&str>) -> Result<Response<Body>, Status> {
    let query = Query::parse(parts.uri.query());
    let excluded: Vec<&str> = query.all("exclude").collect();
    let checks = checks(server, root);
    for (name, holds) in &checks {
        server.metrics.health.count(name, root, *holds);
    }
    if let Some(name) = check {
        return match checks.iter().find(|(n, _)| *n == name) {
            Some((_, true)) => Ok(bytes(200, "text/plain; charset=utf-8", "ok".to_owned())),
            Some((_, false)) => {
                Ok(bytes(500, "text/plain; charset=utf-8", format!("internal server error: {name} is not ready\n")))
            }
            None => Err(Status::no_such_path()),
        };
    }
    let unknown: Vec<&str> = excluded.iter().copied().filter(|e| !checks.iter().any(|(n, _)| n == e)).collect();
    let failed = checks.iter().any(|(n, ok)| !ok && !excluded.contains(&&**n));
    let mut text = String::new();
    if failed || query.has("verbose") {
        for (n, ok) in &checks {
            text += &match ok {
                _ if excluded.contains(&&**n) => format!("[+]{n} excluded: ok\n"),
                true => format!("[+]{n} ok\n"),
                false => format!("[-]{n} failed: reason withheld\n"),
            };
        }
        if !unknown.is_empty() {
            let names: Vec<String> = unknown.iter().map(|n| format!("{n:?}")).collect();
            text += &format!("warn: some health checks cannot be excluded: no matches for {}\n", names.join(","));
        }
        text += &format!("{root} check {}\n", if failed { "failed" } else { "passed" });
    } else {
        text += "ok";
    }
    Ok(bytes(if failed { 500 } else { 200 }, "text/plain; charset=utf-8", text))
}

fn version(parts: &Parts) -> Result<Response<Body>, Status> {
    if parts.method != Method::GET {
        return Err(method_not_allowed());
    }
    content::check_route(&parts.headers, &["application/json"])?;
    let v = json!({"major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "36", "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35", "gitVersion": VERSION, "gitCommit": env!("CARGO_PKG_VERSION"), "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, ARCHITECTURE)});
    Ok(bytes(200, "application/json", order::json_as(&v, "io.k8s.apimachinery.pkg.version.Info")))
}
