//! A running command: its shell and global flags, and on demand the configuration, client and discovery that follow from
//! them.

use crate::discovery::{Discovery, Resource, TTL};
use crate::error::{Result, text};
use crate::flags::GlobalFlags;
use crate::shell::{Connect, Shell, Stream};
use client::https::Credentials;
use client::kubeconfig::{Overrides, Resolved, Sources};
use client::log::{LEAST, Logged};
use client::{Api, Client, Impersonation};
use jiff::Timestamp;
use meta::{Gvk, Object};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The annotation with the cause of the last change.
pub const CHANGE_CAUSE: &str = "kubernetes.io/change-cause";

/// The pause between two requests that wait for the same state.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The state of a running command.
pub struct Kube {
    pub out: Stream,
    pub err: Stream,
    pub shell: Shell,
    pub global: GlobalFlags,
    /// The Go scheme with which the command decodes objects, as messages name it. Without one it accepts any object.
    pub scheme: Option<&'static str>,
    resolved: Option<Arc<Resolved>>,
    client: Option<Client>,
    discovery: Option<Arc<Discovery>>,
    /// Whether this run has fetched discovery from the server, and not from the cache.
    fresh: bool,
    /// How many different warnings the server has sent.
    warnings: Arc<AtomicUsize>,
}

impl Kube {
    pub fn new(shell: Shell, global: GlobalFlags) -> Self {
        let (out, err) = (shell.out.clone(), shell.err.clone());
        let warnings = Arc::new(AtomicUsize::new(0));
        Self {
            out,
            err,
            shell,
            global,
            scheme: None,
            resolved: None,
            client: None,
            discovery: None,
            fresh: false,
            warnings,
        }
    }

    /// Prints a line to standard output.
    pub fn println(&self, line: impl AsRef<str>) {
        self.out.write(format!("{}\n", line.as_ref()).as_bytes());
    }

    /// Prints a line to standard error.
    pub fn warn(&self, line: impl AsRef<str>) {
        self.out.flush();
        self.err.write(format!("{}\n", line.as_ref()).as_bytes());
    }

    /// Returns the current time.
    pub fn now(&self) -> Timestamp {
        self.shell.clock.now()
    }

    /// Returns the kubeconfig files to read.
    pub fn sources(&self) -> Sources {
        let explicit = (!self.global.kubeconfig.is_empty()).then(|| PathBuf::from(&self.global.kubeconfig));
        Sources::find(explicit, |n| (self.shell.environment)(n))
    }

    /// Returns the configuration: kubeconfig and flags, resolved once.
    pub fn resolved(&mut self) -> Result<Arc<Resolved>> {
        if let Some(r) = &self.resolved {
            return Ok(r.clone());
        }
        let g = &self.global;
        let overrides = Overrides {
            context: g.context.clone(),
            cluster: g.cluster.clone(),
            user: g.user.last().cloned().unwrap_or_default(),
            namespace: g.namespace.clone(),
            server: g.server.clone(),
            certificate_authority: g.certificate_authority.clone(),
            insecure_skip_tls_verify: g.insecure_skip_tls_verify,
            tls_server_name: g.tls_server_name.clone(),
            client_certificate: g.client_certificate.clone(),
            client_key: g.client_key.clone(),
            token: g.token.clone(),
            username: g.username.clone(),
            password: g.password.clone(),
            impersonation: Impersonation {
                user: g.impersonate.clone(),
                uid: g.as_uid.clone(),
                groups: g.as_group.clone(),
                extra: extras(&g.as_user_extra)?,
            },
            request_timeout: request_timeout(&g.request_timeout)?,
            disable_http2: false,
            stdin_in_use: g.stdin_in_use,
        };
        let sources = self.sources();
        let r = Arc::new(sources.resolve(&overrides, |n| (self.shell.environment)(n))?);
        if self.global.verbosity >= LEAST {
            for path in sources.existing() {
                let head = client::log::head('I', self.now(), &self.shell.zone, "loader.go:407");
                self.warn(format!("{head}Config loaded from file:  {}", path.display()));
            }
        }
        self.resolved = Some(r.clone());
        Ok(r)
    }

