//! Flags that several commands share, and the parsing of values as Go does it.

mod global;

pub use global::GlobalFlags;

use crate::error::{Result, text};
use clap::Args;
use client::DryRun;
use meta::{Map, Value};
use std::time::Duration;

#[derive(Args, Clone, Debug, Default)]
pub struct FileFlags {
    /// File, directory or URL with objects, or `-` for standard input; may be repeated.
    #[arg(short = 'f', long, value_delimiter = ',')]
    pub filename: Vec<String>,
    /// Kustomization directory to build instead of reading files.
    #[arg(short = 'k', long, default_value = "", hide_default_value = true)]
    pub kustomize: String,
    /// Also read subdirectories.
    #[arg(short = 'R', long)]
    pub recursive: bool,
}

impl FileFlags {
    /// Whether neither files nor a kustomization are given.
    pub fn is_empty(&self) -> bool {
        self.filename.is_empty() && self.kustomize.is_empty()
    }

    /// Whether a single file, URL or kustomization is given, which upstream treats as one document.
    pub fn is_one(&self) -> bool {
        match self.filename.as_slice() {
            [] => !self.kustomize.is_empty(),
            [name] => name != "-" && !std::path::Path::new(name).is_dir(),
            _ => false,
        }
    }
}

/// Reads `a=b,c=d` (upstream `ParseLabels`).
pub fn labels(spec: &str) -> Result<Map<String, Value>> {
    let mut all = Map::new();
    for pair in spec.split(',') {
        match pair.split_once('=').filter(|(_, v)| !v.contains('=')) {
            Some(("", _)) => return text("unexpected empty label key"),
            Some((k, v)) => all.insert(k.to_owned(), v.into()),
            None => return text(format!("unexpected label spec: {pair}")),
        };
    }
    Ok(all)
}

/// Which objects of a type the command works on.
#[derive(Args, Clone, Debug, Default)]
pub struct SelectFlags {
    /// All objects of the type in the namespace.
    #[arg(long)]
    pub all: bool,
    /// In all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Label selector.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Field selector.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub field_selector: String,
}

#[derive(Args, Clone, Debug, Default)]
pub struct PrintFlags {
    /// Output format: json, yaml, name, jsonpath=…, jsonpath-as-json=…, jsonpath-file=…, go-template=…, go-template-file=….
    #[arg(short = 'o', long, default_value = "", hide_default_value = true)]
    pub output: String,
    /// Template, or file with the template, for the formats that take one.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub template: String,
    /// Show managed fields in JSON and YAML.
    #[arg(long)]
    pub show_managed_fields: bool,
    /// Ignore missing fields and map keys in templates instead of failing.
    #[arg(long, default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set, hide_default_value = true)]
    pub allow_missing_template_keys: bool,
}

#[derive(Args, Clone, Debug, Default)]
pub struct DryRunFlag {
    /// Dry run: none, client (print only) or server (submit without storing).
    #[arg(long, default_value = "none", num_args = 0..=1, require_equals = true, default_missing_value = "unchanged", hide_default_value = true)]
    pub dry_run: String,
}

/// The value of `--dry-run`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DryRunStrategy {
    #[default]
    None,
    Client,
    Server,
}

impl DryRunFlag {
    /// Parses `--dry-run`.
    pub fn strategy(&self) -> Result<DryRunStrategy> {
        match self.dry_run.as_str() {
            "none" | "" => Ok(DryRunStrategy::None),
            "client" | "unchanged" => Ok(DryRunStrategy::Client),
            "server" => Ok(DryRunStrategy::Server),
            other if go_bool(other).is_ok() => {
                Ok(if go_bool(other) == Ok(true) { DryRunStrategy::Client } else { DryRunStrategy::None })
            }
            other => text(format!("Invalid dry-run value ({other}). Must be \"none\", \"server\", or \"client\".")),
        }
    }
}

