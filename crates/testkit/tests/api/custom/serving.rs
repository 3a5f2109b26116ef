//! Serving of custom resources: discovery, OpenAPI, tables, selectors, watches.

use super::*;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Short names, categories and subresources are in both kinds of discovery, versions by how stable they are.
#[tokio::test(start_paused = true)]
async fn discovery_has_new_definitions_at_once() {
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

/// Definitions are published as upstream's builder makes them: common fields with their descriptions, in embedded objects too,
/// the list under its own kind, selectable fields, and only what v2 can express. Clauses: A16.
#[tokio::test(start_paused = true)]
async fn openapi_is_complete() {
    let c = Cluster::start(3).await;
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["port", "size"], "properties": {
            "color": {"type": "string"},
            "port": {"x-kubernetes-int-or-string": true},
            "size": {"type": "integer", "nullable": true},
            "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "templates": {"type": "array", "items":
                {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}}}}}}});
    let mut d = crontabs(schema);
    d["spec"]["names"]["listKind"] = "CronTable".into();
    d["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.color"}]);
    define(&c, d).await;
    let name = "com.example.stable.v1.CronTab";
    let v3 = c.call("GET", "/openapi/v3/apis/stable.example.com/v1", Value::Null).await.body;
    let v2 = c.call("GET", "/openapi/v2", Value::Null).await.body;
    let starts =
        |v: &Value, with: &str| assert!(v["description"].as_str().unwrap_or("").starts_with(with), "{with}: {v}");
    for definitions in [&v3["components"]["schemas"], &v2["definitions"]] {
        let (s, list) = (&definitions[name], &definitions["com.example.stable.v1.CronTable"]);
        starts(&s["properties"]["apiVersion"], "APIVersion defines the versioned schema");
        starts(&s["properties"]["kind"], "Kind is a string value");
        starts(&s["properties"]["metadata"], "Standard object's metadata.");
        starts(&list["properties"]["metadata"], "Standard list metadata.");
        assert_eq!(list["description"], "CronTable is a list of CronTab");
        assert_eq!(list["x-kubernetes-group-version-kind"][0]["kind"], "CronTable");
        assert!(definitions.get(format!("{name}List")).is_none());
        for s in [s, list] {
            assert_eq!(s["x-kubernetes-selectable-fields"], json!([{"fieldPath": "spec.color"}]));
        }
        let template = &s["properties"]["spec"]["properties"]["templates"]["items"];
        starts(&template["properties"]["metadata"], "Standard object's metadata.");
        assert_eq!(
            (&template["required"], &template["properties"]["spec"]["type"]),
            (&json!(["kind", "apiVersion"]), &json!("object"))
        );
    }
    let pods = &v2["definitions"]["io.k8s.api.core.v1.PodList"];
    starts(&pods["properties"]["metadata"], "Standard list metadata.");
    assert_eq!(pods["x-kubernetes-group-version-kind"], json!([{"group": "", "kind": "PodList", "version": "v1"}]));
    let spec = |definitions: &Value| definitions[name]["properties"]["spec"].clone();
    let (new, old) = (spec(&v3["components"]["schemas"]), spec(&v2["definitions"]));
    assert_eq!(new["properties"]["port"]["anyOf"], json!([{"type": "integer"}, {"type": "string"}]));
    assert_eq!((&new["required"], &old["required"]), (&json!(["port", "size"]), &json!(["port"])));
    assert_eq!(old["properties"]["port"], json!({"x-kubernetes-int-or-string": true}));
    assert_eq!(old["properties"]["any"], json!({"x-kubernetes-preserve-unknown-fields": true}));
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

