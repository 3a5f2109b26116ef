//! What must hold of everything that reads bytes from outside, for any bytes: no panic, and what was read survives being
//! written and read again.
//!
//! Each function of [`ALL`] panics when something does not hold. The fuzz targets in `fuzz/` call them with bytes that a fuzzer
//! makes up; the test calls them with the seeds, and with whatever a fuzzer has found before, in `fuzz/seeds`.

mod guests;
mod listener;
mod patches;
mod texts;

/// A property by the name of its fuzz target.
pub type Property = fn(&[u8]);

pub const ALL: [(&str, Property); 16] = [
    ("json", texts::json),
    ("yaml", texts::yaml),
    ("protobuf", texts::protobuf),
    ("selectors", texts::selectors),
    ("quantities", texts::quantities),
    ("cel", texts::cel),
    ("field_sets", patches::field_sets),
    ("json_patch", patches::json_patch),
    ("merge_patch", patches::merge_patch),
    ("strategic_patch", patches::strategic_patch),
    ("apply", patches::apply),
    ("layers", guests::layers),
    ("image_configuration", guests::image_configuration),
    ("shim_protocol", guests::shim_protocol),
    ("kubeconfig", guests::kubeconfig),
    ("http2", guests::http2),
];

/// What must hold of the bytes for the target of this name.
///
/// # Panics
/// When it does not hold, or there is no such target.
pub fn check(name: &str, data: &[u8]) {
    let found = ALL.iter().find(|(n, _)| *n == name);
    assert!(found.is_some(), "no target {name}");
    if let Some((_, property)) = found {
        property(data);
    }
}
