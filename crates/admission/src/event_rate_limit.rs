//! EventRateLimit: limits the rate of events per server, namespace, user, or source and object (upstream
//! `plugin/pkg/admission/eventratelimit`). Counts only events of the core group, as upstream does.

use crate::configuration::{Fields, Form, Kind, NUMBER, TEXT, aggregate};
use crate::{Operation, Plugin, Review};
use meta::status::Reason;
use meta::{Object, Status, Value};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use tokio::time::Instant;

pub struct EventRateLimit {
    limits: Vec<Limit>,
}

const KIND: Kind = Kind {
    versions: &[("eventratelimit.admission.k8s.io/v1alpha1", "Configuration")],
    fields: Fields("Configuration", &[("limits", Form::List(&LIMIT))]),
};
const LIMIT: Form =
    Form::Object(Fields("Limit", &[("type", TEXT), ("qps", NUMBER), ("burst", NUMBER), ("cacheSize", NUMBER)]));
const TYPES: [&str; 4] = ["Server", "Namespace", "User", "SourceAndObject"];
/// Default number of cached keys.
const REMEMBERED: usize = 4096;

/// A limit of one of [`TYPES`], with a token bucket per key.
struct Limit {
    kind: String,
    rate: Rate,
    buckets: Mutex<Buckets>,
}

#[derive(Clone, Copy)]
struct Rate {
    per_second: f64,
    burst: f64,
}

impl EventRateLimit {
    pub fn new(config: Option<&Value>) -> Result<Self, String> {
        let config = config.map_or(Ok(Value::Null), |s| KIND.read(s))?;
        let all = config["limits"].as_array().map_or(&[][..], Vec::as_slice);
        let mut wrong = Vec::new();
        if all.is_empty() {
            wrong.push("limits: Invalid value: null: must not be empty".to_owned());
        }
        let mut limits = Vec::new();
        for (i, l) in all.iter().enumerate() {
            limits.push(Limit::new(l, &format!("limits[{i}]"), &mut wrong));
        }
        aggregate(&wrong)?;
        Ok(Self { limits })
    }
}

impl Limit {
    fn new(l: &Value, path: &str, wrong: &mut Vec<String>) -> Self {
        let kind = l["type"].as_str().unwrap_or_default();
        if !TYPES.contains(&kind) {
            let mut known = TYPES.map(|t| format!("{t:?}"));
            known.sort();
            wrong.push(format!("{path}.type: Unsupported value: {kind:?}: supported values: {}", known.join(", ")));
        }
        let number = |key: &str| l[key].as_i64().unwrap_or(0);
        let (qps, burst, size) = (number("qps"), number("burst"), number("cacheSize"));
        for (key, n) in [("burst", burst), ("qps", qps)] {
            if n <= 0 {
                wrong.push(format!("{path}.{key}: Invalid value: {n}: must be positive"));
            }
        }
        if kind != "Server" && size < 0 {
            wrong.push(format!("{path}.cacheSize: Invalid value: {size}: must not be negative"));
        }
        let most = usize::try_from(size).ok().filter(|n| *n > 0).unwrap_or(REMEMBERED);
        let rate = Rate { per_second: qps as f64, burst: burst as f64 };
        Self { kind: kind.to_owned(), rate, buckets: Mutex::new(Buckets::new(most)) }
    }

    fn key(&self, review: &Review<'_>, event: Option<&Object>) -> String {
        match self.kind.as_str() {
            "Namespace" => review.namespace.to_owned(),
            "User" => review.attributes.user.name.clone(),
            "SourceAndObject" => {
                let text = |path: &[&str; 2]| event.and_then(|e| e.str_at(path)).unwrap_or_default();
                let source = ["component", "host"].map(|k| text(&["source", k]));
                let about = ["kind", "namespace", "name", "uid", "apiVersion"].map(|k| text(&["involvedObject", k]));
                source.into_iter().chain(about).collect()
            }
            _ => String::new(),
        }
    }
}

