//! The description of the kinds is compared with what a v1.36 server publishes. Every difference is listed with its reason.

#![allow(clippy::unwrap_used, reason = "a test may")]

use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::io::Read;

fn gunzip(bytes: &[u8]) -> Value {
    let mut text = String::new();
    flate2::read::GzDecoder::new(bytes).read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

async fn published() -> Map<String, Value> {
    let cluster = testkit::Cluster::start(1).await;
    let index = cluster.call("GET", "/openapi/v3", Value::Null).await.body;
    let mut all = Map::new();
    for path in index["paths"].as_object().unwrap().values() {
        let document = cluster.call("GET", path["serverRelativeURL"].as_str().unwrap(), Value::Null).await.body;
        all.extend(document["components"]["schemas"].as_object().unwrap().clone());
    }
    all
}

/// Properties whose published topology says nothing that could be true: bytes are no list, and discovery is not applied.
const NO_LIST: [&str; 2] = [
    "io.k8s.apimachinery.pkg.apis.meta.v1.APIResource.verbs",
    "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIServiceSpec.caBundle",
];

/// What is compared of a property. `default: {}` says no more than that the property is a struct by value.
fn facts(p: &Value) -> Value {
    let mut p = p.clone();
    if let Some(m) = p.as_object_mut() {
        m.remove("description");
    }
    p
}

#[tokio::test]
async fn schemas_are_those_of_v1_36() {
    let want = gunzip(include_bytes!("data/schemas.json.gz"));
    let have = published().await;
    let mut problems = Vec::new();
    for (name, w) in want.as_object().unwrap() {
        let Some(h) = have.get(name) else {
            if !name.contains(".meta.v1.") {
                problems.push(format!("{name} is not published"));
            }
            continue;
        };
        let fields = |v: &Value| v["properties"].as_object().cloned().unwrap_or_default();
        let (wf, hf) = (fields(w), fields(h));
        let names = |m: &Map<String, Value>| m.keys().cloned().collect::<BTreeSet<_>>();
        if names(&wf) != names(&hf) {
            problems.push(format!("{name}: fields differ: {:?}", names(&wf).symmetric_difference(&names(&hf))));
        }
        for (f, wp) in &wf {
            let hp = hf.get(f).map(facts).unwrap_or_default();
            for key in [
                "type",
                "format",
                "x-kubernetes-list-type",
                "x-kubernetes-list-map-keys",
                "x-kubernetes-patch-merge-key",
                "allOf",
                "enum",
            ] {
                let listed = key == "x-kubernetes-list-type" && NO_LIST.contains(&format!("{name}.{f}").as_str());
                if wp.get(key) != hp.get(key) && !listed {
                    problems.push(format!("{name}.{f} {key}: want {:?}, have {:?}", wp.get(key), hp.get(key)));
                }
            }
        }
        let required = |v: &Value| -> BTreeSet<String> {
            v["required"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        if required(w) != required(h) {
            problems.push(format!("{name} required: want {:?}, have {:?}", required(w), required(h)));
        }
    }
    assert!(problems.is_empty(), "{} differences:\n{}", problems.len(), problems.join("\n"));
}

#[tokio::test]
async fn discovery_is_that_of_v1_36() {
    let want = gunzip(include_bytes!("data/discovery.json.gz"));
    let cluster = testkit::Cluster::start(1).await;
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    for root in ["api", "apis"] {
        let have = cluster.send("GET", &format!("/{root}"), None, accept, Default::default()).await.body;
        let flat = |v: &Value| -> BTreeSet<String> {
            let mut out = BTreeSet::new();
            for g in v["items"].as_array().into_iter().flatten() {
                for ver in g["versions"].as_array().into_iter().flatten() {
                    for r in ver["resources"].as_array().into_iter().flatten() {
                        let mut r = r.clone();
                        for s in r["subresources"].as_array_mut().into_iter().flatten() {
                            s.as_object_mut().map(|m| m.remove("acceptedTypes"));
                        }
                        out.insert(format!("{} {} {r}", g["metadata"]["name"], ver["version"]));
                    }
                }
            }
            out
        };
        let (w, h) = (flat(&want[root]), flat(&have));
        let diff: Vec<_> = w.symmetric_difference(&h).collect();
        assert!(diff.is_empty(), "{} differences: {diff:#?}", diff.len());
    }
}

#[test]
fn protobuf_numbers_are_those_of_v1_36() {
    let want = gunzip(include_bytes!("data/protobuf.json.gz"));
    let mut problems = Vec::new();
    for (name, schema) in kinds::catalog().definitions.iter() {
        let message = name
            .replace("io.k8s.", "k8s.io.")
            .replace("k8s.io.apiextensions-apiserver", "k8s.io.apiextensions_apiserver")
            .replace("k8s.io.kube-aggregator", "k8s.io.kube_aggregator");
        let Some(fields) = want.get(&message).and_then(Value::as_array) else { continue };
        for f in schema.fields.iter().filter(|f| f.inline_of.is_none() && f.number > 0) {
            let found = fields.iter().any(|w| w[1] == f.number);
            if !found {
                problems.push(format!("{name}.{} has number {}, which the message does not have", f.name, f.number));
            }
        }
        for w in fields {
            let number = w[1].as_u64().unwrap_or(0) as u32;
            let own = schema.fields.iter().any(|f| match &f.inline_of {
                None => f.number == number,
                Some(i) => i.split('/').next().is_some_and(|p| p.ends_with(&format!("#{number}"))),
            });
            if !own && !schema.fields.is_empty() {
                problems.push(format!("{name} lacks field number {number} ({})", w[0]));
            }
        }
    }
    assert!(problems.is_empty(), "{} differences:\n{}", problems.len(), problems.join("\n"));
}
