//! TokenRequest: the `token` subresource of service accounts.

use super::service_account::{Claims, ServiceAccountTokens};
use async_trait::async_trait;
use meta::{FieldError, FieldPath, GroupKind, Object, Status};
use registry::{Env, Function, Request, WriteOptions};
use serde_json::json;
use std::sync::Arc;

/// The function of the `token` subresource.
pub struct TokenRequest(pub Arc<ServiceAccountTokens>);

/// Default lifetime in seconds: that of projected volumes, slightly more than an hour.
const DEFAULT_SECONDS: i64 = 3607;
const YEAR: i64 = 365 * 24 * 3600;

#[async_trait]
impl Function for TokenRequest {
    fn check_name(&self, object: &Object, url: &str) -> Result<(), Status> {
        if object.name().is_empty() || object.name() == url {
            return Ok(());
        }
        let kind = GroupKind { group: "authentication.k8s.io".into(), kind: "TokenRequest".into() };
        let why = "must match the service account name if specified";
        Err(Status::invalid(&kind, url, &[FieldError::invalid(&FieldPath::new("metadata.name"), object.name(), why)]))
    }

    async fn create(&self, env: Env<'_>, request: &Request, mut o: Object, _: &WriteOptions) -> Result<Object, Status> {
        let account = env.registry.get(request).await?;
        let settings = &self.0.settings;
        let mut audiences = o.at(&["spec", "audiences"]).map(auth::jwt::strings).unwrap_or_default();
        audiences.retain(|a| !a.is_empty());
        if audiences.is_empty() {
            audiences.clone_from(&settings.audiences);
        }
        let mut seconds = o.int_at(&["spec", "expirationSeconds"]).unwrap_or(3600);
        let wrong = match seconds {
            ..600 => Some("may not specify a duration less than 10 minutes"),
            s if s > 1 << 32 => Some("may not specify a duration larger than 2^32 seconds"),
            _ => None,
        };
        if let Some(why) = wrong {
            let gk = GroupKind { group: "authentication.k8s.io".into(), kind: "TokenRequest".into() };
            let e = FieldError::invalid(&FieldPath::new("spec.expirationSeconds"), seconds, why);
            return Err(Status::invalid(&gk, "", &[e]));
        }
        if let Some(max) = settings.max_seconds.filter(|m| *m < seconds) {
            env.warn(format!("requested expiration of {seconds} seconds shortened to {max} seconds"));
            seconds = max;
        }
        let bound = self.bound(env, request, &account, &o)?;
        let own = audiences.iter().all(|a| settings.audiences.contains(a));
        let extended =
            settings.extend && own && seconds == DEFAULT_SECONDS && bound.iter().any(|(kind, ..)| *kind == "pod");
        let claims = Claims {
            namespace: request.namespace.clone(),
            account: account.name().to_owned(),
            account_uid: account.uid().to_owned(),
            audiences: audiences.clone(),
            seconds: if extended { settings.max_seconds.unwrap_or(YEAR) } else { seconds },
            warn_after: extended.then_some(seconds),
            bound,
        };
        let (token, _) = self.0.issue(&claims).map_err(Status::internal)?;
        let now = env.clock().now();
        let end = meta::time::format(meta::time::plus(now, seconds));
        o.set(&["spec", "audiences"], audiences);
        o.set(&["spec", "expirationSeconds"], seconds);
        o.set(&["metadata", "creationTimestamp"], meta::time::format(now));
        o.set(&["status"], json!({"token": token, "expirationTimestamp": end}));
        Ok(o)
    }
}

impl TokenRequest {
    /// Returns the claims of the bound object, which must exist with the given UID. For a pod, they include its node.
    fn bound(
        &self,
        env: Env<'_>,
        request: &Request,
        account: &Object,
        o: &Object,
    ) -> Result<Vec<(&'static str, String, String)>, Status> {
        let text = |k: &str| o.str_at(&["spec", "boundObjectRef", k]).unwrap_or_default();
        let (version, kind, name, uid) = (text("apiVersion"), text("kind"), text("name"), text("uid"));
        if kind.is_empty() && name.is_empty() {
            return Ok(Vec::new());
        }
        let (field, resource, namespace) = match (version, kind) {
            ("v1" | "", "Pod") => ("pod", "pods", request.namespace.as_str()),
            ("v1" | "", "Secret") => ("secret", "secrets", request.namespace.as_str()),
            ("v1" | "", "Node") => ("node", "nodes", ""),
            _ => {
                // The core group is empty.
                let slash = if version.contains('/') { "" } else { "/" };
                let why = format!("cannot bind token to object of type {slash}{version}, Kind={kind}");
                return Err(Status::bad_request(why));
            }
        };
        let rows = env.registry.rows();
        let row = rows.stored("", resource).ok_or_else(|| Status::internal("not served"))?;
        // Objects are not decoded, however large they are.
        let find = |resource: &str, namespace: &str, name: &str| {
            self.0.objects.stored(env.registry, resource, namespace, name).map(|(_, bound)| bound)
        };
        let object = find(resource, namespace, name);
        let object = object.ok_or_else(|| Status::not_found(&row.group_resource(), name))?;
        if !uid.is_empty() && uid != object.uid {
            let why = format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
            );
            return Err(Status::conflict(&row.group_resource(), name, &why));
        }
        let mut bound = vec![(field, name.to_owned(), object.uid.clone())];
        if field == "pod" {
            if object.account != account.name() {
                let why = format!(
                    "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                    account.name()
                );
                return Err(Status::bad_request(why));
            }
            if !object.node.is_empty() {
                let uid = find("nodes", "", &object.node).map(|n| n.uid.clone()).unwrap_or_default();
                bound.push(("node", object.node.clone(), uid));
            }
        }
        Ok(bound)
    }
}
