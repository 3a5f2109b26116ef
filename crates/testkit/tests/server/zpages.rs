//! `/statusz` and `/flagz`.

use crate::socket::server;
use apiserver::Options;
use bytes::Bytes;
use http::Request;
use serde_json::{Value, json};
use std::time::Duration;
use testkit::Cluster;

#[tokio::test(start_paused = true)]
async fn statusz_and_flagz_are_served() {
    let c = Cluster::start(1).await;
    let flags = [("secure-port", "6443"), ("event-ttl", "1h")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let s = server(&c, Options { flags: flags.into(), ..Options::default() });
    tokio::time::sleep(Duration::from_secs(3725)).await;
    let get = async |token: &str, path: &str, accept: &str| {
        let r = Request::get(path).header("authorization", format!("Bearer {token}")).header("accept", accept);
        let (parts, body) = s.handle(r.body(Bytes::new()).unwrap()).await.into_parts();
        (parts.status.as_u16(), String::from_utf8(body.collect().await.unwrap().to_vec()).unwrap())
    };
    let admin = "admin/system:masters";
    let (code, text) = get(admin, "/statusz", "*/*").await;
    let has = |parts: &[&str]| text.lines().any(|l| parts.iter().all(|p| l.contains(p)));
    assert!(code == 200 && text.starts_with("\nkube-apiserver statusz\nWarning: "), "{text}");
    assert!(has(&["Started", "Thu Jan  1 00:00:00 UTC 2026"]) && has(&["Up", "1 hr 02 min 05 sec"]), "{text}");
    assert!(has(&["Paths", "/livez", "/metrics", "/readyz"]) && !has(&["Paths", "/apis"]), "{text}");
    let accept = |kind: &str| format!("application/json;g=config.k8s.io;v=v1beta1;as={kind}");
    let v: Value = serde_json::from_str(&get(admin, "/statusz", &accept("Statusz")).await.1).unwrap();
    assert_eq!(
        (&v["kind"], &v["apiVersion"], &v["uptimeSeconds"]),
        (&json!("Statusz"), &json!("config.k8s.io/v1beta1"), &json!(3725))
    );
    let v: Value = serde_json::from_str(&get(admin, "/flagz", &accept("Flagz")).await.1).unwrap();
    assert_eq!(v["flags"], json!({"secure-port": "6443", "event-ttl": "1h"}));
    let (_, text) = get(admin, "/flagz", "").await;
    assert!(text.lines().any(|l| l.starts_with("event-ttl") && l.ends_with("1h")), "{text}");
    assert_eq!(get(admin, "/flagz", "application/json").await.0, 406);
    assert_eq!(get("jane", "/flagz", "*/*").await.0, 403);
}
