//! When a pod must leave because of taints of the devices that it uses. Pure: data to data.

use jiff::Timestamp;
use meta::Value;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;

/// A device slice, as far as taints are concerned.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SliceView {
    pub spec: SliceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SliceSpec {
    pub driver: String,
    pub pool: PoolRef,
    #[serde(deserialize_with = "client::informer::or_default")]
    pub devices: Vec<Device>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PoolRef {
    pub name: String,
    pub generation: i64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Device {
    pub name: String,
    #[serde(deserialize_with = "client::informer::or_default")]
    pub taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: String,
    pub time_added: Option<Timestamp>,
}

/// The claims of devices, as far as taints are concerned.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimView {
    pub status: ClaimStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    pub allocation: Option<Allocation>,
    #[serde(deserialize_with = "client::informer::or_default")]
    pub reserved_for: Vec<Consumer>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Allocation {
    pub devices: AllocatedDevices,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllocatedDevices {
    #[serde(deserialize_with = "client::informer::or_default")]
    pub results: Vec<AllocatedDevice>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AllocatedDevice {
    pub driver: String,
    pub pool: String,
    pub device: String,
    #[serde(deserialize_with = "client::informer::or_default")]
    pub tolerations: Vec<Toleration>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    pub key: String,
    pub operator: String,
    pub value: String,
    pub effect: String,
    pub toleration_seconds: Option<i64>,
}

impl Toleration {
    /// Only tolerations that name the effect count.
    fn tolerates(&self, taint: &Taint) -> bool {
        let key = self.key.is_empty() || self.key == taint.key;
        self.effect == NO_EXECUTE && key && (self.operator == "Exists" || self.value == taint.value)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Consumer {
    pub api_group: String,
    pub resource: String,
    pub name: String,
    pub uid: String,
}

impl Consumer {
    pub fn is_pod(&self) -> bool {
        self.api_group.is_empty() && self.resource == "pods"
    }
}

pub const NO_EXECUTE: &str = "NoExecute";

/// The taints of a pool's devices. Slices of older generations of the pool do not count.
pub fn pool_taints<'a>(slices: impl Iterator<Item = &'a SliceSpec> + Clone) -> BTreeMap<String, Vec<Taint>> {
    let newest = slices.clone().map(|s| s.pool.generation).max();
    let devices = slices.filter(|s| Some(s.pool.generation) == newest).flat_map(|s| &s.devices);
    let evicting = |d: &Device| -> Vec<Taint> { d.taints.iter().filter(|t| t.effect == NO_EXECUTE).cloned().collect() };
    devices.map(|d| (d.name.clone(), evicting(d))).filter(|(_, taints)| !taints.is_empty()).collect()
}

/// When a pod must leave that uses allocated devices; none if it may stay. Taints without a time count from `unknown`.
pub fn eviction_time<'a>(
    devices: impl Iterator<Item = &'a AllocatedDevice>,
    taints: impl Fn(&AllocatedDevice) -> Vec<Taint>,
    unknown: Timestamp,
) -> Option<Timestamp> {
    let of_device = |device: &AllocatedDevice| {
        let time = |taint: Taint| {
            let added = taint.time_added.unwrap_or(unknown);
            let used: Vec<&Toleration> = device.tolerations.iter().filter(|t| t.tolerates(&taint)).collect();
            if used.iter().any(|t| t.toleration_seconds.is_none()) {
                return None;
            }
            let shortest = used.iter().filter_map(|t| t.toleration_seconds).min();
            Some(meta::time::plus(added, shortest.unwrap_or(0).max(0)))
        };
        taints(device).into_iter().filter_map(time).min()
    };
    devices.filter_map(of_device).min()
}

/// The names of the claims that a pod uses, and whether the claim must be controlled by the pod.
pub fn claim_names(pod: &meta::Object) -> Vec<(String, bool)> {
    let list = |path: [&str; 2]| pod.at(&path).and_then(Value::as_array).into_iter().flatten();
    let text = |v: &Value| v.as_str().filter(|s| !s.is_empty()).map(str::to_owned);
    list(["spec", "resourceClaims"])
        .filter_map(|c| match text(&c["resourceClaimName"]) {
            Some(name) => Some((name, false)),
            None => {
                let status = list(["status", "resourceClaimStatuses"]).find(|s| s["name"] == c["name"])?;
                Some((text(&status["resourceClaimName"])?, true))
            }
        })
        .collect()
}

/// The condition of a pod that is evicted.
pub fn disruption_target(now: Timestamp) -> Value {
    json!({
        "type": "DisruptionTarget", "status": "True", "reason": "DeletionByDeviceTaintManager",
        "message": "Device Taint manager: deleting due to NoExecute taint",
        "lastTransitionTime": meta::time::format(now),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + s).unwrap()
    }

    fn taint(key: &str, added: Option<i64>) -> Taint {
        Taint { key: key.into(), value: "v".into(), effect: NO_EXECUTE.into(), time_added: added.map(at) }
    }

    fn toleration(key: &str, operator: &str, value: &str, seconds: Option<i64>) -> Toleration {
        Toleration {
            key: key.into(),
            operator: operator.into(),
            value: value.into(),
            effect: NO_EXECUTE.into(),
            toleration_seconds: seconds,
        }
    }

    #[test]
    fn the_earliest_end_of_all_tolerations_counts() {
        let any = |seconds| toleration("", "Exists", "", seconds);
        let cases: Vec<(Vec<Taint>, Vec<Toleration>, Option<i64>)> = vec![
            (vec![], vec![], None),
            (vec![taint("a", Some(5))], vec![], Some(5)),
            (vec![taint("a", None)], vec![], Some(100)),
            (vec![taint("a", Some(5))], vec![any(None)], None),
            (vec![taint("a", Some(5))], vec![any(Some(60))], Some(65)),
            (vec![taint("a", Some(5))], vec![any(Some(60)), any(Some(20))], Some(25)),
            (vec![taint("a", Some(5))], vec![any(Some(-7))], Some(5)),
            (vec![taint("a", Some(5))], vec![any(Some(60)), toleration("a", "Equal", "v", None)], None),
            (vec![taint("a", Some(5))], vec![toleration("a", "Equal", "other", None)], Some(5)),
            (vec![taint("a", Some(5))], vec![toleration("b", "Exists", "", None)], Some(5)),
            (vec![taint("a", Some(5)), taint("b", Some(1))], vec![toleration("a", "Exists", "", None)], Some(1)),
            (vec![taint("a", Some(5))], vec![Toleration { effect: String::new(), ..any(None) }], Some(5)),
        ];
        for (i, (taints, tolerations, expect)) in cases.into_iter().enumerate() {
            let device = AllocatedDevice { tolerations, ..AllocatedDevice::default() };
            let got = eviction_time(std::iter::once(&device), |_| taints.clone(), at(100));
            assert_eq!(got, expect.map(at), "{i}");
        }
    }

    #[test]
    fn only_the_newest_generation_of_a_pool_counts() {
        let slice = |generation: i64, device: &str, effects: &[&str]| SliceSpec {
            pool: PoolRef { name: "p".into(), generation },
            devices: vec![Device {
                name: device.into(),
                taints: effects.iter().map(|e| Taint { effect: (*e).into(), ..Taint::default() }).collect(),
            }],
            ..SliceSpec::default()
        };
        let all =
            [slice(1, "old", &[NO_EXECUTE]), slice(2, "a", &["NoSchedule", NO_EXECUTE]), slice(2, "b", &["None"])];
        let found = pool_taints(all.iter());
        assert_eq!(found.iter().map(|(d, t)| (d.as_str(), t.len())).collect::<Vec<_>>(), [("a", 1)]);
        assert!(pool_taints(std::iter::empty()).is_empty());
    }

    #[test]
    fn claims_of_a_pod() {
        let pod = meta::Object::from_value(json!({
            "spec": {"resourceClaims": [
                {"name": "a", "resourceClaimName": "mine"}, {"name": "b", "resourceClaimTemplateName": "t"},
                {"name": "c", "resourceClaimTemplateName": "t"}, {"name": "d", "resourceClaimTemplateName": "t"}]},
            "status": {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "made"}, {"name": "c"}]},
        }))
        .unwrap();
        assert_eq!(claim_names(&pod), [("mine".to_owned(), false), ("made".to_owned(), true)]);
    }
}
