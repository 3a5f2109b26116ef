//! A sample of what a real v1.36 API server answers, replayed: requests of every class and kind, compared without messages.
//!
//! The floors are what is reached today; they only rise.

#![allow(clippy::unwrap_used, reason = "a test may")]

use regex::Regex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use testkit::{Answer, Cluster};

/// Agreement in percent that each class must reach on the sample, by distinct answers.
const FLOORS: [(&str, f64); 6] =
    [("defaults", 94.0), ("patch", 96.4), ("read", 100.0), ("ssa", 98.5), ("update", 97.8), ("validation", 99.1)];

fn gunzip(bytes: &[u8]) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(bytes).read_to_string(&mut text).unwrap();
    text
}

/// Of the answers that blame several fields, how many in percent blame them in upstream's order.
const IN_ORDER: f64 = 99.4;

/// Values that differ from server to server are replaced, as the recording replaced them.
struct Normal {
    uuid: Regex,
    volume: Regex,
    ours: Regex,
}

impl Normal {
    fn new() -> Self {
        Self {
            uuid: Regex::new("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").unwrap(),
            volume: Regex::new("kube-api-access-[a-z0-9]{5}").unwrap(),
            ours: Regex::new("^(corpus|m[123]|up-m[123]|s-m[123]|scaler)$").unwrap(),
        }
    }

