//! HTTP probes and redirects.

use crate::machine::*;
use serde_json::{Value, json};
use std::sync::Arc;

/// Answers probes on a port of the node's loopback. Returns the heads of the requests, in order.
fn redirecting_server(m: &Machine, port: u16) -> Arc<std::sync::Mutex<Vec<String>>> {
    use std::io::{BufRead, Write};
    let listener =
        network::namespace::run_in(Some(&m.node), || std::net::TcpListener::bind(("127.0.0.1", port))).unwrap();
    let heads: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
    let seen = heads.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = std::io::BufReader::new(&stream).lines().map_while(Result::ok);
            let head = lines.take_while(|l| !l.is_empty()).collect::<Vec<_>>().join("\n");
            let (status, location, body) = match head.split(' ').nth(1).unwrap_or_default() {
                "/local" => ("302 Found", "fine?q", ""),
                "/failing" => ("307 Temporary Redirect", "/500", ""),
                "/elsewhere" => ("301 Moved Permanently", "http://other.example/", "gone away"),
                "/round" => ("302 Found", "/round", ""),
                "/500" => ("500 Internal Server Error", "", ""),
                "/credentials" => ("302 Found", "http://user:word@127.0.0.1:8099/private", ""),
                "/private" if head.contains("Basic dXNlcjp3b3Jk") => ("200 OK", "", ""),
                "/private" => ("401 Unauthorized", "", ""),
                "/broken" => ("302 Found", "/café x", "broken off"),
                "/scheme" => ("302 Found", "ftp://127.0.0.1/x", ""),
                "/nowhere" => ("302 Found", "mailto:x", "by mail"),
                "/hook" => ("302 Found", "/500", ""),
                _ => ("200 OK", "", ""),
            };
            seen.lock().unwrap().push(head);
            let length = if body == "broken off" { 1000 } else { body.len() };
            let many: String = (0..500).map(|n| format!("X-{n}: {n}\r\n")).collect();
            let location = if location.is_empty() { String::new() } else { format!("Location: {location}\r\n") };
            let _ = write!(stream, "HTTP/1.1 {status}\r\n{location}{many}Content-Length: {length}\r\n\r\n{body}");
        }
    });
    heads
}

/// Any redirect was a success: a server that redirected to an error of its own was ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_follow_redirects_of_the_same_host() {
    let m = Machine::new().await;
    let heads = redirecting_server(&m, 8099);
    let containers: Vec<Value> = ["local", "failing", "elsewhere", "round"]
        .map(|name| {
            let mut c = demo(name, json!(["sleep"]));
            let headers = json!([{"name": "Host", "value": "probe.example"}, {"name": "X-Probe", "value": "1"}]);
            let get = json!({"host": "127.0.0.1", "path": format!("/{name}"), "port": 8099, "httpHeaders": headers});
            c["readinessProbe"] = json!({"httpGet": get, "periodSeconds": 1});
            c
        })
        .to_vec();
    m.pod("p", json!({"containers": containers}));
    let messages = || {
        let events = m.api.list("api/v1/events");
        let message = |e: &Value| format!("{} {} {}", e["type"], e["reason"], e["message"]).replace('"', "");
        events.iter().map(message).filter(|m| m.contains("probe")).collect::<std::collections::BTreeSet<_>>()
    };
    let begun = tokio::time::Instant::now();
    while messages().len() < 3 && begun.elapsed().as_secs() < 30 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let expected = [
        "Warning ProbeWarning Readiness probe warning: Probe terminated redirects, Response body: gone away",
        "Warning Unhealthy Readiness probe failed: Get \\/round\\: stopped after 10 redirects",
        "Warning Unhealthy Readiness probe failed: HTTP probe failed with statuscode: 500",
    ];
    assert_eq!(messages(), expected.map(str::to_owned).into());
    let ready = |p: &Value| {
        let statuses = p["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        let ready = statuses.iter().filter(|s| s["ready"] == true).map(|s| s["name"].as_str().unwrap().to_owned());
        ready.collect::<std::collections::BTreeSet<_>>()
    };
    m.until("p", |p| ready(p) == ["local".to_owned(), "elsewhere".to_owned()].into()).await;
    let heads = heads.lock().unwrap().clone();
    let last = heads.iter().find(|h| h.starts_with("GET /fine?q ")).unwrap().to_ascii_lowercase();
    for header in ["host: probe.example", "x-probe: 1", "referer: http://127.0.0.1:8099/local"] {
        assert!(last.lines().any(|l| l == header), "{header}: {last}");
    }
    m.finish().await;
}

/// What a hostile or careless server answers is handled as Go's client does it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_redirects_are_followed_or_reported() {
    let m = Machine::new().await;
    let heads = redirecting_server(&m, 8099);
    let get = |path: &str| json!({"httpGet": {"host": "127.0.0.1", "path": path, "port": 8099}, "periodSeconds": 1});
    let names = ["credentials", "broken", "scheme", "nowhere"];
    let mut containers: Vec<Value> = names
        .map(|name| {
            let mut c = demo(name, json!(["sleep"]));
            c["readinessProbe"] = get(&format!("/{name}"));
            c
        })
        .to_vec();
    // Any answer is a success of a hook, which follows redirects too.
    let mut hook = get("/hook");
    hook.as_object_mut().unwrap().remove("periodSeconds");
    containers[0]["lifecycle"] = json!({"postStart": hook});
    m.pod("p", json!({"terminationGracePeriodSeconds": 1, "containers": containers}));
    let ready = |p: &Value| {
        let statuses = p["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        let ready = statuses.iter().filter(|s| s["ready"] == true).map(|s| s["name"].as_str().unwrap().to_owned());
        ready.collect::<std::collections::BTreeSet<_>>()
    };
    let p = m.until("p", |p| ready(p) == ["credentials", "broken", "nowhere"].map(str::to_owned).into()).await;
    assert!(p["status"]["containerStatuses"].as_array().unwrap().iter().all(|c| c["restartCount"] == 0), "{p}");
    let messages = || {
        let events = m.api.list("api/v1/events");
        let message = |e: &Value| e["message"].as_str().unwrap_or_default().to_owned();
        events.iter().map(message).filter(|m| m.contains("probe")).collect::<std::collections::BTreeSet<_>>()
    };
    let begun = tokio::time::Instant::now();
    while messages().len() < 2 && begun.elapsed().as_secs() < 30 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let expected = [
        "Readiness probe failed: Get \"ftp://127.0.0.1/x\": unsupported protocol scheme \"ftp\"",
        "Readiness probe warning: Probe terminated redirects, Response body: by mail",
    ];
    assert_eq!(messages(), expected.map(str::to_owned).into());
    let heads = heads.lock().unwrap().clone();
    let request = |start: &str| heads.iter().find(|h| h.starts_with(start)).unwrap().to_ascii_lowercase();
    assert!(request("GET /500 ").contains("user-agent: kube-lifecycle/"));
    assert!(request("GET /caf%C3%A9%20x ").contains("user-agent: kube-probe/"));
    assert!(request("GET /private ").contains("referer: http://127.0.0.1:8099/credentials"));
    m.finish().await;
}
