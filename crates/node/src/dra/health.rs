//! The health of devices, as their drivers report it (upstream `cm/dra/healthinfo.go`).
//!
//! Each report has all devices of a driver. [`Devices`] keeps the last one, without I/O: a device that was not reported again in time is
//! unknown. [`follow`] reads the reports of a driver for as long as it is registered. The pods that use a device whose health changes
//! report their status. After a restart of the agent, devices are unknown until drivers report again, which they do when it connects.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Weak;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceHealth, ResourceStatus};
use plugins::api::dra_health::{DeviceHealth, HealthStatus, WATCH, WatchRequest};
use plugins::{Code, Connection};
use tokio::time::Instant;

use super::{Dra, Prepared, container_claims, reference, serves};
use crate::bounded::cut;
use crate::pod::spec::text;

/// How long a report counts, unless it says so itself.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest that a report counts: a year.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
/// Bytes of a message (`ResourceHealthMessageMaxLength`).
const MAX_MESSAGE: usize = 1024;
/// Devices of a driver whose health is kept, and bytes of their names.
const MAX_DEVICES: usize = 64 << 10;
const MAX_NAME: usize = 253;
/// The time that a driver has to begin its stream.
const DEADLINE: Duration = Duration::from_secs(10);
/// The pause after each report. A driver in a hurry waits: each report may change the status of every pod.
const PACE: Duration = Duration::from_secs(1);
/// The pause after a stream has ended, as upstream.
const AGAIN: Duration = Duration::from_secs(5);

/// Pool and name of a device.
type Name = (String, String);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Report {
    health: HealthStatus,
    message: String,
    timeout: Duration,
    at: Instant,
}

impl Report {
    fn unknown(at: Instant, timeout: Duration) -> Self {
        Self { health: HealthStatus::Unknown, message: String::new(), timeout, at }
    }

    /// What the API shows.
    fn shown(&self) -> (HealthStatus, &str, Duration) {
        (self.health, &self.message, self.timeout)
    }
}

/// The health of the devices of a driver.
#[derive(Clone, Debug, Default)]
pub(super) struct Devices(BTreeMap<Name, Report>);

impl Devices {
    /// Takes a report. Returns the devices that have changed.
    fn update(&mut self, devices: Vec<DeviceHealth>, now: Instant) -> BTreeSet<Name> {
        let mut changed = BTreeSet::new();
        for device in devices {
            let name = device.device.clone().map(|d| (d.pool_name, d.device_name)).unwrap_or_default();
            let is_known = self.0.contains_key(&name);
            if name.0.len() > MAX_NAME || name.1.len() > MAX_NAME || !is_known && self.0.len() >= MAX_DEVICES {
                continue;
            }
            let timeout = u64::try_from(device.health_check_timeout_seconds).ok().filter(|seconds| *seconds > 0);
            let new = Report {
                health: device.health(),
                message: cut(&device.message, MAX_MESSAGE),
                timeout: timeout.map_or(TIMEOUT, Duration::from_secs).min(MAX_TIMEOUT),
                at: now,
            };
            if self.0.get(&name).is_none_or(|old| old.shown() != new.shown()) {
                changed.insert(name.clone());
            }
            self.0.insert(name, new);
        }
        changed.extend(self.expire(now));
        changed
    }

    /// Makes devices unknown whose reports are too old. Returns them.
    fn expire(&mut self, now: Instant) -> BTreeSet<Name> {
        let mut expired = BTreeSet::new();
        for (name, report) in &mut self.0 {
            let is_old = now.saturating_duration_since(report.at) > report.timeout;
            if is_old && report.health != HealthStatus::Unknown {
                *report = Report::unknown(now, report.timeout);
                expired.insert(name.clone());
            }
        }
        expired
    }

    /// When the next report becomes too old.
    fn next(&self) -> Option<Instant> {
        let known = self.0.values().filter(|r| r.health != HealthStatus::Unknown);
        // After that time, not at it.
        known.map(|r| r.at + r.timeout + Duration::from_millis(1)).min()
    }

    fn of(&self, pool: &str, device: &str) -> (HealthStatus, &str) {
        let report = self.0.get(&(pool.to_owned(), device.to_owned()));
        report.map_or((HealthStatus::Unknown, ""), |r| (r.health, &r.message))
    }
}

/// Follows the health of a driver's devices, for as long as it is registered. Ends if the driver has no such service.
pub(super) async fn follow(dra: Weak<Dra>, driver: String, socket: std::path::PathBuf, connection: Connection) {
    loop {
        match read(&dra, &driver, &socket, &connection).await {
            Err(error) if error.code() == Code::Unimplemented => {
                return tracing::debug!(driver, "a driver does not report the health of its devices");
            }
            outcome => {
                let error = outcome.err().map(|e| e.to_string());
                tracing::debug!(driver, error, "a driver's reports of health ended; they are requested again");
            }
        }
        // Nobody knows any more.
        let Some(dra) = dra.upgrade() else { return };
        dra.change_health(&driver, &socket, |devices| std::mem::take(devices).0.into_keys().collect());
        drop(dra);
        tokio::time::sleep(AGAIN).await;
    }
}

