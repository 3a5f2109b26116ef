//! Field paths in schemas: `.spec.color`, `.spec['odd.name']`
//! (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel`).

use meta::Value;

/// Returns the field names of a path, and the schema at its end.
pub fn find<'a>(path: &str, schema: &'a Value) -> Result<(Vec<String>, &'a Value), String> {
    let mut names = Vec::new();
    let mut at = schema;
    let mut rest = path;
    while !rest.is_empty() {
        let name;
        if let Some(r) = rest.strip_prefix("['") {
            let end = r.find("']").ok_or("unbalanced brackets")?;
            name = r[..end].replace("\\'", "'").replace("\\\\", "\\");
            rest = &r[end + 2..];
        } else if let Some(r) = rest.strip_prefix('.') {
            let end = r.find(['.', '[']).unwrap_or(r.len());
            name = r[..end].to_owned();
            rest = &r[end..];
        } else {
            return Err(format!("expected [ or . but got: {}", rest.split(['.', '[']).next().unwrap_or_default()));
        }
        if name.is_empty() {
            return Err("empty name".into());
        }
        at = match (at["properties"].get(&name), &at["additionalProperties"]) {
            (Some(p), _) => p,
            (None, a) if a.is_object() => a,
            // Definitions omit the schemas of type and object metadata.
            _ if names.is_empty() && matches!(&*name, "metadata" | "kind" | "apiVersion") => &Value::Null,
            _ if names.first().is_some_and(|n: &String| n == "metadata") => &Value::Null,
            _ => return Err("does not refer to a valid field".into()),
        };
        names.push(name);
    }
    if names.is_empty() { Err("empty path".into()) } else { Ok((names, at)) }
}
