//! Authentication and authorization: the flags, under upstream's names, and what they configure.

use crate::authorities;
use crate::pki::Pki;
use crate::reload::{EVERY, Followed};
use crate::tokens::AdminToken;
use apiserver::{Anonymous, BootstrapTokens, Certificates, FrontProxy};
use auth::abac::Policies;
use auth::config::{self, Authentication, Hook, Mode, StaticTokens};
use auth::jwt::{PrivateKey, PublicKey};
use auth::oidc::{Issuer, Mapping, Oidc};
use auth::reloaded::{Deciding, Issuers};
use auth::remote::Remote;
use auth::union::{Always, Masters, Union};
use auth::webhook::{OnFailure, WebhookAuthorizer, WebhookTokens};
use auth::{Authorizer, Decision, TokenAuthenticator, Tokens};
use auth::{NodeAuthorizer, RbacCache};
use clap::Args;
use jiff::SignedDuration;
use meta::{Clock, Rng};
use registry::Registry;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use strategies::authentication::service_account::{ServiceAccountTokens, Settings};
use supervisor::{Component, OnEnd};

const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

#[derive(Args, Clone, Debug)]
#[group(id = "access")]
pub struct Options {
    /// CA certificates (PEM) for client certificates, in addition to the cluster's own CA.
    #[arg(long)]
    pub client_ca_file: Option<PathBuf>,
    /// Allows anonymous requests. Otherwise they may only use the health endpoints.
    #[arg(long)]
    pub anonymous_auth: bool,
    /// A file of static tokens with lines token,user,uid,"group,group".
    #[arg(long)]
    pub token_auth_file: Option<PathBuf>,
    /// Accepts bootstrap tokens: secrets of the type bootstrap.kubernetes.io/token in kube-system.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub enable_bootstrap_token_auth: bool,
    /// CA certificates (PEM) of authenticating proxies, which set user headers. Default: the cluster's own front-proxy CA.
    #[arg(long)]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Common names of such proxies; if empty with --requestheader-client-ca-file, any name is accepted.
    #[arg(long, value_delimiter = ',')]
    pub requestheader_allowed_names: Vec<String>,
    #[arg(long, value_delimiter = ',', default_value = "X-Remote-User")]
    pub requestheader_username_headers: Vec<String>,
    #[arg(long, value_delimiter = ',', default_value = "X-Remote-Uid")]
    pub requestheader_uid_headers: Vec<String>,
    #[arg(long, value_delimiter = ',', default_value = "X-Remote-Group")]
    pub requestheader_group_headers: Vec<String>,
    #[arg(long, value_delimiter = ',', default_value = "X-Remote-Extra-")]
    pub requestheader_extra_headers_prefix: Vec<String>,
    /// The OpenID Connect issuer whose tokens are accepted.
    #[arg(long, requires = "oidc_client_id", conflicts_with = "authentication_config")]
    pub oidc_issuer_url: Option<String>,
    /// The client ID that must be in the audience of its tokens.
    #[arg(long)]
    pub oidc_client_id: Option<String>,
    /// CA certificates (PEM) of the issuer. Default: those of the system.
    #[arg(long)]
    pub oidc_ca_file: Option<PathBuf>,
    #[arg(long, default_value = "sub")]
    pub oidc_username_claim: String,
    /// Prefix of user names; `-` for none. Default: the issuer and `#`, unless the claim is `email`.
    #[arg(long)]
    pub oidc_username_prefix: Option<String>,
    #[arg(long)]
    pub oidc_groups_claim: Option<String>,
    #[arg(long, default_value = "")]
    pub oidc_groups_prefix: String,
    /// Required claims of tokens: key=value.
    #[arg(long, value_delimiter = ',')]
    pub oidc_required_claim: Vec<String>,
    #[arg(long, value_delimiter = ',', default_value = "RS256")]
    pub oidc_signing_algs: Vec<String>,
    /// File with an AuthenticationConfiguration.
    #[arg(long)]
    pub authentication_config: Option<PathBuf>,
    /// Kubeconfig of the token authentication webhook.
    #[arg(long)]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    #[arg(long, default_value = "v1beta1", value_parser = ["v1", "v1beta1"])]
    pub authentication_token_webhook_version: String,
    #[arg(long, default_value = "2m")]
    pub authentication_token_webhook_cache_ttl: SignedDuration,
    /// Authorization modes, in order: AlwaysAllow, AlwaysDeny, ABAC, Webhook, RBAC, Node. Default: Node,RBAC.
    #[arg(long, value_delimiter = ',', conflicts_with = "authorization_config")]
    pub authorization_mode: Vec<String>,
    /// Policy file of the mode ABAC: one JSON object per line.
    #[arg(long)]
    pub authorization_policy_file: Option<PathBuf>,
    /// Kubeconfig of the authorization webhook, for the mode Webhook.
    #[arg(long)]
    pub authorization_webhook_config_file: Option<PathBuf>,
    #[arg(long, default_value = "v1beta1", value_parser = ["v1", "v1beta1"])]
    pub authorization_webhook_version: String,
    #[arg(long, default_value = "5m")]
    pub authorization_webhook_cache_authorized_ttl: SignedDuration,
    #[arg(long, default_value = "30s")]
    pub authorization_webhook_cache_unauthorized_ttl: SignedDuration,
    /// File with an AuthorizationConfiguration.
    #[arg(long)]
    pub authorization_config: Option<PathBuf>,
    /// Issuer of service account tokens; tokens of additional issuers are accepted too.
    #[arg(long)]
    pub service_account_issuer: Vec<String>,
    /// Public keys (PEM) that verify service account tokens.
    #[arg(long)]
    pub service_account_key_file: Vec<PathBuf>,
    /// Private key (PEM) that signs service account tokens. Default: the cluster's own.
    #[arg(long)]
    pub service_account_signing_key_file: Option<PathBuf>,
    #[arg(long)]
    pub service_account_max_token_expiration: Option<SignedDuration>,
    /// Pod tokens that are requested for an hour are valid for a year.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub service_account_extend_token_expiration: bool,
    /// URI of the key set (JWKS) for verifying tokens. Default: this server.
    #[arg(long)]
    pub service_account_jwks_uri: Option<String>,
    /// Audiences of this server. Default: the issuer.
    #[arg(long, value_delimiter = ',')]
    pub api_audiences: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("--{flag}: {why}")]
    Flag { flag: &'static str, why: String },
}

