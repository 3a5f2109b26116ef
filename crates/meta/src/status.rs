//! `Status`: the one form in which every failure leaves the server (`k8s.io/apimachinery/pkg/api/errors`).

use crate::field::{ErrorType, FieldError};
use crate::{GroupKind, GroupResource, Value};
use serde_json::json;
use std::collections::HashSet;
use std::fmt;

/// Maximum bytes of field errors in a response, which contains each twice. The first error is always reported, and the
/// number of omitted ones.
pub const MAX_REPORTED_BYTES: usize = 256 << 10;
/// Bytes around each cause.
const AROUND_CAUSE: usize = 64;

/// The reason of a `Status`: a machine-readable description of the failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No reason is given.
    Unknown,
    /// The client is not authenticated (401).
    Unauthorized,
    /// The client is not authorized, or the request is not allowed (403).
    Forbidden,
    /// The object or resource does not exist (404).
    NotFound,
    /// The object exists already (409).
    AlreadyExists,
    /// The request conflicts with the current object (409).
    Conflict,
    /// The resource is not available any more (410).
    Gone,
    /// The object is invalid (422).
    Invalid,
    /// The server did not respond in time; the client may retry (500).
    ServerTimeout,
    /// The request exceeded its deadline (504).
    Timeout,
    /// There are too many requests; the client may retry later (429).
    TooManyRequests,
    /// The request is malformed (400).
    BadRequest,
    /// The resource does not support the method (405).
    MethodNotAllowed,
    /// No acceptable encoding is available (406).
    NotAcceptable,
    /// The request is too large (413).
    RequestEntityTooLarge,
    /// The encoding of the request is not supported (415).
    UnsupportedMediaType,
    /// The server failed (500).
    InternalError,
    /// The requested revision is compacted (410).
    Expired,
    /// The service is not available (503).
    ServiceUnavailable,
}

impl Reason {
    /// The reason as the API writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Gone => "Gone",
            Self::Invalid => "Invalid",
            Self::ServerTimeout => "ServerTimeout",
            Self::Timeout => "Timeout",
            Self::TooManyRequests => "TooManyRequests",
            Self::BadRequest => "BadRequest",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::NotAcceptable => "NotAcceptable",
            Self::RequestEntityTooLarge => "RequestEntityTooLarge",
            Self::UnsupportedMediaType => "UnsupportedMediaType",
            Self::InternalError => "InternalError",
            Self::Expired => "Expired",
            Self::ServiceUnavailable => "ServiceUnavailable",
        }
    }

    /// The reason of this name; [`Reason::Unknown`] for others.
    pub fn parse(text: &str) -> Self {
        use Reason::*;
        [
            Unauthorized,
            Forbidden,
            NotFound,
            AlreadyExists,
            Conflict,
            Gone,
            Invalid,
            ServerTimeout,
            Timeout,
            TooManyRequests,
            BadRequest,
            MethodNotAllowed,
            NotAcceptable,
            RequestEntityTooLarge,
            UnsupportedMediaType,
            InternalError,
            Expired,
            ServiceUnavailable,
        ]
        .into_iter()
        .find(|r| r.as_str() == text)
        .unwrap_or(Unknown)
    }
}

/// A cause of a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// The machine-readable reason.
    pub reason: String,
    /// The description.
    pub message: String,
    /// The path of the field, if the cause is of a field.
    pub field: String,
}

/// Details of a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// The name of the object.
    pub name: String,
    /// The group of the object.
    pub group: String,
    /// The kind, or the resource where only that is known, as upstream does.
    pub kind: String,
    /// The UID of the object.
    pub uid: String,
    /// The causes, as the errors of fields.
    pub causes: Vec<Cause>,
    /// The seconds after which the client may retry; 0 if there are none.
    pub retry_after_seconds: u32,
}

/// A failure with its HTTP status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The HTTP status code.
    pub code: u16,
    /// The reason.
    pub reason: Reason,
    /// The description.
    pub message: String,
    /// The details.
    pub details: Option<Box<Details>>,
    /// With which token an expired list can go on, though not consistently.
    pub resume: Option<Box<str>>,
}

