//! Rewrites link attributes in streamed HTML.
//!
//! **Invariant**: buffers at most one tag of at most [`LONGEST`] bytes; a longer one passes unchanged.

/// Maximum size of a tag to parse, in bytes.
const LONGEST: usize = 64 << 10;

/// Link attributes by tag.
const LINKS: &[(&str, &[&str])] = &[
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// Elements whose content is text up to their end tag.
const RAW: &[&str] =
    &["iframe", "noembed", "noframes", "noscript", "plaintext", "script", "style", "textarea", "title", "xmp"];

/// Rewrites links with a function.
pub struct Rewriter<F> {
    rewrite: F,
    /// Buffered input: the beginning of a possible tag, and how far it was scanned.
    held: Vec<u8>,
    seen: TagState,
    /// The raw text element that is open.
    raw: Option<&'static str>,
}

/// The scan state of an incomplete tag, so that no byte is scanned twice, however small the pieces are.
#[derive(Clone, Copy, Default)]
struct TagState {
    at: usize,
    quote: Option<u8>,
    /// After a `=`: a quote opens a value.
    value: bool,
}

impl<F: Fn(&str) -> String> Rewriter<F> {
    pub fn new(rewrite: F) -> Self {
        Self { rewrite, held: Vec::new(), seen: TagState::default(), raw: None }
    }

    /// Takes the next piece, and appends what can be output.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(piece);
        let mut from = 0;
        while let Some(open) = memchr::memchr(b'<', &all[from..]) {
            out.extend_from_slice(&all[from..from + open]);
            from += open;
            let rest = &all[from..];
            match self.length(rest) {
                Some(n) => {
                    self.seen = TagState::default();
                    self.token(&rest[..n], out);
                    from += n;
                }
                None if rest.len() > LONGEST => break,
                None => {
                    all.drain(..from);
                    self.held = all;
                    return;
                }
            }
        }
        self.seen = TagState::default();
        out.extend_from_slice(&all[from..]);
    }

    /// Outputs the buffer at the end.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// The length of the token that begins with `<`; none if it is incomplete.
    fn length(&mut self, text: &[u8]) -> Option<usize> {
        if let Some(raw) = self.raw {
            // Only the end tag matters.
            let end_tag = [b"</", raw.as_bytes()].concat();
            let prefix = text.get(..end_tag.len()).unwrap_or(text);
            if !prefix.eq_ignore_ascii_case(&end_tag[..prefix.len()]) {
                return Some(1);
            }
            return (text.len() > end_tag.len()).then_some(end_tag.len());
        }
        let seen = &mut self.seen;
        match text.get(1)? {
            b'!' if text.starts_with(b"<!--") => {
                let from = seen.at.max(4);
                seen.at = text.len().saturating_sub(2).max(4);
                memchr::memmem::find(text.get(from..)?, b"-->").map(|e| from + e + 3)
            }
            b'!' if b"<!--".starts_with(text) => None,
            b'!' | b'?' | b'/' => {
                let from = seen.at.max(1);
                seen.at = text.len();
                memchr::memchr(b'>', text.get(from..)?).map(|e| from + e + 1)
            }
            c if c.is_ascii_alphabetic() => tag_length(text, seen),
            _ => Some(1),
        }
    }

    fn token(&mut self, text: &[u8], out: &mut Vec<u8>) {
        if self.raw.is_some() {
            if text.len() > 1 {
                self.raw = None;
            }
            out.extend_from_slice(text);
            return;
        }
        if !text.get(1).is_some_and(u8::is_ascii_alphabetic) {
            out.extend_from_slice(text);
            return;
        }
        let end = text.iter().skip(1).position(|b| b.is_ascii_whitespace() || matches!(b, b'/' | b'>'));
        let name = String::from_utf8_lossy(&text[1..end.map_or(text.len(), |e| e + 1)]).to_ascii_lowercase();
        match LINKS.iter().find(|(tag, _)| *tag == name) {
            Some((_, attributes)) => self.tag(text, name.len() + 1, attributes, out),
            None => out.extend_from_slice(text),
        }
        if !text.ends_with(b"/>") {
            self.raw = RAW.iter().copied().find(|r| *r == name);
        }
    }

    /// Copies a tag whose attributes begin at `at`, with rewritten links.
    fn tag(&self, text: &[u8], at: usize, links: &[&str], out: &mut Vec<u8>) {
        let mut copied = 0;
        for a in attributes(text, at) {
            let name = String::from_utf8_lossy(&text[a.name.clone()]).to_ascii_lowercase();
            let Ok(value) = std::str::from_utf8(&text[a.value.clone()]) else { continue };
            if !links.contains(&name.as_str()) || a.value.is_empty() {
                continue;
            }
            let before = unescape(value);
            let after = (self.rewrite)(&before);
            if after != before {
                out.extend_from_slice(&text[copied..a.value.start]);
                out.extend_from_slice(escape(&after).as_bytes());
                copied = a.value.end;
            }
        }
        out.extend_from_slice(&text[copied..]);
    }
}

struct Attribute {
    name: std::ops::Range<usize>,
    value: std::ops::Range<usize>,
}

