//! The registration of drivers.

use std::sync::Arc;

use async_trait::async_trait;
use plugins::api::dra::{VERSIONS, Version};
use plugins::registration::{Handler, Plugin};
use plugins::{Connection, Limits};

use super::{Dra, Driver, Task, health};

/// The version to use: the first of the driver's that is known.
fn version(services: &[String]) -> Result<Version, String> {
    if services.is_empty() {
        return Err("empty list of supported gRPC services (aka supported versions)".into());
    }
    let known = services.iter().find_map(|s| VERSIONS.iter().find(|v| v.service == s));
    known.copied().ok_or_else(|| {
        let list = |all: Vec<&str>| all.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>().join(" ");
        let (own, theirs) = (VERSIONS.iter().map(|v| v.service), services.iter().map(String::as_str));
        let (own, theirs) = (list(own.collect()), list(theirs.collect()));
        format!("none of services supported by the plugin ([{theirs}]) are supported by the kubelet ([{own}])")
    })
}

/// Registers drivers.
pub struct Registration(pub Arc<Dra>);

#[async_trait]
impl Handler for Registration {
    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        version(&plugin.versions).map(drop)
    }

    async fn register(&self, plugin: &Plugin) -> Result<(), String> {
        let connection = Connection::new(self.0.root.socket(&plugin.endpoint), Limits::default());
        let (name, socket) = (plugin.name.clone(), plugin.socket.clone());
        let follow = health::follow(Arc::downgrade(&self.0), name, socket.clone(), connection.clone());
        let version = version(&plugin.versions)?;
        let mut state = self.0.state.lock();
        state.deletions.remove(&plugin.name);
        let drivers = state.drivers.entry(plugin.name.clone()).or_default();
        // During an upgrade, the old one stays until its socket is gone.
        drivers.retain(|d| d.socket != plugin.socket);
        // It waits for the lock, and then finds its driver.
        let _follower = Task(tokio::spawn(follow));
        drivers.push(Driver { connection, version, socket, health: health::Devices::default(), _follower });
        Ok(())
    }

    async fn deregister(&self, plugin: &Plugin) {
        {
            let mut state = self.0.state.lock();
            let Some(drivers) = state.drivers.get_mut(&plugin.name) else { return };
            drivers.retain(|d| d.socket != plugin.socket);
            if !drivers.is_empty() {
                return;
            }
            state.drivers.remove(&plugin.name);
        }
        self.0.delete_slices_later(&plugin.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_first_that_is_known() {
        let of = |all: &[&str]| version(&all.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()).map(|v| v.service);
        assert_eq!(of(&["v1.DRAPlugin", "v1beta1.DRAPlugin"]), Ok("v1.DRAPlugin"));
        assert_eq!(of(&["v2.DRAPlugin", "v1beta1.DRAPlugin"]), Ok("v1beta1.DRAPlugin"));
        assert_eq!(of(&[]).unwrap_err(), "empty list of supported gRPC services (aka supported versions)");
        assert_eq!(
            of(&["v2.DRAPlugin"]).unwrap_err(),
            "none of services supported by the plugin ([\"v2.DRAPlugin\"]) are supported by the kubelet ([\"v1.DRAPlugin\" \
             \"v1beta1.DRAPlugin\"])"
        );
    }
}
