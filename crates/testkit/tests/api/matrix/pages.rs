//! Lists in pages, and at revisions.

use super::{MERGE_PATCH, Walk};
use serde_json::{Value, json};

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().into_iter().flatten();
    items.map(|o| format!("{}/{}", o["metadata"]["namespace"], o["metadata"]["name"])).collect()
}

pub async fn pages(w: &mut Walk<'_>) {
    w.create(0..5).await;
    let base = w.kind.collection();
    let whole = w.expect(200, "GET", &base, &Value::Null, "list").await;
    let all = names(&whole);
    let first = w.expect(200, "GET", &format!("{base}?limit=2"), &Value::Null, "the first page").await;
    w.check(names(&first) == all[..2], "the first page");
    w.check(first["metadata"]["remainingItemCount"] == all.len() - 2, "how many come after the first page");
    let selected = w.expect(200, "GET", &format!("{base}?limit=2&labelSelector=walk"), &Value::Null, "a page").await;
    w.check(selected["metadata"]["remainingItemCount"].is_null(), "with a selector nobody counts what remains");
    let revision = first["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();

    // What is written now is not seen by who goes on reading.
    w.create(5..6).await;
    w.remove(&w.path(4)).await;
    let late = json!({"metadata": {"annotations": {"late": "1"}}});
    w.patch(200, MERGE_PATCH, &w.path(3), &late, "annotate").await;
    let (mut seen, mut page) = (names(&first), first.clone());
    for _ in 0..all.len() {
        let Some(token) = page["metadata"]["continue"].as_str().filter(|t| !t.is_empty()) else { break };
        page = w.expect(200, "GET", &format!("{base}?limit=2&continue={token}"), &Value::Null, "the next page").await;
        w.check(page["metadata"]["resourceVersion"] == *revision, "all pages are of one revision");
        let items = page["items"].as_array().cloned().unwrap_or_default();
        w.check(items.iter().all(|o| o["metadata"]["annotations"]["late"].is_null()), "a page is of its revision");
        seen.extend(names(&page));
    }
    w.check(seen == all, format!("the pages are the list: {seen:?} {all:?}"));
    let token = first["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    let again = w.expect(200, "GET", &format!("{base}?continue={token}"), &Value::Null, "all that remains").await;
    w.check(names(&again) == all[2..], "all that remains");
    let with = format!("{base}?continue={token}&resourceVersion={revision}");
    w.expect(400, "GET", &with, &Value::Null, "continue at a revision").await;
    w.expect(400, "GET", &format!("{base}?continue=nonsense"), &Value::Null, "continue from nowhere").await;

    let now = w.revision();
    let at = |rest: &str| format!("{base}?resourceVersion={rest}");
    let exact = format!("{revision}&resourceVersionMatch=Exact");
    let then = w.expect(200, "GET", &at(&exact), &Value::Null, "list at a revision").await;
    w.check(names(&then) == all && then["metadata"]["resourceVersion"] == *revision, "a list at a revision");
    for newer in ["0".to_owned(), revision.clone(), format!("{revision}&resourceVersionMatch=NotOlderThan")] {
        let l = w.expect(200, "GET", &at(&newer), &Value::Null, "list not older").await;
        let have: u64 = l["metadata"]["resourceVersion"].as_str().unwrap_or_default().parse().unwrap_or(0);
        w.check(have >= revision.parse().unwrap() && have <= now, format!("resourceVersion={newer} gives {have}"));
    }
    let future = now + 1000;
    let e = w.expect(504, "GET", &at(&future.to_string()), &Value::Null, "list in the future").await;
    w.check(e["reason"] == "Timeout" && e["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge", "the reason");
    let future = format!("{future}&resourceVersionMatch=Exact");
    w.expect(504, "GET", &at(&future), &Value::Null, "list exactly in the future").await;
    w.expect(400, "GET", &at("abc"), &Value::Null, "list at no revision").await;
    for bad in ["&resourceVersionMatch=Exact", "0&resourceVersionMatch=Exact", "1&resourceVersionMatch=Newest"] {
        let e = w.expect(422, "GET", &at(bad), &Value::Null, &format!("list at {bad}")).await;
        let cause = &e["details"]["causes"][0];
        w.check(cause["field"] == "resourceVersionMatch", format!("the cause for {bad}: {cause}"));
    }
    w.unwritten(now, "reading");
    for i in [0, 1, 2, 3, 5] {
        w.remove(&w.path(i)).await;
    }
}
