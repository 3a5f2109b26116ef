//! Generates config maps and secrets from literals, files and environment files, and the hash suffix of their names.

use crate::Error;
use crate::kustomization::{ConfigMapArgs, GeneratorOptions, SecretArgs, Sources};
use crate::resource::Resource;
use crate::root::Root;
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use meta::{Map, Value};
use std::collections::BTreeMap;

/// Merges the options of a generator with those of the kustomization; the generator's own count first.
pub fn with_global(own: Option<GeneratorOptions>, global: Option<&GeneratorOptions>) -> Option<GeneratorOptions> {
    let Some(global) = global else { return own };
    let mut o = own.unwrap_or_default();
    for (own, global) in [(&mut o.labels, &global.labels), (&mut o.annotations, &global.annotations)] {
        for (k, v) in global {
            own.entry(k.clone()).or_insert_with(|| v.clone());
        }
    }
    o.disable_name_suffix_hash |= global.disable_name_suffix_hash;
    o.immutable |= global.immutable;
    Some(o)
}

/// Generates a config map.
pub fn config_map(root: &Root<'_>, args: &ConfigMapArgs) -> Result<Resource, Error> {
    let mut object = base("ConfigMap", args)?;
    let (mut data, mut binary) = (Map::new(), Map::new());
    for (k, bytes) in pairs(root, args)? {
        match String::from_utf8(bytes) {
            Ok(text) => _ = data.insert(k, text.into()),
            Err(e) => _ = binary.insert(k, encode(e.as_bytes()).into()),
        }
    }
    for (field, values) in [("data", data), ("binaryData", binary)] {
        if !values.is_empty() {
            object.insert(field.to_owned(), values.into());
        }
    }
    Ok(finish(object, args))
}

/// Generates a secret.
pub fn secret(root: &Root<'_>, args: &SecretArgs) -> Result<Resource, Error> {
    let mut object = base("Secret", &args.args)?;
    let ty = if args.ty.is_empty() { "Opaque" } else { &args.ty };
    object.insert("type".to_owned(), ty.into());
    let data: Map<String, Value> =
        pairs(root, &args.args)?.into_iter().map(|(k, bytes)| (k, encode(&bytes).into())).collect();
    object.insert("data".to_owned(), data.into());
    Ok(finish(object, &args.args))
}

fn base(kind: &str, args: &ConfigMapArgs) -> Result<Map<String, Value>, Error> {
    if args.name.is_empty() {
        return Err(Error::text("a configmap must have a name"));
    }
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), args.name.clone().into());
    if !args.namespace.is_empty() {
        metadata.insert("namespace".to_owned(), args.namespace.clone().into());
    }
    let object = [("apiVersion", "v1".into()), ("kind", kind.into()), ("metadata", metadata.into())];
    Ok(object.into_iter().map(|(k, v): (&str, Value)| (k.to_owned(), v)).collect())
}

fn finish(object: Map<String, Value>, args: &ConfigMapArgs) -> Resource {
    let mut r = Resource::generated(object, &args.behavior, args.options.as_ref());
    let Some(options) = &args.options else { return r };
    for (field, map) in [("labels", &options.labels), ("annotations", &options.annotations)] {
        if !map.is_empty() {
            let values: Map<String, Value> = map.iter().map(|(k, v)| (k.clone(), v.clone().into())).collect();
            r.metadata_mut().insert(field.to_owned(), values.into());
        }
    }
    if options.immutable {
        r.object.insert("immutable".to_owned(), true.into());
    }
    r
}

/// Encodes base64 in lines of seventy characters; a single line has no line break.
fn encode(bytes: &[u8]) -> String {
    const LINE: usize = 70;
    let text = base64::engine::general_purpose::STANDARD.encode(bytes);
    if text.len() < LINE {
        return text;
    }
    let mut out = String::with_capacity(text.len() + text.len() / LINE + 1);
    for (i, c) in text.chars().enumerate() {
        out.push(c);
        if (i + 1) % LINE == 0 {
            out.push('\n');
        }
    }
    if !out.ends_with('\n') {
        out.push('\n');
    }
    out
}

fn pairs(root: &Root<'_>, args: &ConfigMapArgs) -> Result<BTreeMap<String, Vec<u8>>, Error> {
    let Sources { literals, files, envs, .. } = &args.sources;
    let wrong = |what: &str, sources: &[String], e: Error| {
        Error::text(format!("loading KV pairs: {what} [{}]: {e}", sources.join(" ")))
    };
    let mut all = Vec::new();
    for path in envs {
        let found = root.read(path).and_then(|bytes| environment(&bytes));
        all.extend(found.map_err(|e| wrong("env source files:", envs, e))?);
    }
    for literal in literals {
        all.push(self::literal(literal).map_err(|e| wrong("literal sources", literals, e))?);
    }
    for source in files {
        let found = file_source(source).and_then(|(key, path)| Ok((key, root.read(&path)?)));
        all.push(found.map_err(|e| wrong("file sources:", files, e))?);
    }
    let mut out = BTreeMap::new();
    for (k, v) in all {
        if out.insert(k.clone(), v).is_some() {
            return Err(Error::text(format!("configmap {} illegally repeats the key `{k}`", args.name)));
        }
    }
    Ok(out)
}

