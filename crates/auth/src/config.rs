//! Configuration files: `AuthenticationConfiguration`, `AuthorizationConfiguration`
//! (`apiserver.config.k8s.io`), and the table of static tokens. Strict: every error is reported.

use crate::claims::Expressions;
use crate::conditions::Conditions;
use crate::oidc::{ALGORITHMS, Issuer, Mapping};
use crate::{Authenticated, TokenAuthenticator, User};
use async_trait::async_trait;
use meta::Value;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const GROUP: &str = "apiserver.config.k8s.io/";

fn document(text: &str, kind: &str) -> Result<Value, String> {
    let document = codec::yaml::parse(text).map_err(|e| e.to_string())?.into_iter().next().unwrap_or_default();
    let version = document["apiVersion"].as_str().unwrap_or_default();
    let known = version.strip_prefix(GROUP).is_some_and(|v| ["v1", "v1beta1", "v1alpha1"].contains(&v));
    if !known || document["kind"] != kind {
        return Err(format!("no kind {kind:?} of {GROUP}v1 but {} of {version:?}", document["kind"]));
    }
    Ok(document)
}

fn text(v: &Value, key: &str) -> String {
    v[key].as_str().unwrap_or_default().to_owned()
}

fn list<'a>(v: &'a Value, key: &str) -> &'a [Value] {
    v[key].as_array().map_or(&[], Vec::as_slice)
}

/// The authenticators of an `AuthenticationConfiguration`.
#[derive(Debug, Default)]
pub struct Authentication {
    /// The issuers of JWT tokens.
    pub issuers: Vec<Issuer>,
    /// The configuration of anonymous requests, if there is one.
    pub anonymous: Option<Anonymous>,
}

/// The configuration of anonymous requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anonymous {
    /// Whether anonymous requests are accepted.
    pub enabled: bool,
    /// None: all paths.
    pub paths: Vec<String>,
}

impl Authentication {
    /// Parses an `AuthenticationConfiguration`.
    pub fn parse(content: &str) -> Result<Self, String> {
        let d = document(content, "AuthenticationConfiguration")?;
        let mut out = Self::default();
        for (i, j) in list(&d, "jwt").iter().enumerate() {
            let issuer = issuer(j).map_err(|why| format!("jwt[{i}].{why}"))?;
            if out.issuers.iter().any(|o: &Issuer| o.url == issuer.url) {
                return Err(format!("jwt[{i}].issuer.url: Duplicate value: {:?}", issuer.url));
            }
            out.issuers.push(issuer);
        }
        let a = &d["anonymous"];
        if a.is_object() {
            let paths: Vec<String> = list(a, "conditions").iter().map(|c| text(c, "path")).collect();
            let enabled = a["enabled"] == true;
            if !enabled && !paths.is_empty() {
                return Err("anonymous.conditions: enabled should be set to true when conditions are defined".into());
            }
            out.anonymous = Some(Anonymous { enabled, paths });
        }
        Ok(out)
    }
}

fn issuer(j: &Value) -> Result<Issuer, String> {
    let issuer = &j["issuer"];
    let url = text(issuer, "url");
    if !url.starts_with("https://") {
        return Err(format!("issuer.url: Invalid value: {url:?}: URL scheme must be https"));
    }
    let audiences = crate::jwt::strings(&issuer["audiences"]);
    if audiences.is_empty() || audiences.iter().any(String::is_empty) {
        return Err("issuer.audiences: Required value: at least one jwt[].issuer.audiences is required".into());
    }
    if audiences.len() > 1 && issuer["audienceMatchPolicy"] != "MatchAny" {
        return Err("issuer.audienceMatchPolicy: audienceMatchPolicy must be MatchAny for multiple audiences".into());
    }
    let expressions = Expressions::read(j)?;
    let mut required = Vec::new();
    for (i, r) in list(j, "claimValidationRules").iter().enumerate() {
        let at = format!("claimValidationRules[{i}]");
        let (claim, value) = (text(r, "claim"), text(r, "requiredValue"));
        match (claim.is_empty(), text(r, "expression").is_empty()) {
            (true, true) => return Err(format!("{at}: Required value: claim or expression is required")),
            (true, false) => {}
            (false, _) if !text(r, "message").is_empty() => {
                let message = text(r, "message");
                return Err(format!(
                    "{at}.message: Invalid value: {message:?}: may not be specified when claim is set"
                ));
            }
            (false, _) => required.push((claim, value)),
        }
    }
    let m = &j["claimMappings"];
    let mapping = |key: &str| -> Result<Option<Mapping>, String> {
        let at = format!("claimMappings.{key}");
        let claim = text(&m[key], "claim");
        if claim.is_empty() {
            return Ok(None);
        }
        let prefix = m[key]["prefix"].as_str().ok_or_else(|| format!("{at}.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing"))?;
        Ok(Some(Mapping { claim, prefix: prefix.to_owned() }))
    };
    let uid = Some(text(&m["uid"], "claim")).filter(|c| !c.is_empty());
    let username = match mapping("username")? {
        Some(m) => m,
        None if expressions.username.is_some() => Mapping::default(),
        None => return Err("claimMappings.username: Required value: claim or expression is required".into()),
    };
    Ok(Issuer {
        discovery_url: Some(text(issuer, "discoveryURL")).filter(|u| !u.is_empty()),
        ca: text(issuer, "certificateAuthority"),
        url,
        audiences,
        algorithms: ALGORITHMS.map(str::to_owned).to_vec(),
        username,
        groups: mapping("groups")?,
        uid,
        required,
        expressions: Arc::new(expressions),
    })
}

