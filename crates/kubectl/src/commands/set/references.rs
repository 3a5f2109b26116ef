//! Lists variables for `set env --list`, and resolves their references.

use crate::error::{Error, Result};
use crate::kube::Kube;
use base64::Engine as _;
use meta::{Map, Object, Quantity, Value};
use std::collections::BTreeMap;

/// The config maps and secrets that variables refer to, each read once.
#[derive(Default)]
pub struct Sources(BTreeMap<(&'static str, String), std::result::Result<Object, String>>);

const REFERENCES: [(&str, &str, &str); 2] =
    [("secretKeyRef", "secrets", "secret"), ("configMapKeyRef", "configmaps", "config map")];

impl Sources {
    /// Reads the config maps and secrets that variables refer to.
    pub async fn read(&mut self, k: &mut Kube, variables: Option<&Value>) -> Result {
        for v in variables.and_then(Value::as_array).into_iter().flatten() {
            for (field, resource, _) in REFERENCES {
                let Some(name) = v["valueFrom"][field]["name"].as_str() else { continue };
                if self.0.contains_key(&(resource, name.to_owned())) {
                    continue;
                }
                let (namespace, _) = k.namespace()?;
                let r = k.resource(resource).await?;
                let got = k.api(&r, &namespace).await?.get(name).await.map_err(|e| e.to_string());
                self.0.insert((resource, name.to_owned()), got);
            }
        }
        Ok(())
    }

    fn value(&self, o: &Object, container: &Map<String, Value>, from: &Value) -> Result<String> {
        let wrong = |t: String| Err(Error::Text(t));
        for (field, resource, word) in REFERENCES {
            let reference = &from[field];
            let Some(name) = reference["name"].as_str() else { continue };
            let key = reference["key"].as_str().unwrap_or_default();
            return match self.0.get(&(resource, name.to_owned())) {
                Some(Ok(o)) => match o.str_at(&["data", key]) {
                    Some(v) if resource == "secrets" => base64::engine::general_purpose::STANDARD
                        .decode(v)
                        .map(|b| String::from_utf8_lossy(&b).into_owned())
                        .map_err(|e| Error::Text(e.to_string())),
                    Some(v) => Ok(v.to_owned()),
                    None => wrong(format!("key {key} not found in {word} {name}")),
                },
                Some(Err(e)) => wrong(e.clone()),
                None => wrong(format!("{word} {name} was not read")),
            };
        }
        if let Some(path) = from["fieldRef"]["fieldPath"].as_str() {
            return field(o, path);
        }
        if from["resourceFieldRef"].is_object() {
            return amount(container, &from["resourceFieldRef"]);
        }
        wrong("invalid valueFrom".into())
    }
}

fn field(o: &Object, path: &str) -> Result<String> {
    if let Some((prefix, key)) = path.strip_suffix("']").and_then(|p| p.split_once("['")) {
        return match prefix {
            "metadata.labels" => Ok(o.label(key).unwrap_or_default().to_owned()),
            "metadata.annotations" => Ok(o.annotation(key).unwrap_or_default().to_owned()),
            _ => Err(Error::Text(format!("fieldPath {path:?} does not support subscript"))),
        };
    }
    let lines = |all: Vec<(&str, &str)>| all.iter().map(|(k, v)| format!("{k}={v:?}")).collect::<Vec<_>>().join("\n");
    match path {
        "metadata.labels" => Ok(lines(o.labels().collect())),
        "metadata.annotations" => Ok(lines(o.annotations().collect())),
        "metadata.name" => Ok(o.name().to_owned()),
        "metadata.namespace" => Ok(o.namespace().to_owned()),
        "metadata.uid" => Ok(o.uid().to_owned()),
        _ => Err(Error::Text(format!("unsupported fieldPath: {path}"))),
    }
}

/// Returns a request or limit of the container itself, divided and rounded up.
fn amount(container: &Map<String, Value>, reference: &Value) -> Result<String> {
    let name = reference["resource"].as_str().unwrap_or_default();
    let quantity = |v: &Value| v.as_str().and_then(|s| Quantity::parse(s).ok());
    let Some((prefix @ ("limits" | "requests"), what)) = name.split_once('.') else {
        return Err(Error::Text(format!("Unsupported container resource : {name}")));
    };
    let has = quantity(&container.get("resources").map_or(Value::Null, |r| r[prefix][what].clone()));
    let by = quantity(&reference["divisor"]).filter(|d| !d.is_zero()).unwrap_or_else(|| Quantity::from_int(1));
    let (has, by) = match what {
        "cpu" => (has.map_or(0, |q| q.milli_value()), by.milli_value()),
        _ => (has.map_or(0, |q| q.value()), by.value()),
    };
    Ok((has / by.max(1) + i64::from(has % by.max(1) != 0)).to_string())
}

/// Describes a reference.
fn describe(from: &Value) -> String {
    let s = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    for (field, word) in [("configMapKeyRef", "configmap"), ("secretKeyRef", "secret")] {
        if from[field].is_object() {
            return format!("{word} {}, key {}", s(&from[field]["name"]), s(&from[field]["key"]));
        }
    }
    if from["fieldRef"].is_object() {
        return format!("field path {}", s(&from["fieldRef"]["fieldPath"]));
    }
    let r = &from["resourceFieldRef"];
    if r.is_object() {
        let prefix = s(&r["containerName"]);
        let prefix = if prefix.is_empty() { prefix } else { format!("{prefix}/") };
        return format!("resource field {prefix}{}", s(&r["resource"]));
    }
    "invalid valueFrom".into()
}

/// Returns the lines for standard output, and the unresolved references for standard error.
pub fn list(
    o: &Object,
    container: &Map<String, Value>,
    variables: &[Value],
    sources: Option<&Sources>,
) -> (String, String) {
    let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
    let mut out = format!("# {} {}, container {name}\n", o.kind(), o.name());
    let mut wrong: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for v in variables {
        let name = v["name"].as_str().unwrap_or_default();
        let from = &v["valueFrom"];
        let value = match sources {
            _ if from.is_null() => Ok(v["value"].as_str().unwrap_or_default().to_owned()),
            None => Err(None),
            Some(s) => s.value(o, container, from).map_err(Some),
        };
        match value {
            Ok(v) => out.push_str(&format!("{name}={v}\n")),
            Err(e) => {
                out.push_str(&format!("# {name} from {}\n", describe(from)));
                if let Some(e) = e {
                    wrong.entry(e.to_string()).or_default().push(name);
                }
            }
        }
    }
    let mut lines: Vec<String> = wrong
        .into_iter()
        .map(|(e, mut names)| {
            names.sort_unstable();
            format!("error retrieving reference for {}: {e}\n", names.join(", "))
        })
        .collect();
    lines.sort();
    (out, lines.concat())
}
