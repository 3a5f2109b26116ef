//! `kubectl logs`: prints the logs of containers.

use super::pods;
use crate::error::{Error, Result, text};
use crate::flags::{duration, parse_duration, running_timeout};
use crate::kube::Kube;
use crate::resource::Info;
use crate::resource::scheme;
use crate::shell::Stream;
use bytes::{Bytes, BytesMut};
use client::{Client, Query};
use futures::stream::{FuturesUnordered, StreamExt as _};
use http::{Method, Request};
use http_body_util::BodyExt as _;
use meta::Object;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// POD, or TYPE/NAME of a workload; then optionally the container.
    pub target: Vec<String>,
    /// Container name.
    #[arg(short = 'c', long, default_value = "", hide_default_value = true)]
    pub container: String,
    /// Follow the log.
    #[arg(short = 'f', long)]
    pub follow: bool,
    /// Print the log of the container before its last restart.
    #[arg(short = 'p', long)]
    pub previous: bool,
    /// Print the logs of the pods with these labels.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Print the logs of all containers of the pod.
    #[arg(long)]
    pub all_containers: bool,
    /// Print the logs of all pods of the target.
    #[arg(long)]
    pub all_pods: bool,
    /// Only lines newer than a duration: 5s, 2m, 3h.
    #[arg(long, default_value = "0s", hide_default_value = true, value_parser = crate::flags::duration_text)]
    pub since: String,
    /// Only lines newer than a time (RFC 3339).
    #[arg(long, default_value = "", hide_default_value = true)]
    pub since_time: String,
    /// Number of last lines to print; -1 is all, and with a selector 10.
    #[arg(long, default_value = "-1", hide_default_value = true)]
    pub tail: i64,
    /// Maximum number of bytes to print.
    #[arg(long, default_value = "0", hide_default_value = true)]
    pub limit_bytes: i64,
    /// Print the time before each line.
    #[arg(long)]
    pub timestamps: bool,
    /// Print pod and container before each line.
    #[arg(long)]
    pub prefix: bool,
    /// With a selector and -f, the maximum number of streams.
    #[arg(long, default_value = "5", hide_default_value = true)]
    pub max_log_requests: usize,
    /// With -f, continue with the other streams when one fails.
    #[arg(long)]
    pub ignore_errors: bool,
    /// Time limit until the target has a pod.
    #[arg(long, default_value = "20s", hide_default_value = true, value_parser = crate::flags::duration_text)]
    pub pod_running_timeout: String,
    /// Do not verify the certificate of the node. Anybody between server and node can read and change the log.
    #[arg(long)]
    pub insecure_skip_tls_verify_backend: bool,
}

pub async fn run(mut a: Arguments, k: &mut Kube) -> Result {
    k.scheme = Some(scheme::KUBECTL);
    if a.target.is_empty() && a.selector.is_empty() {
        return text(
            "expected 'logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]'.\nPOD or TYPE/NAME is a required argument for the logs command\nSee 'kubectl logs -h' for help and examples",
        );
    }
    if !a.target.is_empty() && !a.selector.is_empty() {
        return text("only a selector (-l) or a POD name is allowed\nSee 'kubectl logs -h' for help and examples");
    }
    if a.target.len() == 2 {
        if !a.container.is_empty() {
            return text("only one of -c or an inline [CONTAINER] arg is allowed");
        }
        a.container = a.target.pop().unwrap_or_default();
    }
    if a.target.len() > 1 {
        return text(
            "expected 'logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]'.\nPOD or TYPE/NAME is a required argument for the logs command\nSee 'kubectl logs -h' for help and examples",
        );
    }
    if a.all_containers && !a.container.is_empty() {
        return text("--all-containers=true should not be specified with container name ".to_owned() + &a.container);
    }
    if a.limit_bytes < 0 {
        return text("--limit-bytes must be greater than 0");
    }
    if a.tail < -1 {
        return text("--tail must be greater than or equal to -1");
    }
    if a.tail == -1 && !a.selector.is_empty() {
        a.tail = 10;
    }
    running_timeout(&a.pod_running_timeout, "")?;
    let query = query(&a)?;
    let found = if a.selector.is_empty() {
        let info = pods::target(k, &a.target).await?;
        let mut found = match pods::find(k, &info, pods::Purpose::Logs, &a.pod_running_timeout).await {
            Err(e) if e.is_not_found() => {
                let suffix = format!(" in namespace {:?}", info.namespace);
                return text(format!("error from server (NotFound): {e}{suffix}"));
            }
            other => other?,
        };
        if !a.all_pods {
            if found.len() > 1
                && let Some(first) = found.first()
            {
                k.warn(format!("Found {} pods, using pod/{}", found.len(), first.name));
            }
            found.truncate(1);
        } else {
            a.prefix = true;
        }
        found
    } else {
        let (namespace, _) = k.namespace()?;
        pods::by_labels(k, &namespace, &a.selector).await?
    };
    let mut streams = Vec::new();
    for p in &found {
        for c in containers(k, &a, p)? {
            let mut q = query.clone();
            q.add("container", &c);
            let api = k.api(&p.resource, &p.namespace).await?;
            let request = api.subresource_request(Method::GET, &p.name, "log", &q)?;
            let prefix = if a.prefix { format!("[pod/{}/{c}] ", p.name) } else { String::new() };
            streams.push((request, prefix));
        }
    }
    if streams.is_empty() {
        let (namespace, _) = k.namespace()?;
        k.warn(format!("No resources found in {namespace} namespace."));
        return Ok(());
    }
    let client = k.client().await?;
    if !a.follow {
        for (request, prefix) in streams {
            copy(client.clone(), request, prefix, k.out.clone()).await?;
        }
        return Ok(());
    }
    // As in upstream, the limit only concerns several streams.
    if streams.len() > 1 && streams.len() > a.max_log_requests {
        return text(format!(
            "you are attempting to follow {} log streams, but maximum allowed concurrency is {}, use --max-log-requests to increase the limit",
            streams.len(),
            a.max_log_requests
        ));
    }
    let mut running: FuturesUnordered<_> =
        streams.into_iter().map(|(r, p)| copy(client.clone(), r, p, k.out.clone())).collect();
    crate::shell::interruptible(async {
        while let Some(done) = running.next().await {
            match done {
                Err(e) if a.ignore_errors => k.warn(e.report().trim_end()),
                other => other?,
            }
        }
        Ok(())
    })
    .await
}

