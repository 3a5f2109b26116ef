//! Descriptions of the common fields of objects and lists, for definitions without them: custom resources and lists.

use super::META;
use kinds::Kind;
use std::collections::BTreeMap;

/// Descriptions by definition, then by field (`""` for the definition itself).
pub(super) type Texts = BTreeMap<String, BTreeMap<String, String>>;

/// A built-in kind with descriptions of the common fields.
const OBJECT: &str = "io.k8s.api.core.v1.Pod";
const CONVENTIONS: &str = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";

/// The description of `apiVersion`, `kind` or `metadata` of an object; empty for other fields.
pub(super) fn object_description<'a>(texts: &'a Texts, field: &str) -> &'a str {
    texts.get(OBJECT).and_then(|t| t.get(field)).map_or("", String::as_str)
}

/// The descriptions of a kind's list.
pub(super) fn list_descriptions(texts: &Texts, kind: &Kind) -> BTreeMap<String, String> {
    let metadata = texts.get(&format!("{META}Status")).and_then(|t| t.get("metadata"));
    let list = [
        ("", format!("{} is a list of {}", kind.list_kind(), kind.kind)),
        ("apiVersion", object_description(texts, "apiVersion").to_owned()),
        ("items", format!("List of {}. More info: {CONVENTIONS}", kind.plural)),
        ("kind", object_description(texts, "kind").to_owned()),
        ("metadata", metadata.cloned().unwrap_or_default()),
    ];
    list.map(|(field, text)| (field.to_owned(), text)).into()
}
