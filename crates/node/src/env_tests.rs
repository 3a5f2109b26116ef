use super::*;
use serde_json::json;

struct Table(BTreeMap<(Kind, &'static str), Data>);

#[async_trait::async_trait]
impl Source for Table {
    async fn data(&self, kind: Kind, _: &str, name: &str) -> Result<Option<Arc<Data>>, crate::objects::Error> {
        Ok(self.0.iter().find(|((k, n), _)| *k == kind && *n == name).map(|(_, d)| Arc::new(d.clone())))
    }
}

/// A source with an object of a megabyte for every name, which counts reads.
#[derive(Default)]
struct Large(std::sync::atomic::AtomicUsize);

#[async_trait::async_trait]
impl Source for Large {
    async fn data(&self, _: Kind, _: &str, _: &str) -> Result<Option<Arc<Data>>, crate::objects::Error> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Some(Arc::new(BTreeMap::from([("bad key\n".to_owned(), vec![b'x'; 1 << 20].into())]))))
    }
}

async fn with_large(container: serde_json::Value) -> (usize, Result<Environment, Error>) {
    let source = Large::default();
    let pod = Pod::default();
    let container = serde_json::from_value(container).unwrap();
    let got = build(&pod, &container, &source, &BTreeMap::new(), &BTreeMap::new(), &NodeInfo::default()).await;
    (source.0.into_inner(), got)
}

/// 1,500 variables from one large config map stopped a node for minutes.
#[tokio::test]
async fn an_object_is_read_once_for_all_variables() {
    let variable = |i: usize, name: String| {
        let from = json!({"configMapKeyRef": {"name": name, "key": "none", "optional": true}});
        json!({"name": format!("V{i}"), "valueFrom": from})
    };
    let one: Vec<_> = (0..2000).map(|i| variable(i, "a".into())).collect();
    let (read, got) = with_large(json!({"name": "c", "env": one})).await;
    assert_eq!((read, got.unwrap().variables.len()), (1, 0));
    let many: Vec<_> = (0..2000).map(|i| variable(i, format!("{i}"))).collect();
    let (read, got) = with_large(json!({"name": "c", "env": many})).await;
    assert!(read < 300 && got.unwrap_err().to_string().contains("take more than 256 MiB"), "{read}");
    let from: Vec<_> = (0..2000).map(|_| json!({"configMapRef": {"name": "a"}})).collect();
    let (read, got) = with_large(json!({"name": "c", "envFrom": from})).await;
    assert_eq!(read, 1);
    got.unwrap_err();
}

fn table() -> Table {
    let data = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), v.to_string().into())).collect();
    Table(BTreeMap::from([
        ((Kind::ConfigMap, "cm"), data(&[("A", "1"), ("bad key", "x"), ("also=bad", "y")])),
        ((Kind::Secret, "s"), data(&[("password", "pw")])),
    ]))
}

async fn env(container: serde_json::Value) -> Result<Environment, Error> {
    let pod: Pod = serde_json::from_value(
        json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"containers": [container]}}),
    )
    .unwrap();
    let services = BTreeMap::from([("SVC_SERVICE_HOST".to_owned(), "10.0.0.1".to_owned())]);
    let c = pod.spec.as_ref().unwrap().containers[0].clone();
    build(&pod, &c, &table(), &services, &BTreeMap::new(), &NodeInfo::default()).await
}

#[tokio::test]
async fn variables_come_from_everywhere_in_order() {
    let got = env(json!({"name": "c",
    "envFrom": [{"prefix": "P_", "configMapRef": {"name": "cm"}}, {"secretRef": {"name": "none", "optional": true}}],
    "env": [
        {"name": "X", "value": "$(P_A)-$(SVC_SERVICE_HOST)-$(NOPE)-$$(P_A)-$"},
        {"name": "P_A", "value": "2"},
        {"name": "Y", "value": "$(P_A)"},
        {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "password"}}},
        {"name": "O", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "none", "optional": true}}},
        {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    ]}))
    .await
    .unwrap();
    let expected = [
        ("P_A", "2"),
        ("X", "1-10.0.0.1-$(NOPE)-$(P_A)-$"),
        ("Y", "2"),
        ("S", "pw"),
        ("N", "p"),
        ("SVC_SERVICE_HOST", "10.0.0.1"),
    ];
    // A name may be anything printable without '='.
    let own: Vec<_> =
        got.variables.iter().filter(|(k, _)| k != "P_bad key").map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(own, expected);
    assert!(
        got.skipped.iter().any(|(from, names)| from == "ConfigMap ns/cm" && names.contains(&"P_also=bad".to_owned()))
    );
}

