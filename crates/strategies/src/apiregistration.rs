//! APIService: its name is its version and group.

use crate::read::{is_set, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};

pub fn api_service(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    let (group, version) = (text(spec, "group"), text(spec, "version"));
    let want = format!("{version}.{group}");
    // A name that is none at all, or missing, is told as such.
    if !o.name().is_empty() && names::path_segment(o.name()).is_empty() && o.name() != want {
        let why = format!("must be `spec.version+\".\"+spec.group`: {want:?}");
        errors.push(FieldError::invalid(&FieldPath::new("metadata.name"), o.name(), why));
    }
    if !group.is_empty() {
        let at = path.child("group");
        errors.extend(names::dns_subdomain(group).into_iter().map(|m| FieldError::invalid(&at, group, m)));
    } else if version != "v1" {
        let why = "only v1 may have an empty group and it better be legacy kube";
        errors.push(FieldError::required(&path.child("group"), why));
    }
    if is_set(spec, "service") {
        return;
    }
    if !text(spec, "caBundle").is_empty() {
        let why = "local APIServices may not have a caBundle";
        errors.push(FieldError::invalid(&path.child("caBundle"), spec["caBundle"].clone(), why));
    }
    if spec["insecureSkipTLSVerify"] == true {
        let why = "local APIServices may not have insecureSkipTLSVerify";
        errors.push(FieldError::invalid(&path.child("insecureSkipTLSVerify"), true, why));
    }
}