fn bad(flag: &'static str) -> impl Fn(&dyn std::fmt::Display) -> Error {
    move |why| Error::Flag { flag, why: why.to_string() }
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|source| Error::File { path: path.into(), source })
}

fn read_if(path: Option<&PathBuf>) -> Result<Option<String>, Error> {
    path.map(|p| read(p)).transpose()
}

fn seconds(d: SignedDuration) -> Duration {
    Duration::try_from(d).unwrap_or_default()
}

/// Authentication and authorization of the API server.
pub struct Access {
    pub tokens: Arc<Tokens>,
    pub accounts: Arc<ServiceAccountTokens>,
    pub rbac: Arc<RbacCache>,
    pub authorizer: Arc<dyn Authorizer>,
    /// Whether the mode RBAC is configured.
    pub by_roles: bool,
    pub certificates: Certificates,
    pub front_proxy: FrontProxy,
    pub anonymous: Anonymous,
    /// The data of `extension-apiserver-authentication`, with which extension API servers authenticate the same clients.
    pub client_ca: String,
    pub proxy_ca: String,
    /// The files of these CAs, if they come from files.
    pub client_ca_file: Option<Followed>,
    pub proxy_ca_file: Option<Followed>,
    node: Arc<NodeAuthorizer>,
    bootstrap: Option<Arc<BootstrapTokens>>,
}

