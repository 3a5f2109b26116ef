//! Image names as Docker and Kubernetes read them.

use super::{Error, Result};

/// Returns the full name: registry, path, and tag or digest. `busybox` is `docker.io/library/busybox:latest`.
pub fn normalize(name: &str) -> Result<String> {
    let error = |message: &str| Error::Name { name: name.to_owned(), message: message.to_owned() };
    if name.len() == 64 && name.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        let message = format!("invalid repository name ({name}), cannot specify 64-byte hexadecimal strings");
        return Err(error(&message));
    }
    let (rest, digest) = match name.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (name, None),
    };
    // A colon after the last slash begins a tag; one before it is a port.
    let (path, tag) = match rest.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
        _ => (rest, None),
    };
    if path.is_empty() {
        return Err(error("invalid reference format"));
    }
    let (registry, path) = match path.split_once('/') {
        Some((first, rest)) if is_registry(first) => (first, rest.to_owned()),
        _ => ("docker.io", path.to_owned()),
    };
    let registry = if registry == "index.docker.io" { "docker.io" } else { registry };
    let path = if registry == "docker.io" && !path.contains('/') { format!("library/{path}") } else { path };
    if path.chars().any(|c| c.is_ascii_uppercase()) {
        return Err(error(&format!("invalid reference format: repository name ({path}) must be lowercase")));
    }
    let part_ok = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && part.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c))
    };
    if !path.split('/').all(part_ok) {
        return Err(error("invalid reference format"));
    }
    if !registry_ok(registry) {
        return Err(error("invalid reference format"));
    }
    let tag_ok = |tag: &str| {
        (1..=128).contains(&tag.len())
            && !tag.starts_with(['.', '-'])
            && tag.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    if !tag.is_none_or(tag_ok) {
        return Err(error("invalid reference format"));
    }
    match digest {
        Some(digest) => {
            let hex = digest.strip_prefix("sha256:").unwrap_or_default();
            if hex.len() != 64 || !hex.chars().all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase()) {
                return Err(error("invalid reference format"));
            }
            Ok(format!("{registry}/{path}@{digest}"))
        }
        None => Ok(format!("{registry}/{path}:{}", tag.unwrap_or("latest"))),
    }
}

/// Whether the first part of a name is a registry, and not of the path.
fn is_registry(part: &str) -> bool {
    part.contains(['.', ':']) || part == "localhost" || part.chars().any(|c| c.is_ascii_uppercase())
}

/// Whether it is a host name or address, with or without a port.
fn registry_ok(registry: &str) -> bool {
    let (host, port) = match registry.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((address, rest))) if address.parse::<std::net::Ipv6Addr>().is_ok() => match rest.strip_prefix(':') {
            Some(port) => (None, Some(port)),
            None if rest.is_empty() => (None, None),
            None => return false,
        },
        Some(_) => return false,
        None => registry.split_once(':').map_or((Some(registry), None), |(host, port)| (Some(host), Some(port))),
    };
    let label_ok = |label: &str| {
        let is_inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
        !label.is_empty() && label.chars().all(is_inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    host.is_none_or(|host| host.split('.').all(label_ok))
        && port.is_none_or(|port| !port.is_empty() && port.parse::<u16>().is_ok())
}

/// A full name without its tag or digest.
pub(super) fn repository(full: &str) -> &str {
    match full.split_once('@') {
        Some((repository, _)) => repository,
        None => full.rsplit_once(':').map_or(full, |(repository, _)| repository),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_full() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        for (name, expect) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("me/app", "docker.io/me/app:latest"),
            ("localhost/app", "localhost/app:latest"),
            ("localhost:5000/app", "localhost:5000/app:latest"),
            ("registry.k8s.io/e2e/agnhost:2.53", "registry.k8s.io/e2e/agnhost:2.53"),
            ("index.docker.io/library/a", "docker.io/library/a:latest"),
        ] {
            assert_eq!(normalize(name).unwrap(), expect, "{name}");
        }
        assert_eq!(normalize(&format!("a:1@{digest}")).unwrap(), format!("docker.io/library/a@{digest}"));
        assert_eq!(normalize("[::1]:5000/a:1").unwrap(), "[::1]:5000/a:1");
        for name in [
            "",
            "a b",
            "a:",
            "a/:tag",
            "a@sha256:12",
            "a//b",
            "a.b?c/d",
            "a.b#c/d",
            "a.b%41/d",
            "-a.b/d",
            "a..b/d",
            "a.b:/d",
            "a.b:x/d",
            "a.b:99999/d",
            "[::1/d",
            "[x]:1/d",
            "[::1]5/d",
            "a\u{1}.b/d",
            "u:p@a.b/d",
        ] {
            let error = normalize(name).unwrap_err().to_string();
            assert!(error.ends_with(": invalid reference format"), "{name}: {error}");
        }
        assert_eq!(normalize("Host/a").unwrap(), "Host/a:latest");
        let hex = normalize(&"0a".repeat(32)).unwrap_err().to_string();
        assert!(hex.ends_with("cannot specify 64-byte hexadecimal strings"), "{hex}");
        let upper = normalize("me/Busybox").unwrap_err().to_string();
        assert!(upper.ends_with("invalid reference format: repository name (me/Busybox) must be lowercase"), "{upper}");
    }
}
