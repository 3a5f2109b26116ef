//! Impersonation (`Impersonate-User` and related headers; upstream `pkg/endpoints/filters/impersonation`).
//!
//! Constrained impersonation (KEP-5284) is tried first: each mode requires two permissions,
//! `impersonate-on:MODE:VERB` for the request, and `impersonate:MODE` for the user. The last mode is the original
//! `impersonate`, which is unconstrained.

use crate::authorize::forbidden;
use crate::info::RequestInfo;
use crate::server_kinds::{NODES, SERVICE_ACCOUNTS};
use crate::trace::Trace;
use crate::{Server, header_text, path};
use auth::user::{ANONYMOUS, GROUP_AUTHENTICATED, GROUP_MASTERS, GROUP_NODES, GROUP_UNAUTHENTICATED};
use auth::{Attributes, Decision, User};
use http::request::Parts;
use meta::{Status, names};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};

const GROUP: &str = "authentication.k8s.io";
/// The extra field with the node of a pod's token.
const NODE_OF_POD: &str = "authentication.kubernetes.io/node-name";
/// The node is irrelevant in this mode.
const KEYS_OF_POD: &str = "authentication.kubernetes.io/associated-node-keys";
/// From this many groups or extras on, first checks permission for all of them.
const MANY: usize = 4;
/// Maximum number of cached callers.
const REMEMBERED: usize = 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    UserInfo,
    /// Unconstrained impersonation.
    Old,
}

const MODES: [Mode; 5] = [Mode::AssociatedNode, Mode::ArbitraryNode, Mode::ServiceAccount, Mode::UserInfo, Mode::Old];

/// The mode that last allowed each caller: tried first, so that unconstrained impersonation costs no extra checks.
#[derive(Default)]
pub(crate) struct LastModes(Mutex<HashMap<String, Mode>>);

impl LastModes {
    fn get(&self, user: &str) -> Option<Mode> {
        self.0.lock().get(user).copied()
    }

    fn set(&self, user: &str, mode: Mode) {
        let mut all = self.0.lock();
        if all.len() >= REMEMBERED {
            all.clear();
        }
        all.insert(user.to_owned(), mode);
    }
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::AssociatedNode => "associated-node",
            Self::ArbitraryNode => "arbitrary-node",
            Self::ServiceAccount => "serviceaccount",
            Self::UserInfo => "user-info",
            Self::Old => "",
        }
    }

    fn verb(self) -> String {
        match self {
            Self::Old => "impersonate".into(),
            mode => format!("impersonate:{}", mode.name()),
        }
    }

    /// Whether this mode applies to the user. For nodes and service accounts only the name may be set.
    fn knows(self, requested: &User, caller: &User) -> bool {
        let named = requested.uid.is_empty() && requested.groups.is_empty() && requested.extra.is_empty();
        let (node, account) = (node_of(&requested.name), account_of(&requested.name));
        match self {
            Self::AssociatedNode => {
                let own = caller.extra.get(NODE_OF_POD).map(Vec::as_slice);
                named && account_of(&caller.name).is_some() && node.is_some_and(|n| own == Some(&[n.to_owned()]))
            }
            Self::ArbitraryNode => named && node.is_some(),
            Self::ServiceAccount => named && account.is_some(),
            Self::UserInfo => node.is_none() && account.is_none(),
            Self::Old => true,
        }
    }
}

/// The node of a kubelet user, by its name alone.
fn node_of(user: &str) -> Option<&str> {
    user.strip_prefix("system:node:").filter(|n| names::dns_subdomain(n).is_empty())
}

fn account_of(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (names::dns_label(namespace).is_empty() && names::dns_subdomain(name).is_empty()).then_some((namespace, name))
}

/// Takes the requested user from the headers and removes them; none: no impersonation. A name may have any
/// characters.
fn requested(parts: &mut Parts) -> Result<Option<User>, Status> {
    let all: Vec<_> = parts.headers.keys().filter(|k| k.as_str().starts_with("impersonate-")).cloned().collect();
    if all.is_empty() {
        return Ok(None);
    }
    let values = |k: &str| header_text::values(&parts.headers, k);
    let first = |k| values(k).map(|all| all.into_iter().next().unwrap_or_default());
    let mut user = User { name: first("impersonate-user")?, uid: first("impersonate-uid")?, ..User::default() };
    user.groups = values("impersonate-group")?;
    for key in &all {
        if let Some(extra) = key.as_str().strip_prefix("impersonate-extra-") {
            user.extra.entry(path::decode(extra)).or_default().extend(values(key.as_str())?);
        }
    }
    if user.name.is_empty() {
        if user.uid.is_empty() && user.groups.is_empty() && user.extra.is_empty() {
            return Ok(None);
        }
        let why = format!("requested {} without impersonating a user name", in_go(&user));
        return Err(Status::bad_request(why));
    }
    for key in all {
        parts.headers.remove(key);
    }
    Ok(Some(user))
}

