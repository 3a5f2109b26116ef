//! `kubectl exec`: runs a command in a container, over a WebSocket with channels.

pub mod channels;
pub mod detach;
pub mod terminal;

use super::pods;
use crate::error::{Error, Result, text};
use crate::flags::{FileFlags, SessionFlags};
use crate::kube::Kube;
use crate::resource::scheme;
use client::Query;
use http::Method;
use meta::Object;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// POD, or TYPE/NAME of a workload.
    pub target: Vec<String>,
    /// Command and its arguments.
    #[arg(last = true)]
    pub command: Vec<String>,
    /// File with the pod or workload.
    #[arg(short = 'f', long, value_delimiter = ',')]
    pub filename: Vec<String>,
    #[command(flatten)]
    pub session: SessionFlags,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    k.scheme = Some(scheme::KUBECTL);
    if a.target.is_empty() && a.filename.is_empty() {
        return text("pod, type/name or --filename must be specified");
    }
    if a.command.is_empty() {
        if a.target.len() > 1 || !a.filename.is_empty() {
            return text(
                "exec [POD] [COMMAND] is not supported anymore. Use exec [POD] -- [COMMAND] instead\nSee 'kubectl exec -h' for help and examples",
            );
        }
        return text("you must specify at least one command for the container");
    }
    let files = FileFlags { filename: a.filename.clone(), ..FileFlags::default() };
    crate::flags::running_timeout(&a.session.pod_running_timeout, "exec")?;
    let pod = pods::find_pod(k, &a.target, &files, &a.session.pod_running_timeout).await?;
    let o = pod.object.clone().unwrap_or_default();
    if matches!(o.str_at(&["status", "phase"]), Some("Succeeded" | "Failed")) {
        let phase = o.str_at(&["status", "phase"]).unwrap_or_default();
        return text(format!("cannot exec into a container in a completed pod; current phase is {phase}"));
    }
    let container = pods::container(k, &o, &a.session.container, a.session.quiet)?;
    let tty = terminal::set_up(k, a.session.tty && a.session.stdin, a.session.quiet);
    let mut q = Query::default();
    a.command.iter().for_each(|c| q.add_item("command", c));
    q.add("container", &container);
    stream(k, &pod, &o, "exec", q, SessionStreams { stdin: a.session.stdin, tty, detach: None }).await
}

/// The streams of a session besides output.
#[derive(Clone, Debug)]
pub struct SessionStreams {
    pub stdin: bool,
    pub tty: bool,
    /// Keys that detach from the session.
    pub detach: Option<detach::Detach>,
}

