//! `/healthz`: health checks of the agent (`k8s.io/apiserver/pkg/server/healthz`), on the kubelet's API and, for programs of the machine, on a
//! port of its own without TLS, which only says whether the process answers.

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

use http::{Response, StatusCode};
use supervisor::{Shutdown, plain_http};
use tokio::net::TcpListener;

use super::{Body, Error, Query, text};
use crate::counts::Known;

/// The maximum age of the last iteration of the agent's loop, which runs every ten seconds.
const LATE: Duration = Duration::from_secs(2 * 60);
const CHECKS: [&str; 3] = ["ping", "log", "syncloop"];

fn check(known: &Known, name: &str) -> Result<(), &'static str> {
    let late = name == "syncloop" && known.since_beat().is_some_and(|s| s > LATE);
    known.checked(name, !late);
    if late { Err("sync Loop took longer than expected") } else { Ok(()) }
}

/// Runs all checks without those that the query excludes.
pub(super) fn check_all(known: &Known, query: &Query) -> Response<Body> {
    let excluded = query.get_all("exclude");
    let (mut report, mut failed) = (String::new(), false);
    for name in CHECKS {
        let _ = match check(known, name) {
            _ if excluded.iter().any(|e| e == name) => writeln!(report, "[+]{name} excluded: ok"),
            Ok(()) => writeln!(report, "[+]{name} ok"),
            Err(_) => {
                failed = true;
                writeln!(report, "[-]{name} failed: reason withheld")
            }
        };
    }
    if failed {
        return text(StatusCode::INTERNAL_SERVER_ERROR, report + "healthz check failed\n");
    }
    let verbose = query.get("verbose").is_some();
    text(StatusCode::OK, if verbose { report + "healthz check passed\n" } else { "ok".into() })
}

/// Runs the check `name`.
pub(super) fn check_one(known: &Known, name: &str) -> Result<Response<Body>, Error> {
    if !CHECKS.contains(&name) {
        return Err(Error::NotFound("404 page not found\n".into()));
    }
    check(known, name).map_err(|why| Error::Internal(format!("internal server error: {why}\n")))?;
    Ok(text(StatusCode::OK, "ok".into()))
}

/// Serves `healthzPort` until shutdown. A port that is taken is logged as an error and tried again, as upstream.
pub async fn run_healthz(address: SocketAddr, shutdown: Shutdown) {
    let answer = |path: &str, query: &str| {
        let is_verbose = query.split('&').any(|q| q == "verbose" || q.starts_with("verbose="));
        match path {
            "/healthz" if is_verbose => plain_http::Response::plain(200, "[+]ping ok\nhealthz check passed\n".into()),
            "/healthz" | "/healthz/ping" => plain_http::Response::plain(200, "ok".into()),
            _ => plain_http::Response::not_found(),
        }
    };
    let serve = async {
        let what = format!("{address} for health checks of the kubelet (healthzPort)");
        plain_http::serve(plain_http::opened(&what, || TcpListener::bind(address)).await, answer).await;
    };
    shutdown.race(serve).await;
}
