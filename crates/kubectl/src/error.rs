//! Errors of commands, and how they are printed (`k8s.io/kubectl/pkg/cmd/util/helpers.go`).

pub use manifests::os_message;

use meta::{Reason, Status};
use std::fmt::Write as _;

/// The result of a command.
pub type Result<T = ()> = std::result::Result<T, Error>;

/// An error of a command, with the way in which it is printed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Printed after `error: `.
    #[error("{0}")]
    Text(String),
    /// Printed as it is.
    #[error("{0}")]
    Bare(String),
    #[error("{}", client_message(.0))]
    Client(#[from] client::Error),
    /// An error about one object of a file: `error when creating "f.yaml": …`.
    #[error("error when {doing} {source_name:?}: {error}")]
    About { doing: String, source_name: String, error: Box<Error> },
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Many(Vec<Error>),
    /// Exits with another code than 1.
    #[error("{error}")]
    Code { code: u8, error: Box<Error> },
    /// Prints `out` to standard output before the error.
    #[error("{error}")]
    WithOutput { out: String, error: Box<Error> },
    /// Exits with this code and prints nothing more.
    #[error("exit code {0}")]
    Exit(u8),
}

/// Formats an error of the client. A request that could not be built is rejected here, as in upstream.
fn client_message(e: &client::Error) -> String {
    match e {
        client::Error::Request(why) => why.clone(),
        e => e.to_string(),
    }
}

/// Returns an [`Error::Text`].
pub fn text<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::Text(message.into()))
}

impl From<manifests::Error> for Error {
    fn from(e: manifests::Error) -> Self {
        let text = Self::Text(e.message);
        // Errors of list items are formatted as several errors.
        if e.aggregate { Self::Many(vec![text]) } else { text }
    }
}

impl From<codec::jsonpath::Error> for Error {
    fn from(e: codec::jsonpath::Error) -> Self {
        Self::Text(e.to_string())
    }
}

impl Error {
    /// Returns the `Status` of an error that the server sent.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Client(e) => e.status(),
            Self::About { error, .. } | Self::Code { error, .. } => error.status(),
            _ => None,
        }
    }

    /// Whether the server did not find the object.
    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(|s| s.is(Reason::NotFound))
    }

    /// Adds the operation and the source of the object: `error when creating "f.yaml": …`.
    pub fn about(self, doing: impl Into<String>, source_name: &str) -> Self {
        Self::About { doing: doing.into(), source_name: source_name.to_owned(), error: Box::new(self) }
    }

    /// Returns what must be printed to standard output before the error.
    pub fn output(&self) -> String {
        match self {
            Self::WithOutput { out, .. } => out.clone(),
            Self::Code { error, .. } | Self::About { error, .. } => error.output(),
            Self::Many(all) => all.iter().map(Self::output).collect(),
            _ => String::new(),
        }
    }

    /// Joins several errors: nothing, the only one, or [`Error::Many`].
    pub fn collect(mut errors: Vec<Self>) -> Result {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Many(errors)),
        }
    }

    /// Returns the exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Exit(code) | Self::Code { code, .. } => *code,
            _ => 1,
        }
    }

    /// Returns the text for standard error, with a newline at the end; empty if nothing is left to print.
    pub fn report(&self) -> String {
        let mut out = match self {
            Self::Exit(_) => return String::new(),
            Self::Code { error, .. } | Self::WithOutput { error, .. } => return error.report(),
            Self::Many(all) => {
                let flat: Vec<String> = flatten(all).into_iter().map(Self::line).collect();
                flat.join("\n")
            }
            other => match other.status() {
                Some(s) if s.is(Reason::Invalid) => invalid(s),
                _ => match other.standard() {
                    Some(text) => text,
                    None => {
                        let text = other.to_string();
                        if text.starts_with("error: ") { text } else { format!("error: {text}") }
                    }
                },
            },
        };
        if !out.ends_with('\n') {
            out.push('\n');
        }
        out
    }

    /// Formats the error as one line of several: without `error: ` if it does not come from the server.
    fn line(&self) -> String {
        self.standard().unwrap_or_else(|| self.to_string())
    }

    /// Formats errors of the server and of the connection as kubectl does; `None` for others.
    fn standard(&self) -> Option<String> {
        if let Some(s) = self.status() {
            let message = match self {
                Self::About { .. } => self.to_string(),
                _ => s.message.clone(),
            };
            return Some(match s.reason {
                Reason::Unauthorized => format!("error: You must be logged in to the server ({message})"),
                Reason::Unknown => format!("Error from server: {message}"),
                r => format!("Error from server ({}): {message}", r.as_str()),
            });
        }
        match self {
            Self::Bare(t) => Some(t.clone()),
            Self::Client(e @ client::Error::Connect { to, .. }) => Some(if e.is_connection_refused() {
                format!("The connection to the server {to} was refused - did you specify the right host or port?")
            } else {
                format!("Unable to connect to the server: {e}")
            }),
            Self::Client(client::Error::Send(why)) => Some(format!("Unable to connect to the server: {why}")),
            Self::Client(client::Error::Credentials(t)) => Some(format!("error: {t}")),
            Self::Client(client::Error::Configuration(all)) => Some(match all.as_slice() {
                [one] => format!("Error in configuration: {one}"),
                many => {
                    let lines: String = many.iter().map(|p| format!("\n* {p}")).collect();
                    format!("Error in configuration: {lines}")
                }
            }),
            Self::Client(e @ client::Error::Plugin(_)) => Some(format!("Unable to connect to the server: {e}")),
            Self::Client(client::Error::Timeout(_)) => {
                Some("Unable to connect to the server: net/http: request canceled (Client.Timeout exceeded while awaiting headers)".into())
            }
            _ => None,
        }
    }
}

