//! For which images a pod needs credentials although they are present (`imagePullCredentialsVerificationPolicy`,
//! upstream `images/pullmanager/image_pull_policies.go`). Pure.

use distribution::Reference;

pub const POLICIES: [&str; 4] =
    ["NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify"];

/// The registry of images that are part of Kemudi, which nobody can pull.
const BUILT_IN: &str = "kemudi.local/";

/// Which images are verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    Never,
    /// Those that the node pulled for a pod.
    #[default]
    Pulled,
    /// All but those of a list.
    NotListed(Vec<Pattern>),
    Always,
}

/// A repository, or the start of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    Repository(String),
    /// Ends with a slash.
    Prefix(String),
}

impl Verification {
    /// Reads the fields of a configuration. Errors with upstream's message about a pattern.
    pub fn read(policy: &str, allowlist: &[String]) -> Result<Self, String> {
        Ok(match policy {
            "NeverVerify" => Self::Never,
            "AlwaysVerify" => Self::Always,
            "NeverVerifyAllowlistedImages" => {
                Self::NotListed(allowlist.iter().map(|p| Pattern::read(p)).collect::<Result<_, _>>()?)
            }
            _ => Self::Pulled,
        })
    }

    /// Whether a pod needs credentials for an image that is present. `pulled`: the node pulled it for a pod.
    pub fn is_needed(&self, image: &str, pulled: bool) -> bool {
        match self {
            _ if image.starts_with(BUILT_IN) => false,
            Self::Never => false,
            Self::Pulled => pulled,
            Self::NotListed(patterns) => {
                let repository = without_tag(image);
                !patterns.iter().any(|p| p.matches(repository))
            }
            Self::Always => true,
        }
    }
}

impl Pattern {
    fn read(pattern: &str) -> Result<Self, String> {
        if pattern != pattern.trim() {
            return Err(format!("leading/trailing spaces are not allowed: {pattern}"));
        }
        let prefix = pattern.strip_suffix('*').filter(|p| p.ends_with('/'));
        let text = prefix.unwrap_or(pattern);
        if text.is_empty() {
            return Err(format!("the supplied pattern is too short: {pattern}"));
        }
        if text.contains('*') {
            let why = "not a valid wildcard pattern, only patterns ending with '/*' are allowed";
            return Err(format!("{why}: {pattern}"));
        }
        if prefix.is_some() {
            return match text {
                "/" => Err("at least registry hostname is required".into()),
                text => Ok(Self::Prefix(text.to_owned())),
            };
        }
        Reference::parse(text).map_err(|e| format!("failed to parse as an image name: {e}"))?;
        if without_tag(text) != text {
            return Err(format!("neither tag nor digest is accepted in an image reference: {pattern}"));
        }
        Ok(Self::Repository(text.to_owned()))
    }

    fn matches(&self, repository: &str) -> bool {
        match self {
            Self::Repository(r) => r == repository,
            Self::Prefix(prefix) => repository.starts_with(prefix),
        }
    }
}

/// An image without its tag and digest.
fn without_tag(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or(image);
    match name.rsplit_once(':') {
        // The colon of a port has a path behind it.
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_decide_by_origin_and_name() {
        let list = ["quay.io/team/app".to_owned(), "r.example:5000/base/*".into()];
        let check = |policy: &str, image: &str, pulled, expect| {
            let v = Verification::read(policy, &list).unwrap();
            assert_eq!(v.is_needed(image, pulled), expect, "{policy} {image}");
        };
        check("NeverVerify", "quay.io/x:1", true, false);
        check("", "quay.io/x:1", true, true);
        check("NeverVerifyPreloadedImages", "quay.io/x:1", false, false);
        check("AlwaysVerify", "quay.io/x:1", false, true);
        check("AlwaysVerify", "kemudi.local/demo", false, false);
        for (image, expect) in [
            ("quay.io/team/app:1", false),
            ("quay.io/team/app@sha256:00", false),
            ("quay.io/team/application", true),
            ("r.example:5000/base/x/y:2", false),
            ("r.example:5000/other", true),
        ] {
            check("NeverVerifyAllowlistedImages", image, true, expect);
        }
    }

    #[test]
    fn wrong_patterns_are_refused() {
        for (pattern, expect) in [
            (" quay.io/x", "leading/trailing spaces are not allowed:  quay.io/x"),
            ("", "the supplied pattern is too short: "),
            ("/*", "at least registry hostname is required"),
            ("quay.io/*/x", "not a valid wildcard pattern, only patterns ending with '/*' are allowed: quay.io/*/x"),
            ("quay.io/x:1", "neither tag nor digest is accepted in an image reference: quay.io/x:1"),
        ] {
            let read = Verification::read("NeverVerifyAllowlistedImages", &[pattern.to_owned()]);
            assert_eq!(read.unwrap_err(), expect);
        }
    }
}