/// Formats a user as Go does.
fn in_go(user: &User) -> String {
    let list = |values: &[String]| {
        let values: Vec<String> = values.iter().map(|v| format!("{v:?}")).collect();
        format!("[]string{{{}}}", values.join(", "))
    };
    let groups = if user.groups.is_empty() { "[]string(nil)".into() } else { list(&user.groups) };
    let extra: Vec<String> = user.extra.iter().map(|(k, v)| format!("{k:?}:{}", list(v))).collect();
    let extra = match extra.is_empty() {
        true => "map[string][]string(nil)".to_owned(),
        false => format!("map[string][]string{{{}}}", extra.join(", ")),
    };
    format!("&user.DefaultInfo{{Name:{:?}, UID:{:?}, Groups:{groups}, Extra:{extra}}}", user.name, user.uid)
}

impl Server {
    /// The user of the request: the caller, or the impersonated user.
    pub(crate) async fn impersonate(
        &self,
        caller: User,
        parts: &mut Parts,
        info: &RequestInfo,
        trace: &Trace,
    ) -> Result<User, Status> {
        let Some(requested) = requested(parts)? else { return Ok(caller) };
        let a = info.attributes(&caller, parts);
        let last = self.last_modes.get(&caller.name);
        let order = last.into_iter().chain(MODES.into_iter().filter(|m| Some(*m) != last));
        let mut first = None;
        for mode in order.filter(|m| m.knows(&requested, &caller)) {
            match self.act_as(mode, &requested, &a).await {
                Ok(user) => {
                    self.last_modes.set(&caller.name, mode);
                    if let Some(record) = trace.audit.get() {
                        record.impersonates(&user, (mode != Mode::Old).then(|| mode.verb()));
                    }
                    return Ok(user);
                }
                Err(s) => first = first.or(Some(s)),
            }
        }
        Err(first.unwrap_or_else(|| Status::internal("all impersonation modes failed")))
    }

    async fn act_as(&self, mode: Mode, requested: &User, request: &Attributes) -> Result<User, Status> {
        let mut caller = request.user.clone();
        if mode == Mode::AssociatedNode {
            // The caller's own node was checked; the rest is the same for all nodes.
            let keys = caller.extra.keys().cloned().collect();
            caller.extra = BTreeMap::from([(KEYS_OF_POD.to_owned(), keys)]);
        }
        if mode != Mode::Old {
            let verb = format!("impersonate-on:{}:{}", mode.name(), request.verb);
            self.allows(&Attributes { user: caller.clone(), verb, ..request.clone() }).await?;
        }
        let mut user = requested.clone();
        let check = ImpersonationCheck { server: self, mode, caller };
        check.name(requested, &mut user).await?;
        if !requested.uid.is_empty() {
            self.allows(&check.attributes(GROUP, "uids", &requested.uid)).await?;
        }
        check.groups(&requested.groups).await?;
        check.extra(&requested.extra).await?;
        let is_anonymous = user.name == ANONYMOUS;
        let group = if is_anonymous { GROUP_UNAUTHENTICATED } else { GROUP_AUTHENTICATED };
        if !user.is_in(group) && (is_anonymous || !user.is_in(GROUP_UNAUTHENTICATED)) {
            user.groups.push(group.into());
        }
        Ok(user)
    }

    async fn allows(&self, a: &Attributes) -> Result<(), Status> {
        match self.authorizer.decide(a).await {
            Decision::Allow(_) => Ok(()),
            Decision::Deny(why) | Decision::NoOpinion(why) => Err(forbidden(a, &why)),
        }
    }
}

/// Checks whether a caller may impersonate a user, part by part.
struct ImpersonationCheck<'a> {
    server: &'a Server,
    mode: Mode,
    caller: User,
}

