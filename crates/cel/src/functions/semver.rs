//! Versions after semver.org (`k8s.io/apiserver/pkg/cel/library/semverlib.go`).

use super::{Price, Row, no_overload, row};
use crate::value::{Opaque, Val};
use std::cmp::Ordering;

/// A version without its build metadata, which does not matter for comparisons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    parts: [u64; 3],
    before: Vec<Label>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Number(u64),
    Text(String),
}

impl Ord for Version {
    fn cmp(&self, o: &Self) -> Ordering {
        let parts = self.parts.cmp(&o.parts);
        parts.then_with(|| match (self.before.is_empty(), o.before.is_empty()) {
            (true, true) => Ordering::Equal,
            // A release is greater than its pre-releases.
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => self.before.cmp(&o.before),
        })
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, o: &Self) -> Option<Ordering> {
        Some(self.cmp(o))
    }
}

impl Version {
    pub fn parse(s: &str) -> Result<Self, String> {
        let (s, build) = s.split_once('+').map_or((s, None), |(s, b)| (s, Some(b)));
        let (core, before) = s.split_once('-').map_or((s, None), |(s, b)| (s, Some(b)));
        let parts: Vec<&str> = core.splitn(3, '.').collect();
        let [a, b, c] = parts[..] else { return Err("No Major.Minor.Patch elements found".into()) };
        let label = |l: &str| !l.is_empty() && l.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        if build.is_some_and(|b| !b.split('.').all(label)) {
            return Err("Build meta data is empty".into());
        }
        let before = before.map(|b| b.split('.').map(pre).collect::<Result<Vec<_>, _>>()).transpose()?;
        let parts = [number(a, "major")?, number(b, "minor")?, number(c, "patch")?];
        Ok(Self { parts, before: before.unwrap_or_default() })
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

type Result<T, E> = std::result::Result<T, E>;

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

fn pre(s: &str) -> Result<Label, String> {
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

pub(super) const ROWS: &[Row] = &[
    row("semver", "string:semver;string,bool:semver", Price::Walk(0, 1.0), |a| match read(a) {
        Some(v) => Ok(Val::opaque(Opaque::Semver(v?))),
        None => no_overload(),
    }),
    row("isSemver", "string:bool;string,bool:bool", Price::Walk(0, 1.0), |a| match read(a) {
        Some(v) => Ok(Val::Bool(v.is_ok())),
        None => no_overload(),
    }),
    row("major", ".semver:int", Price::Fixed(1), |a| part(a, 0)),
    row("minor", ".semver:int", Price::Fixed(1), |a| part(a, 1)),
    row("patch", ".semver:int", Price::Fixed(1), |a| part(a, 2)),
];

fn read(args: &[Val<'_>]) -> Option<Result<Version, String>> {
    let s = args[0].as_str()?;
    match args.get(1) {
        None | Some(Val::Bool(false)) => Some(Version::parse(s)),
        Some(Val::Bool(true)) => Some(Version::normalized(s)),
        Some(_) => None,
    }
}

fn part<'a>(args: &[Val<'a>], i: usize) -> super::Result<'a> {
    match &args[0] {
        Val::Opaque(o) => match &**o {
            Opaque::Semver(v) => Ok(Val::Int(i64::try_from(v.parts[i]).unwrap_or(i64::MAX))),
            _ => no_overload(),
        },
        _ => no_overload(),
    }
}