/// Returns the warning for a deprecated value of `--dry-run`, with the source position that klog prints in upstream.
pub fn deprecated_dry_run(given: &str) -> Option<(&'static str, String)> {
    let word =
        |to: &str| format!("--dry-run={given} is deprecated (boolean value) and can be replaced with --dry-run={to}.");
    match (given, go_bool(given)) {
        ("unchanged", _) => {
            Some(("helpers.go:719", "--dry-run is deprecated and can be replaced with --dry-run=client.".into()))
        }
        (_, Ok(true)) => Some(("helpers.go:733", word("client"))),
        (_, Ok(false)) => Some(("helpers.go:736", word("none"))),
        _ => None,
    }
}

impl DryRunStrategy {
    /// The suffix of messages about an object.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Client => " (dry run)",
            Self::Server => " (server dry run)",
        }
    }

    /// Returns the option of requests.
    pub fn option(self) -> DryRun {
        if self == Self::Server { DryRun::All } else { DryRun::No }
    }
}

#[derive(Args, Clone, Debug, Default)]
pub struct ValidateFlag {
    /// How to handle unknown fields: strict (or true), warn, or ignore (or false).
    #[arg(long, default_value = "strict", num_args = 0..=1, require_equals = true, default_missing_value = "strict", hide_default_value = true)]
    pub validate: String,
}

impl ValidateFlag {
    /// Parses `--validate`.
    pub fn validation(&self) -> Result<client::FieldValidation> {
        use client::FieldValidation::{Ignore, Strict, Warn};
        match self.validate.to_lowercase().as_str() {
            "strict" | "true" | "t" | "1" => Ok(Strict),
            "warn" => Ok(Warn),
            "ignore" | "false" | "f" | "0" => Ok(Ignore),
            other => text(format!(
                "invalid - validate option {other:?}; must be one of: strict (or true), warn, ignore (or false)"
            )),
        }
    }
}

/// Parses a duration as Go's `time.ParseDuration`: `1h2m3.5s`, `300ms`, `0`.
pub fn parse_duration(s: &str) -> Option<Duration> {
    if s == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = s.strip_prefix('+').unwrap_or(s);
    if rest.is_empty() {
        return None;
    }
    let mut total = 0f64;
    while !rest.is_empty() {
        let n = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).filter(|n| *n > 0)?;
        let value: f64 = rest[..n].parse().ok()?;
        rest = &rest[n..];
        let n = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        total += value
            * match &rest[..n] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" | "μs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[n..];
    }
    Duration::try_from_secs_f64(total).ok()
}

/// Returns why Go's `time.ParseDuration` rejects a value.
fn duration_error(s: &str) -> String {
    let in_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut rest = s.strip_prefix(['-', '+']).unwrap_or(s);
    while !rest.is_empty() {
        let digits = |s: &str| s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
        let mut n = digits(rest);
        let mut any = n > 0;
        if let Some(fraction) = rest[n..].strip_prefix('.') {
            any |= digits(fraction) > 0;
            n += 1 + digits(fraction);
        }
        if !any {
            break;
        }
        rest = &rest[n..];
        let (unit, next) = rest.split_at(rest.find(in_number).unwrap_or(rest.len()));
        match unit {
            "" => return format!("time: missing unit in duration {s:?}"),
            "h" | "m" | "s" | "ms" | "us" | "µs" | "μs" | "ns" => rest = next,
            other => return format!("time: unknown unit {other:?} in duration {s:?}"),
        }
    }
    format!("time: invalid duration {s:?}")
}

/// Checks that the value of a flag is a pair KEY=VALUE, and returns it unchanged.
pub fn key_value(s: &str) -> std::result::Result<String, String> {
    match s.contains('=') {
        true => Ok(s.to_owned()),
        false => Err(format!("{s} must be formatted as key=value")),
    }
}

/// Checks that a value is a duration, and returns it unchanged.
pub fn duration_text(s: &str) -> std::result::Result<String, String> {
    match parse_duration(s.strip_prefix('-').unwrap_or(s)) {
        Some(_) => Ok(s.to_owned()),
        None => Err(duration_error(s)),
    }
}

