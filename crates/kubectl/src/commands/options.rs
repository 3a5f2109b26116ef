//! `kubectl options`: lists the flags that every command has, from the parser's own definitions.

use crate::error::Result;
use crate::kube::Kube;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// Accepted and ignored.
    #[arg(hide = true)]
    pub words: Vec<String>,
}

pub async fn run(_: Arguments, k: &mut Kube) -> Result {
    let all = crate::cli::command();
    let mut flags: Vec<_> = all.get_arguments().filter(|a| a.is_global_set() && !a.is_hide_set()).collect();
    flags.sort_by_key(|a| a.get_long().unwrap_or_default().to_owned());
    let mut out = String::from("The following options can be passed to any command:\n\n");
    for a in flags {
        let short = a.get_short().map(|s| format!("-{s}, ")).unwrap_or_default();
        let default = a.get_default_values().first().map(|v| v.to_string_lossy().into_owned()).unwrap_or_default();
        let name = a.get_long().unwrap_or_default();
        // The last of several users counts here; other commands read the flag as subjects.
        let repeatable = matches!(a.get_action(), clap::ArgAction::Append) && name != "user";
        let bare = name == "v" || matches!(default.as_str(), "true" | "false");
        let shown = if repeatable {
            "[]".to_owned()
        } else if bare {
            default
        } else {
            format!("'{default}'")
        };
        let help = a.get_help().map(ToString::to_string).unwrap_or_default();
        out.push_str(&format!("    {short}--{}={shown}:\n\t{help}\n\n", a.get_long().unwrap_or_default()));
    }
    out.pop();
    k.out.write(out.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};

    #[tokio::test]
    async fn lists_every_global_flag() {
        let output = snapshot(&Server::new(), "options", "").await;
        assert!(
            output.starts_with("The following options can be passed to any command:\n\n    --as='':\n\t"),
            "{output}"
        );
        for flag in [
            "    --as-group=[]:\n",
            "    -n, --namespace='':\n",
            "    -v, --v=0:\n",
            "--insecure-skip-tls-verify=false:\n",
        ] {
            assert!(output.contains(flag), "{flag}");
        }
    }
}
