//! The filters of a request ([`crate::handle`] has their order), and its dispatch to what answers it.

use crate::answer::{failure, failure_in, method_not_allowed};
use crate::authenticate::Peer;
use crate::body::Body;
use crate::call::Call;
use crate::content::{self, Negotiated, Offer, Shape};
use crate::ids::AUDIT_ID;
use crate::info::{RequestInfo, is_stream};
use crate::listen::Connection;
use crate::metrics::Authentication;
use crate::path::Target;
use crate::request_body::{ChargedBody, RequestBody, head_size, room_for_head};
use crate::trace::Trace;
use crate::{Server, audit, compress, flow, inflight, placement, table};
use auth::{Attributes, User};
use http::request::Parts;
use http::{HeaderValue, Request, Response};
use meta::Status;
use registry::{Resource, Warnings};
use std::sync::Arc;
use tokio::time::Instant;

/// A request on its way through the filters. Each filter adds what later ones need.
pub(crate) struct Exchange {
    pub parts: Parts,
    pub info: RequestInfo,
    pub negotiated: Result<Negotiated, Status>,
    pub trace: Arc<Trace>,
    body: RequestBody,
    /// Bytes of the request line and headers.
    head: usize,
    large_head: Option<crate::budget::Share>,
    user: User,
    /// An error is returned after authorization.
    read: Result<ChargedBody, Status>,
    attributes: Arc<Attributes>,
    /// Held until the response is complete.
    in_flight: Option<inflight::Pass>,
    seat: Option<flow::Executing>,
}

/// Why a filter does not let a request pass.
pub(crate) enum Refusal {
    /// An error, in the negotiated encoding.
    Status(Status),
    /// A response as it is.
    Response(Response<Body>),
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl Exchange {
    pub fn new(server: &Server, request: Request<RequestBody>) -> Self {
        let (parts, body) = request.into_parts();
        let info = RequestInfo::parse(&parts);
        let mut negotiated = Negotiated::negotiate(&parts.headers, server.options.cbor);
        if let (Ok(n), true) = (&mut negotiated, info.query.has("pretty")) {
            n.pretty = info.query.is_true("pretty");
        }
        Self {
            head: head_size(&parts),
            trace: Trace::begin(server.ids.audit_id(&parts)),
            parts,
            info,
            negotiated,
            body,
            large_head: None,
            user: User::default(),
            read: Ok(Default::default()),
            attributes: Arc::default(),
            in_flight: None,
            seat: None,
        }
    }
}

/// What the filters around a response keep of the request.
pub(crate) struct Outer {
    /// Errors use the negotiated encoding, but always the shape of an object.
    pub error_format: Negotiated,
    trace: Arc<Trace>,
    /// The size from which the response is compressed; none if the client does not accept that.
    compressed: Option<usize>,
    verb: &'static str,
    is_resource: bool,
    long_running: bool,
}

impl Outer {
    pub fn new(x: &Exchange) -> Self {
        let json = Negotiated::json();
        Self {
            error_format: x.negotiated.as_ref().map_or(json, |n| Negotiated { shape: Shape::Object, ..*n }),
            trace: x.trace.clone(),
            compressed: compress::threshold(&x.parts.method, x.parts.uri.path(), &x.parts.headers),
            verb: x.info.verb,
            is_resource: x.info.target.is_resource(),
            long_running: x.info.long_running,
        }
    }

    pub fn compress(&self, response: Response<Body>) -> Response<Body> {
        match self.compressed {
            Some(threshold) => compress::compress(response, threshold),
            None => response,
        }
    }

    /// Adds the flow schema and the priority level of the request, and its identifier in the audit log.
    pub fn add_headers(&self, response: &mut Response<Body>) {
        if let Some([schema, level]) = self.trace.flow.get() {
            response.headers_mut().insert(flow::SCHEMA, schema.clone());
            response.headers_mut().insert(flow::LEVEL, level.clone());
        }
        if let Ok(id) = HeaderValue::from_str(&self.trace.id) {
            response.headers_mut().entry(AUDIT_ID).or_insert(id);
        }
    }

