//! What both directions share: versions, error codes and results.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Limit of the bytes that are read of a plugin, a runtime or a configuration.
pub const MAX_BYTES: u64 = 1 << 20;

/// Error codes of the specification, and one of ours.
pub const INCOMPATIBLE: u32 = 1;
pub const INVALID_ENVIRONMENT: u32 = 4;
pub const INVALID_CONFIGURATION: u32 = 7;
pub const TRY_AGAIN: u32 = 11;
pub const FAILED: u32 = 100;

/// A version of the specification whose results have interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Version {
    #[serde(rename = "0.3.0")]
    V0_3_0,
    #[serde(rename = "0.3.1")]
    V0_3_1,
    #[serde(rename = "0.4.0")]
    V0_4_0,
    #[serde(rename = "1.0.0")]
    V1_0_0,
    #[serde(rename = "1.1.0")]
    V1_1_0,
}

impl Version {
    pub const ALL: [Version; 5] = [Self::V0_3_0, Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|v| v.as_str() == text)
    }

    /// All versions, separated by commas.
    pub fn list() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a plugin failed, as it says it.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Failure {
    pub code: u32,
    pub msg: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl Failure {
    pub fn new(code: u32, msg: impl Into<String>) -> Self {
        Self { code, msg: msg.into(), details: String::new() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.details.as_str() {
            "" => f.write_str(&self.msg),
            details => write!(f, "{}; {details}", self.msg),
        }
    }
}

/// A result in a version of the specification. Before 1.0, addresses had the version of their protocol.
pub fn in_version(mut result: Value, version: &str) -> Value {
    for address in result.get_mut("ips").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(address) = address.as_object_mut() else { continue };
        if version.starts_with("0.") {
            let is_v6 = address.get("address").and_then(Value::as_str).is_some_and(|a| a.contains(':'));
            address.insert("version".into(), if is_v6 { "6" } else { "4" }.into());
        } else {
            address.remove("version");
        }
    }
    if let Some(result) = result.as_object_mut() {
        result.insert("cniVersion".into(), version.into());
    }
    result
}

/// The parts of a result that say which addresses a pod has.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    interfaces: Vec<Interface>,
    #[serde(default)]
    ips: Vec<Address>,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Interface {
    name: String,
}

#[derive(Deserialize)]
struct Address {
    address: String,
    interface: Option<usize>,
}

/// The addresses of an interface of the pod, IPv4 first. An address without an interface is that of the pod's only one.
pub fn addresses(result: &Value, interface: &str) -> Result<Vec<IpAddr>, String> {
    let parts = Parts::deserialize(result).map_err(|e| format!("invalid result: {e}"))?;
    let mut all = Vec::new();
    for ip in &parts.ips {
        let name = match ip.interface {
            None => interface,
            Some(index) => {
                let known = parts.interfaces.get(index);
                &known
                    .ok_or_else(|| format!("address {:?} has interface {index}, which does not exist", ip.address))?
                    .name
            }
        };
        if name != interface {
            continue;
        }
        let (address, length) = ip.address.split_once('/').unwrap_or((&ip.address, ""));
        let parsed: Option<IpAddr> = address.parse().ok();
        let parsed = parsed.filter(|a| {
            let most = if a.is_ipv4() { 32 } else { 128 };
            length.parse().is_ok_and(|length: u8| length <= most) && !a.is_unspecified() && !a.is_loopback()
        });
        all.push(parsed.ok_or_else(|| format!("{:?} is not the address of a pod", ip.address))?);
    }
    if all.is_empty() {
        return Err(format!("it has no address of {interface}"));
    }
    all.sort_by_key(IpAddr::is_ipv6);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn addresses_are_those_of_the_interface() {
        let check = |ips: Value| {
            addresses(&json!({"interfaces": [{"name": "cni0"}, {"name": "eth0", "sandbox": "/n"}], "ips": ips}), "eth0")
        };
        let both = check(
            json!([{"address": "fd00::2/64", "interface": 1}, {"address": "10.1.2.3/24"}, {"address": "10.9.9.9/8", "interface": 0}]),
        );
        assert_eq!(both.unwrap(), ["10.1.2.3".parse::<IpAddr>().unwrap(), "fd00::2".parse().unwrap()]);
        for (ips, error) in [
            (json!([]), "it has no address of eth0"),
            (json!([{"address": "10.1.2.3/24", "interface": 0}]), "it has no address of eth0"),
            (
                json!([{"address": "10.1.2.3/24", "interface": 2}]),
                "address \"10.1.2.3/24\" has interface 2, which does not exist",
            ),
            (json!([{"address": "10.1.2.3"}]), "\"10.1.2.3\" is not the address of a pod"),
            (json!([{"address": "10.1.2.3/33"}]), "\"10.1.2.3/33\" is not the address of a pod"),
            (json!([{"address": "127.0.0.1/8"}]), "\"127.0.0.1/8\" is not the address of a pod"),
        ] {
            assert_eq!(check(ips.clone()).unwrap_err(), error, "{ips}");
        }
        assert!(check(json!("rubbish")).unwrap_err().starts_with("invalid result"));
        assert!(addresses(&json!([]), "eth0").is_err());
    }

    #[test]
    fn versions_are_in_order_and_results_follow_them() {
        assert!(Version::ALL.is_sorted());
        assert!(Version::ALL.iter().all(|v| Version::parse(v.as_str()) == Some(*v)));
        assert_eq!(Version::parse("0.2.0"), None);
        let result = json!({"ips": [{"address": "10.1.2.3/24"}, {"address": "fd00::2/64"}]});
        let old = in_version(result, "0.3.1");
        assert_eq!((&old["ips"][0]["version"], &old["ips"][1]["version"]), (&json!("4"), &json!("6")));
        let new = in_version(old, "1.0.0");
        assert_eq!((new["ips"][1].get("version"), &new["cniVersion"]), (None, &json!("1.0.0")));
        assert_eq!(in_version(json!("rubbish"), "1.0.0"), json!("rubbish"));
    }
}
