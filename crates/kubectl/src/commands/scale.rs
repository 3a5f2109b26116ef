//! `kubectl scale`: sets the number of replicas.

use crate::error::{Error, Result, text};
use crate::flags::{DryRunFlag, DryRunStrategy, FileFlags, PrintFlags, duration};
use crate::kube::{Kube, POLL_INTERVAL};
use crate::printer::Printer;
use crate::resource::Info;
use crate::resource::select::{Selection, gather};
use client::{Api, Patch, WriteOptions};
use meta::{Object, Value};
use serde_json::json;
use std::time::Duration;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE NAME…, or TYPE/NAME….
    pub resources: Vec<String>,
    /// New number of replicas.
    #[arg(long, required = true)]
    pub replicas: i64,
    /// Only if this is the current number of replicas.
    #[arg(long, default_value = "-1", hide_default_value = true)]
    pub current_replicas: i64,
    /// Only if the object has this resource version.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub resource_version: String,
    #[command(flatten)]
    pub files: FileFlags,
    /// All objects of the type in the namespace.
    #[arg(long)]
    pub all: bool,
    /// Only objects with these labels.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Time limit until the replicas exist; 0 does not wait.
    #[arg(long, default_value = "0s", hide_default_value = true, value_parser = crate::flags::duration_text)]
    pub timeout: String,
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub dry: DryRunFlag,
}

/// The pause before a conflicting update is tried again.
const CONFLICT_PAUSE: Duration = Duration::from_secs(1);
const CONFLICT_TIMEOUT: Duration = Duration::from_secs(300);

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    if a.replicas < 0 {
        return text("The --replicas=COUNT flag is required, and COUNT must be greater than or equal to 0");
    }
    if a.current_replicas < -1 {
        return text("The --current-replicas must specify an integer of -1 or greater");
    }
    if a.resources.is_empty() && a.files.is_empty() {
        return text(super::delete::MISSING_RESOURCES);
    }
    let dry = a.dry.strategy()?;
    let timeout = duration("timeout", &a.timeout)?.filter(|t| !t.is_zero());
    let mut printer = Printer::new(&a.print, dry)?;
    let selection =
        Selection { labels: &a.selector, bare_type_is_all: a.all, files_as_given: true, ..Selection::default() };
    let (found, errors) = gather(k, &a.resources, &a.files, &selection).await?;
    if !a.resource_version.is_empty() && found.len() > 1 {
        return text("cannot use --resource-version with multiple resources");
    }
    if found.is_empty() && errors.is_empty() {
        return text("no objects passed to scale");
    }
    for i in found {
        let scaled = async {
            let api = k.api(&i.resource, &i.namespace).await?;
            if dry == DryRunStrategy::Client {
                return Ok(a.replicas);
            }
            let options = WriteOptions { dry_run: dry.option(), ..WriteOptions::default() };
            let started = tokio::time::Instant::now();
            loop {
                match scale_object(&a, &api, &i.name, &options).await {
                    Err(Error::Client(e)) if e.is_conflict() && started.elapsed() < CONFLICT_TIMEOUT => {
                        tokio::time::sleep(CONFLICT_PAUSE).await;
                    }
                    done => return done,
                }
            }
        };
        // The first error ends the command, whatever else is wrong.
        let replicas = scaled.await?;
        if let Some(limit) = timeout.filter(|_| dry == DryRunStrategy::None) {
            wait_scaled(k, &i, a.replicas, limit).await?;
        }
        let mut o = i.object.clone().unwrap_or_default();
        // In other groups the location of the number is unknown.
        if matches!(i.resource.group.as_str(), "" | "apps") {
            o.set(&["spec", "replicas"], replicas);
        }
        i.record_cause(k, "", &WriteOptions { dry_run: dry.option(), ..WriteOptions::default() }).await;
        printer.print(k, &o, "scaled")?;
    }
    Error::collect(errors)
}

