//! The fields that transformers change: the built-in tables (`data/fields`), merged with the `configurations` and `crds` of
//! kustomizations.

use crate::Error;
use crate::go::{self, Unknown, go_struct};
use crate::id::Gvk;
use crate::kustomization::FieldSpec;
use crate::root::Root;
use crate::sort::gvk_key;
use meta::Value;

go_struct! {
    /// The fields that refer to objects of a kind.
    NameReference "NameBackReferences" {
        fields: Vec<FieldSpec> = "fieldSpecs",
        ; gvk: Gvk,
    }
}

go_struct! {
    Config "TransformerConfig" {
        name_prefix: Vec<FieldSpec> = "namePrefix",
        name_suffix: Vec<FieldSpec> = "nameSuffix",
        namespace: Vec<FieldSpec> = "namespace",
        common_labels: Vec<FieldSpec> = "commonLabels",
        labels: Vec<FieldSpec> = "labels",
        template_labels: Vec<FieldSpec> = "templateLabels",
        common_annotations: Vec<FieldSpec> = "commonAnnotations",
        names: Vec<NameReference> = "nameReference",
        vars: Vec<FieldSpec> = "varReference",
        images: Vec<FieldSpec> = "images",
        replicas: Vec<FieldSpec> = "replicas",
    }
}

/// Adds the missing specs. Errors if a field is in both with different `create`.
pub fn merge_specs(into: &mut Vec<FieldSpec>, more: &[FieldSpec]) -> Result<(), Error> {
    for x in more {
        match into.iter().find(|s| s.gvk.is_selected(&x.gvk) && s.path == x.path) {
            Some(s) if s.create != x.create => return Err(Error::text("conflicting fieldspecs")),
            Some(_) => {}
            None => into.push(x.clone()),
        }
    }
    Ok(())
}

impl Config {
    fn lists(&mut self) -> [(&'static str, &mut Vec<FieldSpec>); 10] {
        [
            ("NamePrefix", &mut self.name_prefix),
            ("NameSuffix", &mut self.name_suffix),
            ("NameSpace", &mut self.namespace),
            ("CommonLabels", &mut self.common_labels),
            ("Labels", &mut self.labels),
            ("TemplateLabels", &mut self.template_labels),
            ("CommonAnnotations", &mut self.common_annotations),
            ("VarReference", &mut self.vars),
            ("Images", &mut self.images),
            ("Replicas", &mut self.replicas),
        ]
    }

    /// Adds the specs of another configuration.
    pub fn merge(&mut self, mut other: Self) -> Result<(), Error> {
        for ((name, into), (_, more)) in self.lists().into_iter().zip(other.lists()) {
            merge_specs(into, more).map_err(|e| Error::text(format!("failed to merge {name} fieldSpec: {e}")))?;
            into.sort_by_cached_key(|s| gvk_key(&s.gvk));
        }
        for n in other.names {
            match self.names.iter_mut().find(|o| o.gvk == n.gvk) {
                Some(o) => merge_specs(&mut o.fields, &n.fields)
                    .map_err(|e| Error::text(format!("failed to merge NameReference fieldSpec: {e}")))?,
                None => self.names.push(n),
            }
        }
        self.names.sort_by_cached_key(|n| gvk_key(&n.gvk));
        Ok(())
    }

    /// Returns the built-in tables merged with the files that a kustomization names.
    pub fn load(root: &Root<'_>, configurations: &[String]) -> Result<Self, Error> {
        let mut all = builtin();
        for path in configurations {
            let text = root.read_text(path)?;
            let documents = codec::yaml::parse(&text).map_err(Error::text)?;
            let value = documents.into_iter().next().unwrap_or_default();
            all.merge(go::decode(value, Unknown::Ignored).map_err(Error::text)?)?;
        }
        Ok(all)
    }
}

/// Parses `Kind/version@group`; version and group are optional.
fn gvk(text: &str) -> Gvk {
    let (rest, group) = text.split_once('@').unwrap_or((text, ""));
    let (kind, version) = rest.split_once('/').unwrap_or((rest, ""));
    Gvk { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() }
}

fn builtin() -> Config {
    let mut config = Config::default();
    let mut sets: Vec<(&str, Vec<(&str, &str)>)> = Vec::new();
    let mut section = "";
    for line in include_str!("../data/fields").lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = name;
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let specs: Vec<FieldSpec> = match words[..] {
            ["set", name, ref places @ ..] => {
                sets.push((name, places.iter().filter_map(|p| p.split_once(':')).collect()));
                continue;
            }
            ["each", name, path] => {
                let places = sets.iter().filter(|(n, _)| *n == name).flat_map(|(_, places)| places);
                places
                    .map(|(kind, base)| FieldSpec { path: format!("{base}/{path}"), create: false, gvk: gvk(kind) })
                    .collect()
            }
            [path, ref rest @ ..] => {
                let kind = rest.iter().find(|w| **w != "+").copied().unwrap_or_default();
                vec![FieldSpec { path: path.to_owned(), create: rest.contains(&"+"), gvk: gvk(kind) }]
            }
            [] => continue,
        };
        let list = match section {
            "namePrefix" => &mut config.name_prefix,
            "nameSuffix" => &mut config.name_suffix,
            "namespace" => &mut config.namespace,
            "commonLabels" => &mut config.common_labels,
            "templateLabels" => &mut config.template_labels,
            "commonAnnotations" => &mut config.common_annotations,
            "images" => &mut config.images,
            "replicas" => &mut config.replicas,
            "varReference" => &mut config.vars,
            names => {
                let gvk = gvk(names.trim_start_matches("names "));
                if config.names.last().is_none_or(|n| n.gvk != gvk) {
                    config.names.push(NameReference { fields: Vec::new(), gvk });
                }
                match config.names.last_mut() {
                    Some(n) => &mut n.fields,
                    None => continue,
                }
            }
        };
        list.extend(specs);
    }
    config
}

