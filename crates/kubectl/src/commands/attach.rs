//! `kubectl attach`: the streams of a running container.

use super::exec::{SessionStreams, detach, stream, terminal};
use super::pods;
use crate::error::{Error, Result, text};
use crate::flags::{FileFlags, SessionFlags, running_timeout};
use crate::kube::Kube;
use crate::resource::Info;
use crate::resource::scheme;
use client::{Query, WatchEvent, WatchOptions};
use futures::StreamExt as _;
use http::Method;
use meta::{Object, Value};
use std::time::Duration;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// POD, or TYPE/NAME of a workload.
    pub target: Vec<String>,
    #[command(flatten)]
    pub session: SessionFlags,
    /// Keys that detach from the session and leave the container running: characters and ctrl-CHARACTER, separated by
    /// commas.
    #[arg(long, default_value = detach::KEYS, hide_default_value = true)]
    pub detach_keys: String,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    k.scheme = Some(scheme::KUBECTL);
    match a.target.len() {
        0 => return text("at least 1 argument is required for attach"),
        1 | 2 => {}
        n => {
            return text(format!(
                "expected POD, TYPE/NAME, or TYPE NAME, (at most 2 arguments) saw {n}: [{}]",
                a.target.join(" ")
            ));
        }
    }
    running_timeout(&a.session.pod_running_timeout, "attach")?;
    let pod = pods::find_pod(k, &a.target, &FileFlags::default(), &a.session.pod_running_timeout).await?;
    let o = pod.object.clone().unwrap_or_default();
    if let Some(phase @ ("Succeeded" | "Failed")) = o.str_at(&["status", "phase"]) {
        return text(format!("cannot attach a container in a completed pod; current phase is {phase}"));
    }
    let container = pods::container(k, &o, &a.session.container, a.session.quiet)
        .map_err(|e| Error::Text(format!("cannot attach to the container: {e}")))?;
    let (stdin, tty, quiet) = (a.session.stdin, a.session.tty, a.session.quiet);
    let options = Options { stdin, tty, quiet, detach_keys: a.detach_keys };
    attach(k, &pod, &container, &options).await
}

/// The options of a session.
#[derive(Clone, Debug)]
pub struct Options {
    pub stdin: bool,
    pub tty: bool,
    pub quiet: bool,
    pub detach_keys: String,
}

/// Finds the container with this name among all types of containers.
fn find_container<'a>(o: &'a Object, name: &str) -> Option<(&'static str, &'a Value)> {
    ["containers", "initContainers", "ephemeralContainers"].into_iter().find_map(|field| {
        let all = o.at(&["spec", field]).and_then(Value::as_array)?;
        all.iter().find(|c| c["name"] == name).map(|c| (field, c))
    })
}

/// Attaches until the container or the user ends the session.
pub async fn attach(k: &mut Kube, pod: &Info, container: &str, w: &Options) -> Result {
    let o = pod.object.clone().unwrap_or_default();
    let (field, c) = find_container(&o, container).unwrap_or(("containers", &Value::Null));
    // The container has a terminal only if its spec requests one.
    let has_terminal = c["tty"] == true;
    if w.tty && !has_terminal && !w.quiet {
        k.warn(format!("error: Unable to use a TTY - container {container} did not allocate one"));
    }
    let raw = terminal::set_up(k, has_terminal && w.stdin, w.quiet);
    if !w.quiet {
        k.warn("All commands and output from this session will be recorded in container logs, including credentials and sensitive information passed through the command prompt.\nIf you don't see a command prompt, try pressing enter.");
    }
    let detach = if raw { Some(detach::Detach::parse(&w.detach_keys)?) } else { None };
    let mut q = Query::default();
    q.add("container", container);
    stream(k, pod, &o, "attach", q, SessionStreams { stdin: w.stdin, tty: raw, detach }).await?;
    if !w.quiet && raw {
        let (pod, namespace) = (o.name(), o.namespace());
        let command = format!("kubectl attach {pod} -c {container} -n {namespace} -i -t");
        k.println(match field {
            "ephemeralContainers" => format!(
                "Session ended, the ephemeral container will not be restarted but may be reattached using '{command}' if it is still running"
            ),
            _ => format!("Session ended, resume using '{command}' command"),
        });
    }
    Ok(())
}

fn status<'a>(o: &'a Object, container: &str) -> Option<&'a Value> {
    ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"].iter().find_map(|field| {
        let all = o.at(&["status", field]).and_then(Value::as_array)?;
        all.iter().find(|c| c["name"] == container)
    })
}

/// Whether [`join`] prints the log of the container before it attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviousLog {
    Print,
    Skip,
}

