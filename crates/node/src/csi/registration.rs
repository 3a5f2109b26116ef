//! The registration of CSI drivers (`pluginregistration.v1`, type `CSIPlugin`).

use std::sync::Arc;

use plugins::registration::{Handler, Plugin};

use super::Csi;
use super::driver::Driver;
use super::paths::is_driver_name;

/// Registers drivers with [`Csi`].
pub struct Registration(pub Arc<Csi>);

/// Errors if no version is one of CSI 1.
fn check_versions(name: &str, versions: &[String]) -> Result<(), String> {
    if versions.is_empty() {
        return Err(format!(
            "kubernetes.io/csi: ValidatePlugin for CSI driver {name:?} failed. Plugin returned an empty list for supported versions"
        ));
    }
    let is_supported = |v: &String| {
        let mut parts = v.trim_start_matches('v').split('.');
        parts.next() == Some("1") && parts.all(|p| p.parse::<u32>().is_ok())
    };
    if versions.iter().any(is_supported) {
        return Ok(());
    }
    Err(format!(
        "kubernetes.io/csi: ValidatePlugin for CSI driver {name:?} failed. None of the versions specified {versions:?} are supported."
    ))
}

#[async_trait::async_trait]
impl Handler for Registration {
    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        let (name, endpoint) = (&plugin.name, plugin.endpoint.display());
        if !is_driver_name(name) {
            return Err(format!(
                "validation failed for CSI Driver at endpoint {endpoint}: invalid driver name {name:?}"
            ));
        }
        check_versions(name, &plugin.versions)
            .map_err(|e| format!("validation failed for CSI Driver {name} at endpoint {endpoint}: {e}"))
    }

    async fn register(&self, plugin: &Plugin) -> Result<(), String> {
        let csi = &self.0;
        let opened = Driver::open(&csi.root, &plugin.endpoint, plugin.socket.clone()).await;
        let (driver, info) = opened.map_err(|e| e.to_string())?;
        csi.cluster.install(&plugin.name, &info).await?;
        csi.drivers.lock().insert(plugin.name.clone(), driver);
        csi.begin_updates(&plugin.name);
        csi.registrations.send_modify(|n| *n = n.wrapping_add(1));
        let (csi, name) = (csi.clone(), plugin.name.clone());
        tokio::spawn(async move { csi.unstage_unused(&name).await });
        Ok(())
    }

    async fn deregister(&self, plugin: &Plugin) {
        {
            let mut drivers = self.0.drivers.lock();
            // Another instance of the driver may have registered meanwhile.
            if drivers.get(&plugin.name).is_none_or(|d| d.registration != plugin.socket) {
                return;
            }
            drivers.remove(&plugin.name);
        }
        self.0.end_updates(&plugin.name);
        if let Err(error) = self.0.cluster.uninstall(&plugin.name).await {
            tracing::warn!(driver = plugin.name, error, "removing a CSI driver from the node failed");
        }
    }
}
