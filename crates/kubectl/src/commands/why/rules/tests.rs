use super::*;
use serde_json::json;

const NOW: &str = "2026-11-21T12:00:00Z";

/// Explains an object in a cluster with these objects, as text without the first words.
fn explained(group: &str, kind: &str, object: &Value, cluster: &[(&str, &str, Value)]) -> String {
    let topic = TOPICS.iter().find(|t| (t.group, t.kind) == (group, kind)).unwrap();
    let (mut objects, mut lists) = (BTreeMap::new(), BTreeMap::new());
    for query in (topic.reads)(object) {
        let of_query =
            |(plural, namespace, _): &&(&str, &str, Value)| *plural == query.plural && *namespace == query.namespace;
        let all: Vec<Value> = cluster.iter().filter(of_query).map(|(_, _, o)| o.clone()).collect();
        if query.name.is_empty() {
            lists.insert(query, Arc::new(all));
        } else {
            let found = all.into_iter().find(|o| o["metadata"]["name"] == *query.name);
            objects.insert(query, found.map_or(Read::Missing, Read::Found));
        }
    }
    let now = NOW.parse().unwrap();
    topic.judge(&Facts { object, now, objects, lists }).text("x", now)
}

#[track_caller]
fn check(group: &str, kind: &str, cases: &[(Value, &[(&str, &str, Value)], &str)]) {
    for (object, cluster, expect) in cases {
        let text = explained(group, kind, object, cluster);
        assert_eq!(text, format!("x {expect}\n"), "{object}");
        assert!(!explained(group, kind, &Value::Null, cluster).is_empty(), "an object without fields");
    }
}

fn service(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80, "name": "http"}, {"port": 443}]}})
}

fn slice(service: &str, ready: bool) -> Value {
    json!({"metadata": {"name": "s", "labels": {"kubernetes.io/service-name": service}},
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}]})
}

/// Clauses: G01.other-kinds
#[test]
fn ingresses() {
    let ingress = |class: Value, port: Value, address: Value| {
        json!({"metadata": {"name": "i", "namespace": "d"}, "spec": {"ingressClassName": class, "tls": [{"secretName": "cert"}],
            "rules": [{"host": "a.example", "http": {"paths": [
                {"path": "/", "backend": {"service": {"name": "web", "port": port}}},
                {"path": "/x", "backend": {"service": {"name": "web", "port": port}}}]}}]},
            "status": {"loadBalancer": {"ingress": address}}})
    };
    let class = |default: bool| {
        (
            "ingressclasses",
            "",
            json!({"metadata": {"name": "nginx",
        "annotations": {"ingressclass.kubernetes.io/is-default-class": default.to_string()}}, "spec": {"controller": "example.com/nginx"}}),
        )
    };
    let web = ("services", "d", service("web"));
    let ready = |ready| ("endpointslices", "d", slice("web", ready));
    let cert = ("secrets", "d", json!({"metadata": {"name": "cert"}, "data": {"tls.crt": "", "tls.key": ""}}));
    let (number, at) = (json!({"number": 80}), json!([{"ip": "192.0.2.1"}]));
    check(
        "networking.k8s.io",
        "Ingress",
        &[
            (
                ingress(Value::Null, number.clone(), json!([])),
                &[web.clone(), ready(true), cert.clone()],
                "is served by no controller\n  it names no IngressClass (spec.ingressClassName), and none is the default; there is no IngressClass: no ingress controller may be installed",
            ),
            (
                ingress(json!("nginz"), number.clone(), json!([])),
                &[class(true), web.clone(), ready(true), cert.clone()],
                "is served by no controller\n  its IngressClass nginz does not exist; these exist: nginx",
            ),
            (
                ingress(Value::Null, number.clone(), json!([])),
                &[class(true), web.clone(), ready(true), cert.clone()],
                "has no address\n  the controller example.com/nginx of its IngressClass nginx has not written an address into its status: it may not be installed, or not run",
            ),
            (
                ingress(json!("nginx"), number.clone(), at.clone()),
                &[class(false), cert.clone()],
                "has backends that cannot answer\n  a.example/x, a.example/: the Service d/web does not exist",
            ),
            (
                ingress(json!("nginx"), json!({"name": "grpc"}), at.clone()),
                &[class(false), web.clone(), ready(true), cert.clone()],
                "has backends that cannot answer\n  a.example/x, a.example/: the Service d/web has no port named grpc; it has 80 (http), 443",
            ),
            (
                ingress(json!("nginx"), number.clone(), at.clone()),
                &[class(false), web.clone(), ready(false), cert.clone()],
                "has backends that cannot answer\n  a.example/x, a.example/: the Service d/web has no ready endpoint\n    => kubectl why -n d service/web",
            ),
            (
                ingress(json!("nginx"), number.clone(), at.clone()),
                &[class(false), web.clone(), ready(true)],
                "lacks certificates\n  the Secret cert with its certificate does not exist",
            ),
            (
                ingress(json!("nginx"), json!({"name": "http"}), at),
                &[class(false), web, ready(true), cert],
                "is healthy: 2 backends at 192.0.2.1",
            ),
        ],
    );
}