/// The attributes of a tag, in order.
fn attributes(text: &[u8], mut at: usize) -> Vec<Attribute> {
    let mut all = Vec::new();
    let skip = |mut at: usize, is: &dyn Fn(u8) -> bool| {
        while text.get(at).is_some_and(|b| is(*b)) {
            at += 1;
        }
        at
    };
    loop {
        at = skip(at, &|b| b.is_ascii_whitespace() || b == b'/');
        if at >= text.len() || text[at] == b'>' {
            return all;
        }
        let name = at..skip(at + 1, &|b| !b.is_ascii_whitespace() && !matches!(b, b'/' | b'>' | b'='));
        at = skip(name.end, &|b| b.is_ascii_whitespace());
        if text.get(at) != Some(&b'=') {
            continue;
        }
        at = skip(at + 1, &|b| b.is_ascii_whitespace());
        let value = match text.get(at) {
            Some(&quote @ (b'"' | b'\'')) => {
                let value = at + 1..skip(at + 1, &|b| b != quote);
                at = value.end + 1;
                value
            }
            _ => {
                let value = at..skip(at, &|b| !b.is_ascii_whitespace() && b != b'>');
                at = value.end;
                value
            }
        };
        all.push(Attribute { name, value });
    }
}

/// The end of a start tag, ignoring `>` in quoted values.
fn tag_length(text: &[u8], seen: &mut TagState) -> Option<usize> {
    for (i, b) in text.iter().enumerate().skip(seen.at.max(1)) {
        match (seen.quote, b) {
            (Some(q), b) if *b == q => seen.quote = None,
            (Some(_), _) => {}
            (None, b'>') => return Some(i + 1),
            (None, b'"' | b'\'') if seen.value => (seen.quote, seen.value) = (Some(*b), false),
            (None, b'=') => seen.value = true,
            (None, b) if b.is_ascii_whitespace() => {}
            (None, _) => seen.value = false,
        }
    }
    seen.at = text.len();
    None
}

const ENTITIES: [(&str, &str); 6] =
    [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#34;", "\""), ("&#39;", "'"), ("&amp;", "&")];

fn unescape(text: &str) -> String {
    let mut out = text.to_owned();
    for (entity, plain) in ENTITIES {
        out = out.replace(entity, plain);
    }
    out
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            // An unquoted value ends at whitespace, which links do not contain.
            ' ' => out.push_str("%20"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(pieces: &[&[u8]]) -> String {
        let mut r = Rewriter::new(|link: &str| link.strip_prefix('/').map_or(link.to_owned(), |l| format!("/R/{l}")));
        let mut out = Vec::new();
        for p in pieces {
            r.push(p, &mut out);
        }
        out.extend(r.finish());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn links_are_found_where_they_are() {
        for (html, expected) in [
            (r#"<a href="/a">x</a>"#, r#"<a href="/R/a">x</a>"#),
            ("<A class=b HREF='/a' >", "<A class=b HREF='/R/a' >"),
            ("<a href=/a>/b</a>", "<a href=/R/a>/b</a>"),
            ("<a href = \"/a\"\n>", "<a href = \"/R/a\"\n>"),
            (r#"<a title="/a" data-href="/b">"#, r#"<a title="/a" data-href="/b">"#),
            (
                r#"<a href="x?a=1&amp;b=2"><a href="/?a=1&amp;b=2">"#,
                r#"<a href="x?a=1&amp;b=2"><a href="/R/?a=1&amp;b=2">"#,
            ),
            (r#"<img alt="a > b" src="/i"/>"#, r#"<img alt="a > b" src="/R/i"/>"#),
            (
                r#"<link rel=x href="/c.css"><script src="/s.js"></script>"#,
                r#"<link rel=x href="/R/c.css"><script src="/R/s.js"></script>"#,
            ),
            (r#"<form action="/f"><input formaction="/g">"#, r#"<form action="/R/f"><input formaction="/R/g">"#),
            // Comments, and the text of scripts and styles.
            (r#"<!-- <a href="/a"> --><a href="/b">"#, r#"<!-- <a href="/a"> --><a href="/R/b">"#),
            (
                r#"<script>"<a href='/a'>" < 1</script><a href="/b">"#,
                r#"<script>"<a href='/a'>" < 1</script><a href="/R/b">"#,
            ),
            (r#"<title><a href="/a"></title><a href="/b">"#, r#"<title><a href="/a"></title><a href="/R/b">"#),
            // Text that is not a tag, and unterminated tags.
            (r#"1 < 2 <3 <a href="/a">"#, r#"1 < 2 <3 <a href="/R/a">"#),
            (r#"<a href="/a"#, r#"<a href="/a"#),
            ("<", "<"),
            ("<!DOCTYPE html><?xml?></a ><b>", "<!DOCTYPE html><?xml?></a ><b>"),
        ] {
            assert_eq!(rewritten(&[html.as_bytes()]), expected);
            // In pieces of any size.
            let bytes: Vec<&[u8]> = html.as_bytes().chunks(1).collect();
            assert_eq!(rewritten(&bytes), expected, "in pieces");
        }
    }

    /// An unterminated tag passes in linear time, in large pieces and byte by byte; otherwise this takes hours.
    #[test]
    fn what_is_held_back_is_bounded() {
        for pattern in ["<a ", "<a x=\"", "<!-- ", "</a", "<a x='>\">", "<script><"] {
            for size in [1, 3000] {
                let mut r = Rewriter::new(|link: &str| link.to_owned());
                let (mut out, mut pushed) = (Vec::new(), Vec::new());
                let text = pattern.as_bytes().repeat(400_000 / pattern.len());
                for piece in text.chunks(size) {
                    r.push(piece, &mut out);
                    pushed.extend_from_slice(piece);
                    assert!(pushed.len() - out.len() <= LONGEST);
                }
                out.extend(r.finish());
                assert!(out == pushed, "{pattern}");
            }
        }
    }
}
