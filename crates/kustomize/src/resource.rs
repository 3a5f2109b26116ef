//! An object during a build, with its history.

use crate::Error;
use crate::id::{Gvk, Id};
use crate::kustomization::GeneratorOptions;
use crate::origin::{ORIGIN, Origin, TRANSFORMATIONS};
use meta::{Map, Value};

/// How a generated object is combined with an existing one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Behavior {
    #[default]
    Unspecified,
    Create,
    Replace,
    Merge,
}

impl Behavior {
    pub fn parse(text: &str) -> Self {
        match text {
            "create" => Self::Create,
            "replace" => Self::Replace,
            "merge" => Self::Merge,
            _ => Self::Unspecified,
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            Self::Unspecified => "unspecified",
            Self::Create => "create",
            Self::Replace => "replace",
            Self::Merge => "merge",
        }
    }
}

/// An object with its previous identities and build metadata.
#[derive(Clone, Debug, Default)]
pub struct Resource {
    /// Empty once a patch has deleted the object.
    pub object: Map<String, Value>,
    /// Previous names, namespaces and kinds, the oldest first.
    previous: Vec<Id>,
    pub prefixes: Vec<String>,
    pub suffixes: Vec<String>,
    pub behavior: Behavior,
    pub needs_hash: bool,
    pub allow_name_change: bool,
    pub allow_kind_change: bool,
    /// The variables that read from this object.
    pub vars: Vec<String>,
    pub origin: Option<Origin>,
    pub transformations: Vec<Origin>,
}

/// Annotations that related tools leave behind.
const INTERNAL: [&str; 9] = [
    "internal.config.kubernetes.io/path",
    "internal.config.kubernetes.io/index",
    "internal.config.kubernetes.io/seqindent",
    "internal.config.kubernetes.io/id",
    "config.kubernetes.io/path",
    "config.kubernetes.io/index",
    "config.k8s.io/id",
    "config.kubernetes.io/origin",
    "alpha.config.kubernetes.io/transformations",
];