impl Access {
    pub async fn new(
        o: &Options,
        pki: &Pki,
        admin: &str,
        clock: &Arc<dyn Clock>,
        rng: &Arc<dyn Rng>,
        component: &Component,
    ) -> Result<Self, Error> {
        let issuers = if o.service_account_issuer.is_empty() {
            vec![ISSUER.to_owned()]
        } else {
            o.service_account_issuer.clone()
        };
        let audiences = if o.api_audiences.is_empty() { issuers[..1].to_vec() } else { o.api_audiences.clone() };
        let accounts = service_accounts(o, pki, issuers, audiences.clone(), clock, rng)?;
        let file = read_if(o.authentication_config.as_ref())?;
        let structured = file.as_ref().map(|t| Authentication::parse(t)).transpose();
        let structured = structured.map_err(|e| bad("authentication-config")(&e))?.unwrap_or_default();
        let mut all: Vec<Arc<dyn TokenAuthenticator>> = vec![Arc::new(AdminToken::new(admin, audiences.clone()))];
        if let Some(table) = read_if(o.token_auth_file.as_ref())? {
            let t = StaticTokens::parse(&table, audiences.clone()).map_err(|e| bad("token-auth-file")(&e))?;
            all.push(Arc::new(t));
        }
        all.push(accounts.clone());
        let bootstrap = o.enable_bootstrap_token_auth.then(|| BootstrapTokens::new(clock.clone(), audiences.clone()));
        if let Some(b) = &bootstrap {
            all.push(b.clone());
        }
        if let Some(issuer) = flags_issuer(o)? {
            all.push(Arc::new(Oidc::new(issuer, audiences.clone(), clock.clone())));
        }
        let issuers = Arc::new(Issuers::default());
        issuers.replace(oidc(structured.issuers, &audiences, clock));
        all.push(issuers.clone());
        if let Some(file) = &o.authentication_token_webhook_config_file {
            let remote = Remote::of_file(file.clone(), Duration::from_secs(30), clock).await;
            all.push(Arc::new(WebhookTokens {
                remote: remote.map_err(|e| bad("authentication-token-webhook-config-file")(&e))?,
                version: o.authentication_token_webhook_version.clone(),
                lasts: seconds(o.authentication_token_webhook_cache_ttl),
                audiences: audiences.clone(),
                known: Default::default(),
            }));
        }
        let of_clients = read_if(o.client_ca_file.as_ref())?;
        let of_proxies = read_if(o.requestheader_client_ca_file.as_ref())?;
        let client_ca = authorities::clients(pki, of_clients.as_deref().unwrap_or_default());
        let proxy_ca = of_proxies.clone().unwrap_or_else(|| pki.proxy_ca_pem.clone());
        let certificates = Certificates::new(&client_ca, Some(&proxy_ca)).map_err(|e| bad("client-ca-file")(&e))?;
        let rbac = RbacCache::new();
        let node = NodeAuthorizer::new(rbac.clone());
        let modes = modes(o)?;
        let by_roles = modes.iter().any(|m| matches!(m, Mode::Rbac));
        let deciding = Arc::new(Deciding::new(union(modes, &rbac, &node, clock).await?));
        let authorizer: Arc<dyn Authorizer> = deciding.clone();
        if let (Some(path), Some(seen)) = (&o.authentication_config, file) {
            let (path, audiences, clock) = (path.clone(), audiences.clone(), clock.clone());
            component.spawn("authentication-configuration", OnEnd::Restart, move || {
                follow_issuers(path.clone(), seen.clone(), issuers.clone(), audiences.clone(), clock.clone())
            });
        }
        if let Some(path) = &o.authorization_config {
            let (path, seen) = (path.clone(), read(path)?);
            let (rbac, node, clock) = (rbac.clone(), node.clone(), clock.clone());
            component.spawn("authorization-configuration", OnEnd::Restart, move || {
                let (path, seen, deciding) = (path.clone(), seen.clone(), deciding.clone());
                follow_authorizers(path, seen, deciding, rbac.clone(), node.clone(), clock.clone())
            });
        }
        Ok(Self {
            tokens: Arc::new(Tokens { all, audiences }),
            accounts,
            rbac,
            authorizer,
            by_roles,
            certificates,
            front_proxy: FrontProxy {
                allowed_names: allowed_names(o),
                username_headers: o.requestheader_username_headers.clone(),
                uid_headers: o.requestheader_uid_headers.clone(),
                group_headers: o.requestheader_group_headers.clone(),
                extra_headers_prefixes: o.requestheader_extra_headers_prefix.clone(),
            },
            anonymous: match structured.anonymous {
                Some(a) if !a.enabled => Anonymous::Nothing,
                Some(a) if !a.paths.is_empty() => Anonymous::Paths(a.paths),
                Some(_) => Anonymous::Everything,
                None if o.anonymous_auth => Anonymous::Everything,
                None => Anonymous::default(),
            },
            client_ca,
            proxy_ca,
            client_ca_file: followed(o.client_ca_file.as_ref(), of_clients),
            proxy_ca_file: followed(o.requestheader_client_ca_file.as_ref(), of_proxies),
            node,
            bootstrap,
        })
    }

    /// Connects the authenticators and authorizers that read stored objects. Before that they know none.
    pub fn attach(&self, registry: &Arc<Registry>) {
        self.accounts.attach(registry);
        self.node.attach(&registry.store);
        if let Some(b) = &self.bootstrap {
            b.attach(registry);
        }
    }
}

