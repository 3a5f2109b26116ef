//! Connection errors with the texts of Go's `net` and `net/http`, which users search for and scripts match.

use crate::error::BoxError;

/// The C library's message for a system error, without the error number, as Go prints it.
pub fn os_error(e: &std::io::Error) -> String {
    let text = e.to_string();
    let plain = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = plain.chars();
    letters.next().map(|c| c.to_lowercase().collect::<String>() + letters.as_str()).unwrap_or_default()
}

/// The error of a failed name lookup.
pub fn lookup(host: &str, e: &std::io::Error) -> BoxError {
    let text = e.to_string();
    let why = match text.rsplit_once(": ").map_or(text.as_str(), |(_, w)| w) {
        "Name or service not known" | "No address associated with hostname" => "no such host".to_owned(),
        other => other.to_lowercase(),
    };
    format!("dial tcp: lookup {host}: {why}").into()
}

/// The error of a request that got no response.
pub fn exchange(chain: &str) -> String {
    for (ours, theirs) in [
        ("invalid HTTP version parsed", "net/http: HTTP/1.x transport connection broken: malformed HTTP response"),
        ("connection closed before message completed", "EOF"),
        ("Connection reset by peer", "read: connection reset by peer"),
        ("Broken pipe", "write: broken pipe"),
    ] {
        if chain.contains(ours) {
            return theirs.to_owned();
        }
    }
    chain.to_owned()
}
