//! Replaces what two runs of the same command cannot have in common: times, generated names and numbers, and widths of
//! columns.

use regex::Regex;
use std::path::Path;
use std::sync::LazyLock;

/// Patterns and their replacements, in order.
const RULES: [(&str, &str); 22] = [
    // On a busy machine a command with a limit of a second may end within a second of its watch, which client-go warns
    // about.
    (r"(?m)^W\d{4} .*very short watch: .*\n?", ""),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? \+0000( UTC)?", "TIME"),
    (r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w+ \d{4} \d\d:\d\d:\d\d [+-]\d{4}", "TIME"),
    (r"\b[EWI]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ", "KLOG "),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
    (r#"("?resourceVersion"?: ?)"\d+""#, "$1RV"),
    (r"(Resource Version:  +|resourceVersion:|resource version to be 1, was )\d+", "$1 RV"),
    (r" \(x\d+ over [0-9a-z]+\)", ""),
    (r"\b(\d+d)?(\d+h)?(\d+m)?\d+(\.\d+)?m?s\b|<invalid>|<unknown>", "AGE"),
    (r"(?m)\b\d+m(\d+s)?( |$)", "AGE$2"),
    // Service addresses, and the lengths of tokens.
    (r"10\.96\.\d+\.\d+", "IP"),
    (r"eyJ[\w.-]+", "TOKEN"),
    (r"(HealthCheck NodePort:  +)\d+", "$1 PORT"),
    (r"/(LIVE|MERGED)-\d+", "/$1-N"),
    (r"/edit-\d+|kubectl-edit-\w+", "EDIT"),
    // Generated names have no vowels, so that they form no words.
    (r"-[bcdfghjklmnpqrstvwxz2456789]{8,10}(-[bcdfghjklmnpqrstvwxz2456789]{5})?\b", "-HASH"),
    (r"-[bcdfghjklmnpqrstvwxz2456789]{5}\b", "-RAND"),
    (r"(pod-template-hash[=:]\s*|controller-revision-hash[=:]\s*)\w+", "${1}HASH"),
    (r" {2,}", "  "),
    (r"(?m)[ \t]+$", ""),
    (r"-{3,}", "---"),
];

static READY: LazyLock<Vec<(Regex, &str)>> =
    LazyLock::new(|| RULES.iter().map(|(r, to)| (Regex::new(r).unwrap(), *to)).collect());

pub fn text(stderr: &str, ns: &str, dir: &Path) -> String {
    let mut out = stderr.replace(&dir.display().to_string(), "DIR").replace(ns, "NS");
    for (r, to) in READY.iter() {
        out = r.replace_all(&out, *to).into_owned();
    }
    out
}
