//! FlowSchemas and PriorityLevelConfigurations as they hold at the moment.

use crate::allocation::{Claim, share};
use crate::bootstrap;
use crate::level::{Level, Limits, Plan};
use crate::queues::Shape;
use crate::rules::{Digest, Rules};
use meta::{Object, Value};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How much of its last demand a level remembers from one sharing out to the next: half of it after five minutes.
const MEMORY: f64 = 0.977;

pub struct Config {
    /// In the order in which they are asked.
    schemas: Vec<Schema>,
    levels: BTreeMap<String, Arc<Level>>,
}

pub struct Schema {
    pub name: String,
    pub uid: String,
    precedence: i64,
    rules: Vec<Rules>,
    by: Distinguisher,
    pub level: Arc<Level>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distinguisher {
    User,
    Namespace,
    None,
}

/// What a request was found to be.
pub struct Flow<'a> {
    pub schema: &'a Schema,
    /// The place of the schema among [`Config::schemas`].
    pub index: usize,
    pub distinguisher: &'a str,
}

impl Flow<'_> {
    pub fn hash(&self) -> u64 {
        let mut h = Sha256::new();
        h.update(self.schema.name.as_bytes());
        h.update([0]);
        h.update(self.distinguisher.as_bytes());
        let digest = h.finalize();
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        u64::from_le_bytes(first)
    }
}

fn text<'a>(o: &'a Object, path: &[&str]) -> &'a str {
    o.str_at(path).unwrap_or_default()
}

fn number(v: &Value, otherwise: i64) -> i64 {
    v.as_i64().unwrap_or(otherwise)
}

impl Config {
    /// Makes one of the objects there are, for a server with this many seats. Levels that are still the same go on as they are.
    /// What every cluster must have is there even if its object is not.
    pub fn new(seats: u32, schemas: &[Object], levels: &[Object], before: Option<&Self>) -> Self {
        let mut all: Vec<Object> = levels.to_vec();
        let missing = |o: &Object, all: &[Object]| !all.iter().any(|x| x.name() == o.name());
        let mandatory: Vec<Object> = bootstrap::objects(bootstrap::MANDATORY, bootstrap::Kind::Level);
        all.extend(mandatory.into_iter().filter(|o| missing(o, levels)));
        let shares: f64 = all.iter().map(|o| commons(o).shares).sum();
        let mut kept = BTreeMap::new();
        for o in &all {
            let Some((exempt, shape)) = kind(o) else { continue };
            let old = before.and_then(|b| b.levels.get(o.name())).filter(|l| l.is_like(o.uid(), exempt, shape));
            let level = old.cloned().unwrap_or_else(|| Level::new(o.name(), o.uid(), exempt, shape));
            let c = commons(o);
            let nominal = (f64::from(seats) * c.shares / shares.max(1.0)).ceil();
            let lent = (nominal * c.lendable / 100.0).round();
            let borrowed = c.borrowing.map_or(f64::from(seats), |p| (nominal * p / 100.0).round());
            let limits =
                Limits { nominal: nominal as u32, least: (nominal - lent) as u32, most: (nominal + borrowed) as u32 };
            level.plan.lock().limits = limits;
            if old.is_none() {
                level.set_seats(limits.nominal - (limits.nominal - limits.least) / 2);
            }
            kept.insert(o.name().to_owned(), level);
        }
        let mut all: Vec<Object> = schemas.to_vec();
        let mandatory = bootstrap::objects(bootstrap::MANDATORY, bootstrap::Kind::Schema);
        all.extend(mandatory.into_iter().filter(|o| missing(o, schemas)));
        let mut schemas: Vec<Schema> = all.iter().filter_map(|o| schema(o, &kept)).collect();
        schemas.sort_by(|a, b| (a.precedence, &a.name).cmp(&(b.precedence, &b.name)));
        let config = Self { schemas, levels: kept };
        config.share_out();
        config
    }

