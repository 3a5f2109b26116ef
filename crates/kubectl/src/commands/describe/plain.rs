//! Describes config maps, secrets and namespaces.

use super::page::{Page, list, pairs, show};
use super::related;
use crate::error::Result;
use crate::kube::Kube;
use crate::resource::select::Selection;
use base64::Engine as _;
use meta::{Object, Value};

fn decoded(v: &Value) -> Vec<u8> {
    v.as_str().and_then(|s| base64::engine::general_purpose::STANDARD.decode(s).ok()).unwrap_or_default()
}

pub fn config_map(p: &mut Page, o: &Object) {
    p.name_and_namespace(o);
    p.metadata(o);
    p.line(0, "\nData\n====");
    for (k, v) in pairs(o.get("data")) {
        p.line(0, format!("{k}:\n----\n{v}\n"));
    }
    p.line(0, "\nBinaryData\n====");
    for (k, v) in o.get("binaryData").and_then(Value::as_object).into_iter().flatten() {
        p.line(0, format!("{k}: {} bytes", decoded(v).len()));
    }
    p.line(0, "");
}

/// Writes the sizes of the values. Only the token of a service account is shown, because users read it from here.
pub fn secret(p: &mut Page, o: &Object) {
    p.name_and_namespace(o);
    p.metadata(o);
    p.line(0, format!("\nType:\t{}\n\nData\n====", o.str_at(&["type"]).unwrap_or_default()));
    for (k, v) in o.get("data").and_then(Value::as_object).into_iter().flatten() {
        let v = decoded(v);
        match (k.as_str(), o.str_at(&["type"])) {
            ("token", Some("kubernetes.io/service-account-token")) => p.at(0, k, String::from_utf8_lossy(&v)),
            _ => p.at(0, k, format!("{} bytes", v.len())),
        }
    }
}

pub async fn namespace(p: &mut Page, o: &Object, k: &mut Kube) -> Result {
    p.field("Name", o.name());
    p.metadata(o);
    p.field("Status", o.str_at(&["status", "phase"]).unwrap_or_default());
    p.conditions(list(o.at(&["status", "conditions"])));
    let selection = Selection { page: Some(p.chunk_size), ..Selection::default() };
    let mut all = async |word: &str| -> Result<Vec<Object>> {
        match k.resource(word).await {
            Ok(_) => related::objects(k, word, o.name(), &selection).await,
            // The server lacks the type.
            Err(_) => Ok(Vec::new()),
        }
    };
    let (mut quotas, limits) = (all("resourcequotas").await?, all("limitranges").await?);
    quotas.sort_by(|a, b| a.name().cmp(b.name()));
    if quotas.is_empty() {
        p.line(0, "\nNo resource quota.");
    } else {
        p.line(0, "\nResource Quotas");
        for q in quotas {
            p.line(1, format!("Name:\t{}", q.name()));
            super::limits::scopes(p, &q, "  ", "  ");
            p.line(1, "Resource\tUsed\tHard\n  --------\t---\t---");
            for (name, hard) in pairs(q.at(&["status", "hard"])) {
                p.line(1, format!("{name}\t{}\t{hard}", super::limits::used(&q, &name)));
            }
        }
    }
    if limits.is_empty() {
        p.line(0, "\nNo LimitRange resource.");
        return Ok(());
    }
    p.line(0, "\nResource Limits");
    for (i, l) in limits.iter().enumerate() {
        super::limits::ranges(p, l, " ", i == 0);
    }
    Ok(())
}

pub fn service_account(p: &mut Page, o: &Object) {
    p.name_and_namespace(o);
    p.metadata(o);
    let names = |key: &str| list(o.get(key)).iter().map(|r| show(&r["name"])).collect::<Vec<_>>();
    p.many(0, "Image pull secrets", &names("imagePullSecrets"));
}
