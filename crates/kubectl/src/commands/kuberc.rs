//! `kubectl kuberc`: shows and changes the file with the user's aliases and default flags ([`crate::kuberc`] applies them).
//!
//! A file that could not be read again is not written.

use crate::error::{Error, Result, text};
use crate::flags::PrintFlags;
use crate::kube::Kube;
use crate::kuberc;
use crate::printer::shape::Order;
use crate::printer::{Formats, Output, ordered};
use meta::{Object, Value};
use serde_json::json;
use std::io::Read as _;
use std::path::Path;

#[derive(clap::Args, Clone, Debug)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub subcommand: Subcommand,
}

#[derive(clap::Subcommand, Clone, Debug)]
pub enum Subcommand {
    /// Print the file.
    View(View),
    /// Set a default, an alias, or the policy for credential plugins.
    Set(Set),
}

#[derive(clap::Args, Clone, Debug)]
pub struct View {
    #[arg(hide = true)]
    pub words: Vec<String>,
    #[command(flatten)]
    pub print: PrintFlags,
}

#[derive(clap::Args, Clone, Debug, Default)]
pub struct Set {
    #[arg(hide = true)]
    pub words: Vec<String>,
    /// Section: defaults, aliases or credentialplugin.
    #[arg(long, required = true)]
    pub section: String,
    /// Command: get, create, "set env".
    #[arg(long, default_value = "", hide_default_value = true)]
    pub command: String,
    /// Name of the alias.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub name: String,
    /// Default FLAG=VALUE; may be repeated.
    #[arg(long)]
    pub option: Vec<String>,
    /// Argument that the alias inserts before the given ones; may be repeated.
    #[arg(long)]
    pub prependarg: Vec<String>,
    /// Argument that the alias appends after the given ones; may be repeated.
    #[arg(long)]
    pub appendarg: Vec<String>,
    /// Policy for credential plugins: AllowAll, DenyAll or Allowlist.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub policy: String,
    /// With the policy Allowlist, an allowed program command=PROGRAM; may be repeated.
    #[arg(long)]
    pub allowlist_entry: Vec<String>,
    /// Overwrite existing entries.
    #[arg(long)]
    pub overwrite: bool,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    let given = (!k.global.kuberc.is_empty()).then(|| k.global.kuberc.clone());
    let Some(path) = kuberc::path(given, &k.shell) else {
        return text("KUBERC is disabled via KUBERC=off environment variable");
    };
    match a.subcommand {
        Subcommand::View(v) => view(v, k, &path),
        Subcommand::Set(s) => set(s, k, &path),
    }
}

/// Reads the file and converts it to the newest version; `None` if there is none.
fn read(path: &Path) -> Result<Option<Value>> {
    let shown = path.display();
    let content = match std::fs::read_to_string(path) {
        Ok(t) => t,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return text(format!("reading {shown}: {}", crate::error::os_message(&e))),
    };
    let all = codec::yaml::parse(&content).map_err(|e| Error::Text(format!("reading {shown}: {e}")))?;
    match all.into_iter().find(kuberc::usable) {
        Some(p) => Ok(Some(newest(p))),
        None => text(format!("no valid preferences found in {shown}")),
    }
}

/// Renames the lists that had other names in v1alpha1.
fn newest(mut p: Value) -> Value {
    fn rename(v: &mut Value, old: &str, new: &str) {
        if let Some(m) = v.as_object_mut()
            && let Some(list) = m.remove(old)
        {
            m.entry(new).or_insert(list);
        }
    }
    rename(&mut p, "overrides", "defaults");
    p["apiVersion"] = "kubectl.config.k8s.io/v1beta1".into();
    for section in ["aliases", "defaults"] {
        for entry in p[section].as_array_mut().into_iter().flatten() {
            rename(entry, "flags", "options");
        }
    }
    p
}

fn empty() -> Value {
    json!({"apiVersion": "kubectl.config.k8s.io/v1beta1", "kind": "Preference", "aliases": null, "defaults": null})
}

fn write(k: &Kube, path: &Path, p: &Value) -> Result {
    kuberc::check(p)?;
    let wrong =
        |e: std::io::Error| Error::Text(format!("writing {}: {}", path.display(), crate::error::os_message(&e)));
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(wrong)?;
    }
    std::fs::write(path, codec::yaml::to_string(p)).map_err(wrong)?;
    k.println(format!("Updated {}", path.display()));
    Ok(())
}

