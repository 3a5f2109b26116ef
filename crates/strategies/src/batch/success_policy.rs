//! Validation of success policies.

use crate::read::{items, shown, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value};

const RULES_MAX: usize = 20;
const INDEXES_MAX: usize = 64 * 1024;

pub fn validate(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let policy = &spec["successPolicy"];
    if text(spec, "completionMode") != "Indexed" {
        let shown = shown(policy, "io.k8s.api.batch.v1.SuccessPolicy", path);
        errors.push(FieldError::invalid(path, shown, "requires indexed completion mode"));
        return;
    }
    let at = path.child("rules");
    let rules = items(policy, "rules");
    if rules.is_empty() {
        let why = "at least one rules must be specified when the successPolicy is specified";
        errors.push(FieldError::required(&at, why));
    }
    if rules.len() > RULES_MAX {
        errors.push(FieldError::too_many(&at, rules.len(), RULES_MAX));
    }
    let completions = spec["completions"].as_i64();
    for (i, r) in rules.iter().enumerate() {
        rule(r, completions, &at.index(i), errors);
    }
}

fn rule(r: &Value, completions: Option<i64>, at: &FieldPath, errors: &mut ErrorList) {
    let (indexes, count) = (r["succeededIndexes"].as_str(), r["succeededCount"].as_i64());
    if indexes.is_none() && count.is_none() {
        let why = "at least one of succeededCount or succeededIndexes must be specified";
        errors.push(FieldError::required(at, why));
    }
    let mut named = None;
    if let Some(text) = indexes {
        let at = at.child("succeededIndexes");
        if text.len() > INDEXES_MAX {
            errors.push(FieldError::too_long(&at, INDEXES_MAX));
        }
        match number_of(text, completions.unwrap_or(0)) {
            Ok(n) => named = Some(n),
            Err(e) => {
                errors.push(FieldError::invalid(&at, text, format!("error parsing succeededIndexes: {e}")));
                named = Some(0);
            }
        }
    }
    let Some(count) = count else { return };
    let at = at.child("succeededCount");
    if count < 0 {
        errors.push(FieldError::invalid(&at, count, "must be greater than or equal to 0"));
    }
    if let Some(all) = completions.filter(|c| count > *c) {
        let why = format!("must be less than or equal to {all} (the number of specified completions)");
        errors.push(FieldError::invalid(&at, count, why));
    }
    if let Some(n) = named.filter(|n| count > *n) {
        let why = format!(
            "must be less than or equal to {n} (the number of indexes in the specified succeededIndexes field)"
        );
        errors.push(FieldError::invalid(&at, count, why));
    }
}

/// Returns the valid intervals of a list such as `1,3-5`.
pub fn intervals(list: &str, end: i64) -> Vec<(i64, i64)> {
    let index = |text: &str| text.parse::<i64>().ok().filter(|n| *n < end);
    let part = |part: &str| match part.split_once('-') {
        Some((a, b)) => Some((index(a)?, index(b)?)).filter(|(a, b)| a < b),
        None => index(part).map(|n| (n, n)),
    };
    list.split(',').filter_map(part).collect()
}

/// Returns the number of indexes in a list such as `1,3-5`. Errors if they do not increase, or reach `end`.
pub fn number_of(list: &str, end: i64) -> Result<i64, String> {
    let index = |text: &str| match text.parse::<i64>() {
        Err(_) => Err(format!("cannot convert string to integer for index: {text:?}")),
        Ok(n) if n >= end => Err(format!("too large index: {text:?}")),
        Ok(n) => Ok(n),
    };
    let rising = |before: i64, now: i64| match before < now {
        true => Ok(()),
        false => Err(format!("non-increasing order, previous: {before}, current: {now}")),
    };
    let (mut total, mut last) = (0, None);
    for part in list.split(',').filter(|_| !list.is_empty()) {
        let ends: Vec<&str> = part.split('-').collect();
        let (first, end) = match ends[..] {
            [one] => (index(one)?, index(one)?),
            [first, end] => {
                let (first, end) = (index(first)?, index(end)?);
                rising(first, end)?;
                (first, end)
            }
            _ => {
                let why = "violates the requirement that an index interval can have at most two parts separated by '-'";
                return Err(format!("the fragment {part:?} {why}"));
            }
        };
        last.map_or(Ok(()), |l| rising(l, first))?;
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}
