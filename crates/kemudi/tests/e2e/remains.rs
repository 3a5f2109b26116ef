//! What pods leave on the machine: cgroups with processes, mounts, directories, network devices, packet rules.

use crate::cluster::Cluster;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const CGROUPS: &str = "/sys/fs/cgroup";
/// Directories with an entry for each pod, below the data directory.
const DIRECTORIES: [&str; 5] = ["runtime/pods", "cri/pods", "node/pods", "netns", "logs"];

/// The cgroups of the cluster in all hierarchies: those that its processes are in. None if it has no process.
pub fn cgroups(pids: impl Iterator<Item = u32>) -> BTreeSet<PathBuf> {
    let hierarchies: Vec<PathBuf> = fs::read_dir(CGROUPS).into_iter().flatten().flatten().map(|e| e.path()).collect();
    let mut found = BTreeSet::new();
    for pid in pids {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let names = text.lines().filter_map(|l| l.rsplit(':').next()?.trim_start_matches('/').split('/').next());
        for name in names.filter(|n| n.starts_with("kemudi-")) {
            let roots = hierarchies.iter().map(|h| h.join(name)).chain([Path::new(CGROUPS).join(name)]);
            found.extend(roots.filter(|p| p.is_dir()));
        }
    }
    found
}

/// Adds the cgroups below a directory. One with a process cannot be removed, so each process outside of pods shows as a cgroup.
fn below(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten().filter(|e| e.path().is_dir()) {
        found.insert(format!("cgroup {}", entry.path().display()));
        below(&entry.path(), found);
    }
}

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Everything that is there now, a line each. `cgroups` are those of the cluster.
pub fn list(cluster: &Cluster, cgroups: &BTreeSet<PathBuf>) -> BTreeSet<String> {
    let data = cluster.directory.join("data");
    let mut found = BTreeSet::new();
    cgroups.iter().for_each(|c| below(c, &mut found));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = mounts.lines().filter_map(|l| l.split(' ').nth(4));
    found.extend(points.filter(|p| Path::new(p).starts_with(&data)).map(|p| format!("mount {p}")));
    for directory in DIRECTORIES {
        let entries = fs::read_dir(data.join(directory)).into_iter().flatten().flatten();
        found.extend(entries.map(|e| format!("file {}", e.path().display())));
    }
    let devices = output("ip", &["-o", "link"]);
    found.extend(devices.lines().filter_map(|l| Some(format!("device {}", l.split(": ").nth(1)?.split('@').next()?))));
    let rules = output("nft", &["--stateless", "list", "ruleset"]);
    // Elements of sets one by one: their lines also change when some of them are removed.
    let parts =
        rules.lines().flat_map(|l| l.trim().trim_start_matches("elements = {").trim_end_matches('}').split(','));
    found.extend(parts.map(str::trim).filter(|part| !part.is_empty()).map(|part| format!("rule {part}")));
    found
}
