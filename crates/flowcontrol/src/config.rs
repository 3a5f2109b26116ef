//! The FlowSchemas and PriorityLevelConfigurations in force (`apf_controller.go`).

use crate::allocation::{Claim, allocate};
use crate::bootstrap;
use crate::level::{Allocation, Limits, PriorityLevel};
use crate::queues::QueuingConfig;
use crate::rules::{RequestDigest, Rules};
use aws_lc_rs::digest::{Context, SHA256};
use meta::{Object, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The weight of the previous demand in the moving average, per allocation: half of it is left after five minutes.
const SMOOTHING: f64 = 0.977;

pub struct Config {
    /// By precedence, the first to match first.
    schemas: Vec<FlowSchema>,
    levels: BTreeMap<String, Arc<PriorityLevel>>,
}

pub struct FlowSchema {
    pub name: String,
    pub uid: String,
    precedence: i64,
    rules: Vec<Rules>,
    distinguisher: DistinguisherMethod,
    pub level: Arc<PriorityLevel>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DistinguisherMethod {
    ByUser,
    ByNamespace,
    None,
}

/// The flow of a request: its schema, and the user or namespace that distinguishes it.
pub struct Flow<'a> {
    pub schema: &'a FlowSchema,
    /// Index into [`Config::schemas`].
    pub index: usize,
    pub distinguisher: &'a str,
}

impl Flow<'_> {
    pub fn hash(&self) -> u64 {
        let mut h = Context::new(&SHA256);
        h.update(self.schema.name.as_bytes());
        h.update(&[0]);
        h.update(self.distinguisher.as_bytes());
        let digest = h.finish();
        let mut first = [0; 8];
        first.copy_from_slice(&digest.as_ref()[..8]);
        u64::from_le_bytes(first)
    }
}

fn text<'a>(o: &'a Object, path: &[&str]) -> &'a str {
    o.str_at(path).unwrap_or_default()
}

fn number(v: &Value, default: i64) -> i64 {
    v.as_i64().unwrap_or(default)
}

impl Config {
    /// The configuration of the given objects for a server with `seats` seats. Levels whose configuration did not change keep their state from
    /// `previous`. Mandatory schemas and levels exist even without their objects.
    pub fn new(seats: u32, schemas: &[Object], levels: &[Object], previous: Option<&Self>) -> Self {
        let mut all: Vec<Object> = levels.to_vec();
        let missing = |o: &Object, all: &[Object]| !all.iter().any(|x| x.name() == o.name());
        let mandatory: Vec<Object> = bootstrap::objects(bootstrap::MANDATORY, bootstrap::Kind::Level);
        all.extend(mandatory.into_iter().filter(|o| missing(o, levels)));
        let shares: f64 = all.iter().map(|o| common_fields(o).shares).sum();
        let mut kept = BTreeMap::new();
        for o in &all {
            let Some((exempt, queuing)) = level_type(o) else { continue };
            let old = previous.and_then(|p| p.levels.get(o.name())).filter(|l| l.has_config(o.uid(), exempt, queuing));
            let level = old.cloned().unwrap_or_else(|| PriorityLevel::new(o.name(), o.uid(), exempt, queuing));
            let c = common_fields(o);
            let nominal = (f64::from(seats) * c.shares / shares.max(1.0)).ceil();
            let lent = (nominal * c.lendable / 100.0).round();
            let borrowed = c.borrowing.map_or(f64::from(seats), |p| (nominal * p / 100.0).round());
            let limits = Limits {
                nominal: nominal as u32,
                minimum: (nominal - lent) as u32,
                maximum: (nominal + borrowed) as u32,
            };
            level.allocation.lock().limits = limits;
            if old.is_none() {
                level.set_seat_limit(limits.nominal - (limits.nominal - limits.minimum) / 2);
            }
            kept.insert(o.name().to_owned(), level);
        }
        let mut all: Vec<Object> = schemas.to_vec();
        let mandatory = bootstrap::objects(bootstrap::MANDATORY, bootstrap::Kind::Schema);
        all.extend(mandatory.into_iter().filter(|o| missing(o, schemas)));
        let mut schemas: Vec<FlowSchema> = all.iter().filter_map(|o| flow_schema(o, &kept)).collect();
        schemas.sort_by(|a, b| (a.precedence, &a.name).cmp(&(b.precedence, &b.name)));
        let config = Self { schemas, levels: kept };
        config.allocate_seats();
        config
    }

    /// The first schema that matches a request. The mandatory schema `catch-all` matches everybody.
    pub fn classify<'a>(&'a self, d: &RequestDigest<'a>) -> Option<Flow<'a>> {
        let found = self.schemas.iter().position(|s| s.rules.iter().any(|r| r.matches(d)));
        // A user without any group matches no schema.
        let index = found.or_else(|| self.schemas.iter().position(|s| s.name == "catch-all"))?;
        let schema = &self.schemas[index];
        let distinguisher = match schema.distinguisher {
            DistinguisherMethod::ByUser => d.user.name.as_str(),
            DistinguisherMethod::ByNamespace => d.namespace,
            DistinguisherMethod::None => "",
        };
        Some(Flow { schema, index, distinguisher })
    }

