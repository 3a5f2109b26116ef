//! Credentials for calling webhooks: users of a kubeconfig, selected by server
//! (`k8s.io/apiserver/pkg/util/webhook/authentication.go`). Ignores the rest of the kubeconfig.

use crate::EndpointAddress;
use client::kubeconfig::{Kubeconfig, Sources, User};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A user of a kubeconfig.
pub struct Caller {
    /// The file and the user name in it.
    pub name: String,
    /// The user.
    pub user: User,
}

/// Users by name: `host:port`, `host` for port 443, `*.suffix` of either, or `*`.
#[derive(Default)]
pub struct Callers {
    all: HashMap<String, Arc<Caller>>,
    /// The user of the current context, if no name matches.
    current: Option<String>,
}

impl Callers {
    /// Loads a kubeconfig. Errors have Go's messages.
    pub fn of_file(file: PathBuf) -> Result<Self, String> {
        let name = file.display().to_string();
        let kubeconfig = Sources { explicit: Some(file), files: Vec::new() }.load().map_err(|e| e.why())?;
        Ok(Self::read(&name, &kubeconfig))
    }

    fn read(file: &str, kubeconfig: &Kubeconfig) -> Self {
        let mut all = HashMap::new();
        for u in &kubeconfig.users {
            let caller = || Arc::new(Caller { name: format!("{file}#{}", u.name), user: u.value.clone() });
            all.entry(u.name.clone()).or_insert_with(caller);
        }
        Self { all, current: kubeconfig.current_user().map(str::to_owned) }
    }

    /// The user for calling an address; none: anonymous.
    pub fn to(&self, address: &EndpointAddress) -> Option<&Arc<Caller>> {
        if self.all.is_empty() {
            return None;
        }
        let target = address.target();
        let without_port = target.strip_suffix(":443").map(|t| t.trim_start_matches('[').trim_end_matches(']'));
        let known = [Some(target.as_str()), without_port].into_iter().flatten().find_map(|t| self.known(t));
        known.or_else(|| self.all.get("*")).or_else(|| self.all.get(self.current.as_deref()?))
    }

    /// The user with the target's name, or its longest suffix.
    fn known(&self, target: &str) -> Option<&Arc<Caller>> {
        let suffixes = target.match_indices('.').map(|(i, _)| &target[i..]);
        let starred = |suffix: &str| self.all.get(&format!("*{suffix}"));
        self.all.get(target).or_else(|| suffixes.map(starred).find_map(|c| c))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
apiVersion: v1
kind: Config
users:
- {name: 'hook.ns.svc:8443', user: {token: exact}}
- {name: 'hook.ns.svc', user: {token: plain}}
- {name: '*.ns.svc:8443', user: {token: starred port}}
- {name: '*.ns.svc', user: {token: starred}}
- {name: '*.svc', user: {token: farther}}
- {name: 'example.com:444', user: {token: url}}
- {name: '::1', user: {token: six}}
";

    #[test]
    fn users_are_found_as_upstream_finds_them() {
        let service = |name: &str, port: u16| EndpointAddress::Service {
            namespace: "ns".into(),
            name: name.into(),
            path: String::new(),
            port,
        };
        let url = |u: &str| EndpointAddress::Url(u.into());
        let cases = [
            (service("hook", 8443), Some("exact")),
            (service("other", 8443), Some("starred port")),
            (service("hook", 443), Some("plain")),
            (service("other", 443), Some("starred")),
            (service("hook", 9443), None),
            (url("https://x.y.svc/a?b"), Some("farther")),
            (url("https://example.com:444/a"), Some("url")),
            (url("https://example.com/a"), None),
            (url("https://[::1]/"), Some("six")),
        ];
        let token = |c: &Callers, p: &EndpointAddress| c.to(p).map(|c| c.user.token.clone());
        let known = Callers::read("f", &Kubeconfig::parse(FILE).unwrap());
        for (place, expected) in &cases {
            assert_eq!(token(&known, place).as_deref(), *expected, "{place:?}");
        }
        let current = "current-context: c\ncontexts: [{name: c, context: {user: '*.svc'}}]\n";
        let known = Callers::read("f", &Kubeconfig::parse(&format!("{FILE}{current}")).unwrap());
        assert_eq!(token(&known, &url("https://example.com/a")).as_deref(), Some("farther"), "who is current");
        let all = format!("{FILE}- {{name: '*', user: {{token: all}}}}\n{current}");
        let known = Callers::read("f", &Kubeconfig::parse(&all).unwrap());
        assert_eq!(token(&known, &url("https://example.com/a")).as_deref(), Some("all"));
        assert_eq!(known.to(&service("hook", 443)).unwrap().name, "f#hook.ns.svc");
        assert!(Callers::default().to(&service("hook", 443)).is_none());
    }

    #[test]
    fn a_file_that_is_not_there_is_said() {
        let why = Callers::of_file("/nowhere/kubeconfig".into()).err().unwrap();
        assert_eq!(why, "stat /nowhere/kubeconfig: no such file or directory");
    }
}
