//! Rewrites links of proxied pages to lead through the proxy (`k8s.io/apimachinery/pkg/util/proxy/transport.go`).

/// The backend of a page, and the proxy path that serves it.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The dialled `host:port`.
    pub dialled: String,
    /// The host of the client's request.
    pub requested_host: String,
    /// `/api/v1/namespaces/NS/services/NAME/proxy`.
    pub root: String,
}

impl Origin {
    /// Rewrites a link. Leaves links to other hosts, relative ones, and those that lead through the proxy already.
    pub fn rewrite(&self, link: &str) -> String {
        let Some(parts) = split(link) else { return link.to_owned() };
        let own = parts.host.is_empty() || parts.host == self.dialled || parts.host == self.requested_host;
        if !own || !parts.path.starts_with('/') {
            return link.to_owned();
        }
        if parts.path.starts_with(&self.root) {
            return format!("{}{}", parts.path, parts.rest);
        }
        let mut path = join(&self.root, parts.path);
        if parts.path.ends_with('/') && !path.ends_with('/') {
            path.push('/');
        }
        path + parts.rest
    }
}

struct Parts<'a> {
    host: &'a str,
    path: &'a str,
    /// Query and fragment.
    rest: &'a str,
}

/// Splits a URL; none if it has a scheme but no host: `mailto:`, `javascript:`, `data:`.
fn split(link: &str) -> Option<Parts<'_>> {
    let before_path = link.find(['/', '?', '#']).unwrap_or(link.len());
    let mut rest = link;
    if let Some(colon) = link[..before_path].find(':') {
        let scheme = &link[..colon];
        let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
        rest = &link[colon + 1..];
        if !is_scheme || !rest.starts_with("//") {
            return None;
        }
    }
    let mut host = "";
    if let Some(after) = rest.strip_prefix("//") {
        let end = after.find(['/', '?', '#']).unwrap_or(after.len());
        (host, rest) = after.split_at(end);
        host = host.rsplit('@').next().unwrap_or(host);
    }
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    let (path, rest) = rest.split_at(end);
    Some(Parts { host, path, rest })
}

/// Joins and cleans paths as Go's `path.Join`.
pub fn join(root: &str, path: &str) -> String {
    let mut out: Vec<&str> = Vec::new();
    for part in root.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(out.pop()),
            part => out.push(part),
        }
    }
    format!("/{}", out.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_through_the_proxy() {
        let root = "/api/v1/namespaces/ns/services/s/proxy";
        let origin =
            Origin { dialled: "10.0.0.7:80".into(), requested_host: "api.example:6443".into(), root: root.into() };
        for (link, expected) in [
            ("/", "R/"),
            ("/a/b", "R/a/b"),
            ("/a/b/", "R/a/b/"),
            ("/a/../b?x=/y#z", "R/b?x=/y#z"),
            ("/../../../../etc", "/api/v1/namespaces/etc"),
            ("a/b", "a/b"),
            ("?x", "?x"),
            ("#top", "#top"),
            ("", ""),
            ("http://10.0.0.7:80/a", "R/a"),
            ("https://api.example:6443/a", "R/a"),
            ("//10.0.0.7:80/a", "R/a"),
            ("http://10.0.0.7:80", "http://10.0.0.7:80"),
            ("http://10.0.0.7:81/a", "http://10.0.0.7:81/a"),
            ("https://elsewhere.example/a", "https://elsewhere.example/a"),
            ("//elsewhere.example/a", "//elsewhere.example/a"),
            ("R/a", "R/a"),
            ("http://10.0.0.7:80R/a", "R/a"),
            ("mailto:a@b", "mailto:a@b"),
            ("javascript:go('/a')", "javascript:go('/a')"),
        ] {
            assert_eq!(origin.rewrite(&link.replace('R', root)), expected.replace('R', root), "{link}");
        }
    }
}
