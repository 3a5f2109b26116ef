//! `kubectl explain`: describes the fields of a kind, from the server's OpenAPI v3.

mod old;

use crate::error::{Error, Result, text};
use crate::kube::Kube;
use client::client::{JSON, request};
use http::Method;
use meta::Value;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE, or TYPE.FIELD.FIELD….
    pub field: Vec<String>,
    /// Show all nested fields with their types only.
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// API version GROUP/VERSION; by default the preferred one.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub api_version: String,
    /// Output format: plaintext or plaintext-openapiv2.
    #[arg(short = 'o', long, default_value = "plaintext", hide_default_value = true)]
    pub output: String,
}

/// Lines are wrapped before this column.
const WIDTH: usize = 80;

/// How many enum values are shown beside a field; a page about the field itself shows all.
const MAX_ENUM_VALUES: usize = 4;

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    let [field] = a.field.as_slice() else {
        return text(if a.field.is_empty() {
            "You must specify the type of resource to explain. Use \"kubectl api-resources\" for a complete list of supported resources.\n"
        } else {
            "We accept only this format: explain RESOURCE\n"
        });
    };
    if !matches!(a.output.as_str(), "plaintext" | "plaintext-openapiv2") {
        return text(format!("unrecognized format: {}", a.output));
    }
    // `deployments.apps.spec`: the longest prefix that names a resource.
    let parts: Vec<&str> = field.split('.').filter(|p| !p.is_empty()).collect();
    let mut found = None;
    for n in (1..=parts.len()).rev() {
        let word = parts[..n].join(".");
        if n == 1 {
            let bare = |e| match e {
                Error::Text(t) => Error::Bare(t),
                e => e,
            };
            found = Some((k.resource(&word).await.map_err(bare)?, 1));
        } else if let Some(r) = k.discovery().await?.by_word(&word)
            && parts[1..n].join(".") == if r.group.is_empty() { r.version.clone() } else { r.group.clone() }
        {
            found = Some((r, n));
            break;
        }
    }
    let Some((resource, used)) = found else {
        return text(format!("the server doesn't have a resource type {field:?}"));
    };
    let mut gvk = resource.gvk();
    if !a.api_version.is_empty() {
        let Some(gv) = meta::GroupVersion::parse(&a.api_version) else {
            return text(format!("unexpected GroupVersion string: {}", a.api_version));
        };
        gvk = gv.with_kind(&gvk.kind);
    }
    let path = match gvk.group.as_str() {
        "" => format!("/openapi/v3/api/{}", gvk.version),
        g => format!("/openapi/v3/apis/{g}/{}", gvk.version),
    };
    let client = k.client().await?;
    let document: Value = match client.json(request(Method::GET, &path, JSON, None)?).await {
        Ok(v) => v,
        Err(e) if e.is_not_found() => {
            return text(format!(
                "couldn't find resource for \"{}/{}, Resource={}\"",
                gvk.group, gvk.version, resource.plural
            ));
        }
        Err(e) => return Err(e.into()),
    };
    let schemas = &document["components"]["schemas"];
    let is_kind = |s: &Value| {
        s["x-kubernetes-group-version-kind"].as_array().into_iter().flatten().any(|g| {
            g["kind"] == gvk.kind.as_str() && g["version"] == gvk.version.as_str() && g["group"] == gvk.group.as_str()
        })
    };
    let Some(root) = schemas.as_object().and_then(|m| m.values().find(|s| is_kind(s))) else {
        return text(format!("couldn't find resource for \"{gvk}\""));
    };
    let x = Explain { schemas };
    let old = a.output == "plaintext-openapiv2";
    let mut current = root;
    let mut last: Option<(&str, &Value)> = None;
    let mut missing = None;
    for name in &parts[used..] {
        let inner = x.inner(current);
        let Some(next) = x.properties(inner).and_then(|p| p.get(*name)) else {
            missing = Some(*name);
            break;
        };
        last = Some((name, next));
        current = next;
    }
    let mut out = String::new();
    if !gvk.group.is_empty() {
        out.push_str(&format!("GROUP:      {}\n", gvk.group));
    }
    out.push_str(&format!("KIND:       {}\nVERSION:    {}\n\n", gvk.kind, gvk.version));
    if let Some(name) = missing {
        k.out.write(if old { b"" } else { out.as_bytes() });
        return text(format!("field {name:?} does not exist"));
    }
    if old {
        k.out.write(old::page(&x, &gvk, last, root, a.recursive).as_bytes());
        return Ok(());
    }
    if let Some((name, schema)) = last {
        out.push_str(&format!("FIELD: {name} <{}>\n", x.type_of(schema)));
        match Explain::values(schema) {
            Some(all) => {
                out.push_str("ENUM:\n");
                all.iter().for_each(|v| out.push_str(&format!("    {v}\n")));
                out.push('\n');
            }
            None => out.push_str("\n\n"),
        }
    }
    out.push_str("DESCRIPTION:\n");
    let own = current["description"].as_str().filter(|d| !d.is_empty());
    let inner = x.inner(current);
    let of_type = inner["description"].as_str().filter(|d| !d.is_empty() && Some(*d) != own);
    for d in [own, of_type].into_iter().flatten() {
        out.push_str(&wrap(d, 4));
    }
    if own.is_none() && of_type.is_none() {
        out.push_str("    <empty>\n");
    } else {
        out.push_str("    \n");
    }
    if let Some(p) = x.properties(inner).filter(|p| !p.is_empty()) {
        out.push_str("FIELDS:\n");
        // The fields of a kind, or of a plain type, are repeated once if the type contains itself.
        let mut path = if current.get("$ref").is_some() || last.is_none() { Vec::new() } else { vec![inner] };
        x.fields(inner, p, 2, a.recursive, &mut path, &mut out);
    }
    out.push('\n');
    k.out.write(out.as_bytes());
    Ok::<(), Error>(())
}

