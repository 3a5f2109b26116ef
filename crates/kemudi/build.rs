//! How the binary is linked.

fn main() {
    // At a fixed address. Otherwise every process of it, one for each pod, relocates 1.7 MB of tables of its own and takes a millisecond
    // longer to start.
    println!("cargo:rustc-link-arg-bins=-no-pie");
    println!("cargo:rerun-if-changed=build.rs");
}
