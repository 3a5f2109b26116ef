//! Writes of manifests and steps, with the errors that kubectl would show for them.

use client::{Api, DryRun, FieldValidation, Patch, WriteOptions};
use meta::{Gvk, Object, Value};
use testkit::Cluster;

/// Applies an object with server-side apply. Errors with the message for a new object where it has one: it names fields as strict decoding does.
pub(crate) async fn apply(api: &Api<Object>, options: &WriteOptions, object: &Object) -> Result<(), String> {
    let applied = api.patch(object.name(), options, &Patch::Apply(object.clone().into_value())).await;
    let Err(error) = applied else { return Ok(()) };
    let dry = WriteOptions { dry_run: DryRun::All, field_validation: FieldValidation::Strict, ..options.clone() };
    match api.create(&dry, object).await {
        Err(e) if !e.is_already_exists() => Err(message(&e)),
        _ => Err(message(&error)),
    }
}

/// The message of an error, without the whole object that the server repeats when a patched object is invalid.
pub(crate) fn message(error: &client::Error) -> String {
    let patch = match error {
        client::Error::Api(status) => status.details.iter().flat_map(|d| &d.causes).find(|c| c.field == "patch"),
        _ => None,
    };
    match patch {
        Some(cause) => without_value(&cause.message).to_owned(),
        None => error.to_string(),
    }
}

/// The detail of an error of a field, after its quoted value.
fn without_value(message: &str) -> &str {
    let Some((_, quoted)) = message.split_once('"') else { return message };
    let mut escaped = false;
    let end = quoted.char_indices().find(|(_, c)| {
        let ends = *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        ends
    });
    end.and_then(|(at, _)| quoted[at + 1..].strip_prefix(": ")).unwrap_or(message)
}

/// Whether a kind is one of custom resources that are not defined here: its group has a domain, and nothing of it is served.
pub(crate) fn is_undefined_custom(cluster: &Cluster, gvk: &Gvk) -> bool {
    gvk.group.contains('.') && !cluster.server.registry.rows().iter().any(|row| row.kind.gvk().group == gvk.group)
}

/// The kind of an object.
pub(crate) fn gvk(object: &Value) -> Gvk {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    Gvk::new(group, version, text("kind"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn details_of_fields_have_no_value() {
        for (message, expected) in [
            (
                r#"Invalid value: "{\"a\":\"b\"}": strict decoding error: unknown field "spec.x""#,
                r#"strict decoding error: unknown field "spec.x""#,
            ),
            (r#"Invalid value: "a\\": why"#, "why"),
            ("no value", "no value"),
            (r#"an open "quote"#, r#"an open "quote"#),
            ("Invalid value: \"ä\": ö", "ö"),
        ] {
            assert_eq!(super::without_value(message), expected);
        }
    }
}
