//! A macro for the build script of `kinds`: the types of `k8s-openapi` with schemas that the catalogue needs.
//!
//! The build script is compiled, so it has to name these types in Rust. The macro reads the names from `data/*.kinds`; a new kind is
//! described only there.

use proc_macro::TokenStream;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Expands to `fn add_roots(generator: &mut schemars::SchemaGenerator)`, which generates the schemas of every kind in the directory, and of
/// what subresources accept. The argument is the directory, relative to the manifest of the crate. Types that these refer to follow by themselves.
#[proc_macro]
pub fn add_roots(input: TokenStream) -> TokenStream {
    let directory = input.to_string();
    let manifest = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let code = match roots(&Path::new(&manifest).join(directory.trim_matches('"'))) {
        Ok(paths) => {
            let calls: String = paths.iter().map(|p| format!("let _ = generator.subschema_for::<{p}>();")).collect();
            format!("fn add_roots(generator: &mut schemars::SchemaGenerator) {{ {calls} }}")
        }
        Err(why) => format!("compile_error!({why:?});"),
    };
    code.parse().unwrap_or_default()
}

/// The paths of the types, sorted.
fn roots(directory: &Path) -> Result<BTreeSet<String>, String> {
    let fail = |e: std::io::Error| format!("{}: {e}", directory.display());
    let files = std::fs::read_dir(directory).map_err(fail)?;
    let files: Vec<PathBuf> = files.map(|f| f.map(|f| f.path())).collect::<Result<_, _>>().map_err(fail)?;
    let mut found = Found::default();
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "kinds")) {
        found.read(&std::fs::read_to_string(file).map_err(fail)?);
    }
    Ok(found.types())
}

#[derive(Default)]
struct Found {
    /// The prefixes of definitions by group and version.
    prefixes: BTreeMap<String, String>,
    /// Definitions that are described, by prefix and name.
    messages: BTreeSet<(String, String)>,
    /// Definitions that `k8s-openapi` does not have.
    absent: BTreeSet<(String, String)>,
    /// Definitions of kinds, and those that belong to no group.
    required: BTreeSet<(String, String)>,
    /// Group and version, and kind, of what subresources accept.
    accepted: BTreeSet<(String, String)>,
}

impl Found {
    fn read(&mut self, text: &str) {
        let (mut prefix, mut in_group) = (String::new(), false);
        let mut definition = (String::new(), String::new());
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["version", version, p] => {
                    (prefix, in_group) = (p.to_owned(), version != "-");
                    self.prefixes.insert(version.to_owned(), prefix.clone());
                }
                ["kind", kind, ..] => {
                    self.required.insert((prefix.clone(), kind.to_owned()));
                }
                ["message", name] => {
                    definition = (prefix.clone(), name.to_owned());
                    self.messages.insert(definition.clone());
                    if !in_group {
                        self.required.insert(definition.clone());
                    }
                }
                ["absent"] => {
                    self.absent.insert(definition.clone());
                }
                ["sub", .., "as", version, kind] => {
                    self.accepted.insert((version.to_owned(), kind.to_owned()));
                }
                _ => {}
            }
        }
    }

    fn types(self) -> BTreeSet<String> {
        let accepted = self.accepted.iter().filter_map(|(v, kind)| Some((self.prefixes.get(v)?.clone(), kind.clone())));
        let all: BTreeSet<(String, String)> = self.required.iter().cloned().chain(accepted).collect();
        let exists = |d: &&(String, String)| self.messages.contains(d) && !self.absent.contains(d);
        all.iter().filter(exists).map(|(prefix, name)| path_of(prefix, name)).collect()
    }
}

/// `io.k8s.kube-aggregator.pkg.x.v1` and a name: the path of the type in the crate.
fn path_of(prefix: &str, name: &str) -> String {
    let modules = prefix.trim_start_matches("io.k8s.").replace('-', "_").replace('.', "::");
    format!("::k8s_openapi::{modules}::{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_what_subresources_accept_are_roots() {
        let mut found = Found::default();
        found.read(
            "version example.k8s.io/v1 io.k8s.some-server.v1\nkind A as namespaced\n sub scale get as other/v2 Scale\n\
             sub proxy get as other/v2 Options\nmessage A\n spec=1\nmessage ASpec\n a=1\nkind Old olds cluster\nmessage Old\n absent\n",
        );
        found.read("version other/v2 io.k8s.api.other.v2\nmessage Scale\nversion - io.k8s.meta\nmessage Status\n");
        let types: Vec<String> = found.types().into_iter().collect();
        let expected = ["api::other::v2::Scale", "meta::Status", "some_server::v1::A"];
        assert_eq!(types, expected.map(|t| format!("::k8s_openapi::{t}")));
    }
}
