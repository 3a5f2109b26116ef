//! `kubectl patch`: changes fields of objects with a patch.

use crate::error::{Error, Result, os_message, text};
use crate::flags::{DryRunFlag, DryRunStrategy, FileFlags, PrintFlags};
use crate::kube::Kube;
use crate::printer::Printer;
use crate::resource::select::{Selection, gather, gather_alone};
use client::client::{JSON, request};
use client::{Patch, Query, WriteOptions};
use http::Method;
use meta::{Object, Value};

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE NAME, or TYPE/NAME.
    pub resources: Vec<String>,
    #[command(flatten)]
    pub files: FileFlags,
    /// Patch in JSON or YAML.
    #[arg(short = 'p', long, default_value = "", hide_default_value = true)]
    pub patch: String,
    /// File with the patch.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub patch_file: String,
    /// Patch type: strategic, merge or json.
    #[arg(long = "type", default_value = "strategic", hide_default_value = true)]
    pub ty: String,
    /// Subresource to patch: status or scale.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub subresource: String,
    /// Name of the field manager.
    #[arg(long, default_value = "kubectl-patch", hide_default_value = true)]
    pub field_manager: String,
    /// Patch the objects of files without contacting the server, and print them.
    #[arg(long)]
    pub local: bool,
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub dry: DryRunFlag,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    let dry = a.dry.strategy()?;
    let given = match (a.patch.as_str(), a.patch_file.as_str()) {
        ("", "") => return text("must specify --patch or --patch-file containing the contents of the patch"),
        (p, "") => p.to_owned(),
        ("", f) => std::fs::read_to_string(f)
            .map_err(|e| Error::Text(format!("unable to read patch file: open {f}: {}", os_message(&e))))?,
        _ => return text("cannot specify --patch and --patch-file together"),
    };
    // Text that opens like an object is JSON and is sent unchanged: YAML flow mappings are not accepted.
    let is_invalid_json = given.trim_start().starts_with('{') && serde_json::from_str::<Value>(&given).is_err();
    let document = match is_invalid_json {
        true => Value::Null,
        false => codec::yaml::parse(&given)
            .map_err(|e| Error::Text(format!("unable to parse {given:?}: {e}")))?
            .into_iter()
            .next()
            .unwrap_or(Value::Null),
    };
    if a.local && !a.resources.is_empty() {
        return text("cannot specify --local and server resources");
    }
    if a.local && dry == DryRunStrategy::Server {
        return text("cannot specify --local and --dry-run=server - did you mean --dry-run=client?");
    }
    let patch = match a.ty.to_lowercase().as_str() {
        "strategic" => Patch::Strategic(document),
        "merge" => Patch::Merge(document),
        "json" => Patch::Json(document),
        _ => return text(format!("--type must be one of [json merge strategic], not {:?}", a.ty)),
    };
    if a.resources.is_empty() && a.files.is_empty() {
        return text(super::delete::MISSING_RESOURCES);
    }
    // As in upstream, the output does not mention the dry run.
    let mut printer = Printer::new(&a.print, DryRunStrategy::None)?;
    let (found, mut errors) = match a.local {
        true => gather_alone(k, &a.resources, &a.files).await?,
        false => gather(k, &a.resources, &a.files, &Selection { files_as_given: true, ..Selection::default() }).await?,
    };
    if found.is_empty() && errors.is_empty() {
        return text("no objects passed to patch");
    }
    for i in found {
        let mut before = i.object.clone().unwrap_or_default();
        let done: Result<Object> = async {
            if a.local || dry == DryRunStrategy::Client {
                return if is_invalid_json { text("invalid JSON document") } else { locally(&before, &patch) };
            }
            let options = WriteOptions { dry_run: dry.option(), ..WriteOptions::manager(&a.field_manager) };
            let api = k.api(&i.resource, &i.namespace).await?;
            if is_invalid_json {
                let namespace = Some(i.namespace.as_str()).filter(|n| !n.is_empty());
                let sub = Some(a.subresource.as_str()).filter(|s| !s.is_empty());
                let mut q = Query::default();
                q.add("fieldManager", &a.field_manager);
                q.add("dryRun", if dry == DryRunStrategy::Server { "All" } else { "" });
                let path = api.resource().path(namespace, Some(&i.name), sub)? + q.as_str();
                let body = Some((patch.content_type(), given.clone().into_bytes()));
                return Ok(api.client().json(request(Method::PATCH, &path, JSON, body)?).await?);
            }
            Ok(match a.subresource.as_str() {
                "" => api.patch(&i.name, &options, &patch).await?,
                sub => {
                    if i.source.is_empty() {
                        before = api.get_subresource(&i.name, sub).await?;
                    }
                    api.patch_subresource(&i.name, sub, &options, &patch).await?
                }
            })
        }
        .await;
        let done = done.map_err(|e| match e.status() {
            Some(s) if s.is(meta::Reason::UnsupportedMediaType) => Error::Text(format!(
                "{} is not supported by {}, Kind={}: {}",
                patch.content_type(),
                i.resource.gvk().api_version(),
                i.resource.kind,
                s.message
            )),
            _ => e,
        });
        match done {
            Ok(mut o) => {
                let operation = if o == before && !a.local { "patched (no change)" } else { "patched" };
                if !a.local && dry != DryRunStrategy::Client {
                    let options = WriteOptions { dry_run: dry.option(), ..WriteOptions::manager(&a.field_manager) };
                    o = i.record_cause(k, &a.subresource, &options).await.unwrap_or(o);
                }
                printer.print(k, &o, operation)?;
            }
            Err(e) => errors.push(e),
        }
    }
    Error::collect(errors)
}

