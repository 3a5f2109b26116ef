//! The network configuration: the first file of a directory, by name.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Error;
use super::specification::{MAX_BYTES, Version};

/// A network: its plugins in the order in which they connect a pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Network {
    pub name: String,
    pub version: Version,
    /// The plugins are not asked whether a pod is still connected.
    pub disable_check: bool,
    /// The plugins are not asked to remove what they have of unknown pods.
    pub disable_gc: bool,
    pub plugins: Vec<Map<String, Value>>,
}

/// Extensions of network configurations; a list of plugins has the first.
const LIST: &str = "conflist";
const SINGLE: [&str; 2] = ["conf", "json"];

/// Reads the configuration whose file comes first by name. As containerd does, an invalid one is an error, and the next is not
/// used instead: pods would be in another network than intended. Blocks.
pub fn first(directory: &Path) -> Result<Network, Error> {
    let path = files(directory, &[LIST, SINGLE[0], SINGLE[1]])?.into_iter().next().ok_or(Error::NotInitialized)?;
    let invalid = |message: String| Error::Configuration { path: path.clone(), message };
    let content = read(&path).map_err(invalid)?;
    if path.extension().is_none_or(|e| e != LIST) {
        return single(content).map_err(invalid);
    }
    let only_own = flag(&content, "loadOnlyInlinedPlugins").map_err(invalid)?;
    let mut network = list(content).map_err(invalid)?;
    if !only_own {
        for file in files(&directory.join(&network.name), &[SINGLE[0]])? {
            let invalid = |message: String| Error::Configuration { path: file.clone(), message };
            network.plugins.push(plugin(Value::Object(read(&file).map_err(invalid)?)).map_err(invalid)?);
        }
    }
    if network.plugins.is_empty() {
        return Err(invalid("no plugin configs found".into()));
    }
    Ok(network)
}

/// The files with one of the extensions, by name. A directory that does not exist has none.
fn files(directory: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, Error> {
    let invalid = |e: std::io::Error| Error::Configuration { path: directory.to_owned(), message: e.to_string() };
    let entries = match std::fs::read_dir(directory) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(invalid)?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let path = entry.map_err(invalid)?.path();
        let has_extension = path.extension().is_some_and(|e| extensions.iter().any(|x| e == *x));
        if has_extension && !path.is_dir() {
            all.push(path);
        }
    }
    all.sort();
    Ok(all)
}