/// Scales one object if it meets the preconditions of the flags. Returns the number of replicas that the server accepted.
async fn scale_object(a: &Arguments, api: &Api<Object>, name: &str, options: &WriteOptions) -> Result<i64> {
    let accepted = |scale: &Value| scale["spec"]["replicas"].as_i64().unwrap_or(0);
    if a.current_replicas < 0 && a.resource_version.is_empty() {
        let patch = Patch::Merge(json!({"spec": {"replicas": a.replicas}}));
        let scale: Value = api.patch_subresource(name, "scale", options, &patch).await?;
        return Ok(accepted(&scale));
    }
    let mut scale: Object = api.get_subresource(name, "scale").await?;
    let now = scale.int_at(&["spec", "replicas"]).unwrap_or(0);
    if a.current_replicas >= 0 && now != a.current_replicas {
        return text(format!("Expected replicas to be {}, was {now}", a.current_replicas));
    }
    if !a.resource_version.is_empty() && scale.resource_version() != a.resource_version {
        let (expected, actual) = (&a.resource_version, scale.resource_version());
        return text(format!("Expected resource version to be {expected}, was {actual}"));
    }
    scale.set(&["spec", "replicas"], a.replicas);
    let scale: Value = api.update_subresource(name, "scale", options, &scale).await?;
    Ok(accepted(&scale))
}