    fn value(&self, v: &Value, key: Option<&str>) -> Value {
        match v {
            Value::Object(m) => {
                if key.is_none() && m.get("kind").is_some_and(|k| k == "Status") {
                    let kept = m.iter().filter(|(k, _)| *k != "metadata");
                    return kept
                        .map(|(k, v)| (k.clone(), self.value(v, Some(k))))
                        .collect::<serde_json::Map<_, _>>()
                        .into();
                }
                const DROP: [&str; 7] =
                    ["uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "time", "selfLink", "status"];
                let keep = |k: &str| !DROP.contains(&k) || (key == Some("conditions") && k == "status");
                let mut out: serde_json::Map<String, Value> =
                    m.iter().filter(|(k, _)| keep(k)).map(|(k, v)| (k.clone(), self.value(v, Some(k)))).collect();
                if key == Some("metadata") {
                    self.metadata(&mut out);
                }
                out.into()
            }
            Value::Array(a) => a.iter().map(|v| self.value(v, key)).collect(),
            Value::String(s) => {
                let s = self.uuid.replace_all(s, "<uid>");
                let s = self.volume.replace_all(&s, "kube-api-access-<r>");
                match key {
                    Some("clusterIP" | "clusterIPs") if s != "None" && !s.is_empty() => "<ip>".into(),
                    Some("token") => "<token>".into(),
                    _ => s.into_owned().into(),
                }
            }
            v if matches!(key, Some("nodePort" | "healthCheckNodePort")) && v.as_i64().unwrap_or(0) != 0 => {
                "<port>".into()
            }
            v => v.clone(),
        }
    }

    fn metadata(&self, m: &mut serde_json::Map<String, Value>) {
        if let Some(Value::Array(entries)) = m.get_mut("managedFields") {
            entries.retain(|e| self.ours.is_match(e["manager"].as_str().unwrap_or_default()));
            if entries.is_empty() {
                m.insert("managedFields".into(), Value::Null);
            }
        }
        if let Some(Value::Object(a)) = m.get_mut("annotations") {
            a.remove("deployment.kubernetes.io/revision");
            if a.is_empty() {
                m.remove("annotations");
            }
        }
        if m.get("finalizers") == Some(&json!(["networking.k8s.io/service-cidr-finalizer"])) {
            m.remove("finalizers");
        }
    }
}

/// What is compared of an answer.
fn canonical(code: u64, warned: bool, body: &Value, strict: Option<&Value>) -> Value {
    if body["kind"] == "Status" {
        let mut causes: Vec<Value> = body["details"]["causes"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|c| json!([c["field"].as_str().unwrap_or_default(), c["reason"].as_str().unwrap_or_default()]))
            .collect();
        causes.sort_by_key(Value::to_string);
        let causes = strict.cloned().unwrap_or_else(|| causes.into());
        return json!({"code": code, "reason": body["reason"], "causes": causes, "warned": warned});
    }
    let mut body = body.clone();
    if let Some(Value::Array(entries)) = body.get_mut("metadata").and_then(|m| m.get_mut("managedFields")) {
        entries.sort_by_key(Value::to_string);
    }
    for c in body.get_mut("columnDefinitions").and_then(Value::as_array_mut).into_iter().flatten() {
        c.as_object_mut().map(|c| c.remove("description"));
    }
    json!({"code": code, "warned": warned, "body": body})
}

/// Which fields are blamed, in the order in which they are.
fn blamed(body: &Value) -> Vec<&str> {
    body["details"]["causes"].as_array().into_iter().flatten().filter_map(|c| c["field"].as_str()).collect()
}

/// The quoted names of a strict decoding error.
fn strict_names(body: &Value) -> Option<Value> {
    let message = body["message"].as_str()?;
    if body["kind"] != "Status" || !message.contains("strict decoding error") {
        return None;
    }
    let names: BTreeSet<&str> = message.split('"').skip(1).step_by(2).collect();
    Some(names.into_iter().map(Value::from).collect())
}

async fn step(cluster: &Cluster, s: &Value) -> Answer {
    let (method, path) = (s["method"].as_str().unwrap(), s["path"].as_str().unwrap());
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let (method, accept) = match method {
        "TABLE" => ("GET", table),
        "PUT+RV" => ("PUT", "application/json"),
        m => (m, "application/json"),
    };
    let mut body = s["body"].clone();
    if s["method"] == "PUT+RV" && body["metadata"].is_object() {
        let live = cluster.call("GET", path.split('?').next().unwrap(), Value::Null).await;
        body["metadata"]["resourceVersion"] =
            live.body["metadata"]["resourceVersion"].as_str().unwrap_or_default().into();
    }
    let bytes = match &body {
        Value::Null => Default::default(),
        Value::String(s) => s.clone().into(),
        v => v.to_string().into(),
    };
    let mut a = cluster.send(method, path, s["ctype"].as_str(), accept, bytes).await;
    if s["method"] == "TABLE" && a.code == 200 {
        a.body = json!({"columnDefinitions": a.body["columnDefinitions"]});
    }
    if s["method"] == "GET"
        && let Some(items) = a.body.get_mut("items")
    {
        *items = "<items>".into();
    }
    a
}

/// Creates the objects that updates and patches are about.
async fn create_objects(cluster: &Cluster) {
    let text = include_str!("data/manifests.yaml").replace("namespace: NS", "namespace: golden");
    for o in codec::yaml::parse(&text).unwrap().into_iter().filter(Value::is_object) {
        let gv = meta::GroupVersion::parse(o["apiVersion"].as_str().unwrap()).unwrap();
        let kind = kinds::catalog().kind(&gv.with_kind(o["kind"].as_str().unwrap())).unwrap();
        let root = if gv.group.is_empty() { format!("/api/{}", gv.version) } else { format!("/apis/{gv}") };
        let ns = if kind.namespaced { "/namespaces/golden" } else { "" };
        let a = cluster.call("POST", &format!("{root}{ns}/{}", kind.plural), o.clone()).await;
        assert!(matches!(a.code, 201 | 409), "{} {}: {}", o["kind"], o["metadata"]["name"], a.body);
    }
}

#[tokio::test]
async fn answers_are_those_of_v1_36() {
    let cluster = Cluster::start(7).await;
    let normal = Normal::new();
    let cases: Vec<Value> =
        gunzip(include_bytes!("data/golden.jsonl.gz")).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let early = |c: &Value| matches!(c["class"].as_str(), Some("defaults" | "validation" | "read"));
    let mut groups: BTreeMap<(String, String), (f64, f64)> = BTreeMap::new();
    let (mut in_order, mut several) = (0, 0);
    for first in [true, false] {
        if !first {
            create_objects(&cluster).await;
        }
        for c in cases.iter().filter(|c| early(c) == first) {
            let mut same = true;
            let mut wanted = Vec::new();
            let steps = c["steps"].as_array().unwrap();
            for (s, w) in steps.iter().zip(c["answers"].as_array().unwrap()) {
                let a = step(&cluster, s).await;
                let have =
                    canonical(a.code.into(), a.warned, &normal.value(&a.body, None), strict_names(&a.body).as_ref());
                let want =
                    canonical(w["code"].as_u64().unwrap(), w.get("warning").is_some(), &w["body"], w.get("strict"));
                same &= have == want;
                if have == want && blamed(&w["body"]).len() > 1 {
                    several += 1;
                    in_order += usize::from(blamed(&a.body) == blamed(&w["body"]));
                }
                wanted.push(want.to_string());
            }
            let key = (c["class"].as_str().unwrap().to_owned(), format!("{}{}", c["kind"], wanted.join("")));
            let g = groups.entry(key).or_default();
            g.0 += f64::from(u8::from(same));
            g.1 += 1.0;
        }
    }
    let mut low = Vec::new();
    for (class, floor) in FLOORS {
        let shares: Vec<f64> =
            groups.iter().filter(|((c, _), _)| c == class).map(|(_, (same, all))| same / all).collect();
        let percent = 100.0 * shares.iter().sum::<f64>() / shares.len() as f64;
        println!("{class}: {percent:.1} % of {} distinct answers", shares.len());
        if percent < floor {
            low.push(format!("{class} agrees in {percent:.1} %, less than {floor} %"));
        }
    }
    let percent = 100.0 * in_order as f64 / several as f64;
    println!("in order: {percent:.1} % of {several}");
    if percent < IN_ORDER {
        low.push(format!("fields are blamed in order in {percent:.1} %, less than {IN_ORDER} %"));
    }
    assert!(low.is_empty(), "{}", low.join("; "));
}