/// Parses the duration of a flag. Negative durations become `None`, which commands read as no limit.
pub fn duration(flag: &str, given: &str) -> Result<Option<Duration>> {
    if let Some(positive) = given.strip_prefix('-')
        && parse_duration(positive).is_some()
    {
        return Ok(None);
    }
    match parse_duration(given) {
        Some(d) => Ok(Some(d)),
        None => text(format!("invalid argument {given:?} for \"--{flag}\" flag: {}", duration_error(given))),
    }
}

/// Rejects a `--pod-running-timeout` of zero. With a `command` the error points to its help.
pub fn running_timeout(given: &str, command: &str) -> Result {
    match duration("pod-running-timeout", given)? {
        Some(d) if !d.is_zero() => Ok(()),
        _ if command.is_empty() => text("--pod-running-timeout must be higher than zero"),
        _ => text(format!(
            "--pod-running-timeout must be higher than zero\nSee 'kubectl {command} -h' for help and examples"
        )),
    }
}

/// Formats a duration as Go does: `1m30s`, `3s`, `250ms`.
pub fn go_duration(d: Duration) -> String {
    let (hours, minutes) = (d.as_secs() / 3600, d.as_secs() / 60 % 60);
    let seconds = (d - Duration::from_secs(d.as_secs() / 60 * 60)).as_secs_f64();
    match (hours, minutes) {
        (0, 0) if d.is_zero() => "0s".into(),
        (0, 0) if d < Duration::from_micros(1) => format!("{}ns", d.as_nanos()),
        (0, 0) if d < Duration::from_millis(1) => format!("{}µs", seconds * 1e6),
        (0, 0) if d < Duration::from_secs(1) => format!("{}ms", seconds * 1e3),
        (0, 0) => format!("{seconds}s"),
        (0, m) => format!("{m}m{seconds}s"),
        (h, m) => format!("{h}h{m}m{seconds}s"),
    }
}

/// Parses a boolean as Go's `strconv.ParseBool`.
pub fn go_bool(s: &str) -> std::result::Result<bool, String> {
    match s {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => Err(format!("strconv.ParseBool: parsing {other:?}: invalid syntax")),
    }
}

/// Converts a selector of the command line to the field of an object (`metav1.ParseToLabelSelector`).
pub fn label_selector(given: &str) -> Result<meta::Value> {
    use meta::selector::Operator as Is;
    let parsed = meta::LabelSelector::parse(given)
        .map_err(|why| crate::error::Error::Text(format!("couldn't parse the selector string \"{given}\": {why}")))?;
    let (mut labels, mut expressions) = (meta::Map::new(), Vec::new());
    for r in parsed.requirements {
        let operator = match r.operator {
            Is::Equals | Is::DoubleEquals => {
                labels.insert(r.key, r.values.into_iter().next().unwrap_or_default().into());
                continue;
            }
            Is::In => "In",
            Is::NotIn => "NotIn",
            Is::Exists => "Exists",
            Is::DoesNotExist => "DoesNotExist",
            Is::NotEquals => return text("\"!=\" is not a valid label selector operator"),
            Is::GreaterThan => return text("\"gt\" is not a valid label selector operator"),
            Is::LessThan => return text("\"lt\" is not a valid label selector operator"),
        };
        let mut e = serde_json::json!({"key": r.key, "operator": operator});
        if !r.values.is_empty() {
            e["values"] = r.values.into();
        }
        expressions.push(e);
    }
    let mut out = meta::Map::new();
    if !expressions.is_empty() {
        out.insert("matchExpressions".into(), expressions.into());
    }
    if !labels.is_empty() {
        out.insert("matchLabels".into(), labels.into());
    }
    Ok(out.into())
}

