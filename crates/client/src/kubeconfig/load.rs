//! Finding and joining kubeconfig files, and the configuration inside a pod.

use super::{Kubeconfig, Named, Overrides, Resolved};
use crate::Impersonation;
use crate::error::Error;
use crate::https::{Config, Credentials, Roots};
use std::path::{Path, PathBuf};

const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Which files to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// `--kubeconfig`: this file alone, and it must be there.
    pub explicit: Option<PathBuf>,
    /// Read in this order; those that are not there are skipped.
    pub files: Vec<PathBuf>,
}

impl Sources {
    /// `--kubeconfig`, else the list in `KUBECONFIG`, else `~/.kube/config`.
    pub fn find(explicit: Option<PathBuf>, environment: impl Fn(&str) -> Option<String>) -> Self {
        let listed = environment("KUBECONFIG").filter(|v| !v.is_empty());
        let files = match listed {
            Some(v) => v.split(':').filter(|p| !p.is_empty()).map(PathBuf::from).collect(),
            None => environment("HOME").map(|h| Path::new(&h).join(".kube/config")).into_iter().collect(),
        };
        Self { explicit, files }
    }

    /// Reads and joins the files. With no file there the result is empty; a file that cannot be read is an error.
    pub fn load(&self) -> Result<Kubeconfig, Error> {
        if let Some(path) = &self.explicit {
            return one(path)?
                .ok_or_else(|| Error::Credentials(format!("stat {}: no such file or directory", path.display())));
        }
        let mut all = Kubeconfig::default();
        for path in &self.files {
            if let Some(k) = one(path)? {
                join(&mut all, k);
            }
        }
        Ok(all)
    }
}

fn one(path: &Path) -> Result<Option<Kubeconfig>, Error> {
    let wrong = |e: &dyn std::fmt::Display| {
        Error::Credentials(format!("error loading config file \"{}\": {e}", path.display()))
    };
    let text = match std::fs::read_to_string(path) {
        Ok(t) => t,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(wrong(&e)),
    };
    let mut k = Kubeconfig::parse(&text).map_err(|e| wrong(&e))?;
    let base = path.parent().unwrap_or(Path::new("."));
    let absolute = |p: &mut String| {
        if !p.is_empty() && Path::new(p.as_str()).is_relative() {
            *p = base.join(p.as_str()).to_string_lossy().into_owned();
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

/// The first file to name a thing wins.
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

/// The configuration that a pod is given: address from the environment, token and authority from its service account.
pub fn in_cluster(environment: impl Fn(&str) -> Option<String>) -> Result<Resolved, Error> {
    let value = |n: &str| environment(n).filter(|v| !v.is_empty());
    let (Some(host), Some(port)) = (value("KUBERNETES_SERVICE_HOST"), value("KUBERNETES_SERVICE_PORT")) else {
        return Err(Error::Credentials(
            "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined".into(),
        ));
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let mut https = Config::new(format!("https://{host}:{port}"));
    let directory = Path::new(SERVICE_ACCOUNT);
    https.credentials = Credentials::BearerFile(directory.join("token"));
    let ca = directory.join("ca.crt");
    let pem = std::fs::read(&ca).map_err(|e| Error::Credentials(format!("{}: {e}", ca.display())))?;
    https.roots = Roots::Pem(pem);
    Ok(Resolved {
        context: String::new(),
        namespace: in_cluster_namespace().unwrap_or_else(|| "default".into()),
        namespace_given: false,
        https,
        impersonation: Impersonation::default(),
        request_timeout: None,
        exec: None,
    })
}

/// The namespace of the pod this runs in.
pub fn in_cluster_namespace() -> Option<String> {
    let text = std::fs::read_to_string(Path::new(SERVICE_ACCOUNT).join("namespace")).ok()?;
    Some(text.trim().to_owned()).filter(|t| !t.is_empty())
}

impl Sources {
    /// What `kubectl` does: the files, or the pod's own configuration when there is nothing in them and no flag names a server.
    pub fn resolve(&self, o: &Overrides, environment: impl Fn(&str) -> Option<String>) -> Result<Resolved, Error> {
        let k = self.load()?;
        let empty = k.clusters.is_empty() && k.contexts.is_empty() && k.users.is_empty();
        if empty
            && o.server.is_empty()
            && o.context.is_empty()
            && self.explicit.is_none()
            && let Ok(mut r) = in_cluster(environment)
        {
            if !o.namespace.is_empty() {
                r.namespace.clone_from(&o.namespace);
                r.namespace_given = true;
            }
            r.impersonation = o.impersonation.clone();
            r.request_timeout = o.request_timeout;
            return Ok(r);
        }
        k.resolve(o)
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
        assert_eq!(gone.to_string(), "context was not found for specified context: three");
    }

    #[test]
    fn an_explicit_file_must_be_there() {
        let s = Sources { explicit: Some("/nowhere/config".into()), files: vec![] };
        assert!(s.load().unwrap_err().to_string().contains("/nowhere/config"));
    }
}
