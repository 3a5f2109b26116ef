//! `kubectl diff`: compares the live objects with the result of a server-side dry run of `apply`.
//!
//! Both are written to files and compared with `diff`, or with the program in `KUBECTL_EXTERNAL_DIFF`; without any program
//! [`sides`] compares them. Exit code 0: no differences; 1: differences; 2: an error. With `--prune` it also shows what
//! `apply --prune` would delete.

pub mod secret;
pub mod sides;
mod unified;

use super::apply::object::warn_if_deleting;
use super::apply::{CLIENT_SIDE, patch, prune};
use super::recreate::create;
use crate::error::{Error, Result, text};
use crate::flags::FileFlags;
use crate::kube::Kube;
use crate::printer::without_managed_fields;
use crate::resource::last_applied::LAST_APPLIED;
use crate::resource::{Info, from_files};
use client::{DryRun, Patch, WriteOptions};
use meta::{Object, Value};
use serde_json::json;
use sides::Sides;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[arg(hide = true)]
    pub words: Vec<String>,
    #[command(flatten)]
    pub files: FileFlags,
    /// Compare with the result of server-side apply.
    #[arg(long)]
    pub server_side: bool,
    /// With --server-side, take over fields of other managers.
    #[arg(long)]
    pub force_conflicts: bool,
    /// Name of the field manager.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub field_manager: String,
    /// Only objects of the files with these labels.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Include managed fields.
    #[arg(long)]
    pub show_managed_fields: bool,
    /// Show the values of secrets.
    #[arg(long)]
    pub show_secrets: bool,
    /// Also show what `apply --prune` would delete.
    #[arg(long)]
    pub prune: bool,
    /// With --prune, only these kinds: GROUP/VERSION/KIND; may be repeated.
    #[arg(long, value_name = "GVK")]
    pub prune_allowlist: Vec<String>,
    /// Accepted without effect: objects are compared one after the other.
    #[arg(long, default_value = "1", hide_default_value = true)]
    pub concurrency: u32,
}

/// How many times a patch is tried when others write at the same time.
const ATTEMPTS: usize = 4;

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    match compare(&a, k).await {
        Err(e @ Error::Exit(_)) => Err(e),
        Err(e) => Err(Error::Code { code: 2, error: Box::new(e) }),
        Ok(()) => Ok(()),
    }
}

async fn compare(a: &Arguments, k: &mut Kube) -> Result {
    let see = "See 'kubectl diff -h' for help and examples";
    if !a.words.is_empty() {
        return text(format!("Unexpected args: [{}]\n{see}", a.words.join(" ")));
    }
    if a.files.is_empty() {
        return text("must specify one of -f and -k");
    }
    if a.force_conflicts && !a.server_side {
        return text("--force-conflicts only works with --server-side");
    }
    let selector = meta::LabelSelector::parse(&a.selector).map_err(Error::Text)?;
    let pruning =
        prune::Flags { prune: a.prune, prune_allowlist: a.prune_allowlist.clone(), ..prune::Flags::default() };
    let prunable = pruning.resources(k).await?;
    let mut seen = prune::Visited::default();
    let mut sides = Sides::new(k)?;
    sides.masks = !a.show_secrets;
    for i in from_files(k, &a.files).await? {
        let i = i?;
        let o = i.object.clone().unwrap_or_default();
        if !selector.matches(|key| o.label(key)) {
            continue;
        }
        let (mut live, mut merged) = dry_run(a, k, &i, o).await?;
        seen.record(live.as_ref().unwrap_or(&merged));
        warn_if_deleting(k, &i, &merged);
        if !a.show_managed_fields {
            live.iter_mut().for_each(without_managed_fields);
            without_managed_fields(&mut merged);
        }
        if i.resource.kind == "Secret" && i.resource.group.is_empty() && !a.show_secrets {
            secret::mask(live.as_mut(), &mut merged);
        }
        sides.write(&i, live, Some(merged))?;
    }
    for (r, namespace) in seen.collections(&prunable) {
        // As in upstream, these keep their managed fields.
        for mut o in prune::stale_objects(k, r, namespace, &seen, &a.selector).await? {
            if r.kind == "Secret" && r.group.is_empty() && !a.show_secrets {
                let mut nothing = Object::default();
                secret::mask(Some(&mut o), &mut nothing);
            }
            let (name, namespace) = (o.name().to_owned(), o.namespace().to_owned());
            let i = Info { resource: r.clone(), namespace, name, source: String::new(), object: None };
            sides.write(&i, Some(o), None)?;
        }
    }
    sides.compare(k)
}

