//! The pod security policy in the labels of a namespace (`k8s.io/pod-security-admission/api`).

use meta::{FieldError, FieldPath};
use std::fmt;

/// The newest minor version with checks.
pub(super) const NEWEST: u32 = 36;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Privileged,
    Baseline,
    Restricted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Latest,
    /// `v1.x`.
    Minor(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LevelVersion {
    pub level: Level,
    pub version: Version,
}

impl LevelVersion {
    pub fn is_privileged(&self) -> bool {
        self.level == Level::Privileged
    }

    /// The policies are equal, or both are privileged.
    fn is_like(&self, other: &Self) -> bool {
        self == other || (self.is_privileged() && other.is_privileged())
    }

    /// The minor version whose checks apply.
    pub fn minor(&self) -> u32 {
        match self.version {
            Version::Latest => NEWEST,
            Version::Minor(m) => m.min(NEWEST),
        }
    }
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version {
            Version::Latest => write!(f, "{level}:latest"),
            Version::Minor(m) => write!(f, "{level}:v1.{m}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub enforce: LevelVersion,
    pub audit: LevelVersion,
    pub warn: LevelVersion,
}

impl Policy {
    /// Each level with the label keys of its mode.
    pub fn modes(&self) -> [(&'static str, &LevelVersion); 3] {
        [("enforce", &self.enforce), ("audit", &self.audit), ("warn", &self.warn)]
    }

    pub fn is_like(&self, other: &Self) -> bool {
        self.modes().iter().zip(other.modes()).all(|((_, a), (_, b))| a.is_like(b))
    }

    pub fn is_privileged(&self) -> bool {
        self.enforce.is_privileged() && self.audit.is_privileged() && self.warn.is_privileged()
    }
}

/// An unparsable label.
#[derive(PartialEq, Eq)]
pub(super) struct BadLabel {
    label: &'static str,
    value: String,
    why: &'static str,
}

impl BadLabel {
    pub fn error(&self) -> FieldError {
        FieldError::invalid(&FieldPath::new("metadata").child("labels").key(self.label), self.value.as_str(), self.why)
    }
}

pub(super) fn level(text: &str) -> Option<Level> {
    match text {
        "privileged" => Some(Level::Privileged),
        "baseline" => Some(Level::Baseline),
        "restricted" => Some(Level::Restricted),
        _ => None,
    }
}

pub(super) fn version(text: &str) -> Option<Version> {
    if text == "latest" {
        return Some(Version::Latest);
    }
    let minor = text.strip_prefix("v1.")?;
    let canonical = minor == "0" || !minor.starts_with(['0', '+']);
    minor.parse().ok().filter(|_| canonical).map(Version::Minor)
}

pub(super) const BAD_LEVEL: &str = "must be one of privileged, baseline, restricted";
pub(super) const BAD_VERSION: &str = "must be \"latest\" or \"v1.x\"";

/// Parses the labels; missing labels use the defaults. An invalid level becomes `restricted` for `enforce`, and
/// `privileged` for `audit` and `warn`.
pub(super) fn read_labels<'a>(default: Policy, label: impl Fn(&str) -> Option<&'a str>) -> (Policy, Vec<BadLabel>) {
    let mut policy = default;
    let mut errors = Vec::new();
    let mut read = |into: &mut LevelVersion, levels: &'static str, versions: &'static str, otherwise: Level| {
        let (l, v) = (label(levels), label(versions));
        if let Some(text) = l {
            into.level = level(text).unwrap_or_else(|| {
                errors.push(BadLabel { label: levels, value: text.into(), why: BAD_LEVEL });
                otherwise
            });
        }
        if let Some(text) = v {
            into.version = version(text).unwrap_or_else(|| {
                errors.push(BadLabel { label: versions, value: text.into(), why: BAD_VERSION });
                Version::Latest
            });
        }
        (l.is_some_and(|t| level(t).is_some()), l.is_some(), v.is_some())
    };
    let (enforced, ..) = read(
        &mut policy.enforce,
        "pod-security.kubernetes.io/enforce",
        "pod-security.kubernetes.io/enforce-version",
        Level::Restricted,
    );
    read(
        &mut policy.audit,
        "pod-security.kubernetes.io/audit",
        "pod-security.kubernetes.io/audit-version",
        Level::Privileged,
    );
    let (_, warned, warn_version) = read(
        &mut policy.warn,
        "pod-security.kubernetes.io/warn",
        "pod-security.kubernetes.io/warn-version",
        Level::Privileged,
    );
    // Workloads get a warning for what `enforce` will reject in their pods.
    if !warned && enforced && policy.enforce.level > policy.warn.level {
        policy.warn.level = policy.enforce.level;
        if !warn_version {
            policy.warn.version = policy.enforce.version;
        }
    }
    (policy, errors)
}
