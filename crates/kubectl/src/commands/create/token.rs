//! Requests tokens of service accounts.

use crate::error::{Error, Result, text};
use crate::flags::{PrintFlags, duration};
use crate::kube::Kube;
use crate::printer::shape::Order;
use crate::printer::{Formats, Output, ordered};
use client::WriteOptions;
use meta::Object;
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// Service account.
    pub name: String,
    /// Audience of the token; may be repeated.
    #[arg(long)]
    pub audience: Vec<String>,
    /// Requested lifetime; the server may issue a shorter one.
    #[arg(long, default_value = "0s", hide_default_value = true, value_parser = crate::flags::duration_text)]
    pub duration: String,
    /// Kind of the object that the token is bound to: Pod, Secret or Node.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub bound_object_kind: String,
    /// Name of the object that the token is bound to.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub bound_object_name: String,
    /// UID of the object that the token is bound to.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub bound_object_uid: String,
    #[command(flatten)]
    pub print: PrintFlags,
}

pub async fn run(a: &Arguments, k: &mut Kube) -> Result {
    let output = Output::parse(&a.print, Formats::Objects, true)?;
    let mut spec = json!({"audiences": a.audience});
    if a.audience.is_empty() {
        spec = json!({});
    }
    let Some(lasting) = duration("duration", &a.duration)? else {
        return text("--duration must be greater than or equal to 0");
    };
    let seconds = lasting.as_secs();
    if seconds > 0 {
        spec["expirationSeconds"] = seconds.into();
    }
    if !a.bound_object_kind.is_empty() {
        if !matches!(a.bound_object_kind.as_str(), "Node" | "Pod" | "Secret") {
            return text("supported --bound-object-kind values are Node, Pod, Secret");
        }
        if a.bound_object_name.is_empty() {
            return text("--bound-object-name is required if --bound-object-kind is provided");
        }
        let mut r = json!({"kind": a.bound_object_kind, "apiVersion": "v1", "name": a.bound_object_name});
        if !a.bound_object_uid.is_empty() {
            r["uid"] = a.bound_object_uid.clone().into();
        }
        spec["boundObjectRef"] = r;
    } else if !a.bound_object_name.is_empty() {
        return text("--bound-object-name can only be set if --bound-object-kind is provided");
    } else if !a.bound_object_uid.is_empty() {
        return text("--bound-object-uid can only be set if --bound-object-kind is provided");
    }
    let (namespace, _) = k.namespace()?;
    let resource = k.resource("serviceaccounts").await?;
    let api = k.api(&resource, &namespace).await?;
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    let made: Object = api
        .create_subresource(&a.name, "token", &WriteOptions::default(), &request)
        .await
        .map_err(|e| Error::Text(format!("failed to create token: {e}")))?;
    if output.is_human() {
        match made.str_at(&["status", "token"]).filter(|t| !t.is_empty()) {
            Some(t) => k.println(t),
            None => return text("failed to create token: no token in server response"),
        }
        return Ok(());
    }
    // The field has no `omitempty`.
    let mut made = made;
    if made.at(&["spec", "boundObjectRef"]).is_none() {
        made.set(&["spec", "boundObjectRef"], meta::Value::Null);
    }
    k.out.write(ordered(&output, made, a.print.show_managed_fields, Order::ByType)?.as_bytes());
    Ok(())
}