    /// Returns the client, connected on first use.
    pub async fn client(&mut self) -> Result<Client> {
        if let Some(c) = &self.client {
            return Ok(c.clone());
        }
        let client = match &self.shell.connect {
            Connect::Given(c) => c.clone(),
            Connect::Configured => {
                if let Some(plugin) = self.resolved()?.plugin() {
                    crate::kuberc::allows(plugin, &self.global.kuberc, &self.shell).map_err(client::Error::Plugin)?;
                }
                let agent = format!("kubectl/{} ({}/{})", crate::VERSION, std::env::consts::OS, arch());
                self.resolved()?.client(&agent, &self.shell.clock).await?
            }
        };
        let client = if self.global.verbosity >= LEAST { self.logged(client) } else { client };
        let err = self.err.clone();
        let (seen, count) = (Mutex::new(Vec::<String>::new()), self.warnings.clone());
        let client = client.with_warnings(move |w| {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            if !seen.iter().any(|s| s == w) {
                err.write(format!("Warning: {w}\n").as_bytes());
                seen.push(w.to_owned());
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        if self.global.match_server_version {
            same_version(&client).await?;
        }
        self.client = Some(client.clone());
        Ok(client)
    }

    /// Adjusts the flags of a command with a default format: a template overrides that default.
    pub fn print_flags(&self, flags: &crate::flags::PrintFlags) -> crate::flags::PrintFlags {
        let mut flags = flags.clone();
        if !flags.template.is_empty() && !self.global.own.iter().any(|f| f == "output") {
            flags.output.clear();
        }
        flags
    }

    /// Stores the command line as the cause of a change in the object (`--record`).
    pub fn record(&self, o: &mut Object) {
        if let Some(cause) = &self.global.cause {
            o.set_annotation(CHANGE_CAUSE, cause);
        }
    }

    /// Ends a successful command (`--warnings-as-errors`).
    ///
    /// # Errors
    /// The server sent warnings, and they count as errors.
    pub fn check_warnings(&self) -> Result {
        match self.warnings.load(Ordering::Relaxed) {
            n @ 1.. if self.global.warnings_as_errors => {
                text(format!("{n} warning{} received", if n == 1 { "" } else { "s" }))
            }
            _ => Ok(()),
        }
    }

    /// Returns the client with a log of its requests (`-v`).
    fn logged(&self, client: Client) -> Client {
        let https = self.resolved.as_ref().map(|r| &r.https);
        let authorization = https.and_then(|h| match h.credentials {
            Credentials::None => None,
            Credentials::Bearer(_) | Credentials::BearerFile(_) => Some("Bearer"),
            Credentials::Basic { .. } => Some("Basic"),
        });
        let server = https.map(|h| h.server.trim_end_matches('/').to_owned()).unwrap_or_default();
        let (level, clock, err) = (self.global.verbosity, self.shell.clock.clone(), self.err.clone());
        let zone = self.shell.zone.clone();
        let write = Box::new(move |line: &str| err.write(line.as_bytes()));
        client.over(|inner| Arc::new(Logged { inner, level, server, authorization, clock, zone, write }))
    }

    /// Returns the namespace of this command, and whether a flag sets it.
    pub fn namespace(&mut self) -> Result<(String, bool)> {
        if !self.global.namespace.is_empty() {
            return Ok((self.global.namespace.clone(), true));
        }
        if matches!(self.shell.connect, Connect::Given(_)) {
            return Ok(("default".into(), false));
        }
        Ok((self.resolved()?.namespace.clone(), false))
    }

    /// Returns the address of the server.
    pub fn server(&mut self) -> Result<String> {
        Ok(self.resolved()?.https.server.clone())
    }

    fn cache_file(&mut self) -> Option<PathBuf> {
        if matches!(self.shell.connect, Connect::Given(_)) {
            return None;
        }
        let dir = if !self.global.cache_dir.is_empty() {
            PathBuf::from(&self.global.cache_dir)
        } else if let Some(d) = (self.shell.environment)("KUBECACHEDIR") {
            PathBuf::from(d)
        } else {
            PathBuf::from((self.shell.environment)("HOME")?).join(".kube/cache")
        };
        let server = self.server().ok()?;
        let host = server.split_once("://").map_or(server.as_str(), |(_, h)| h);
        let safe: String =
            host.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' }).collect();
        Some(dir.join("discovery").join(safe).join("kemudi-resources.json"))
    }

    /// Returns the discovery of the server, from the cache if it is fresh.
    pub async fn discovery(&mut self) -> Result<Arc<Discovery>> {
        if let Some(d) = &self.discovery {
            return Ok(d.clone());
        }
        if let Some(path) = self.cache_file()
            && let Ok(modified) = std::fs::metadata(&path).and_then(|m| m.modified())
            && let Ok(modified) = Timestamp::try_from(modified)
            && (0..TTL).contains(&(self.now().as_second() - modified.as_second()))
            && let Some(d) = Discovery::load(&path)
        {
            let d = Arc::new(d);
            self.discovery = Some(d.clone());
            return Ok(d);
        }
        self.refresh().await
    }

    /// Fetches discovery from the server, as far as it has changed.
    pub async fn refresh(&mut self) -> Result<Arc<Discovery>> {
        let client = self.client().await?;
        let path = self.cache_file();
        let known = match &self.discovery {
            Some(d) => d.clone(),
            None => Arc::new(path.as_deref().and_then(Discovery::load).unwrap_or_default()),
        };
        let d = Arc::new(Discovery::fetch(&client, &known).await?);
        if let Some(path) = path {
            d.save(&path, self.shell.rng.next_u64());
        }
        self.discovery = Some(d.clone());
        self.fresh = true;
        Ok(d)
    }

    async fn look_up(&mut self, find: impl Fn(&Discovery) -> Option<Arc<Resource>>) -> Result<Option<Arc<Resource>>> {
        let found = find(&*self.discovery().await?);
        if found.is_some() || self.fresh {
            return Ok(found);
        }
        Ok(find(&*self.refresh().await?))
    }

    /// Finds the resource that a word names; `None` if the server has none.
    pub async fn find_resource(&mut self, word: &str) -> Result<Option<Arc<Resource>>> {
        let Some(r) = self.look_up(|d| d.by_word(word)).await? else { return Ok(None) };
        for other in self.discovery().await?.also_named(word, &r) {
            let name = word.split('.').next().unwrap_or(word);
            self.warn(format!("Warning: short name {name:?} could also match lower priority resource {other}"));
        }
        Ok(Some(r))
    }

    /// Finds the resource that a word names.
    pub async fn resource(&mut self, word: &str) -> Result<Arc<Resource>> {
        match self.find_resource(word).await? {
            Some(r) => Ok(r),
            // The message omits the group, as in upstream.
            None => {
                text(format!("the server doesn't have a resource type {:?}", word.split('.').next().unwrap_or(word)))
            }
        }
    }

    /// Finds the resource of a kind; `None` if the server has none.
    pub async fn resource_of(&mut self, gvk: &Gvk) -> Result<Option<Arc<Resource>>> {
        self.look_up(|d| d.by_kind(gvk)).await
    }

    /// Returns the API of a resource, in a namespace unless it is empty.
    pub async fn api(&mut self, r: &Resource, namespace: &str) -> Result<Api<Object>> {
        let api = self.client().await?.dynamic(&r.api());
        Ok(if namespace.is_empty() { api } else { api.namespace(namespace) })
    }

    /// Drops discovery from memory and cache: this command has changed the server's resources.
    pub fn forget_discovery(&mut self) {
        self.discovery = None;
        self.fresh = false;
        if let Some(path) = self.cache_file() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Checks `--match-server-version`.
async fn same_version(client: &Client) -> Result {
    let server: meta::Value = client.get("/version").await?;
    let server = server["gitVersion"].as_str().unwrap_or_default().to_owned();
    if server == crate::VERSION {
        return Ok(());
    }
    text(format!("server version ({server}) differs from client version ({})", crate::VERSION))
}

/// Returns Go's name of the processor architecture.
pub fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Parses `--as-user-extra`.
fn extras(given: &[String]) -> Result<Vec<(String, String)>> {
    let pair = |e: &String| match e.split_once('=') {
        Some((k, v)) if !k.is_empty() => Ok((k.to_owned(), v.to_owned())),
        _ => text(format!("invalid argument {e:?} for \"--as-user-extra\" flag: {e} must be formatted as key=value")),
    };
    given.iter().map(pair).collect()
}

/// Parses `--request-timeout`; `None` is no limit.
pub fn request_timeout(given: &str) -> Result<Option<Duration>> {
    if given.is_empty() || given == "0" {
        return Ok(None);
    }
    let d = match given.parse::<u64>() {
        Ok(s) => Some(Duration::from_secs(s)),
        Err(_) => crate::flags::parse_duration(given),
    };
    match d {
        Some(d) if d.is_zero() => Ok(None),
        Some(d) => Ok(Some(d)),
        None => text(
            "Invalid timeout value. Timeout must be a single integer in seconds, or an integer followed by a corresponding time unit (e.g. 1s | 2m | 3h)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    /// Every command with `--record` stores its command line in the object; others reject the flag.
    #[tokio::test]
    async fn records_the_command_line_as_cause() {
        let deployment = json!({
            "kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "w", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}},
        });
        let service =
            json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "s"}, "spec": {"selector": {"a": "b"}}});
        let file = format!("# A file.\n{deployment}\n");
        let (d, svc) = ("/apis/apps/v1/namespaces/default/deployments", "/api/v1/namespaces/default/services");
        for (line, sent) in [
            ("set image deploy/w c=j --record", format!("PATCH {d}/w?fieldManager=kubectl-set")),
            ("set resources deploy/w --limits=cpu=1 --record", format!("PATCH {d}/w?fieldManager=kubectl-set")),
            ("set serviceaccount deploy/w x --record", format!("PATCH {d}/w?fieldManager=kubectl-set")),
            ("set selector svc/s a=c --record", format!("PATCH {svc}/s?fieldManager=kubectl-set")),
            ("patch deploy w -p {} --record", format!("PATCH {d}/w?fieldManager=kubectl-patch")),
            ("scale deploy w --replicas=2 --record", format!("PATCH {d}/w")),
            ("create -f - --record", format!("POST {d}?fieldManager=kubectl-create&fieldValidation=Strict")),
            ("replace -f - --record", format!("PUT {d}/w?fieldManager=kubectl-replace&fieldValidation=Strict")),
            (
                "apply -f - --record",
                format!("PATCH {d}/w?fieldManager=kubectl-client-side-apply&fieldValidation=Strict"),
            ),
            (
                "expose deploy w --port=80 --record",
                format!("POST {svc}?fieldManager=kubectl-expose&fieldValidation=Strict"),
            ),
            (
                "run w --image=i --record",
                "POST /api/v1/namespaces/default/pods?fieldManager=kubectl-run&fieldValidation=Strict".to_owned(),
            ),
        ] {
            let mut live = deployment.clone();
            live["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": "{}"});
            let s = Server::new()
                .on(&format!("GET {d}/w"), 200, live)
                .on(&format!("GET {svc}/s"), 200, service.clone())
                .on(&format!("PATCH {d}/w/scale"), 200, json!({"spec": {"replicas": 2}}))
                .on(&sent, 200, deployment.clone());
            let output = snapshot(&s, line, &file).await;
            assert!(
                output.ends_with("! Flag --record has been deprecated, --record will be removed in the future\n"),
                "{line}: {output} {:?}",
                s.requests()
            );
            let cause = &s.body_of(&sent)["metadata"]["annotations"][super::CHANGE_CAUSE];
            assert!(
                cause.as_str().is_some_and(|c| c.starts_with("kubectl ") && c.ends_with("--record=true")),
                "{line}: {cause} {:?}",
                s.requests()
            );
        }
        for line in ["set env deploy/w A=b --record", "create namespace x --record", "get pods --record"] {
            let output = snapshot(&Server::new(), line, "").await;
            assert!(output.starts_with("! error: unknown flag: --record\n"), "{line}: {output}");
        }
    }

    /// Levels 6 to 10 log more and more of each request, never its credentials; lower levels log nothing.
    #[tokio::test]
    async fn requests_are_logged_by_level() {
        let path = "/api/v1/namespaces/default/pods/p";
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}, "x": "y".repeat(11_000)});
        let s = Server::new().on(&format!("GET {path}"), 200, pod);
        let body = r#"{\"apiVersion\":\"v1\",\"kind\":\"Pod\""#;
        let sent = format!(
            "\"Request\" verb=\"GET\" url=\"{path}\" headers=<\n! \tAccept: application/json\n! \tUser-Agent: kubectl\n!  >\n"
        );
        let line = format!("\"Response\" verb=\"GET\" url=\"{path}\" status=\"200 OK\" milliseconds=");
        for (level, present, absent) in [
            (5, vec![], vec!["Request", "Response"]),
            (6, vec![line.as_str()], vec!["\"Request\"", body]),
            (
                7,
                vec![sent.as_str(), "\"Response\" status=\"200 OK\" milliseconds="],
                vec![body, "verb=\"GET\" url=\"/api/v1/namespaces/default/pods/p\" status"],
            ),
            (8, vec![sent.as_str(), "\"Request Body\" body=\"\"", body, "chars]\""], vec!["curl"]),
            (
                9,
                vec![
                    "curl -v -XGET  -H \"Accept: application/json\" -H \"User-Agent: kubectl\" '/api/v1/namespaces/default/pods/p'\n!  >\n",
                    "[truncated",
                ],
                vec![],
            ),
            (10, vec![body], vec!["[truncated"]),
        ] {
            let output = snapshot(&s, &format!("get pod p -o name -v={level}"), "").await;
            assert!(output.starts_with("pod/p\n"), "{level}: {output}");
            present.iter().for_each(|t| assert!(output.contains(t), "{level}: {t} in {output}"));
            absent.iter().for_each(|t| assert!(!output.contains(t), "{level}: {t} in {output}"));
            if level > 5 {
                let first = output.lines().find(|l| l.starts_with("! ")).unwrap();
                assert!(first.starts_with("! I1121 12:00:00.000000 "), "{first}");
            }
        }
        let output = snapshot(&s, "get pod p -o name -v=8", "").await;
        let body = output.lines().rfind(|l| l.contains("\"Response Body\"")).unwrap();
        assert!(body.contains(&format!("[truncated {} chars]", s_len(&s, path) - 1024)), "{body}");
    }

