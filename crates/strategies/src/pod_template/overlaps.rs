//! Warnings for volumes that would write files over each other (upstream `warningsForOverlappingVirtualPaths`).

use crate::read::{items, text};
use meta::Value;

/// Maximum number of files of a volume that are compared.
const MAX_FILES: usize = 1_000;
/// Maximum number of warnings for a volume; warnings of a response are limited to a few thousand characters.
const MAX_OVERLAPS: usize = 100;

/// A file of a volume: its path, and where a projected volume takes it from.
type File = (String, String);

/// Adds warnings for files of a volume with overlapping paths, and for projections of nothing.
pub fn overlaps(v: &Value, out: &mut Vec<String>) {
    let name = text(v, "name");
    let (config_map, secret) = (&v["configMap"], &v["secret"]);
    for (title, source) in [
        (format!("ConfigMap {:?}", text(config_map, "name")), config_map),
        (format!("Secret {:?}", text(secret, "secretName")), secret),
        ("DownwardAPI".into(), &v["downwardAPI"]),
    ] {
        collisions(name, &title, files(source, ""), out);
    }
    let mut all = Vec::new();
    for source in items(&v["projected"], "sources") {
        if source.as_object().is_none_or(|m| m.is_empty()) {
            out.push(format!("volume {name:?} (Projected) has no sources provided"));
        }
        all.extend(projected_files(source));
    }
    collisions(name, "Projected", all, out);
}

fn files(source: &Value, from: &str) -> Vec<File> {
    items(source, "items").iter().map(|i| (text(i, "path").to_owned(), from.to_owned())).collect()
}

/// Returns the files of a source of a projected volume.
fn projected_files(source: &Value) -> Vec<File> {
    for (kind, label) in [("configMap", "ConfigMap"), ("secret", "Secret")] {
        if source[kind]["items"].is_array() {
            return files(&source[kind], &format!(" ({label} {:?})", text(&source[kind], "name")));
        }
    }
    let (token, bundle, certificate) =
        (&source["serviceAccountToken"], &source["clusterTrustBundle"], &source["podCertificate"]);
    if source["downwardAPI"]["items"].is_array() {
        files(&source["downwardAPI"], " (DownwardAPI)")
    } else if token.is_object() {
        vec![(text(token, "path").into(), " (ServiceAccountToken)".into())]
    } else if bundle.is_object() {
        let name = bundle["name"].as_str().unwrap_or(text(bundle, "signerName"));
        vec![(text(bundle, "path").into(), format!(" (ClusterTrustBundle {name:?})"))]
    } else {
        let paths =
            [("certificateChainPath", "chain"), ("keyPath", "key"), ("credentialBundlePath", "credential bundle")];
        let set = paths.into_iter().filter(|(field, _)| !text(certificate, field).is_empty());
        set.map(|(field, what)| (text(certificate, field).into(), format!(" (PodCertificate {what})"))).collect()
    }
}

fn collisions(name: &str, title: &str, mut files: Vec<File>, out: &mut Vec<String>) {
    // The number of pairs is quadratic.
    files.truncate(MAX_FILES);
    let before = out.len();
    files.iter_mut().for_each(|(path, _)| path.truncate(path.trim_end_matches('/').len()));
    files.retain(|(path, _)| !path.is_empty());
    for (i, (path, from)) in files.iter().enumerate() {
        if out.len() > before + MAX_OVERLAPS {
            return;
        }
        for (other, other_from) in &files[..i] {
            let inside = |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.starts_with('/'));
            if path == other || inside(path, other) || inside(other, path) {
                out.push(format!(
                    "volume {name:?} ({title}): overlapping paths: {path:?}{from} with {other:?}{other_from}"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Checks the warnings for a volume `v`.
    fn check(source: Value, expected: &[&str]) {
        let mut volume = source.clone();
        volume["name"] = "v".into();
        let mut warnings = Vec::new();
        overlaps(&volume, &mut warnings);
        assert_eq!(warnings, expected, "{source}");
    }

    fn files(paths: &[&str]) -> Value {
        paths.iter().map(|p| json!({"key": "k", "path": p})).collect()
    }

    fn overlap(title: &str, a: &str, b: &str) -> String {
        format!("volume \"v\" ({title}): overlapping paths: {a} with {b}")
    }

    #[test]
    fn compares_the_files_of_a_volume() {
        let a = |title: &str, first: &str| overlap(title, first, "\"a\"");
        let map = "ConfigMap \"m\"";
        check(json!({"emptyDir": {}}), &[]);
        check(json!({"configMap": {"name": "m", "items": files(&["a", "ab", "b/c", ""])}}), &[]);
        check(
            json!({"configMap": {"name": "m", "items": files(&["a", "a/", "a/b"])}}),
            &[&a(map, "\"a\""), &a(map, "\"a/b\""), &a(map, "\"a/b\"")],
        );
        let secret = json!({"secret": {"secretName": "s", "items": files(&["a/b", "a"])}});
        check(secret, &[&overlap("Secret \"s\"", "\"a\"", "\"a/b\"")]);
        check(json!({"downwardAPI": {"items": files(&["a", "a"])}}), &[&a("DownwardAPI", "\"a\"")]);
        check(json!({"projected": {"sources": [{}]}}), &["volume \"v\" (Projected) has no sources provided"]);
    }

    #[test]
    fn compares_the_sources_of_a_projected_volume() {
        let sources = [
            (json!({"configMap": {"name": "m", "items": files(&["a"])}}), "\"a\" (ConfigMap \"m\")"),
            (json!({"secret": {"name": "s", "items": files(&["a"])}}), "\"a\" (Secret \"s\")"),
            (json!({"downwardAPI": {"items": files(&["a"])}}), "\"a\" (DownwardAPI)"),
            (json!({"serviceAccountToken": {"path": "a"}}), "\"a\" (ServiceAccountToken)"),
            (json!({"clusterTrustBundle": {"name": "n", "path": "a"}}), "\"a\" (ClusterTrustBundle \"n\")"),
            (json!({"clusterTrustBundle": {"signerName": "g", "path": "a"}}), "\"a\" (ClusterTrustBundle \"g\")"),
            (json!({"podCertificate": {"certificateChainPath": "a"}}), "\"a\" (PodCertificate chain)"),
            (json!({"podCertificate": {"keyPath": "a"}}), "\"a\" (PodCertificate key)"),
            (json!({"podCertificate": {"credentialBundlePath": "a"}}), "\"a\" (PodCertificate credential bundle)"),
        ];
        for pair in sources.windows(2) {
            let sources: Vec<&Value> = pair.iter().map(|(source, _)| source).collect();
            check(json!({"projected": {"sources": sources}}), &[&overlap("Projected", pair[1].1, pair[0].1)]);
        }
    }

    #[test]
    fn bounds_the_work() {
        let mut warnings = Vec::new();
        let same = files(&["a"; 2_000]);
        overlaps(&json!({"name": "v", "configMap": {"items": same}}), &mut warnings);
        assert!(warnings.len() < MAX_OVERLAPS + MAX_FILES, "{}", warnings.len());
    }
}