/// The cluster's own proxy has a fixed name; with another CA the flag lists the accepted names.
fn allowed_names(o: &Options) -> Vec<String> {
    match (&o.requestheader_client_ca_file, &o.requestheader_allowed_names[..]) {
        (None, []) => vec![crate::pki::FRONT_PROXY.to_owned()],
        (_, names) => names.to_vec(),
    }
}

fn followed(path: Option<&PathBuf>, seen: Option<String>) -> Option<Followed> {
    Some(Followed::new(path?.clone(), seen?, EVERY))
}

fn service_accounts(
    o: &Options,
    pki: &Pki,
    issuers: Vec<String>,
    audiences: Vec<String>,
    clock: &Arc<dyn Clock>,
    rng: &Arc<dyn Rng>,
) -> Result<Arc<ServiceAccountTokens>, Error> {
    let key = match read_if(o.service_account_signing_key_file.as_ref())? {
        Some(pem) => PrivateKey::from_pem(&pem).map_err(|e| bad("service-account-signing-key-file")(&e))?,
        None => pki.token_key().map_err(|e| bad("service-account-signing-key-file")(&e))?,
    };
    let mut keys = Vec::new();
    for file in &o.service_account_key_file {
        keys.extend(PublicKey::from_pem(&read(file)?).map_err(|e| bad("service-account-key-file")(&e))?);
    }
    let max_seconds = o.service_account_max_token_expiration.map(|d| d.as_secs()).filter(|s| *s > 0);
    if max_seconds.is_some_and(|s| !(3600..=1 << 32).contains(&s)) {
        let why = "must be at least an hour and at most 2^32 seconds";
        return Err(bad("service-account-max-token-expiration")(&why));
    }
    let extend = o.service_account_extend_token_expiration;
    let settings = Settings { issuers, audiences, max_seconds, extend };
    ServiceAccountTokens::new(key, keys, settings, clock.clone(), rng.clone())
        .map_err(|e| bad("service-account-signing-key-file")(&e))
}

/// The issuer of the `--oidc-…` flags.
fn flags_issuer(o: &Options) -> Result<Option<Issuer>, Error> {
    let (Some(url), Some(client)) = (&o.oidc_issuer_url, &o.oidc_client_id) else { return Ok(None) };
    if !url.starts_with("https://") {
        return Err(bad("oidc-issuer-url")(&"URL scheme must be https"));
    }
    let required = o.oidc_required_claim.iter().map(|c| {
        let (k, v) = c.split_once('=').ok_or_else(|| bad("oidc-required-claim")(&format!("{c:?} is no key=value")))?;
        Ok((k.to_owned(), v.to_owned()))
    });
    let prefix = match o.oidc_username_prefix.as_deref() {
        Some("-") => String::new(),
        Some(p) => p.to_owned(),
        None if o.oidc_username_claim == "email" => String::new(),
        None => format!("{url}#"),
    };
    Ok(Some(Issuer {
        url: url.clone(),
        ca: read_if(o.oidc_ca_file.as_ref())?.unwrap_or_default(),
        audiences: vec![client.clone()],
        algorithms: o.oidc_signing_algs.clone(),
        username: Mapping { claim: o.oidc_username_claim.clone(), prefix },
        groups: o.oidc_groups_claim.clone().map(|claim| Mapping { claim, prefix: o.oidc_groups_prefix.clone() }),
        required: required.collect::<Result<_, Error>>()?,
        ..Issuer::default()
    }))
}

/// Whether the Node authorizer is enabled, which requires that nodes cannot change what it relies on.
pub fn authorizes_nodes(o: &Options) -> Result<bool, Error> {
    Ok(modes(o)?.contains(&Mode::Node))
}

