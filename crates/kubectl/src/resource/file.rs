//! Reads objects from files, directories, standard input and URLs: YAML or JSON, several per file, lists split into items.

use super::validation::Validator;
use crate::error::{Error, Result, os_message, text};
use crate::flags::FileFlags;
use crate::kube::Kube;
use client::FieldValidation;
use meta::{Object, Value};
use std::io::Read as _;
use std::path::Path;

/// An object and the name of its source.
#[derive(Clone, Debug)]
pub struct Document {
    pub source: String,
    pub object: Object,
}

/// Reads the objects of files, each with its source, or as an error.
pub async fn read(k: &mut Kube, flags: &FileFlags) -> Result<Vec<Result<Document>>> {
    read_for(k, flags, FieldValidation::Ignore).await
}

/// [`read`], with validation.
pub async fn read_for(k: &mut Kube, flags: &FileFlags, validation: FieldValidation) -> Result<Vec<Result<Document>>> {
    let mut validator = Validator::new(validation);
    if flags.filename.iter().filter(|f| *f == "-").count() > 1 {
        return text("standard input cannot be used for multiple arguments");
    }
    if !flags.kustomize.is_empty() {
        return kustomization(k, flags, &mut validator).await;
    }
    // Check all paths before reading anything.
    let local = |f: &str| f != "-" && !f.starts_with("http://") && !f.starts_with("https://");
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for f in &flags.filename {
        match if local(f) { manifests::expand(Path::new(f), f, flags.recursive) } else { Ok(Vec::new()) } {
            Ok(paths) => found.push((f, paths)),
            Err(e) => wrong.push(e.into()),
        }
    }
    Error::collect(wrong)?;
    let mut out = Vec::new();
    for (f, paths) in found {
        if f == "-" {
            let mut bytes = Vec::new();
            k.shell.input.read_to_end(&mut bytes).map_err(|e| Error::Text(format!("reading standard input: {e}")))?;
            validated(k, "STDIN", &bytes, &mut validator, &mut out).await?;
        } else if f.starts_with("http://") || f.starts_with("https://") {
            validated(k, f, &super::url::fetch(f).await?, &mut validator, &mut out).await?;
        } else {
            for path in paths {
                let name = path.to_string_lossy().into_owned();
                match std::fs::read(&path) {
                    Ok(bytes) => validated(k, &name, &bytes, &mut validator, &mut out).await?,
                    Err(e) if e.kind() == std::io::ErrorKind::IsADirectory => {
                        out.push(text(format!("error parsing {name}: read {name}: {}", os_message(&e))));
                    }
                    Err(e) => out.push(text(format!("open {name}: {}", os_message(&e)))),
                }
            }
        }
    }
    Ok(out)
}

/// Reads the objects of a kustomization directory, in an order in which they can be created.
async fn kustomization(k: &mut Kube, flags: &FileFlags, validator: &mut Validator) -> Result<Vec<Result<Document>>> {
    let mut wrong = Vec::new();
    if !flags.filename.is_empty() {
        wrong.push(Error::Text("only one of -f or -k can be specified".into()));
    }
    if flags.recursive {
        wrong.push(Error::Text("the -k flag can't be used with -f or -R".into()));
    }
    Error::collect(wrong)?;
    let built = super::kustomization::build(k, &flags.kustomize, kustomize::Options::default())?;
    let mut out = Vec::new();
    for o in built.0 {
        if let Err(e) = document(k, &flags.kustomize, o.into_value(), validator, &mut out).await? {
            out.push(Err(e));
            break;
        }
    }
    Ok(out)
}

/// Reads the documents of an edited text, up to the first that is malformed or invalid. A document that is no object does not stop
/// the reading.
pub fn documents(source: &str, bytes: &[u8], out: &mut Vec<Result<Document>>) {
    for value in manifests::values(&manifests::decode_text(bytes)) {
        let failed = match value {
            Ok(v) => {
                let versioned = manifests::check_version(source, &v).map_err(Error::from);
                versioned.and_then(|()| object(source, None, v, out)).err()
            }
            Err(why) => Some(manifests::unreadable(source, &why).into()),
        };
        if let Some(e) = failed {
            return out.push(Err(e));
        }
    }
}

/// [`documents`], with each document validated before its objects are added.
async fn validated(
    k: &mut Kube,
    source: &str,
    bytes: &[u8],
    validator: &mut Validator,
    out: &mut Vec<Result<Document>>,
) -> Result {
    for value in manifests::values(&manifests::decode_text(bytes)) {
        let failed = match value {
            Ok(v) => document(k, source, v, validator, out).await?.err(),
            Err(why) => Some(manifests::unreadable(source, &why).into()),
        };
        if let Some(e) = failed {
            out.push(Err(e));
            break;
        }
    }
    Ok(())
}

/// Adds the objects of a document. The inner error concerns the document, the outer one the server.
async fn document(
    k: &mut Kube,
    source: &str,
    v: Value,
    validator: &mut Validator,
    out: &mut Vec<Result<Document>>,
) -> Result<Result> {
    if v.is_null() {
        return Ok(Ok(()));
    }
    Ok(match validator.check(k, &v).await? {
        Ok(()) => object(source, k.scheme, v, out),
        Err(why) => Err(manifests::invalid(source, &why).into()),
    })
}

/// Adds the object or list items of a document, or the reason why they cannot be decoded. Errors if the document is
/// invalid.
fn object(source: &str, scheme: Option<&str>, v: Value, out: &mut Vec<Result<Document>>) -> Result {
    let objects = manifests::objects(source, &|o| decodes(scheme, o), v)?;
    let document = |object| Document { source: source.to_owned(), object };
    out.extend(objects.into_iter().map(|o| o.map(document).map_err(Error::from)));
    Ok(())
}