/// Clauses: G01.other-kinds
#[test]
fn volumes() {
    let volume = |phase: &str, policy: &str, uid: &str| {
        json!({"metadata": {"name": "v"}, "spec": {"persistentVolumeReclaimPolicy": policy, "storageClassName": "fast",
            "claimRef": {"namespace": "d", "name": "c", "uid": uid},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}]}}},
            "status": {"phase": phase, "message": "no permission"}})
    };
    let claim = |volume: &str| {
        ("persistentvolumeclaims", "d", json!({"metadata": {"name": "c", "uid": "1"}, "spec": {"volumeName": volume}}))
    };
    let node = ("nodes", "", json!({"metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1"}}}));
    let class = ("storageclasses", "", json!({"metadata": {"name": "fast"}}));
    let free =
        json!({"metadata": {"name": "v"}, "spec": {"storageClassName": "fast"}, "status": {"phase": "Available"}});
    check(
        "",
        "PersistentVolume",
        &[
            (
                volume("Bound", "Delete", "1"),
                &[claim("v"), node.clone(), class.clone()],
                "is healthy: bound to the claim d/c",
            ),
            (
                volume("Bound", "Delete", "1"),
                &[claim("w"), node.clone(), class.clone()],
                "belongs to a claim that does not have it\n  its claim d/c has the volume w",
            ),
            (
                volume("Bound", "Delete", "1"),
                &[claim("v"), class.clone()],
                "can be used on no node\n  no node matches its node affinity (kubernetes.io/hostname in n1)",
            ),
            (
                volume("Released", "Retain", "1"),
                &[node.clone(), class.clone()],
                "is released: no claim can have it\n  its claim d/c was deleted; with the reclaim policy Retain the volume keeps its data until somebody decides\n    => kubectl patch pv/v --type=json -p '[{\"op\":\"remove\",\"path\":\"/spec/claimRef\"}]' makes it available, with its data\n    => kubectl delete pv/v forgets it; the storage stays",
            ),
            (
                volume("Released", "Delete", "1"),
                &[node.clone(), class.clone()],
                "is released: no claim can have it\n  its claim d/c was deleted; its provisioner has to delete the storage (reclaim policy Delete)",
            ),
            (volume("Failed", "Delete", "1"), &[node.clone(), class.clone()], "has failed\n  no permission"),
            (
                volume("Available", "Delete", "0"),
                &[claim(""), node.clone(), class.clone()],
                "waits for its claim\n  it is reserved for an earlier claim d/c, which was deleted",
            ),
            (
                volume("Available", "Delete", ""),
                &[node, class.clone()],
                "waits for its claim\n  it is reserved for the claim d/c, which does not exist",
            ),
            (free.clone(), &[class], "is available: no claim has it"),
            (
                free,
                &[],
                "is available: no claim has it\n  its StorageClass fast does not exist; claims of this class can have it nevertheless",
            ),
        ],
    );
}