/// Waits until the number of replicas is reached, or another client sets another number.
async fn wait_scaled(k: &mut Kube, i: &Info, replicas: i64, limit: Duration) -> Result {
    let api = k.api(&i.resource, &i.namespace).await?;
    let poll = async {
        loop {
            let scale: Object = api.get_subresource(&i.name, "scale").await?;
            let replicas_of = |p: &str| scale.int_at(&[p, "replicas"]).unwrap_or(0);
            if replicas_of("spec") != replicas || replicas_of("status") == replicas {
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    match tokio::time::timeout(limit, poll).await {
        Ok(done) => done,
        Err(_) => text(format!("timed out waiting for {:?} to be synced", i.name)),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    /// Reads the status until it has the count, another client sets another one, or the time limit expires.
    #[tokio::test(start_paused = true)]
    async fn waits_for_the_replicas() {
        let path = "/apis/apps/v1/namespaces/default/deployments/web";
        let scale = |desired: i64, current: i64| json!({"kind": "Scale", "metadata": {"name": "web"}, "spec": {"replicas": desired}, "status": {"replicas": current}});
        let deployment = json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "web"}});
        let scaled = "deployment.apps/web scaled\n";
        let timeout_error = "! error: timed out waiting for \"web\" to be synced\nexit 1\n";
        for (flags, seen, expected, looks) in [
            ("--timeout=10s", vec![scale(3, 1), scale(3, 2), scale(3, 3)], scaled, 3),
            ("--timeout=10s", vec![scale(3, 1), scale(5, 1)], scaled, 2),
            ("--timeout=250ms", vec![scale(3, 1)], timeout_error, 3),
            ("--timeout=0", vec![scale(3, 1)], scaled, 0),
            ("", vec![scale(3, 1)], scaled, 0),
            ("--timeout=1s --dry-run=server", vec![scale(3, 1)], "deployment.apps/web scaled (server dry run)\n", 0),
        ] {
            let mut s = Server::new()
                .on(&format!("GET {path}"), 200, deployment.clone())
                .on(&format!("PATCH {path}/scale"), 200, scale(3, 1))
                .on(&format!("PATCH {path}/scale?dryRun=All"), 200, scale(3, 1));
            for answer in seen {
                s = s.on(&format!("GET {path}/scale"), 200, answer);
            }
            let line = format!("scale deploy/web --replicas=3 {flags}");
            assert_eq!(snapshot(&s, &line, "").await, expected, "{line}");
            assert_eq!(s.requests().iter().filter(|l| **l == format!("GET {path}/scale")).count(), looks, "{line}");
        }
    }

    /// The output contains the number that the server accepted; an object of a file is not read from the server.
    #[tokio::test]
    async fn prints_the_accepted_number() {
        let path = "/apis/apps/v1/namespaces/default/deployments/web";
        let widget = "/apis/example.com/v1/namespaces/default/widgets/web";
        let scale = json!({"kind": "Scale", "metadata": {"name": "web"}, "spec": {"replicas": 3}});
        let live = json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "web"}, "spec": {"replicas": 1}});
        let other = json!({"kind": "Widget", "apiVersion": "example.com/v1", "metadata": {"name": "web"}, "spec": {"count": 1}});
        let s = Server::new()
            .on(&format!("GET {path}"), 200, live)
            .on(&format!("PATCH {path}/scale"), 200, scale.clone())
            .on(&format!("PATCH {path}/scale?dryRun=All"), 200, scale.clone())
            .on(&format!("GET {widget}"), 200, other)
            .on(&format!("PATCH {widget}/scale"), 200, scale);
        let file =
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, labels: {a: b}}\nspec: {replicas: 7}\n";
        for (line, expected) in [
            ("scale deploy/web --replicas=3 -o jsonpath={.spec.replicas}", "3"),
            ("scale deploy/web --replicas=3 --dry-run=server -o jsonpath={.spec.replicas}", "3"),
            ("scale deploy/web --replicas=4 --dry-run=client -o jsonpath={.spec.replicas}", "4"),
            ("scale widget/web --replicas=3 -o jsonpath={.spec}", "{\"count\":1}"),
            ("scale -f - --replicas=3 -o jsonpath={.metadata.labels}{.spec}", "{\"a\":\"b\"}{\"replicas\":3}"),
            (
                "scale deploy/web --replicas=3 --current-replicas=-2",
                "! error: The --current-replicas must specify an integer of -1 or greater\nexit 1\n",
            ),
            (
                "scale deploy/web widget/web --replicas=3 --resource-version=1",
                "! error: cannot use --resource-version with multiple resources\nexit 1\n",
            ),
        ] {
            assert_eq!(snapshot(&s, line, file).await, expected, "{line}");
        }
        let s = Server::new().on(&format!("PATCH {path}/scale"), 200, json!({"spec": {"replicas": 3}}));
        assert_eq!(snapshot(&s, "scale -f - --replicas=3", file).await, "deployment.apps/web scaled\n");
        assert_eq!(s.requests(), [format!("PATCH {path}/scale")]);
    }

    #[tokio::test]
    async fn sends_the_number() {
        let path = "/apis/apps/v1/namespaces/default/deployments/web";
        let scale =
            json!({"kind": "Scale", "metadata": {"name": "web", "resourceVersion": "5"}, "spec": {"replicas": 2}});
        let s = Server::new()
            .on(
                &format!("GET {path}"),
                200,
                json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "web"}}),
            )
            .on(&format!("PATCH {path}/scale"), 200, scale.clone())
            .on(&format!("GET {path}/scale"), 200, scale.clone())
            .on(&format!("PUT {path}/scale"), 200, scale);
        for (line, expected) in [
            ("scale deploy web --replicas=3", "deployment.apps/web scaled\n"),
            ("scale deploy/web --replicas 3 --current-replicas=2", "deployment.apps/web scaled\n"),
            (
                "scale deploy/web --replicas 3 --current-replicas=5",
                "! error: Expected replicas to be 5, was 2\nexit 1\n",
            ),
            ("scale deploy/web", "! error: required flag(s) \"replicas\" not set\nexit 1\n"),
            (
                "scale deploy/web --replicas=-1",
                "! error: The --replicas=COUNT flag is required, and COUNT must be greater than or equal to 0\nexit 1\n",
            ),
            (
                "scale deploy/no --replicas=1",
                "! Error from server (NotFound): deployments.apps \"no\" not found\nexit 1\n",
            ),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
        assert_eq!(s.body_of(&format!("PATCH {path}/scale")), json!({"spec": {"replicas": 3}}));
        assert_eq!(s.body_of(&format!("PUT {path}/scale"))["metadata"]["resourceVersion"], "5");
    }

    /// A conflicting update is tried again with the current object; other errors are not.
    #[tokio::test(start_paused = true)]
    async fn retries_after_a_conflict() {
        let path = "/apis/apps/v1/namespaces/default/deployments/web";
        let scale = |n: i64| json!({"kind": "Scale", "metadata": {"name": "web"}, "spec": {"replicas": n}});
        let deployment = json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "web"}});
        let conflict =
            json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409, "message": "lost"});
        for (then, expected, puts) in
            [(2, "deployment.apps/web scaled\n", 3), (4, "! error: Expected replicas to be 2, was 4\nexit 1\n", 2)]
        {
            let s = Server::new()
                .on(&format!("GET {path}"), 200, deployment.clone())
                .on(&format!("GET {path}/scale"), 200, scale(2))
                .on(&format!("GET {path}/scale"), 200, scale(2))
                .on(&format!("GET {path}/scale"), 200, scale(then))
                .on(&format!("PUT {path}/scale"), 409, conflict.clone())
                .on(&format!("PUT {path}/scale"), 409, conflict.clone())
                .on(&format!("PUT {path}/scale"), 200, scale(3));
            assert_eq!(snapshot(&s, "scale deploy/web --replicas 3 --current-replicas=2", "").await, expected);
            assert_eq!(s.requests().iter().filter(|l| l.starts_with("PUT ")).count(), puts);
        }
    }
}
