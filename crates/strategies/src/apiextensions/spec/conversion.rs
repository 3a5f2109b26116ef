//! How versions become one another: by nobody, or by a webhook that can be reached and trusted.

use super::one_of;
use crate::admissionregistration::webhooks::client_config;
use crate::apiextensions::strings;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Which certificate authorities a webhook may name.
#[derive(PartialEq)]
pub enum Authorities {
    /// Also those that nobody can read: nothing is served yet, or they are there already.
    Any,
    Readable,
}

/// What may follow a definition that is served.
pub fn authorities(old: &Object) -> Authorities {
    let bundle = old.str_at(&["spec", "conversion", "webhook", "clientConfig", "caBundle"]).unwrap_or_default();
    if readable(bundle).is_ok() { Authorities::Readable } else { Authorities::Any }
}

pub fn validate(v: Option<&Value>, authorities: Authorities, path: &FieldPath, errors: &mut ErrorList) {
    let Some(v) = v.filter(|v| v.is_object()) else { return };
    let strategy = v["strategy"].as_str().unwrap_or_default();
    one_of(strategy, &["None", "Webhook"], &path.child("strategy"), errors);
    let (config, reviews) = (&v["webhook"]["clientConfig"], strings(v["webhook"].get("conversionReviewVersions")));
    let at = path.child("webhookClientConfig");
    let list = path.child("conversionReviewVersions");
    if strategy != "Webhook" {
        let why = "should not be set when strategy is not set to Webhook";
        if !config.is_null() {
            errors.push(FieldError::forbidden(&at, why));
        }
        if !reviews.is_empty() {
            errors.push(FieldError::forbidden(&list, why));
        }
        return;
    }
    if config.is_null() {
        errors.push(FieldError::required(&at, "required when strategy is set to Webhook"));
    } else {
        client_config(config, &at, errors);
        let bundle = config["caBundle"].as_str().unwrap_or_default();
        if authorities == Authorities::Readable
            && let Err(why) = readable(bundle)
        {
            let why = format!("unable to load root certificates: {why}");
            errors.push(FieldError::invalid(&at.child("caBundle"), bundle, why));
        }
    }
    reviewed(&reviews, &list, errors);
}

fn reviewed(reviews: &[String], list: &FieldPath, errors: &mut ErrorList) {
    if reviews.is_empty() {
        errors.push(FieldError::required(list, ""));
        return;
    }
    let again = crate::read::repeats(reviews);
    for (i, r) in reviews.iter().enumerate() {
        if again[i] {
            errors.push(FieldError::invalid(&list.index(i), r.as_str(), "duplicate version"));
            continue;
        }
        let bad = names::dns_1035_label(r);
        errors.extend(bad.into_iter().map(|m| FieldError::invalid(&list.index(i), r.as_str(), m)));
    }
    if !reviews.iter().any(|r| matches!(r.as_str(), "v1" | "v1beta1")) {
        errors.push(FieldError::invalid(list, reviews, "must include at least one of v1, v1beta1"));
    }
}

/// Nothing, or PEM with a certificate in it.
fn readable(base64: &str) -> Result<(), String> {
    let bytes = schema::base64_decode(base64).unwrap_or_default();
    if bytes.is_empty() {
        return Ok(());
    }
    let mut blocks = 0;
    for pem in x509_parser::pem::Pem::iter_from_buffer(&bytes).flatten() {
        blocks += 1;
        if pem.label == "CERTIFICATE" {
            match X509Certificate::from_der(&pem.contents) {
                Ok(_) => return Ok(()),
                Err(e) => return Err(format!("failed to parse certificate: {e}")),
            }
        }
    }
    let why =
        if blocks == 0 { "unable to parse bytes as PEM block" } else { "no valid certificate authority data seen" };
    Err(why.into())
}
