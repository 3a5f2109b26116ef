//! Sizes of replica sets during rollouts (upstream `rolling.go` and `sync.go`). Pure: data to data.

use super::sets::{MAX_REPLICAS, annotated_count, by_age, replicas, status};
use crate::views::{MAX_COUNT, scaled};
use meta::{Object, Value};

pub fn is_rolling(d: &Object) -> bool {
    d.str_at(&["spec", "strategy", "type"]).unwrap_or("RollingUpdate") == "RollingUpdate"
}

/// A count or percentage with its default, 25 %.
fn resolve(v: Option<&Value>, total: i64, round: fn(f64) -> f64) -> i64 {
    scaled(v.unwrap_or(&Value::from("25%")), total, round)
}

/// `(maxSurge, maxUnavailable)` as counts: the first rounded up, the second down; if both were zero, the second is one.
fn fenceposts(d: &Object) -> (i64, i64) {
    let at = |k| d.at(&["spec", "strategy", "rollingUpdate", k]);
    let surge = resolve(at("maxSurge"), replicas(d), f64::ceil);
    let unavailable = resolve(at("maxUnavailable"), replicas(d), f64::floor);
    if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
}

pub fn max_surge(d: &Object) -> i64 {
    if is_rolling(d) { fenceposts(d).0 } else { 0 }
}

pub fn max_unavailable(d: &Object) -> i64 {
    if !is_rolling(d) || replicas(d) == 0 { 0 } else { fenceposts(d).1.min(replicas(d)) }
}

pub fn total<'a>(sets: impl Iterator<Item = &'a Object>) -> i64 {
    sets.map(replicas).sum()
}

/// The size of the new set. `current` is the desired number of pods of all sets.
pub fn new_size(d: &Object, new: &Object, current: i64) -> i64 {
    if !is_rolling(d) {
        return replicas(d);
    }
    let room = replicas(d) + max_surge(d) - current;
    if room <= 0 { replicas(new) } else { replicas(new) + room.min(replicas(d) - replicas(new)) }
}

/// The next size of the new set in a rollout; none if it needs no change.
pub fn reconcile_new(d: &Object, new: &Object, old: &[Object]) -> Option<i64> {
    let (now, wish) = (replicas(new), replicas(d));
    let next = match now.cmp(&wish) {
        std::cmp::Ordering::Equal => return None,
        std::cmp::Ordering::Greater => wish,
        std::cmp::Ordering::Less => new_size(d, new, total(old.iter()) + now),
    };
    (next != now).then_some(next)
}

/// The next sizes of old sets in a rollout, by index: unhealthy pods first, then as many as availability allows.
///
/// A set with more available pods than it should have is still being scaled down: its counts say nothing about what may go, so that
/// nothing more is removed until they agree (upstream's `cleanupUnhealthyReplicas` fails then).
pub fn reconcile_old(d: &Object, new: &Object, old: &[Object]) -> Vec<(usize, i64)> {
    let min_available = replicas(d) - max_unavailable(d);
    let new_unavailable = replicas(new) - status(new, "availableReplicas");
    let max_down = total(old.iter()) + replicas(new) - min_available - new_unavailable;
    if total(old.iter()) == 0 || max_down <= 0 {
        return Vec::new();
    }
    let mut order: Vec<usize> = (0..old.len()).collect();
    order.sort_by(|a, b| by_age(&old[*a], &old[*b]));
    let mut sizes: Vec<i64> = old.iter().map(replicas).collect();

    let mut unhealthy = 0;
    let mut settled = true;
    for &i in order.iter().filter(|i| replicas(&old[**i]) > 0) {
        let ill = sizes[i] - status(&old[i], "availableReplicas");
        if unhealthy >= max_down {
            break;
        }
        if ill < 0 {
            settled = false;
            break;
        }
        let n = ill.min(max_down - unhealthy);
        sizes[i] -= n;
        unhealthy += n;
    }
    let active = old.iter().filter(|s| replicas(s) > 0);
    let available = active.map(|s| status(s, "availableReplicas")).sum::<i64>() + status(new, "availableReplicas");
    let mut spare = if settled { available - min_available } else { 0 };
    for &i in &order {
        if spare <= 0 {
            break;
        }
        let n = sizes[i].min(spare);
        sizes[i] -= n;
        spare -= n;
    }
    order.into_iter().filter(|i| sizes[*i] != replicas(&old[*i])).map(|i| (i, sizes[i])).collect()
}

/// The sizes of active sets when the deployment is scaled during a rollout: the difference is distributed
/// in proportion to their sizes, the rest goes to the largest. The result has the order of `sets`.
pub fn proportional(d: &Object, sets: &[&Object]) -> Vec<i64> {
    let allowed = if replicas(d) > 0 { replicas(d) + max_surge(d) } else { 0 };
    let all = total(sets.iter().copied());
    let to_add = allowed - all;
    let mut order: Vec<usize> = (0..sets.len()).collect();
    // Largest first; of equal ones the newer grows and the older shrinks first.
    order.sort_by(|a, b| {
        let (a, b) = (sets[*a], sets[*b]);
        replicas(b).cmp(&replicas(a)).then_with(|| if to_add > 0 { by_age(b, a) } else { by_age(a, b) })
    });
    let mut sizes: Vec<i64> = sets.iter().map(|s| replicas(s)).collect();
    let mut added = 0;
    for &i in &order {
        let share = proportion(d, sets[i], to_add, added);
        sizes[i] += share;
        added += share;
    }
    if let Some(&largest) = order.first() {
        sizes[largest] = (sizes[largest] + to_add - added).max(0);
    }
    sizes
}

