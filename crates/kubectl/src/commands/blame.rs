//! `kubectl blame`: shows for every field of an object which manager wrote it, how and when. Upstream has no such command.

use super::delete::MISSING_RESOURCES;
use crate::error::{Error, Result, text};
use crate::flags::FileFlags;
use crate::kube::Kube;
use crate::ownership::{Field, Owner, fields, owners, short};
use crate::printer::{table::age, tabwriter};
use crate::resource::Info;
use crate::resource::select::{Selection, gather};
use meta::Value;
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE NAME…, or TYPE/NAME….
    pub resources: Vec<String>,
    #[command(flatten)]
    pub files: FileFlags,
    /// Output format: json, yaml, or by default a table.
    #[arg(short = 'o', long, default_value = "", hide_default_value = true)]
    pub output: String,
    /// Only fields of this manager.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub manager: String,
    #[arg(long)]
    /// Do not print headers.
    pub no_headers: bool,
    /// Label selector.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    if a.resources.is_empty() && a.files.is_empty() {
        return text(MISSING_RESOURCES);
    }
    if !matches!(a.output.as_str(), "" | "json" | "yaml") {
        return text(format!(
            "unable to match a printer suitable for the output format {:?}, allowed formats are: json,yaml",
            a.output
        ));
    }
    let s = Selection { labels: &a.selector, bare_type_is_all: true, ..Selection::default() };
    let (found, errors) = gather(k, &a.resources, &a.files, &s).await?;
    let mut all: Vec<Value> = Vec::new();
    let several = found.len() > 1;
    for (n, i) in found.iter().enumerate() {
        let (owners, fields) = read(&a, i);
        if !a.output.is_empty() {
            all.push(document(i, &owners, &fields));
            continue;
        }
        if several {
            k.println(format!("{}{}:", if n > 0 { "\n" } else { "" }, i.to_name()));
        }
        k.out.write(table(&a, k, &owners, &fields).as_bytes());
    }
    let document = match all.len() {
        0 => None,
        1 => all.pop(),
        _ => Some(json!({"apiVersion": "v1", "kind": "List", "items": all})),
    };
    if let Some(v) = document {
        let text = if a.output == "json" { codec::json::to_string_indent(&v) } else { codec::yaml::to_string(&v) };
        k.out.write(text.as_bytes());
    }
    Error::collect(errors)
}

/// Returns the owners and fields of an object. Values of secrets are masked.
fn read(a: &Arguments, i: &Info) -> (Vec<Owner>, Vec<Field>) {
    let object = i.object.clone().unwrap_or_default();
    let owners = owners(&object);
    let mut found = fields(&object, &owners);
    let secret = i.resource.kind == "Secret" && i.resource.group.is_empty();
    for f in &mut found {
        let applied = f.path.contains(crate::resource::last_applied::LAST_APPLIED);
        if secret && (f.path.starts_with(".data.") || f.path.starts_with(".stringData.") || applied) {
            f.value = "***".into();
        }
    }
    if !a.manager.is_empty() {
        found.retain(|f| f.owners.iter().any(|n| owners[*n].manager == a.manager));
    }
    (owners, found)
}

fn table(a: &Arguments, k: &Kube, owners: &[Owner], fields: &[Field]) -> String {
    let mut lines = Vec::new();
    if !a.no_headers {
        lines.push("FIELD\tVALUE\tMANAGER\tOPERATION\tAGE\n".to_owned());
    }
    for f in fields {
        // A tab in a value would start a column.
        let value = short(&f.value).replace('\t', " ");
        if f.owners.is_empty() {
            lines.push(format!("{}\t{value}\t<none>\t<none>\t<none>\n", f.path));
        }
        for o in f.owners.iter().map(|n| &owners[*n]) {
            let age = if o.time.is_empty() { "<unknown>".to_owned() } else { age(&o.time, k.now()) };
            lines.push(format!("{}\t{value}\t{}\t{}\t{age}\n", f.path, o.manager, o.operation_name()));
        }
    }
    tabwriter::align(&lines.concat(), 0, 3)
}

fn document(i: &Info, owners: &[Owner], fields: &[Field]) -> Value {
    let fields: Vec<Value> = fields
        .iter()
        .map(|f| {
            let managers: Vec<Value> = f
                .owners
                .iter()
                .map(|n| {
                    let o = &owners[*n];
                    let mut m = json!({"manager": o.manager, "operation": o.operation, "apiVersion": o.api_version});
                    for (key, value) in [("subresource", &o.subresource), ("time", &o.time)] {
                        if !value.is_empty() {
                            m[key] = value.as_str().into();
                        }
                    }
                    m
                })
                .collect();
            json!({"path": f.path, "value": f.value, "managers": managers})
        })
        .collect();
    let mut object = json!({"apiVersion": i.resource.gvk().api_version(), "kind": i.resource.kind, "name": i.name});
    if !i.namespace.is_empty() {
        object["namespace"] = i.namespace.as_str().into();
    }
    json!({"object": object, "fields": fields})
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    /// Clauses: G02.table, G02.output
    #[tokio::test]
    async fn shows_fields_with_their_managers() {
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default", "managedFields": [
                {"manager": "kubectl", "operation": "Apply", "apiVersion": "apps/v1", "time": "2026-11-21T11:00:00Z",
                    "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}, "f:paused": {}}}},
                {"manager": "hpa", "operation": "Update", "subresource": "scale", "apiVersion": "apps/v1", "time": "2026-11-21T11:59:50Z",
                    "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
            ]},
            "spec": {"replicas": 3, "paused": false},
        });
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "default"}, "data": {"k": "djE="}});
        let s = Server::new().on("GET /apis/apps/v1/namespaces/default/deployments/web", 200, deployment).on(
            "GET /api/v1/namespaces/default/secrets/s",
            200,
            secret,
        );
        let expected = "\
FIELD                 VALUE          MANAGER   OPERATION      AGE
.apiVersion           \"apps/v1\"      <none>    <none>         <none>
.kind                 \"Deployment\"   <none>    <none>         <none>
.metadata.name        \"web\"          <none>    <none>         <none>
.metadata.namespace   \"default\"      <none>    <none>         <none>
.spec.paused          false          kubectl   Apply          60m
.spec.replicas        3              kubectl   Apply          60m
.spec.replicas        3              hpa       Update/scale   10s
";
        assert_eq!(snapshot(&s, "blame deploy/web", "").await, expected);
        let one =
            ".spec.replicas   3   kubectl   Apply          60m\n.spec.replicas   3   hpa       Update/scale   10s\n";
        assert_eq!(snapshot(&s, "blame deploy web --manager hpa --no-headers", "").await, one);
        let json: meta::Value =
            serde_json::from_str(&snapshot(&s, "blame deploy web --manager hpa -o json", "").await).unwrap();
        assert_eq!(
            json["object"],
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "namespace": "default"})
        );
        assert_eq!(
            json["fields"][0]["managers"][1],
            json!({"manager": "hpa", "operation": "Update", "apiVersion": "apps/v1", "subresource": "scale", "time": "2026-11-21T11:59:50Z"})
        );
        let yaml = snapshot(&s, "blame secret s -o yaml", "").await;
        assert!(yaml.contains("path: .data.k\n  value: '***'\n") && !yaml.contains("djE="), "{yaml}");
        assert!(snapshot(&s, "blame secret s -o frob", "").await.contains("allowed formats are: json,yaml"));
        assert!(snapshot(&s, "blame", "").await.contains("exit 1"));
    }
}