/// The authorizers, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Allows every request.
    AlwaysAllow,
    /// Denies every request.
    AlwaysDeny,
    /// The policies of a file.
    Abac(crate::abac::Policies),
    /// The node authorizer.
    Node,
    /// Role-based access control.
    Rbac,
    /// A webhook.
    Webhook(Box<Hook>),
}

/// The configuration of an authorization webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The name of the authorizer.
    pub name: String,
    /// The kubeconfig file of the webhook.
    pub kubeconfig: PathBuf,
    /// The version of `authorization.k8s.io`: `v1` or `v1beta1`.
    pub version: String,
    /// The timeout of a call.
    pub timeout: Duration,
    /// How long allowed decisions are cached.
    pub allowed_lasts: Duration,
    /// How long other decisions are cached.
    pub refused_lasts: Duration,
    /// Whether a failed call denies the request; otherwise the webhook has no opinion.
    pub denies_on_failure: bool,
    /// The conditions for calling the webhook.
    pub conditions: Arc<Conditions>,
}

/// Parses the authorizers of an `AuthorizationConfiguration`.
pub fn authorization(content: &str) -> Result<Vec<Mode>, String> {
    let d = document(content, "AuthorizationConfiguration")?;
    let mut out: Vec<Mode> = Vec::new();
    for (i, a) in list(&d, "authorizers").iter().enumerate() {
        let mode = match a["type"].as_str().unwrap_or_default() {
            "Webhook" => Mode::Webhook(Box::new(hook(a).map_err(|why| format!("authorizers[{i}].{why}"))?)),
            "RBAC" => Mode::Rbac,
            "Node" => Mode::Node,
            "AlwaysAllow" => Mode::AlwaysAllow,
            "AlwaysDeny" => Mode::AlwaysDeny,
            other => return Err(format!("authorizers[{i}].type: Unsupported value: {other:?}")),
        };
        if !matches!(mode, Mode::Webhook(_)) && out.contains(&mode) {
            return Err(format!("authorizers[{i}].type: Duplicate value: {}", a["type"]));
        }
        out.push(mode);
    }
    if out.is_empty() {
        return Err("authorizers: Required value: at least one authorization mode must be defined".into());
    }
    Ok(out)
}

