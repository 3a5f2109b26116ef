//! Credentials, challenges of registries, and tokens.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use runtime::image::Credentials;
use serde::Deserialize;

/// The value of a header for basic authentication.
pub(crate) fn basic(credentials: &Credentials) -> Option<HeaderValue> {
    let code = STANDARD.encode(format!("{}:{}", credentials.username, credentials.password));
    sensitive(&format!("Basic {code}"))
}

/// The value of a header for a bearer token; `None` if the token has characters that no header takes.
pub(crate) fn bearer(token: &str) -> Option<HeaderValue> {
    sensitive(&format!("Bearer {token}"))
}

fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// The method of authentication that a registry requires (`WWW-Authenticate`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

impl Challenge {
    /// The challenge to answer among the values of the header: a bearer token if there is one. `None` if none is known.
    pub fn choose<'a>(values: impl Iterator<Item = &'a str>) -> Option<Challenge> {
        let mut chosen = None;
        for value in values {
            match Self::parse(value) {
                Some(bearer @ Self::Bearer { .. }) => return Some(bearer),
                Some(basic) => chosen = Some(basic),
                None => {}
            }
        }
        chosen
    }

    fn parse(value: &str) -> Option<Challenge> {
        let (scheme, rest) = value.trim().split_once(' ').unwrap_or((value.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (None, None, None);
        for (name, value) in parameters(rest) {
            match name.to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value),
                "service" => service = Some(value),
                "scope" => scope = Some(value),
                _ => {}
            }
        }
        Some(Self::Bearer { realm: realm?, service, scope })
    }
}

/// Pairs of `name=value` or `name="value"`, separated by commas.
fn parameters(mut rest: &str) -> Vec<(&str, String)> {
    let mut all = Vec::new();
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_start_matches([',', ' ']).trim();
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted_string(quoted),
            None => {
                let end = after.find(',').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        all.push((name, value));
        rest = after;
    }
    all
}

/// The text up to the closing quote, and what follows it.
fn quoted_string(text: &str) -> (String, &str) {
    let (mut value, mut escaped) = (String::new(), false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => {
                value.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => return (value, &text[i + 1..]),
            _ => value.push(c),
        }
    }
    (value, "")
}

/// The response of a token server.
#[derive(Deserialize)]
pub(crate) struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Token {
    pub fn value(self) -> Option<String> {
        self.token.filter(|t| !t.is_empty()).or(self.access_token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_challenges() {
        let choose = |values: &[&str]| Challenge::choose(values.iter().copied());
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            Some(Challenge::Bearer {
                realm: realm.into(),
                service: service.map(str::to_owned),
                scope: scope.map(str::to_owned),
            })
        };
        assert_eq!(choose(&["Basic realm=\"r\""]), Some(Challenge::Basic));
        assert_eq!(choose(&["basic"]), Some(Challenge::Basic));
        assert_eq!(
            choose(&["Basic realm=x", "Bearer realm=\"https://a/t\",service=\"s, t\", scope=\"repository:a/b:pull\""]),
            bearer("https://a/t", Some("s, t"), Some("repository:a/b:pull"))
        );
        assert_eq!(choose(&["BEARER Realm=https://a/t , service=s"]), bearer("https://a/t", Some("s"), None));
        assert_eq!(choose(&["Bearer realm=\"a\\\"b"]), bearer("a\"b", None, None));
        for unknown in ["", "Bearer", "Bearer service=\"s\"", "Negotiate", "Bearer =,=\"\"=="] {
            assert_eq!(choose(&[unknown]), None, "{unknown}");
        }
    }
}
