//! Image references (the grammar of `distribution/reference`), as far as defaults depend on them.

use regex::Regex;
use std::sync::LazyLock;

/// Domain, path, tag and digest.
static REFERENCE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let part = "[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*";
    let host = "(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])";
    let domain = format!(r"(?:{host}(?:\.{host})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?");
    let name = format!("(?:{domain}/)?{part}(?:/{part})*");
    let digest = "[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}";
    Regex::new(&format!(r"^({name})(?::([A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}))?(?:@({digest}))?$")).ok()
});

/// The longest name that is one.
const NAME_MAX: usize = 255;

/// `Always` for the tag `latest` or none, else `IfNotPresent`, also for what is no reference.
pub fn pull_policy(image: &str) -> &'static str {
    let latest = REFERENCE.as_ref().and_then(|r| r.captures(image)).is_some_and(|c| {
        let name = c.get(1).map_or("", |m| m.as_str());
        let is_id = name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit());
        // Without a registry, the first part belongs to the path, which has no capitals.
        let first = name.split('/').next().unwrap_or_default();
        let registry = name.contains('/')
            && (first.contains(['.', ':']) || first == "localhost" || first.chars().any(|c| c.is_ascii_uppercase()));
        let path = if registry { name.split_once('/').map_or("", |(_, p)| p) } else { name };
        let named = name.len() <= NAME_MAX && !is_id && !path.bytes().any(|b| b.is_ascii_uppercase());
        named
            && match (c.get(2), c.get(3)) {
                (Some(tag), _) => tag.as_str() == "latest",
                (None, digest) => digest.is_none(),
            }
    });
    if latest { "Always" } else { "IfNotPresent" }
}

#[cfg(test)]
mod tests {
    use super::pull_policy;

    #[test]
    fn only_the_latest_is_pulled_each_time() {
        for image in ["nginx", "nginx:latest", "r.example.com:5000/a/b", "localhost/x:latest"] {
            assert_eq!(pull_policy(image), "Always", "{image}");
        }
        let digest = format!("nginx@sha256:{}", "a".repeat(64));
        for image in ["nginx:1.25", "-x", "UPPER", "a b", digest.as_str(), &"a".repeat(300), "r.example.com:5000/a:1"] {
            assert_eq!(pull_policy(image), "IfNotPresent", "{image}");
        }
    }
}