fn containers(k: &Kube, a: &Arguments, p: &Info) -> Result<Vec<String>> {
    let none = Object::default();
    let pod = p.object.as_ref().unwrap_or(&none);
    if a.all_containers {
        let all =
            ["initContainers", "containers", "ephemeralContainers"].iter().flat_map(|field| pods::names(pod, field));
        return Ok(all.map(str::to_owned).collect());
    }
    Ok(vec![pods::container(k, pod, &a.container, false)?])
}

fn query(a: &Arguments) -> Result<Query> {
    let mut q = Query::default();
    let mut flag = |name: &str, on: bool| q.add(name, if on { "true" } else { "" });
    flag("insecureSkipTLSVerifyBackend", a.insecure_skip_tls_verify_backend);
    flag("follow", a.follow);
    flag("previous", a.previous);
    flag("timestamps", a.timestamps);
    let since = duration("since", &a.since)?.unwrap_or_default();
    if !since.is_zero() && !a.since_time.is_empty() {
        return text("at most one of `sinceTime` or `sinceSeconds` may be specified");
    }
    if parse_duration(&a.since).is_none() {
        return text("--since must be greater than 0");
    }
    if !since.is_zero() {
        q.add("sinceSeconds", &since.as_secs().max(1).to_string());
    }
    if !a.since_time.is_empty() {
        if meta::time::parse(&a.since_time).is_none() {
            return text(time_error(&a.since_time));
        }
        q.add("sinceTime", &a.since_time);
    }
    if a.tail >= 0 {
        q.add("tailLines", &a.tail.to_string());
    }
    if a.limit_bytes > 0 {
        q.add("limitBytes", &a.limit_bytes.to_string());
    }
    Ok(q)
}

/// Explains why a text is no RFC 3339 time, as Go's package `time` does.
fn time_error(given: &str) -> String {
    const LAYOUT: &str = "2006-01-02T15:04:05Z07:00";
    let mut rest = given;
    for part in ["2006", "-", "01", "-", "02", "T", "15", ":", "04", ":", "05"] {
        let fits = |c: &str| match part.bytes().all(|b| b.is_ascii_digit()) {
            true => c.bytes().all(|b| b.is_ascii_digit()),
            false => c == part,
        };
        match rest.split_at_checked(part.len()) {
            Some((head, tail)) if fits(head) => rest = tail,
            _ => return format!("parsing time {given:?} as {LAYOUT:?}: cannot parse {rest:?} as {part:?}"),
        }
    }
    let fraction = rest.strip_prefix('.').map(|r| r.trim_start_matches(|c: char| c.is_ascii_digit()));
    format!("parsing time {given:?} as {LAYOUT:?}: cannot parse {:?} as \"Z07:00\"", fraction.unwrap_or(rest))
}

