//! The rules there are, and how the description writes them.

use crate::types::Str;
use std::str::FromStr;

#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// Neither absent nor empty; and what is said beside (a blank is written `~`).
    Required(Str),
    /// Neither absent nor zero.
    NonZero,
    /// One of the values the schema lists.
    Enum,
    /// One of these.
    OneOf(Vec<Str>),
    /// One of the values the schema lists, or of these; nothing is not among them.
    Supported(Vec<Str>),
    /// The rule holds for the empty string as well, and for an absent field that is no pointer.
    Even(Box<Rule>),
    /// A count that is not negative, or a percentage.
    IntOrPercent,
    /// The same of every item, said of the list.
    Listed(Vec<Str>),
    /// One of these; anything else is said to be invalid, not unsupported.
    Valid(Vec<Str>, Str),
    Min(i64),
    Max(i64),
    /// Both, said as one; nothing is said of an absent zero.
    Within(i64, i64),
    /// The same, as weights say it.
    Range(i64, i64),
    /// Within bounds, and what is said beyond them.
    Bounds(i64, i64, Str),
    /// Above a bound, which is said in digits.
    Above(i64),
    /// Above zero, said in words.
    Positive,
    /// The permissions of a file.
    FileMode,
    /// 1 to 65535; a port's name too where the type allows.
    Port,
    Ip,
    /// An address range.
    Cidr,
    /// A qualified name, also when it is empty.
    LabelKey,
    /// One segment of a URL path.
    PathSegment,
    DnsLabel,
    Dns1035,
    DnsSubdomain,
    QualifiedName,
    LabelValue,
    PortName,
    EnvName,
    ConfigMapKey,
    /// A relative path within its place.
    LocalPath,
    /// Any path without `..`.
    NoBacksteps,
    /// A map of labels.
    Labels,
    Annotations,
    /// A `metav1.LabelSelector`.
    Selector,
    /// A quantity (or a map of them) that is not negative.
    NotNegative,
    /// Items (of structs: by this key) that must differ.
    Unique(Option<Str>),
    /// The same, where it is the item that is said to be a duplicate.
    UniqueItems(Str),
    MaxItems(usize),
    MaxLength(usize),
    /// May not change.
    Immutable,
    /// May not change, said as `Forbidden`.
    Frozen(Str),
    /// The validator of the kind decides whether the rules of this field, and of all below it, apply: it runs them with
    /// [`super::validate_field`].
    Delegated,
    /// Behind a gate that is off in this release: left out of what is written, unless it was there before.
    Off,
}

impl Rule {
    /// What is said of a change, if there may be none.
    pub fn frozen(&self) -> Option<&str> {
        match self {
            Self::Frozen(why) if why.is_empty() => Some("field is immutable"),
            Self::Frozen(why) => Some(why),
            _ => None,
        }
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(rule) = text.strip_suffix('!') {
            return Ok(Self::Even(Box::new(rule.parse()?)));
        }
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let number = || value.parse::<i64>().map_err(|e| format!("{text}: {e}"));
        Ok(match name {
            "required" => Self::Required(value.replace('~', " ").into()),
            "nonzero" => Self::NonZero,
            "supported" if value.is_empty() => Self::Supported(Vec::new()),
            "supported" => Self::Supported(value.split(',').map(Into::into).collect()),
            "listed" if value.is_empty() => Self::Listed(Vec::new()),
            "listed" => Self::Listed(value.split(',').map(Into::into).collect()),
            "int-or-percent" => Self::IntOrPercent,
            "unique-items" => Self::UniqueItems(value.into()),
            "valid" => {
                let (all, why) = value.split_once(':').ok_or_else(|| format!("{text}: nothing to say"))?;
                Self::Valid(all.split(',').map(Into::into).collect(), why.replace('~', " ").into())
            }
            "ip" => Self::Ip,
            "cidr" => Self::Cidr,
            "label-key" => Self::LabelKey,
            "path-segment" => Self::PathSegment,
            "enum" if value.is_empty() => Self::Enum,
            "enum" => Self::OneOf(value.split(',').map(Into::into).collect()),
            "min" => Self::Min(number()?),
            "max" => Self::Max(number()?),
            "bounds" => {
                let (range, why) = value.split_once(':').ok_or_else(|| format!("{text}: nothing to say"))?;
                let (low, high) = range.split_once("..").ok_or_else(|| format!("{text}: no range"))?;
                let low = low.parse().unwrap_or(i64::MIN);
                let high = high.parse().unwrap_or(i64::MAX);
                Self::Bounds(low, high, why.replace('~', " ").into())
            }
            "above" => Self::Above(number()?),
            "positive" => Self::Positive,
            "file-mode" => Self::FileMode,
            "within" | "range" => {
                let (low, high) = value.split_once("..").ok_or_else(|| format!("{text}: no range"))?;
                let bound = |b: &str| b.parse::<i64>().map_err(|e| format!("{text}: {e}"));
                let (low, high) = (bound(low)?, bound(high)?);
                if name == "within" { Self::Within(low, high) } else { Self::Range(low, high) }
            }
            "port" => Self::Port,
            "dns-label" => Self::DnsLabel,
            "dns-1035" => Self::Dns1035,
            "dns-subdomain" => Self::DnsSubdomain,
            "qualified-name" => Self::QualifiedName,
            "label-value" => Self::LabelValue,
            "port-name" => Self::PortName,
            "env-name" => Self::EnvName,
            "config-key" => Self::ConfigMapKey,
            "local-path" => Self::LocalPath,
            "no-backsteps" => Self::NoBacksteps,
            "labels" => Self::Labels,
            "annotations" => Self::Annotations,
            "selector" => Self::Selector,
            "not-negative" => Self::NotNegative,
            "unique" => Self::Unique(Some(value).filter(|v| !v.is_empty()).map(Into::into)),
            "max-items" => Self::MaxItems(number()?.unsigned_abs() as usize),
            "max-length" => Self::MaxLength(number()?.unsigned_abs() as usize),
            "immutable" => Self::Immutable,
            "off" => Self::Off,
            "delegated" => Self::Delegated,
            "frozen" => Self::Frozen(value.replace('~', " ").into()),
            _ => return Err(format!("no rule is called {text}")),
        })
    }
}
