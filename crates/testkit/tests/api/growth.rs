//! Time is linear in the length of lists and maps, in every field of every kind.

use kinds::Kind;
use meta::Value;
use schema::{Schema, Type};
use serde_json::{Map, json};
use std::collections::HashSet;
use std::time::Duration;
use testkit::Cluster;

/// Two or three characters become an object with all its fields: so many objects are refused before they do, in every encoding, and in
/// every patch.
#[tokio::test(flavor = "multi_thread")]
async fn objects_of_nothing_but_empty_parts_are_refused() {
    const PARTS: usize = 250_000;
    let c = Cluster::start(3).await;
    let all = "/api/v1/namespaces/default/configmaps";
    let one = format!("{all}/there");
    assert_eq!(c.call("POST", all, json!({"metadata": {"name": "there"}})).await.code, 201);
    let json = format!(r#"{{"metadata":{{"name":"m","ownerReferences":[{}]}}}}"#, vec!["{}"; PARTS].join(","));
    let yaml = format!("metadata:\n  name: m\n  ownerReferences:\n{}", "  - {}\n".repeat(PARTS));
    // The envelope, a ConfigMap with metadata (1), in which each reference is field 13.
    let metadata = [0x6a, 0].repeat(PARTS);
    let length = |n: usize| {
        let mut out = Vec::new();
        let mut n = n;
        while n >= 0x80 {
            out.push(n as u8 | 0x80);
            n >>= 7;
        }
        out.push(n as u8);
        out
    };
    let field = |number: u8, body: &[u8]| [&[number << 3 | 2][..], &length(body.len()), body].concat();
    let kind = [field(1, b"v1"), field(2, b"ConfigMap")].concat();
    let protobuf = [b"k8s\0".to_vec(), field(1, &kind), field(2, &field(1, &metadata))].concat();
    let operations =
        format!(r#"[{{"op":"add","path":"/metadata/ownerReferences","value":[{}]}}]"#, vec!["{}"; PARTS].join(","));
    let applied = format!("apiVersion: v1\nkind: ConfigMap\n{yaml}");
    let applied_at = format!("{one}?fieldManager=m");
    for (method, path, media, body) in [
        ("POST", all, "application/json", json.clone().into_bytes()),
        ("POST", all, "application/yaml", yaml.into_bytes()),
        ("POST", all, "application/vnd.kubernetes.protobuf", protobuf),
        ("PUT", &*one, "application/json", json.clone().into_bytes()),
        ("PATCH", &*one, "application/merge-patch+json", json.clone().into_bytes()),
        ("PATCH", &*one, "application/strategic-merge-patch+json", json.into_bytes()),
        ("PATCH", &*one, "application/json-patch+json", operations.into_bytes()),
        ("PATCH", &*applied_at, "application/apply-patch+yaml", applied.into_bytes()),
    ] {
        let a = c.send(method, path, Some(media), "application/json", body.into()).await;
        let message = a.body["message"].as_str().unwrap_or_default();
        assert_eq!(a.code, 400, "{media}: {}", &message[..message.len().min(300)]);
        assert!(message.contains("more than 200000") && message.len() < 1000, "{media}: {message}");
    }
}

/// Items of a list.
const MANY: usize = 5_000;
/// What takes no longer is not looked at any closer: items that are compared with each other take much longer.
const SHORT: Duration = Duration::from_millis(800);
/// By how much longer eight times as many may take. Quadratic work takes 64 times as long.
const FACTOR: f64 = 24.0;
/// How often a suspicion is looked at: the machine may have been busy.
const TRIES: usize = 3;

/// A list or map in a kind: the names on the way, and what is in it.
struct Place<'a> {
    path: Vec<String>,
    items: &'a Schema,
    list: bool,
}

/// All lists and maps of a kind that are not in one that was seen: of one type each field once.
fn places<'a>(s: &'a Schema, path: &mut Vec<String>, seen: &mut HashSet<(usize, String)>, out: &mut Vec<Place<'a>>) {
    for f in &s.fields {
        if path.len() > 9 || !seen.insert((std::ptr::from_ref(s) as usize, f.name.to_string())) {
            continue;
        }
        let inner = f.schema.get();
        path.push(f.name.to_string());
        match (inner.ty, inner.items.as_deref(), inner.additional.as_deref()) {
            (Type::Struct, ..) => places(inner, path, seen, out),
            (Type::Array, Some(items), _) => {
                out.push(Place { path: path.clone(), items, list: true });
                path.push("[]".into());
                places(items, path, seen, out);
                path.pop();
            }
            (Type::Map, _, Some(items)) => out.push(Place { path: path.clone(), items, list: false }),
            _ => {}
        }
        path.pop();
    }
}