fn flatten(all: &[Error]) -> Vec<&Error> {
    all.iter()
        .flat_map(|e| match e {
            Error::Many(inner) => flatten(inner),
            other => vec![other],
        })
        .collect()
}

fn invalid(s: &Status) -> String {
    let mut out = String::from("The request is invalid");
    let Some(d) = &s.details else {
        if !s.message.is_empty() {
            let _ = write!(out, ": {}", s.message);
        }
        return out;
    };
    if !d.kind.is_empty() || !d.name.is_empty() {
        out = format!("The {} {:?} is invalid", d.kind, d.name);
    } else if !s.message.is_empty() && d.causes.is_empty() {
        let _ = write!(out, ": {}", s.message);
    }
    let mut causes: Vec<String> = Vec::new();
    for c in &d.causes {
        let text = if c.field.is_empty() { c.message.clone() } else { format!("{}: {}", c.field, c.message) };
        if !causes.contains(&text) {
            causes.push(text);
        }
    }
    match causes.as_slice() {
        [] => {}
        // The line break follows a message even if the message ends with one.
        [one] => _ = writeln!(out, ": {one}"),
        many => {
            out.push_str(": \n");
            for c in many {
                let _ = writeln!(out, "* {c}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use meta::status::{Cause, Details};

    fn api(s: Status) -> Error {
        client::Error::from(s).into()
    }

    #[test]
    fn formats_errors_as_kubectl_does() {
        let cause = |f: &str, m: &str| Cause { reason: String::new(), message: m.into(), field: f.into() };
        let invalid = |causes| {
            api(Status::new(422, Reason::Invalid, "long").with_details(Details {
                kind: "Pod".into(),
                name: "x".into(),
                causes,
                ..Details::default()
            }))
        };
        for (e, expected) in [
            (Error::Text("no".into()), "error: no\n"),
            (Error::Exit(3), ""),
            (
                api(Status::new(404, Reason::NotFound, "pods \"x\" not found")),
                "Error from server (NotFound): pods \"x\" not found\n",
            ),
            (
                api(Status::new(401, Reason::Unauthorized, "Unauthorized")),
                "error: You must be logged in to the server (Unauthorized)\n",
            ),
            (invalid(vec![cause("a.b", "Required value")]), "The Pod \"x\" is invalid: a.b: Required value\n"),
            (
                invalid(vec![cause("a", "one"), cause("b", "two"), cause("a", "one"), cause("c", "one")]),
                "The Pod \"x\" is invalid: \n* a: one\n* b: two\n* c: one\n",
            ),
            (
                Error::Many(vec![
                    Error::Text("first".into()),
                    api(Status::new(409, Reason::AlreadyExists, "there")).about("creating", "f.yaml"),
                ]),
                "first\nError from server (AlreadyExists): error when creating \"f.yaml\": there\n",
            ),
            (
                client::Error::Connect {
                    to: "127.0.0.1:1".into(),
                    source: std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into(),
                }
                .into(),
                "The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?\n",
            ),
        ] {
            assert_eq!(e.report(), expected);
        }
    }
}