fn environment(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let mut out = Vec::new();
    for (n, line) in bytes.split(|b| *b == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Ok(line) = std::str::from_utf8(line) else {
            return Err(Error::text(format!(
                "line {line:?} has invalid utf8 bytes : {}",
                String::from_utf8_lossy(line)
            )));
        };
        let line = if n == 0 { line.trim_start_matches('\u{feff}') } else { line };
        let line = line.trim_start();
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        if !line.starts_with('#') && !key.is_empty() {
            out.push((key.to_owned(), value.as_bytes().to_vec()));
        }
    }
    Ok(out)
}

fn literal(source: &str) -> Result<(String, Vec<u8>), Error> {
    let Some((key, value)) = source.split_once('=').filter(|(k, _)| !k.is_empty()) else {
        return Err(Error::text(format!("invalid literal source {source}, expected key=value")));
    };
    let quoted = ['"', '\''].iter().find_map(|q| value.strip_prefix(*q).and_then(|rest| rest.strip_suffix(*q)));
    Ok((key.to_owned(), quoted.unwrap_or(value).as_bytes().to_vec()))
}

/// Splits `key=path`, or takes the last part of `path` as the key.
fn file_source(source: &str) -> Result<(String, String), Error> {
    let wrong = |why: String| Err(Error::text(why));
    match source.split('=').collect::<Vec<_>>()[..] {
        [path] => Ok((path.trim_end_matches('/').rsplit('/').next().unwrap_or(path).to_owned(), path.to_owned())),
        ["", path] => wrong(format!("missing key name for file path {path:?} in source {source:?}")),
        [key, ""] => wrong(format!("missing file path for key name {key:?} in source {source:?}")),
        [key, path] => Ok((key.to_owned(), path.to_owned())),
        _ => wrong(format!("source {source:?} key name or file path contains '='")),
    }
}

/// Returns the hash suffix of a config map or secret: ten characters from the SHA-256 of its content, without vowels. Other
/// kinds are hashed as a whole.
pub fn hash(object: &Map<String, Value>) -> String {
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    let mut content = Map::new();
    let fields: &[&str] = match kind {
        "ConfigMap" => &["data", "binaryData"],
        "Secret" => &["type", "data", "stringData"],
        _ => &[],
    };
    for field in fields {
        match object.get(*field) {
            Some(v) if !v.is_null() => _ = content.insert((*field).to_owned(), v.clone()),
            _ if *field == "data" || *field == "type" => _ = content.insert((*field).to_owned(), "".into()),
            _ => {}
        }
    }
    content.insert("kind".to_owned(), kind.into());
    // Upstream reads the name from the wrong place, so that objects with the same content have the same hash.
    content.insert("name".to_owned(), "".into());
    let content = if fields.is_empty() { object.clone() } else { content };
    let text = codec::json::to_vec(&content.into(), codec::json::Html::Escape);
    digest(&SHA256, &text).as_ref().iter().take(5).flat_map(|b| [b >> 4, b & 15]).map(digit).collect()
}

fn digit(d: u8) -> char {
    match d {
        0 => 'g',
        1 => 'h',
        3 => 'k',
        10 => 'm',
        14 => 't',
        d => char::from_digit(d.into(), 16).unwrap_or('g'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn hash_of(v: &Value) -> String {
        hash(v.as_object().unwrap())
    }

    /// The hashes that upstream's own tests expect.
    #[test]
    fn hashes_match_kustomize() {
        let secret = |data: Value, strings: Value| {
            let mut o = json!({"apiVersion": "v1", "kind": "Secret", "type": "my-type"});
            for (k, v) in [("data", data), ("stringData", strings)] {
                if !v.is_null() {
                    o[k] = v;
                }
            }
            hash_of(&o)
        };
        assert_eq!(secret(Value::Null, Value::Null), "5gmgkf8578");
        assert_eq!(secret(json!({"one": ""}), Value::Null), "74bd68bm66");
        assert_eq!(secret(json!({"two": 2, "one": "", "three": 3}), Value::Null), "4gf75c7476");
        assert_eq!(secret(json!({"one": ""}), json!({"two": 2})), "c4h4264gdb");
    }

    #[test]
    fn reads_sources_as_kustomize_does() {
        assert_eq!(literal("a='b c'").unwrap(), ("a".to_owned(), b"b c".to_vec()));
        assert_eq!(literal("a=b=c").unwrap(), ("a".to_owned(), b"b=c".to_vec()));
        assert_eq!(literal("a=\"").unwrap(), ("a".to_owned(), b"\"".to_vec()));
        assert!(literal("=b").is_err() && literal("a").is_err());
        let env = environment(b"\xef\xbb\xbfA=1\r\n# no\n\n  B = x \nC\n").unwrap();
        let texts: Vec<_> = env.iter().map(|(k, v)| (k.as_str(), std::str::from_utf8(v).unwrap())).collect();
        assert_eq!(texts, [("A", "1"), ("B ", " x "), ("C", "")]);
        assert_eq!(file_source("a/b.txt").unwrap(), ("b.txt".to_owned(), "a/b.txt".to_owned()));
        assert_eq!(file_source("k=a/b.txt").unwrap(), ("k".to_owned(), "a/b.txt".to_owned()));
        assert!(file_source("=a").is_err() && file_source("a=").is_err() && file_source("a=b=c").is_err());
        assert_eq!(encode(&[0; 51]).len(), 68);
        assert!(encode(&[0; 60]).ends_with("AAAAAAAAAA\n"));
    }
}