/// Fields by which items are told apart: what compares items compares these.
const DISTINCT: [&str; 14] = [
    "containerPort",
    "devicePath",
    "driver",
    "effect",
    "key",
    "kind",
    "mountPath",
    "name",
    "operator",
    "path",
    "port",
    "topologyKey",
    "type",
    "uid",
];

/// Something of a type; with another number, something else.
fn some(s: &Schema, i: usize, depth: usize) -> Value {
    match s.ty {
        Type::String => s.enum_values.first().map_or_else(|| format!("x{i}").into(), |v| Value::from(&**v)),
        Type::Int32 | Type::Int64 | Type::Double | Type::IntOrString => (i % 60_000 + 1).into(),
        Type::Boolean => true.into(),
        Type::Quantity => format!("{i}").into(),
        Type::Struct if depth > 0 => {
            let is_distinct = |f: &&schema::Field| DISTINCT.contains(&&*f.name) && f.schema.ty != Type::Struct;
            let scalars = s.fields.iter().filter(is_distinct);
            let fields = scalars.map(|f| (f.name.to_string(), some(&f.schema, i, depth - 1)));
            Value::Object(fields.filter(|(_, v)| !v.is_null()).collect())
        }
        Type::Struct | Type::Map => json!({}),
        Type::Array => json!([]),
        _ => Value::Null,
    }
}

fn object(kind: &Kind, place: &Place<'_>, n: usize, same: bool) -> Value {
    let item = |i: usize| some(place.items, if same { 0 } else { i }, 1);
    let mut v: Value = match place.list {
        true => (0..n).map(item).collect::<Vec<_>>().into(),
        false => Value::Object((0..n).map(|i| (format!("x{i}"), item(i))).collect::<Map<_, _>>()),
    };
    for name in place.path.iter().rev() {
        v = if name == "[]" { json!([v]) } else { json!({ name: v }) };
    }
    v["apiVersion"] = kind.gvk().api_version().into();
    v["kind"] = kind.kind.to_string().into();
    v["metadata"]["name"] = "x".into();
    v
}

async fn time(c: &Cluster, kind: &Kind, place: &Place<'_>, n: usize, same: bool) -> Duration {
    let namespace = if kind.namespaced { "/namespaces/default" } else { "" };
    let root = if kind.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", kind.group) };
    let path = format!("{root}/{}{namespace}/{}?dryRun=All", kind.version, kind.plural);
    timed(c, "POST", &path, object(kind, place, n, same)).await
}

async fn timed(c: &Cluster, method: &str, path: &str, body: Value) -> Duration {
    #[allow(clippy::disallowed_methods)] // the test's own time stands still
    let begun = std::time::Instant::now();
    let a = c.call(method, path, body).await;
    assert!(a.code != 500, "{path}: {}", a.body.to_string().chars().take(500).collect::<String>());
    begun.elapsed()
}

