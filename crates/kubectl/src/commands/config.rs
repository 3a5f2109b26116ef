//! `kubectl config`: shows and changes the kubeconfig. [`files`] reads and writes, [`property`] knows the fields by their
//! paths.

mod files;
mod property;
mod set;
mod view;

use crate::error::{Error, Result, text};
use crate::kube::Kube;
use crate::printer::table::Aligner;
use files::Files;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(clap::Subcommand, Clone, Debug)]
pub enum Command {
    /// Print the name of the current context.
    #[command(name = "current-context")]
    CurrentContext(Ignored),
    /// Remove a cluster.
    #[command(name = "delete-cluster")]
    DeleteCluster(Words),
    /// Remove a context.
    #[command(name = "delete-context")]
    DeleteContext(Words),
    /// Remove a user.
    #[command(name = "delete-user")]
    DeleteUser(Words),
    /// List the clusters.
    #[command(name = "get-clusters")]
    GetClusters(Ignored),
    /// List the contexts.
    #[command(name = "get-contexts")]
    GetContexts(GetContexts),
    /// List the users.
    #[command(name = "get-users")]
    GetUsers(Ignored),
    /// Rename a context.
    #[command(name = "rename-context")]
    RenameContext(Words),
    /// Set a value: PROPERTY VALUE.
    Set(Set),
    /// Set fields of a cluster.
    #[command(name = "set-cluster")]
    SetCluster(set::Cluster),
    /// Set fields of a context.
    #[command(name = "set-context")]
    SetContext(set::Context),
    /// Set fields of a user.
    #[command(name = "set-credentials")]
    SetCredentials(set::Credentials),
    /// Remove a value: PROPERTY.
    Unset(Words),
    /// Switch the current context.
    #[command(name = "use-context", visible_alias = "use")]
    UseContext(Words),
    /// Print the merged kubeconfig; secrets are hidden unless --raw is given.
    View(view::Arguments),
}

/// Arguments that are accepted and ignored.
#[derive(clap::Args, Clone, Debug)]
pub struct Ignored {
    #[arg(hide = true)]
    pub words: Vec<String>,
}

#[derive(clap::Args, Clone, Debug)]
pub struct Words {
    pub words: Vec<String>,
}

#[derive(clap::Args, Clone, Debug)]
pub struct Set {
    pub words: Vec<String>,
    /// Take the value of a bytes field as raw bytes instead of base64.
    #[arg(long)]
    pub set_raw_bytes: bool,
}

#[derive(clap::Args, Clone, Debug)]
pub struct GetContexts {
    /// Names of contexts.
    pub names: Vec<String>,
    /// Output format: name.
    #[arg(short = 'o', long, default_value = "", hide_default_value = true)]
    pub output: String,
    /// Do not print headers.
    #[arg(long)]
    pub no_headers: bool,
}

/// Checks that a command has exactly `N` arguments.
fn exactly<'a, const N: usize>(command: &str, words: &'a [String]) -> Result<&'a [String; N]> {
    words.try_into().map_err(|_| unexpected(command, words))
}

fn unexpected(command: &str, words: &[String]) -> Error {
    Error::Text(format!(
        "Unexpected args: [{}]\nSee 'kubectl config {command} -h' for help and examples",
        words.join(" ")
    ))
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    match a.command {
        Command::CurrentContext(_) => match k.sources().load()?.current_context.as_str() {
            "" => text("current-context is not set"),
            c => {
                k.println(c);
                Ok(())
            }
        },
        Command::GetClusters(_) => {
            k.println("NAME");
            k.sources().load()?.clusters.iter().for_each(|c| k.println(&c.name));
            Ok(())
        }
        Command::GetUsers(_) => {
            let mut names: Vec<String> = k.sources().load()?.users.into_iter().map(|u| u.name).collect();
            names.sort();
            k.println("NAME");
            names.iter().for_each(|n| k.println(n));
            Ok(())
        }
        Command::GetContexts(g) => contexts(&g, k),
        Command::View(v) => view::run(&v, k),
        Command::UseContext(w) => {
            let [name] = exactly("use-context", &w.words)?;
            let mut f = Files::load(k)?;
            if name.is_empty() {
                return text("empty context names are not allowed");
            }
            if f.entry("contexts", name).is_none() {
                return text(format!("no context exists with the name: {name:?}"));
            }
            f.set_current(name);
            f.save()?;
            k.println(format!("Switched to context {name:?}."));
            Ok(())
        }
        Command::RenameContext(w) => rename(&w, k),
        Command::DeleteCluster(w) => delete(&w, k, "clusters", "cluster"),
        Command::DeleteContext(w) => delete(&w, k, "contexts", "context"),
        Command::DeleteUser(w) => delete(&w, k, "users", "user"),
        Command::Set(s) => {
            let [path, value] = exactly("set", &s.words)?;
            if value.is_empty() {
                return text("you cannot use set to unset a property");
            }
            if path.is_empty() {
                return text("you must specify a property");
            }
            let mut f = Files::load(k)?;
            property::set(&mut f, path, value, s.set_raw_bytes)?;
            f.save()?;
            k.println(format!("Property {path:?} set."));
            Ok(())
        }
        Command::Unset(w) => {
            let [path] = exactly("unset", &w.words)?;
            if path.is_empty() {
                return text("you must specify a property");
            }
            let mut f = Files::load(k)?;
            property::unset(&mut f, path)?;
            f.save()?;
            k.println(format!("Property {path:?} unset."));
            Ok(())
        }
        Command::SetCluster(a) => set::cluster(&a, k),
        Command::SetContext(a) => set::context(&a, k),
        Command::SetCredentials(a) => set::credentials(&a, k),
    }
}