impl Plugin for EventRateLimit {
    fn name(&self) -> &'static str {
        "EventRateLimit"
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        let written = matches!(review.operation, Operation::Create | Operation::Update);
        // A dry run costs the store nothing.
        if !written || review.dry_run || !review.kind.group.is_empty() || review.kind.kind != "Event" {
            return Ok(());
        }
        let now = Instant::now();
        let mut refused = Ok(());
        // Every limit takes a token, even after another limit has rejected the event.
        for l in &self.limits {
            let key = l.key(review, object);
            if !l.buckets.lock().take(&key, l.rate, now) {
                let why = format!("Too many requests: limit reached on type {} for key {key}", l.kind);
                refused = Err(Status::new(429, Reason::TooManyRequests, why));
            }
        }
        refused
    }
}

/// Token buckets by key; when full, evicts the least recently used bucket.
struct Buckets {
    most: usize,
    all: HashMap<String, Bucket>,
    /// Keys by the sequence number of their last use.
    turns: BTreeMap<u64, String>,
    turn: u64,
}

struct Bucket {
    tokens: f64,
    at: Instant,
    turn: u64,
}

impl Buckets {
    fn new(most: usize) -> Self {
        Self { most, all: HashMap::new(), turns: BTreeMap::new(), turn: 0 }
    }

    /// Takes a token if one is available.
    fn take(&mut self, key: &str, rate: Rate, now: Instant) -> bool {
        self.turn += 1;
        if !self.all.contains_key(key)
            && self.all.len() >= self.most
            && let Some((_, oldest)) = self.turns.pop_first()
        {
            self.all.remove(&oldest);
        }
        let b = self.all.entry(key.to_owned()).or_insert(Bucket { tokens: rate.burst, at: now, turn: self.turn });
        self.turns.remove(&b.turn);
        self.turns.insert(self.turn, key.to_owned());
        b.turn = self.turn;
        let passed = now.saturating_duration_since(b.at).as_secs_f64();
        b.tokens = (b.tokens + passed * rate.per_second).min(rate.burst);
        b.at = now;
        let has = b.tokens >= 1.0;
        if has {
            b.tokens -= 1.0;
        }
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    #[test]
    fn buckets_fill_again_and_the_oldest_is_forgotten() {
        let rate = Rate { per_second: 1.0, burst: 2.0 };
        let mut b = Buckets::new(2);
        let t = Instant::now();
        assert_eq!(["a", "a", "a", "b"].map(|k| b.take(k, rate, t)), [true, true, false, true]);
        assert!(b.take("a", rate, t + Duration::from_secs(1)), "one a second");
        assert!(!b.take("a", rate, t + Duration::from_secs(1)));
        assert!(b.take("c", rate, t), "evicts b: a was used later");
        assert!(!b.take("a", rate, t));
        assert_eq!((b.all.len(), b.turns.len()), (2, 2));
        assert!(b.take("b", rate, t) && b.take("b", rate, t), "begins anew");
    }

    #[test]
    fn wrong_limits_are_refused() {
        let error = |limits: Value| {
            let config = json!({"apiVersion": KIND.versions[0].0, "kind": "Configuration", "limits": limits});
            EventRateLimit::new(Some(&config)).err().unwrap_or_default()
        };
        assert_eq!(error(json!([{"type": "Server", "qps": 1, "burst": 1}])), "");
        assert_eq!(EventRateLimit::new(None).err().unwrap(), "limits: Invalid value: null: must not be empty");
        assert_eq!(
            error(json!([{"type": "Pod", "qps": 1}])),
            "[limits[0].type: Unsupported value: \"Pod\": supported values: \"Namespace\", \"Server\", \
             \"SourceAndObject\", \"User\", limits[0].burst: Invalid value: 0: must be positive]"
        );
        let size = json!([{"type": "User", "qps": 1, "burst": 1, "cacheSize": -1}]);
        assert_eq!(error(size), "limits[0].cacheSize: Invalid value: -1: must not be negative");
    }
}
