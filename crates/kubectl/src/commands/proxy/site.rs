//! Paths as Go's `http.ServeMux` handles them, and static files as its `http.FileServer` serves them.

use super::{Body, plain};
use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use std::path::{Component, Path};

/// The characters that are escaped in a link.
const LINK: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'<').add(b'>').add(b'?').add(b'`').add(b'{').add(b'}');

/// Removes empty segments and dots from a path.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            other => parts.push(other),
        }
    }
    let mut out = format!("/{}", parts.join("/"));
    let open = path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..");
    if open && out != "/" {
        out.push('/');
    }
    out
}

/// Redirects a path that is not clean, or a prefix without its last slash.
pub fn redirect_unclean(path: &str, query: Option<&str>, prefixes: &[&str]) -> Option<Response<Body>> {
    let mut to = clean(path);
    let is_prefix = |p: &&str| p.strip_suffix('/') == Some(to.as_str()) && !to.is_empty();
    if prefixes.iter().any(is_prefix) {
        to.push('/');
    }
    if to == path || path.is_empty() {
        return None;
    }
    let to = with_query(&to, query);
    let text = format!("<a href=\"{}\">Temporary Redirect</a>.\n\n", escaped(&to));
    let mut r = redirect(StatusCode::TEMPORARY_REDIRECT, &to);
    r.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/html; charset=utf-8"));
    *r.body_mut() = full_body(text.into());
    Some(r)
}

fn with_query(path: &str, query: Option<&str>) -> String {
    query.map_or_else(|| path.to_owned(), |q| format!("{path}?{q}"))
}

fn full_body(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|e| match e {}).boxed_unsync()
}

fn redirect(code: StatusCode, to: &str) -> Response<Body> {
    let mut r = Response::new(full_body(Bytes::new()));
    *r.status_mut() = code;
    if let Ok(v) = header::HeaderValue::from_str(to) {
        r.headers_mut().insert(header::LOCATION, v);
    }
    r
}

fn moved_permanently(to: &str) -> Response<Body> {
    redirect(StatusCode::MOVED_PERMANENTLY, to)
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

/// Serves a file below the directory, a listing, or a redirect to it; nothing else.
pub fn file(directory: &Path, rest: &str, query: Option<&str>) -> Response<Body> {
    let missing = || plain(StatusCode::NOT_FOUND, "404 page not found");
    let Ok(decoded) = percent_decode_str(rest).decode_utf8() else { return missing() };
    let name = Path::new(decoded.as_ref());
    if name.components().any(|c| !matches!(c, Component::Normal(_))) || decoded.contains('\0') {
        return missing();
    }
    let last = rest.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    if last == "index.html" && !rest.ends_with('/') {
        return moved_permanently(&with_query("./", query));
    }
    let open = rest.is_empty() || rest.ends_with('/');
    let path = directory.join(decoded.trim_end_matches('/'));
    let Ok(found) = std::fs::metadata(&path) else { return missing() };
    match (found.is_dir(), open) {
        (true, false) => moved_permanently(&with_query(&format!("{last}/"), query)),
        (false, true) => moved_permanently(&with_query(&format!("../{last}"), query)),
        (true, true) => match std::fs::read(path.join("index.html")) {
            Ok(bytes) => served("html", bytes.into()),
            Err(_) => listed(&path).unwrap_or_else(missing),
        },
        (false, false) => match std::fs::read(&path) {
            Ok(bytes) => served(path.extension().and_then(|e| e.to_str()).unwrap_or_default(), bytes.into()),
            Err(_) => missing(),
        },
    }
}

fn listed(directory: &Path) -> Option<Response<Body>> {
    let entries = std::fs::read_dir(directory).ok()?.flatten();
    let mut names: Vec<String> = entries
        .map(|e| {
            let end = if e.file_type().is_ok_and(|t| t.is_dir()) { "/" } else { "" };
            format!("{}{end}", e.file_name().to_string_lossy())
        })
        .collect();
    names.sort();
    let mut page = String::from("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n");
    for n in names {
        // A name with a colon would be read as an absolute URL.
        let first = n.split('/').next().unwrap_or_default();
        let own = if first.contains(':') { "./" } else { "" };
        page.push_str(&format!("<a href=\"{own}{}\">{}</a>\n", utf8_percent_encode(&n, LINK), escaped(&n)));
    }
    page.push_str("</pre>\n");
    Some(served("html", page.into()))
}

fn served(extension: &str, bytes: Bytes) -> Response<Body> {
    let kind = match extension {
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "txt" => "text/plain; charset=utf-8",
        // Browsers would guess the same.
        _ if std::str::from_utf8(&bytes).is_ok_and(|t| !t.contains('\0')) => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    };
    let mut r = Response::new(full_body(bytes));
    r.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    r
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn shown(r: Response<Body>) -> String {
        let (head, body) = r.into_parts();
        let to = head.headers.get(header::LOCATION).map(|l| format!(" -> {}", l.to_str().unwrap())).unwrap_or_default();
        let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        format!("{}{to} {body}", head.status.as_u16())
    }

    #[tokio::test]
    async fn redirects_unclean_paths() {
        for (path, expected) in [
            ("/", None),
            ("/version", None),
            ("/version/", None),
            ("//version", Some("/version")),
            ("/a/./b", Some("/a/b")),
            ("/a/../b/", Some("/b/")),
            ("/a/..", Some("/")),
            ("/static", Some("/static/")),
            ("//static", Some("/static/")),
            ("/static/x", None),
        ] {
            let got = match redirect_unclean(path, Some("x=1"), &["/", "/static/"]) {
                Some(r) => Some(shown(r).await),
                None => None,
            };
            let expected = expected.map(|w| format!("307 -> {w}?x=1 <a href=\"{w}?x=1\">Temporary Redirect</a>.\n\n"));
            assert_eq!(got, expected, "{path}");
        }
    }

    #[tokio::test]
    async fn lists_directories_and_serves_files() {
        let dir = tempfile::tempdir().unwrap();
        let at = |n: &str| dir.path().join(n);
        std::fs::create_dir_all(at("www/sub")).unwrap();
        std::fs::create_dir_all(at("www/with")).unwrap();
        for (n, t) in [("www/a.txt", "a"), ("www/o<i> \"x", "o"), ("www/with/index.html", "<b>"), ("secret", "no")] {
            std::fs::write(at(n), t).unwrap();
        }
        let list = "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n\
            <a href=\"a.txt\">a.txt</a>\n<a href=\"o%3Ci%3E%20%22x\">o&lt;i&gt; &#34;x</a>\n<a href=\"sub/\">sub/</a>\n\
            <a href=\"with/\">with/</a>\n</pre>\n";
        for (rest, expected) in [
            ("", format!("200 {list}")),
            ("a.txt", "200 a".into()),
            ("o%3Ci%3E%20%22x", "200 o".into()),
            ("a.txt/", "301 -> ../a.txt ".into()),
            ("sub", "301 -> sub/ ".into()),
            ("with/", "200 <b>".into()),
            ("with/index.html", "301 -> ./ ".into()),
            ("none", "404 404 page not found\n".into()),
            ("%2e%2e/secret", "404 404 page not found\n".into()),
            ("sub/%2e%2e/%2e%2e/secret", "404 404 page not found\n".into()),
        ] {
            assert_eq!(shown(file(&at("www"), rest, None)).await, expected, "{rest}");
        }
    }
}
