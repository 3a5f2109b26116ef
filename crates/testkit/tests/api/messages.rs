//! Exact responses: values as Go prints them, errors of its decoders, the order of errors.

use serde_json::{Value, json};
use testkit::Cluster;

const JSON: &str = "application/json";

async fn message(c: &Cluster, method: &str, path: &str, media: &str, body: &str) -> (u16, String) {
    let a = c.send(method, path, Some(media), JSON, body.to_owned().into()).await;
    (a.code, a.body["message"].as_str().unwrap_or_default().to_owned())
}

async fn check(c: &Cluster, path: &str, body: Value, code: u16, reply: &str) {
    let (got, message) = message(c, "POST", &format!("{path}?dryRun=All"), JSON, &body.to_string()).await;
    assert!(got == code && message.contains(reply), "{path} {got} {message}\n wanted {code} {reply}");
}

/// A list that was sent with nothing in it is shown so, and otherwise nobody knows of it.
#[tokio::test]
async fn empty_lists_and_maps_are_kept() {
    let c = Cluster::start(1).await;
    let sets = "/apis/apps/v1/namespaces/default/replicasets";
    let set = |labels: Value| {
        json!({"metadata": {"name": "r"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
    };
    check(&c, sets, set(json!({})), 422, "spec.template.metadata.labels: Invalid value: {}: ").await;
    check(&c, sets, set(Value::Null), 422, "spec.template.metadata.labels: Invalid value: null: ").await;
    let ingresses = "/apis/networking.k8s.io/v1/namespaces/default/ingresses";
    for (spec, shown) in [(json!({"rules": []}), "[]"), (json!({}), "null")] {
        let body = json!({"metadata": {"name": "i"}, "spec": spec});
        check(&c, ingresses, body, 422, &format!("spec: Invalid value: {shown}: either")).await;
    }
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i", "env": [{"name": "a", "value": "b"}]}]}});
    assert_eq!(c.call("POST", pods, pod).await.code, 201);
    let patch = r#"{"spec": {"containers": [{"name": "c", "image": "i", "env": [], "args": []}]}}"#;
    let path = format!("{pods}/p?dryRun=All");
    let (code, message) = message(&c, "PATCH", &path, "application/merge-patch+json", patch).await;
    assert!(code == 422 && message.contains("+   \"Env\": [],"), "{message}");
    assert!(message.contains("+   \"Args\": [],") || message.contains("   \"Args\": ["), "{message}");
}

#[tokio::test]
async fn invalid_json_is_shown_in_errors() {
    let c = Cluster::start(1).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let unrecognized = "the object provided is unrecognized (must be of type ConfigMap): ";
    for (body, why) in [
        (
            "{no",
            "couldn't get version/kind; json parse error: invalid character 'n' looking for beginning of object key string ({no)",
        ),
        ("", "couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)"),
        (
            r#"{"metadata": {"name": "a-long-name"},"#,
            r#"unexpected end of JSON input ({"metadata": {"name": "a-long- ...)"#,
        ),
        (
            "[]",
            r#"json: cannot unmarshal array into Go value of type struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" } (5b5d)"#,
        ),
    ] {
        let (code, message) = message(&c, "POST", maps, JSON, body).await;
        assert!(code == 400 && message.starts_with(unrecognized) && message.ends_with(why), "{message}");
    }
    for (path, scheme) in [
        (maps, "pkg/api/legacyscheme/scheme.go:30"),
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "pkg/apiserver/apiserver.go:55"),
        ("/apis/apiregistration.k8s.io/v1/apiservices", "pkg/apiserver/scheme/scheme.go:28"),
    ] {
        let want = format!("no kind \"Foo\" is registered for version \"v1\" in scheme {scheme:?}");
        check(&c, path, json!({"apiVersion": "v1", "kind": "Foo"}), 400, &want).await;
    }
    assert_eq!(c.call("POST", maps, json!({"metadata": {"name": "m"}})).await.code, 201);
    let m = format!("{maps}/m");
    let map = "json: cannot unmarshal array into Go value of type map[string]interface {}";
    for (kind, body, want) in [
        ("json-patch", "[x]", "error decoding patch: invalid character 'x' looking for beginning of value"),
        (
            "json-patch",
            "{}",
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
        ),
        ("merge-patch", "[]", &format!("error decoding patch: {map}")),
        ("strategic-merge-patch", "[]", map),
        ("strategic-merge-patch", "{\"a\"}", "invalid character '}' after object key"),
    ] {
        let message = message(&c, "PATCH", &m, &format!("application/{kind}+json"), body).await;
        assert_eq!(message, (400, want.to_owned()), "{kind} {body}");
    }
    let patch = r#"{"binaryData": {"a": "eA==x"}}"#;
    let (code, message) = message(&c, "PATCH", &m, "application/strategic-merge-patch+json", patch).await;
    assert!(
        code == 422 && message.ends_with("error decoding from json: illegal base64 data at input byte 4"),
        "{message}"
    );
    let secret = json!({"metadata": {"name": "s"}, "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": "{}x"}});
    check(&c, "/api/v1/namespaces/default/secrets", secret, 422, "invalid character 'x' after top-level value").await;
}

#[tokio::test]
async fn list_parameters_have_gos_errors() {
    let c = Cluster::start(1).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let known = r#" is not a known field selector: only "metadata.name", "metadata.namespace""#;
    // {"v":"x","rv":1,"start":"a"} and {"v":"meta.k8s.io/v1","rv":1,"start":""}
    let (version, start) =
        ("eyJ2IjoieCIsInJ2IjoxLCJzdGFydCI6ImEifQ", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIifQ");
    let token = "invalid continue token: continue key is not valid: ";
    for (path, query, want) in [
        (maps, "continue=garbage", &*format!("{token}invalid character '\\u0081' looking for beginning of value")),
        (maps, "continue=!", &format!("{token}illegal base64 data at input byte 0")),
        (maps, &format!("continue={version}"), &format!("{token}server does not recognize this encoded version x")),
        (maps, &format!("continue={start}"), &format!("{token}encoded start key empty (version meta.k8s.io/v1)")),
        (
            maps,
            "resourceVersion=abc",
            "invalid resource version: resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \"abc\": invalid syntax",
        ),
        (maps, "fieldSelector=a%3Db", &format!("\"a\"{known}")),
        ("/api/v1/pods", "fieldSelector=a%3Db", "field label not supported: a"),
        ("/apis/batch/v1/jobs", "fieldSelector=a%3Db", "field label \"a\" not supported for Job"),
        (
            "/apis/resource.k8s.io/v1/resourceslices",
            "fieldSelector=a%3Db",
            "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: a",
        ),
    ] {
        let a = c.call("GET", &format!("{path}?{query}"), Value::Null).await;
        assert_eq!((a.code, a.body["message"].as_str().unwrap_or_default()), (400, want), "{path}?{query}");
    }
    let a = c.call("GET", "/api/v1/componentstatuses/none", Value::Null).await;
    assert_eq!(a.body["message"], "componentstatus \"none\" not found");
}

#[tokio::test]
async fn errors_come_in_upstream_s_order() {
    let c = Cluster::start(1).await;
    let range = json!({"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "default": {"cpu": "0"},
        "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "2"}, "min": {"cpu": "50m"}}]}});
    let want = "[spec.limits[0].defaultRequest[cpu]: Invalid value: \"100m\": default request value 100m is greater than \
        default limit value 0, spec.limits[0].default[cpu]: Invalid value: \"50m\": min value 50m is greater than default value 0]";
    check(&c, "/api/v1/namespaces/default/limitranges", range, 422, want).await;
    let policy = |port: Value| json!({"metadata": {"name": "n"}, "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": port, "endPort": 70000}]}]}});
    let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    check(&c, policies, policy(json!("5")), 422, "[spec.ingress[0].ports[0].endPort: Invalid value: 70000: may not")
        .await;
    check(&c, policies, policy(json!(80000)), 422, "[spec.ingress[0].ports[0].port: Invalid value: 80000: must").await;
    let slices = "/apis/resource.k8s.io/v1/resourceslices";
    let slice = |name: &str| {
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec":
            {"driver": format!("{name}.example.com"), "nodeName": name, "pool": {"name": name, "resourceSliceCount": 1}}})
    };
    let made = c.call("POST", slices, slice("a")).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let mut other = slice("b");
    other["metadata"]["resourceVersion"] = made.body["metadata"]["resourceVersion"].clone();
    let a = c.call("PUT", &format!("{slices}/s"), other).await;
    let fields: Vec<&str> =
        a.body["details"]["causes"].as_array().unwrap().iter().map(|c| c["field"].as_str().unwrap()).collect();
    assert_eq!(fields, ["spec.pool.name", "spec.driver", "spec.nodeName"], "{}", a.body);
}