/// Clauses: G01.other-kinds
#[test]
fn api_services_and_definitions() {
    let web = ("services", "d", service("web"));
    let condition = |kind: &str, status: &str| json!({"conditions": [{"type": kind, "status": status, "reason": "R", "message": "why"}]});
    let api = |service: Value, available: &str| json!({"spec": {"group": "g", "version": "v1", "service": service, "caBundle": ""}, "status": condition("Available", available)});
    let at = json!({"namespace": "d", "name": "web"});
    let effect = "\n    until it answers, g/v1 has no resources, and namespaces cannot be deleted completely";
    check(
        "apiregistration.k8s.io",
        "APIService",
        &[
            (api(Value::Null, "True"), &[], "is healthy: served by the API server itself"),
            (
                api(at.clone(), "True"),
                &[web.clone(), ("endpointslices", "d", slice("web", true))],
                "is healthy: served by the Service d/web",
            ),
            (
                api(at.clone(), "False"),
                &[],
                &format!("is not available\n  R: why{effect}\n  the Service d/web does not exist"),
            ),
            (
                api(json!({"namespace": "d", "name": "web", "port": 444}), "False"),
                std::slice::from_ref(&web),
                &format!(
                    "is not available\n  R: why{effect}\n  the Service d/web has no port 444; it has 80 (http), 443"
                ),
            ),
        ],
    );
    let definition = |conversion: Value, status: Value| {
        json!({"spec": {"group": "g", "names": {"kind": "Widget"}, "conversion": conversion,
        "versions": [{"name": "v1", "served": true, "storage": true}, {"name": "v1beta1", "served": false}]}, "status": status})
    };
    let established = condition("Established", "True");
    let webhook = json!({"strategy": "Webhook", "webhook": {"clientConfig": {"service": at, "caBundle": "bm8="}}});
    let mut stored = established.clone();
    stored["storedVersions"] = json!(["v1beta1", "v1"]);
    check(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        &[
            (definition(Value::Null, established.clone()), &[], "is healthy: serves Widget as v1"),
            (definition(Value::Null, json!({})), &[], "is not served\n  the API server has not established it yet"),
            (
                definition(Value::Null, condition("Established", "False")),
                &[],
                "is not served\n  Established is False: R: why",
            ),
            (
                definition(webhook, established),
                &[],
                "cannot convert its objects\n  its conversion webhook: the Service d/web does not exist",
            ),
            (
                definition(Value::Null, stored),
                &[],
                "is healthy, and has objects in older versions\n  objects may still be stored in v1beta1: these versions cannot be removed before all objects were written again as v1 and status.storedVersions names it alone",
            ),
        ],
    );
}

/// Clauses: G01.other-kinds
#[test]
fn webhooks() {
    let configuration = |policy: &str, bundle: &str, selector: Value| {
        json!({"webhooks": [{"name": "w.example", "failurePolicy": policy, "namespaceSelector": selector,
        "clientConfig": {"service": {"namespace": "d", "name": "web"}, "caBundle": bundle},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "resources": ["pods"]}]}]})
    };
    let up = [("services", "d", service("web")), ("endpointslices", "d", slice("web", true))];
    let some = json!({"matchLabels": {"a": "b"}});
    let mut expired = rcgen::CertificateParams::new(vec!["x".into()]).unwrap();
    expired.not_after = rcgen::date_time_ymd(2026, 11, 1);
    let pem = expired.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
    let expired = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        check(
            "admissionregistration.k8s.io",
            kind,
            &[
                (json!({}), &[], "is healthy: 0 webhooks"),
                (configuration("Fail", "", some.clone()), &up, "is healthy: 1 webhook"),
                (
                    configuration("Fail", "", some.clone()),
                    &[],
                    "has webhooks that do not answer\n  webhook w.example: the Service d/web does not exist\n    these requests are refused (failurePolicy Fail): create of pods",
                ),
                (
                    configuration("Ignore", "", some.clone()),
                    &up[..1],
                    "has webhooks that do not answer\n  webhook w.example: the Service d/web has no ready endpoint\n    these requests go on without it (failurePolicy Ignore): create of pods\n    => kubectl why -n d service/web",
                ),
                (
                    configuration("Fail", &expired, some.clone()),
                    &up,
                    "has webhooks that are not trusted\n  webhook w.example: the certificates of its caBundle expired 20d ago\n    these requests are refused (failurePolicy Fail): create of pods",
                ),
                (
                    configuration("Fail", "", json!({})),
                    &up,
                    "is healthy, and can keep itself from starting again\n  webhook w.example must admit every new pod, its own in d too: once none of these run, none can be created\n    => exclude the namespace d with its namespaceSelector",
                ),
            ],
        );
    }
}
