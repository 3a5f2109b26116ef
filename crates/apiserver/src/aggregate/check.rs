//! Checks the availability of an APIService's server (`remote_available_controller.go`).

use super::{Aggregator, Remote, Unreached, identity};
use crate::services::Services;
use auth::User;
use bytes::Bytes;
use client::Transport;
use futures::future::select_ok;
use http::{HeaderValue, Request, header};
use http_body_util::{BodyExt, Limited};
use registry::Registry;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);
/// Number of attempts, each to a random endpoint of the service.
const ATTEMPTS: usize = 5;
/// Maximum size of a document.
const MAX_DOCUMENT: usize = 16 * 1024 * 1024;

/// A condition: status, reason, message.
pub(super) type Availability = (&'static str, &'static str, String);

/// The user of the server's own requests.
fn own_user() -> User {
    User { name: "system:kube-aggregator".into(), groups: vec![auth::user::GROUP_MASTERS.into()], ..User::default() }
}

/// What can be determined without calling the server.
fn service(services: &Services, registry: &Registry, r: &Remote) -> Result<(), Availability> {
    let (name, ns) = (&r.service, &r.namespace);
    let snapshot = registry.store.snapshot();
    let no = |reason, message| Err(("False", reason, message));
    let Some(service) = services.service(&snapshot, ns, name) else {
        return no("ServiceNotFound", format!("service/{name} in {ns:?} is not present"));
    };
    if !matches!(&*service.kind, "" | "ClusterIP") {
        return Ok(());
    }
    let Some(port) = service.port(r.port) else {
        let port = r.port;
        return no("ServicePortError", format!("service/{name} in {ns:?} is not listening on port {port}"));
    };
    let mut slices = services.slices(&snapshot, ns, name).peekable();
    if slices.peek().is_none() {
        return no("EndpointsNotFound", format!("cannot find endpointslices for service/{name} in {ns:?}"));
    }
    if !slices.any(|s| s.has_ready && s.has_port(port)) {
        let why = format!("endpointslices for service/{name} in {ns:?} have no addresses with port name {port:?}");
        return no("MissingEndpoints", why);
    }
    Ok(())
}

/// Requests the discovery of the version. One available endpoint of the service suffices. None: no request is
/// possible, and the previous condition stays.
pub(super) async fn available(aggregator: &Aggregator, registry: &Registry, r: &Remote) -> Option<Availability> {
    if let Err(verdict) = service(&aggregator.services, registry, r) {
        return Some(verdict);
    }
    if let Err(Unreached::Transport(why)) = aggregator.client(registry, r) {
        tracing::warn!("the API service {}: {why}", r.name);
        return None;
    }
    let path = format!("/apis/{}/{}", r.group_version.group, r.group_version.version);
    let request = || get(aggregator, registry, r, &path, "application/json");
    let mut answer = request().await;
    if answer.is_err() {
        let others = (1..ATTEMPTS).map(|_| Box::pin(request()));
        answer = select_ok(others).await.map(|(document, _)| document);
    }
    Some(match answer {
        Ok(_) => ("True", "Passed", "all checks passed".into()),
        Err(why) => ("False", "FailedDiscoveryCheck", why),
    })
}

/// Fetches a document of the server: its media type and body.
pub(super) async fn get(
    aggregator: &Aggregator,
    registry: &Registry,
    r: &Remote,
    path: &str,
    accept: &str,
) -> Result<(String, Bytes), String> {
    let (address, client) = aggregator.client(registry, r).map_err(|e| e.to_string())?;
    let url = format!("https://{address}{path}");
    let failed = |why: &dyn std::fmt::Display| format!("failing or missing response from {url}: {why}");
    let mut request = Request::get(path).body(Bytes::new()).map_err(|e| failed(&e))?;
    for (k, v) in identity(&own_user()).map_err(|e| failed(&e))? {
        request.headers_mut().append(k, v);
    }
    request.headers_mut().insert(header::ACCEPT, HeaderValue::from_str(accept).map_err(|e| failed(&e))?);
    let exchange = async {
        let answer = client.send(request).await.map_err(|e| failed(&format!("Get {url:?}: {e}")))?;
        if !answer.status().is_success() {
            return Err(failed(&format!("bad status from {url}: {}", answer.status().as_u16())));
        }
        let media =
            answer.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
        let body = Limited::new(answer.into_body(), MAX_DOCUMENT).collect().await.map_err(|e| failed(&e))?;
        Ok((media, body.to_bytes()))
    };
    tokio::time::timeout(PATIENCE, exchange).await.map_err(|_| format!("timed out waiting for {url}"))?
}
