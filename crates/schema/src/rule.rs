//! The validation rules, and their notation in the description.

use crate::strings::Str;
use std::str::FromStr;

/// A validation rule of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// Neither absent nor empty; with the detail of the error (a blank is written `~`).
    Required(Str),
    /// Neither absent nor zero.
    NonZero,
    /// One of the values the schema lists.
    Enum,
    /// One of these.
    OneOf(Vec<Str>),
    /// One of the values that the schema lists, or of these; not empty.
    Supported(Vec<Str>),
    /// The rule also applies to the empty string, and to an absent field that is no pointer.
    Even(Box<Rule>),
    /// A count that is not negative, or a percentage.
    IntOrPercent,
    /// The rule applies to every item, with errors of the list.
    Listed(Vec<Str>),
    /// One of these; other values are invalid, not unsupported.
    Valid(Vec<Str>, Str),
    /// At least this number.
    Min(i64),
    /// At most this number.
    Max(i64),
    /// Within both bounds, with one message; an absent zero is valid.
    Within(i64, i64),
    /// Within both bounds, with the message of weights.
    Range(i64, i64),
    /// Within bounds, with the detail of the error.
    Bounds(i64, i64, Str),
    /// Above a bound, which the message shows in digits.
    Above(i64),
    /// Above zero, with a message in words.
    Positive,
    /// The permissions of a file.
    FileMode,
    /// 1 to 65535, or the name of a port if the type allows it.
    Port,
    /// An IP address.
    Ip,
    /// An address range.
    Cidr,
    /// A qualified name, which may be empty.
    LabelKey,
    /// One segment of a URL path.
    PathSegment,
    /// A DNS label (RFC 1123).
    DnsLabel,
    /// A DNS label (RFC 1035).
    Dns1035,
    /// A DNS subdomain (RFC 1123).
    DnsSubdomain,
    /// A qualified name: a name with an optional domain as prefix.
    QualifiedName,
    /// The value of a label.
    LabelValue,
    /// The name of a port (`IANA_SVC_NAME`).
    PortName,
    /// The name of an environment variable.
    EnvName,
    /// A key of a ConfigMap or Secret.
    ConfigMapKey,
    /// A relative path without `..`.
    LocalPath,
    /// Any path without `..`.
    NoBacksteps,
    /// A map of labels.
    Labels,
    /// A map of annotations.
    Annotations,
    /// A `metav1.LabelSelector`.
    Selector,
    /// A quantity (or a map of them) that is not negative.
    NotNegative,
    /// Items (of structs: by this key) that must differ.
    Unique(Option<Str>),
    /// Items that must differ, where the error names the item instead of its key.
    UniqueItems(Str),
    /// At most this number of items.
    MaxItems(usize),
    /// The same; the items of a longer list are not validated.
    AtMost(usize),
    /// At most this number of bytes.
    MaxLength(usize),
    /// May not change.
    Immutable,
    /// May not change, with the error `Forbidden`.
    Frozen(Str),
    /// The validator of the kind decides whether the rules of this field, and of all below it, apply: it runs them with
    /// [`crate::rules::validate_field`].
    Delegated,
    /// Behind a feature gate that is disabled in this release: dropped from a write, unless the old object has it. With the name of the gate
    /// if it can be enabled.
    Off(Option<Str>),
}

impl Rule {
    /// The detail of the error for a change, if the field is immutable.
    pub fn frozen(&self) -> Option<&str> {
        match self {
            Self::Frozen(why) if why.is_empty() => Some("field is immutable"),
            Self::Frozen(why) => Some(why),
            _ => None,
        }
    }

    /// The maximum number of items of a list whose items are not validated if there are more.
    pub fn at_most(&self) -> Option<usize> {
        match self {
            Self::AtMost(most) => Some(*most),
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
            "at-most" => Self::AtMost(number()?.unsigned_abs() as usize),
            "max-length" => Self::MaxLength(number()?.unsigned_abs() as usize),
            "immutable" => Self::Immutable,
            "off" => Self::Off(Some(value).filter(|v| !v.is_empty()).map(Into::into)),
            "delegated" => Self::Delegated,
            "frozen" => Self::Frozen(value.replace('~', " ").into()),
            _ => return Err(format!("no rule is called {text}")),
        })
    }
}