/// Applies a patch to an object without a server.
pub fn locally(o: &Object, patch: &Patch) -> Result<Object> {
    let mut v = o.clone().into_value();
    match patch {
        Patch::Json(p) => {
            let p = merge::json_patch::Patch::decode(p.clone()).map_err(|e| Error::Text(e.to_string()))?;
            p.apply(&mut v).map_err(|e| Error::Text(e.to_string()))?;
        }
        Patch::Strategic(p) => {
            // Definitions and API services are not in kubectl's scheme.
            let in_scheme =
                |g: &meta::Gvk| !["apiextensions.k8s.io", "apiregistration.k8s.io"].contains(&g.group.as_str());
            let schema = o.gvk().filter(in_scheme).and_then(|g| kinds::catalog().schema_of(&g));
            if schema.is_none() {
                let gvk = o.gvk().unwrap_or_default();
                return text(format!(
                    "strategic merge patch is not supported for {}, Kind={} locally, try --type merge",
                    gvk.api_version(),
                    gvk.kind
                ));
            }
            let (Value::Object(m), Value::Object(p)) = (&mut v, p.clone()) else {
                return text("the patch is no object");
            };
            merge::strategic::apply(m, p, schema.map(|s| &**s)).map_err(|e| Error::Text(e.to_string()))?;
        }
        Patch::Merge(p) | Patch::Apply(p) => {
            merge::merge_patch::apply(&mut v, p.clone()).map_err(|e| Error::Text(e.to_string()))?;
        }
    }
    Ok(Object::from_value(v).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    #[tokio::test]
    async fn reports_kinds_without_strategic_merge_patch() {
        let path = "/apis/example.com/v1/namespaces/default/widgets/w";
        let no = json!({"kind": "Status", "status": "Failure", "reason": "UnsupportedMediaType", "code": 415, "message": "no"});
        let s = Server::new()
            .on(
                &format!("GET {path}"),
                200,
                json!({"kind": "Widget", "apiVersion": "example.com/v1", "metadata": {"name": "w"}}),
            )
            .on(&format!("PATCH {path}?fieldManager=kubectl-patch"), 415, no);
        assert_eq!(
            snapshot(&s, "patch widget w -p {}", "").await,
            "! error: application/strategic-merge-patch+json is not supported by example.com/v1, Kind=Widget: no\nexit 1\n"
        );
    }

    #[tokio::test]
    async fn patches_files_without_a_server() {
        let widget = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w}\n";
        let s = Server::new();
        for (line, expected) in [
            (
                r#"patch --local -f - -p {"spec":1}"#,
                "! error: strategic merge patch is not supported for example.com/v1, Kind=Widget locally, try --type merge\nexit 1\n",
            ),
            (r#"patch --local -f - --type=Merge -p {"spec":2} -o jsonpath={.spec}"#, "2"),
            (r#"patch --local -f - --type=merge -p {"spec":1} -o jsonpath={.spec}"#, "1"),
            ("patch --local -f /dev/null -p {}", "! error: no objects passed to patch\nexit 1\n"),
            ("patch --local widget/w -p {}", "! error: cannot specify --local and server resources\nexit 1\n"),
            (
                "patch --local -f - --dry-run=server -p {}",
                "! error: cannot specify --local and --dry-run=server - did you mean --dry-run=client?\nexit 1\n",
            ),
        ] {
            assert_eq!(snapshot(&s, line, widget).await, expected, "{line}");
        }
    }
}
