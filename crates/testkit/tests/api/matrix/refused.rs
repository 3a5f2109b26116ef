//! Verbs that discovery does not offer are rejected, and write nothing.

use super::Walk;
use serde_json::{Value, json};

pub async fn refused(w: &mut Walk<'_>) {
    let (base, one) = (w.kind.collection(), w.kind.object("walk-0"));
    let before = w.revision();
    let verbs = [
        ("create", "POST", base.clone()),
        ("list", "GET", base.clone()),
        ("watch", "GET", format!("{base}?watch=1")),
        ("deletecollection", "DELETE", base.clone()),
        ("get", "GET", one.clone()),
        ("update", "PUT", one.clone()),
        ("patch", "PATCH", one.clone()),
        ("delete", "DELETE", one.clone()),
    ];
    // What is answered and not kept has no path of its own.
    let kept = w.kind.has("get");
    for (verb, method, path) in verbs {
        if !w.kind.has(verb) {
            let (code, reason) = if kept || path != one { (405, "MethodNotAllowed") } else { (404, "NotFound") };
            let e = w.expect(code, method, &path, &json!({}), &format!("{verb}, which is not offered")).await;
            w.check(e["reason"] == reason, format!("the reason for {verb}: {e}"));
        }
    }
    // No method is right on the wrong path.
    for (method, path) in [("POST", &one), ("PUT", &base), ("PATCH", &base)] {
        let code = if kept || *path != one { 405 } else { 404 };
        w.expect(code, method, path, &json!({}), &format!("{method} {path}")).await;
    }
    if w.kind.namespaced && w.kind.has("list") {
        w.expect(405, "POST", &w.kind.everywhere(), &json!({}), "create in no namespace").await;
        w.expect(405, "DELETE", &w.kind.everywhere(), &json!({}), "delete in all namespaces").await;
    }
    w.expect(404, "GET", &format!("{one}/nosuchpart"), &Value::Null, "an unknown subresource").await;
    w.expect(404, "GET", &format!("{base}x"), &Value::Null, "an unknown resource").await;
    for s in &w.kind.subresources {
        // What is streamed is served by the node's agent, by any method.
        if ["log", "exec", "attach", "portforward", "proxy"].contains(&&*s.name) {
            continue;
        }
        let methods = [("create", "POST"), ("get", "GET"), ("update", "PUT"), ("patch", "PATCH"), ("delete", "DELETE")];
        for (verb, method) in methods.into_iter().filter(|(v, _)| !s.verbs.iter().any(|x| x == v)) {
            w.expect(405, method, &format!("{one}/{}", s.name), &json!({}), &format!("{verb} of {}", s.name)).await;
        }
    }
    w.unwritten(before, "what is refused");
}
