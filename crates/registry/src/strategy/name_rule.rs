//! Validation rules for names of objects.

use meta::names;

/// The validation rule for names of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    DnsSubdomain,
    DnsLabel,
    Dns1035Label,
    /// A subdomain whose length limit is reported in bytes: the rule `k8s-long-name` of generated validation.
    LongName,
    /// One segment of a path.
    PathSegment,
    /// An IP address in its canonical form.
    IpAddress,
    /// No rule of the kind: the name is a [`Self::PathSegment`], as all names, which is validated once the object has no other errors.
    Unchecked,
}

impl NameRule {
    pub fn check(self, name: &str) -> Vec<String> {
        match self {
            Self::DnsSubdomain => names::dns_subdomain(name),
            Self::LongName => names::long_name(name),
            Self::DnsLabel => names::dns_label(name),
            Self::Dns1035Label => names::dns_1035_label(name),
            Self::PathSegment => names::path_segment(name),
            Self::IpAddress => schema::rules::canonical_ip(name).into_iter().collect(),
            Self::Unchecked => Vec::new(),
        }
    }

    /// Validates a prefix for generated names. Returns error messages.
    pub fn check_prefix(self, prefix: &str) -> Vec<String> {
        match self {
            Self::IpAddress => Self::DnsSubdomain.check(&names::as_prefix(prefix)),
            // Upstream validates only the generated name (`ValidateObjectMetaWithOpts`).
            Self::LongName => Vec::new(),
            rule => rule.check(&names::as_prefix(prefix)),
        }
    }
}
