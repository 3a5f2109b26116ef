//! The target of a request. One parse of the path serves authorization and dispatch.

use http::Method;
use percent_encoding::percent_decode_str;

/// The decoded segments of a path.
pub(super) struct Target(Vec<String>);

impl Target {
    pub fn parse(path: &str) -> Self {
        Self(
            path.trim_matches('/').split('/').map(|s| percent_decode_str(s).decode_utf8_lossy().into_owned()).collect(),
        )
    }

    pub fn segments(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }

    fn first(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    /// The subresources of the node, one of which must allow the request, in order (`pkg/kubelet/server/auth.go` with
    /// `KubeletFineGrainedAuthz`).
    pub fn subresources(&self) -> &'static [&'static str] {
        match self.first() {
            "stats" => &["stats"],
            "metrics" => &["metrics"],
            "logs" => &["log"],
            "checkpoint" => &["checkpoint"],
            "pods" | "runningpods" => &["pods", "proxy"],
            "healthz" => &["healthz", "proxy"],
            "configz" => &["configz", "proxy"],
            "statusz" => &["statusz", "proxy"],
            _ => &["proxy"],
        }
    }

    /// The label of the path in metrics, and whether its requests are long-running.
    pub fn bucket(&self) -> (&'static str, bool) {
        let second = self.0.get(1).map_or("", String::as_str);
        match (self.first(), second) {
            ("metrics", "cadvisor") => ("metrics/cadvisor", false),
            ("metrics", "probes") => ("metrics/probes", false),
            ("metrics", "resource") => ("metrics/resource", false),
            (first, _) => {
                let known =
                    ["attach", "exec", "configz", "containerLogs", "debug", "healthz", "logs", "metrics", "pods"];
                let more = ["portForward", "run", "runningpods", "stats"];
                let found = known.iter().chain(&more).find(|k| **k == first).map_or("other", |k| *k);
                (found, matches!(found, "attach" | "exec" | "debug"))
            }
        }
    }
}

/// The verb of a method; empty for methods that are never allowed.
pub(super) fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::GET => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_its_subresources() {
        for (path, expected) in [
            ("/healthz", &["healthz", "proxy"][..]),
            ("/healthz/ping", &["healthz", "proxy"]),
            ("/healthzx", &["proxy"]),
            ("/pods", &["pods", "proxy"]),
            ("/runningpods/", &["pods", "proxy"]),
            ("/configz", &["configz", "proxy"]),
            ("/stats/summary", &["stats"]),
            ("/stats", &["stats"]),
            ("/metrics", &["metrics"]),
            ("/metrics/cadvisor", &["metrics"]),
            ("//metrics/cadvisor", &["metrics"]),
            ("/logs/", &["log"]),
            ("/logs/a/b", &["log"]),
            ("/checkpoint/ns/pod/c", &["checkpoint"]),
            ("/exec/ns/pod/c", &["proxy"]),
            ("/run/ns/pod/c", &["proxy"]),
            ("/attach/ns/pod/c", &["proxy"]),
            ("/portForward/ns/pod", &["proxy"]),
            ("/containerLogs/ns/pod/c", &["proxy"]),
            ("/debug/pprof/", &["proxy"]),
            ("/", &["proxy"]),
            ("", &["proxy"]),
        ] {
            assert_eq!(Target::parse(path).subresources(), expected, "{path}");
        }
    }

    /// Dispatch uses the same parsed path as authorization, however the path is written.
    #[test]
    fn a_path_is_read_once() {
        for path in ["/stats/../exec/a/b/c", "/stats%2f..%2fexec/a/b/c", "/%73tats/summary", "/./stats", "/stats;/x"] {
            let target = Target::parse(path);
            let stats = target.segments().first() == Some(&"stats");
            assert_eq!(target.subresources() == ["stats"], stats, "{path}");
        }
    }

    #[test]
    fn verbs_come_from_methods() {
        let verbs =
            [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD].map(|m| verb(&m));
        assert_eq!(verbs, ["get", "create", "update", "patch", "delete", ""]);
    }
}
