//! The resources in discovery, and a valid object of each kind.

use serde_json::{Value, json};
use std::collections::HashMap;
use testkit::Cluster;

/// The namespace in which tests write.
pub const NS: &str = "golden";

/// A resource, as discovery describes it.
#[derive(Debug)]
pub struct Served {
    pub group: String,
    pub version: String,
    pub resource: String,
    pub kind: String,
    pub namespaced: bool,
    pub verbs: Vec<String>,
    pub subresources: Vec<Subresource>,
}

#[derive(Debug)]
pub struct Subresource {
    pub name: String,
    pub verbs: Vec<String>,
}

impl Served {
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Whether an update of what is not there creates it (upstream's `AllowCreateOnUpdate`).
    pub fn put_creates(&self) -> bool {
        const KINDS: [&str; 10] = [
            "Lease",
            "Endpoints",
            "Event",
            "LimitRange",
            "Service",
            "RuntimeClass",
            "Role",
            "RoleBinding",
            "ClusterRole",
            "ClusterRoleBinding",
        ];
        KINDS.contains(&&*self.kind)
    }

    fn root(&self) -> String {
        let root = if self.group.is_empty() { "api" } else { "apis" };
        format!("/{root}/{}", self.api_version())
    }

    /// Where objects are created: in the tests' namespace, if they are namespaced.
    pub fn collection(&self) -> String {
        let place = if self.namespaced { format!("/namespaces/{NS}") } else { String::new() };
        format!("{}{place}/{}", self.root(), self.resource)
    }

    /// The same over all namespaces.
    pub fn everywhere(&self) -> String {
        format!("{}/{}", self.root(), self.resource)
    }

    pub fn object(&self, name: &str) -> String {
        format!("{}/{name}", self.collection())
    }

    pub fn has(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| v == verb)
    }

    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }
}

/// Everything that aggregated discovery names.
pub async fn discover(cluster: &Cluster) -> Vec<Served> {
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let texts = |v: &Value| v.as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
    let mut all = Vec::new();
    for root in ["/api", "/apis"] {
        let list = cluster.send("GET", root, None, accept, Default::default()).await.body;
        for g in list["items"].as_array().unwrap() {
            for v in g["versions"].as_array().unwrap() {
                for r in v["resources"].as_array().unwrap() {
                    let subresources = r["subresources"].as_array().into_iter().flatten();
                    all.push(Served {
                        group: text(&g["metadata"]["name"]),
                        version: text(&v["version"]),
                        resource: text(&r["resource"]),
                        kind: text(&r["responseKind"]["kind"]),
                        namespaced: r["scope"] == "Namespaced",
                        verbs: texts(&r["verbs"]),
                        subresources: subresources
                            .map(|s| Subresource { name: text(&s["subresource"]), verbs: texts(&s["verbs"]) })
                            .collect(),
                    });
                }
            }
        }
    }
    all
}

/// A valid object of each kind.
pub struct Samples(HashMap<(String, String), Value>);

impl Samples {
    pub fn load() -> Self {
        let mut all = HashMap::new();
        for text in [include_str!("../data/manifests.yaml"), include_str!("../data/more.yaml")] {
            let text = text.replace("namespace: NS", &format!("namespace: {NS}"));
            for o in codec::yaml::parse(&text).unwrap().into_iter().filter(Value::is_object) {
                let key = |k: &str| o[k].as_str().unwrap().to_owned();
                all.entry((key("apiVersion"), key("kind"))).or_insert(o);
            }
        }
        Self(all)
    }

    /// As it is written.
    pub fn of(&self, kind: &Served) -> Option<Value> {
        self.0.get(&(kind.api_version(), kind.kind.clone())).cloned()
    }

    /// The `i`-th of many: named, and labelled to be found again.
    pub fn numbered(&self, kind: &Served, i: usize) -> Option<Value> {
        let mut o = self.of(kind)?;
        let name = match kind.kind.as_str() {
            // Some names follow from what is in the object.
            "IPAddress" => format!("10.96.201.{i}"),
            "CustomResourceDefinition" => {
                o["spec"]["names"] = json!({"plural": format!("walks{i}"), "kind": format!("Walk{i}")});
                format!("walks{i}.zz.example.com")
            }
            "APIService" => {
                o["spec"]["version"] = format!("v{}", i + 1).into();
                format!("v{}.zz.example.com", i + 1)
            }
            _ => format!("walk-{i}"),
        };
        o["metadata"]["name"] = name.into();
        o["metadata"]["labels"]["walk"] = "yes".into();
        o["metadata"]["labels"]["number"] = i.to_string().into();
        Some(o)
    }
}