fn view(v: View, k: &mut Kube, path: &Path) -> Result {
    let Some(mut p) = read(path)? else {
        k.println(format!("kuberc file not found at {}", path.display()));
        k.out.write(b"Would you like to generate a default kuberc file with recommended options? (y/N): ");
        k.out.flush();
        return match confirm(k) {
            true => write(k, path, &recommended()),
            false => Ok(()),
        };
    };
    for section in ["aliases", "defaults"] {
        if p[section].is_null() {
            p[section] = json!([]);
        }
    }
    let print = k.print_flags(&v.print);
    let output = Output::parse(&print, Formats::Objects, true)?;
    if matches!(output, Output::Name) {
        k.println("preference.kubectl.config.k8s.io/<unknown>");
        return Ok(());
    }
    let shown =
        ordered(&output, Object::from_value(p).unwrap_or_default(), print.show_managed_fields, Order::Preference)?;
    k.out.write(shown.as_bytes());
    Ok(())
}

/// Whether the next line of input confirms.
fn confirm(k: &mut Kube) -> bool {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while k.shell.input.read(&mut byte).is_ok_and(|n| n == 1) && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    matches!(String::from_utf8_lossy(&line).trim().to_lowercase().as_str(), "y" | "yes")
}

/// The recommended preferences: server-side apply, and confirmation of deletions.
fn recommended() -> Value {
    let on = |command: &str, flag: &str| json!({"command": command, "options": [{"name": flag, "default": "true"}]});
    let mut p = empty();
    p["defaults"] = json!([on("apply", "server-side"), on("delete", "interactive")]);
    p
}

fn set(s: Set, k: &Kube, path: &Path) -> Result {
    if !matches!(s.section.as_str(), "defaults" | "aliases" | "credentialplugin") {
        return text(format!(
            "--section must be \"defaults\", \"aliases\", or \"credentialplugin\", got: {}",
            s.section
        ));
    }
    let mut p = match s.section.as_str() {
        "credentialplugin" => {
            let entries = entries(&s)?;
            let mut p = read(path)?.unwrap_or_else(empty);
            p["credentialPluginPolicy"] = s.policy.as_str().into();
            match entries.is_empty() {
                true => _ = p.as_object_mut().and_then(|m| m.remove("credentialPluginAllowlist")),
                false => p["credentialPluginAllowlist"] = entries.into(),
            }
            return write(k, path, &p);
        }
        _ => {
            let entry = entry(&s)?;
            let mut p = read(path)?.unwrap_or_else(empty);
            replace(&mut p[s.section.as_str()], entry, &s)?;
            p
        }
    };
    if p.get("aliases").is_none() {
        p["aliases"] = Value::Null;
    }
    write(k, path, &p)
}

/// Returns the programs of an allowlist.
fn entries(s: &Set) -> Result<Vec<Value>> {
    match s.policy.as_str() {
        "" => return text("--policy is required when --section=credentialplugin"),
        "AllowAll" | "DenyAll" | "Allowlist" => {}
        other => {
            return text(format!(" --policy must be  \"AllowAll\", \"DenyAll\", or \"Allowlist\", got: {other}"));
        }
    }
    if s.policy != "Allowlist" && !s.allowlist_entry.is_empty() {
        return text("--allowlist-entry may only be used when --section=credentialplugin and --policy=Allowlist");
    }
    if s.policy == "Allowlist" && s.allowlist_entry.is_empty() {
        return text("--allowlist-entry is required when --section=credentialplugin and --policy=Allowlist");
    }
    let program = |e: &str| match e.split_once('=') {
        Some(("command", program)) if program.trim().is_empty() => {
            text("empty value in allowlist entry for field \"command\"")
        }
        Some(("command", program)) => Ok(json!({"command": program})),
        Some(("name", _)) => text("allowlist entry field \"name\" is deprecated, use \"command\" instead"),
        Some((field, _)) => text(format!("unrecognized allowlist entry field: {field:?}")),
        None => text(format!("improperly formatted allowlist entry: {e:?}")),
    };
    s.allowlist_entry.iter().flat_map(|e| e.split(',')).map(program).collect()
}

