//! Image names as Docker and Kubernetes read them.

use super::{Error, Result};

/// Returns the full name: registry, path, and tag or digest. `busybox` is `docker.io/library/busybox:latest`.
pub fn normalize(name: &str) -> Result<String> {
    let error = |message| Error::Name { name: name.to_owned(), message };
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
        return Err(error("the name is empty"));
    }
    let (registry, path) = match path.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest.to_owned()),
        _ => ("docker.io", path.to_owned()),
    };
    let registry = if registry == "index.docker.io" { "docker.io" } else { registry };
    let path = if registry == "docker.io" && !path.contains('/') { format!("library/{path}") } else { path };
    let part_ok = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && part.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c))
    };
    if !path.split('/').all(part_ok) {
        let upper = path.chars().any(|c| c.is_ascii_uppercase());
        return Err(error(if upper { "repository name must be lowercase" } else { "invalid reference format" }));
    }
    let tag_ok = |tag: &str| {
        (1..=128).contains(&tag.len())
            && !tag.starts_with(['.', '-'])
            && tag.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    if !tag.is_none_or(tag_ok) {
        return Err(error("invalid tag"));
    }
    match digest {
        Some(digest) => {
            let hex = digest.strip_prefix("sha256:").unwrap_or_default();
            if hex.len() != 64 || !hex.chars().all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase()) {
                return Err(error("invalid digest"));
            }
            Ok(format!("{registry}/{path}@{digest}"))
        }
        None => Ok(format!("{registry}/{path}:{}", tag.unwrap_or("latest"))),
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
        for (name, message) in [
            ("", "empty"),
            ("Busybox", "lowercase"),
            ("a b", "invalid reference"),
            ("a:", "tag"),
            ("a/:tag", "invalid reference"),
            ("a@sha256:12", "digest"),
            ("a//b", "invalid reference"),
        ] {
            assert!(normalize(name).unwrap_err().to_string().contains(message), "{name}");
        }
    }
}
