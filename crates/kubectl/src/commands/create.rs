//! `kubectl create`: objects from files. The generators are in [`super::create_of`].

use crate::error::{Error, Result, text};
use crate::flags::{DryRunFlag, FileFlags, PrintFlags, ValidateFlag};
use crate::kube::Kube;
use crate::printer::Printer;
use crate::resource::from_files;
use client::WriteOptions;
use meta::Object;

/// The annotation with what was applied last.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

#[derive(clap::Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(flatten)]
    pub files: FileFlags,
    #[command(flatten)]
    pub write: WriteFlags,
}

/// What every way of creating has.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct WriteFlags {
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub dry: DryRunFlag,
    #[command(flatten)]
    pub validate: ValidateFlag,
    /// Who the fields of the object will belong to.
    #[arg(long, default_value = "kubectl-create", hide_default_value = true)]
    pub field_manager: String,
    /// Keep the configuration in an annotation, for `apply` later.
    #[arg(long)]
    pub save_config: bool,
}

impl WriteFlags {
    pub fn options(&self) -> Result<WriteOptions> {
        Ok(WriteOptions {
            field_manager: self.field_manager.clone(),
            dry_run: self.dry.strategy()?.option(),
            field_validation: self.validate.validation()?,
            force: false,
        })
    }
}

/// The object as the annotation holds it: without the annotation itself, with a newline.
pub fn configuration(o: &Object) -> String {
    let mut o = o.clone();
    o.remove(&["metadata", "annotations", LAST_APPLIED]);
    if o.at(&["metadata", "annotations"]).is_none_or(|a| !a.is_object()) {
        o.set(&["metadata", "annotations"], meta::Map::new());
    }
    format!("{}\n", codec::json::to_string(&o.into_value(), codec::json::Html::Escape))
}

/// Puts the object's own configuration into its annotation.
pub fn annotate(o: &mut Object) {
    let text = configuration(o);
    o.set_annotation(LAST_APPLIED, &text);
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    if a.files.is_empty() {
        return text("must specify one of -f and -k");
    }
    let dry = a.write.dry.strategy()?;
    let options = a.write.options()?;
    let mut printer = Printer::new(&a.write.print, dry)?;
    let mut errors = Vec::new();
    let mut count = 0;
    for i in from_files(k, &a.files).await? {
        count += 1;
        let done = async {
            let i = i?;
            let mut o = i.object.clone().unwrap_or_default();
            if a.write.save_config {
                annotate(&mut o);
            }
            if dry != crate::flags::Dry::Client {
                let api = k.api(&i.resource, &i.namespace).await?;
                o = api.create(&options, &o).await.map_err(|e| Error::from(e).about("creating", &i.source))?;
            }
            printer.print(k, &o, "created")
        };
        if let Err(e) = done.await {
            errors.push(e);
        }
    }
    if count == 0 {
        return text("no objects passed to create");
    }
    Error::collect(errors)
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    const CM: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
    const POST: &str = "POST /api/v1/namespaces/default/configmaps?fieldManager=kubectl-create&fieldValidation=Strict";

    #[tokio::test]
    async fn from_a_file() {
        let made = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}});
        let s = Server::new().on(POST, 201, made);
        assert_eq!(snapshot(&s, "create -f -", CM).await, "configmap/a created\n");
        assert_eq!(s.body_of(POST)["metadata"], json!({"name": "a", "namespace": "default"}));
        assert_eq!(snapshot(&s, "create -f - --save-config", CM).await, "configmap/a created\n");
        let text = s.body_of(POST)["metadata"]["annotations"][super::LAST_APPLIED].clone();
        assert_eq!(
            text,
            "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"annotations\":{},\"name\":\"a\",\"namespace\":\"default\"}}\n"
        );
        assert_eq!(snapshot(&s, "create -f - --dry-run=client", CM).await, "configmap/a created (dry run)\n");
        let there = json!({"kind": "Status", "status": "Failure", "reason": "AlreadyExists", "code": 409, "message": "configmaps \"a\" already exists"});
        let s = Server::new().on(POST, 409, there);
        assert_eq!(
            snapshot(&s, "create -f -", CM).await,
            "! Error from server (AlreadyExists): error when creating \"STDIN\": configmaps \"a\" already exists\nexit 1\n"
        );
        for (line, input, want) in [
            ("create", "", "! error: must specify one of -f and -k\nexit 1\n"),
            ("create -f -", "", "! error: no objects passed to create\nexit 1\n"),
            ("create -f /nowhere.yaml", "", "! error: the path \"/nowhere.yaml\" does not exist\nexit 1\n"),
            (
                "create -f - -n other",
                "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: b}\n",
                "! error: the namespace from the provided object \"b\" does not match the namespace \"other\". You must pass '--namespace=b' to perform this operation.\nexit 1\n",
            ),
            (
                "create -f -",
                "apiVersion: v9\nkind: Frob\nmetadata: {name: a}\n",
                "! error: resource mapping not found for name: \"a\" namespace: \"\" from \"STDIN\": no matches for kind \"Frob\" in version \"v9\"\n! ensure CRDs are installed first\nexit 1\n",
            ),
        ] {
            assert_eq!(snapshot(&s, line, input).await, want, "{line}");
        }
    }
}