    /// Records the response in metrics.
    pub fn measure(&self, response: &mut Response<Body>) {
        self.trace.answered(response, self.long_running);
    }

    /// Delivers audit events that have to be stored before the response.
    pub async fn settle_audit(&self) {
        if let Some(record) = self.trace.audit.get().filter(|r| r.is_due()) {
            Box::pin(record.settle()).await;
        }
    }
}

impl Server {
    /// Reserves memory for large headers, which are held until the user is known.
    pub(crate) async fn limit_head(&self, x: &mut Exchange) -> Result<(), Refusal> {
        x.large_head = room_for_head(&self.heads, &x.parts, x.head).await?;
        Ok(())
    }

    pub(crate) async fn authenticate(&self, x: &mut Exchange) -> Result<(), Refusal> {
        let begun = Instant::now();
        let user = self.authenticators.authenticate(&mut x.parts).await;
        let result = match &user {
            Ok(_) => Authentication::Success,
            Err(s) if s.code == 401 => Authentication::Failure,
            Err(_) => Authentication::Error,
        };
        if let Some(expires) = x.parts.extensions.get::<Peer>().and_then(|p| p.expires).filter(|_| user.is_ok()) {
            self.metrics.certified(expires - self.registry.clock.now().as_second());
        }
        if let (Ok(u), Some(connection)) = (&user, x.parts.extensions.get::<Arc<Connection>>())
            && u.name != auth::user::ANONYMOUS
        {
            connection.became_known(&u.name);
        }
        self.metrics.authenticated(result, user.as_ref().ok().map(|u| u.name.as_str()), begun.elapsed());
        if let (Err(_), Some(auditor)) = (&user, &self.auditor) {
            let anonymous = x.info.attributes(&User::default(), &x.parts);
            Box::pin(auditor.unauthenticated(&x.trace.id, &x.parts, &anonymous)).await;
        }
        match user {
            Ok(user) => x.user = user,
            Err(status) => {
                x.take_body().discard(x.head).await;
                return Err(status.into());
            }
        }
        x.large_head = None;
        Ok(())
    }

    /// Starts the audit of a request. Fails if its first event has to be stored and cannot be.
    pub(crate) async fn audit_request(&self, x: &mut Exchange) -> Result<(), Refusal> {
        let Some(auditor) = &self.auditor else { return Ok(()) };
        let attributes = x.info.attributes(&x.user, &x.parts);
        if let Some(record) = auditor.begin(&x.trace.id, &x.parts, &attributes) {
            record.received();
            let _ = x.trace.audit.set(record);
        }
        if let Some(record) = x.trace.audit.get().filter(|r| r.is_due())
            && !Box::pin(record.settle()).await
        {
            let why = "failed to store audit event";
            return Err(Status::internal(format!("Internal Server Error: {:?}: {why}", x.parts.uri.path())).into());
        }
        Ok(())
    }

    /// Reads the body before the request waits for a seat: a slow sender must not occupy one.
    pub(crate) async fn read_body(&self, x: &mut Exchange) -> Result<(), Refusal> {
        x.read = x.take_body().read(&self.bodies, &x.user.name, x.head).await;
        if let (Ok((bytes, _)), Some(record)) = (&x.read, x.trace.audit.get().filter(|_| x.info.target.is_resource())) {
            let _turn = self.workers.turn(&x.user.name, bytes.len()).await?;
            record.request(x.info.verb, content::media_type(&x.parts.headers), bytes);
        }
        Ok(())
    }

    pub(crate) async fn impersonate_user(&self, x: &mut Exchange) -> Result<(), Refusal> {
        let caller = std::mem::take(&mut x.user);
        x.user = self.impersonate(caller, &mut x.parts, &x.info, &x.trace).await?;
        Ok(())
    }

