//! Finding and merging kubeconfig files, and the in-cluster configuration.

use super::os_error;
use super::{Kubeconfig, Named, Overrides, Resolved, find, first, proxies};
use crate::Impersonation;
use crate::error::Error;
use crate::https::{Config, Credentials, Roots};
use std::path::{Path, PathBuf};

const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The files to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// `--kubeconfig`: this file only; it must exist.
    pub explicit: Option<PathBuf>,
    /// Read in this order; missing files are skipped.
    pub files: Vec<PathBuf>,
}

impl Sources {
    /// The file of `--kubeconfig`, else the list in `KUBECONFIG`, else `~/.kube/config`.
    pub fn find(explicit: Option<PathBuf>, environment: impl Fn(&str) -> Option<String>) -> Self {
        let listed = environment("KUBECONFIG").filter(|v| !v.is_empty());
        let files = match listed {
            Some(v) => v.split(':').filter(|p| !p.is_empty()).map(PathBuf::from).collect(),
            None => environment("HOME").map(|h| Path::new(&h).join(".kube/config")).into_iter().collect(),
        };
        Self { explicit, files }
    }

    /// Reads and merges the files. The result is empty if no file exists; a file that cannot be read is an error.
    pub fn load(&self) -> Result<Kubeconfig, Error> {
        self.joined(load_file)
    }

    /// The existing files, which [`Sources::load`] reads.
    pub fn existing(&self) -> Vec<&Path> {
        let all = self.explicit.iter().chain(self.files.iter().filter(|_| self.explicit.is_none()));
        all.map(PathBuf::as_path).filter(|p| p.is_file()).collect()
    }

    /// Like [`Sources::load`], but keeps relative paths as they are in the files.
    pub fn load_as_written(&self) -> Result<Kubeconfig, Error> {
        self.joined(written)
    }

    fn joined(&self, read: fn(&Path) -> Result<Option<Kubeconfig>, Error>) -> Result<Kubeconfig, Error> {
        if let Some(path) = &self.explicit {
            return read(path)?
                .ok_or_else(|| Error::Credentials(format!("stat {}: no such file or directory", path.display())));
        }
        let mut all = Kubeconfig::default();
        for path in &self.files {
            if let Some(k) = read(path)? {
                join(&mut all, k);
            }
        }
        Ok(all)
    }
}

fn written(path: &Path) -> Result<Option<Kubeconfig>, Error> {
    let wrong = |e: &dyn std::fmt::Display| {
        Error::Credentials(format!("error loading config file \"{}\": {e}", path.display()))
    };
    let text = match std::fs::read_to_string(path) {
        Ok(t) => t,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => {
            let doing = if path.is_dir() { "read" } else { "open" };
            return Err(wrong(&format!("{doing} {}: {}", path.display(), os_error(&e))));
        }
    };
    Kubeconfig::parse(&text).map(Some).map_err(|e| match e {
        Error::Credentials(why) => wrong(&why),
        e => wrong(&e),
    })
}

fn load_file(path: &Path) -> Result<Option<Kubeconfig>, Error> {
    let Some(mut k) = written(path)? else { return Ok(None) };
    // Paths in a file are relative to the file, wherever it was named from.
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let base = whole.parent().unwrap_or(Path::new("."));
    let absolute = |p: &mut String| {
        if !p.is_empty() && Path::new(p.as_str()).is_relative() {
            let joined = base.join(p.as_str());
            // Without the dots of a path such as `./plugin`.
            *p = joined.components().collect::<PathBuf>().to_string_lossy().into_owned();
        }
    };
    for c in &mut k.clusters {
        absolute(&mut c.value.certificate_authority);
    }
    for u in &mut k.users {
        absolute(&mut u.value.client_certificate);
        absolute(&mut u.value.client_key);
        absolute(&mut u.value.token_file);
        if let Some(e) = &mut u.value.exec
            && e.command.contains('/')
        {
            absolute(&mut e.command);
        }
    }
    Ok(Some(k))
}