fn proportion(d: &Object, set: &Object, to_add: i64, added: i64) -> i64 {
    if replicas(set) == 0 || to_add == 0 || to_add == added {
        return 0;
    }
    let left = to_add - added;
    let share = fraction(d, set);
    if to_add > 0 { share.min(left) } else { share.max(left) }
}

/// The change of one set in proportion to its size.
fn fraction(d: &Object, set: &Object) -> i64 {
    if replicas(d) == 0 {
        return -replicas(set);
    }
    let before = match annotated_count(set, MAX_REPLICAS) {
        Some(m) if m > 0 => m,
        // No annotation yet: use the replicas in the status.
        _ => status(d, "replicas"),
    };
    if before == 0 {
        return 0;
    }
    let size = replicas(set) as f64 * (replicas(d) + max_surge(d)) as f64 / before as f64;
    (size.round() as i64).clamp(-MAX_COUNT, MAX_COUNT) - replicas(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deployment(n: i64, surge: Value, unavailable: Value) -> Object {
        Object::from_value(json!({"spec": {"replicas": n, "strategy": {"type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}}}))
        .unwrap()
    }

    fn set(name: &str, n: i64, available: i64, max: i64) -> Object {
        Object::from_value(json!({
            "metadata": {"name": name, "annotations": {MAX_REPLICAS: max.to_string()}},
            "spec": {"replicas": n}, "status": {"replicas": n, "availableReplicas": available},
        }))
        .unwrap()
    }

    /// Clauses: C04.maxSurge, C04.maxUnavailable
    #[test]
    fn surge_and_unavailability_limits() {
        let cases = [
            (10, json!("25%"), json!("25%"), 3, 2),
            (10, json!(0), json!("1%"), 0, 1),
            (1, json!("25%"), json!("25%"), 1, 0),
            (2, json!(0), json!(5), 0, 2),
            (0, json!("50%"), json!("50%"), 0, 0),
        ];
        for (n, s, u, surge, unavailable) in cases {
            let d = deployment(n, s, u);
            assert_eq!((max_surge(&d), max_unavailable(&d)), (surge, unavailable), "{n}");
        }
    }

    /// The example of the documentation: 10 replicas, 8 old and 5 new in mid-rollout, scaled to 15.
    /// Clauses: C06.numbers
    #[test]
    fn proportional_scaling() {
        let d = deployment(15, json!(3), json!(2));
        let (new, old) = (set("new", 5, 5, 13), set("old", 8, 8, 13));
        assert_eq!(proportional(&d, &[&new, &old]), [7, 11]);
        let down = deployment(5, json!(3), json!(2));
        assert_eq!(proportional(&down, &[&new, &old]), [3, 5]);
        let zero = deployment(0, json!(3), json!(2));
        assert_eq!(proportional(&zero, &[&new, &old]), [0, 0]);
    }

    #[test]
    fn a_rollout_stays_within_its_limits() {
        for (n, surge, unavailable) in [(10, 3, 2), (3, 1, 0), (4, 0, 1), (1, 1, 0), (7, 7, 7)] {
            let d = deployment(n, json!(surge), json!(unavailable));
            let (mut new, mut old) = (set("new", 0, 0, 0), vec![set("old", n, n, 0)]);
            let mut steps = 0;
            while replicas(&new) < n || replicas(&old[0]) > 0 {
                let before = (new.clone(), old.clone());
                if let Some(size) = reconcile_new(&d, &new, &old) {
                    new.set(&["spec", "replicas"], size);
                } else {
                    for (i, size) in reconcile_old(&d, &new, &old) {
                        old[i].set(&["spec", "replicas"], size);
                    }
                }
                for s in [&mut new, &mut old[0]] {
                    let available = status(s, "availableReplicas").min(replicas(s));
                    s.set(&["status", "availableReplicas"], available);
                }
                let available = status(&new, "availableReplicas") + status(&old[0], "availableReplicas");
                assert!(available >= n - unavailable, "{n} {surge} {unavailable}");
                assert!(replicas(&new) + replicas(&old[0]) <= n + surge);
                if before == (new.clone(), old.clone()) {
                    // One more pod becomes available.
                    let a = status(&new, "availableReplicas");
                    assert!(a < replicas(&new), "stuck: {n} {surge} {unavailable}");
                    new.set(&["status", "availableReplicas"], a + 1);
                }
                steps += 1;
                assert!(steps < 100);
            }
        }
    }

    #[test]
    fn unhealthy_pods_go_first() {
        let d = deployment(4, json!(1), json!(1));
        let new = set("new", 1, 0, 0);
        let old = [set("ill", 2, 0, 0), set("well", 2, 2, 0)];
        assert_eq!(reconcile_old(&d, &new, &old), [(0, 1)], "4 + 1 - 3 - 1 = 1 may go");
    }

    /// A set that is being scaled down counted pods as available that were about to go, and others were removed in their place.
    #[test]
    fn a_set_that_is_being_scaled_down_holds_the_others() {
        let d = deployment(4, json!(1), json!(1));
        let new = set("new", 1, 1, 0);
        let shrinking = [set("a", 1, 3, 0), set("b", 2, 2, 0)];
        assert_eq!(reconcile_old(&d, &new, &shrinking), [], "1 + 2 + 1 pods stay, and 3 must be available");
        let gone = [set("a", 0, 3, 0), set("b", 3, 3, 0)];
        assert_eq!(reconcile_old(&d, &new, &gone), [(1, 2)], "pods of an empty set are not available");
        let settled = [set("a", 1, 1, 0), set("b", 2, 2, 0)];
        assert_eq!(reconcile_old(&d, &new, &settled), [(0, 0)]);
    }
}