/// Reads the reports of one stream.
async fn read(dra: &Weak<Dra>, driver: &str, socket: &Path, connection: &Connection) -> Result<(), plugins::Error> {
    let mut reports = connection.stream(&WATCH, WatchRequest {}, DEADLINE).await?;
    loop {
        let Some(known) = dra.upgrade() else { return Ok(()) };
        let next = known.change_health(driver, socket, |devices| devices.expire(Instant::now()));
        drop(known);
        let expiry = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            report = reports.next() => {
                let (Some(report), Some(dra)) = (report?, dra.upgrade()) else { return Ok(()) };
                dra.change_health(driver, socket, |devices| devices.update(report.devices, Instant::now()));
                drop(dra);
                tokio::time::sleep(PACE).await;
            }
            () = expiry => {}
        }
    }
}

impl Dra {
    /// Changes what is known of a driver's devices, and wakes the pods that use those that have changed. Returns when the next report
    /// becomes too old.
    fn change_health(
        &self,
        driver: &str,
        socket: &Path,
        change: impl FnOnce(&mut Devices) -> BTreeSet<Name>,
    ) -> Option<Instant> {
        let (pods, next) = {
            let mut state = self.state.lock();
            let known = state.drivers.get_mut(driver)?.iter_mut().find(|d| d.socket == socket)?;
            let changed = change(&mut known.health);
            let next = known.health.next();
            let is_changed = |d: &Prepared| d.driver == driver && changed.contains(&(d.pool.clone(), d.device.clone()));
            let users = state.claims.values().filter(|c| !changed.is_empty() && c.devices.iter().any(is_changed));
            (users.flat_map(|c| c.pods.iter().cloned()).collect::<BTreeSet<String>>(), next)
        };
        pods.iter().for_each(|uid| (self.wake)(uid));
        next
    }

    /// The health of the claimed devices of a container, for the status of the pod.
    pub fn health(&self, pod: &Pod, container: &Container) -> Vec<ResourceStatus> {
        let state = self.state.lock();
        let entries = pod.spec.as_ref().and_then(|s| s.resource_claims.as_ref());
        let mut out = Vec::new();
        for claim in container_claims(container) {
            let entry = entries.into_iter().flatten().find(|e| e.name == claim.name);
            let Some(Ok(Some(found))) = entry.map(|e| reference(pod, e)) else { continue };
            let Some(used) = state.claims.get(&(text(&pod.metadata.namespace).to_owned(), found.name)) else {
                continue;
            };
            let request = claim.request.as_deref().unwrap_or_default();
            let mut resources: Vec<ResourceHealth> = Vec::new();
            for device in used.devices.iter().filter(|d| serves(d, request)) {
                let first = device.cdi.first().cloned();
                let id = first.unwrap_or_else(|| format!("{}/{}/{}", device.driver, device.pool, device.device));
                if resources.iter().any(|r| r.resource_id == id) {
                    continue;
                }
                // The newest instance of the driver.
                let known = state.drivers.get(&device.driver).and_then(|all| all.last());
                let (health, message) =
                    known.map_or((HealthStatus::Unknown, ""), |d| d.health.of(&device.pool, &device.device));
                resources.push(ResourceHealth {
                    health: Some(shown(health).to_owned()),
                    message: Some(message.to_owned()).filter(|m| !m.is_empty()),
                    resource_id: id,
                });
            }
            let name = if request.is_empty() { claim.name.clone() } else { format!("{}/{request}", claim.name) };
            if !resources.is_empty() {
                out.push(ResourceStatus { name: format!("claim:{name}"), resources: Some(resources) });
            }
        }
        out
    }
}

fn shown(health: HealthStatus) -> &'static str {
    match health {
        HealthStatus::Healthy => "Healthy",
        HealthStatus::Unhealthy => "Unhealthy",
        HealthStatus::Unknown => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plugins::api::dra_health::DeviceIdentifier;

    fn device(name: &str, health: HealthStatus, timeout: i64, message: &str) -> DeviceHealth {
        DeviceHealth {
            device: Some(DeviceIdentifier { pool_name: "p".into(), device_name: name.into() }),
            health: health.into(),
            last_updated_time: 0,
            health_check_timeout_seconds: timeout,
            message: message.into(),
        }
    }

    #[tokio::test]
    async fn reports_count_for_a_while() {
        use HealthStatus::{Healthy, Unhealthy, Unknown};
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut devices = Devices::default();
        let names = |all: BTreeSet<Name>| all.into_iter().map(|n| n.1).collect::<Vec<_>>();
        let both = |a, text: &str| vec![device("a", a, -1, text), device("b", Healthy, 100, "")];
        assert_eq!(names(devices.update(both(Healthy, ""), at(0))), ["a", "b"]);
        assert_eq!(names(devices.update(both(Healthy, ""), at(10))), [""; 0], "nothing has changed");
        assert_eq!(names(devices.update(both(Unhealthy, "hot"), at(20))), ["a"]);
        assert_eq!((devices.of("p", "a"), devices.of("p", "c")), ((Unhealthy, "hot"), (Unknown, "")));
        assert_eq!(names(devices.update(both(Unhealthy, "very hot"), at(20))), ["a"]);
        // A report without it does not make it unknown at once.
        assert_eq!(names(devices.update(vec![device("b", Healthy, 100, "")], at(50))), [""; 0]);
        assert!(devices.next().is_some_and(|next| next > at(50) && next < at(51)));
        assert_eq!(names(devices.expire(at(51))), ["a"]);
        assert_eq!((devices.of("p", "a"), devices.of("p", "b")), ((Unknown, ""), (Healthy, "")));
        assert_eq!(names(devices.expire(at(151))), ["b"]);
        assert_eq!(devices.next(), None);
    }
}