/// Returns what is wrong with the name of an environment variable. kubectl's rule is stricter than the server's.
pub fn env_var_name(s: &str) -> Vec<String> {
    let mut out = Vec::new();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if s.is_empty() || s.starts_with(|c: char| c.is_ascii_digit()) || !s.chars().all(plain) {
        out.push("a valid environment variable name must consist of alphabetic characters, digits, '_', '-', or '.', and must not start with a digit (e.g. 'my.env-name',  or 'MY_ENV.NAME',  or 'MyEnvName1', regex used for validation is '[-._a-zA-Z][-._a-zA-Z0-9]*')".into());
    }
    match s {
        "." => out.push("must not be '.'".into()),
        ".." => out.push("must not be '..'".into()),
        s if s.starts_with("..") => out.push("must not start with '..'".into()),
        _ => {}
    }
    out
}

/// Flags of a session with one container: `exec` and `attach`.
#[derive(clap::Args, Clone, Debug)]
pub struct SessionFlags {
    /// Container name.
    #[arg(short = 'c', long, default_value = "", hide_default_value = true)]
    pub container: String,
    /// Pass standard input to the container.
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Allocate a terminal.
    #[arg(short = 't', long)]
    pub tty: bool,
    /// Print only output of the container.
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Time to wait until the pod runs.
    #[arg(long, default_value = "1m0s", hide_default_value = true, value_parser = crate::flags::duration_text)]
    pub pod_running_timeout: String,
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, run_with};

    /// Booleans, and the flag without a value, keep their meaning, with a warning.
    #[tokio::test]
    async fn dry_run_accepts_booleans() {
        for (flag, printed, warning) in [
            ("--dry-run=client", "namespace/x created (dry run)\n", ""),
            (
                "--dry-run",
                "namespace/x created (dry run)\n",
                "helpers.go:719] --dry-run is deprecated and can be replaced with --dry-run=client.\n",
            ),
            (
                "--dry-run=true",
                "namespace/x created (dry run)\n",
                "helpers.go:733] --dry-run=true is deprecated (boolean value) and can be replaced with --dry-run=client.\n",
            ),
        ] {
            let (code, out, err) = run_with(&Server::new(), &["create", "namespace", "x", flag], "").await;
            assert_eq!((code, out.as_str()), (0, printed), "{flag}: {err}");
            assert!(
                if warning.is_empty() {
                    err.is_empty()
                } else {
                    err.starts_with("W1121 12:00:00.000000 ") && err.ends_with(warning)
                },
                "{flag}: {err}"
            );
        }
        let (code, _, err) = run_with(&Server::new(), &["create", "namespace", "x", "--dry-run=maybe"], "").await;
        assert_eq!(
            (code, err.as_str()),
            (1, "error: Invalid dry-run value (maybe). Must be \"none\", \"server\", or \"client\".\n")
        );
    }

    use super::{duration_text, go_duration, parse_duration};

    #[test]
    fn formats_durations_as_go_does() {
        for (s, millis) in
            [("0", 0), ("1s", 1000), ("1m30s", 90_000), ("1.5h", 5_400_000), ("300ms", 300), ("+2s", 2000)]
        {
            assert_eq!(parse_duration(s).map(|d| d.as_millis()), Some(millis), "{s}");
        }
        for s in ["3s", "1m0s", "1h0m1.5s", "250ms", "0s"] {
            assert_eq!(go_duration(parse_duration(s).unwrap()), s);
        }
        for s in ["", "1", "s", "1x", "1s2", "-1s", "--"] {
            assert_eq!(parse_duration(s), None, "{s}");
        }
        for (s, why) in [
            ("", "time: invalid duration \"\""),
            ("5", "time: missing unit in duration \"5\""),
            ("1m5", "time: missing unit in duration \"1m5\""),
            ("1.2.3s", "time: missing unit in duration \"1.2.3s\""),
            ("2d", "time: unknown unit \"d\" in duration \"2d\""),
            ("soon", "time: invalid duration \"soon\""),
            (".s", "time: invalid duration \".s\""),
        ] {
            assert_eq!(duration_text(s), Err(why.to_owned()), "{s}");
        }
    }
}