/// Returns a scalar as text, as in YAML.
pub fn text(v: &Value) -> String {
    match v {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}

impl Resource {
    pub fn new(object: Map<String, Value>) -> Self {
        Self { object, ..Self::default() }
    }

    /// Returns an object that a generator made.
    pub fn generated(object: Map<String, Value>, behavior: &str, options: Option<&GeneratorOptions>) -> Self {
        Self {
            needs_hash: !options.is_some_and(|o| o.disable_name_suffix_hash),
            behavior: Behavior::parse(behavior),
            ..Self::new(object)
        }
    }

    fn top(&self, key: &str) -> &str {
        self.object.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    fn meta(&self, key: &str) -> String {
        self.object.get("metadata").and_then(|m| m.get(key)).filter(|v| !v.is_null()).map(text).unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.object.is_empty()
    }

    pub fn kind(&self) -> &str {
        self.top("kind")
    }

    pub fn gvk(&self) -> Gvk {
        Gvk::new(self.top("apiVersion"), self.kind())
    }

    pub fn set_gvk(&mut self, gvk: &Gvk) {
        self.object.insert("apiVersion".to_owned(), gvk.api_version().into());
        self.object.insert("kind".to_owned(), gvk.kind.clone().into());
    }

    pub fn name(&self) -> String {
        self.meta("name")
    }

    pub fn namespace(&self) -> String {
        self.meta("namespace")
    }

    /// Returns the metadata, created if it is missing.
    pub fn metadata_mut(&mut self) -> &mut Map<String, Value> {
        let slot = self.object.entry("metadata").or_insert(Value::Null);
        if !slot.is_object() {
            *slot = Value::Object(Map::new());
        }
        match slot {
            Value::Object(m) => m,
            // It was made an object above.
            _ => unreachable!("metadata is an object"),
        }
    }

    /// Sets a field of the metadata, or removes it if `value` is empty.
    pub fn set_meta(&mut self, key: &str, value: &str) {
        if value.is_empty() {
            self.metadata_mut().remove(key);
        } else {
            self.metadata_mut().insert(key.to_owned(), value.into());
        }
    }

    pub fn set_name(&mut self, name: &str) {
        self.set_meta("name", name);
    }

    /// Returns the current identity.
    pub fn id(&self) -> Id {
        Id { gvk: self.gvk(), name: self.name(), namespace: self.namespace() }
    }

    /// Returns all previous identities, in the current group and version.
    pub fn previous(&self) -> Vec<Id> {
        let Gvk { group, version, .. } = self.gvk();
        let mut ids = self.previous.clone();
        for id in &mut ids {
            (id.gvk.group, id.gvk.version) = (group.clone(), version.clone());
        }
        ids
    }

    /// Returns the oldest identity.
    pub fn original_id(&self) -> Id {
        self.previous().into_iter().next().unwrap_or_else(|| self.id())
    }

    /// Returns all previous identities and the current one.
    pub fn ids(&self) -> Vec<Id> {
        let mut ids = self.previous();
        ids.push(self.id());
        ids
    }

    /// Records the current identity before it changes.
    pub fn remember(&mut self) {
        let id = self.id();
        let namespace = id.effective_namespace().to_owned();
        self.previous.push(Id { namespace, ..id });
    }

    /// Whether the object has a history, which upstream stores in annotations.
    pub fn has_history(&self) -> bool {
        !(self.previous.is_empty() && self.prefixes.is_empty() && self.suffixes.is_empty() && !self.needs_hash)
            || self.origin.is_some()
    }

    /// Returns the entries of a map in the metadata.
    pub fn strings(&self, field: &str) -> Vec<(String, String)> {
        let map = self.object.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_object);
        map.into_iter().flatten().map(|(k, v)| (k.clone(), text(v))).collect()
    }

    /// Applies a strategic merge patch. Name and kind stay unless the patch may change them; the namespace stays.
    pub fn patch(&mut self, patch: &Self) -> Result<(), Error> {
        let before = self.id();
        if patch.allow_name_change || patch.allow_kind_change {
            self.remember();
        }
        let schema = schema(&before.gvk);
        let old = std::mem::take(&mut self.object);
        let merged = merge::kyaml::merge(old, patch.object.clone(), schema).map_err(wrong_kind)?;
        let Some(merged) = merged.filter(|m| !m.is_empty()) else { return Ok(()) };
        self.object = merged;
        if !patch.allow_kind_change {
            self.object.insert("kind".to_owned(), before.gvk.kind.into());
        }
        if !patch.allow_name_change {
            self.set_name(&before.name);
        }
        self.set_meta("namespace", &before.namespace);
        Ok(())
    }

    /// Takes over name, labels and annotations of the object that this one replaces; its own labels and annotations
    /// override them.
    pub fn take_metadata(&mut self, old: &Self) {
        for field in ["labels", "annotations"] {
            let mut all: Map<String, Value> = old.strings(field).into_iter().map(|(k, v)| (k, v.into())).collect();
            all.extend(self.strings(field).into_iter().map(|(k, v)| (k, Value::from(v))));
            if all.is_empty() {
                self.metadata_mut().remove(field);
            } else {
                self.metadata_mut().insert(field.to_owned(), all.into());
            }
        }
        self.set_meta("name", &old.name());
        self.set_meta("namespace", &old.namespace());
        self.previous.clone_from(&old.previous);
        self.prefixes.clone_from(&old.prefixes);
        self.suffixes.clone_from(&old.suffixes);
        self.needs_hash = self.needs_hash && old.needs_hash;
        self.behavior = old.behavior;
        self.vars.clone_from(&old.vars);
    }

    /// Returns the origin of what the plugin did that this object configures; `None` if the object has no origin.
    pub fn plugin_origin(&self) -> Option<Origin> {
        let from = self.origin.as_ref()?;
        let gvk = self.gvk();
        Some(Origin {
            path: String::new(),
            configured_in: from.path.clone(),
            configured_by: [gvk.api_version(), gvk.kind, self.name(), self.namespace()],
        })
    }

    /// Writes the annotations of `buildMetadata`: the origin of the object, and its transformations.
    pub fn annotate_build(&mut self, origin: bool, transformations: bool) {
        let mut annotations = Vec::new();
        if let (true, Some(o)) = (origin, &self.origin) {
            annotations.push((ORIGIN, o.yaml("")));
        }
        if transformations && !self.transformations.is_empty() {
            let item = |o: &Origin| format!("-{}", &o.yaml("  ")[1..]);
            annotations.push((TRANSFORMATIONS, self.transformations.iter().map(item).collect()));
        }
        for (key, text) in annotations {
            let slot = self.metadata_mut().entry("annotations").or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(m) = slot {
                m.insert(key.to_owned(), text.into());
            }
        }
    }

    /// Brings annotations into their output form: strings, no internal ones, and no empty map.
    pub fn finish(&mut self) {
        let kept: Map<String, Value> = self
            .strings("annotations")
            .into_iter()
            .filter(|(k, _)| !INTERNAL.contains(&k.as_str()))
            .map(|(k, v)| (k, v.into()))
            .collect();
        if let Some(Value::Object(m)) = self.object.get_mut("metadata") {
            if kept.is_empty() {
                m.remove("annotations");
            } else {
                m.insert("annotations".to_owned(), kept.into());
            }
        }
    }
}

/// Returns the schema of a built-in kind, in its own version or else in another one.
fn schema(gvk: &Gvk) -> Option<&'static schema::Schema> {
    let catalog = kinds::catalog();
    let own = meta::Gvk::new(gvk.group.as_str(), gvk.version.as_str(), gvk.kind.as_str());
    let found = catalog.schema_of(&own).or_else(|| {
        let mut same = catalog.kinds.iter().filter(|k| *k.group == gvk.group && *k.kind == gvk.kind);
        same.next().map(|k| &k.schema)
    });
    found.map(|s| &**s)
}