    /// By precedence, the first to match first.
    pub fn schemas(&self) -> &[FlowSchema] {
        &self.schemas
    }

    pub fn levels(&self) -> impl Iterator<Item = &Arc<PriorityLevel>> {
        self.levels.values()
    }

    /// Whether a level of this name exists.
    pub fn has_level(&self, name: &str) -> bool {
        self.levels.contains_key(name)
    }

    /// Allocates seats by the demand since the last call: levels lend idle seats to others.
    pub fn allocate_seats(&self) {
        let mut total = 0;
        let mut limited = Vec::new();
        let mut left = 0.0;
        for l in self.levels.values() {
            let peak = l.take_peak_demand();
            let mut allocation = l.allocation.lock();
            let demand = f64::from(peak);
            let Allocation { limits, smoothed_demand } = &mut *allocation;
            *smoothed_demand = demand.max(SMOOTHING * *smoothed_demand + (1.0 - SMOOTHING) * demand);
            total += limits.nominal;
            if l.exempt {
                let seats = limits.minimum.max(peak);
                left -= f64::from(seats);
                l.set_seat_limit(seats);
                continue;
            }
            let minimum = f64::from(limits.minimum.max(limits.nominal.min(peak)));
            let (maximum, target) = (f64::from(limits.maximum), minimum.max(*smoothed_demand));
            limited.push((l, *limits, Claim { minimum, maximum, target }));
        }
        left += f64::from(total);
        let minimum: f64 = limited.iter().map(|(_, l, _)| f64::from(l.minimum)).sum();
        let demanded: f64 = limited.iter().map(|(.., c)| c.minimum).sum();
        let shares: Vec<f64> = if left <= minimum {
            limited.iter().map(|(_, l, _)| f64::from(l.minimum)).collect()
        } else if left <= demanded {
            let part = (left - minimum) / (demanded - minimum);
            let seats = |l: &Limits, c: &Claim| f64::from(l.minimum) + (c.minimum - f64::from(l.minimum)) * part;
            limited.iter().map(|(_, l, c)| seats(l, c)).collect()
        } else {
            let claims: Vec<Claim> = limited.iter().map(|(.., c)| *c).collect();
            allocate(f64::from(total), &claims).0
        };
        for ((l, ..), seats) in limited.iter().zip(shares) {
            l.set_seat_limit(seats.round() as u32);
        }
    }
}

/// The fields that exempt and limited levels have in common.
struct CommonFields {
    shares: f64,
    lendable: f64,
    borrowing: Option<f64>,
}

fn common_fields(o: &Object) -> CommonFields {
    let exempt = text(o, &["spec", "type"]) == "Exempt";
    let none = Value::Null;
    let part = o.at(&["spec", if exempt { "exempt" } else { "limited" }]).unwrap_or(&none);
    CommonFields {
        shares: number(&part["nominalConcurrencyShares"], if exempt { 0 } else { 30 }) as f64,
        lendable: number(&part["lendablePercent"], 0) as f64,
        borrowing: part["borrowingLimitPercent"].as_i64().map(|p| p as f64),
    }
}

/// Whether a level is exempt, and its queues. `None` for an invalid object.
fn level_type(o: &Object) -> Option<(bool, Option<QueuingConfig>)> {
    let exempt = text(o, &["spec", "type"]) == "Exempt";
    if exempt != (o.name() == "exempt") {
        return None;
    }
    if exempt {
        return Some((true, None));
    }
    let response = o.at(&["spec", "limited", "limitResponse"])?;
    if response["type"] != "Queue" {
        return Some((false, None));
    }
    let q = &response["queuing"];
    let size = |key: &str, default: i64| usize::try_from(number(&q[key], default)).ok().filter(|n| *n > 0);
    let queuing = QueuingConfig {
        queues: size("queues", 64)?,
        hand_size: size("handSize", 8)?,
        queue_length_limit: size("queueLengthLimit", 50)?,
    };
    Some((false, Some(queuing)))
}