    fn s_len(s: &Server, path: &str) -> usize {
        s.answer(&format!("GET {path}")).len()
    }

    /// A successful command fails if the server sent warnings, each counted once; a failed one reports its own error.
    #[tokio::test]
    async fn warnings_are_errors_for_every_command() {
        let path = "/api/v1/namespaces/default/pods/p";
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "default"}});
        let one = Server::new()
            .on(&format!("GET {path}"), 200, pod.clone())
            .on(&format!("PATCH {path}?fieldManager=kubectl-label"), 200, pod.clone())
            .on("POST /api/v1/namespaces/default/pods?fieldManager=kubectl-run", 200, pod)
            .warning("old");
        let two = one.clone().warning("older");
        for (server, line, expected) in [
            (
                &one,
                "get pod p -o name --warnings-as-errors",
                "pod/p\n! Warning: old\n! error: 1 warning received\nexit 1\n",
            ),
            (
                &one,
                "label pod p a=b --warnings-as-errors",
                "pod/p labeled\n! Warning: old\n! error: 1 warning received\nexit 1\n",
            ),
            (
                &two,
                "get pod p -o name --warnings-as-errors",
                "pod/p\n! Warning: old\n! Warning: older\n! error: 2 warnings received\nexit 1\n",
            ),
            (&one, "get pod p -o name", "pod/p\n! Warning: old\n"),
            (&one, "get pod p -o name --warnings-as-errors=false", "pod/p\n! Warning: old\n"),
            (
                &one,
                "get pod q -o name --warnings-as-errors",
                "! Warning: old\n! Error from server (NotFound): pods \"q\" not found\nexit 1\n",
            ),
            (&Server::new(), "get pod q --ignore-not-found --warnings-as-errors", ""),
        ] {
            assert_eq!(snapshot(server, line, "").await, expected, "{line}");
        }
    }

    #[tokio::test]
    async fn match_server_version_rejects_another_version() {
        for (version, expected) in [
            (crate::VERSION, "pod/p\n".to_owned()),
            (
                "v1.35.1",
                format!("! error: server version (v1.35.1) differs from client version ({})\nexit 1\n", crate::VERSION),
            ),
        ] {
            let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}});
            let s = Server::new().on("GET /version", 200, json!({"gitVersion": version})).on(
                "GET /api/v1/namespaces/default/pods/p",
                200,
                pod,
            );
            assert_eq!(snapshot(&s, "get pod p -o name --match-server-version", "").await, expected);
        }
    }

    /// Level 6 and above log the files that were read.
    #[test]
    fn logs_the_files_that_were_read() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, "kind: Config\n").unwrap();
        let list = format!("{}:{}", a.display(), b.display());
        for (level, expected) in [(5, 0), (6, 1)] {
            let list = list.clone();
            let (mut shell, _, err) =
                crate::testing::shell(&Server::new(), "", move |n| (n == "KUBECONFIG").then(|| list.clone()));
            shell.connect = crate::shell::Connect::Configured;
            let global = crate::flags::GlobalFlags { verbosity: level, ..Default::default() };
            super::Kube::new(shell, global).resolved().unwrap();
            let line = format!("loader.go:407] Config loaded from file:  {}\n", a.display());
            let output = err.text();
            assert_eq!((output.lines().count(), output.matches(&line).count()), (expected, expected), "{output}");
        }
    }
}
