//! Certificate signing requests (upstream `pkg/controller/certificates`): those of node agents are approved if authorization allows it,
//! approved ones are signed by the signer they name, and old ones are deleted. Serving certificates of kubelets, which upstream leaves
//! to other approvers, are approved if a node requests its own for the addresses in its status.

mod authority;
mod cleaner;
mod node;
mod request;

pub use authority::{Authority, Error as AuthorityError};

use crate::context::{Context, Error, object};
use crate::controller::{Builder, Reconcile};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::{ApiResource, Informer, Key, Outcome, RateLimit, WriteOptions};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use meta::{Object, Value};
use request::{KUBELET_CLIENT, Request};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Back-off of requests that cannot be approved or signed.
const BACKOFF: RateLimit = RateLimit { base: Duration::from_millis(200), max: Duration::from_secs(1000) };

/// The reason of approvals.
const AUTO_APPROVED: &str = "AutoApproved";
/// The reason of a denial: a node of the requested name is ready, and renews its certificate itself.
const NODE_READY: &str = "NodeReady";

struct Controller {
    context: Context,
    resource: ApiResource,
    requests: Informer<()>,
    nodes: Informer<node::View>,
    /// Services, and the endpoints of the API server, whose addresses no node gets.
    services: Informer<node::Service>,
    slices: Informer<node::Slice>,
    /// The names and addresses in the certificate of the API server.
    server_hosts: Vec<String>,
    /// None: requests are not signed here.
    authority: Option<Arc<Authority>>,
}

/// Runs until shutdown.
pub async fn run(context: Context, authority: Option<Arc<Authority>>, server_hosts: Vec<String>) {
    let mut builder = Builder::with_rate_limit(&context, BACKOFF);
    let resource = ApiResource::typed::<CertificateSigningRequest>();
    let requests = builder.watch::<()>(&resource);
    builder.enqueue(&requests);
    let nodes = builder.watch::<node::View>(&ApiResource::typed::<Node>());
    let services = builder.watch::<node::Service>(&ApiResource::typed::<Service>());
    let slices = builder.watch::<node::Slice>(&ApiResource::typed::<EndpointSlice>());
    let cleaner = context.every(cleaner::PERIOD, || cleaner::clean(&context, &resource, &requests));
    let (requests, resource, context) = (requests.clone(), resource.clone(), context.clone());
    let controller = Controller { requests, nodes, services, slices, resource, context, server_hosts, authority };
    tokio::join!(builder.run(5, Arc::new(controller)), cleaner);
}

/// The conditions of a request.
struct Conditions<'a>(Vec<&'a Value>);

impl<'a> Conditions<'a> {
    fn read(request: &'a Object) -> Self {
        Self(request.at(&["status", "conditions"]).and_then(Value::as_array).into_iter().flatten().collect())
    }

    fn is(&self, kind: &str) -> bool {
        self.0.iter().any(|c| c["type"] == kind && c["status"] != "False")
    }
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(entry) = self.requests.get(&key).filter(|r| !r.meta.is_deleting()) else { return Ok(Outcome::Done) };
        let o = object(&self.resource, &entry)?;
        let issued = !o.str_at(&["status", "certificate"]).unwrap_or_default().is_empty();
        let conditions = Conditions::read(&o);
        if issued || conditions.is("Denied") || conditions.is("Failed") {
            return Ok(Outcome::Done);
        }
        let signer = o.str_at(&["spec", "signerName"]).unwrap_or_default();
        let text = STANDARD.decode(o.str_at(&["spec", "request"]).unwrap_or_default()).unwrap_or_default();
        let usages = o.at(&["spec", "usages"]).and_then(Value::as_array);
        let usages: Vec<&str> = usages.into_iter().flatten().filter_map(Value::as_str).collect();
        let approved = conditions.is("Approved");
        // Other signers have names of their own, and only requests of node agents are approved here.
        let ours = matches!(signer, request::CLIENT | KUBELET_CLIENT | request::KUBELET_SERVING | request::LEGACY);
        if !ours || (!approved && !matches!(signer, KUBELET_CLIENT | request::KUBELET_SERVING)) {
            return Ok(Outcome::Done);
        }
        let parsed = Request::parse(&text).map_err(|why| Error::Invalid { what: "request", why })?;
        let fits = parsed.fits(signer, &usages).unwrap_or(Ok(()));
        if !approved {
            match (fits, signer) {
                (Ok(()), KUBELET_CLIENT) => self.approve(&o, &parsed).await?,
                (Ok(()), _) => self.approve_serving(&o, &parsed).await?,
                (Err(_), _) => {}
            }
            return Ok(Outcome::Done);
        }
        let Some(authority) = &self.authority else { return Ok(Outcome::Done) };
        let mut new = o.clone();
        match fits {
            Err(why) => {
                let now = meta::time::format(self.context.now());
                add(
                    &mut new,
                    json!({"type": "Failed", "status": "True", "reason": "SignerValidationFailure",
                    "message": why, "lastUpdateTime": now}),
                );
            }
            Ok(()) => {
                let seconds = o.int_at(&["spec", "expirationSeconds"]);
                let made = authority.sign(&parsed, &usages, seconds, self.context.now(), &*self.context.rng);
                let made = made.map_err(|e| Error::Invalid { what: "certificate", why: e.to_string() })?;
                new.set(&["status", "certificate"], STANDARD.encode(made));
            }
        }
        let api = self.context.client.dynamic(&self.resource);
        api.update_status(o.name(), &WriteOptions::default(), &new).await?;
        Ok(Outcome::Done)
    }
}