    /// Limits concurrent requests, where priority and fairness is off.
    pub(crate) fn limit_in_flight(&self, x: &mut Exchange) -> Result<(), Refusal> {
        if x.info.long_running {
            return Ok(());
        }
        let limit = if x.info.mutates() { &self.mutating } else { &self.reading };
        x.in_flight = limit.enter(x.user.is_in(auth::user::GROUP_MASTERS));
        match x.in_flight {
            Some(_) => Ok(()),
            None => Err(self.refuse_excess(x, 1)),
        }
    }

    /// Waits for a seat of the request's priority level.
    pub(crate) async fn take_seat(&self, x: &mut Exchange) -> Result<(), Refusal> {
        match self.flow.enter(self, &x.user, &x.info, &x.parts, &x.trace).await {
            Ok(seat) => x.seat = seat,
            Err(retry_after) => return Err(self.refuse_excess(x, retry_after)),
        }
        Ok(())
    }

    pub(crate) async fn authorize_request(&self, x: &mut Exchange) -> Result<(), Refusal> {
        x.attributes = Arc::new(x.info.attributes(&x.user, &x.parts));
        Ok(self.authorize(&x.attributes, &x.trace).await?)
    }

    /// Where other servers write to the same store, waits for what they had written when the request came. Writes see it always,
    /// reads according to their resource version.
    pub(crate) async fn refresh_state(&self, x: &Exchange) -> Result<(), Refusal> {
        if x.info.target.is_resource() {
            let requested = if x.info.mutates() { "" } else { x.info.query.get("resourceVersion") };
            self.registry.refresh(requested).await?;
        }
        Ok(())
    }

    /// Selects the series of metrics in which the request counts.
    pub(crate) fn select_series(&self, x: &Exchange) {
        let series = match self.row(&x.info.target) {
            Ok(row) => {
                Some(self.metrics.requests.of_resource(&row, &x.info.target.subresource).request(&x.info, &x.parts))
            }
            Err(_) if !x.info.target.is_resource() => self.metrics.requests.of_path(x.parts.uri.path()),
            Err(_) => None,
        };
        if let Some(s) = series {
            let _ = x.trace.series.set(s);
        }
    }

    /// Records the audit event of the response, whatever the outcome.
    pub(crate) async fn audit_response(&self, outer: &Outer, response: &Response<Body>) {
        if let Some(record) = outer.trace.audit.get() {
            let _turn = self.workers.turn(&record.user, audit::size_of(response)).await.ok();
            record.response(outer.verb, outer.is_resource, response);
        }
    }

    /// The response to a request beyond a limit.
    fn refuse_excess(&self, x: &Exchange, retry_after: u32) -> Refusal {
        self.select_series(x);
        x.trace.terminated(429);
        Refusal::Response(inflight::refusal(retry_after))
    }

    /// Sends a request to what answers it: another API server, a path without a resource, or the verbs of a resource.
    pub(crate) async fn dispatch(self: &Arc<Self>, x: Exchange) -> Result<Response<Body>, Refusal> {
        let Exchange { parts, info, negotiated, trace, user, read, attributes, in_flight, seat, .. } = x;
        let _held = (in_flight, seat);
        let RequestInfo { target, query, verb, is_decision, .. } = info;
        let (body, _room) = read?;
        if is_decision {
            return Ok(self.decision(&target, &attributes, &user).await?);
        }
        if let Some(remote) = self.aggregator.remote(&target, parts.uri.path()) {
            let proxied = self.aggregator.proxy(&self.registry, &remote, parts, body, &user, &trace.id);
            return Ok(Box::pin(proxied).await);
        }
        if target.group_version.is_none() || !target.is_resource() {
            return Ok(self.other(&parts, &target).or_else(|s| self.nowhere(s, parts.uri.path()))?);
        }
        let row = match self.row(&target) {
            Ok(row) => row,
            Err(s) => return Ok(self.nowhere(s, parts.uri.path())?),
        };
        let negotiated = self.narrow(negotiated, &parts, &row, &target, verb)?;
        table::check_include(&negotiated, query.get("includeObject"))?;
        let warnings = Warnings::default();
        // An unsupported method gets no warnings.
        if let Some(w) = row.kind.warning.as_ref().filter(|_| row.kind.has_verb(verb)) {
            warnings.push(w.to_string());
            trace.annotate("k8s.io/deprecated", &true);
        }
        let cbor = self.options.cbor;
        let (warned, trace) = (warnings.clone(), trace.clone());
        let call =
            Call { parts, body, query, target, verb, user, attributes, negotiated, warnings: warned, trace, cbor };
        let answer = placement::execute(self, call, row).await;
        Ok(with_warnings(answer, &warnings, &negotiated)?)
    }

