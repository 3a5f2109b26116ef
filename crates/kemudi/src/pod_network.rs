//! Who connects the pods of a node: this program, or CNI plugins.

use clap::{Args, ValueEnum};
use network::cni::{self, PluginNetwork};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The directories of container runtimes, if there are no flags.
const CONFIGURATION: &str = "/etc/cni/net.d";
const PROGRAMS: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];
/// How long a plugin may take to disconnect a pod of a node that is removed.
const PURGE_LIMIT: Duration = Duration::from_secs(30);

/// The network of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    #[default]
    Kemudi,
    Cni,
}

/// Flags of the pod network.
#[derive(Args)]
pub struct NetworkFlags {
    /// Network of the pods: that of kemudi, or the CNI plugins of the first network configuration in --cni-conf-dir. Network policies
    /// are then enforced by the plugins, if at all.
    #[arg(long, value_enum, default_value_t = Kind::Kemudi)]
    pub pod_network: Kind,
    /// Directory of network configurations (.conflist, .conf, .json). Default: /etc/cni/net.d.
    #[arg(long, value_name = "DIR")]
    pub cni_conf_dir: Option<PathBuf>,
    /// Directories of CNI plugins. Default: /opt/cni/bin,/usr/lib/cni.
    #[arg(long, value_name = "DIRS", value_delimiter = ',')]
    pub cni_bin_dir: Vec<PathBuf>,
}

/// The directories of CNI plugins and their configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugins {
    pub configuration: PathBuf,
    pub programs: Vec<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0} has no effect without --pod-network cni: use both or neither")]
    Unused(&'static str),
    #[error(
        "--pod-network cni cannot be used with a container runtime endpoint: that runtime executes the plugins of its own configuration"
    )]
    Runtime,
    #[error(
        "the pods of {directory} are in the network of {before}: start it with --pod-network {flag} again, or remove them with `kemudi down \
         --purge --data-dir {directory}`"
    )]
    Changed { directory: String, before: &'static str, flag: &'static str },
}

impl NetworkFlags {
    /// The plugins that connect pods; `None` for the network of kemudi.
    pub fn plugins(&self) -> Result<Option<Plugins>, Error> {
        if self.pod_network == Kind::Kemudi {
            return match (&self.cni_conf_dir, self.cni_bin_dir.as_slice()) {
                (Some(_), _) => Err(Error::Unused("--cni-conf-dir")),
                (None, [_, ..]) => Err(Error::Unused("--cni-bin-dir")),
                (None, []) => Ok(None),
            };
        }
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let programs: Vec<PathBuf> = match self.cni_bin_dir.as_slice() {
            [] => PROGRAMS.map(PathBuf::from).into(),
            given => given.iter().map(|p| absolute(p)).collect(),
        };
        let configuration = absolute(self.cni_conf_dir.as_deref().unwrap_or(Path::new(CONFIGURATION)));
        Ok(Some(Plugins { configuration, programs }))
    }
}

impl NetworkFlags {
    /// The flags for the agent of a node that has the same network. Paths are absolute.
    pub fn arguments(&self) -> Vec<OsString> {
        let Ok(Some(plugins)) = self.plugins() else { return Vec::new() };
        let mut programs = OsString::new();
        for directory in &plugins.programs {
            if !programs.is_empty() {
                programs.push(",");
            }
            programs.push(directory);
        }
        let flags = ["--pod-network", "cni", "--cni-conf-dir"].map(OsString::from).into_iter();
        flags.chain([plugins.configuration.into_os_string(), "--cni-bin-dir".into(), programs]).collect()
    }
}

fn state(data_dir: &Path) -> PathBuf {
    data_dir.join("network")
}

fn namespaces(data_dir: &Path) -> PathBuf {
    data_dir.join("netns")
}

/// Errors if pods of a data directory are in another network, which could not disconnect them.
pub fn check(data_dir: &Path, plugins: Option<&Plugins>) -> Result<(), Error> {
    let of_plugins = cni::has_attachments(&state(data_dir));
    let has_pods = std::fs::read_dir(namespaces(data_dir)).is_ok_and(|mut entries| entries.next().is_some());
    let (before, flag) = match plugins {
        None if of_plugins => ("CNI plugins", "cni"),
        Some(_) if has_pods && !of_plugins => ("kemudi", "kemudi"),
        _ => return Ok(()),
    };
    Err(Error::Changed { directory: data_dir.display().to_string(), before, flag })
}