/// Copies one stream; with a prefix, line by line.
async fn copy(client: Client, mut request: Request<Bytes>, prefix: String, out: Stream) -> Result {
    request.headers_mut().insert(http::header::ACCEPT, http::HeaderValue::from_static("*/*"));
    let mut body = client.checked(request).await?.into_body();
    let mut line = BytesMut::new();
    let with_prefix = |l: &[u8]| [prefix.as_bytes(), l].concat();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(Error::from)?.into_data() else { continue };
        if prefix.is_empty() {
            out.write(&data);
        } else {
            line.extend_from_slice(&data);
            while let Some(i) = line.iter().position(|b| *b == b'\n') {
                out.write(&with_prefix(&line.split_to(i + 1)));
            }
        }
        out.flush();
    }
    if !line.is_empty() {
        out.write(&with_prefix(&line));
    }
    out.flush();
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    #[tokio::test]
    async fn prints_logs_of_pods_and_workloads() {
        let pod = |n: &str| json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": n, "namespace": "default"}, "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "c"}, {"name": "d"}]}});
        let other = json!({"metadata": {"name": "e"}, "spec": {"containers": [{"name": "z"}]}});
        let at = |n: &str, q: &str| format!("GET /api/v1/namespaces/default/pods/{n}/log?{q}");
        let s = Server::new()
            .on("GET /api/v1/namespaces/default/pods/a", 200, pod("a"))
            .on(
                "GET /api/v1/namespaces/default/pods?labelSelector=app%3Dx&limit=500",
                200,
                json!({"items": [pod("a"), pod("b")]}),
            )
            .on(
                "GET /apis/apps/v1/namespaces/default/deployments/w",
                200,
                json!({"spec": {"selector": {"matchLabels": {"app": "x"}}}}),
            )
            .on(
                "GET /api/v1/namespaces/default/pods?labelSelector=q%3Dr&limit=500",
                200,
                json!({"items": [pod("a"), other]}),
            )
            .on_bytes(&at("a", "container=c"), 200, b"one\ntwo\n".to_vec())
            .on_bytes(&at("a", "container=i"), 200, b"init\n".to_vec())
            .on_bytes(&at("a", "container=d"), 200, b"no end".to_vec())
            .on_bytes(
                &at("a", "previous=true&timestamps=true&sinceSeconds=90&tailLines=5&container=d"),
                200,
                b"x\n".to_vec(),
            )
            .on_bytes(&at("a", "tailLines=10&container=c"), 200, b"A\n".to_vec())
            .on_bytes(&at("b", "tailLines=10&container=c"), 200, b"B\n".to_vec());
        let output = "! Defaulted container \"c\" out of: c, d, i (init)\n";
        for (line, expected) in [
            ("logs a", format!("one\ntwo\n{output}")),
            ("logs a -c c", "one\ntwo\n".into()),
            ("logs pod/a c --prefix", "[pod/a/c] one\n[pod/a/c] two\n".into()),
            ("logs a --all-containers --prefix", "[pod/a/i] init\n[pod/a/c] one\n[pod/a/c] two\n[pod/a/d] no end".into()),
            ("logs a d -p --timestamps --tail=5 --since=90s", "x\n".into()),
            ("logs -l app=x -c c", "A\nB\n".into()),
            ("logs -l q=r -c c", "! error: container c is not valid for pod e out of: z\nexit 1\n".into()),
            ("logs deploy/w -c c", "one\ntwo\n! Found 2 pods, using pod/a\n".into()),
            ("logs a -c zz", "! error: container zz is not valid for pod a out of: c, d, i (init)\nexit 1\n".into()),
            ("logs nope", "! error: error from server (NotFound): pods \"nope\" not found in namespace \"default\"\nexit 1\n".into()),
            (
                "logs a -l x=y",
                "! error: only a selector (-l) or a POD name is allowed\n! See 'kubectl logs -h' for help and examples\nexit 1\n"
                    .into(),
            ),
            (
                "logs a --since=",
                "! error: invalid argument \"\" for \"--since\" flag: time: invalid duration \"\"\n! See 'kubectl logs --help' for usage.\nexit 1\n".into(),
            ),
            (
                "logs a --tail=",
                "! error: invalid argument \"\" for \"--tail\" flag: strconv.ParseInt: parsing \"\": invalid syntax\n! See 'kubectl logs --help' for usage.\nexit 1\n".into(),
            ),
            (
                "logs a --since-time=bad",
                "! error: parsing time \"bad\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"bad\" as \"2006\"\nexit 1\n".into(),
            ),
            (
                "logs a --since-time=2026-01-02",
                "! error: parsing time \"2026-01-02\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"\" as \"T\"\nexit 1\n".into(),
            ),
            ("logs a -c c --limit-bytes=-1", "! error: --limit-bytes must be greater than 0\nexit 1\n".into()),
            ("logs -l app=x -f --max-log-requests 1 -c c", "! error: you are attempting to follow 2 log streams, but maximum allowed concurrency is 1, use --max-log-requests to increase the limit\nexit 1\n".into()),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }
}