fn flow_schema(o: &Object, levels: &BTreeMap<String, Arc<PriorityLevel>>) -> Option<FlowSchema> {
    let level = levels.get(text(o, &["spec", "priorityLevelConfiguration", "name"]))?.clone();
    let rules = o.at(&["spec", "rules"]).cloned().unwrap_or(Value::Array(Vec::new()));
    let distinguisher = match text(o, &["spec", "distinguisherMethod", "type"]) {
        "ByUser" => DistinguisherMethod::ByUser,
        "ByNamespace" => DistinguisherMethod::ByNamespace,
        _ => DistinguisherMethod::None,
    };
    Some(FlowSchema {
        name: o.name().to_owned(),
        uid: o.uid().to_owned(),
        precedence: o.at(&["spec", "matchingPrecedence"]).map_or(1000, |p| number(p, 1000)),
        rules: serde_json::from_value(rules).ok()?,
        distinguisher,
        level,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bootstrap::{Kind, MANDATORY, SUGGESTED, objects};
    use meta::User;
    use serde_json::json;
    use std::time::Duration;

    fn bootstrap_objects(kind: Kind) -> Vec<Object> {
        let mut all = objects(MANDATORY, kind);
        all.extend(objects(SUGGESTED, kind));
        all
    }

    fn config(before: Option<&Config>) -> Config {
        Config::new(600, &bootstrap_objects(Kind::Schema), &bootstrap_objects(Kind::Level), before)
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_classified() {
        let c = config(None);
        let check = |user: &User, verb: &str, what: &str, namespace: &str, schema: &str, level: &str| {
            let (group, resource) = what.split_once(':').unwrap_or(("", ""));
            let path = if resource.is_empty() { what } else { "" };
            let d = RequestDigest { user, verb, group, resource, subresource: "", namespace, path };
            let f = c.classify(&d).unwrap();
            assert_eq!((&*f.schema.name, &*f.schema.level.name), (schema, level), "{d:?}");
        };
        let account = |ns: &str| User::new(format!("system:serviceaccount:{ns}:a"), &["system:serviceaccounts"]);
        check(&User::new("root", &["system:masters"]), "list", ":pods", "", "exempt", "exempt");
        check(&User::anonymous(), "get", "/readyz", "", "probes", "exempt");
        check(
            &User::new("system:kube-scheduler", &[]),
            "update",
            "coordination.k8s.io:leases",
            "kube-system",
            "system-leader-election",
            "leader-election",
        );
        check(
            &User::new("system:node:n", &["system:nodes"]),
            "update",
            "coordination.k8s.io:leases",
            "kube-node-lease",
            "system-node-high",
            "node-high",
        );
        check(&User::new("system:node:n", &["system:nodes"]), "list", ":pods", "", "system-nodes", "system");
        check(
            &User::new("system:kube-controller-manager", &[]),
            "list",
            ":pods",
            "",
            "kube-controller-manager",
            "workload-high",
        );
        check(&User::new("system:kube-scheduler", &[]), "list", ":pods", "", "kube-scheduler", "workload-high");
        check(&account("kube-system"), "list", ":pods", "", "kube-system-service-accounts", "workload-high");
        check(&account("default"), "list", ":pods", "", "service-accounts", "workload-low");
        check(&User::new("jane", &[]), "list", ":pods", "", "global-default", "global-default");
    }

    #[tokio::test(start_paused = true)]
    async fn levels_borrow_idle_seats() {
        let c = config(None);
        let level = |n: &str| c.levels[n].clone();
        // 245 shares.
        let limits = |n: &str| level(n).limits();
        assert_eq!(limits("workload-low"), Limits { nominal: 245, minimum: 24, maximum: 845 });
        assert_eq!(limits("catch-all"), Limits { nominal: 13, minimum: 13, maximum: 613 });
        assert_eq!(limits("exempt").nominal, 0);
        let total: u32 = c.levels().map(|l| l.seat_limit()).sum();
        assert!((595..=610).contains(&total), "{total}");
        // One level demands more than its nominal seats.
        let default = level("global-default");
        let mut held = Vec::new();
        while let Ok(seat) = tokio::time::timeout(Duration::ZERO, default.acquire(1, 0, Duration::MAX, || 1)).await {
            held.push(seat.unwrap_or_else(|_| panic!()));
        }
        let before = default.seat_limit();
        let _waiting: Vec<_> = (0..200)
            .map(|_| {
                tokio::spawn({
                    let l = default.clone();
                    async move { l.acquire(1, 0, Duration::from_secs(3600), || 1).await.map(std::mem::forget) }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        for _ in 0..5 {
            c.allocate_seats();
        }
        let after = default.seat_limit();
        assert!(after > before, "{before} → {after}");
        assert!(c.levels().filter(|l| !l.exempt).all(|l| l.seat_limit() >= l.limits().minimum));
    }

    #[tokio::test(start_paused = true)]
    async fn unchanged_levels_keep_their_state() {
        let first = config(None);
        let mut levels = bootstrap_objects(Kind::Level);
        levels.retain(|o| o.name() != "workload-low");
        for o in &mut levels {
            if o.name() == "system" {
                o.set(&["spec", "limited", "limitResponse", "queuing", "queues"], 3);
            }
        }
        let mut schemas = bootstrap_objects(Kind::Schema);
        schemas.retain(|o| !matches!(o.name(), "exempt" | "catch-all" | "global-default"));
        let second = Config::new(600, &schemas, &levels, Some(&first));
        let same = |n: &str| Arc::ptr_eq(&first.levels[n], &second.levels[n]);
        assert!(same("workload-high") && !same("system") && !second.has_level("workload-low"));
        let user = User::new("system:serviceaccount:default:a", &["system:serviceaccounts"]);
        let d = RequestDigest {
            user: &user,
            verb: "list",
            group: "",
            resource: "pods",
            subresource: "",
            namespace: "",
            path: "",
        };
        assert_eq!(second.classify(&d).unwrap().schema.name, "catch-all", "skips a schema without a level");
        let broken = Object::from_value(json!({"metadata": {"name": "exempt"}, "spec": {"type": "Limited"}})).unwrap();
        assert!(!Config::new(600, &[], &[broken], None).has_level("exempt"));
    }
}