    /// The first schema that a request matches. There is one for everybody.
    pub fn classify<'a>(&'a self, d: &Digest<'a>) -> Option<Flow<'a>> {
        let found = self.schemas.iter().position(|s| s.rules.iter().any(|r| r.match_request(d)));
        // Only one who belongs to no group at all is nobody's.
        let index = found.or_else(|| self.schemas.iter().position(|s| s.name == "catch-all"))?;
        let schema = &self.schemas[index];
        let distinguisher = match schema.by {
            Distinguisher::User => d.user.name.as_str(),
            Distinguisher::Namespace => d.namespace,
            Distinguisher::None => "",
        };
        Some(Flow { schema, index, distinguisher })
    }

    /// In the order in which they are asked.
    pub fn schemas(&self) -> &[Schema] {
        &self.schemas
    }

    pub fn levels(&self) -> impl Iterator<Item = &Arc<Level>> {
        self.levels.values()
    }

    /// Whether a schema leads to a level that is there.
    pub fn has_level(&self, name: &str) -> bool {
        self.levels.contains_key(name)
    }

    /// Gives every level the seats that its demand since the last time asks for: what is idle is lent.
    pub fn share_out(&self) {
        let mut total = 0;
        let mut limited = Vec::new();
        let mut left = 0.0;
        for l in self.levels.values() {
            let peak = l.take_peak();
            let mut plan = l.plan.lock();
            let demand = f64::from(peak);
            let Plan { limits, smoothed } = &mut *plan;
            *smoothed = demand.max(MEMORY * *smoothed + (1.0 - MEMORY) * demand);
            total += limits.nominal;
            if l.exempt {
                let seats = limits.least.max(peak);
                left -= f64::from(seats);
                l.set_seats(seats);
                continue;
            }
            let least = f64::from(limits.least.max(limits.nominal.min(peak)));
            limited.push((l, *limits, Claim { least, most: f64::from(limits.most), target: least.max(*smoothed) }));
        }
        left += f64::from(total);
        let least: f64 = limited.iter().map(|(_, l, _)| f64::from(l.least)).sum();
        let wanted: f64 = limited.iter().map(|(.., c)| c.least).sum();
        let shares: Vec<f64> = if left <= least {
            limited.iter().map(|(_, l, _)| f64::from(l.least)).collect()
        } else if left <= wanted {
            let part = (left - least) / (wanted - least);
            limited.iter().map(|(_, l, c)| f64::from(l.least) + (c.least - f64::from(l.least)) * part).collect()
        } else {
            let claims: Vec<Claim> = limited.iter().map(|(.., c)| *c).collect();
            share(f64::from(total), &claims).0
        };
        for ((l, ..), seats) in limited.iter().zip(shares) {
            l.set_seats(seats.round() as u32);
        }
    }
}

struct Commons {
    shares: f64,
    lendable: f64,
    borrowing: Option<f64>,
}

fn commons(o: &Object) -> Commons {
    let exempt = text(o, &["spec", "type"]) == "Exempt";
    let none = Value::Null;
    let part = o.at(&["spec", if exempt { "exempt" } else { "limited" }]).unwrap_or(&none);
    Commons {
        shares: number(&part["nominalConcurrencyShares"], if exempt { 0 } else { 30 }) as f64,
        lendable: number(&part["lendablePercent"], 0) as f64,
        borrowing: part["borrowingLimitPercent"].as_i64().map(|p| p as f64),
    }
}

/// Whether a level is exempt, and its queues; none for one that contradicts itself.
fn kind(o: &Object) -> Option<(bool, Option<Shape>)> {
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
    let size = |key: &str, otherwise: i64| usize::try_from(number(&q[key], otherwise)).ok().filter(|n| *n > 0);
    let shape =
        Shape { queues: size("queues", 64)?, hand: size("handSize", 8)?, length: size("queueLengthLimit", 50)? };
    Some((false, Some(shape)))
}

