//! The catalogue of built-in kinds.

use crate::kind::Kind;
use crate::table;
use meta::{Gvk, Gvr};
use schema::{Definitions, Schema};
use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::sync::{Arc, OnceLock};

/// Every built-in kind and definition.
#[derive(Debug)]
pub struct Catalog {
    /// In the order of discovery.
    pub kinds: Vec<Kind>,
    /// The schemas by the names of their definitions.
    pub definitions: Definitions,
    by_gvk: HashMap<Gvk, usize>,
    by_gvr: HashMap<Gvr, usize>,
}

impl Catalog {
    /// The row of a kind, if it has a resource.
    pub fn kind(&self, gvk: &Gvk) -> Option<&Kind> {
        self.by_gvk.get(gvk).map(|&i| &self.kinds[i])
    }

    /// The row of a resource.
    pub fn resource(&self, gvr: &Gvr) -> Option<&Kind> {
        self.by_gvr.get(gvr).map(|&i| &self.kinds[i])
    }

    /// The schema of a kind, also of those without a resource of their own (`Scale`, `Eviction`, `DeleteOptions`).
    pub fn schema_of(&self, gvk: &Gvk) -> Option<&Arc<Schema>> {
        if let Some(k) = self.kind(gvk) {
            return Some(&k.schema);
        }
        let prefix = table::prefix(&gvk.group, &gvk.version);
        self.definitions
            .get(&format!("{prefix}.{}", gvk.kind))
            .or_else(|| self.definitions.get(&format!("{}.{}", table::META, gvk.kind)))
    }
}

/// The catalogue, read on first use (a few milliseconds) and kept.
pub fn catalog() -> &'static Catalog {
    static CATALOG: OnceLock<Catalog> = OnceLock::new();
    CATALOG.get_or_init(|| {
        let (kinds, definitions) = table::load();
        let by_gvk = kinds.iter().enumerate().map(|(i, k)| (k.gvk(), i)).collect();
        let by_gvr = kinds.iter().enumerate().map(|(i, k)| (k.gvr(), i)).collect();
        Catalog { kinds, definitions, by_gvk, by_gvr }
    })
}

/// The descriptions of all definitions: by definition, then by field (`""` for the definition itself). Unpacked at each call, since only OpenAPI
/// and `explain` need them.
pub fn texts() -> BTreeMap<String, BTreeMap<String, String>> {
    let packed: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/texts.bin"));
    let mut text = String::new();
    // Both were made by the build; that they can be read is tested.
    let _ = flate2::read::DeflateDecoder::new(packed).read_to_string(&mut text);
    serde_json::from_str(&text).unwrap_or_default()
}