/// Runs `exec` or `attach` to its end. A failing command sets the exit code of kubectl.
pub async fn stream(
    k: &mut Kube,
    pod: &crate::resource::Info,
    o: &Object,
    sub: &str,
    mut q: Query,
    w: SessionStreams,
) -> Result {
    let flag = |on: bool| if on { "true" } else { "" };
    q.add("stdin", flag(w.stdin));
    q.add("stdout", "true");
    q.add("stderr", flag(!w.tty));
    q.add("tty", flag(w.tty));
    let api = k.api(&pod.resource, o.namespace()).await?;
    let request = api.subresource_request(Method::GET, &pod.name, sub, &q)?;
    k.out.flush();
    let raw = if w.tty {
        Some(terminal::Raw::enter().map_err(|e| Error::Text(format!("preparing the terminal: {e}")))?)
    } else {
        None
    };
    let done = channels::run(k, request, w).await;
    drop(raw);
    match done? {
        0 => Ok(()),
        code => {
            let why = format!("command terminated with exit code {code}");
            Err(Error::Code { code, error: Box::new(Error::Bare(why)) })
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, run_with, snapshot};
    use futures::{SinkExt, StreamExt};
    use serde_json::json;
    use tokio_tungstenite::tungstenite::Message;

    fn server() -> Server {
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "namespace": "default"}, "spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Running"}});
        Server::new().on("GET /api/v1/namespaces/default/pods/a", 200, pod)
    }

    fn frame(channel: u8, text: &str) -> Message {
        Message::Binary([&[channel], text.as_bytes()].concat().into())
    }

    #[tokio::test]
    async fn returns_output_errors_and_exit_code() {
        let s = server().on_upgrade(|mut ws| {
            Box::pin(async move {
                ws.send(frame(1, "out\n")).await.unwrap();
                ws.send(frame(2, "err\n")).await.unwrap();
                let status = json!({"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}});
                ws.send(frame(3, &status.to_string())).await.unwrap();
                ws.close(None).await.unwrap();
            })
        });
        let (code, out, err) = run_with(&s, &["exec", "a", "--", "sh", "-c", "exit 3"], "").await;
        assert_eq!((code, out.as_str()), (3, "out\n"));
        assert_eq!(err, "err\ncommand terminated with exit code 3\n");
        assert_eq!(
            s.requests().last().unwrap(),
            "GET /api/v1/namespaces/default/pods/a/exec?command=sh&command=-c&command=exit%203&container=c&stderr=true&stdout=true"
        );
    }

    #[tokio::test]
    async fn passes_empty_arguments() {
        let s = server().on_upgrade(|mut ws| {
            Box::pin(async move {
                ws.send(frame(3, "{\"status\":\"Success\"}")).await.unwrap();
                ws.close(None).await.unwrap();
            })
        });
        let (code, _, err) = run_with(&s, &["exec", "a", "--", "printf", "[%s]", "", "x", ""], "").await;
        assert_eq!((code, err.as_str()), (0, ""));
        assert_eq!(
            s.requests().last().unwrap(),
            "GET /api/v1/namespaces/default/pods/a/exec?command=printf&command=%5B%25s%5D&command=&command=x&command=&container=c&stderr=true&stdout=true"
        );
    }

    #[tokio::test]
    async fn sends_input_and_its_end() {
        let s = server().on_upgrade(|mut ws| {
            Box::pin(async move {
                let mut input = Vec::new();
                while let Some(Ok(m)) = ws.next().await {
                    let data = m.into_data();
                    match data.first() {
                        Some(0) => input.extend_from_slice(&data[1..]),
                        Some(255) => break,
                        _ => {}
                    }
                }
                let text = String::from_utf8(input).unwrap();
                ws.send(frame(1, &text.to_uppercase())).await.unwrap();
                ws.send(frame(3, "{\"status\":\"Success\"}")).await.unwrap();
                ws.close(None).await.unwrap();
            })
        });
        assert_eq!(run_with(&s, &["exec", "-i", "a", "--", "cat"], "hello").await, (0, "HELLO".into(), String::new()));
    }

    /// The file names the pod or workload; the containers are those on the server.
    #[tokio::test]
    async fn runs_in_the_pod_of_a_file() {
        let pods = "GET /api/v1/namespaces/default/pods";
        let s = server().on_upgrade(|mut ws| {
            Box::pin(async move {
                ws.send(frame(1, "out\n")).await.unwrap();
                ws.send(frame(3, "{\"status\":\"Success\"}")).await.unwrap();
                ws.close(None).await.unwrap();
            })
        });
        let listed = json!({"items": [{"metadata": {"name": "a", "namespace": "default"}, "spec": {"nodeName": "n"}}]});
        let s = s.on(&format!("{pods}?labelSelector=app%3Da&limit=500"), 200, listed);
        let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n";
        let deployment =
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {selector: {matchLabels: {app: a}}}\n";
        let two = format!("{pod}---\n{deployment}");
        let many = "! error: cannot exec into multiple objects at a time\nexit 1\n";
        for (line, file, expected) in [
            ("exec -f - -- ls", pod, "out\n"),
            ("exec -f - -- ls", deployment, "out\n"),
            ("exec -f - -- ls", &two, many),
            ("exec -f - -- ls", "", many),
            ("exec -f - -c x -- ls", pod, "! error: container x is not valid for pod a out of: c\nexit 1\n"),
            (
                "exec a -f - -- ls",
                pod,
                "! error: resource/name arguments cannot be provided when a path is specified\nexit 1\n",
            ),
        ] {
            assert_eq!(snapshot(&s, line, file).await, expected, "{line}\n{file}");
        }
        let session = format!("{pods}/a/exec?command=ls&container=c&stderr=true&stdout=true");
        assert_eq!(s.requests().iter().filter(|l| **l == session).count(), 2);
    }

    /// Of a `Status` the message is printed, another body unchanged.
    #[tokio::test]
    async fn refused_upgrade_prints_the_body() {
        let session = "GET /api/v1/namespaces/default/pods/a/exec?command=ls&container=c&stderr=true&stdout=true";
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "BadRequest", "code": 400, "message": "no"});
        for (code, body, expected) in [
            (
                500,
                "container not found (\"c\")\n",
                "! error: unable to upgrade connection: container not found (\"c\")\nexit 1\n",
            ),
            (404, "gone", "! error: unable to upgrade connection: gone\nexit 1\n"),
            (400, &status.to_string(), "! error: unable to upgrade connection: no\nexit 1\n"),
            (400, " ", "! error: unable to upgrade connection: empty server response\nexit 1\n"),
        ] {
            let s = server().on_bytes(session, code, body.into());
            assert_eq!(snapshot(&s, "exec a -- ls", "").await, expected, "{body}");
        }
    }

    #[tokio::test]
    async fn rejects_invalid_targets() {
        let s = server();
        for (line, expected) in [
            ("exec a", "! error: you must specify at least one command for the container\nexit 1\n"),
            (
                "exec a ls",
                "! error: exec [POD] [COMMAND] is not supported anymore. Use exec [POD] -- [COMMAND] instead\n! See 'kubectl exec -h' for help and examples\nexit 1\n",
            ),
            ("exec a -c x -- ls", "! error: container x is not valid for pod a out of: c\nexit 1\n"),
            ("exec b -- ls", "! Error from server (NotFound): pods \"b\" not found\nexit 1\n"),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }
}
