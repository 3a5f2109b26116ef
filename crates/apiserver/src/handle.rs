//! The stack that every request walks through.

use crate::authenticate::Identity;
use crate::body::Body;
use crate::content::{self, Offer, Shape, Wanted};
use crate::ids::AUDIT_ID;
use crate::info::Info;
use crate::metrics::{Authentication, Authorization};
use crate::path::{Query, Target};
use crate::trace::Trace;
use crate::{Server, compress, deadline, discovery, flow, health, inflight, lifecycle, openapi, table, verbs, zpages};
use auth::{Attributes, Decision, User};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use meta::{GroupResource, Status};
use registry::{Resource, Warnings};
use std::pin::Pin;
use std::sync::Arc;
use tokio::time::Instant;

/// A request on its way down.
pub(crate) struct Call {
    pub parts: Parts,
    pub body: Bytes,
    pub query: Query,
    pub target: Target,
    pub user: User,
    pub wanted: Wanted,
    pub warnings: Warnings,
    pub trace: Arc<Trace>,
    /// Whether CBOR is spoken.
    pub cbor: bool,
}

impl Call {
    /// The `fieldManager` parameter, or the user agent up to its slash.
    pub fn manager(&self) -> String {
        let asked = self.query.get("fieldManager");
        if !asked.is_empty() {
            return asked.to_owned();
        }
        let agent = self.parts.headers.get(header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("unknown");
        agent.split('/').next().unwrap_or(agent).chars().take(128).collect()
    }

    pub fn media_type(&self) -> &str {
        content::media_type(&self.parts.headers)
    }

    /// The object that was sent.
    pub fn sent(&self) -> Result<content::Sent, Status> {
        content::read(self.media_type(), &self.body, self.cbor)
    }
}

impl Server {
    /// Answers one request. Every failure leaves as a `Status`. Boxed, so that what is below is compiled here alone, and not
    /// wherever it is called.
    pub fn handle(
        self: &Arc<Self>,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + '_>> {
        Box::pin(self.respond(request))
    }

