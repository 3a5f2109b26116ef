//! PodTemplate: validation of the template.

use crate::Config;
use crate::pod_template;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldPath, Object};
use registry::CreateStrategy;

pub fn row(_: &Config) -> Row {
    Row::stored(PodTemplate)
}

pub struct PodTemplate;

impl CreateStrategy for PodTemplate {
    fn default(&self, o: &mut Object) {
        pod_template::default(o, &["template", "spec"]);
    }

    fn warnings(&self, o: &Object, old: Option<&Object>) -> Vec<String> {
        pod_template::workload_warnings(o, old, &["template"])
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        pod_template::validate(o.at(&["template"]), &FieldPath::new("template"), errors);
    }
}

registry::strategy!(PodTemplate: CreateStrategy);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_create;
    use serde_json::{Value, json};

    fn check(field: &str, cases: &[(Value, &[&str])]) {
        let base = json!({"apiVersion": "v1", "kind": "PodTemplate",
            "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}});
        let pointer = format!("/template/spec/{field}");
        for (value, errors) in cases {
            let errors: Vec<String> = errors.iter().map(|e| format!("template.spec.{e}")).collect();
            let errors: Vec<&str> = errors.iter().map(String::as_str).collect();
            check_create(&PodTemplate, &base, &[(&pointer, value.clone(), &errors)]);
        }
    }

    #[test]
    fn validates_volume_sources() {
        let partition = "volumes[0].persistentDisk.partition: Invalid value: 256: must be between 1 and 255, inclusive";
        check(
            "volumes",
            &[
                (json!([{"name": "v", "hostPath": {"path": "/a"}}]), &[]),
                (
                    json!([{"name": "v", "hostPath": {"path": "", "type": "Other"}}]),
                    &["volumes[0].hostPath.path: Required value"],
                ),
                (
                    json!([{"name": "v", "hostPath": {"path": "/a", "type": "Other"}}]),
                    &["volumes[0].hostPath.type: Unsupported value: \"Other\"…"],
                ),
                (
                    json!([{"name": "v", "gcePersistentDisk": {"pdName": "", "partition": 256}}]),
                    &["volumes[0].persistentDisk.pdName: Required value", partition],
                ),
                (
                    json!([{"name": "v", "secret": {"secretName": ""}, "nfs": {"path": ""}}]),
                    &[
                        "volumes[0].secret.secretName: Required value",
                        "volumes[0].nfs: Forbidden: may not specify more than 1 volume type",
                    ],
                ),
            ],
        );
    }

    #[test]
    fn validates_probes() {
        let two = "containers[0].livenessProbe.httpGet: Forbidden: may not specify more than 1 handler type";
        let low = "containers[0].livenessProbe.failureThreshold: Invalid value: -1: must be greater than or equal to 0";
        check(
            "containers/0/livenessProbe",
            &[
                (json!({"exec": {"command": ["a"]}}), &[]),
                (json!({"exec": {"command": ["a"]}, "httpGet": {"port": 0}}), &[two]),
                (
                    json!({"failureThreshold": -1}),
                    &["containers[0].livenessProbe: Required value: must specify a handler type", low],
                ),
            ],
        );
        let init = "initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always";
        check(
            "initContainers",
            &[(json!([{"name": "i", "image": "i", "livenessProbe": {"failureThreshold": -1}}]), &[init])],
        );
    }
}