/// Merges `next` into `all`; the first entry of a name wins.
fn join(all: &mut Kubeconfig, next: Kubeconfig) {
    fn add<T>(to: &mut Vec<Named<T>>, from: Vec<Named<T>>) {
        for n in from {
            if !to.iter().any(|o| o.name == n.name) {
                to.push(n);
            }
        }
    }
    if all.current_context.is_empty() {
        all.current_context = next.current_context;
    }
    if all.api_version.is_empty() {
        (all.api_version, all.kind) = (next.api_version, next.kind);
    }
    add(&mut all.clusters, next.clusters);
    add(&mut all.contexts, next.contexts);
    add(&mut all.users, next.users);
    for (k, v) in next.other {
        all.other.entry(k).or_insert(v);
    }
}

/// The in-cluster configuration of a pod: address from the environment, token and CA from its service account.
pub fn in_cluster(environment: impl Fn(&str) -> Option<String>) -> Result<Resolved, Error> {
    in_pod(Path::new(SERVICE_ACCOUNT), environment)
}

/// [`in_cluster`] with another directory for the files of the service account.
fn in_pod(account: &Path, environment: impl Fn(&str) -> Option<String>) -> Result<Resolved, Error> {
    let value = |n: &str| environment(n).filter(|v| !v.is_empty());
    let (Some(host), Some(port)) = (value("KUBERNETES_SERVICE_HOST"), value("KUBERNETES_SERVICE_PORT")) else {
        return Err(Error::Credentials(
            "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined".into(),
        ));
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let mut https = Config::new(format!("https://{host}:{port}"));
    let token = account.join("token");
    if !token.is_file() {
        return Err(Error::Credentials(format!("open {}: no such file or directory", token.display())));
    }
    https.credentials = Credentials::BearerFile(token);
    let ca = account.join("ca.crt");
    let pem = std::fs::read(&ca).map_err(|e| Error::Credentials(format!("{}: {e}", ca.display())))?;
    https.roots = Roots::Pem(pem);
    let named = || std::fs::read_to_string(account.join("namespace")).ok().map(|t| t.trim().to_owned());
    let namespace = value("POD_NAMESPACE").or_else(named).filter(|t| !t.is_empty());
    Ok(Resolved {
        context: String::new(),
        namespace: namespace.unwrap_or_else(|| "default".into()),
        namespace_given: false,
        https,
        impersonation: Impersonation::default(),
        request_timeout: None,
        exec: None,
    })
}

impl Sources {
    /// Resolves the configuration as `kubectl` does: from the files, or the in-cluster configuration when neither they nor a flag name a
    /// server. The default namespace of a pod is its own, whatever the server.
    pub fn resolve(&self, o: &Overrides, environment: impl Fn(&str) -> Option<String>) -> Result<Resolved, Error> {
        self.resolve_with(Path::new(SERVICE_ACCOUNT), o, environment)
    }

    fn resolve_with(
        &self,
        account: &Path,
        o: &Overrides,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Resolved, Error> {
        let k = self.load()?;
        let mut r = k.resolve(o)?;
        if let Ok(pod) = in_pod(account, &environment) {
            if !r.namespace_given {
                r.namespace = pod.namespace;
            }
            if !k.names_server_or_user(o) {
                r.https.server = pod.https.server;
                // Of the flags only the token applies; the others belong to a server that was not named.
                r.https.credentials = match o.token.as_str() {
                    "" => pod.https.credentials,
                    token => Credentials::Bearer(token.to_owned()),
                };
                if r.https.roots == Roots::System {
                    r.https.roots = pod.https.roots;
                }
                (r.https.insecure, r.https.server_name, r.https.identity) = (false, None, None);
                r.exec = None;
                return Ok(r);
            }
        }
        if r.https.proxy.is_none() {
            r.https.proxy = proxies::find(&r.https.server, environment)?;
        }
        Ok(r)
    }
}

impl Kubeconfig {
    /// Whether the context or a flag names a server, or the context names a user.
    fn names_server_or_user(&self, o: &Overrides) -> bool {
        let context = find(&self.contexts, first(&o.context, &self.current_context));
        let (cluster, user) = context.map_or(("", ""), |c| (c.cluster.as_str(), c.user.as_str()));
        let server = find(&self.clusters, first(&o.cluster, cluster)).is_some_and(|c| !c.server.is_empty());
        !o.server.is_empty() || server || find(&self.users, first(&o.user, user)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "
apiVersion: v1
kind: Config
current-context: one
clusters:
- name: c
  cluster: {server: 'https://a:6443', certificate-authority: ca.pem}
contexts:
- name: one
  context: {cluster: c, user: u, namespace: team}
users:
- name: u
  user: {tokenFile: t}
";
    const B: &str = "
current-context: two
clusters:
- name: c
  cluster: {server: 'https://b:6443'}
contexts:
- name: two
  context: {cluster: c, user: v}
users:
- name: v
  user: {token: abc, as: jane, as-groups: [g]}
";

    /// An exec plugin runs only for users without other credentials (client-go `exec.UpdateTransportConfig`).
    #[test]
    fn exec_plugins_are_for_users_without_other_credentials() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        let exec = "exec: {apiVersion: client.authentication.k8s.io/v1, command: nothing, interactiveMode: Never}";
        for (user, runs) in [
            ("", true),
            ("token: abc, ", false),
            ("username: a, password: b, ", false),
            ("client-certificate-data: YQ==, client-key-data: Yg==, ", false),
        ] {
            let text = A
                .replace(", certificate-authority: ca.pem", "")
                .replace("{tokenFile: t}", &format!("{{{user}{exec}}}"));
            std::fs::write(&file, text).unwrap();
            let resolved = Sources::find(Some(file.clone()), |_| None).resolve(&Overrides::default(), |_| None);
            match resolved {
                Ok(r) => assert_eq!(r.plugin().is_some(), runs, "{user}"),
                Err(e) => panic!("{user}: {e}"),
            }
        }
    }

    #[test]
    fn the_first_file_wins_and_paths_belong_to_their_file() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, A).unwrap();
        std::fs::write(&b, B).unwrap();
        std::fs::write(dir.path().join("ca.pem"), "x").unwrap();
        let list = format!("{}:{}:{}", a.display(), dir.path().join("none").display(), b.display());
        let s = Sources::find(None, |n| (n == "KUBECONFIG").then(|| list.clone()));
        let k = s.load().unwrap();
        let again: Kubeconfig = serde_json::from_value(serde_json::to_value(&k).unwrap()).unwrap();
        assert_eq!(again, k);
        let one = k.resolve(&Overrides::default()).unwrap();
        assert_eq!((one.context.as_str(), one.namespace.as_str()), ("one", "team"));
        assert_eq!(one.https.server, "https://a:6443");
        assert_eq!(one.https.roots, Roots::Pem(b"x".to_vec()));
        assert_eq!(one.https.credentials, Credentials::BearerFile(dir.path().join("t")));
        let two = k.resolve(&Overrides { context: "two".into(), ..Overrides::default() }).unwrap();
        assert_eq!((two.https.server.as_str(), two.namespace.as_str()), ("https://a:6443", "default"));
        assert_eq!(two.https.credentials, Credentials::Bearer("abc".into()));
        assert_eq!((two.impersonation.user.as_str(), two.impersonation.groups.len()), ("jane", 1));
        let gone = k.resolve(&Overrides { context: "three".into(), ..Overrides::default() }).unwrap_err();
        assert_eq!(gone.to_string(), "invalid configuration: context was not found for specified context: three");
        let both = Overrides { context: "three".into(), cluster: "none".into(), ..Overrides::default() };
        let Err(crate::Error::Configuration(problems)) = k.resolve(&both) else { panic!("both are missing") };
        assert_eq!(
            problems,
            ["context was not found for specified context: three", "no server found for cluster \"none\""]
        );
    }

    /// The in-cluster configuration, and how flags and files change it (client-go `tools/clientcmd`).
    #[test]
    fn in_cluster_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let at = |n: &str| dir.path().join(n);
        for (name, text) in [("token", "t"), ("ca.crt", "ca"), ("other.crt", "other"), ("namespace", "pod\n")] {
            std::fs::write(at(name), text).unwrap();
        }
        for (name, text) in [
            ("nothing", "apiVersion: v1\nkind: Config\n".to_owned()),
            ("place", "current-context: a\ncontexts:\n- {name: a, context: {namespace: elsewhere}}\n".to_owned()),
            ("whole", A.replace(", namespace: team", "").replace(", certificate-authority: ca.pem", "")),
        ] {
            std::fs::write(at(name), text).unwrap();
        }
        let file = |n: &str| Sources { explicit: Some(at(n)), files: Vec::new() };
        let none = Sources::default();
        let flag = |change: fn(&mut Overrides)| {
            let mut o = Overrides::default();
            change(&mut o);
            o
        };
        let mine = || Credentials::BearerFile(at("token"));
        let bearer = |t: &str| Credentials::Bearer(t.into());
        let pod = "https://[::1]:6443";
        for (what, sources, o, server, namespace, credentials) in [
            ("nothing beside it", &none, flag(|_| ()), pod, "pod", mine()),
            ("a namespace", &none, flag(|o| o.namespace = "n".into()), pod, "n", mine()),
            ("a token", &none, flag(|o| o.token = "x".into()), pod, "pod", bearer("x")),
            ("another user", &none, flag(|o| o.impersonation.user = "jane".into()), pod, "pod", mine()),
            ("a server", &none, flag(|o| o.server = "https://s".into()), "https://s", "pod", Credentials::None),
            ("a file with nothing", &file("nothing"), flag(|_| ()), pod, "pod", mine()),
            ("a file with a namespace", &file("place"), flag(|_| ()), pod, "elsewhere", mine()),
            (
                "a file with a server",
                &file("whole"),
                flag(|_| ()),
                "https://a:6443",
                "pod",
                Credentials::BearerFile(at("t")),
            ),
        ] {
            let environment = |n: &str| match n {
                "KUBERNETES_SERVICE_HOST" => Some("::1".into()),
                "KUBERNETES_SERVICE_PORT" => Some("6443".into()),
                _ => None,
            };
            let r = sources.resolve_with(dir.path(), &o, environment).unwrap();
            assert_eq!((r.https.server.as_str(), r.namespace.as_str()), (server, namespace), "{what}");
            assert_eq!(r.https.credentials, credentials, "{what}");
            assert_eq!(r.https.roots == Roots::Pem(b"ca".to_vec()), server == pod, "{what}");
            assert_eq!(r.impersonation.user, o.impersonation.user, "{what}");
        }
        let all = |n: &str| Some(if n == "POD_NAMESPACE" { "named".into() } else { n.to_lowercase() });
        assert_eq!(none.resolve_with(dir.path(), &Overrides::default(), all).unwrap().namespace, "named");
        let ca = Overrides { certificate_authority: at("other.crt").display().to_string(), ..Overrides::default() };
        assert_eq!(none.resolve_with(dir.path(), &ca, all).unwrap().https.roots, Roots::Pem(b"other".to_vec()));
        let unknown = Overrides { user: "x".into(), ..Overrides::default() };
        assert!(none.resolve_with(dir.path(), &unknown, all).is_err());
        // Without a token this is not a pod.
        std::fs::remove_file(at("token")).unwrap();
        let local = none.resolve_with(dir.path(), &Overrides::default(), all).unwrap();
        assert_eq!((local.https.server.as_str(), local.namespace.as_str()), ("http://localhost:8080", "default"));
    }

    /// Compared with upstream's kubectl.
    #[test]
    fn a_file_of_another_kind_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        let scheme = "k8s.io/client-go/tools/clientcmd/api/latest/latest.go:50";
        for (text, want) in [
            ("apiVersion: v1\nkind: Config\n", None),
            ("current-context: a\n", None),
            ("", None),
            ("apiVersion: v-1\nkind: Config\n", Some(("Config", "v-1"))),
            ("apiVersion: v1\nkind: Foo\n", Some(("Foo", "v1"))),
            ("apiVersion: apps/v1\n", Some(("Config", "apps/v1"))),
        ] {
            std::fs::write(&file, text).unwrap();
            let s = Sources { explicit: Some(file.clone()), files: Vec::new() };
            let want = want.map(|(kind, version)| {
                let why = format!("no kind {kind:?} is registered for version {version:?} in scheme {scheme:?}");
                format!("error loading config file \"{}\": {why}", file.display())
            });
            assert_eq!(s.load().err().map(|e| e.why()), want, "{text}");
        }
    }

    #[test]
    fn an_explicit_file_must_exist() {
        let s = Sources { explicit: Some("/nowhere/config".into()), files: vec![] };
        assert!(s.load().unwrap_err().to_string().contains("/nowhere/config"));
    }
}
