//! The fields of `kustomization.yaml`.

use crate::go::{self, Unknown, go_struct};
use crate::{Error, id::Gvk};
use meta::{Map, Value};
use std::collections::BTreeMap;

go_struct! {
    Metadata "ObjectMeta" {
        name: String = "name",
        namespace: String = "namespace",
        labels: BTreeMap<String, String> = "labels",
        annotations: BTreeMap<String, String> = "annotations",
    }
}

go_struct! {
    FieldSpec "FieldSpec" {
        path: String = "path",
        /// Create missing fields of the path.
        create: bool = "create",
        ; gvk: Gvk,
    }
}

go_struct! {
    Label "Label" {
        pairs: BTreeMap<String, String> = "pairs",
        include_selectors: bool = "includeSelectors",
        include_templates: bool = "includeTemplates",
        fields: Vec<FieldSpec> = "fields",
    }
}

go_struct! {
    /// Selects objects: every part is a regular expression that matches the complete value; an empty part matches any
    /// value.
    Selector "Selector" {
        name: String = "name",
        namespace: String = "namespace",
        annotations: String = "annotationSelector",
        labels: String = "labelSelector",
        ; gvk: Gvk,
    }
}

go_struct! {
    PatchOptions "PatchArgs" {
        allow_name_change: bool = "allowNameChange",
        allow_kind_change: bool = "allowKindChange",
    }
}

go_struct! {
    Patch "Patch" {
        path: String = "path",
        patch: String = "patch",
        target: Option<Selector> = "target",
        options: Option<PatchOptions> = "options",
    }
}

go_struct! {
    Image "Image" {
        name: String = "name",
        new_name: String = "newName",
        tag_suffix: String = "tagSuffix",
        new_tag: String = "newTag",
        digest: String = "digest",
    }
}

go_struct! {
    Replica "Replica" {
        name: String = "name",
        count: i64 = "count",
    }
}

go_struct! {
    FieldOptions "FieldOptions" {
        delimiter: String = "delimiter",
        index: i64 = "index",
        encoding: String = "encoding",
        create: bool = "create",
    }
}

go_struct! {
    Source "SourceSelector" {
        name: String = "name",
        namespace: String = "namespace",
        field_path: String = "fieldPath",
        options: Option<FieldOptions> = "options",
        ; gvk: Gvk,
    }
}

go_struct! {
    Target "TargetSelector" {
        select: Option<Selector> = "select",
        reject: Vec<Selector> = "reject",
        field_paths: Vec<String> = "fieldPaths",
        options: Option<FieldOptions> = "options",
    }
}

go_struct! {
    Replacement "ReplacementField" {
        source: Option<Source> = "source",
        targets: Option<Vec<Target>> = "targets",
        source_value: Option<String> = "sourceValue",
        path: String = "path",
    }
}

go_struct! {
    ObjectReference "Target" {
        api_version: String = "apiVersion",
        name: String = "name",
        namespace: String = "namespace",
        ; gvk: Gvk,
    }
}

go_struct! {
    FieldReference "FieldSelector" {
        field_path: String = "fieldPath",
    }
}

go_struct! {
    Var "Var" {
        name: String = "name",
        object: ObjectReference = "objref",
        field: FieldReference = "fieldref",
    }
}

go_struct! {
    LegacyOrder "LegacySortOptions" {
        first: Vec<String> = "orderFirst",
        last: Vec<String> = "orderLast",
    }
}

go_struct! {
    SortOptions "SortOptions" {
        order: String = "order",
        legacy: Option<LegacyOrder> = "legacySortOptions",
    }
}

go_struct! {
    GeneratorOptions "GeneratorOptions" {
        labels: BTreeMap<String, String> = "labels",
        annotations: BTreeMap<String, String> = "annotations",
        disable_name_suffix_hash: bool = "disableNameSuffixHash",
        immutable: bool = "immutable",
    }
}

go_struct! {
    Sources "KvPairSources" {
        literals: Vec<String> = "literals",
        files: Vec<String> = "files",
        envs: Vec<String> = "envs",
        env: String = "env",
    }
}

go_struct! {
    ConfigMapArgs "ConfigMapArgs" {
        namespace: String = "namespace",
        name: String = "name",
        behavior: String = "behavior",
        options: Option<GeneratorOptions> = "options",
        ; sources: Sources,
    }
}

go_struct! {
    SecretArgs "SecretArgs" {
        ty: String = "type",
        ; args: ConfigMapArgs,
    }
}