fn hook(a: &Value) -> Result<Hook, String> {
    let w = &a["webhook"];
    let name = text(a, "name");
    if name.is_empty() {
        return Err("name: Required value".into());
    }
    let conditions = Conditions::read(list(w, "matchConditions"))?;
    match w["matchConditionSubjectAccessReviewVersion"].as_str().unwrap_or_default() {
        "v1" => {}
        "" if conditions.is_empty() => {}
        "" => {
            let why = "required if match conditions are specified";
            return Err(format!("matchConditionSubjectAccessReviewVersion: Required value: {why}"));
        }
        other => {
            let why = format!("Unsupported value: {other:?}: supported values: \"v1\"");
            return Err(format!("matchConditionSubjectAccessReviewVersion: {why}"));
        }
    }
    let lasts = |key: &str, usual: Option<u64>| match (w[key].as_str(), usual) {
        (Some(t), _) => duration(t).ok_or_else(|| format!("webhook.{key}: Invalid value: {t:?}")),
        (None, Some(s)) => Ok(Duration::from_secs(s)),
        (None, None) => Err(format!("webhook.{key}: Required value")),
    };
    let cached = |key: &str, d: Duration| if w[key] == false { Duration::ZERO } else { d };
    let info = &w["connectionInfo"];
    let kubeconfig = match (info["type"].as_str(), info["kubeConfigFile"].as_str()) {
        (Some("KubeConfigFile"), Some(f)) if f.starts_with('/') => PathBuf::from(f),
        (Some("KubeConfigFile"), _) => {
            return Err("webhook.connectionInfo.kubeConfigFile: must be an absolute path".into());
        }
        _ => return Err("webhook.connectionInfo.type: Unsupported value: supported values: \"KubeConfigFile\"".into()),
    };
    let version = text(w, "subjectAccessReviewVersion");
    if !matches!(&*version, "v1" | "v1beta1") {
        return Err(format!("webhook.subjectAccessReviewVersion: Unsupported value: {version:?}"));
    }
    Ok(Hook {
        name,
        kubeconfig,
        version,
        conditions: Arc::new(conditions),
        timeout: lasts("timeout", None)?,
        allowed_lasts: cached("cacheAuthorizedRequests", lasts("authorizedTTL", Some(300))?),
        refused_lasts: cached("cacheUnauthorizedRequests", lasts("unauthorizedTTL", Some(30))?),
        denies_on_failure: match w["failurePolicy"].as_str() {
            Some("Deny") => true,
            Some("NoOpinion") => false,
            _ => return Err("webhook.failurePolicy: Required value".into()),
        },
    })
}

/// Parses a Go duration such as `1m30s`.
fn duration(t: &str) -> Option<Duration> {
    let d: jiff::SignedDuration = t.parse().ok()?;
    Duration::try_from(d).ok()
}

/// Parses a table of `token,user,uid,"group,group"`.
pub struct StaticTokens {
    users: HashMap<String, User>,
    audiences: Vec<String>,
}

impl StaticTokens {
    /// Parses a token file: lines of token, user name, UID and groups. The tokens are valid for these audiences.
    pub fn parse(table: &str, audiences: Vec<String>) -> Result<Self, String> {
        let mut users = HashMap::new();
        for (i, line) in table.lines().enumerate().filter(|(_, l)| !l.trim().is_empty() && !l.starts_with('#')) {
            let fields = csv(line);
            let [token, name, uid, more @ ..] = &fields[..] else {
                return Err(format!(
                    "line {}: token file must have at least 3 columns (token, user name, user uid), found {}",
                    i + 1,
                    fields.len()
                ));
            };
            if token.is_empty() {
                tracing::warn!("empty token in line {} of the token file", i + 1);
                continue;
            }
            let groups =
                more.first().map(|g| g.split(',').map(|g| g.trim().to_owned()).filter(|g| !g.is_empty()).collect());
            let user =
                User { name: name.clone(), uid: uid.clone(), groups: groups.unwrap_or_default(), ..User::default() };
            users.insert(token.clone(), user);
        }
        Ok(Self { users, audiences })
    }
}

fn csv(line: &str) -> Vec<String> {
    let (mut out, mut field, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = line.trim_end().chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => out.push(std::mem::take(&mut field).trim().to_owned()),
            c => field.push(c),
        }
    }
    out.push(field.trim().to_owned());
    out
}

