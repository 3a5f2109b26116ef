//! What Kubernetes has and this cluster does not yet. `kemudi up` and README.md say it from here.

/// What somebody asks for, and what they get.
pub const MISSING: &[(&str, &str)] = &[
    ("Jobs, CronJobs, DaemonSets, StatefulSets", "stored; nothing makes their pods"),
    ("HorizontalPodAutoscalers", "stored; nothing is scaled"),
    ("PodDisruptionBudgets", "stored; their status is not kept, so pods they choose cannot be evicted (`drain` waits)"),
    ("NetworkPolicies", "stored; nothing is kept apart (a warning says so)"),
    ("Ingresses, load balancers", "stored; nothing serves them"),
    ("PersistentVolumeClaims", "stored; nothing binds them or makes volumes"),
    ("preemption", "pods are tried by priority; one that finds no room waits, and displaces no others"),
    ("ResourceClaims", "stored; no devices are allocated, and pods that name claims get none"),
    ("volumes from images and of network file systems", "pods that mount them wait, with an event that says so"),
    ("images from registries", "not pulled: `kemudi image import` brings them from files"),
    ("more than one node", "a control plane takes agents of other programs; ours runs beside it only"),
    ("IPv6 for pods", "services have it; pods have IPv4 addresses"),
    (
        "limits of `ephemeral-storage`, and `sizeLimit` of `emptyDir` volumes on disk",
        "admitted; a pod that exceeds them is not evicted",
    ),
];

/// The table as lines of text.
pub fn table() -> String {
    let width = MISSING.iter().map(|(what, _)| what.len()).max().unwrap_or(0);
    let rows: Vec<String> = MISSING.iter().map(|(what, instead)| format!("  {what:width$}  {instead}")).collect();
    format!("Not there yet:\n{}", rows.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_says_the_same() {
        let readme = include_str!("../../../README.md");
        for (what, instead) in MISSING {
            let row = format!("| {what} | {instead} |");
            assert!(readme.contains(&row), "README.md lacks: {row}");
        }
        let rows = readme.lines().skip_while(|l| !l.starts_with("| What ")).take_while(|l| l.starts_with('|')).count();
        assert_eq!(rows, MISSING.len() + 2, "rows of the table in README.md, with its head");
    }
}
