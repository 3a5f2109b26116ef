#![allow(clippy::unwrap_used, reason = "a test may")]
#[test]
fn the_catalogue_loads() {
    let c = kinds::catalog();
    assert!(c.kinds.len() > 60, "{}", c.kinds.len());
    assert!(kinds::texts()["io.k8s.api.core.v1.Pod"].contains_key("spec"));
}
