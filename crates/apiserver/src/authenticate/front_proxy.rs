//! Front proxy authentication (`k8s.io/apiserver/pkg/authentication/request/headerrequest`): a proxy with a
//! certificate of its own CA names the user in headers. The headers are ignored from other clients.

use crate::header_text::values;
use auth::User;
use http::{HeaderMap, HeaderName};
use meta::Status;

#[derive(Clone, Debug, Default)]
pub struct FrontProxy {
    /// Allowed common names of its certificate; none: any.
    pub allowed_names: Vec<String>,
    /// The first header present is used.
    pub username_headers: Vec<String>,
    pub uid_headers: Vec<String>,
    pub group_headers: Vec<String>,
    pub extra_headers_prefixes: Vec<String>,
}

impl FrontProxy {
    /// Returns the user that a proxy names. `proxy` is the common name of its verified certificate. Removes the
    /// headers, whoever sent them.
    ///
    /// # Errors
    /// The headers of the user are not valid.
    pub fn take(&self, headers: &mut HeaderMap, proxy: Option<&str>) -> Result<Option<User>, Status> {
        // Most requests have none of these headers.
        if !headers.keys().any(|k| self.concerns(k.as_str())) {
            return Ok(None);
        }
        let trusted = proxy.is_some_and(|p| self.allowed_names.is_empty() || self.allowed_names.iter().any(|n| n == p));
        let user = if trusted { self.user(headers) } else { Ok(None) };
        let own: Vec<HeaderName> = headers.keys().filter(|k| self.concerns(k.as_str())).cloned().collect();
        for name in own {
            headers.remove(name);
        }
        user
    }

    fn user(&self, headers: &HeaderMap) -> Result<Option<User>, Status> {
        let all = |names: &[String]| -> Result<Vec<String>, Status> {
            let each: Result<Vec<_>, _> = names.iter().map(|n| values(headers, &n.to_lowercase())).collect();
            Ok(each?.concat())
        };
        let first = |names: &[String]| Ok::<_, Status>(all(names)?.into_iter().find(|v| !v.is_empty()));
        let Some(name) = first(&self.username_headers)? else { return Ok(None) };
        let uid = first(&self.uid_headers)?.unwrap_or_default();
        let mut user = User { name, uid, groups: all(&self.group_headers)?, ..User::default() };
        for key in headers.keys() {
            let prefixes = self.extra_headers_prefixes.iter();
            let Some(rest) = prefixes.filter_map(|p| key.as_str().strip_prefix(&*p.to_lowercase())).next() else {
                continue;
            };
            user.extra.insert(crate::path::decode(rest).to_lowercase(), values(headers, key.as_str())?);
        }
        let anonymous = user.name == auth::user::ANONYMOUS || user.is_in(auth::user::GROUP_UNAUTHENTICATED);
        if !anonymous && !user.is_in(auth::user::GROUP_AUTHENTICATED) {
            user.groups.push(auth::user::GROUP_AUTHENTICATED.into());
        }
        Ok(Some(user))
    }

    fn concerns(&self, name: &str) -> bool {
        let mut names = [&self.username_headers, &self.uid_headers, &self.group_headers].into_iter().flatten();
        let begins = |p: &String| name.get(..p.len()).is_some_and(|n| n.eq_ignore_ascii_case(p));
        names.any(|n| n.eq_ignore_ascii_case(name)) || self.extra_headers_prefixes.iter().any(begins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn headers_speak_for_others_only_from_a_proxy() {
        let list = |t: &str| -> Vec<String> { t.split(',').map(str::to_owned).collect() };
        let proxy = FrontProxy {
            allowed_names: list("front"),
            username_headers: list("X-Remote-User"),
            uid_headers: list("X-Remote-Uid"),
            group_headers: list("X-Remote-Group"),
            extra_headers_prefixes: list("X-Remote-Extra-"),
        };
        let sent = || {
            let mut h = HeaderMap::new();
            for (k, v) in [
                ("x-remote-user", "jane"),
                ("x-remote-uid", "1"),
                ("x-remote-group", "a"),
                ("x-remote-group", "b"),
                ("x-remote-extra-acme.com%2fscope", "read"),
                ("accept", "*/*"),
            ] {
                h.append(k, v.parse().unwrap());
            }
            h
        };
        let mut h = sent();
        let user = proxy.take(&mut h, Some("front")).unwrap().unwrap();
        assert_eq!((&*user.name, &*user.uid), ("jane", "1"));
        assert_eq!(user.groups, ["a", "b", "system:authenticated"]);
        assert_eq!(user.extra["acme.com/scope"], ["read"]);
        assert_eq!(h.len(), 1, "later filters do not see the headers");
        for other in [None, Some("other")] {
            let mut h = sent();
            assert!(proxy.take(&mut h, other).unwrap().is_none());
            assert_eq!(h.len(), 1);
        }
        let any = FrontProxy { allowed_names: Vec::new(), ..proxy.clone() };
        assert!(any.take(&mut sent(), Some("other")).unwrap().is_some());
        assert!(proxy.take(&mut HeaderMap::new(), Some("front")).unwrap().is_none(), "no user without headers");

        // Names may be in any language; an unreadable one is an error.
        for name in ["x-remote-user", "x-remote-group", "x-remote-extra-acme.com%2fscope"] {
            let mut h = sent();
            h.insert(name, HeaderValue::from_bytes("jörg".as_bytes()).unwrap());
            let user = proxy.take(&mut h, Some("front")).unwrap().unwrap();
            assert!(format!("{user:?}").contains("jörg"), "{user:?}");
            let mut h = sent();
            h.insert(name, HeaderValue::from_bytes(b"j\xf6rg").unwrap());
            assert_eq!(proxy.take(&mut h, Some("front")).unwrap_err().code, 400);
            assert_eq!(h.len(), 1);
        }
    }
}