/// Time limit for printing the log before attaching.
const LOG_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits for the container and attaches to it. If the container has already terminated, prints its log instead.
pub async fn join(k: &mut Kube, mut pod: Info, container: &str, w: &Options, previous_log: PreviousLog) -> Result {
    let api = k.api(&pod.resource, &pod.namespace).await?;
    let options = WatchOptions { field_selector: format!("metadata.name={}", pod.name), ..WatchOptions::default() };
    let ready = |o: &Object| {
        status(o, container).is_some_and(|s| s["state"]["running"].is_object() || s["state"]["terminated"].is_object())
    };
    k.out.flush();
    let mut o = api.get(&pod.name).await?;
    let mut previous = String::new();
    let waiting = async {
        while !ready(&o) {
            let mut events = std::pin::pin!(api.watch(&options).await?);
            while let Some(e) = events.next().await {
                match e? {
                    WatchEvent::Added(now) | WatchEvent::Modified(now) => o = now,
                    WatchEvent::Deleted(_) => return text("pods \"\" not found"),
                    _ => continue,
                }
                if ready(&o) {
                    return Ok(o);
                }
                let why =
                    status(&o, container).and_then(|s| s["state"]["waiting"]["message"].as_str()).unwrap_or_default();
                if !w.quiet && !why.is_empty() && why != previous {
                    k.warn(format!("Warning: container {container}: {why}"));
                    previous = why.to_owned();
                }
            }
        }
        Ok(o)
    };
    let o = crate::shell::interruptible(waiting).await?;
    let ended = status(&o, container).is_some_and(|s| s["state"]["terminated"].is_object());
    pod.object = Some(o);
    let mut q = Query::default();
    q.add("container", container);
    if !ended {
        // An attachment shows only what is written afterwards.
        if previous_log == PreviousLog::Print {
            match tokio::time::timeout(LOG_TIMEOUT, print_log(k, &pod, &q)).await {
                Ok(Ok(())) => q.add("sinceTime", &meta::time::format(k.now())),
                Ok(Err(e)) => k.warn(format!("warning: couldn't fetch pre-attach logs: {e}")),
                Err(_) => k.warn("warning: couldn't fetch pre-attach logs: context deadline exceeded"),
            }
        }
        match attach(k, &pod, container, w).await {
            Ok(()) => return Ok(()),
            Err(e @ Error::Code { .. }) => return Err(e),
            Err(e) => {
                k.warn(format!("warning: couldn't attach to pod/{}, falling back to streaming logs: {e}", pod.name))
            }
        }
    }
    print_log(k, &pod, &q).await
}

/// Prints the log of a container up to now.
async fn print_log(k: &mut Kube, pod: &Info, q: &Query) -> Result {
    let api = k.api(&pod.resource, &pod.namespace).await?;
    let bytes = k.client().await?.bytes(api.subresource_request(Method::GET, &pod.name, "log", q)?).await?;
    k.out.write(&bytes);
    k.out.flush();
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use futures::SinkExt;
    use serde_json::json;
    use tokio_tungstenite::tungstenite::Message;

    #[tokio::test]
    async fn attaches_to_a_container() {
        let pod = |phase: &str| json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "namespace": "default"}, "spec": {"containers": [{"name": "c"}]}, "status": {"phase": phase}});
        let s = Server::new().on("GET /api/v1/namespaces/default/pods/a", 200, pod("Running")).on_upgrade(|mut ws| {
            Box::pin(async move {
                ws.send(Message::Binary(b"\x01out\n".to_vec().into())).await.unwrap();
                ws.send(Message::Binary(b"\x03{\"status\":\"Success\"}".to_vec().into())).await.unwrap();
                ws.close(None).await.unwrap();
            })
        });
        let note = "! All commands and output from this session will be recorded in container logs, including credentials and sensitive information passed through the command prompt.\n! If you don't see a command prompt, try pressing enter.\n";
        for (line, expected) in [
            ("attach a", format!("out\n{note}")),
            ("attach a -q -t", "out\n".to_owned()),
            ("attach", "! error: at least 1 argument is required for attach\nexit 1\n".to_owned()),
            (
                "attach a -c x",
                "! error: cannot attach to the container: container x is not valid for pod a out of: c\nexit 1\n"
                    .to_owned(),
            ),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
        assert!(
            s.requests().contains(
                &"GET /api/v1/namespaces/default/pods/a/attach?container=c&stderr=true&stdout=true".to_owned()
            )
        );
        // The container has a terminal, but the input is none.
        let mut with_terminal = pod("Running");
        with_terminal["spec"]["containers"][0]["tty"] = true.into();
        s.replace("GET /api/v1/namespaces/default/pods/a", 200, with_terminal);
        let warning = "! Unable to use a TTY - input is not a terminal or the right kind of file\n";
        assert_eq!(snapshot(&s, "attach -it a", "").await, format!("out\n{warning}{note}"));
        assert_eq!(snapshot(&s, "attach -it -q a", "").await, "out\n");
        assert_eq!(snapshot(&s, "attach -t a", "").await, format!("out\n{note}"));
        let s = Server::new().on("GET /api/v1/namespaces/default/pods/a", 200, pod("Failed"));
        assert_eq!(
            snapshot(&s, "attach a", "").await,
            "! error: cannot attach a container in a completed pod; current phase is Failed\nexit 1\n"
        );
    }
}
