//! What Kubernetes has and this cluster lacks, for `kemudi up` and README.md.

/// Features, and what happens instead.
pub const MISSING: &[(&str, &str)] = &[
    (
        "Ingresses, Gateways",
        "Ingresses are stored, Gateways after their definitions were installed; no controller that serves them is built in, as in Kubernetes",
    ),
    (
        "snapshots of provisioned volumes",
        "CSI drivers bring snapshots of their own; the default class has none, but copies of claims",
    ),
    ("volumes of the types `iscsi` and `fc`", "pods that mount them wait, with an event"),
];

/// The table as lines of text.
pub fn table() -> String {
    let width = MISSING.iter().map(|(what, _)| what.len()).max().unwrap_or(0);
    let rows: Vec<String> = MISSING.iter().map(|(what, instead)| format!("  {what:width$}  {instead}")).collect();
    format!("Not supported yet:\n{}", rows.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_has_the_same_table() {
        let readme = include_str!("../../../README.md");
        for (what, instead) in MISSING {
            let row = format!("| {what} | {instead} |");
            assert!(readme.contains(&row), "README.md lacks: {row}");
        }
        let rows = readme
            .lines()
            .skip_while(|l| !l.starts_with("| Not supported "))
            .take_while(|l| l.starts_with('|'))
            .count();
        assert_eq!(rows, MISSING.len() + 2, "rows of the table in README.md, with its head");
    }
}
