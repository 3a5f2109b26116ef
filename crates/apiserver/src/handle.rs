//! The filter stack of every request.

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
use crate::request_body::{RequestBody, head_size, room_for_head};
use crate::trace::Trace;
use crate::{Server, audit, compress, deadline, flow, inflight, lifecycle, placement, table};
use auth::User;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use meta::Status;
use registry::{Resource, Warnings};
use std::pin::Pin;
use std::sync::Arc;
use tokio::time::Instant;

impl Server {
    /// Handles a request. Every error becomes a `Status`. Boxed, so that callers do not compile the entire stack.
    pub fn handle(
        self: &Arc<Self>,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + '_>> {
        Box::pin(self.respond(request.map(RequestBody::Whole)))
    }

    /// Handles a request from a socket, whose body has not been read.
    pub(crate) fn answer_socket(
        self: &Arc<Self>,
        request: Request<RequestBody>,
    ) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + '_>> {
        Box::pin(self.respond(request))
    }

    async fn respond(self: &Arc<Self>, request: Request<RequestBody>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let info = RequestInfo::parse(&parts);
        if self.lifecycle.refuses(parts.uri.path()) {
            return lifecycle::refusal();
        }
        let mut negotiated = Negotiated::negotiate(&parts.headers, self.options.cbor);
        if let (Ok(w), true) = (&mut negotiated, info.query.has("pretty")) {
            w.pretty = info.query.is_true("pretty");
        }
        // Errors use the negotiated encoding, but always the shape of an object.
        let error_format =
            negotiated.as_ref().map_or(Negotiated::json(), |w| Negotiated { shape: Shape::Object, ..*w });
        let compressed = compress::threshold(&parts.method, parts.uri.path(), &parts.headers);
        let (trace, long_running) = (Trace::begin(self.ids.audit_id(&parts)), info.long_running);
        let (verb, is_resource) = (info.verb, info.target.is_resource());
        let mut response =
            self.in_time(parts, body, negotiated, info, &trace).await.unwrap_or_else(|s| failure_in(&error_format, &s));
        if let Some(record) = trace.audit.get() {
            // Record audit events, whatever the outcome.
            let _turn = self.workers.turn(&record.user, audit::size_of(&response)).await.ok();
            record.response(verb, is_resource, &response);
        }
        if let Some(threshold) = compressed {
            response = compress::compress(response, threshold);
        }
        if let Some([schema, level]) = trace.flow.get() {
            response.headers_mut().insert(flow::SCHEMA, schema.clone());
            response.headers_mut().insert(flow::LEVEL, level.clone());
        }
        if let Ok(id) = HeaderValue::from_str(&trace.id) {
            response.headers_mut().entry(AUDIT_ID).or_insert(id);
        }
        trace.answered(&mut response, long_running);
        if let Some(record) = trace.audit.get().filter(|r| r.is_due()) {
            Box::pin(record.settle()).await;
        }
        response
    }

    /// Applies the deadline to everything but watches and streams.
    async fn in_time(
        self: &Arc<Self>,
        parts: Parts,
        body: RequestBody,
        negotiated: Result<Negotiated, Status>,
        info: RequestInfo,
        trace: &Arc<Trace>,
    ) -> Result<Response<Body>, Status> {
        if info.long_running {
            return self.answer(parts, body, negotiated, info, trace).await;
        }
        let time = deadline::timeout(&info.query, self.options.request_timeout)?;
        tokio::time::timeout(time, self.answer(parts, body, negotiated, info, trace)).await.unwrap_or_else(|_| {
            trace.terminated(504);
            Err(deadline::passed())
        })
    }

    async fn answer(
        self: &Arc<Self>,
        mut parts: Parts,
        body: RequestBody,
        negotiated: Result<Negotiated, Status>,
        info: RequestInfo,
        trace: &Arc<Trace>,
    ) -> Result<Response<Body>, Status> {
        let head = head_size(&parts);
        let large_head = room_for_head(&self.heads, &parts, head).await?;
        let user = match self.authenticate(&mut parts, &info, trace).await {
            Ok(user) => user,
            Err(s) => {
                body.discard(head).await;
                return Err(s);
            }
        };
        drop(large_head);
        self.write_down(&user, &parts, &info, trace);
        if let Some(record) = trace.audit.get().filter(|r| r.is_due())
            && !Box::pin(record.settle()).await
        {
            let why = "failed to store audit event";
            return Err(Status::internal(format!("Internal Server Error: {:?}: {why}", parts.uri.path())));
        }
        // Before waiting for a seat: a slow sender must not occupy one. A body error is returned after authorization.
        let body = body.read(&self.bodies, &user.name, head).await;
        if let (Ok((bytes, _)), Some(record)) = (&body, trace.audit.get().filter(|_| info.target.is_resource())) {
            let _turn = self.workers.turn(&user.name, bytes.len()).await?;
            record.request(info.verb, content::media_type(&parts.headers), bytes);
        }
        let user = self.impersonate(user, &mut parts, &info, trace).await?;
        let _pass = if info.long_running {
            None
        } else {
            let kind = if info.mutates() { &self.mutating } else { &self.reading };
            match kind.enter(user.is_in(auth::user::GROUP_MASTERS)) {
                Some(pass) => Some(pass),
                None => return Ok(self.turn_away(&info, &parts, trace, 1)),
            }
        };
        let _seat = match self.flow.enter(self, &user, &info, &parts, trace).await {
            Ok(seat) => seat,
            Err(retry_after) => return Ok(self.turn_away(&info, &parts, trace, retry_after)),
        };
        let attributes = Arc::new(info.attributes(&user, &parts));
        self.authorize(&attributes, trace).await?;
        self.count(&info, &parts, trace);
        let RequestInfo { target, query, verb, .. } = info;
        let (body, _room) = body?;
        if let Some(remote) = self.aggregator.remote(&target, parts.uri.path()) {
            let proxied = self.aggregator.proxy(&self.registry, &remote, parts, body, &user, &trace.id);
            return Ok(Box::pin(proxied).await);
        }
        if target.group_version.is_none() || !target.is_resource() {
            return self.other(&parts, &target).or_else(|s| self.nowhere(s, parts.uri.path()));
        }
        let row = match self.row(&target) {
            Ok(row) => row,
            Err(s) => return self.nowhere(s, parts.uri.path()),
        };
        // Create-only resources have no tables, and custom resources no protobuf encoding.
        let tables = row.kind.is_read(&target.subresource);
        let offer = Offer { cbor: self.options.cbor, messages: row.bare_items, tables };
        let negotiated = match negotiated {
            // A stream negotiates for itself.
            Err(_) if is_stream(&target.subresource) => Negotiated::json(),
            Ok(w) if offer.has(w.encoding, w.shape) => w,
            // A later clause may be acceptable.
            Ok(w) => match Negotiated::negotiate_offer(&parts.headers, &offer) {
                Ok(other) => Negotiated { pretty: w.pretty, ..other },
                // An unknown resource is reported before a representation that is not acceptable.
                Err(_) if target.subresource.is_empty() && !row.kind.has_verb(verb) => {
                    return Err(method_not_allowed());
                }
                Err(s) => return Ok(failure(&s)),
            },
            Err(s) => return Err(s),
        };
        table::check_include(&negotiated, query.get("includeObject"))?;
        let warnings = Warnings::default();
        // An unsupported method gets no warnings.
        if let Some(w) = row.kind.warning.as_ref().filter(|_| row.kind.has_verb(verb)) {
            warnings.push(w.to_string());
            trace.annotate("k8s.io/deprecated", &true);
        }
        let (warned, trace) = (warnings.clone(), trace.clone());
        let cbor = self.options.cbor;
        let call =
            Call { parts, body, query, target, verb, user, attributes, negotiated, warnings: warned, trace, cbor };
        let whole = call.target.subresource.is_empty().then(|| row.clone());
        let answer = placement::execute(self, call, row).await;
        if let (Some(row), Ok(r)) = (whole, &answer)
            && r.status() == StatusCode::CREATED
            && let Some(text) = self.options.not_carried_out.get(&row.group_resource())
        {
            warnings.push((*text).to_owned());
        }
        let warnings = warnings.take();
        if warnings.is_empty() {
            return answer;
        }
        let mut answer = answer.unwrap_or_else(|s| failure_in(&negotiated, &s));
        for w in warnings {
            let text = w.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ");
            if let Ok(v) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
                answer.headers_mut().append("warning", v);
            }
        }
        Ok(answer)
    }

    async fn authenticate(&self, parts: &mut Parts, info: &RequestInfo, trace: &Trace) -> Result<User, Status> {
        let begun = Instant::now();
        let user = self.authenticators.authenticate(parts).await;
        let result = match &user {
            Ok(_) => Authentication::Success,
            Err(s) if s.code == 401 => Authentication::Failure,
            Err(_) => Authentication::Error,
        };
        if let Some(expires) = parts.extensions.get::<Peer>().and_then(|p| p.expires).filter(|_| user.is_ok()) {
            self.metrics.certified(expires - self.registry.clock.now().as_second());
        }
        if let (Ok(u), Some(connection)) = (&user, parts.extensions.get::<Arc<Connection>>())
            && u.name != auth::user::ANONYMOUS
        {
            connection.became_known(&u.name);
        }
        self.metrics.authenticated(result, user.as_ref().ok().map(|u| u.name.as_str()), begun.elapsed());
        if let (Err(_), Some(auditor)) = (&user, &self.auditor) {
            let anonymous = info.attributes(&User::default(), parts);
            Box::pin(auditor.unauthenticated(&trace.id, parts, &anonymous)).await;
        }
        user
    }

    /// Starts the audit of a request, from its user and attributes.
    fn write_down(&self, user: &User, parts: &Parts, info: &RequestInfo, trace: &Trace) {
        let Some(auditor) = &self.auditor else { return };
        let a = info.attributes(user, parts);
        let Some(record) = auditor.begin(&trace.id, parts, &a) else { return };
        record.received();
        let _ = trace.audit.set(record);
    }

    /// The error for an excess request.
    fn turn_away(&self, info: &RequestInfo, parts: &Parts, trace: &Trace, retry_after: u32) -> Response<Body> {
        self.count(info, parts, trace);
        trace.terminated(429);
        inflight::refusal(retry_after)
    }

    /// Records the properties that metrics use.
    fn count(&self, info: &RequestInfo, parts: &Parts, trace: &Trace) {
        let series = match self.row(&info.target) {
            Ok(row) => Some(self.metrics.requests.of_resource(&row, &info.target.subresource).request(info, parts)),
            Err(_) if !info.target.is_resource() => self.metrics.requests.of_path(parts.uri.path()),
            Err(_) => None,
        };
        if let Some(s) = series {
            let _ = trace.series.set(s);
        }
    }

    fn row(&self, target: &Target) -> Result<Arc<Resource>, Status> {
        let gvr = match &target.group_version {
            Some(gv) => gv.with_resource(target.resource.clone()),
            None => return Err(Status::no_such_path()),
        };
        let rows = self.registry.rows();
        let row = rows.resource(&gvr).ok_or_else(Status::no_such_path)?;
        if target.too_long || target.odd || (!row.kind.namespaced && !target.namespace.is_empty()) {
            return Err(Status::no_such_path());
        }
        if !target.subresource.is_empty() && row.kind.subresource(&target.subresource).is_none() {
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