/// Builds a default or an alias.
fn entry(s: &Set) -> Result<Value> {
    let alias = s.section == "aliases";
    if alias && s.name.is_empty() {
        return text("--name is required when --section=aliases");
    }
    if !alias && !s.name.is_empty() {
        return text("--name should not be specified when --section=defaults");
    }
    let arguments = s.prependarg.iter().chain(&s.appendarg);
    if !alias && arguments.count() > 0 {
        return text("--prependarg and --appendarg are only valid for --section=aliases");
    }
    if s.command.is_empty() {
        return text("--command is required when --section=aliases or --section=defaults");
    }
    let mut options = Vec::new();
    for o in &s.option {
        match o.split_once('=') {
            Some((name, value)) => options.push(json!({"name": name.trim_start_matches('-'), "default": value})),
            None => return text(format!("invalid option format {o:?}, expected flag=value")),
        }
    }
    let mut e = json!({"command": s.command, "options": options});
    if options.is_empty() {
        match alias {
            true => _ = e.as_object_mut().and_then(|m| m.remove("options")),
            false => e["options"] = Value::Null,
        }
    }
    if alias {
        e["name"] = s.name.as_str().into();
        for (key, list) in [("prependArgs", &s.prependarg), ("appendArgs", &s.appendarg)] {
            if !list.is_empty() {
                e[key] = list.clone().into();
            }
        }
    }
    Ok(e)
}