impl ImpersonationCheck<'_> {
    fn attributes(&self, group: &str, resource: &str, name: &str) -> Attributes {
        Attributes {
            user: self.caller.clone(),
            verb: self.mode.verb(),
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            name: name.into(),
            ..Attributes::default()
        }
    }

    /// The API group of users and groups: empty for unconstrained impersonation.
    fn group(&self) -> &'static str {
        if self.mode == Mode::Old { "" } else { GROUP }
    }

    async fn name(&self, requested: &User, user: &mut User) -> Result<(), Status> {
        let mut a = self.attributes(self.group(), "users", &requested.name);
        if let Some(node) = node_of(&requested.name).filter(|_| self.mode != Mode::Old) {
            // The permission for the caller's own node does not name the node.
            let name = if self.mode == Mode::AssociatedNode { "*" } else { node };
            (a.resource, a.name) = (NODES.into(), name.into());
            user.groups = vec![GROUP_NODES.into()];
        }
        if let Some((namespace, name)) = account_of(&requested.name) {
            (a.resource, a.namespace, a.name) = (SERVICE_ACCOUNTS.into(), namespace.into(), name.into());
            if requested.groups.is_empty() {
                user.groups =
                    vec![auth::user::GROUP_SERVICE_ACCOUNTS.into(), format!("system:serviceaccounts:{namespace}")];
            }
        }
        self.server.allows(&a).await
    }

    async fn groups(&self, groups: &[String]) -> Result<(), Status> {
        let constrained = self.mode != Mode::Old;
        let a = |name: &str| self.attributes(self.group(), "groups", name);
        if constrained && groups.iter().any(String::is_empty) {
            return Err(forbidden(&a(""), "impersonating the empty string group is not allowed"));
        }
        if constrained && groups.iter().any(|g| g == GROUP_MASTERS) {
            return Err(forbidden(&a(GROUP_MASTERS), "impersonating the system:masters group is not allowed"));
        }
        if constrained && groups.len() >= MANY && self.server.allows(&a("*")).await.is_ok() {
            return Ok(());
        }
        for g in groups {
            self.server.allows(&a(g)).await?;
        }
        Ok(())
    }

    async fn extra(&self, extra: &BTreeMap<String, Vec<String>>) -> Result<(), Status> {
        let constrained = self.mode != Mode::Old;
        let a = |key: &str, value: &str| Attributes {
            subresource: key.into(),
            ..self.attributes(GROUP, "userextras", value)
        };
        if let (true, Err(why)) = (constrained, check_extra(extra)) {
            return Err(forbidden(&a("", ""), &why));
        }
        let many = extra.len() >= MANY || extra.values().map(Vec::len).sum::<usize>() >= MANY;
        if constrained && many && self.server.allows(&a("*", "*")).await.is_ok() {
            return Ok(());
        }
        for (key, values) in extra {
            for value in values {
                self.server.allows(&a(key, value)).await?;
            }
        }
        Ok(())
    }
}

fn check_extra(extra: &BTreeMap<String, Vec<String>>) -> Result<(), String> {
    for (key, values) in extra {
        if key.is_empty() {
            return Err("impersonating the empty string key in extra is not allowed".into());
        }
        let invalid = |v: &str, why: &str| {
            format!("impersonating an invalid key in extra is not allowed: extra.key: Invalid value: {v:?}: {why}")
        };
        let Some((domain, path)) = key.split_once('/').filter(|(d, p)| !d.is_empty() && !p.is_empty()) else {
            return Err(invalid(key, "must be a domain-prefixed path (such as \"acme.io/foo\")"));
        };
        if let Some(why) = names::dns_subdomain(domain).first() {
            return Err(invalid(domain, why));
        }
        if !path.chars().all(|c| c.is_ascii_alphanumeric() || "/-._~%!$&'()*+,;=:".contains(c)) {
            return Err(invalid(path, "Invalid path"));
        }
        if key.chars().any(char::is_uppercase) {
            return Err(format!("impersonating a non-lowercase key in extra is not allowed: {key:?}"));
        }
        if values.is_empty() {
            return Err("impersonating empty values in extra is not allowed".into());
        }
        if values.iter().any(String::is_empty) {
            return Err("impersonating the empty string value in extra is not allowed".into());
        }
    }
    Ok(())
}
