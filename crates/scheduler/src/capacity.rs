//! Capacity of devices that several claims share (upstream `structured/internal/incubating/consumable_capacity.go`). Pure.

use crate::devices::DeviceId;
use meta::{Quantity, Value};
use std::collections::{BTreeMap, HashMap};

/// Amounts by the name of the capacity.
pub type Amounts = BTreeMap<String, Quantity>;

/// What claims use of devices.
#[derive(Clone, Debug, Default)]
pub struct InUse {
    /// Devices that one claim has alone, with the number of claims that say so.
    exclusive: HashMap<DeviceId, usize>,
    /// Of shared devices: the number of shares, and how much of each capacity is used, in billionths.
    shared: HashMap<DeviceId, (usize, BTreeMap<String, i128>)>,
}

/// What a result of an allocation uses: a device, or a share of one. None for administrative access.
fn use_of(result: &Value) -> Option<(DeviceId, Option<Vec<(&String, Quantity)>>)> {
    if result["adminAccess"] == true {
        return None;
    }
    let text = |field: &str| -> Box<str> { result[field].as_str().unwrap_or_default().into() };
    let consumed = result["consumedCapacity"].as_object().into_iter().flatten();
    let share = || consumed.filter_map(|(name, v)| Some((name, read(v)?))).collect();
    Some(((text("driver"), text("pool"), text("device")), (!result["shareID"].is_null()).then(share)))
}

impl InUse {
    /// Adds what an allocation (`status.allocation` of a claim) uses.
    pub fn add(&mut self, allocation: &Value) {
        for (id, share) in results(allocation).filter_map(use_of) {
            match share {
                Some(share) => self.add_shared(id, share.into_iter()),
                None => self.add_exclusive(id),
            }
        }
    }

    /// Removes what an allocation uses that was added.
    pub fn remove(&mut self, allocation: &Value) {
        for (id, share) in results(allocation).filter_map(use_of) {
            match share {
                Some(share) => {
                    let Some((count, used)) = self.shared.get_mut(&id) else { continue };
                    *count -= 1;
                    for (name, amount) in share {
                        let used = used.entry(name.clone()).or_default();
                        *used = used.saturating_sub(amount.nano_value());
                    }
                    if *count == 0 {
                        self.shared.remove(&id);
                    }
                }
                None => {
                    let Some(count) = self.exclusive.get_mut(&id) else { continue };
                    *count -= 1;
                    if *count == 0 {
                        self.exclusive.remove(&id);
                    }
                }
            }
        }
    }

    pub fn add_exclusive(&mut self, id: DeviceId) {
        *self.exclusive.entry(id).or_default() += 1;
    }

    pub fn add_shared<'a>(&mut self, id: DeviceId, consumed: impl Iterator<Item = (&'a String, Quantity)>) {
        let (count, used) = self.shared.entry(id).or_default();
        *count += 1;
        for (name, amount) in consumed {
            let used = used.entry(name.clone()).or_default();
            *used = used.saturating_add(amount.nano_value());
        }
    }

    /// Whether one claim has the device alone.
    pub fn is_exclusive(&self, id: &DeviceId) -> bool {
        self.exclusive.contains_key(id)
    }

    /// Whether claims share the device.
    pub fn is_shared(&self, id: &DeviceId) -> bool {
        self.shared.contains_key(id)
    }

    /// Whether any claim has the device or a part of it.
    pub fn has(&self, id: &DeviceId) -> bool {
        self.is_exclusive(id) || self.is_shared(id)
    }

    /// How much of a capacity of a shared device is used, in billionths.
    pub fn used(&self, id: &DeviceId, capacity: &str) -> i128 {
        self.shared.get(id).and_then(|(_, all)| all.get(capacity)).copied().unwrap_or(0)
    }
}

fn results(allocation: &Value) -> impl Iterator<Item = &Value> {
    allocation["devices"]["results"].as_array().into_iter().flatten()
}

fn read(value: &Value) -> Option<Quantity> {
    Quantity::parse(value.as_str()?).ok()
}

fn least(a: &Quantity, b: &Quantity) -> bool {
    a.nano_value() <= b.nano_value()
}

/// What a request uses of each capacity of a device: what it asks for, rounded up as the policy of the capacity says. None if the device
/// lacks a requested capacity, or a policy forbids the amount.
pub fn consumed(requests: &Value, device: &Value) -> Option<Amounts> {
    let capacities = &device["capacity"];
    let requested = requests["requests"].as_object();
    if requested.into_iter().flatten().any(|(name, _)| capacities[name].is_null()) {
        return None;
    }
    let each = capacities.as_object().into_iter().flatten();
    each.map(|(name, capacity)| {
        let request = requested.and_then(|all| read(all.get(name)?));
        Some((name.clone(), amount(request, capacity)?))
    })
    .collect()
}

