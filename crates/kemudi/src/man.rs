//! `kemudi man DIR`: manual pages from the parser's definitions, `kemudi-up.1`, `kubectl-get.1` and so on.

use clap_mangen::generate_to;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Options {
    /// Target directory; it is created if missing.
    pub directory: PathBuf,
}

pub fn main(o: &Options, own: clap::Command) -> ExitCode {
    let written = std::fs::create_dir_all(&o.directory).and_then(|()| {
        generate_to(own, &o.directory)?;
        generate_to(kubectl::command(), &o.directory)
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            crate::output::note!("error: writing manual pages to {}: {e}", o.directory.display());
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clauses: A16.man
    #[test]
    fn every_command_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        let o = Options { directory: dir.path().join("man1") };
        assert_eq!(main(&o, clap::Command::new("kemudi").subcommand(clap::Command::new("up"))), ExitCode::SUCCESS);
        let page =
            |name: &str| std::fs::read_to_string(o.directory.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        for name in ["kemudi.1", "kemudi-up.1", "kubectl.1", "kubectl-apply-set-last-applied.1", "kubectl-kuberc-set.1"]
        {
            assert!(page(name).contains(".SH SYNOPSIS"), "{name}");
        }
        for c in kubectl::command().get_subcommands().filter(|c| !c.is_hide_set()) {
            let page = page(&format!("kubectl-{}.1", c.get_name()));
            for a in c.get_arguments().filter(|a| !a.is_hide_set()) {
                // Dashes are escaped so that they are not rendered as hyphens.
                let flag = a.get_long().map(|l| l.replace('-', "\\-"));
                assert!(flag.is_none_or(|f| page.contains(&f)), "{}: {:?}", c.get_name(), a.get_long());
            }
        }
    }
}