impl std::error::Error for Status {}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Status {
    /// A failure.
    pub fn new(code: u16, reason: Reason, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None, resume: None }
    }

    /// The failure with details.
    #[must_use]
    pub fn with_details(mut self, details: Details) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    fn about(code: u16, reason: Reason, message: String, gr: &GroupResource, name: &str) -> Self {
        Self::new(code, reason, message).with_details(Details {
            name: name.to_owned(),
            group: gr.group.clone(),
            kind: gr.resource.clone(),
            ..Details::default()
        })
    }

    /// 404: the object does not exist.
    pub fn not_found(gr: &GroupResource, name: &str) -> Self {
        Self::about(404, Reason::NotFound, format!("{gr} {name:?} not found"), gr, name)
    }

    /// 409: the object exists already.
    pub fn already_exists(gr: &GroupResource, name: &str) -> Self {
        Self::about(409, Reason::AlreadyExists, format!("{gr} {name:?} already exists"), gr, name)
    }

    /// 409: the request conflicts with the current object.
    pub fn conflict(gr: &GroupResource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {gr} {name:?}: {why}");
        Self::about(409, Reason::Conflict, message, gr, name)
    }

    /// The object was changed between reading and writing.
    pub fn modified(gr: &GroupResource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(gr, name, why)
    }

    /// 403: the request is not allowed.
    pub fn forbidden(gr: &GroupResource, name: &str, why: &str) -> Self {
        let message = match (gr.resource.is_empty(), name.is_empty()) {
            (true, _) => format!("forbidden: {why}"),
            (false, true) => format!("{gr} is forbidden: {why}"),
            (false, false) => format!("{gr} {name:?} is forbidden: {why}"),
        };
        Self::about(403, Reason::Forbidden, message, gr, name)
    }

    /// 401: the client is not authenticated.
    pub fn unauthorized() -> Self {
        Self::new(401, Reason::Unauthorized, "Unauthorized")
    }

    /// 400: the request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, Reason::BadRequest, message)
    }

    /// 500: the server failed.
    pub fn internal(why: impl fmt::Display) -> Self {
        Self::new(500, Reason::InternalError, format!("Internal error occurred: {why}")).with_details(Details {
            causes: vec![Cause { message: why.to_string(), ..Cause::default() }],
            ..Details::default()
        })
    }

    /// 422: the object has these errors.
    pub fn invalid(gk: &GroupKind, name: &str, errors: &[FieldError]) -> Self {
        let (mut seen, mut list, mut size) = (HashSet::new(), Vec::new(), 0);
        let kept = errors.iter().take_while(|e| {
            let fits = size <= MAX_REPORTED_BYTES;
            let text = e.to_string();
            size += text.len() + AROUND_CAUSE;
            if fits && !seen.contains(&text) {
                seen.insert(text.clone());
                list.push(text);
            }
            fits
        });
        let mut causes: Vec<Cause> = kept
            .map(|e| Cause { reason: e.kind.reason().to_owned(), message: e.body().to_string(), field: e.path.clone() })
            .collect();
        let left = errors.len() - causes.len();
        if left > 0 {
            let message = format!("{left} more errors");
            list.push(message.clone());
            causes.push(Cause { reason: ErrorType::TooMany.reason().to_owned(), message, field: String::new() });
        }
        let list = match &list[..] {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        Self::new(422, Reason::Invalid, format!("{gk} {name:?} is invalid: {list}")).with_details(Details {
            name: name.to_owned(),
            group: gk.group.clone(),
            kind: gk.kind.clone(),
            causes,
            ..Details::default()
        })
    }

    /// 405: the resource does not support the action.
    pub fn method_not_supported(gr: &GroupResource, action: &str) -> Self {
        let message = format!("{action} is not supported on resources of kind {:?}", gr.to_string());
        Self::about(405, Reason::MethodNotAllowed, message, gr, "")
    }

    /// 415: the encoding of the request is not supported.
    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(415, Reason::UnsupportedMediaType, message)
    }

    /// 406: no acceptable encoding is available.
    pub fn not_acceptable(message: impl Into<String>) -> Self {
        Self::new(406, Reason::NotAcceptable, message)
    }

    /// 410: the requested revision is compacted.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, Reason::Expired, message)
    }

    /// 413: the request is too large.
    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(413, Reason::RequestEntityTooLarge, message)
    }

    /// 429: there are too many requests.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self::new(429, Reason::TooManyRequests, message)
            .with_details(Details { retry_after_seconds, ..Details::default() })
    }

    /// 504: the request exceeded its deadline.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(504, Reason::Timeout, message)
    }

    /// 503: the service is not available.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, Reason::ServiceUnavailable, message)
    }

    /// What a path that leads nowhere answers.
    pub fn no_such_path() -> Self {
        Self::new(404, Reason::NotFound, "the server could not find the requested resource")
            .with_details(Details::default())
    }

    /// Whether the failure has this reason.
    pub fn is(&self, reason: Reason) -> bool {
        self.reason == reason
    }

    /// As the API writes it: `kind: Status`.
    pub fn to_value(&self) -> Value {
        let mut v = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code});
        if let Some(token) = &self.resume {
            v["metadata"]["continue"] = (**token).into();
        }
        if self.reason != Reason::Unknown {
            v["reason"] = self.reason.as_str().into();
        }
        if let Some(d) = &self.details {
            let mut o = serde_json::Map::new();
            for (k, text) in [("name", &d.name), ("group", &d.group), ("kind", &d.kind), ("uid", &d.uid)] {
                if !text.is_empty() {
                    o.insert(k.into(), text.as_str().into());
                }
            }
            if !d.causes.is_empty() {
                let cause = |c: &Cause| {
                    let pairs = [("reason", &c.reason), ("message", &c.message), ("field", &c.field)];
                    let set = pairs.into_iter().filter(|(_, v)| !v.is_empty());
                    set.map(|(k, v)| (k.to_owned(), Value::from(v.as_str()))).collect::<serde_json::Map<_, _>>()
                };
                o.insert("causes".into(), d.causes.iter().map(cause).collect::<Vec<_>>().into());
            }
            if d.retry_after_seconds > 0 {
                o.insert("retryAfterSeconds".into(), d.retry_after_seconds.into());
            }
            v["details"] = o.into();
        }
        v
    }

    /// Reads a `kind: Status` failure; `None` for anything else.
    pub fn from_value(v: &Value) -> Option<Self> {
        if v["kind"] != "Status" || v["status"] == "Success" {
            return None;
        }
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let details = v["details"].as_object().map(|_| {
            let d = &v["details"];
            Box::new(Details {
                name: text(&d["name"]),
                group: text(&d["group"]),
                kind: text(&d["kind"]),
                uid: text(&d["uid"]),
                retry_after_seconds: d["retryAfterSeconds"].as_u64().unwrap_or(0) as u32,
                causes: d["causes"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|c| Cause {
                        reason: text(&c["reason"]),
                        message: text(&c["message"]),
                        field: text(&c["field"]),
                    })
                    .collect(),
            })
        });
        Some(Self {
            code: v["code"].as_u64().unwrap_or(500) as u16,
            reason: Reason::parse(v["reason"].as_str().unwrap_or_default()),
            message: text(&v["message"]),
            details,
            resume: v["metadata"]["continue"].as_str().map(Into::into),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FieldPath;

    #[test]
    fn an_answer_has_a_bounded_number_of_errors() {
        let gk = GroupKind { group: String::new(), kind: "Pod".into() };
        let errors: Vec<FieldError> =
            (0..200_000).map(|i| FieldError::required(&FieldPath::new("spec").index(i), "")).collect();
        let s = Status::invalid(&gk, "p", &errors);
        assert!(s.to_value().to_string().len() < 1 << 20);
        let causes = s.details.unwrap_or_default().causes;
        assert_eq!(causes[1].field, "spec[1]");
        let left = format!("{} more errors", errors.len() - (causes.len() - 1));
        assert!(s.message.ends_with(&format!(", {left}]")) && causes.last().is_some_and(|c| c.message == left));
        // A single one is kept whatever its size.
        let long = FieldError::invalid(&FieldPath::new("spec"), "x".repeat(2 << 20), "why");
        let s = Status::invalid(&gk, "p", &[long.clone(), long]);
        assert!(s.message.contains("1 more errors") && s.message.len() > 2 << 20);
    }
}