    async fn respond(self: &Arc<Self>, request: Request<Bytes>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let info = Info::of(&parts);
        if self.lifecycle.refuses(parts.uri.path()) {
            return lifecycle::refusal();
        }
        let mut wanted = Wanted::negotiate(&parts.headers, self.options.cbor);
        if let (Ok(w), true) = (&mut wanted, info.query.has("pretty")) {
            w.pretty = info.query.is_true("pretty");
        }
        // A failure is told in the encoding that was asked for, whatever its shape was to be.
        let told = wanted.as_ref().map_or(Wanted::json(), |w| Wanted { shape: Shape::Object, ..*w });
        let compressed = compress::threshold(&parts.method, parts.uri.path(), &parts.headers);
        let (trace, long_running) = (Trace::begin(self.ids.of(&parts)), info.long_running);
        let (verb, is_resource) = (info.verb, info.target.is_resource());
        let mut response =
            self.in_time(parts, body, wanted, info, &trace).await.unwrap_or_else(|s| failure_in(&told, &s));
        if let Some(record) = trace.audit.get() {
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

    /// Everything but watches and streams has a deadline.
    async fn in_time(
        self: &Arc<Self>,
        parts: Parts,
        body: Bytes,
        wanted: Result<Wanted, Status>,
        info: Info,
        trace: &Arc<Trace>,
    ) -> Result<Response<Body>, Status> {
        if info.long_running {
            return self.answer(parts, body, wanted, info, trace).await;
        }
        let time = deadline::of(&info.query, self.options.request_timeout)?;
        let answer = self.answer(parts, body, wanted, info, trace);
        tokio::time::timeout(time, answer).await.unwrap_or_else(|_| {
            trace.terminated(504);
            Err(deadline::passed())
        })
    }

    async fn answer(
        self: &Arc<Self>,
        mut parts: Parts,
        body: Bytes,
        wanted: Result<Wanted, Status>,
        info: Info,
        trace: &Arc<Trace>,
    ) -> Result<Response<Body>, Status> {
        let user = self.authenticate(&mut parts, &info, trace).await?;
        self.write_down(&user, &parts, &body, &info, trace);
        if let Some(record) = trace.audit.get().filter(|r| r.is_due())
            && !Box::pin(record.settle()).await
        {
            let why = "failed to store audit event";
            return Err(Status::internal(format!("Internal Server Error: {:?}: {why}", parts.uri.path())));
        }
        let user = self.impersonate(user, &parts, trace).await?;
        let _pass = if info.long_running {
            None
        } else {
            let kind = if info.mutates() { &self.mutating } else { &self.reading };
            match kind.enter(user.is_in(auth::user::GROUP_MASTERS)) {
                Some(pass) => Some(pass),
                None => return Ok(self.turn_away(&info, &parts, trace, 1)),
            }
        };
        let _seat = match self.flow.enter(self, &user, &info, parts.uri.path(), trace).await {
            Ok(seat) => seat,
            Err(retry_after) => return Ok(self.turn_away(&info, &parts, trace, retry_after)),
        };
        self.authorize(&user, &parts, &info.target, info.watch, trace).await?;
        self.count(&info, &parts, trace);
        let Info { target, query, watch, .. } = info;
        if body.len() > content::MAX_BODY {
            let limit = content::MAX_BODY;
            return Err(Status::too_large(format!("Request entity too large: limit is {limit}")));
        }
        if let Some(remote) = self.aggregator.remote(&target, parts.uri.path()) {
            return Ok(self.aggregator.proxy(&self.registry, &remote, parts, body, &user, &trace.id).await);
        }
        if target.group_version.is_none() || !target.is_resource() {
            return self.other(&parts, &target).or_else(|s| self.nowhere(s, parts.uri.path()));
        }
        let row = match self.row(&target) {
            Ok(row) => row,
            Err(s) => return self.nowhere(s, parts.uri.path()),
        };
        // What can only be created is no row of a table, and custom resources have no messages.
        let tables = row.kind.is_read(&target.subresource);
        let offer = Offer { cbor: self.options.cbor, messages: row.bare_items, tables };
        let wanted = match wanted {
            // A stream negotiates for itself.
            Err(_) if verbs::is_stream(&target.subresource) => Wanted::json(),
            Ok(w) if offer.has(w.encoding, w.shape) => w,
            // The next clause may be something else.
            Ok(w) => match Wanted::of(&parts.headers, &offer) {
                Ok(other) => Wanted { pretty: w.pretty, ..other },
                // What nobody serves is told before how it would be shown.
                Err(_) if target.subresource.is_empty() && !row.kind.has_verb(info.verb) => {
                    return Err(method_not_allowed());
                }
                Err(s) => return Ok(failure(&s)),
            },
            Err(s) => return Err(s),
        };
        table::check_include(&wanted, query.get("includeObject"))?;
        let warnings = Warnings::default();
        // A method that is not served has nobody to warn.
        if let Some(w) = row.kind.warning.as_ref().filter(|_| row.kind.has_verb(info.verb)) {
            warnings.push(w.to_string());
            trace.annotate("k8s.io/deprecated", &true);
        }
        let (warned, trace) = (warnings.clone(), trace.clone());
        let cbor = self.options.cbor;
        let call = Call { parts, body, query, target, user, wanted, warnings: warned, trace, cbor };
        let answer = verbs::dispatch(self, call, row, watch).await;
        let warnings = warnings.take();
        if warnings.is_empty() {
            return answer;
        }
        let mut answer = answer.unwrap_or_else(|s| failure_in(&wanted, &s));
        for w in warnings {
            let text = w.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ");
            if let Ok(v) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
                answer.headers_mut().append("warning", v);
            }
        }
        Ok(answer)
    }

    async fn authenticate(&self, parts: &mut Parts, info: &Info, trace: &Trace) -> Result<User, Status> {
        let begun = Instant::now();
        let user = self.authenticators.authenticate(parts).await;
        let result = match &user {
            Ok(_) => Authentication::Success,
            Err(s) if s.code == 401 => Authentication::Failure,
            Err(_) => Authentication::Error,
        };
        self.metrics.authenticated(result, user.as_ref().ok().map(|u| u.name.as_str()), begun.elapsed());
        if let (Err(_), Some(auditor)) = (&user, &self.auditor) {
            let nobody = attributes(&User::default(), parts, &info.target, info.watch);
            Box::pin(auditor.unauthenticated(&trace.id, parts, &nobody)).await;
        }
        user
    }

    /// Begins the audit of a request, of which nothing is known yet but who asks for what.
    fn write_down(&self, user: &User, parts: &Parts, body: &Bytes, info: &Info, trace: &Trace) {
        let Some(auditor) = &self.auditor else { return };
        let a = attributes(user, parts, &info.target, info.watch);
        let Some(record) = auditor.begin(&trace.id, parts, &a) else { return };
        record.received();
        if info.target.is_resource() {
            record.request(info.verb, content::media_type(&parts.headers), body);
        }
        let _ = trace.audit.set(record);
    }

    /// One request too many.
    fn turn_away(&self, info: &Info, parts: &Parts, trace: &Trace, retry_after: u32) -> Response<Body> {
        self.count(info, parts, trace);
        trace.terminated(429);
        inflight::refusal(retry_after)
    }

    /// From here on it is known as what the request counts.
    fn count(&self, info: &Info, parts: &Parts, trace: &Trace) {
        let series = match self.row(&info.target) {
            Ok(row) => Some(self.metrics.requests.of(&row, &info.target.subresource).request(info, parts)),
            Err(_) if !info.target.is_resource() => self.metrics.requests.of_path(parts.uri.path()),
            Err(_) => None,
        };
        if let Some(s) = series {
            let _ = trace.series.set(s);
        }
    }

    /// What is no resource: health, version, discovery, OpenAPI.
    fn other(self: &Arc<Self>, parts: &Parts, target: &Target) -> Result<Response<Body>, Status> {
        let path = parts.uri.path();
        if let Some(r) = health::answer(self, parts).or_else(|| zpages::answer(self, parts)) {
            return r;
        }
        let known = path.starts_with("/api") || path == "/version" || path.starts_with("/openapi") || path == "/";
        if known && parts.method != Method::GET && parts.method != Method::HEAD {
            return Err(method_not_allowed());
        }
        if let Some(r) = self.issuer(path) {
            return Ok(r);
        }
        if let Some(r) = openapi::answer(self, parts) {
            return r;
        }
        discovery::answer(self, parts, target)
    }

    /// What nobody serves. Below the paths of Kubernetes' own groups a `Status` says so; elsewhere there is no API to speak of.
    fn nowhere(&self, status: Status, path: &str) -> Result<Response<Body>, Status> {
        let mut segments = path.trim_start_matches('/').split('/');
        let api = match segments.next() {
            Some("api" | "version") => true,
            Some("apis") => {
                let group = segments.next().unwrap_or_default();
                self.registry.rows().iter().any(|r| r.bare_items && *r.kind.group == *group)
            }
            _ => false,
        };
        if api || status.code != 404 {
            return Err(status);
        }
        let mut r = bytes(404, "text/plain; charset=utf-8", "404 page not found\n".to_owned());
        r.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        Ok(r)
    }

    /// By what others verify the tokens of service accounts.
    fn issuer(&self, path: &str) -> Option<Response<Body>> {
        let (about, keys) = self.authenticators.issuer.as_ref()?;
        let (media, document) = match path.trim_end_matches('/') {
            "/.well-known/openid-configuration" => ("application/json", about),
            "/openid/v1/jwks" => ("application/jwk-set+json", keys),
            _ => return None,
        };
        let mut r = bytes(200, media, document.to_string().into_bytes());
        r.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
        Some(r)
    }

    fn row(&self, target: &Target) -> Result<Arc<Resource>, Status> {
        let gvr = match &target.group_version {
            Some(gv) => gv.with_resource(target.resource.clone()),
            None => return Err(Status::no_such_path()),
        };
        let rows = self.registry.rows();
        let row = rows.resource(&gvr).ok_or_else(Status::no_such_path)?;
        if target.too_long || (!row.kind.namespaced && !target.namespace.is_empty()) {
            return Err(Status::no_such_path());
        }
        if !target.subresource.is_empty() && row.kind.subresource(&target.subresource).is_none() {
            return Err(Status::no_such_path());
        }
        // What is answered and not kept has no path for one of its objects.
        let kept = row.stored().is_some() || row.kind.has_verb("get");
        if !target.name.is_empty() && target.subresource.is_empty() && !kept {
            return Err(Status::no_such_path());
        }
        Ok(row.clone())
    }

    async fn authorize(
        &self,
        user: &User,
        parts: &Parts,
        target: &Target,
        watch: bool,
        trace: &Trace,
    ) -> Result<(), Status> {
        let a = attributes(user, parts, target, watch);
        let begun = Instant::now();
        let decision = self.authorizer.decide(&a).await;
        let result = match &decision {
            Decision::Allow(_) => Authorization::Allowed,
            Decision::Deny(_) => Authorization::Denied,
            Decision::NoOpinion(_) => Authorization::NoOpinion,
        };
        self.metrics.authorized(result, begun.elapsed());
        if let Some(record) = trace.audit.get() {
            let (word, why) = match &decision {
                Decision::Allow(why) => ("allow", why),
                Decision::Deny(why) | Decision::NoOpinion(why) => ("forbid", why),
            };
            record.annotate("authorization.k8s.io/decision", word);
            record.annotate("authorization.k8s.io/reason", why);
        }
        match decision {
            Decision::Allow(_) => Ok(()),
            Decision::Deny(why) | Decision::NoOpinion(why) => Err(forbidden(&a, &why)),
        }
    }

    /// `Impersonate-User` and its companions, if the caller may.
    async fn impersonate(&self, user: User, parts: &Parts, trace: &Trace) -> Result<User, Status> {
        let text = |v: &HeaderValue| v.to_str().unwrap_or_default().to_owned();
        let named = parts.headers.get("impersonate-user").map(text).filter(|n| !n.is_empty());
        let Some(name) = named else {
            return match parts.headers.keys().find(|k| k.as_str().starts_with("impersonate-")) {
                None => Ok(user),
                Some(_) => Err(Status::internal("requested impersonation without impersonating a user")),
            };
        };
        let groups: Vec<String> = parts.headers.get_all("impersonate-group").iter().map(text).collect();
        let mut other = User { name: name.clone(), ..User::default() };
        match other.service_account() {
            Some((ns, sa)) => {
                self.may_act(&user, "serviceaccounts", ns, sa).await?;
                if groups.is_empty() {
                    let ns = ns.to_owned();
                    other.groups =
                        vec![auth::user::GROUP_SERVICE_ACCOUNTS.into(), format!("system:serviceaccounts:{ns}")];
                }
            }
            None => self.may_act(&user, "users", "", &name).await?,
        }
        for g in &groups {
            self.may_act(&user, "groups", "", g).await?;
        }
        other.groups.extend(groups);
        if let Some(uid) = parts.headers.get("impersonate-uid").map(text).filter(|u| !u.is_empty()) {
            self.may_act(&user, "uids", "", &uid).await?;
            other.uid = uid;
        }
        for key in parts.headers.keys() {
            let Some(extra) = key.as_str().strip_prefix("impersonate-extra-") else { continue };
            let extra = crate::path::decode(extra).to_lowercase();
            let values: Vec<String> = parts.headers.get_all(key).iter().map(text).collect();
            for v in &values {
                self.may_act(&user, &format!("userextras/{extra}"), "", v).await?;
            }
            other.extra.insert(extra, values);
        }
        let anonymous = name == auth::user::ANONYMOUS;
        let group = if anonymous { auth::user::GROUP_UNAUTHENTICATED } else { auth::user::GROUP_AUTHENTICATED };
        if !other.is_in(group) {
            other.groups.push(group.into());
        }
        if let Some(record) = trace.audit.get() {
            record.impersonates(&other);
        }
        Ok(other)
    }

    /// Whether a user may act as somebody, or as part of somebody.
    async fn may_act(&self, user: &User, resource: &str, namespace: &str, name: &str) -> Result<(), Status> {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let group = if matches!(resource, "uids" | "userextras") { "authentication.k8s.io" } else { "" };
        let a = Attributes {
            user: user.clone(),
            verb: "impersonate".into(),
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: name.into(),
            ..Attributes::default()
        };
        match self.authorizer.decide(&a).await {
            Decision::Allow(_) => Ok(()),
            Decision::Deny(why) | Decision::NoOpinion(why) => Err(forbidden(&a, &why)),
        }
    }
}

pub(crate) fn attributes(user: &User, parts: &Parts, target: &Target, watch: bool) -> Attributes {
    match &target.group_version {
        Some(gv) if target.is_resource() => {
            // A list or watch of one name may be allowed for that name, and one of some fields for these.
            let verb = target.verb(&parts.method, watch);
            let (mut fields, mut labels) = (None, None);
            if matches!(verb, "list" | "watch" | "deletecollection") {
                let query = Query::parse(parts.uri.query());
                fields = meta::FieldSelector::parse(query.get("fieldSelector")).ok().filter(|f| !f.is_everything());
                labels = meta::LabelSelector::parse(query.get("labelSelector")).ok().filter(|l| !l.is_everything());
            }
            let mut name = target.name.clone();
            if let Some(n) = fields.as_ref().and_then(|f| f.exact("metadata.name")).filter(|_| name.is_empty()) {
                name = n.to_owned();
            }
            let namespace = match (&*target.resource, &*target.namespace) {
                ("namespaces", "") if gv.group.is_empty() => target.name.clone(),
                (_, ns) => ns.to_owned(),
            };
            Attributes {
                user: user.clone(),
                verb: verb.into(),
                group: gv.group.clone(),
                version: gv.version.clone(),
                resource: target.resource.clone(),
                subresource: target.subresource.clone(),
                namespace,
                name,
                path: String::new(),
                fields,
                labels,
            }
        }
        _ => Attributes {
            user: user.clone(),
            verb: parts.method.as_str().to_lowercase(),
            path: parts.uri.path().to_owned(),
            ..Attributes::default()
        },
    }
}

/// The refusal of authorization, in upstream's words.
pub(crate) fn forbidden(a: &Attributes, why: &str) -> Status {
    let user = &a.user.name;
    let tail = if why.is_empty() { String::new() } else { format!(": {why}") };
    if a.resource.is_empty() {
        let message = format!("forbidden: User {user:?} cannot {} path {:?}{tail}", a.verb, a.path);
        return Status::new(403, meta::Reason::Forbidden, message).with_details(meta::status::Details::default());
    }
    let resource =
        if a.subresource.is_empty() { a.resource.clone() } else { format!("{}/{}", a.resource, a.subresource) };
    let place = match (a.namespace.as_str(), a.resource.as_str()) {
        ("", _) | (_, "namespaces") => "at the cluster scope".to_owned(),
        (ns, _) => format!("in the namespace {ns:?}"),
    };
    let gr = GroupResource { group: a.group.clone(), resource: a.resource.clone() };
    let why = format!("User {user:?} cannot {} resource {resource:?} in API group {:?} {place}{tail}", a.verb, a.group);
    Status::forbidden(&gr, &a.name, &why)
}

pub(crate) fn method_not_allowed() -> Status {
    Status::new(405, meta::Reason::MethodNotAllowed, "the server does not allow this method on the requested resource")
        .with_details(meta::status::Details::default())
}

/// The answer to a failure.
pub(crate) fn failure(s: &Status) -> Response<Body> {
    failure_in(&Wanted::json(), s)
}

pub(crate) fn failure_in(wanted: &Wanted, s: &Status) -> Response<Body> {
    let (media, body) = content::write(wanted, &s.to_value());
    let mut r = bytes(s.code, media, body);
    if let Some(seconds) = s.details.as_ref().map(|d| d.retry_after_seconds).filter(|s| *s > 0) {
        r.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    r
}

pub(crate) fn json(code: u16, v: &meta::Value) -> Response<Body> {
    bytes(code, "application/json", v.to_string().into_bytes())
}

pub(crate) fn bytes(code: u16, media: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut r = Response::new(body.into());
    *r.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let h = r.headers_mut();
    h.insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    h.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    r
}

/// An identity for requests of the same process: no socket can set it.
pub fn as_identity(mut request: Request<Bytes>, user: User) -> Request<Bytes> {
    request.extensions_mut().insert(Identity(user));
    request
}
