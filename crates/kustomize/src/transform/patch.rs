//! Applies strategic merge or RFC 6902 patches, depending on their content.

use super::{Transform, json_patch};
use crate::Error;
use crate::go::go_struct;
use crate::kustomization::{Patch, Selector};
use crate::resource::{self, Resource};
use crate::resources::Resources;
use crate::root::Root;
use meta::{Map, Value};

enum Content {
    Objects(Vec<Resource>),
    Operations(Value),
}

/// A patch with its parsed content.
pub struct Loaded {
    content: Content,
    target: Option<Selector>,
    source: String,
}

/// Formats the configuration as in a file, for errors.
pub fn describe(p: &Patch) -> String {
    describe_with(p, "patch")
}

/// [`describe`], with another text as the patch.
pub fn describe_with(p: &Patch, text: &str) -> String {
    let mut out = Map::new();
    let add = |out: &mut Map<String, Value>, key: &str, value: &str| {
        if !value.is_empty() {
            out.insert(key.to_owned(), value.into());
        }
    };
    add(&mut out, "path", &p.path);
    add(&mut out, text, &p.patch);
    if let Some(t) = &p.target {
        let mut target = Map::new();
        for (key, value) in [
            ("group", &t.gvk.group),
            ("version", &t.gvk.version),
            ("kind", &t.gvk.kind),
            ("name", &t.name),
            ("namespace", &t.namespace),
            ("annotationSelector", &t.annotations),
            ("labelSelector", &t.labels),
        ] {
            add(&mut target, key, value);
        }
        out.insert("target".to_owned(), target.into());
    }
    if let Some(o) = &p.options {
        let flags = [("allowKindChange", o.allow_kind_change), ("allowNameChange", o.allow_name_change)];
        let set: Map<String, Value> =
            flags.into_iter().filter(|(_, set)| *set).map(|(k, _)| (k.to_owned(), true.into())).collect();
        out.insert("options".to_owned(), set.into());
    }
    codec::yaml::to_string(&out.into())
}

/// Reads and parses a patch.
pub fn load(p: Patch, root: &Root<'_>) -> Result<Loaded, Error> {
    let inline = p.patch.trim();
    let (text, source) = match (inline, p.path.as_str()) {
        ("", "") => return Err(Error::text(format!("must specify one of patch and path in\n{}", describe(&p)))),
        ("", path) => {
            let text = root
                .read_text(path)
                .map_err(|e| Error::text(format!("failed to get the patch file from path({path}): {e}")))?;
            (text, format!("[path: {path:?}]"))
        }
        (text, "") => (text.to_owned(), format!("[patch: {text:?}]")),
        _ => return Err(Error::text(format!("patch and path can't be set at the same time\n{}", describe(&p)))),
    };
    let content = match (resource::parse(&text), json_patch::operations(&text)) {
        (Ok(mut patches), _) => {
            let options = p.options.unwrap_or_default();
            for patch in &mut patches {
                patch.allow_name_change = options.allow_name_change;
                patch.allow_kind_change = options.allow_kind_change;
            }
            Content::Objects(patches)
        }
        (Err(_), Ok(operations)) => Content::Operations(operations),
        _ => return Err(Error::text(format!("unable to parse SM or JSON patch from {source}"))),
    };
    Ok(Loaded { content, target: p.target, source })
}

impl Transform for Loaded {
    fn apply(&self, all: &mut Resources) -> Result<(), Error> {
        match (&self.content, &self.target) {
            (Content::Objects(patches), _) if patches.is_empty() => Ok(()),
            (Content::Objects(patches), Some(target)) => {
                let [patch] = &patches[..] else {
                    return Err(Error::text(format!(
                        "Multiple Strategic-Merge Patches in one `patches` entry is not allowed to set `patches.target` field: {}",
                        self.source
                    )));
                };
                let selected = all
                    .select(target)
                    .map_err(|e| Error::text(format!("unable to find patch target in `resources`: {e}")))?;
                apply_to(all, &selected, patch)
            }
            (Content::Objects(patches), None) => patches.iter().try_for_each(|patch| {
                let id = patch.original_id();
                let found = all
                    .by_id(&id)
                    .map_err(|e| Error::text(format!("no resource matches strategic merge patch \"{id}\": {e}")))?;
                all.0[found].patch(patch)
            }),
            (Content::Operations(_), None) => {
                Err(Error::text(format!("must specify a target for JSON patch {}", self.source)))
            }
            (Content::Operations(operations), Some(target)) => {
                for i in all.select(target)? {
                    all.0[i].remember();
                    json_patch::apply(&mut all.0[i], operations)?;
                }
                Ok(())
            }
        }
    }
}

/// Applies one patch to several objects, regardless of the name in it.
fn apply_to(all: &mut Resources, selected: &[usize], patch: &Resource) -> Result<(), Error> {
    for &i in selected {
        let mut own = patch.clone();
        let mut gvk = all.0[i].gvk();
        gvk.kind = patch.kind().to_owned();
        own.set_gvk(&gvk);
        all.0[i].patch(&own)?;
    }
    all.drop_empty();
    all.check_unique()
}

go_struct! {
    /// The older form, `patchesStrategicMerge`: files or inline texts.
    StrategicMerge "PatchStrategicMergeTransformer" {
        paths: Vec<String> = "paths",
        patches: String = "patches",
    }
}

impl StrategicMerge {
    /// Reads and parses the patches.
    pub fn load(self, root: &Root<'_>) -> Result<LoadedMerge, Error> {
        if self.paths.is_empty() && self.patches.is_empty() {
            return Err(Error::text("empty file path and empty patch content"));
        }
        let mut all = Vec::new();
        for path in &self.paths {
            match resource::parse(path) {
                Ok(patches) => all.extend(patches),
                Err(_) => all.extend(resource::parse(&root.read_text(path)?).map_err(|e| e.in_file(path))?),
            }
        }
        if !self.patches.is_empty() {
            all.extend(resource::parse(&self.patches)?);
        }
        if all.is_empty() {
            return Err(Error::text(format!(
                "patch appears to be empty; files=[{}], Patch={}",
                self.paths.join(" "),
                self.patches
            )));
        }
        Ok(LoadedMerge(all))
    }
}

pub struct LoadedMerge(Vec<Resource>);

impl Transform for LoadedMerge {
    fn apply(&self, all: &mut Resources) -> Result<(), Error> {
        for patch in &self.0 {
            let found = all.by_id(&patch.original_id())?;
            apply_to(all, &[found], patch)?;
        }
        Ok(())
    }
}