fn wrong_kind(e: merge::kyaml::Error) -> Error {
    match &e {
        merge::kyaml::Error::WrongKind { found, .. } => {
            Error::text(format!("{e}: node contents:\n{}", codec::yaml::to_string(found)))
        }
        merge::kyaml::Error::UnknownDirective(_) => Error::text(e),
    }
}

/// Parses the objects of a file: documents of YAML or JSON. Items of lists come after the other objects.
pub fn parse(content: &str) -> Result<Vec<Resource>, Error> {
    let mut queue = std::collections::VecDeque::new();
    for part in parts(content) {
        let documents =
            codec::yaml::parse_v3(&part).map_err(|e| Error::Malformed(format!("MalformedYAMLError: {e}")))?;
        queue.extend(documents);
    }
    let mut out = Vec::new();
    while let Some(document) = queue.pop_front() {
        let Value::Object(object) = document else { return Err(Error::text("missing Resource metadata")) };
        if object.is_empty() {
            continue;
        }
        let mut r = Resource::new(object);
        check(&r)?;
        if r.kind().ends_with("List") && r.object.contains_key("items") {
            match r.object.remove("items") {
                Some(Value::Array(items)) => queue.extend(items),
                Some(Value::Null) | None => {}
                Some(_) => return Err(Error::text(format!("expected array in {}/items", r.kind()))),
            }
            continue;
        }
        out.push(r);
    }
    Ok(out)
}

/// Checks that an object has a kind and a name.
fn check(r: &Resource) -> Result<(), Error> {
    let (name, namespace) = (r.name(), r.namespace());
    let (labels, annotations) = (r.strings("labels"), r.strings("annotations"));
    let missing = if r.kind().is_empty() {
        if r.top("apiVersion").is_empty() && name.is_empty() && labels.is_empty() && annotations.is_empty() {
            return Err(Error::text("missing Resource metadata"));
        }
        "kind"
    } else if !r.kind().ends_with("List") && name.is_empty() {
        "metadata.name"
    } else {
        return Ok(());
    };
    let map =
        |pairs: Vec<(String, String)>| pairs.iter().map(|(k, v)| format!("{k}:{v}")).collect::<Vec<_>>().join(" ");
    Err(Error::text(format!(
        "missing {missing} in object {{{{{} {}}} {{{{{name} {namespace}}} map[{}] map[{}]}}}}",
        r.top("apiVersion"),
        r.kind(),
        map(labels),
        map(annotations),
    )))
}

/// Splits a text at lines of three dashes.
fn parts(content: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    for line in content.split_inclusive('\n') {
        if line.trim_end() == "---" {
            out.push(String::new());
        } else if let Some(last) = out.last_mut() {
            last.push_str(line);
        }
    }
    out
}
