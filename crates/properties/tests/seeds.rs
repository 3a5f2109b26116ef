//! The seeds of the fuzz targets hold; what a fuzzer finds is put among them.
#![allow(clippy::unwrap_used)] // a broken setup is a failed test

use std::path::Path;

#[test]
fn every_seed_holds() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    for (name, property) in properties::ALL {
        let mut count = 0;
        for file in std::fs::read_dir(seeds.join(name)).unwrap() {
            let path = file.unwrap().path();
            println!("{}", path.display());
            property(&std::fs::read(path).unwrap());
            count += 1;
        }
        assert!(count >= 3, "{name} has seeds");
    }
}

#[test]
fn every_target_has_a_property() {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/fuzz_targets");
    let mut files: Vec<String> = std::fs::read_dir(targets)
        .unwrap()
        .map(|f| f.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    files.sort();
    let mut names: Vec<String> = properties::ALL.iter().map(|(n, _)| (*n).to_owned()).collect();
    names.sort();
    assert_eq!(files, names);
}