fn modes(o: &Options) -> Result<Vec<Mode>, Error> {
    if let Some(text) = read_if(o.authorization_config.as_ref())? {
        return config::authorization(&text).map_err(|e| bad("authorization-config")(&e));
    }
    let usual = ["Node".to_owned(), "RBAC".to_owned()];
    let named = if o.authorization_mode.is_empty() { &usual[..] } else { &o.authorization_mode };
    let mut out = Vec::new();
    for n in named {
        let mode = match &**n {
            "AlwaysAllow" => Mode::AlwaysAllow,
            "AlwaysDeny" => Mode::AlwaysDeny,
            "Node" => Mode::Node,
            "RBAC" => Mode::Rbac,
            "ABAC" => {
                let Some(text) = read_if(o.authorization_policy_file.as_ref())? else {
                    let why = "authorization-mode ABAC's authorization policy file not passed";
                    return Err(bad("authorization-mode")(&why));
                };
                Mode::Abac(Policies::parse(&text).map_err(|e| bad("authorization-policy-file")(&e))?)
            }
            "Webhook" => {
                let Some(kubeconfig) = o.authorization_webhook_config_file.clone() else {
                    let why = "authorization-mode Webhook's authorization config file not passed";
                    return Err(bad("authorization-mode")(&why));
                };
                Mode::Webhook(Box::new(Hook {
                    name: "default".into(),
                    kubeconfig,
                    version: o.authorization_webhook_version.clone(),
                    timeout: Duration::from_secs(30),
                    allowed_lasts: seconds(o.authorization_webhook_cache_authorized_ttl),
                    refused_lasts: seconds(o.authorization_webhook_cache_unauthorized_ttl),
                    denies_on_failure: false,
                    conditions: Default::default(),
                }))
            }
            other => {
                return Err(bad("authorization-mode")(&format!("authorization-mode {other:?} is not a valid mode")));
            }
        };
        if out.contains(&mode) {
            return Err(bad("authorization-mode")(&format!("authorization-mode {n:?} is specified more than once")));
        }
        out.push(mode);
    }
    if o.authorization_policy_file.is_some() && !out.iter().any(|m| matches!(m, Mode::Abac(_))) {
        return Err(bad("authorization-policy-file")(&"cannot be specified without mode ABAC"));
    }
    Ok(out)
}

fn oidc(issuers: Vec<Issuer>, audiences: &[String], clock: &Arc<dyn Clock>) -> Vec<Arc<dyn TokenAuthenticator>> {
    let one = |i| -> Arc<dyn TokenAuthenticator> { Arc::new(Oidc::new(i, audiences.to_vec(), clock.clone())) };
    issuers.into_iter().map(one).collect()
}

/// Reloads the issuers; the anonymous setting is only read at the start.
async fn follow_issuers(
    path: PathBuf,
    seen: String,
    issuers: Arc<Issuers>,
    audiences: Vec<String>,
    clock: Arc<dyn Clock>,
) {
    let mut file = Followed::new(path, seen, EVERY);
    loop {
        let now = Authentication::parse(&file.changed().await);
        file.log_result(now.map(|a| issuers.replace(oidc(a.issuers, &audiences, &clock))));
    }
}

async fn follow_authorizers(
    path: PathBuf,
    seen: String,
    deciding: Arc<Deciding>,
    rbac: Arc<RbacCache>,
    node: Arc<NodeAuthorizer>,
    clock: Arc<dyn Clock>,
) {
    let mut file = Followed::new(path, seen, EVERY);
    loop {
        let now = match config::authorization(&file.changed().await) {
            Ok(modes) => union(modes, &rbac, &node, &clock).await.map_err(|e| e.to_string()),
            Err(e) => Err(e),
        };
        file.log_result(now.map(|a| deciding.replace(a)));
    }
}

/// Builds the chain of authorizers.
async fn union(
    modes: Vec<Mode>,
    rbac: &Arc<RbacCache>,
    node: &Arc<NodeAuthorizer>,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Authorizer>, Error> {
    let mut all: Vec<Arc<dyn Authorizer>> = vec![Arc::new(Masters)];
    for mode in modes {
        all.push(match mode {
            Mode::AlwaysAllow => Arc::new(Always(Decision::Allow(String::new()))),
            Mode::AlwaysDeny => Arc::new(Always(Decision::NoOpinion("Everything is forbidden.".into()))),
            Mode::Abac(policies) => Arc::new(policies),
            Mode::Rbac => rbac.clone(),
            Mode::Node => node.clone(),
            Mode::Webhook(h) => {
                let remote = Remote::of_file(h.kubeconfig, h.timeout, clock).await;
                Arc::new(WebhookAuthorizer {
                    remote: remote.map_err(|e| bad("authorization-webhook-config-file")(&e))?,
                    version: h.version,
                    allowed_lasts: h.allowed_lasts,
                    refused_lasts: h.refused_lasts,
                    on_failure: if h.denies_on_failure { OnFailure::Deny } else { OnFailure::NoOpinion },
                    conditions: h.conditions,
                    known: Default::default(),
                })
            }
        });
    }
    Ok(Arc::new(Union(all)))
}