impl Controller {
    /// Approves a serving certificate that a node requests for itself. Others wait for another approver.
    async fn approve_serving(&self, o: &Object, parsed: &Request) -> Result<(), Error> {
        let username = o.str_at(&["spec", "username"]).unwrap_or_default();
        let Some(name) = username.strip_prefix("system:node:").filter(|_| username == parsed.common_name) else {
            return Ok(());
        };
        let groups = o.at(&["spec", "groups"]).and_then(Value::as_array);
        if !groups.into_iter().flatten().any(|g| g == "system:nodes") {
            return Ok(());
        }
        let api_server = Key::new("default", "kubernetes");
        let mut reserved = self.server_hosts.clone();
        for service in self.services.cache().entries() {
            reserved.extend(service.view.addresses());
            // As clients in the cluster call it.
            let (name, namespace) = (&service.meta.name, &service.meta.namespace);
            reserved.extend([name.to_string(), format!("{name}.{namespace}")]);
        }
        reserved.extend(self.slices.get(&api_server).iter().flat_map(|s| s.view.addresses()));
        let check = {
            let cache = self.nodes.cache();
            node::check_hosts(name, &parsed.hosts, &reserved, cache.entries().map(|n| (&*n.meta.name, &n.view)))
        };
        match check {
            Ok(()) => {
                let message = "Auto approving kubelet serving certificate for the addresses of its own node.";
                self.decide(o, "Approved", AUTO_APPROVED, message).await
            }
            // Tried again with back-off: the node may report the address later.
            Err(why) => Err(Error::Waiting(format!("{}: {why}", o.name()))),
        }
    }

    /// Writes the condition `Approved` or `Denied`.
    async fn decide(&self, o: &Object, kind: &str, reason: &str, message: &str) -> Result<(), Error> {
        let mut new = o.clone();
        add(&mut new, json!({"type": kind, "status": "True", "reason": reason, "message": message}));
        let api = self.context.client.dynamic(&self.resource);
        let _: Object = api.update_subresource(o.name(), "approval", &WriteOptions::default(), &new).await?;
        Ok(())
    }

    /// Approves the request of a node agent if its user may request such certificates for all nodes, or for itself.
    async fn approve(&self, o: &Object, parsed: &Request) -> Result<(), Error> {
        let own = o.str_at(&["spec", "username"]) == Some(&parsed.common_name);
        let ready_at = |name: &str| self.nodes.get(&Key::new("", name)).and_then(|n| n.view.ready_at());
        match node::check_client(&parsed.common_name, own, ready_at) {
            Ok(()) => {}
            Err(node::Refusal::InvalidName(why)) => return Err(Error::Waiting(format!("{}: {why}", o.name()))),
            // Its machine learns at once that it needs another name.
            Err(node::Refusal::NameTaken(why)) => return self.decide(o, "Denied", NODE_READY, &why).await,
        }
        let mut tried = Vec::new();
        let ways = [
            ("selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."),
            ("nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."),
        ];
        for (subresource, message) in ways.into_iter().skip(usize::from(!own)) {
            tried.push(subresource);
            let spec = o.get("spec").cloned().unwrap_or_default();
            let attributes = json!({"group": "certificates.k8s.io", "resource": "certificatesigningrequests",
                "verb": "create", "subresource": subresource, "version": "*"});
            let mut question = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                "spec": {"resourceAttributes": attributes, "user": spec["username"]}});
            for key in ["uid", "groups", "extra"] {
                if !spec[key].is_null() {
                    question["spec"][key] = spec[key].clone();
                }
            }
            let reviews = self.context.client.dynamic(&ApiResource::typed::<SubjectAccessReview>());
            let question = Object::from_value(question).unwrap_or_default();
            let answer = reviews.create(&WriteOptions::default(), &question).await?;
            if answer.at(&["status", "allowed"]) == Some(&Value::Bool(true)) {
                return self.decide(o, "Approved", AUTO_APPROVED, message).await;
            }
        }
        // Tried again with back-off: the right may be granted later.
        let tried = tried.join(" ");
        let why = format!("recognized csr {:?} as [{tried}] but subject access review was not approved", o.name());
        Err(Error::Waiting(why))
    }
}

fn add(request: &mut Object, condition: Value) {
    let all = request.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
    request.set(&["status", "conditions"], all.into_iter().chain([condition]).collect::<Vec<_>>());
}
