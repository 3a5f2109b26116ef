//! Decodes the manifests of static pods, with the description and the rules by which the API server creates pods.

use meta::{FieldPath, Object, Value, names};
use node::PodDecoder;
use registry::CreateStrategy;
use registry::metadata;
use strategies::core::pod::Pod;

/// Decodes static pods.
pub struct Decoder;

impl PodDecoder for Decoder {
    fn decode(&self, manifest: &str) -> Result<Value, String> {
        let limit = codec::yaml::DEPTH_LIMIT;
        let (mut value, _) = codec::yaml::parse_first(manifest, limit).map_err(|e| e.to_string())?;
        let schema = schema(&value)?;
        schema::typed(&mut value, schema).map_err(|e| e.to_string())?;
        schema::fill(&mut value, schema);
        let mut object = Object::from_value(value).ok_or("it is no object")?;
        CreateStrategy::default(&Pod, &mut object);
        Ok(Value::Object(object.0))
    }

    fn validate(&self, pod: &Value) -> Result<(), String> {
        let schema = schema(pod)?;
        let object = Object::from_value(pod.clone()).ok_or("it is no object")?;
        let mut errors = Vec::new();
        let path = FieldPath::new("metadata");
        for why in names::dns_subdomain(object.name()) {
            errors.push(meta::FieldError::invalid(&path.child("name"), object.name(), why));
        }
        for why in names::dns_label(object.namespace()) {
            errors.push(meta::FieldError::invalid(&path.child("namespace"), object.namespace(), why));
        }
        metadata::labels(object.at(&["metadata", "labels"]), &path.child("labels"), &mut errors);
        metadata::annotations(object.at(&["metadata", "annotations"]), &path.child("annotations"), &mut errors);
        let of_metadata = errors.len();
        schema::rules::validate(&object.0, schema, &mut errors);
        Pod.validate(&object, &mut errors);
        Pod.validate_since(&object, None, &mut errors);
        let found = schema::rules::Found { of_metadata, before_changes: errors.len() };
        schema::rules::arrange(&mut errors, found, schema);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        match texts.as_slice() {
            [] => Ok(()),
            [error] => Err(error.clone()),
            more => Err(format!("[{}]", more.join(", "))),
        }
    }
}

/// The description of pods. Errors if the value is none.
fn schema(value: &Value) -> Result<&'static schema::Schema, String> {
    let text = |field: &str| value[field].as_str().unwrap_or_default();
    match (text("apiVersion"), text("kind")) {
        ("", _) => Err("Object 'apiVersion' is missing".into()),
        (_, "") => Err("Object 'Kind' is missing".into()),
        ("v1", "Pod") => {
            let pod = meta::GroupVersion { group: String::new(), version: "v1".into() }.with_kind("Pod");
            kinds::catalog().schema_of(&pod).map(|s| &**s).ok_or_else(|| "pods are not described".into())
        }
        (version, kind) => Err(format!("no pod, but a {kind:?} of version {version:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn manifests_are_decoded_with_the_defaults_of_pods() {
        let pod = Decoder.decode(
            "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: c\n    image: nginx\n    ports: [{containerPort: 80}]\n",
        );
        let pod = pod.unwrap();
        let container = &pod["spec"]["containers"][0];
        assert_eq!(pod["spec"]["restartPolicy"], "Always");
        assert_eq!(container["terminationMessagePath"], "/dev/termination-log");
        assert_eq!(container["imagePullPolicy"], "Always");
        assert_eq!(container["ports"][0]["protocol"], "TCP");
    }

    #[test]
    fn other_documents_are_refused() {
        for (text, expected) in [
            ("a: b", "Object 'apiVersion' is missing"),
            ("apiVersion: v1\nkind: Service", "no pod, but a \"Service\" of version \"v1\""),
        ] {
            assert_eq!(Decoder.decode(text).unwrap_err(), expected);
        }
    }

    #[test]
    fn invalid_pods_are_refused_with_all_errors() {
        let pod = |name: &str, spec: Value| {
            json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"}, "spec": spec})
        };
        let decode = |v: Value| Decoder.decode(&v.to_string()).unwrap();
        let good = decode(pod("web", json!({"containers": [{"name": "c", "image": "i"}]})));
        assert_eq!(Decoder.validate(&good), Ok(()));
        let bad = decode(pod("Web", json!({"containers": [{"name": "C", "image": "i"}], "restartPolicy": "x"})));
        let error = Decoder.validate(&bad).unwrap_err();
        for part in ["metadata.name: Invalid value: \"Web\"", "spec.containers[0].name", "spec.restartPolicy"] {
            assert!(error.contains(part), "{part} in {error}");
        }
    }
}
