//! Why there is no connection, in the words of Go's `net` and `net/http`, which people search for and scripts match.

use crate::error::BoxError;

/// An error of the system as C says it, and so Go: without a number behind.
pub fn os(e: &std::io::Error) -> String {
    let text = e.to_string();
    let plain = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = plain.chars();
    letters.next().map(|c| c.to_lowercase().collect::<String>() + letters.as_str()).unwrap_or_default()
}

/// A name that led to no address.
pub fn lookup(host: &str, e: &std::io::Error) -> BoxError {
    let text = e.to_string();
    let why = match text.rsplit_once(": ").map_or(text.as_str(), |(_, w)| w) {
        "Name or service not known" | "No address associated with hostname" => "no such host".to_owned(),
        other => other.to_lowercase(),
    };
    format!("dial tcp: lookup {host}: {why}").into()
}

/// A request that was not answered.
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