/// The amount for a request of a capacity; none if its policy forbids it.
fn amount(request: Option<Quantity>, capacity: &Value) -> Option<Quantity> {
    let policy = &capacity["requestPolicy"];
    let Some(request) = request else { return read(&policy["default"]).or_else(|| read(&capacity["value"])) };
    let (range, values) = (&policy["validRange"], policy["validValues"].as_array());
    let amount = match (read(&range["min"]), values) {
        (Some(min), _) => round_up(request, min, read(&range["step"])),
        (None, Some(values)) => values.iter().filter_map(read).find(|value| least(&request, value)).unwrap_or(request),
        (None, None) => request,
    };
    let is_default = read(&policy["default"]).is_some_and(|default| default.nano_value() == amount.nano_value());
    let is_valid = match (read(&range["max"]), values) {
        (Some(max), _) => least(&amount, &max),
        (None, Some(values)) => values.iter().filter_map(read).any(|value| value.nano_value() == amount.nano_value()),
        (None, None) => true,
    };
    (is_default || is_valid).then_some(amount)
}

fn round_up(request: Quantity, min: Quantity, step: Option<Quantity>) -> Quantity {
    if least(&request, &min) {
        return min;
    }
    let Some(step) = step.map(|s| i128::from(s.value())).filter(|s| *s > 0) else { return request };
    let min = i128::from(min.value());
    let above = i128::from(request.value()) - min;
    let rounded = min + step * (above / step + i128::from(above % step != 0));
    Quantity::binary(i64::try_from(rounded).unwrap_or(i64::MAX))
}

/// Whether a device has these amounts beside `used`, in billionths by capacity.
pub fn suffices(device: &Value, amounts: &Amounts, used: impl Fn(&str) -> i128) -> bool {
    amounts.iter().all(|(name, amount)| {
        let value = read(&device["capacity"][name]["value"]).map_or(0, |q| q.nano_value());
        amount.nano_value().saturating_add(used(name)) <= value
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_are_rounded_up_as_the_policy_says() {
        let check = |policy: Value, request: Option<&str>, expect: Option<&str>| {
            let mut capacity = json!({"value": "10Gi"});
            if !policy.is_null() {
                capacity["requestPolicy"] = policy.clone();
            }
            let request = request.map_or(json!({}), |r| json!({"requests": {"memory": r}}));
            let found = consumed(&request, &json!({"capacity": {"memory": capacity}}));
            let found = found.map(|all| all["memory"].to_string());
            assert_eq!(found.as_deref(), expect, "{policy} {request}");
        };
        check(Value::Null, None, Some("10Gi"));
        check(Value::Null, Some("3Gi"), Some("3Gi"));
        let range = json!({"default": "1Gi", "validRange": {"min": "1Gi", "max": "8Gi", "step": "2Gi"}});
        check(range.clone(), None, Some("1Gi"));
        check(range.clone(), Some("1"), Some("1Gi"));
        check(range.clone(), Some("2Gi"), Some("3Gi"));
        check(range.clone(), Some("7Gi"), Some("7Gi"));
        check(range.clone(), Some("8Gi"), None);
        check(range, Some("9223372036854775807"), None);
        let values = json!({"default": "1Gi", "validValues": ["1Gi", "4Gi"]});
        check(values.clone(), Some("2Gi"), Some("4Gi"));
        check(values.clone(), Some("5Gi"), None);
        check(values, None, Some("1Gi"));
        let open = json!({"default": "1Gi", "validRange": {"min": "1Gi"}});
        check(open, Some("9Gi"), Some("9Gi"));
        let steps = json!({"default": "1k", "validRange": {"min": "0", "step": "1k"}});
        check(steps, Some("9223372036854775807"), Some("9223372036854775807"));
        assert!(consumed(&json!({"requests": {"cores": "1"}}), &json!({"capacity": {}})).is_none());
    }

    /// A sum of amounts that was too large for its type became negative, and everything fitted.
    #[test]
    fn huge_amounts_do_not_fit() {
        let huge = || [("memory".to_owned(), Quantity::parse("1e29").unwrap())];
        let device = json!({"capacity": {"memory": {"value": "1e29"}}});
        let mut in_use = InUse::default();
        let id = || -> DeviceId { ("d".into(), "p".into(), "d".into()) };
        for _ in 0..3 {
            in_use.add_shared(id(), huge().iter().map(|(name, q)| (name, *q)));
        }
        assert!(!suffices(&device, &huge().into(), |name| in_use.used(&id(), name)));
    }

    #[test]
    fn an_empty_device_suffices() {
        let device = json!({"capacity": {"memory": {"value": "1e29"}}});
        let amounts: Amounts = [("memory".to_owned(), Quantity::parse("1e29").unwrap())].into();
        assert!(suffices(&device, &amounts, |_| 0));
    }
}