struct Explain<'a> {
    schemas: &'a Value,
}

impl<'a> Explain<'a> {
    fn name<'b>(&self, v: &'b Value) -> Option<&'b str> {
        let r = v["$ref"].as_str().or_else(|| v["allOf"][0]["$ref"].as_str())?;
        r.strip_prefix("#/components/schemas/")
    }

    fn resolve(&self, v: &'a Value) -> &'a Value {
        match self.name(v) {
            Some(n) => &self.schemas[n],
            None => v,
        }
    }

    /// Returns the schema of a field's innermost values: list items or map values.
    fn inner(&self, v: &'a Value) -> &'a Value {
        let v = self.resolve(v);
        if v["items"].is_object() {
            self.inner(&v["items"])
        } else if v["additionalProperties"].is_object() && v["properties"].is_null() {
            self.inner(&v["additionalProperties"])
        } else {
            v
        }
    }

    fn properties(&self, v: &'a Value) -> Option<&'a meta::Map<String, Value>> {
        v["properties"].as_object()
    }

    fn type_of(&self, v: &Value) -> String {
        if let Some(n) = self.name(v) {
            let to = &self.schemas[n];
            let short = n.rsplit('.').next().unwrap_or(n);
            return match to["type"].as_str() {
                Some("object") | None => short.to_owned(),
                // An int-or-string has no single type.
                Some(_) if matches!(short, "Quantity" | "IntOrString") => short.to_owned(),
                Some(t) => t.to_owned(),
            };
        }
        match v["type"].as_str() {
            Some("array") => format!("[]{}", self.type_of(&v["items"])),
            Some("object") if v["additionalProperties"].is_object() => {
                format!("map[string]{}", self.type_of(&v["additionalProperties"]))
            }
            Some("object") => "Object".to_owned(),
            Some(t) => t.to_owned(),
            None if v["format"] == "int-or-string" || v["x-kubernetes-int-or-string"] == true => {
                "IntOrString".to_owned()
            }
            None => "Object".to_owned(),
        }
    }

    fn values(v: &Value) -> Option<Vec<String>> {
        let all = v["enum"].as_array()?;
        let bare = |x: &Value| match x.as_str() {
            Some(t) if !t.is_empty() => t.to_owned(),
            _ => x.to_string(),
        };
        Some(all.iter().map(bare).collect())
    }

    fn fields(
        &self,
        of: &'a Value,
        properties: &'a meta::Map<String, Value>,
        indent: usize,
        recursive: bool,
        path: &mut Vec<&'a Value>,
        out: &mut String,
    ) {
        let required = of["required"].as_array();
        for (name, v) in properties {
            let must = required.is_some_and(|r| r.iter().any(|x| x == name.as_str()));
            let pad = " ".repeat(indent);
            out.push_str(&format!("{pad}{name}\t<{}>{}\n", self.type_of(v), if must { " -required-" } else { "" }));
            if let Some(all) = Self::values(v) {
                let more = if all.len() > MAX_ENUM_VALUES { ", ...." } else { "" };
                out.push_str(&format!("{pad}enum: {}{more}\n", all[..all.len().min(MAX_ENUM_VALUES)].join(", ")));
            }
            if recursive {
                let inner = self.inner(v);
                // A recursive schema is shown once.
                if let Some(p) = self.properties(inner).filter(|_| !path.iter().any(|x| std::ptr::eq(*x, inner))) {
                    path.push(inner);
                    self.fields(inner, p, indent + 2, recursive, path, out);
                    path.pop();
                }
            } else {
                let d = v["description"].as_str().filter(|d| !d.is_empty());
                out.push_str(&wrap(d.unwrap_or("<no description>"), indent + 2));
                out.push('\n');
            }
        }
    }
}

/// Wraps a text into indented lines; a line break starts a new paragraph.
fn wrap(s: &str, indent: usize) -> String {
    let pad = " ".repeat(indent);
    let mut out = String::new();
    for paragraph in s.split('\n') {
        // The beginning of a paragraph and double spaces are kept.
        let words = paragraph.trim_start_matches(' ');
        let mut line = " ".repeat(paragraph.len() - words.len());
        let mut wrapped = false;
        for (i, word) in words.split(' ').enumerate() {
            let full = indent + line.chars().count() + 1 + word.chars().count() > WIDTH;
            if full && !line.trim_start().is_empty() {
                out.push_str(&format!("{pad}{}\n", line.trim_end()));
                line.clear();
                wrapped = true;
            } else if i > 0 && !(wrapped && line.is_empty()) {
                line.push(' ');
            }
            line.push_str(word);
        }
        out.push_str(&format!("{pad}{}\n", line.trim_end()));
    }
    out
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    fn server() -> Server {
        Server::new().on("GET /openapi/v3/api/v1", 200, json!({"components": {"schemas": {
            "io.k8s.api.core.v1.Pod": {
                "type": "object", "description": "A pod.",
                "x-kubernetes-group-version-kind": [{"group": "", "kind": "Pod", "version": "v1"}],
                "properties": {"kind": {"type": "string", "description": "The kind."}, "spec": {"allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.PodSpec"}], "description": "Desired state."}},
            },
            "io.k8s.api.core.v1.PodSpec": {
                "type": "object", "description": "A spec:\n  - of one\n\n  - of two", "required": ["names"],
                "properties": {"names": {"type": "array", "items": {"type": "string"}, "description": "Names."}, "m": {"type": "object", "additionalProperties": {"type": "string"}}},
            },
        }}}))
    }

    #[tokio::test]
    async fn describes_kinds_and_fields() {
        let s = server();
        for (line, expected) in [
            (
                "explain pods",
                "KIND:       Pod\nVERSION:    v1\n\nDESCRIPTION:\n    A pod.\n    \nFIELDS:\n  kind\t<string>\n    The kind.\n\n  spec\t<PodSpec>\n    Desired state.\n\n\n",
            ),
            (
                "explain po.spec.names",
                "KIND:       Pod\nVERSION:    v1\n\nFIELD: names <[]string>\n\n\nDESCRIPTION:\n    Names.\n    \n\n",
            ),
            (
                "explain po.spec",
                "KIND:       Pod\nVERSION:    v1\n\nFIELD: spec <PodSpec>\n\n\nDESCRIPTION:\n    Desired state.\n    A spec:\n      - of one\n    \n      - of two\n    \nFIELDS:\n  m\t<map[string]string>\n    <no description>\n\n  names\t<[]string> -required-\n    Names.\n\n\n",
            ),
            (
                "explain pods --recursive",
                "KIND:       Pod\nVERSION:    v1\n\nDESCRIPTION:\n    A pod.\n    \nFIELDS:\n  kind\t<string>\n  spec\t<PodSpec>\n    m\t<map[string]string>\n    names\t<[]string> -required-\n\n",
            ),
            (
                "explain pods.nope",
                "KIND:       Pod\nVERSION:    v1\n\n! error: field \"nope\" does not exist\nexit 1\n",
            ),
            ("explain bananas", "! the server doesn't have a resource type \"bananas\"\nexit 1\n"),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }
}
