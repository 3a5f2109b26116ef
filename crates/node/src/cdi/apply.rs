//! Applies what devices need to the configuration of a container.

use runtime::ContainerConfig;

use super::Edits;

impl Edits {
    /// Adds what a device plugin returns. The container's own variables, mounts and devices win, as with upstream's kubelet.
    pub fn add_to(self, config: &mut ContainerConfig) {
        let Edits { env, devices, mounts, groups, hooks } = self;
        for (name, value) in env {
            if !config.env.iter().any(|(known, _)| *known == name) {
                config.env.push((name, value));
            }
        }
        for mount in mounts {
            if !config.mounts.iter().any(|known| known.target == mount.target) {
                config.mounts.push(mount);
            }
        }
        for device in devices {
            if !config.devices.iter().any(|known| known.target == device.target) {
                config.devices.push(device);
            }
        }
        config.security.supplemental_groups.extend(groups);
        config.hooks.extend(hooks);
    }

    /// Applies the edits of CDI devices to a container that is otherwise complete. They replace variables of the same name, and mounts and
    /// devices at the same path, as with the container runtimes.
    pub fn replace_in(self, config: &mut ContainerConfig) {
        config.env.retain(|(name, _)| !self.env.iter().any(|(new, _)| new == name));
        config.mounts.retain(|mount| !self.mounts.iter().any(|new| new.target == mount.target));
        config.devices.retain(|device| !self.devices.iter().any(|new| new.target == device.target));
        self.add_to(config);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::{DeviceRequest, Mount};

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    fn device(host: &str, target: &str) -> DeviceRequest {
        DeviceRequest { host: host.into(), target: target.into(), ..DeviceRequest::default() }
    }

    /// Variables, sources of mounts and devices in short.
    fn check(apply: fn(Edits, &mut ContainerConfig), expected: [&str; 3]) {
        let mut config = ContainerConfig {
            env: vec![pair("A", "pod"), pair("B", "pod")],
            mounts: vec![Mount::bind("/pod/a", "/a"), Mount::bind("/pod/b", "/b/")],
            devices: vec![device("/dev/pod", "/dev/a")],
            ..ContainerConfig::default()
        };
        let edits = Edits {
            env: vec![pair("B", "device"), pair("C", "device")],
            mounts: vec![Mount::bind("/device/b", "/b"), Mount::bind("/device/c", "/c")],
            devices: vec![device("/dev/device", "/dev/a")],
            ..Edits::default()
        };
        apply(edits, &mut config);
        let env: Vec<String> = config.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mounts: Vec<String> = config.mounts.iter().map(|mount| format!("{:?}", mount.source)).collect();
        let devices: Vec<_> = config.devices.iter().map(|device| device.host.to_string_lossy()).collect();
        let mounts = mounts.join(" ").replace("Host(\"", "").replace("\")", "");
        assert_eq!([env.join(" "), mounts, devices.join(" ")], expected);
    }

    /// The pod's variables and mounts won over those of CDI devices.
    #[test]
    fn cdi_devices_win_over_the_pod_and_device_plugins_do_not() {
        check(Edits::replace_in, ["A=pod B=device C=device", "/pod/a /device/b /device/c", "/dev/device"]);
        check(Edits::add_to, ["A=pod B=pod C=device", "/pod/a /pod/b /device/c", "/dev/pod"]);
    }
}