/// Returns the live object and the result of the dry run.
async fn dry_run(a: &Arguments, k: &mut Kube, i: &Info, mut local: Object) -> Result<(Option<Object>, Object)> {
    let api = k.api(&i.resource, &i.namespace).await?;
    let manager = match (a.field_manager.as_str(), a.server_side) {
        ("", true) => "kubectl",
        ("", false) => CLIENT_SIDE,
        (m, _) => m,
    };
    let options = WriteOptions { dry_run: DryRun::All, force: a.force_conflicts, ..WriteOptions::manager(manager) };
    let mut live = if i.name.is_empty() { None } else { api.get_opt(&i.name).await? };
    if a.server_side {
        local.remove(&["metadata", "managedFields"]);
        let merged = api.patch(&i.name, &options, &Patch::Apply(local.into_value())).await?;
        return Ok((live, merged));
    }
    // The last applied configuration has at least empty annotations: a file without annotations would seem to remove them
    // all.
    let mut modified = local.clone();
    modified.remove(&["metadata", "annotations", LAST_APPLIED]);
    if modified.at(&["metadata", "annotations"]).is_none_or(Value::is_null) {
        modified.set(&["metadata", "annotations"], json!({}));
    }
    let mut attempt = 0;
    loop {
        let Some(current) = &live else { return Ok((None, create(&api, &options, &local).await?)) };
        let made = patch::three_way(i, current, &modified, true)?;
        if made.text == "{}" {
            return Ok((live.clone(), current.clone()));
        }
        attempt += 1;
        match api.patch(&i.name, &options, &made.patch).await {
            Ok(merged) => return Ok((live, merged)),
            Err(e) if e.is_conflict() && attempt < ATTEMPTS => live = api.get_opt(&i.name).await?,
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, run_in, snapshot};
    use serde_json::json;

    const PATH: &str = "/api/v1/namespaces/default/configmaps";
    const FILE: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}\n";
    const QUERY: &str = "fieldManager=kubectl-client-side-apply&dryRun=All";

    fn config_map(value: &str) -> meta::Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": value}, "metadata": {"name": "a", "namespace": "default", "managedFields": [],
            "annotations": {"other": "x", super::LAST_APPLIED: "{\"metadata\":{\"annotations\":{}}}"}}})
    }

    /// What is sent, what is printed, and the exit codes.
    #[tokio::test]
    async fn shows_differences_and_sets_the_exit_code() {
        // One directory for all tests would collide: their random numbers are fixed.
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().to_str().unwrap().to_owned();
        let run = async |s: &Server, line: &str, external: Option<&str>| {
            let words: Vec<&str> = line.split(' ').collect();
            let (base, external) = (base.clone(), external.map(str::to_owned));
            run_in(s, &words, FILE, move |n| match n {
                "TMPDIR" => Some(base.clone()),
                "KUBECTL_EXTERNAL_DIFF" => external.clone(),
                _ => None,
            })
            .await
        };
        let get = format!("GET {PATH}/a");
        let patch = format!("PATCH {PATH}/a?{QUERY}");
        let s = Server::new().on(&get, 200, config_map("old")).on(&patch, 200, config_map("v"));
        let (code, out, err) = run(&s, "diff -f -", None).await;
        assert_eq!((code, err.as_str()), (1, ""), "{out}");
        let changed: Vec<&str> =
            out.lines().filter(|l| l.starts_with([' ', '-', '+']) && !l.contains("/tmp")).collect();
        assert!(changed.contains(&"-  k: old") && changed.contains(&"+  k: v"), "{out}");
        assert!(out.contains("v1.ConfigMap.default.a") && !out.contains("managedFields"), "{out}");
        assert_eq!(s.body_of(&patch), json!({"data": {"k": "v"}}));

        let same = Server::new().on(&get, 200, config_map("v"));
        assert_eq!(run(&same, "diff -f -", None).await, (0, String::new(), String::new()));

        let new = Server::new().on(&format!("POST {PATH}?{QUERY}"), 201, config_map("v"));
        let (code, out, _) = run(&new, "diff -f -", None).await;
        assert!(code == 1 && out.contains("+kind: ConfigMap"), "{out}");

        let apply = format!("PATCH {PATH}/a?fieldManager=kubectl&dryRun=All&force=true");
        let server_side = Server::new().on(&get, 200, config_map("v")).on(&apply, 200, config_map("v"));
        assert_eq!(run(&server_side, "diff -f - --server-side --force-conflicts", None).await.0, 0);

        assert_eq!(run(&s, "diff -f -", Some("true -x ;rm")).await, (0, String::new(), String::new()));
        let (code, _, err) = run(&s, "diff -f -", Some("no-such-program")).await;
        assert_eq!(
            (code, err.as_str()),
            (2, "error: failed to run \"no-such-program\": executable file not found in $PATH\n")
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);

        let refused =
            json!({"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no"});
        let s = Server::new().on(&get, 200, config_map("old")).on(&patch, 403, refused);
        let (code, _, err) = run(&s, "diff -f -", None).await;
        assert_eq!((code, err.as_str()), (2, "Error from server (Forbidden): no\n"));
        let see = "! See 'kubectl diff -h' for help and examples\nexit 2\n";
        for (line, expected) in [
            ("diff", "! error: must specify one of -f and -k\nexit 2\n".into()),
            ("diff x", format!("! error: Unexpected args: [x]\n{see}")),
            (
                "diff -f - --force-conflicts",
                "! error: --force-conflicts only works with --server-side\nexit 2\n".into(),
            ),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }
}