#[async_trait]
impl TokenAuthenticator for StaticTokens {
    async fn authenticate(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, String> {
        let audiences = crate::token::meant_for(&self.audiences, audiences);
        let user = self.users.get(token).filter(|_| !audiences.is_empty()).cloned();
        Ok(user.map(|user| Authenticated { user, audiences }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_and_mistakes_named() {
        let jwt = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer:\n    url: https://a.test\n    audiences: [me]\n  claimMappings:\n    username: {claim: sub, prefix: 'a:'}\n    groups: {claim: groups, prefix: ''}\n  claimValidationRules:\n  - {claim: hd, requiredValue: a.test}\nanonymous:\n  enabled: true\n  conditions:\n  - path: /livez\n";
        let a = Authentication::parse(jwt).unwrap();
        let i = &a.issuers[0];
        assert_eq!((&*i.url, &*i.username.prefix, i.required.len()), ("https://a.test", "a:", 1));
        assert_eq!(a.anonymous, Some(Anonymous { enabled: true, paths: vec!["/livez".into()] }));
        let check = |from: &str, to: &str, message: &str| {
            let e = Authentication::parse(&jwt.replace(from, to)).unwrap_err();
            assert!(e.contains(message), "{e}");
        };
        check("https://a.test", "http://a.test", "URL scheme must be https");
        check("[me]", "[]", "issuer.audiences: Required value");
        check("[me]", "[me, you]", "audienceMatchPolicy must be MatchAny");
        check(
            "{claim: sub, prefix: 'a:'}",
            "{expression: claims.}",
            "jwt[0].claimMappings.username.expression: Invalid value: \"claims.\": compilation failed: ERROR: <input>:1:8",
        );
        check(
            "{claim: sub, prefix: 'a:'}",
            "{expression: claims.sub, claim: sub}",
            "claim and expression can't both be set",
        );
        check("{claim: sub, prefix: 'a:'}", "{expression: claims.email}", "claims.email_verified must be used");
        check(
            "{claim: hd, requiredValue: a.test}",
            "{expression: \"'a'\"}",
            "claimValidationRules[0].expression: Invalid value: \"'a'\": must evaluate to bool",
        );
        check(
            "{claim: hd, requiredValue: a.test}",
            "{message: x}",
            "claimValidationRules[0]: Required value: claim or expression is required",
        );
        check(
            "anonymous",
            "  userValidationRules:\n  - {expression: user.nobody}\nanonymous",
            "undefined field 'nobody'",
        );
        let extra = |key: &str| {
            format!("    extra:\n    - {{key: {key}, valueExpression: claims.sub}}\n  claimValidationRules")
        };
        check(
            "  claimValidationRules",
            &extra("a"),
            "claimMappings.extra[0].key: Invalid value: \"a\": must be a domain-prefixed path",
        );
        check("  claimValidationRules", &extra("a.k8s.io/b"), "are reserved for Kubernetes use");
        check("{claim: sub, prefix: 'a:'}", "{claim: sub}", "claimMappings.username.prefix: Required value");
        check("AuthenticationConfiguration", "Other", "no kind");

        let hook = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n- {type: Node}\n- type: Webhook\n  name: w\n  webhook:\n    timeout: 3s\n    subjectAccessReviewVersion: v1\n    matchConditionSubjectAccessReviewVersion: v1\n    failurePolicy: Deny\n    unauthorizedTTL: 1m30s\n    connectionInfo: {type: KubeConfigFile, kubeConfigFile: /k}\n- {type: RBAC}\n";
        let modes = authorization(hook).unwrap();
        let [Mode::Node, Mode::Webhook(w), Mode::Rbac] = &modes[..] else { panic!("{modes:?}") };
        assert!(w.denies_on_failure && w.refused_lasts.as_secs() == 90 && w.allowed_lasts.as_secs() == 300);
        let check = |from: &str, to: &str, message: &str| {
            let e = authorization(&hook.replace(from, to)).unwrap_err();
            assert!(e.contains(message), "{e}");
        };
        check("failurePolicy: Deny", "failurePolicy: Maybe", "authorizers[1].webhook.failurePolicy");
        let conditions = |text: &str| format!("    matchConditions: [{text}]\n    failurePolicy: Deny");
        check(
            "    failurePolicy: Deny",
            &conditions("{expression: request.user}"),
            "authorizers[1].matchConditions[0].expression: Invalid value: \"request.user\": must evaluate to bool but got string",
        );
        check("    failurePolicy: Deny", &conditions("{expression: request.nobody == ''}"), "undefined field 'nobody'");
        check("    failurePolicy: Deny", &conditions("{}"), "matchConditions[0].expression: Required value");
        check("/k}", "k}", "must be an absolute path");
        check("{type: RBAC}", "{type: Node}", "Duplicate value");
        check("{type: RBAC}", "{type: ABAC}", "Unsupported value");
    }

    #[tokio::test]
    async fn static_tokens_are_a_table() {
        let own = vec!["me".to_owned()];
        let t = StaticTokens::parse("a,jane,1,\"x, y\"\n\nb,joe,2\n", own.clone()).unwrap();
        let user = |t: Option<Authenticated>| t.map(|a| (a.user.name, a.user.groups));
        assert_eq!(user(t.authenticate("a", &own).await.unwrap()), Some(("jane".into(), vec!["x".into(), "y".into()])));
        assert_eq!(user(t.authenticate("b", &own).await.unwrap()), Some(("joe".into(), Vec::new())));
        assert_eq!(t.authenticate("c", &own).await.unwrap(), None);
        assert_eq!(t.authenticate("a", &["you".to_owned()]).await.unwrap(), None, "meant for another");
        assert!(StaticTokens::parse("a,b\n", own).is_err());
    }
}