/// Each object is read once for a selector, however many terms it has.
#[tokio::test]
async fn terms_of_selectors_do_not_multiply() {
    let c = Cluster::start(3).await;
    let mut d = crontabs(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"size": {"type": "integer"}}}}}));
    d["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.size"}]);
    define(&c, d).await;
    let text = "x".repeat(100);
    let large: Vec<Value> = (0..2000).map(|n| json!({"n": n, "text": text})).collect();
    for n in 0..10 {
        // The field stands behind what is large.
        let a = c.call("POST", CRONTABS, crontab(&format!("o{n}"), json!({"large": large, "size": n}))).await;
        assert_eq!(a.code, 201, "{}", a.body);
    }
    let list = async |terms: usize| {
        let terms = vec!["spec.size!%3D0"; terms].join(",");
        let begun = tokio::time::Instant::now();
        let a = c.call("GET", &format!("{CRONTABS}?fieldSelector={terms}&limit=1"), Value::Null).await;
        assert_eq!((a.code, a.body["items"][0]["spec"]["size"].as_i64()), (200, Some(1)));
        begun.elapsed()
    };
    let (one, many) = (list(1).await, list(500).await);
    assert!(many < one * 20, "one term: {one:?}, five hundred: {many:?}");
}

/// Paths of columns that find the same values again and again cost as much as the object allows, and show nothing.
#[tokio::test(start_paused = true)]
async fn columns_do_not_multiply() {
    let c = Cluster::start(3).await;
    let mut d = crontabs(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
    d["spec"]["versions"][0]["additionalPrinterColumns"] = json!([
        {"name": "Deepest", "type": "string", "jsonPath": "..deepest"},
        {"name": "All", "type": "string", "jsonPath": "..*..*..*..*..*"},
        {"name": "Spec", "type": "string", "jsonPath": ".spec.plain"}]);
    define(&c, d).await;
    let mut deep = json!({"deepest": "x"});
    for _ in 0..90 {
        deep = json!({"a": deep});
    }
    let a = c.call("POST", CRONTABS, crontab("a", json!({"below": deep, "plain": "y"}))).await;
    assert_eq!(a.code, 201, "{}", a.body);
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let t = c.send("GET", CRONTABS, None, accept, Default::default()).await.body;
    assert_eq!(t["rows"][0]["cells"], json!(["a", "x", null, "y"]));
}

/// A default that a definition gets later makes no stored object many times as large; a new object is refused for its size.
#[tokio::test(start_paused = true)]
async fn defaults_do_not_multiply() {
    let c = Cluster::start(3).await;
    let definition = |text: Value| {
        let item = json!({"type": "object", "properties": {"s": text, "small": {"type": "integer", "default": 7}}});
        crontabs(spec(json!({"items": {"type": "array", "items": item}})))
    };
    define(&c, definition(json!({"type": "string"}))).await;
    let many = |name: &str| crontab(name, json!({"items": vec![json!({}); 4000]}));
    assert_eq!(c.call("POST", CRONTABS, many("before")).await.code, 201);
    let mut live = c.call("GET", &format!("{DEFINITIONS}/{NAME}"), Value::Null).await.body;
    live["spec"] = definition(json!({"type": "string", "default": "x".repeat(100_000)}))["spec"].clone();
    assert_eq!(c.call("PUT", &format!("{DEFINITIONS}/{NAME}"), live).await.code, 200);
    loop {
        let a = c.call("POST", &format!("{CRONTABS}?dryRun=All"), crontab("one", json!({"items": [{}]}))).await;
        if a.body["spec"]["items"][0]["s"].as_str().is_some_and(|s| s.len() == 100_000) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let a = c.call("GET", &format!("{CRONTABS}/before"), Value::Null).await;
    let size = a.body.to_string().len();
    assert!(a.code == 200 && (100_000..2_000_000).contains(&size), "{} {size}", a.code);
    let a = c.call("POST", CRONTABS, many("after")).await;
    assert_eq!(a.code, 413, "{}", a.body);
    assert!(a.body["message"].as_str().unwrap().starts_with("Request entity too large: the defaults of"), "{}", a.body);
    assert_eq!(c.call("DELETE", &format!("{CRONTABS}/before"), Value::Null).await.code, 200);
}