/// Whether a node shares its file system with other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileSystem {
    #[default]
    Own,
    /// Plugins then see a directory of the node as that of their state.
    Shared,
}

/// The state of the plugins of a node that shares its file system.
fn state_of_plugins(data_dir: &Path) -> PathBuf {
    state(data_dir).join("plugins")
}

/// Opens the network of the plugins.
pub async fn open(
    data_dir: &Path,
    plugins: &Plugins,
    ranges: Vec<String>,
    files: FileSystem,
    time_limit: Duration,
) -> network::Result<PluginNetwork> {
    PluginNetwork::open(cni::Options {
        configuration_directory: plugins.configuration.clone(),
        program_directories: plugins.programs.clone(),
        state_directory: state(data_dir),
        namespace_directory: namespaces(data_dir),
        ranges,
        place: cni::Place { namespace: None, state: (files == FileSystem::Shared).then(|| state_of_plugins(data_dir)) },
        time_limit,
    })
    .await
}

/// Has the plugins disconnect the pods of a node that does not run, in the network namespace of the node if it has one of its own. What they
/// cannot is a warning.
pub async fn purge(data_dir: &Path, namespace: Option<&Path>) -> network::Result<()> {
    if !cni::has_attachments(&state(data_dir)) {
        return Ok(());
    }
    let options = cni::Options {
        configuration_directory: PathBuf::new(),
        // Those of the records.
        program_directories: Vec::new(),
        state_directory: state(data_dir),
        namespace_directory: namespaces(data_dir),
        ranges: Vec::new(),
        place: cni::Place {
            namespace: namespace.map(Path::to_owned),
            state: Some(state_of_plugins(data_dir)).filter(|state| state.exists()),
        },
        time_limit: PURGE_LIMIT,
    };
    for error in PluginNetwork::purge(options).await? {
        crate::output::note!("warning: {error}; what the plugin keeps of this pod stays");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(pod_network: Kind, configuration: Option<&str>, programs: &[&str]) -> NetworkFlags {
        NetworkFlags {
            pod_network,
            cni_conf_dir: configuration.map(PathBuf::from),
            cni_bin_dir: programs.iter().map(PathBuf::from).collect(),
        }
    }

    #[test]
    fn directories_are_those_of_runtimes_by_default() {
        assert_eq!(flags(Kind::Kemudi, None, &[]).plugins().unwrap(), None);
        let plugins = flags(Kind::Cni, None, &[]).plugins().unwrap().unwrap();
        assert_eq!(plugins.configuration, Path::new("/etc/cni/net.d"));
        assert_eq!(plugins.programs, ["/opt/cni/bin", "/usr/lib/cni"].map(PathBuf::from));
        let given = flags(Kind::Cni, Some("/a"), &["/b", "/c"]);
        assert_eq!(given.arguments(), ["--pod-network", "cni", "--cni-conf-dir", "/a", "--cni-bin-dir", "/b,/c"]);
        assert!(flags(Kind::Kemudi, None, &[]).arguments().is_empty());
        let plugins = flags(Kind::Cni, Some("/a"), &["/b", "c"]).plugins().unwrap().unwrap();
        assert!(plugins.configuration == Path::new("/a") && plugins.programs.iter().all(|p| p.is_absolute()));
        assert!(matches!(flags(Kind::Kemudi, Some("/a"), &[]).plugins(), Err(Error::Unused("--cni-conf-dir"))));
        assert!(matches!(flags(Kind::Kemudi, None, &["/b"]).plugins(), Err(Error::Unused("--cni-bin-dir"))));
    }

    #[test]
    fn a_node_does_not_change_its_network_while_it_has_pods() {
        let data = tempfile::tempdir().unwrap();
        let plugins = flags(Kind::Cni, None, &[]).plugins().unwrap();
        let is_refused = |plugins: Option<&Plugins>| check(data.path(), plugins).is_err();
        assert!(!is_refused(None) && !is_refused(plugins.as_ref()));
        std::fs::create_dir_all(data.path().join("netns")).unwrap();
        std::fs::write(data.path().join("netns/uid"), "").unwrap();
        assert!(!is_refused(None) && is_refused(plugins.as_ref()));
        std::fs::create_dir_all(data.path().join("network/attachments")).unwrap();
        std::fs::write(data.path().join("network/attachments/uid-0.json"), "{}").unwrap();
        assert!(is_refused(None) && !is_refused(plugins.as_ref()));
    }
}