/// Two lists of a pod that are compared with each other, each of this length.
fn beside(n: usize) -> Vec<(&'static str, Value)> {
    let all = |item: &dyn Fn(usize) -> Value| (0..n).map(item).collect::<Vec<Value>>();
    let named = |i: usize| json!({"name": format!("x{i}")});
    let mount = |i: usize| json!({"name": format!("x{i}"), "mountPath": format!("/m{i}")});
    let device = |i: usize| json!({"name": format!("y{i}"), "devicePath": format!("/d{i}")});
    let pod = |metadata: Value, spec: Value| {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        pod["metadata"]["name"] = "x".into();
        pod
    };
    let one = |mounts: Vec<Value>, devices: Vec<Value>| json!([{"name": "c", "image": "i", "volumeMounts": mounts, "volumeDevices": devices}]);
    let volumes = all(&|i| json!({"name": format!("x{i}"), "emptyDir": {}}));
    let labels: Map<String, Value> = (0..n).map(|i| (format!("x{i}"), "y".into())).collect();
    let keys = all(&|i| format!("x{i}").into());
    let term = json!({"topologyKey": "t", "labelSelector": {}, "matchLabelKeys": keys});
    let profiles: Map<String, Value> =
        (0..n).map(|i| (format!("container.apparmor.security.beta.kubernetes.io/y{i}"), "unconfined".into())).collect();
    vec![
        ("volumes and mounts", pod(json!({}), json!({"volumes": volumes, "containers": one(all(&mount), vec![])}))),
        ("mounts and devices", pod(json!({}), json!({"containers": one(all(&mount), all(&device))}))),
        ("profiles and containers", pod(json!({"annotations": profiles}), json!({"containers": all(&named)}))),
        (
            "labels and keys",
            pod(
                json!({"labels": labels}),
                json!({"containers": one(vec![], vec![]),
                "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}),
            ),
        ),
        (
            "wrong volumes",
            pod(
                json!({}),
                json!({"containers": one(vec![], vec![]),
                "volumes": all(&|i| json!({"name": "X", "configMap": {"items": [{"key": "", "path": format!("/{i}")}]}}))}),
            ),
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn lists_beside_each_other_may_be_long() {
    let c = Cluster::start(1).await;
    let path = "/api/v1/namespaces/default/pods?dryRun=All";
    for (i, (what, long)) in beside(MANY).into_iter().enumerate() {
        let mut factor = f64::INFINITY;
        for _ in 0..TRIES {
            let took = timed(&c, "POST", path, long.clone()).await;
            if took < SHORT {
                factor = 0.0;
                break;
            }
            let short = beside(MANY / 8).swap_remove(i).1;
            factor = factor.min(took.as_secs_f64() / timed(&c, "POST", path, short).await.as_secs_f64());
            if factor <= FACTOR {
                break;
            }
        }
        assert!(factor <= FACTOR, "{what}: {factor:.0} times as long for 8 times as many");
    }
}

#[tokio::test(start_paused = true)]
async fn lists_may_be_long() {
    let c = Cluster::start(1).await;
    let (mut seen, mut found, mut looked_at) = (HashSet::new(), Vec::new(), 0);
    let rows = c.server.registry.rows();
    for row in rows.iter().filter(|r| r.kind.has_verb("create")) {
        let mut all = Vec::new();
        places(&row.kind.schema, &mut Vec::new(), &mut seen, &mut all);
        // Different items of one, equal ones of the next: other kinds have the same types.
        for (i, place) in all.iter().enumerate() {
            let same = i % 2 == 1;
            looked_at += 1;
            let mut factor = f64::INFINITY;
            for _ in 0..TRIES {
                let long = time(&c, &row.kind, place, MANY, same).await;
                if long < SHORT {
                    factor = 0.0;
                    break;
                }
                let short = time(&c, &row.kind, place, MANY / 8, same).await;
                factor = factor.min(long.as_secs_f64() / short.as_secs_f64());
                if factor <= FACTOR {
                    break;
                }
            }
            if factor > FACTOR {
                let what = format!("{} {:?} same={same}", row.kind.kind, place.path);
                eprintln!("{what}: {factor:.0} times as long for 8 times as many");
                found.push(what);
            }
        }
    }
    assert!(looked_at > 300, "{looked_at}");
    assert!(found.is_empty(), "{}", found.join("\n"));
}
