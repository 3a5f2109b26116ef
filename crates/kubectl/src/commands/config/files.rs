//! Kubeconfig files on disk, and changes of them (client-go `clientcmd.ModifyConfig`).
//!
//! An entry is changed in the file that defines it; new entries go into the first existing file. A file is replaced
//! atomically, so that no reader sees half of it.

use crate::error::{Error, Result, os_message};
use crate::kube::Kube;
use meta::{Map, Value};
use serde_json::json;
use std::path::{Component, Path, PathBuf};

struct Document {
    path: PathBuf,
    content: Map<String, Value>,
    exists: bool,
    changed: bool,
}

/// The kubeconfig files of a command.
pub struct Files {
    all: Vec<Document>,
    /// The index of the file for new entries.
    default: usize,
}

/// Returns the key of the value in an entry of a list.
fn value_key(list: &str) -> &'static str {
    match list {
        "clusters" => "cluster",
        "contexts" => "context",
        _ => "user",
    }
}

/// Returns the absolute path, without dots.
pub fn absolute(path: &Path) -> PathBuf {
    clean(&std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
}

fn clean(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for c in path.components() {
        match c {
            Component::ParentDir => _ = out.pop(),
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

impl Files {
    /// Reads the files.
    pub fn load(k: &Kube) -> Result<Self> {
        let s = k.sources();
        let paths: Vec<PathBuf> = match s.explicit {
            Some(p) => vec![p],
            None => s.files,
        };
        let mut all = Vec::new();
        for path in paths {
            let wrong = |e: String| Error::Text(format!("error loading config file \"{}\": {e}", path.display()));
            let (content, exists) = match std::fs::read_to_string(&path) {
                Ok(t) => {
                    client::kubeconfig::Kubeconfig::parse(&t).map_err(|e| wrong(e.why()))?;
                    let parsed = codec::yaml::parse(&t).map_err(|e| wrong(e.to_string()))?;
                    (parsed.into_iter().next().and_then(|v| v.as_object().cloned()).unwrap_or_default(), true)
                }
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => (Map::new(), false),
                Err(e) => return Err(wrong(os_message(&e))),
            };
            all.push(Document { path, content, exists, changed: false });
        }
        if all.is_empty() {
            return crate::error::text("no kubeconfig to write to");
        }
        let default = all.iter().position(|d| d.exists).unwrap_or(all.len() - 1);
        Ok(Self { all, default })
    }

    /// Returns the file that messages name.
    pub fn named(&self) -> String {
        self.all[self.default].path.display().to_string()
    }

    fn find<'a>(d: &'a Document, list: &str, name: &str) -> Option<&'a Value> {
        d.content.get(list)?.as_array()?.iter().find(|e| e["name"] == name)
    }

    /// Returns the file that defines an entry, or else the one for new entries.
    pub fn owner(&self, list: &str, name: &str) -> usize {
        self.all.iter().position(|d| Self::find(d, list, name).is_some()).unwrap_or(self.default)
    }

    /// Returns the value of an entry in the first file that defines it.
    pub fn entry(&self, list: &str, name: &str) -> Option<Map<String, Value>> {
        let e = self.all.iter().find_map(|d| Self::find(d, list, name))?;
        Some(e[value_key(list)].as_object().cloned().unwrap_or_default())
    }

    /// Sets an entry in the file that defines it, or in the one for new entries.
    pub fn put(&mut self, list: &'static str, name: &str, value: Map<String, Value>) {
        self.put_into(self.owner(list, name), list, name, value);
    }

    /// Sets an entry in a given file.
    pub fn put_into(&mut self, file: usize, list: &'static str, name: &str, mut value: Map<String, Value>) {
        let d = &mut self.all[file];
        // Paths are stored relative to the file, so that both can be moved together.
        let base = absolute(&d.path).parent().map(Path::to_owned).unwrap_or_default();
        for key in ["certificate-authority", "client-certificate", "client-key", "tokenFile"] {
            let Some(Value::String(p)) = value.get_mut(key) else { continue };
            if p.is_empty() {
                continue;
            }
            // An unchanged path is already relative.
            let absolute_path = clean(&base.join(p.as_str()));
            *p = absolute_path.strip_prefix(&base).unwrap_or(&absolute_path).to_string_lossy().into_owned();
        }
        let all = d.content.entry(list).or_insert_with(|| json!([]));
        if !all.is_array() {
            *all = json!([]);
        }
        let Some(all) = all.as_array_mut() else { return };
        all.retain(|e| e["name"] != name);
        all.push(json!({"name": name, value_key(list): value}));
        d.changed = true;
    }

    /// Removes an entry from every file.
    pub fn remove(&mut self, list: &str, name: &str) {
        for d in &mut self.all {
            if let Some(all) = d.content.get_mut(list).and_then(Value::as_array_mut) {
                let before = all.len();
                all.retain(|e| e["name"] != name);
                d.changed |= all.len() != before;
            }
        }
    }

    /// Returns the names in a list of all files.
    pub fn names(&self, list: &str) -> Vec<String> {
        let all = self.all.iter().flat_map(|d| d.content.get(list).and_then(Value::as_array).into_iter().flatten());
        all.filter_map(|e| e["name"].as_str().map(str::to_owned)).collect()
    }

    /// Returns the name of the current context.
    pub fn current(&self) -> &str {
        let set =
            |d: &Document| d.content.get("current-context").and_then(Value::as_str).is_some_and(|c| !c.is_empty());
        let d = self.all.iter().find(|d| set(d));
        d.and_then(|d| d.content["current-context"].as_str()).unwrap_or_default()
    }

    /// Sets the current context; an empty name removes it.
    pub fn set_current(&mut self, name: &str) {
        let set =
            |d: &Document| d.content.get("current-context").and_then(Value::as_str).is_some_and(|c| !c.is_empty());
        let file = match name {
            "" => self.all.iter().position(set).unwrap_or(self.default),
            _ => self.default,
        };
        self.all[file].content.insert("current-context".into(), name.into());
        self.all[file].changed = true;
    }

    /// Whether the preferences enable colors.
    pub fn colors(&self) -> bool {
        self.all.iter().any(|d| d.content.get("preferences").is_some_and(|p| p["colors"] == true))
    }

    /// Sets or removes a value outside of the lists.
    pub fn set_top(&mut self, path: &[&str], value: Option<Value>) {
        let has = |d: &Document| path.first().is_some_and(|first| d.content.contains_key(*first));
        let file = self.all.iter().position(has).unwrap_or(self.default);
        let d = &mut self.all[file];
        let (Some(first), second) = (path.first(), path.get(1)) else { return };
        d.changed = true;
        let Some(second) = second else {
            match value {
                Some(v) => _ = d.content.insert((*first).to_owned(), v),
                None => _ = d.content.remove(*first),
            }
            return;
        };
        let mut inner = d.content.remove(*first).and_then(|v| v.as_object().cloned()).unwrap_or_default();
        match value {
            Some(v) => _ = inner.insert((*second).to_owned(), v),
            None => _ = inner.remove(*second),
        }
        // Empty preferences are not written.
        if !inner.is_empty() {
            d.content.insert((*first).to_owned(), inner.into());
        }
    }

    /// Writes the files that changed.
    pub fn save(self) -> Result {
        self.all.into_iter().filter(|d| d.changed).try_for_each(write)
    }
}

/// Writes a file as `clientcmd.Write` does: lists sorted by name, with the fields that Go always writes.
fn write(d: Document) -> Result {
    let mut v = d.content;
    for list in ["clusters", "contexts", "users"] {
        let all = v.entry(list).or_insert(Value::Null);
        match all.as_array_mut() {
            Some(a) if !a.is_empty() => a.sort_by(|x, y| x["name"].as_str().cmp(&y["name"].as_str())),
            _ => *all = Value::Null,
        }
        let always: &[&str] = match list {
            "clusters" => &["server"],
            "contexts" => &["cluster", "user"],
            _ => &[],
        };
        for e in all.as_array_mut().into_iter().flatten() {
            if let Some(value) = e.as_object_mut().map(|e| e.entry(value_key(list)).or_insert_with(|| json!({})))
                && let Some(value) = value.as_object_mut()
            {
                always.iter().for_each(|f| _ = value.entry(*f).or_insert_with(|| "".into()));
            }
        }
    }
    for (key, value) in [("apiVersion", "v1"), ("kind", "Config"), ("current-context", "")] {
        v.entry(key).or_insert_with(|| value.into());
    }
    let path = d.path;
    let wrong = |e: std::io::Error| Error::Text(format!("open {}: {}", path.display(), os_message(&e)));
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(wrong)?;
    }
    let mut fresh = path.clone().into_os_string();
    fresh.push(".kemudi-new");
    let fresh = PathBuf::from(fresh);
    std::fs::write(&fresh, "").map_err(wrong)?;
    // The file may contain secrets: a new one is private, an old one keeps its mode.
    let permissions = match std::fs::metadata(&path) {
        Ok(m) => m.permissions(),
        Err(_) => std::os::unix::fs::PermissionsExt::from_mode(0o600),
    };
    std::fs::set_permissions(&fresh, permissions).map_err(wrong)?;
    std::fs::write(&fresh, codec::yaml::to_string(&Value::Object(v))).map_err(wrong)?;
    // A link is kept: the file that it leads to is replaced.
    let to = std::fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
    std::fs::rename(&fresh, to).map_err(wrong)
}