fn contexts(g: &GetContexts, k: &Kube) -> Result {
    if !matches!(g.output.as_str(), "" | "name") {
        return text(format!(
            "--output {} is not available in kubectl config get-contexts; resetting to default output format",
            g.output
        ));
    }
    let all = k.sources().load()?;
    let named = |n: &String| all.contexts.iter().any(|c| c.name == *n);
    let missing: Vec<Error> =
        g.names.iter().filter(|n| !named(n)).map(|n| Error::Text(format!("context {n} not found"))).collect();
    let mut rows = Vec::new();
    if !g.no_headers {
        rows.push(["CURRENT", "NAME", "CLUSTER", "AUTHINFO", "NAMESPACE"].map(str::to_owned).to_vec());
    }
    let mut found = all.contexts.clone();
    found.sort_by(|x, y| x.name.cmp(&y.name));
    for c in found {
        if !g.names.is_empty() && !g.names.contains(&c.name) {
            continue;
        }
        if g.output == "name" {
            k.println(&c.name);
            continue;
        }
        let mark = if c.name == all.current_context { "*" } else { "" };
        rows.push(vec![mark.into(), c.name, c.value.cluster, c.value.user, c.value.namespace]);
    }
    if g.output != "name" {
        k.out.write(Aligner::default().lines(&rows).as_bytes());
    }
    Error::collect(missing)
}

fn rename(w: &Words, k: &Kube) -> Result {
    let [old, new] = exactly("rename-context", &w.words)?;
    if new.is_empty() {
        return text("You must specify a new non-empty context name");
    }
    let mut f = Files::load(k)?;
    let file = f.named();
    let Some(context) = f.entry("contexts", old) else {
        return text(format!("cannot rename the context {old:?}, it's not in {file}"));
    };
    if f.entry("contexts", new).is_some() {
        return text(format!("cannot rename the context {old:?}, the context {new:?} already exists in {file}"));
    }
    let owner = f.owner("contexts", old);
    f.remove("contexts", old);
    f.put_into(owner, "contexts", new, context);
    if f.current() == old.as_str() {
        f.set_current(new);
    }
    f.save()?;
    k.println(format!("Context {old:?} renamed to {new:?}."));
    Ok(())
}

fn delete(w: &Words, k: &Kube, list: &'static str, what: &str) -> Result {
    let [name] = w.words.as_slice() else {
        if what == "user" {
            return text("user to delete is required\nSee 'kubectl config delete-user -h' for help and examples");
        }
        let mut all = crate::cli::command();
        let shown = all
            .find_subcommand_mut("config")
            .and_then(|c| c.find_subcommand_mut(format!("delete-{what}")))
            .map(|c| c.render_long_help().to_string());
        k.out.write(shown.unwrap_or_default().as_bytes());
        return Ok(());
    };
    let mut f = Files::load(k)?;
    let file = f.named();
    if f.entry(list, name).is_none() {
        return text(format!("cannot delete {what} {name}, not in {file}"));
    }
    if what == "context" && f.current() == name.as_str() {
        k.warn(
            "warning: this removed your active context, use \"kubectl config use-context\" to select a different one",
        );
    }
    f.remove(list, name);
    f.save()?;
    k.println(format!("deleted {what} {name} from {file}"));
    Ok(())
}

#[cfg(test)]
mod tests;