fn read(path: &Path) -> Result<Map<String, Value>, String> {
    let mut bytes = Vec::new();
    let file = std::fs::metadata(path).and_then(|m| match m.is_file() {
        true => std::fs::File::open(path),
        false => Err(std::io::Error::other("not a regular file")),
    });
    file.and_then(|f| f.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(|e| e.to_string())?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    serde_json::from_slice(&bytes).map_err(|e| format!("error parsing configuration: {e}"))
}

/// A file with a single plugin is a list of one.
fn single(content: Map<String, Value>) -> Result<Network, String> {
    let name = name(&content)?;
    let version = version(&content)?;
    Ok(Network {
        name,
        version,
        disable_check: false,
        disable_gc: false,
        plugins: vec![plugin(Value::Object(content))?],
    })
}

fn list(mut content: Map<String, Value>) -> Result<Network, String> {
    let plugins = match content.remove("plugins") {
        None => Vec::new(),
        Some(Value::Array(plugins)) if plugins.is_empty() => return Err("no plugins in list".into()),
        Some(Value::Array(plugins)) => plugins.into_iter().map(plugin).collect::<Result<_, _>>()?,
        Some(_) => return Err("invalid 'plugins' type".into()),
    };
    Ok(Network {
        name: name(&content)?,
        version: version(&content)?,
        disable_check: flag(&content, "disableCheck")?,
        disable_gc: flag(&content, "disableGC")?,
        plugins,
    })
}

/// A plugin's own configuration, whose type is the name of its program.
fn plugin(value: Value) -> Result<Map<String, Value>, String> {
    let Value::Object(plugin) = value else { return Err("a plugin is not an object".into()) };
    match plugin.get("type").and_then(Value::as_str) {
        None | Some("") => Err("missing 'type'".into()),
        Some(kind) if kind.contains('/') || kind.starts_with('.') => Err(format!("invalid plugin name: {kind}")),
        Some(_) => Ok(plugin),
    }
}

fn name(content: &Map<String, Value>) -> Result<String, String> {
    match content.get("name").and_then(Value::as_str) {
        None | Some("") => Err("no name".into()),
        Some(name) if is_identifier(name) => Ok(name.to_owned()),
        Some(name) => Err(format!("invalid characters found in network name {name:?}")),
    }
}

/// Whether a text is a name of the specification, as of networks and containers.
pub fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

/// The newest version of `cniVersion` and `cniVersions` that this program has.
fn version(content: &Map<String, Value>) -> Result<Version, String> {
    let text = |value: &Value| value.as_str().map(str::to_owned).ok_or("invalid cniVersion type");
    let mut offered: Vec<String> = content.get("cniVersion").map(text).transpose()?.into_iter().collect();
    match content.get("cniVersions") {
        None => {}
        Some(Value::Array(more)) => {
            for value in more {
                offered.push(text(value)?);
            }
        }
        Some(_) => return Err("invalid type for cniVersions".into()),
    }
    offered.iter().filter_map(|v| Version::parse(v)).max().ok_or_else(|| {
        let offered = if offered.is_empty() { "0.1.0".into() } else { offered.join(", ") };
        format!("cniVersion {offered} is not supported: use one of {}", Version::list())
    })
}

fn flag(content: &Map<String, Value>, key: &str) -> Result<bool, String> {
    match content.get(key) {
        None => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(value) => Err(format!("invalid value {value} for {key}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        directory
    }

    const LIST: &str = r#"{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "bridge"}, {"type": "portmap"}]}"#;

    #[test]
    fn the_first_file_by_name_is_used() {
        let d = directory(&[("20-b.conflist", LIST), ("README", "x"), (".conflist", "x"), ("30-c.conf", "{")]);
        let network = first(d.path()).unwrap();
        assert_eq!((network.name.as_str(), network.version, network.plugins.len()), ("n", Version::V1_0_0, 2));
        std::fs::create_dir(d.path().join("00-directory.conf")).unwrap();
        std::fs::write(d.path().join("10-a.json"), r#"{"cniVersion": "0.3.1", "name": "a", "type": "ptp"}"#).unwrap();
        let network = first(d.path()).unwrap();
        assert_eq!((network.name.as_str(), network.plugins[0]["type"].as_str()), ("a", Some("ptp")));
        assert!(matches!(first(&d.path().join("none")), Err(Error::NotInitialized)));
        assert!(matches!(first(directory(&[("x.yaml", "")]).path()), Err(Error::NotInitialized)));
    }

    #[test]
    fn plugins_of_a_directory_follow_those_of_the_list() {
        let d = directory(&[("a.conflist", LIST), ("n/2.conf", r#"{"type": "c"}"#), ("n/1.conf", r#"{"type": "b"}"#)]);
        let types = || {
            first(d.path()).unwrap().plugins.iter().map(|p| p["type"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(types(), ["bridge", "portmap", "b", "c"]);
        let only = LIST.replace("\"name\"", "\"loadOnlyInlinedPlugins\": true, \"name\"");
        std::fs::write(d.path().join("a.conflist"), only).unwrap();
        assert_eq!(types(), ["bridge", "portmap"]);
    }

    #[test]
    fn the_newest_common_version_is_negotiated() {
        let negotiated = |versions: &str| {
            let text = format!(r#"{{{versions} "name": "n", "plugins": [{{"type": "x"}}]}}"#);
            first(directory(&[("a.conflist", &text)]).path()).map(|n| n.version.to_string()).map_err(|e| e.to_string())
        };
        assert_eq!(negotiated(r#""cniVersion": "0.4.0","#).unwrap(), "0.4.0");
        assert_eq!(
            negotiated(r#""cniVersion": "1.0.0", "cniVersions": ["1.1.0", "0.3.1", "9.0.0"],"#).unwrap(),
            "1.1.0"
        );
        assert!(negotiated("").unwrap_err().contains("cniVersion 0.1.0 is not supported"));
        assert!(
            negotiated(r#""cniVersion": "2.0.0","#).unwrap_err().contains("2.0.0 is not supported: use one of 0.3.0,")
        );
        assert!(negotiated(r#""cniVersion": 1,"#).unwrap_err().contains("invalid cniVersion type"));
    }

    #[test]
    fn invalid_configurations_are_refused() {
        for (name, content, error) in [
            ("a.conflist", "", "error parsing configuration"),
            ("a.conflist", "[]", "error parsing configuration"),
            ("a.conflist", r#"{"cniVersion": "1.0.0", "plugins": [{"type": "x"}]}"#, "no name"),
            ("a.conflist", r#"{"cniVersion": "1.0.0", "name": "../n", "plugins": [{"type": "x"}]}"#, "network name"),
            ("a.conflist", r#"{"cniVersion": "1.0.0", "name": "n", "plugins": []}"#, "no plugins in list"),
            ("a.conflist", r#"{"cniVersion": "1.0.0", "name": "n"}"#, "no plugin configs found"),
            ("a.conflist", r#"{"cniVersion": "1.0.0", "name": "n", "plugins": [{}]}"#, "missing 'type'"),
            (
                "a.conflist",
                r#"{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "../x"}]}"#,
                "invalid plugin name",
            ),
            (
                "a.conflist",
                r#"{"cniVersion": "1.0.0", "name": "n", "disableCheck": 1, "plugins": [{"type": "x"}]}"#,
                "disableCheck",
            ),
            ("a.conf", r#"{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "x"}]}"#, "missing 'type'"),
        ] {
            let found = first(directory(&[(name, content)]).path()).unwrap_err().to_string();
            assert!(found.starts_with("cni plugin not initialized: ") && found.contains(error), "{content}: {found}");
        }
        let d = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&d.path().join("a.conf"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(first(d.path()).unwrap_err().to_string().contains("not a regular file"));
    }
}