fn schema(o: &Object, levels: &BTreeMap<String, Arc<Level>>) -> Option<Schema> {
    let level = levels.get(text(o, &["spec", "priorityLevelConfiguration", "name"]))?.clone();
    let rules = o.at(&["spec", "rules"]).cloned().unwrap_or(Value::Array(Vec::new()));
    let by = match text(o, &["spec", "distinguisherMethod", "type"]) {
        "ByUser" => Distinguisher::User,
        "ByNamespace" => Distinguisher::Namespace,
        _ => Distinguisher::None,
    };
    Some(Schema {
        name: o.name().to_owned(),
        uid: o.uid().to_owned(),
        precedence: o.at(&["spec", "matchingPrecedence"]).map_or(1000, |p| number(p, 1000)),
        rules: serde_json::from_value(rules).ok()?,
        by,
        level,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use auth::User;
    use bootstrap::{Kind, MANDATORY, SUGGESTED, objects};
    use serde_json::json;
    use std::time::Duration;

    fn of(what: Kind) -> Vec<Object> {
        let mut all = objects(MANDATORY, what);
        all.extend(objects(SUGGESTED, what));
        all
    }

    fn config(before: Option<&Config>) -> Config {
        Config::new(600, &of(Kind::Schema), &of(Kind::Level), before)
    }

    #[tokio::test(start_paused = true)]
    async fn requests_find_their_level() {
        let c = config(None);
        let check = |user: &User, verb: &str, what: &str, namespace: &str, schema: &str, level: &str| {
            let (group, resource) = what.split_once(':').unwrap_or(("", ""));
            let path = if resource.is_empty() { what } else { "" };
            let d = Digest { user, verb, group, resource, subresource: "", namespace, path };
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
    async fn seats_are_lent_and_come_back() {
        let c = config(None);
        let level = |n: &str| c.levels[n].clone();
        // 245 shares.
        let limits = |n: &str| level(n).limits();
        assert_eq!(limits("workload-low"), Limits { nominal: 245, least: 24, most: 845 });
        assert_eq!(limits("catch-all"), Limits { nominal: 13, least: 13, most: 613 });
        assert_eq!(limits("exempt").nominal, 0);
        let total: u32 = c.levels().map(|l| l.seats()).sum();
        assert!((595..=610).contains(&total), "{total}");
        // Somebody wants more than is his.
        let default = level("global-default");
        let mut held = Vec::new();
        while let Ok(seat) = tokio::time::timeout(Duration::ZERO, default.enter(1, 0, Duration::MAX, || 1)).await {
            held.push(seat.unwrap_or_else(|_| panic!()));
        }
        let before = default.seats();
        let _waiting: Vec<_> = (0..200)
            .map(|_| {
                tokio::spawn({
                    let l = default.clone();
                    async move { l.enter(1, 0, Duration::from_secs(3600), || 1).await.map(std::mem::forget) }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        for _ in 0..5 {
            c.share_out();
        }
        let after = default.seats();
        assert!(after > before, "{before} → {after}");
        assert!(c.levels().filter(|l| !l.exempt).all(|l| l.seats() >= l.limits().least));
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_change_goes_on() {
        let first = config(None);
        let mut levels = of(Kind::Level);
        levels.retain(|o| o.name() != "workload-low");
        for o in &mut levels {
            if o.name() == "system" {
                o.set(&["spec", "limited", "limitResponse", "queuing", "queues"], 3);
            }
        }
        let mut schemas = of(Kind::Schema);
        schemas.retain(|o| !matches!(o.name(), "exempt" | "catch-all" | "global-default"));
        let second = Config::new(600, &schemas, &levels, Some(&first));
        let same = |n: &str| Arc::ptr_eq(&first.levels[n], &second.levels[n]);
        assert!(same("workload-high") && !same("system") && !second.has_level("workload-low"));
        let user = User::new("system:serviceaccount:default:a", &["system:serviceaccounts"]);
        let d =
            Digest { user: &user, verb: "list", group: "", resource: "pods", subresource: "", namespace: "", path: "" };
        assert_eq!(second.classify(&d).unwrap().schema.name, "catch-all", "a schema that leads nowhere is not asked");
        let broken = Object::from_value(json!({"metadata": {"name": "exempt"}, "spec": {"type": "Limited"}})).unwrap();
        assert!(!Config::new(600, &[], &[broken], None).has_level("exempt"));
    }
}