/// Inserts an entry into its list, or replaces the existing one.
fn replace(list: &mut Value, entry: Value, s: &Set) -> Result {
    let alias = s.section == "aliases";
    let key = if alias { "name" } else { "command" };
    let mut all = list.as_array().cloned().unwrap_or_default();
    match all.iter_mut().find(|e| e[key] == entry[key]) {
        Some(_) if !s.overwrite && alias => {
            return text(format!("alias {:?} already exists, use --overwrite to replace", s.name));
        }
        Some(_) if !s.overwrite => {
            return text(format!("defaults for command {:?} already exist, use --overwrite to replace", s.command));
        }
        Some(old) => {
            // Fields without a flag are kept.
            let mut entry = entry;
            for kept in ["options", "prependArgs", "appendArgs"] {
                if entry.get(kept).is_none_or(Value::is_null)
                    && let Some(there) = old.get(kept).filter(|v| !v.is_null())
                {
                    entry[kept] = there.clone();
                }
            }
            *old = entry;
        }
        None => all.push(entry),
    }
    *list = all.into();
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, run_in};

    async fn run(rc: &std::path::Path, line: &[&str], input: &str) -> (u8, String) {
        let (s, rc) = (Server::new(), rc.display().to_string());
        // A named file must exist; the one in the home directory need not.
        let home = rc.strip_suffix("/.kube/kuberc").map(str::to_owned);
        let (code, out, err) = run_in(&s, &[&["kuberc"], line].concat(), input, move |n| match n {
            "KUBERC" if home.is_none() => Some(rc.clone()),
            "HOME" => home.clone(),
            _ => None,
        })
        .await;
        (code, out + &err)
    }

    /// Clauses: K11.kuberc-set K11.kuberc-view
    #[tokio::test]
    async fn changes_and_prints_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let rc = dir.path().join("deep/.kube/kuberc");
        let updated = (0, format!("Updated {}\n", rc.display()));
        let set = |more: &'static str| {
            let rc = rc.clone();
            async move {
                let words: Vec<&str> = std::iter::once("set").chain(more.split_whitespace()).collect();
                run(&rc, &words, "").await
            }
        };
        assert_eq!(set("--section defaults --command get --option output=wide").await, updated);
        let first = std::fs::read_to_string(&rc).unwrap();
        assert_eq!(
            first,
            "aliases: null\napiVersion: kubectl.config.k8s.io/v1beta1\ndefaults:\n- command: get\n  options:\n  - default: wide\n    name: output\nkind: Preference\n"
        );
        for (line, expected) in [
            ("--section x", "--section must be \"defaults\", \"aliases\", or \"credentialplugin\", got: x"),
            ("--section defaults", "--command is required when --section=aliases or --section=defaults"),
            ("--section aliases", "--name is required when --section=aliases"),
            ("--section aliases --command get", "--name is required when --section=aliases"),
            ("--section defaults --command get --name x", "--name should not be specified when --section=defaults"),
            (
                "--section defaults --command get --prependarg x",
                "--prependarg and --appendarg are only valid for --section=aliases",
            ),
            (
                "--section defaults --command get --option output=json",
                "defaults for command \"get\" already exist, use --overwrite to replace",
            ),
            ("--section defaults --command create --option x", "invalid option format \"x\", expected flag=value"),
            (
                "--section aliases --command get --name get-n",
                "invalid alias name, can only include alphabetical characters",
            ),
            (
                "--section credentialplugin --policy Allowlist",
                "--allowlist-entry is required when --section=credentialplugin and --policy=Allowlist",
            ),
            (
                "--section credentialplugin --policy Allowlist --allowlist-entry command=",
                "empty value in allowlist entry for field \"command\"",
            ),
            (
                "--section credentialplugin --policy Allowlist --allowlist-entry command=a,b",
                "improperly formatted allowlist entry: \"b\"",
            ),
            ("--section credentialplugin", "--policy is required when --section=credentialplugin"),
            (
                "--section credentialplugin --policy Allowlist --allowlist-entry name=a",
                "allowlist entry field \"name\" is deprecated, use \"command\" instead",
            ),
            (
                "--section credentialplugin --policy DenyAll --allowlist-entry command=a",
                "--allowlist-entry may only be used when --section=credentialplugin and --policy=Allowlist",
            ),
        ] {
            assert_eq!(set(line).await, (1, format!("error: {expected}\n")), "{line}");
        }
        assert_eq!(std::fs::read_to_string(&rc).unwrap(), first, "what was refused changed nothing");
        assert_eq!(set("--section defaults --command get --option --output=json --overwrite").await, updated);
        assert_eq!(set("--section defaults --command get --overwrite").await, updated);
        assert_eq!(
            set("--section aliases --name getn --command get --prependarg nodes --appendarg x --option output=wide")
                .await,
            updated
        );
        assert_eq!(set("--section aliases --name getn --command get --overwrite").await, updated);
        assert_eq!(set("--section credentialplugin --policy Allowlist --allowlist-entry command=a").await, updated);
        let (code, shown) = run(&rc, &["view"], "").await;
        let expected = "aliases:\n- appendArgs:\n  - x\n  command: get\n  name: getn\n  options:\n  - default: wide\n    name: output\n  prependArgs:\n  - nodes\napiVersion: kubectl.config.k8s.io/v1beta1\ncredentialPluginAllowlist:\n- command: a\ncredentialPluginPolicy: Allowlist\ndefaults:\n- command: get\n  options:\n  - default: json\n    name: output\nkind: Preference\n";
        assert_eq!((code, shown.as_str()), (0, expected));
        let (_, program) = run(&rc, &["view", "-o", "jsonpath={.aliases[0].name}"], "").await;
        assert_eq!(program, "getn");
    }

    /// Clauses: K11.kuberc-recommended
    #[tokio::test]
    async fn offers_a_file_if_there_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let rc = dir.path().join(".kube/kuberc");
        let prompt = format!(
            "kuberc file not found at {}\nWould you like to generate a default kuberc file with recommended options? (y/N): ",
            rc.display()
        );
        assert_eq!(run(&rc, &["view"], "n\n").await, (0, prompt.clone()));
        assert!(!rc.exists());
        assert_eq!(run(&rc, &["view"], "y\n").await, (0, format!("{prompt}Updated {}\n", rc.display())));
        let written = std::fs::read_to_string(&rc).unwrap();
        assert!(written.contains("- command: apply\n  options:\n  - default: \"true\"\n    name: server-side\n"));
        let missing = run(&dir.path().join("none"), &["set", "--section=defaults", "--command=get"], "").await;
        let refused = "error occurred while applying preferences kuberc error kuberc: open";
        assert!(missing.0 == 1 && missing.1.starts_with(refused), "{missing:?}");
        let broken = dir.path().join("broken");
        std::fs::write(&broken, "a: [").unwrap();
        let (code, output) = run(&broken, &["view"], "").await;
        assert!(code == 1 && output.ends_with("broken, use --v=5 to see details\n"), "{output}");
        let (code, output) = run(std::path::Path::new("off"), &["view"], "").await;
        assert_eq!((code, output.as_str()), (1, "error: KUBERC is disabled via KUBERC=off environment variable\n"));
    }
}