#[tokio::test]
async fn kinds_of_two_groups_are_named_by_the_one_they_are_stored_in() {
    let c = Cluster::start(1).await;
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let event = |name: &str| json!({"metadata": {"name": name}});
    check(&c, events, event("A"), 422, "Event \"A\" is invalid: ").await;
    check(&c, events, event("a%"), 422, "metadata.name: Invalid value: \"a%\": a lowercase RFC 1123 subdomain").await;
    let classes = "/apis/resource.k8s.io/v1/deviceclasses";
    let long = json!({"metadata": {"name": "a".repeat(254)}, "spec": {}});
    check(&c, classes, long, 422, "must be no more than 253 bytes").await;
}

#[tokio::test]
async fn syntax_errors_of_expressions_and_schedules_have_positions() {
    let c = Cluster::start(1).await;
    let class = json!({"metadata": {"name": "d"}, "spec": {"selectors": [{"cel": {"expression": ""}}]}});
    let classes = "/apis/resource.k8s.io/v1/deviceclasses";
    check(&c, classes, class, 422, "ERROR: <input>:1:0: Syntax error: mismatched input '<EOF>'").await;
    let policy = json!({"metadata": {"name": "v"}, "spec": {"variables": [{"name": "n"}],
        "matchConstraints": {"resourceRules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["deployments"]}]},
        "validations": [{"expression": "variables.n > 1"}]}});
    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    check(&c, policies, policy, 422, "ERROR: <input>:1:10: undefined field 'n'").await;
    let job = json!({"metadata": {"name": "c"}, "spec": {"schedule": "* * * * *x", "jobTemplate": {"spec": {"template":
        {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}}});
    let jobs = "/apis/batch/v1/namespaces/default/cronjobs";
    check(&c, jobs, job, 422, "failed to parse int from *x: strconv.Atoi: parsing \"*x\": invalid syntax").await;
}

/// What is inside `items` is read by a decoder of its own: types are checked, unknown fields go without a word.
#[tokio::test]
async fn schemas_of_items_are_read_as_schemas() {
    let c = Cluster::start(1).await;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = |items: Value| {
        json!({"metadata": {"name": "gears.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "gears", "kind": "Gear"}, "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"l": {"type": "array", "items": items}}}}}]}})
    };
    let path = format!("{definitions}?dryRun=All&fieldValidation=Strict");
    let a = c.call("POST", &path, definition(json!({"type": "string", "bogus": 1}))).await;
    let items = a.body.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/l/items");
    assert_eq!((a.code, items), (201, Some(&json!({"type": "string"}))), "{}", a.body);
    let a = c.call("POST", &path, definition(json!({"type": 7}))).await;
    let message = a.body["message"].as_str().unwrap();
    assert!(a.code == 400 && message.ends_with("openAPIV3Schema.properties.items.type of type string"), "{message}");
    for none in [json!([]), json!("x"), json!(1), Value::Null] {
        let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "not": {"items": none}});
        let a = c.call("POST", &path, definition(free)).await;
        let not = a.body.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/l/items/not");
        assert_eq!((a.code, not), (201, Some(&json!({}))), "{none}: {}", a.body);
    }
}

