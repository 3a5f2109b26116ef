//! Validation of the conversion strategy and its webhook.

use super::supported;
use crate::admissionregistration::webhooks::client_config;
use crate::apiextensions::strings;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The CA bundles that a webhook may have.
#[derive(PartialEq)]
pub enum Authorities {
    /// Any, including unparsable ones: no version is served yet, or the old bundle is unparsable.
    Any,
    Parsable,
}

/// Returns the allowed CA bundles for an update of a served definition.
pub fn authorities(old: &Object) -> Authorities {
    let bundle = old.str_at(&["spec", "conversion", "webhook", "clientConfig", "caBundle"]).unwrap_or_default();
    if check_bundle(bundle).is_ok() { Authorities::Parsable } else { Authorities::Any }
}

pub fn validate(v: Option<&Value>, authorities: Authorities, path: &FieldPath, errors: &mut ErrorList) {
    let Some(v) = v.filter(|v| v.is_object()) else { return };
    let strategy = v["strategy"].as_str().unwrap_or_default();
    supported(strategy, &["None", "Webhook"], &path.child("strategy"), errors);
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
        if authorities == Authorities::Parsable
            && let Err(why) = check_bundle(bundle)
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

/// Checks that a CA bundle is empty, or PEM with a certificate.
fn check_bundle(base64: &str) -> Result<(), String> {
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
