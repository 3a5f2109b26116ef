//! How custom resources are found and read: discovery, OpenAPI, tables, selectors, watches.

use super::*;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Short names, categories and subresources are in both kinds of discovery, versions by how stable they are.
#[tokio::test(start_paused = true)]
async fn discovery_knows_them_at_once() {
    let c = Cluster::start(3).await;
    let mut d = crontabs(spec(json!({})));
    d["spec"]["versions"][0]["subresources"] = json!({"status": {}});
    for (name, served) in [("v1alpha1", true), ("v2beta1", true), ("v2", true), ("v9", false)] {
        let mut v = d["spec"]["versions"][0].clone();
        v["name"] = name.into();
        v["storage"] = false.into();
        v["served"] = served.into();
        d["spec"]["versions"].as_array_mut().unwrap().push(v);
    }
    define(&c, d).await;
    let g = c.call("GET", "/apis/stable.example.com", Value::Null).await.body;
    let versions: Vec<&str> =
        g["versions"].as_array().unwrap().iter().map(|v| v["version"].as_str().unwrap()).collect();
    assert_eq!(versions, ["v2", "v1", "v2beta1", "v1alpha1"]);
    let list = c.call("GET", "/apis/stable.example.com/v1", Value::Null).await.body;
    let r = &list["resources"][0];
    assert_eq!(
        (&r["name"], &r["singularName"], &r["kind"]),
        (&json!("crontabs"), &json!("crontab"), &json!("CronTab"))
    );
    assert_eq!((&r["shortNames"], &r["categories"]), (&json!(["ct"]), &json!(["all"])));
    assert_eq!(list["resources"][1]["name"], "crontabs/status");
    let a = c.send("GET", "/apis", None, AGGREGATED, Default::default()).await.body;
    let group = a["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == "stable.example.com").unwrap();
    let r = &group["versions"][0]["resources"][0];
    assert_eq!(r["responseKind"], json!({"group": "stable.example.com", "version": "v2", "kind": "CronTab"}));
    assert_eq!(r["subresources"][0]["subresource"], "status");
}

/// OpenAPI has the schema with its texts, and changes with it. Clauses: A16.
#[tokio::test(start_paused = true)]
async fn openapi_is_published_at_once() {
    let c = with(spec(json!({"n": {"type": "integer", "description": "How many.", "nullable": true}}))).await;
    let place = "/openapi/v3/apis/stable.example.com/v1";
    let name = "com.example.stable.v1.CronTab";
    let v3 = c.call("GET", place, Value::Null).await.body;
    let s = &v3["components"]["schemas"][name];
    assert_eq!(s["properties"]["spec"]["properties"]["n"]["description"], "How many.");
    assert!(s["properties"]["metadata"].to_string().contains("ObjectMeta"), "{s}");
    assert_eq!(s["x-kubernetes-group-version-kind"][0]["kind"], "CronTab");
    assert!(v3["components"]["schemas"].get(format!("{name}List")).is_some());
    assert!(v3["paths"].get("/apis/stable.example.com/v1/namespaces/{namespace}/crontabs/{name}").is_some());
    let v2 = c.call("GET", "/openapi/v2", Value::Null).await.body;
    let n = &v2["definitions"][name]["properties"]["spec"]["properties"]["n"];
    assert_eq!((&n["description"], n.get("nullable"), n.get("type")), (&json!("How many."), None, None));
    let index = || async { c.call("GET", "/openapi/v3", Value::Null).await.body["paths"].clone() };
    let before = index().await;
    let mut d = c.call("GET", &format!("{DEFINITIONS}/{NAME}"), Value::Null).await.body;
    d["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = spec(json!({"m": {"type": "string"}}));
    c.call("PUT", &format!("{DEFINITIONS}/{NAME}"), d).await;
    let has_m =
        |a: &Answer| a.body["components"]["schemas"][name]["properties"]["spec"]["properties"].get("m").is_some();
    until(&c, place, has_m).await;
    let after = index().await;
    assert_ne!(before["apis/stable.example.com/v1"], after["apis/stable.example.com/v1"]);
    assert_eq!(before["apis/apps/v1"], after["apis/apps/v1"]);
}

/// Columns are JSONPaths; what they do not find, or find otherwise, is nothing.
#[tokio::test(start_paused = true)]
async fn tables_have_the_columns_of_the_definition() {
    let c = Cluster::start(3).await;
    let mut d = crontabs(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
    d["spec"]["versions"][0]["additionalPrinterColumns"] = json!([
        {"name": "Spec", "type": "string", "jsonPath": ".spec.cron", "description": "When."},
        {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas", "priority": 1},
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]);
    define(&c, d).await;
    let mut o = crontab("a", json!({"cron": "* * *", "replicas": 3}));
    o["status"] = json!({"conditions": [{"type": "Other", "status": "x"}, {"type": "Ready", "status": "True"}]});
    c.call("POST", CRONTABS, o).await;
    c.call("POST", CRONTABS, crontab("b", json!({"replicas": "many"}))).await;
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let t = c.send("GET", CRONTABS, None, accept, Default::default()).await.body;
    let names: Vec<&str> =
        t["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Name", "Spec", "Replicas", "Ready", "Age"]);
    assert_eq!(t["columnDefinitions"][2]["priority"], 1);
    assert_eq!(t["rows"][0]["cells"], json!(["a", "* * *", 3, "True", "0s"]));
    assert_eq!(t["rows"][1]["cells"], json!(["b", null, null, null, "0s"]));
}

/// Fields that the definition names select, in lists and watches; others do not.
#[tokio::test(start_paused = true)]
async fn selectable_fields_select() {
    let c = Cluster::start(3).await;
    let mut d =
        crontabs(spec(json!({"color": {"type": "string"}, "on": {"type": "boolean"}, "size": {"type": "integer"}})));
    d["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.size"}]);
    define(&c, d).await;
    for (name, color, size) in [("a", "red", 1), ("b", "blue", 2), ("c", "red", 3)] {
        c.call("POST", CRONTABS, crontab(name, json!({"color": color, "size": size}))).await;
    }
    let names = |a: Answer| -> Vec<String> {
        let items = a.body["items"].as_array().cloned().unwrap_or_default();
        items.iter().map(|i| i["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let get = |s: &'static str| c.call("GET", format!("{CRONTABS}?fieldSelector={s}").leak(), Value::Null);
    assert_eq!(names(get("spec.color%3Dred").await), ["a", "c"]);
    assert_eq!(names(get("spec.color%3Dred,spec.size!%3D3").await), ["a"]);
    assert_eq!(names(get("metadata.name%3Db").await), ["b"]);
    assert_eq!(get("spec.on%3Dtrue").await.code, 400, "the definition does not name it");
}