    /// The negotiated representation that a resource has. A later clause of the request may be acceptable where the first one is not.
    fn narrow(
        &self,
        negotiated: Result<Negotiated, Status>,
        parts: &Parts,
        row: &Resource,
        target: &Target,
        verb: &str,
    ) -> Result<Negotiated, Refusal> {
        // Create-only resources have no tables, and custom resources no protobuf encoding.
        let tables = row.kind.is_read(&target.subresource);
        let offer = Offer { cbor: self.options.cbor, messages: row.bare_items, tables, metadata: true };
        if row.bare_items && row.kind.has_verb(verb) && !is_stream(&target.subresource) {
            content::check_route(&parts.headers, &content::routed(self.options.cbor, target.name.is_empty()))
                .map_err(|s| Refusal::Response(failure(&s)))?;
        }
        match negotiated {
            // A stream negotiates for itself.
            Err(_) if is_stream(&target.subresource) => Ok(Negotiated::json()),
            Ok(n) if offer.has(n.encoding, n.shape) => Ok(n),
            Ok(n) => match Negotiated::negotiate_offer(&parts.headers, &offer) {
                Ok(other) => Ok(Negotiated { pretty: n.pretty, ..other }),
                // An unsupported verb is reported before a representation that is not acceptable.
                Err(_) if target.subresource.is_empty() && !row.kind.has_verb(verb) => Err(method_not_allowed().into()),
                Err(s) => Err(Refusal::Response(failure(&s))),
            },
            Err(s) => Err(s.into()),
        }
    }

    /// The resource of a path. Fails for an unknown one, and for paths that it does not have.
    pub(crate) fn row(&self, target: &Target) -> Result<Arc<Resource>, Status> {
        let gvr = match &target.group_version {
            Some(gv) => gv.with_resource(target.resource.clone()),
            None => return Err(Status::no_such_path()),
        };
        let rows = self.registry.rows();
        let row = rows.resource(&gvr).ok_or_else(Status::no_such_path)?;
        if target.odd || (!row.kind.namespaced && !target.namespace.is_empty()) {
            return Err(Status::no_such_path());
        }
        let known = target.subresource.is_empty() || row.kind.subresource(&target.subresource).is_some();
        if row.bare_items && (target.too_long || !known) {
            return Err(Status::no_such_path());
        }
        // An object without a name has no subresources.
        if target.name.is_empty() && !target.subresource.is_empty() {
            return Err(Status::no_such_path());
        }
        // Create-only resources have no path for an object.
        let kept = row.stored().is_some() || row.kind.has_verb("get");
        if !target.name.is_empty() && target.subresource.is_empty() && !kept {
            return Err(Status::no_such_path());
        }
        Ok(row.clone())
    }
}

impl Exchange {
    fn take_body(&mut self) -> RequestBody {
        std::mem::replace(&mut self.body, RequestBody::Whole(bytes::Bytes::new()))
    }
}

/// Adds warnings to a response, also to one that is an error.
fn with_warnings(
    answer: Result<Response<Body>, Status>,
    warnings: &Warnings,
    negotiated: &Negotiated,
) -> Result<Response<Body>, Status> {
    let warnings = warnings.take();
    if warnings.is_empty() {
        return answer;
    }
    let mut answer = answer.unwrap_or_else(|s| failure_in(negotiated, &s));
    for w in warnings {
        let text = w.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ");
        if let Ok(v) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            answer.headers_mut().append("warning", v);
        }
    }
    Ok(answer)
}
