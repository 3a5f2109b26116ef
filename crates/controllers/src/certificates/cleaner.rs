//! Deletes old requests (upstream `csrcleaner`): those that were issued, denied or failed an hour ago, that are pending for a day, or whose
//! certificate has expired.

use super::Conditions;
use crate::context::{Context, object};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::{ApiResource, DeleteOptions, Informer};
use jiff::{SignedDuration, Timestamp};
use meta::Object;
use std::time::Duration;
use supervisor::panics::caught_now;
use x509_parser::prelude::{FromDer, X509Certificate};

pub const PERIOD: Duration = Duration::from_secs(3600);
const ANSWERED: SignedDuration = SignedDuration::from_hours(1);
const UNANSWERED: SignedDuration = SignedDuration::from_hours(24);

pub async fn clean(context: &Context, resource: &ApiResource, requests: &Informer<()>) {
    let all: Vec<_> = requests.cache().entries().cloned().collect();
    for entry in all {
        let over = || object(resource, &entry).is_ok_and(|o| is_over(&o, context.now()));
        if !caught_now(context.name, entry.key(), over).unwrap_or(false) {
            continue;
        }
        let options = DeleteOptions::uid(&entry.meta.uid);
        match context.client.dynamic(resource).delete(&entry.meta.name, &options).await {
            Err(e) if !e.is_not_found() => {
                tracing::warn!(request = &*entry.meta.name, "deleting an old request failed: {e}")
            }
            _ => {}
        }
    }
}

fn is_over(o: &Object, now: Timestamp) -> bool {
    let older = |t: Option<&str>, than| {
        let t = t.and_then(|t| t.parse::<Timestamp>().ok());
        t.is_some_and(|t| now.duration_since(t) > than)
    };
    let conditions = Conditions::read(o);
    let certificate = o.str_at(&["status", "certificate"]).unwrap_or_default();
    if conditions.0.is_empty() {
        return older(Some(o.creation_timestamp()), UNANSWERED);
    }
    let ended = || ends(certificate).is_some_and(|end| end < now);
    conditions.0.iter().any(|c| {
        let answered = || older(c["lastUpdateTime"].as_str(), ANSWERED);
        match c["type"].as_str() {
            Some("Denied" | "Failed") => answered(),
            Some("Approved") if certificate.is_empty() => older(c["lastUpdateTime"].as_str(), UNANSWERED),
            Some("Approved") => answered() || ended(),
            _ => false,
        }
    })
}

/// The expiry of a certificate (PEM in base64).
fn ends(certificate: &str) -> Option<Timestamp> {
    let text = STANDARD.decode(certificate).ok()?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&text).ok()?;
    let (_, c) = X509Certificate::from_der(&pem.contents).ok()?;
    Timestamp::from_second(c.validity().not_after.timestamp()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn old_requests_are_deleted() {
        let now: Timestamp = "2026-01-02T12:00:00Z".parse().unwrap();
        let (early, late) = ("2026-01-02T11:30:00Z", "2026-01-02T10:30:00Z");
        let check = |made: &str, certificate: &str, conditions: Value, over: bool| {
            let status = json!({"certificate": certificate, "conditions": conditions});
            let o = json!({"metadata": {"name": "r", "creationTimestamp": made}, "status": status});
            assert_eq!(is_over(&Object::from_value(o).unwrap(), now), over, "{made} {status}");
        };
        let conditions = |kind: &str, at: &str| json!([{"type": kind, "status": "True", "lastUpdateTime": at}]);
        check("2026-01-01T13:00:00Z", "", json!([]), false);
        check("2026-01-01T11:00:00Z", "", json!([]), true);
        check(late, "", conditions("Denied", early), false);
        check(late, "", conditions("Denied", late), true);
        check(late, "", conditions("Failed", late), true);
        check(late, "", conditions("Approved", late), false);
        check(late, "", conditions("Approved", "2026-01-01T11:59:00Z"), true);
        check(late, "Yw==", conditions("Approved", late), true);
        check(late, "Yw==", conditions("Approved", early), false);
    }
}