#[tokio::test]
async fn autoscaling_v1_has_a_default_target() {
    let c = Cluster::start(1).await;
    let spec =
        json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}, "maxReplicas": 2});
    let path = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers?dryRun=All";
    let a = c.call("POST", path, json!({"metadata": {"name": "h"}, "spec": spec})).await;
    assert_eq!(a.body["spec"]["targetCPUUtilizationPercentage"], 80, "{}", a.body);
}

#[tokio::test]
async fn a_single_cluster_ip_fills_the_list() {
    let c = Cluster::start(1).await;
    let services = "/api/v1/namespaces/default/services";
    let service = |ip: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
            "spec": {"clusterIP": ip, "ports": [{"port": 80}]}})
    };
    assert_eq!(c.call("POST", services, service("None")).await.code, 201);
    let a = c.call("PUT", &format!("{services}/s"), service("Nonsense")).await;
    assert_eq!(a.body["details"]["causes"][0]["field"], "spec.clusterIPs[0]", "{}", a.body);
}

/// Whether an init container of a running pod may be resized is its node's to say.
#[tokio::test]
async fn init_containers_are_resized() {
    let c = Cluster::start(1).await;
    let pods = "/api/v1/namespaces/default/pods";
    let container = |name: &str| json!({"name": name, "image": "i", "resources": {"requests": {"cpu": "1"}}});
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"initContainers": [container("a")], "containers": [container("b")]}});
    assert_eq!(c.call("POST", pods, pod).await.code, 201);
    let patch = json!({"spec": {"initContainers": [{"name": "a", "resources": {"requests": {"cpu": "2"}}}]}});
    let media = Some("application/strategic-merge-patch+json");
    let a = c.send("PATCH", &format!("{pods}/p/resize"), media, JSON, patch.to_string().into()).await;
    assert_eq!(a.body["spec"]["initContainers"][0]["resources"]["requests"]["cpu"], "2", "{}", a.body);
}