#[tokio::test]
async fn reports_missing_objects_and_keys() {
    let check = async |c, expected: &str| assert_eq!(env(c).await.unwrap_err().to_string(), expected);
    let key =
        |r: &str, name, key| json!({"name": "c", "env": [{"name": "A", "valueFrom": {r: {"name": name, "key": key}}}]});
    check(key("configMapKeyRef", "none", "k"), "configmap \"none\" not found").await;
    check(key("secretKeyRef", "s", "k"), "couldn't find key k in Secret ns/s").await;
    check(json!({"name": "c", "envFrom": [{"secretRef": {"name": "x"}}]}), "secret \"x\" not found").await;
}

/// Clauses: K01
#[test]
fn sets_variables_of_services() {
    let service = |ns: &'static str, name: &'static str, ip: &str, ports: serde_json::Value| {
        let view = serde_json::from_value(json!({"spec": {"clusterIP": ip, "ports": ports}})).unwrap();
        (ns, name, view)
    };
    fn seen<'a>(s: &'a (&str, &str, ServiceView)) -> (&'a str, &'a str, &'a ServiceView) {
        (s.0, s.1, &s.2)
    }
    let list = [
        service("default", "kubernetes", "10.96.0.1", json!([{"port": 443, "name": "https"}])),
        service("a", "redis-primary", "10.96.0.2", json!([{"port": 6379, "protocol": "TCP"}])),
        service("a", "headless", "None", json!([{"port": 1}])),
        service("b", "other", "10.96.0.3", json!([{"port": 1}])),
    ];
    let got = service_variables(list.iter().map(seen), "a", true).unwrap();
    let check = |k: &str, v: &str| assert_eq!(got.get(k).map(String::as_str), Some(v), "{k}");
    check("REDIS_PRIMARY_SERVICE_HOST", "10.96.0.2");
    check("REDIS_PRIMARY_SERVICE_PORT", "6379");
    check("REDIS_PRIMARY_PORT", "tcp://10.96.0.2:6379");
    check("REDIS_PRIMARY_PORT_6379_TCP", "tcp://10.96.0.2:6379");
    check("REDIS_PRIMARY_PORT_6379_TCP_ADDR", "10.96.0.2");
    check("KUBERNETES_SERVICE_PORT_HTTPS", "443");
    assert!(!got.keys().any(|k| k.starts_with("HEADLESS") || k.starts_with("OTHER")));
    let without = service_variables(list.iter().map(seen), "a", false).unwrap();
    assert!(without.keys().all(|k| k.starts_with("KUBERNETES")) && !without.is_empty());
    // A service with too many ports is an error; services after it are not read.
    let ports: serde_json::Value = (1..20_000).map(|port| json!({"port": port, "name": format!("p{port}")})).collect();
    let mut read = 0;
    let names = ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8"];
    let many = names.map(|name| service("a", name, "10.96.0.4", ports.clone()));
    let many = many.iter().map(seen).inspect(|_| read += 1);
    assert_eq!(service_variables(many, "a", true), Err(TooLong(MAX_BYTES)));
    assert!(read < 9, "{read}");
}

/// Forty variables that double each other would fill all memory.
#[tokio::test]
async fn what_is_put_together_is_bounded() {
    let doubled = |i: usize| match i {
        0 => json!({"name": "A0", "value": "0123456789abcdef"}),
        i => json!({"name": format!("A{i}"), "value": format!("$(A{0})$(A{0})", i - 1)}),
    };
    let few: Vec<_> = (0..12).map(doubled).collect();
    let last = env(json!({"name": "c", "env": few})).await.unwrap().variables.into_iter().find(|(k, _)| k == "A11");
    assert_eq!(last.unwrap().1.len(), 16 << 11);
    let many: Vec<_> = (0..40).map(doubled).collect();
    let error = env(json!({"name": "c", "env": many})).await.unwrap_err();
    assert!(matches!(error, Error::TooLong(_)), "{error}");
    assert!(error.to_string().starts_with("argument list too long"), "{error}");
    let long = "v".repeat(1 << 20);
    let text = "$(V)".repeat(9);
    assert_eq!(expand(&text, |_| Some(&long), &mut Budget::new(9 << 20)).map(|t| t.len()), Ok(9 << 20));
    assert_eq!(expand(&text, |_| Some(&long), &mut Budget::new(8 << 20)), Err(TooLong(8 << 20)));
}