go_struct! {
    Kustomization "Kustomization" {
        api_version: String = "apiVersion",
        kind: String = "kind",
        metadata: Option<Metadata> = "metadata",
        openapi: BTreeMap<String, String> = "openapi",
        name_prefix: String = "namePrefix",
        name_suffix: String = "nameSuffix",
        namespace: String = "namespace",
        common_labels: Option<BTreeMap<String, String>> = "commonLabels",
        labels: Vec<Label> = "labels",
        common_annotations: BTreeMap<String, String> = "commonAnnotations",
        patches_strategic_merge: Option<Vec<String>> = "patchesStrategicMerge",
        patches_json6902: Option<Vec<Patch>> = "patchesJson6902",
        patches: Vec<Patch> = "patches",
        images: Vec<Image> = "images",
        image_tags: Option<Vec<Image>> = "imageTags",
        replacements: Vec<Replacement> = "replacements",
        replicas: Vec<Replica> = "replicas",
        vars: Option<Vec<Var>> = "vars",
        sort_options: Option<SortOptions> = "sortOptions",
        resources: Vec<String> = "resources",
        components: Vec<String> = "components",
        crds: Vec<String> = "crds",
        bases: Option<Vec<String>> = "bases",
        config_map_generator: Vec<ConfigMapArgs> = "configMapGenerator",
        secret_generator: Vec<SecretArgs> = "secretGenerator",
        helm_globals: Option<Map<String, Value>> = "helmGlobals",
        helm_charts: Vec<Map<String, Value>> = "helmCharts",
        helm_chart_inflation_generator: Vec<Map<String, Value>> = "helmChartInflationGenerator",
        generator_options: Option<GeneratorOptions> = "generatorOptions",
        configurations: Vec<String> = "configurations",
        generators: Vec<String> = "generators",
        transformers: Vec<String> = "transformers",
        validators: Vec<String> = "validators",
        build_metadata: Vec<String> = "buildMetadata",
    }
}

pub const KIND: &str = "Kustomization";
pub const COMPONENT: &str = "Component";
const VERSION: &str = "kustomize.config.k8s.io/v1beta1";
const COMPONENT_VERSION: &str = "kustomize.config.k8s.io/v1alpha1";

const FIX: &str = "Run 'kustomize edit fix' to update your Kustomization automatically.";

impl Kustomization {
    /// Reads a kustomization file in the directory `root`. Deprecated fields are reported to `warn` and converted.
    pub fn read(text: &str, root: &str, warn: &mut dyn FnMut(String)) -> Result<Self, Error> {
        let wrong = |why: String| Error::text(format!("invalid Kustomization: {why}"));
        let mut documents = codec::yaml::parse(text).map_err(|e| wrong(e.to_string()))?;
        let document = if documents.is_empty() { Value::Null } else { documents.swap_remove(0) };
        let mut k: Self = go::decode(document, Unknown::Refused).map_err(wrong)?;
        k.deprecations().into_iter().for_each(warn);
        k.normalize();
        let named = Self { api_version: k.api_version.clone(), kind: k.kind.clone(), ..Self::default() };
        if k == named {
            return Err(Error::text("kustomization.yaml is empty"));
        }
        let mut wrong = Vec::new();
        if k.kind != KIND && k.kind != COMPONENT {
            wrong.push(format!("kind should be {KIND} or {COMPONENT}"));
        }
        let version = if k.kind == COMPONENT { COMPONENT_VERSION } else { VERSION };
        if k.api_version != version {
            wrong.push(format!("apiVersion for {} should be {version}", k.kind));
        }
        if wrong.is_empty() {
            return Ok(k);
        }
        Err(Error::text(format!("Failed to read kustomization file under {root}:\n{}", wrong.join("\n"))))
    }

    fn deprecations(&self) -> Vec<String> {
        let old = [
            (self.bases.is_some(), "bases", "resources", ""),
            (self.common_labels.is_some(), "commonLabels", "labels", ""),
            (self.image_tags.is_some(), "imageTags", "images", ""),
            (self.patches_json6902.is_some(), "patchesJson6902", "patches", ""),
            (self.patches_strategic_merge.is_some(), "patchesStrategicMerge", "patches", ""),
            (self.vars.is_some(), "vars", "replacements", "[EXPERIMENTAL] "),
        ];
        old.iter()
            .filter(|(used, ..)| *used)
            .map(|(_, old, new, how)| {
                format!("# Warning: '{old}' is deprecated. Please use '{new}' instead. {how}{FIX}")
            })
            .collect()
    }

    fn normalize(&mut self) {
        if self.kind.is_empty() {
            self.kind = KIND.to_owned();
        }
        if self.api_version.is_empty() {
            let version = if self.kind == COMPONENT { COMPONENT_VERSION } else { VERSION };
            self.api_version = version.to_owned();
        }
        self.resources.extend(self.bases.take().unwrap_or_default());
        self.images.extend(self.image_tags.take().unwrap_or_default());
        let secrets = self.secret_generator.iter_mut().map(|s| &mut s.args);
        for args in self.config_map_generator.iter_mut().chain(secrets) {
            if !args.sources.env.is_empty() {
                args.sources.envs.push(std::mem::take(&mut args.sources.env));
            }
        }
        self.helm_charts.append(&mut self.helm_chart_inflation_generator);
        self.common_labels = self.common_labels.take().filter(|l| !l.is_empty());
        self.vars = self.vars.take().filter(|v| !v.is_empty());
        self.patches_json6902 = self.patches_json6902.take().filter(|p| !p.is_empty());
        self.patches_strategic_merge = self.patches_strategic_merge.take().filter(|p| !p.is_empty());
    }
}