/// Checks whether an object fits its type in a scheme.
fn decodes(scheme: Option<&str>, o: &Object) -> std::result::Result<(), String> {
    match o.gvk() {
        Some(gvk) if scheme.is_some() => super::scheme::decodes(scheme, &gvk, &o.clone().into_value()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<String> {
        let mut out = Vec::new();
        documents("f", text.as_bytes(), &mut out);
        out.iter()
            .map(|r| match r {
                Ok(d) => format!("{}/{}", d.object.kind(), d.object.name()),
                Err(e) => format!("!{e}"),
            })
            .collect()
    }

    /// Several documents, lists, and invalid ones between valid ones.
    #[test]
    fn splits_files_into_objects() {
        let doc = |n: &str| format!("apiVersion: v1\nkind: A\nmetadata: {{name: {n}}}\n");
        assert_eq!(read(&format!("# c\n---\n{}---\n---\n{}", doc("a"), doc("b"))), ["A/a", "A/b"]);
        assert_eq!(
            read(
                r#"{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"B","metadata":{"name":"x"}}]} {"apiVersion":"v1","kind":"C"}"#
            ),
            ["B/x", "C/"]
        );
        // A malformed or invalid document ends a file; one that cannot be decoded does not.
        for (bad, ends, expected) in [
            ("a: [\n", true, "error parsing f: error converting YAML to JSON: yaml:"),
            ("--- foo\n", true, "error parsing f: invalid Yaml document separator: foo"),
            ("kind: X\n", true, "error validating \"f\": error validating data: apiVersion not set; "),
            (
                "apiVersion: v1\n",
                false,
                "unable to decode \"f\": Object 'Kind' is missing in '{\"apiVersion\":\"v1\"}'",
            ),
            ("{}\n", false, "unable to decode \"f\": Object 'Kind' is missing in '{}'"),
            (
                "foo\n",
                false,
                "unable to decode \"f\": json: cannot unmarshal string into Go value of type unstructured.detector",
            ),
            (
                "[1]\n",
                false,
                "unable to decode \"f\": json: cannot unmarshal array into Go value of type unstructured.detector",
            ),
            (
                "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: L}, 3]}\n",
                false,
                "unable to decode \"f\": json: cannot unmarshal number into Go value of type map[string]interface {}",
            ),
        ] {
            let mixed = read(&format!("{}---\n{bad}---\n{}", doc("a"), doc("b")));
            assert_eq!((mixed.len(), mixed[0].as_str()), (if ends { 2 } else { 3 }, "A/a"), "{bad}: {mixed:?}");
            assert!(mixed[1].starts_with(&format!("!{expected}")), "{bad}: {}", mixed[1]);
            assert!(ends || mixed[2] == "A/b", "{bad}: {mixed:?}");
        }
        assert_eq!(read(&format!("\u{feff}{}", doc("a"))), ["A/a"]);
        assert_eq!(read(&format!("{{\"apiVersion\":\"v1\",\"kind\":\"C\"}}\n---\n{}", doc("b"))), ["C/", "A/b"]);
        assert_eq!(read("# only a comment\n--- # and another\nnull\n"), Vec::<String>::new());
        let directive = read(&format!("%YAML 1.2\n---\n{}", doc("a")));
        assert!(directive.len() == 1 && directive[0].starts_with("!error parsing f: "), "{directive:?}");
        // Items of a typed list need not repeat the kind; an item with only half of it is an error.
        let item = "metadata: {name: x}";
        assert_eq!(
            read(&format!(
                "{{apiVersion: v1, kind: CList, items: [{{{item}}}, {{kind: D, {item}}}, {{kind: E, apiVersion: v1}}]}}"
            )),
            [
                "C/x",
                "!unable to get type info from the object \"*unstructured.Unstructured\": Object 'apiVersion' is missing in 'object has no apiVersion field'",
                "E/",
            ]
        );
        assert!(read("").is_empty());
        let good = r#"{"apiVersion":"v1","kind":"C"}"#;
        for (json, why) in [
            ("{\n", (0, "unexpected EOF")),
            ("{\"a\":", (0, "unexpected EOF")),
            ("{\"a\" 1}", (6, "invalid character '1' after object key")),
            ("{\"a\":{} ]}", (9, "invalid character ']' after object key:value pair")),
            ("{\"a\":[{} 2]}", (10, "invalid character '2' after array element")),
            ("{\"a\":trve}}", (8, "invalid character 'v' in literal true (expecting 'u')")),
        ] {
            for (before, expected) in [("", vec![]), (good, vec!["C/".to_owned()])] {
                let why = match why {
                    (0, why) => why.to_owned(),
                    (offset, why) => format!("json: offset {}: {why}", offset + before.len()),
                };
                let expected = [expected, vec![format!("!error parsing f: {why}")]].concat();
                assert_eq!(read(&format!("{before}{json}")), expected);
            }
        }
        for (metadata, why) in [
            ("{name: y}", "bool into Go struct field ObjectMeta.metadata.name of type string"),
            ("{name: a, labels: {b: 1}}", "number into Go struct field ObjectMeta.metadata.labels of type string"),
        ] {
            let bad = read(&format!("apiVersion: v1\nkind: A\nmetadata: {metadata}\n"));
            assert_eq!(bad, [format!("!unable to decode \"f\": json: cannot unmarshal {why}")]);
        }
    }
}