/// Reads the extensions in OpenAPI definitions of custom resources (`crds`).
pub fn from_definitions(root: &Root<'_>, paths: &[String]) -> Result<Config, Error> {
    let mut config = Config::default();
    for path in paths {
        let text = root.read_text(path)?;
        let documents = codec::yaml::parse(&text)
            .map_err(|e| Error::text(format!("unable to parse open API definition from '{path}': {e}")))?;
        let definitions = documents.into_iter().next().unwrap_or_default();
        for (name, d) in definitions.as_object().into_iter().flatten() {
            let properties = &d["Schema"]["properties"];
            if ["kind", "apiVersion", "metadata"].iter().all(|f| properties.get(f).is_some()) {
                let kind = name.rsplit('.').next().unwrap_or(name);
                let gvk = Gvk { kind: kind.to_owned(), ..Gvk::default() };
                extensions(&mut config, &gvk, &definitions, name, &mut Vec::new())?;
            }
        }
    }
    Ok(config)
}

fn extensions(
    config: &mut Config,
    gvk: &Gvk,
    definitions: &Value,
    name: &str,
    path: &mut Vec<String>,
) -> Result<(), Error> {
    // A definition that contains itself would never end.
    if path.len() > 64 {
        return Ok(());
    }
    let properties = definitions.get(name).and_then(|d| d["Schema"]["properties"].as_object());
    for (key, p) in properties.into_iter().flatten() {
        path.push(key.clone());
        let spec = |path: &[String]| FieldSpec { path: path.join("/"), create: false, gvk: gvk.clone() };
        let extension = |name: &str| p.get(format!("x-kubernetes-{name}")).and_then(Value::as_str);
        if extension("annotation").is_some() {
            merge_specs(&mut config.common_annotations, &[spec(path)])?;
        }
        if extension("label-selector").is_some() {
            merge_specs(&mut config.common_labels, &[spec(path)])?;
        }
        if extension("identity").is_some() {
            merge_specs(&mut config.name_prefix, &[spec(path)])?;
        }
        if let (Some(version), Some(kind)) = (extension("object-ref-api-version"), extension("object-ref-kind")) {
            path.push(extension("object-ref-name-key").unwrap_or("name").to_owned());
            let target = Gvk { group: String::new(), version: version.to_owned(), kind: kind.to_owned() };
            let more =
                Config { names: vec![NameReference { fields: vec![spec(path)], gvk: target }], ..Config::default() };
            config.merge(more)?;
            path.pop();
        }
        if let Some(next) = p.get("$ref").and_then(Value::as_str) {
            extensions(config, gvk, definitions, next, path)?;
        }
        path.pop();
    }
    Ok(())
}
