//! Versions after semver.org.

use std::cmp::Ordering;

/// A version without its build metadata, which does not matter for comparisons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Major, minor and patch.
    pub(crate) parts: [u64; 3],
    pre_release: Vec<Label>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Number(u64),
    Text(String),
}

impl Ord for Version {
    fn cmp(&self, o: &Self) -> Ordering {
        let parts = self.parts.cmp(&o.parts);
        parts.then_with(|| match (self.pre_release.is_empty(), o.pre_release.is_empty()) {
            (true, true) => Ordering::Equal,
            // A release is greater than its pre-releases.
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => self.pre_release.cmp(&o.pre_release),
        })
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, o: &Self) -> Option<Ordering> {
        Some(self.cmp(o))
    }
}

impl Version {
    /// Parses a version. Errors are those of the function `semver`.
    pub fn parse(s: &str) -> Result<Self, String> {
        let (s, build) = s.split_once('+').map_or((s, None), |(s, b)| (s, Some(b)));
        let (core, pre_release) = s.split_once('-').map_or((s, None), |(s, b)| (s, Some(b)));
        let parts: Vec<&str> = core.splitn(3, '.').collect();
        let [a, b, c] = parts[..] else { return Err("No Major.Minor.Patch elements found".into()) };
        let label = |l: &str| !l.is_empty() && l.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        if build.is_some_and(|b| !b.split('.').all(label)) {
            return Err("Build meta data is empty".into());
        }
        let pre_release =
            pre_release.map(|p| p.split('.').map(parse_label).collect::<Result<Vec<_>, _>>()).transpose()?;
        let parts = [number(a, "major")?, number(b, "minor")?, number(c, "patch")?];
        Ok(Self { parts, pre_release: pre_release.unwrap_or_default() })
    }

    /// Parses leniently: `v1.2` is `1.2.0`, and leading zeros are ignored.
    pub fn normalized(s: &str) -> Result<Self, String> {
        let s = s.strip_prefix('v').unwrap_or(s);
        let end = s.find(['-', '+']).unwrap_or(s.len());
        let (core, rest) = s.split_at(end);
        let mut parts: Vec<&str> = core.splitn(3, '.').collect();
        for p in &mut parts {
            let trimmed = p.trim_start_matches('0');
            if trimmed.len() < p.len() {
                *p = if trimmed.is_empty() { "0" } else { trimmed };
            }
        }
        if parts.len() < 3 && !rest.is_empty() {
            return Err("Short version cannot contain PreRelease/Build meta data".into());
        }
        while parts.len() < 3 {
            parts.push("0");
        }
        Self::parse(&format!("{}{rest}", parts.join(".")))
    }
}

fn number(s: &str, what: &str) -> Result<u64, String> {
    if s.len() > 1 && s.starts_with('0') {
        return Err(format!("{} number must not contain leading zeroes {s:?}", capital(what)));
    }
    if s.is_empty() || !s.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("Invalid character(s) found in {what} number {s:?}"));
    }
    s.parse().map_err(|_| format!("strconv.ParseUint: parsing {s:?}: value out of range"))
}

fn capital(s: &str) -> String {
    s[..1].to_uppercase() + &s[1..]
}

fn parse_label(s: &str) -> Result<Label, String> {
    if s.is_empty() {
        return Err("Prerelease is empty".into());
    }
    if s.bytes().all(|b| b.is_ascii_digit()) {
        if s.len() > 1 && s.starts_with('0') {
            return Err(format!("Numeric PreRelease version must not contain leading zeroes {s:?}"));
        }
        return s
            .parse()
            .map(Label::Number)
            .map_err(|_| format!("strconv.ParseUint: parsing {s:?}: value out of range"));
    }
    if s.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        return Ok(Label::Text(s.into()));
    }
    Err(format!("Invalid character(s) found in prerelease {s:?}"))
}
