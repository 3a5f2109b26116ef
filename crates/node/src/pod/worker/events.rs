//! Events about the pod and its containers.

use client::{Regarding, Severity};
use k8s_openapi::api::core::v1::{Container as Spec, Pod};

use super::Worker;
use crate::pod::spec::text;

pub(crate) fn regarding(pod: &Pod) -> Regarding {
    let m = &pod.metadata;
    Regarding {
        api_version: "v1".into(),
        kind: "Pod".into(),
        namespace: text(&m.namespace).into(),
        name: text(&m.name).into(),
        uid: text(&m.uid).into(),
        resource_version: text(&m.resource_version).into(),
        field_path: String::new(),
    }
}

impl Worker {
    pub(super) fn event(&self, container: Option<&str>, severity: Severity, reason: &str, message: impl Into<String>) {
        let mut about = regarding(&self.pod);
        if let Some(c) = container {
            about.field_path = self.field_path(c);
        }
        self.shared.recorder.event(about, severity, reason, message);
    }

    pub(super) fn field_path(&self, name: &str) -> String {
        let spec = self.pod.spec.as_ref();
        let has = |list: Option<&Vec<Spec>>| list.is_some_and(|l| l.iter().any(|c| c.name == name));
        if has(spec.and_then(|s| s.init_containers.as_ref())) {
            format!("spec.initContainers{{{name}}}")
        } else if has(spec.map(|s| &s.containers)) {
            format!("spec.containers{{{name}}}")
        } else {
            format!("spec.ephemeralContainers{{{name}}}")
        }
    }
}
