//! SelfSubjectRulesReview: the caller's rules in a namespace.

use crate::Config;
use crate::plain::Plain;
use crate::table::Row;
use async_trait::async_trait;
use auth::Authorizer;
use auth::rbac::{MOST_LISTED, PolicyRule};
use meta::{Map, Object, Status};
use registry::{Env, Function, Request, WriteOptions};
use serde_json::json;
use std::sync::Arc;

pub fn row(config: &Config) -> Row {
    Row::computed(Plain, RulesReview { authorizer: config.authorizer.clone() })
}

/// Returns the caller's rules in a namespace, as far as they can be listed.
pub struct RulesReview {
    pub authorizer: Arc<dyn Authorizer>,
}

#[async_trait]
impl Function for RulesReview {
    async fn create(
        &self,
        _env: Env<'_>,
        request: &Request,
        mut o: Object,
        _: &WriteOptions,
    ) -> Result<Object, Status> {
        let namespace = o.str_at(&["spec", "namespace"]).unwrap_or_default().to_owned();
        if namespace.is_empty() {
            return Err(Status::bad_request("no namespace on request"));
        }
        let (mut resource, mut path) = (Vec::new(), Vec::new());
        let rules = self.authorizer.rules(&request.user, &namespace);
        let too_many = rules.iter().map(PolicyRule::weight).sum::<usize>() > MOST_LISTED;
        for r in rules {
            if r.urls.is_empty() {
                let mut v = json!({"verbs": r.verbs, "apiGroups": r.groups, "resources": r.resources});
                if !r.names.is_empty() {
                    v["resourceNames"] = json!(r.names);
                }
                resource.push(v);
            } else {
                path.push(json!({"verbs": r.verbs, "nonResourceURLs": r.urls}));
            }
        }
        let mut unlisted = self.authorizer.unlisted(&request.user);
        if too_many {
            unlisted.push("the user has too many rules to list them all");
        }
        let mut status =
            json!({"resourceRules": resource, "nonResourceRules": path, "incomplete": !unlisted.is_empty()});
        if !unlisted.is_empty() {
            status["evaluationError"] = unlisted.join(", ").into();
        }
        // As upstream, the response repeats nothing of the request.
        for part in ["metadata", "spec"] {
            o.set(&[part], Map::new());
        }
        o.set(&["status"], status);
        Ok(o)
    }
}
