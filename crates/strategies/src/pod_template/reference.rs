//! Image references (the grammar of `distribution/reference`), as far as defaults depend on them.

use regex::Regex;
use std::sync::LazyLock;

/// Captures domain, path, tag and digest.
static REFERENCE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let part = "[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*";
    let host = "(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])";
    let domain = format!(r"(?:{host}(?:\.{host})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?");
    let name = format!("(?:{domain}/)?{part}(?:/{part})*");
    let digest = "[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}";
    Regex::new(&format!("^{name}(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@{digest})?$")).ok()
});

/// Maximum length of a repository name.
const NAME_MAX: usize = 255;

/// Returns the default pull policy: `Always` for the tag `latest` or no tag, otherwise (also for an invalid reference)
/// `IfNotPresent`.
pub fn pull_policy(image: &str) -> &'static str {
    if is_latest(image) { "Always" } else { "IfNotPresent" }
}

fn is_latest(image: &str) -> bool {
    // A match test without captures is linear; the parts follow from `@`, `/` and `:`.
    if !REFERENCE.as_ref().is_some_and(|r| r.is_match(image)) {
        return false;
    }
    let (named, digest) = image.split_once('@').map_or((image, false), |(n, _)| (n, true));
    let last = named.rfind('/').map_or(0, |i| i + 1);
    let (name, tag) = match named[last..].find(':') {
        Some(i) => (&named[..last + i], Some(&named[last + i + 1..])),
        None => (named, None),
    };
    let is_id = name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit());
    // Without a registry, the first part belongs to the path, which is lower case.
    let path = match name.split_once('/') {
        Some((first, path))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.contains(|c: char| c.is_ascii_uppercase()) =>
        {
            path
        }
        _ => name,
    };
    let is_name = name.len() <= NAME_MAX && !is_id && !path.contains(|c: char| c.is_ascii_uppercase());
    is_name && tag.map_or(!digest, |t| t == "latest")
}

#[cfg(test)]
mod tests {
    use super::pull_policy;

    #[test]
    fn pulls_latest_always() {
        for image in ["nginx", "nginx:latest", "r.example.com:5000/a/b", "localhost/x:latest", "a/b:latest@sha256:LONG"]
        {
            let image = &image.replace("LONG", &"a".repeat(64));
            assert_eq!(pull_policy(image), "Always", "{image}");
        }
        let digest = format!("nginx@sha256:{}", "a".repeat(64));
        for image in ["nginx:1.25", "-x", "UPPER", "a b", digest.as_str(), &"a".repeat(300), "r.example.com:5000/a:1"] {
            assert_eq!(pull_policy(image), "IfNotPresent", "{image}");
        }
    }
}
