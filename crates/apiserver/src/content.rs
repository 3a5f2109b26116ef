//! Content negotiation, decoding of request bodies, and encoding of responses.

use crate::order::{self, schema_of};
use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE};
use meta::{Status, Value};

/// Maximum request body (3 MB), upstream's default.
pub const MAX_BODY: usize = 3 * 1024 * 1024;

/// Maximum nesting of YAML and CBOR. Deeper JSON is decoded on a thread with its own stack, and rejected. Leaves room
/// for managed fields: an object too deep without them is rejected on writes.
const DEEP: usize = meta::depth::MANAGED_FIELDS;
/// Stack bytes per nesting level, conservatively.
const STACK_PER_LEVEL: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    Json,
    Yaml,
    Protobuf,
    /// Only if the server enables it.
    Cbor,
}

/// The requested representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    Object,
    Table,
    PartialMetadata,
    PartialMetadataList,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    pub encoding: Encoding,
    pub shape: Shape,
    /// The version of the representation, unless it is the object itself.
    pub meta: &'static str,
    pub pretty: bool,
}

/// The representations that a resource supports.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    pub cbor: bool,
    /// Whether the object has a protobuf encoding.
    pub messages: bool,
    pub tables: bool,
    /// Whether there is partial metadata.
    pub metadata: bool,
}

pub const META_V1: &str = "meta.k8s.io/v1";
const META_V1BETA1: &str = "meta.k8s.io/v1beta1";

impl Offer {
    /// A table has no protobuf encoding; partial metadata always has.
    pub fn has(&self, encoding: Encoding, shape: Shape) -> bool {
        match shape {
            Shape::Object => encoding != Encoding::Protobuf || self.messages,
            Shape::Table => self.tables && encoding != Encoding::Protobuf,
            Shape::PartialMetadata | Shape::PartialMetadataList => self.metadata,
        }
    }
}

impl Negotiated {
    /// Negotiates a response where every representation is supported. Errors with 406. `cbor`: whether CBOR is
    /// enabled.
    pub fn negotiate(headers: &HeaderMap, cbor: bool) -> Result<Self, Status> {
        Self::negotiate_offer(headers, &Offer { cbor, messages: true, tables: true, metadata: true })
    }

    /// The first supported media type, by weight.
    pub fn negotiate_offer(headers: &HeaderMap, offer: &Offer) -> Result<Self, Status> {
        let accept = headers.get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("*/*");
        let agent = headers.get(http::header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
        // Pretty-print for browsers and curl.
        let pretty = ["curl", "Wget", "Mozilla/5.0"].iter().any(|a| agent.starts_with(a));
        let mut clauses: Vec<Clause> = accept.split(',').map(Clause::read).collect();
        clauses.sort_by(|a, b| b.weight.total_cmp(&a.weight).then(a.vague().cmp(&b.vague())));
        let found = clauses.iter().find_map(|c| c.negotiated(offer));
        found.map(|w| Self { pretty: pretty || w.pretty, ..w }).ok_or_else(|| {
            let list = documents(offer.cbor).join(", ");
            Status::not_acceptable(format!("only the following media types are accepted: {list}"))
        })
    }

    /// Whether the response is the object as compact JSON: the stored bytes plus resource version.
    pub fn is_plain(&self) -> bool {
        self.shape == Shape::Object && self.encoding == Encoding::Json && !self.pretty
    }

    pub fn json() -> Self {
        Self { encoding: Encoding::Json, shape: Shape::Object, meta: META_V1, pretty: false }
    }
}

/// The media types of the routes of built-in resources: those of collections have streams, too.
pub fn routed(cbor: bool, is_collection: bool) -> Vec<&'static str> {
    let mut all = documents(cbor).to_vec();
    if is_collection {
        all.extend(STREAMS);
    }
    all
}

/// The media types of watches.
pub const STREAMS: [&str; 2] = ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];

/// Errors if the client accepts none of these media types as its route (upstream's `go-restful`) sees them: by name,
/// without parameters.
pub fn check_route(headers: &HeaderMap, produced: &[&str]) -> Result<(), Status> {
    let accept = headers.get(ACCEPT).and_then(|v| v.to_str().ok()).filter(|a| !a.is_empty()).unwrap_or("*/*");
    let media = |clause: &str| clause.split(';').next().unwrap_or_default().trim().to_owned();
    if accept.split(',').map(media).any(|m| m == "*/*" || produced.contains(&&*m)) {
        return Ok(());
    }
    let list = produced.join(", ");
    let why = format!("406: Not Acceptable\n\nAvailable representations: {list}");
    Err(Status::not_acceptable(why).with_details(meta::status::Details::default()))
}

/// A media type in an `Accept` header.
struct Clause<'a> {
    media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
    weight: f32,
}

impl<'a> Clause<'a> {
    fn read(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let parameters: Vec<(&str, &str)> =
            parts.filter_map(|p| p.split_once('=')).map(|(k, v)| (k.trim(), v.trim())).collect();
        let weight = parameters.iter().find(|(k, _)| *k == "q").map_or(1.0, |(_, v)| v.parse().unwrap_or(0.0));
        Self { media, parameters, weight }
    }

    /// Sorts less specific types last.
    fn vague(&self) -> u8 {
        match self.media {
            "*/*" | "*" => 2,
            m if m.ends_with("/*") => 1,
            _ => 0,
        }
    }

    /// The requested representation, if supported.
    fn negotiated(&self, offer: &Offer) -> Option<Negotiated> {
        let encoding = match self.media {
            "*/*" | "*" | "application/*" | JSON | "" => Encoding::Json,
            "application/yaml" => Encoding::Yaml,
            PROTOBUF => Encoding::Protobuf,
            CBOR if offer.cbor => Encoding::Cbor,
            _ => return None,
        };
        let get = |k: &str| self.parameters.iter().find(|(n, _)| *n == k).map(|(_, v)| *v);
        if !matches!(get("stream"), None | Some("" | "watch")) || !matches!(get("sv"), None | Some("" | "v1")) {
            return None;
        }
        let (shape, meta) = match [get("as"), get("g"), get("v")] {
            [None, None, None] => (Shape::Object, META_V1),
            [Some(shape), Some("meta.k8s.io"), Some(version @ ("v1" | "v1beta1"))] => {
                let meta = if version == "v1" { META_V1 } else { META_V1BETA1 };
                match shape {
                    "Table" => (Shape::Table, meta),
                    "PartialObjectMetadata" => (Shape::PartialMetadata, meta),
                    "PartialObjectMetadataList" => (Shape::PartialMetadataList, meta),
                    _ => return None,
                }
            }
            _ => return None,
        };
        let negotiated = Negotiated { encoding, shape, meta, pretty: get("pretty") == Some("1") };
        offer.has(encoding, shape).then_some(negotiated)
    }
}

/// A decoded body of unknown kind.
pub struct DecodedBody {
    pub value: Value,
    /// Duplicate keys.
    pub duplicates: Vec<String>,
}

/// The media type of a body without parameters; JSON by default.
pub fn media_type(headers: &HeaderMap) -> &str {
    let text = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("application/json");
    let media = text.split(';').next().unwrap_or_default().trim();
    if media.is_empty() { "application/json" } else { media }
}

/// The media types of complete objects.
pub fn documents(cbor: bool) -> &'static [&'static str] {
    let all = &[JSON, "application/yaml", PROTOBUF, CBOR];
    if cbor { all } else { &all[..3] }
}

/// Maximum number of objects and arrays in a body: each takes two or three characters but hundreds of bytes in
/// memory.
const MOST_PARTS: usize = 200_000;

/// Decodes a body with an object. `cbor`: whether CBOR is enabled.
pub fn read(media: &str, body: &[u8], cbor: bool) -> Result<DecodedBody, Status> {
    match media {
        JSON | "*/*" => json(body),
        "application/yaml" => yaml(body),
        PROTOBUF => protobuf(body),
        CBOR if cbor => read_cbor(body),
        _ => Err(unsupported(documents(cbor))),
    }
}

/// Returns a decoded value, unless it has too many objects and arrays.
fn sent(body: &[u8], value: Value, duplicates: Vec<String>) -> Result<DecodedBody, Status> {
    // Fewer bytes cannot hold that many.
    if body.len() > MOST_PARTS && meta::depth::has_more_parts(&value, MOST_PARTS) {
        let why = format!("the body has more than {MOST_PARTS} objects and lists");
        return Err(Status::bad_request(why));
    }
    Ok(DecodedBody { value, duplicates })
}

/// Decodes a patch, or a partial object, from CBOR.
pub fn read_cbor(body: &[u8]) -> Result<DecodedBody, Status> {
    let value = codec::cbor::decode(body, DEEP)
        .map_err(|e| Status::bad_request(format!("unable to determine group/version/kind: {e}")))?;
    sent(body, value, Vec::new())
}

pub fn unsupported(supported: &[&str]) -> Status {
    let list = supported.join(", ");
    Status::unsupported_media_type(format!(
        "the body of the request was in an unknown format - accepted media types include: {list}"
    ))
}

/// Decodes a JSON body with `apiVersion` and `kind`.
pub fn json(body: &[u8]) -> Result<DecodedBody, Status> {
    json_said(body, "couldn't get version/kind; json parse error: ")
}

/// Decodes any JSON. Errors have Go's message after this prefix.
pub fn json_said(body: &[u8], before: &str) -> Result<DecodedBody, Status> {
    let depth = depth(body);
    if depth > schema::decode::MAX_DEPTH {
        return Err(Status::bad_request("json: exceeded max depth"));
    }
    if depth > DEEP {
        return on_large_stack(depth, || plain_json(body, before));
    }
    plain_json(body, before)
}

/// The nesting depth of a text, or an upper bound if it is within [`DEEP`].
fn depth(body: &[u8]) -> usize {
    // Counting is ten times faster than tracking, and most documents have few brackets.
    let openings = memchr::memchr2_iter(b'{', b'[', body).count();
    if openings <= DEEP { openings } else { schema::depth(body) }
}

fn plain_json(body: &[u8], before: &str) -> Result<DecodedBody, Status> {
    let d = schema::decode(body).map_err(|e| Status::bad_request(format!("{before}{e}")))?;
    sent(body, d.value, d.duplicates)
}

/// Runs recursive work on deeply nested documents without exhausting the worker's stack. A result that is still too
/// deep is rejected.
fn on_large_stack(
    depth: usize,
    work: impl FnOnce() -> Result<DecodedBody, Status> + Send,
) -> Result<DecodedBody, Status> {
    let stack = 1024 * 1024 + depth * STACK_PER_LEVEL;
    std::thread::scope(|s| {
        let thread = std::thread::Builder::new().stack_size(stack).spawn_scoped(s, || {
            let sent = work()?;
            drop(sent);
            Err(Status::bad_request(format!("the document nests {depth} levels deep; no kind has more than {DEEP}")))
        });
        match thread.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(r)) => r,
            Ok(Err(_)) => Err(Status::internal("reading a deep document failed")),
            Err(e) => Err(Status::internal(e)),
        }
    })
}

pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
pub const CBOR: &str = "application/cbor";

fn protobuf(body: &[u8]) -> Result<DecodedBody, Status> {
    let object = codec::protobuf::decode(body, schema_of).map_err(|e| Status::bad_request(e.to_string()))?;
    // A protobuf message nests up to twice as deep as its JSON, and may contain JSON.
    let value = object.into_value();
    if meta::depth::exceeds(&value, DEEP) {
        return Err(Status::bad_request(codec::protobuf::Error::Depth.to_string()));
    }
    sent(body, value, Vec::new())
}

/// Decodes a YAML body.
pub fn yaml(body: &[u8]) -> Result<DecodedBody, Status> {
    // A document that is also JSON is decoded as JSON, ten times faster. Duplicate keys are reported in YAML's
    // format.
    if codec::json::is_json(body)
        && depth(body) <= DEEP
        && let Ok(d) = schema::decode(body)
        && d.duplicates.is_empty()
    {
        let mut value = d.value;
        round_floats(&mut value);
        return sent(body, value, d.duplicates);
    }
    let text = std::str::from_utf8(body).map_err(|e| Status::bad_request(format!("yaml: not UTF-8: {e}")))?;
    let (mut value, twice) = codec::yaml::parse_first(text, DEEP)
        .map_err(|e| Status::bad_request(format!("error converting YAML to JSON: {e}")))?;
    round_floats(&mut value);
    let duplicates =
        if twice.is_empty() { Vec::new() } else { vec![codec::yaml::Error::Duplicates(twice).to_string()] };
    sent(body, value, duplicates)
}

/// Makes integers of floats without a fraction, as Go does when it writes YAML as JSON: `2.0` is `2`.
pub fn round_floats(v: &mut Value) {
    /// The integers that floats represent exactly.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match v {
        Value::Number(n) if n.is_f64() => {
            if let Some(f) = n.as_f64().filter(|f| f.fract() == 0.0 && f.abs() <= EXACT) {
                *v = (f as i64).into();
            }
        }
        Value::Array(a) => a.iter_mut().for_each(round_floats),
        Value::Object(m) => m.values_mut().for_each(round_floats),
        _ => {}
    }
}

const JSON: &str = "application/json";

/// Encodes a value as protobuf; none if its kind has no messages (custom resources).
pub fn to_protobuf(v: &Value) -> Option<Vec<u8>> {
    Some(codec::protobuf::envelope(v["apiVersion"].as_str()?, v["kind"].as_str()?, &message(v)?))
}

/// Encodes the message without the envelope.
pub(crate) fn message(v: &Value) -> Option<Vec<u8>> {
    let (version, kind) = (v["apiVersion"].as_str()?, v["kind"].as_str()?);
    if matches!(version, META_V1 | META_V1BETA1) && kind.starts_with("PartialObjectMetadata") {
        return partial(v);
    }
    codec::protobuf::encode_message(v.as_object()?, schema_of(version, kind)?).ok()
}

/// Encodes partial metadata, or a list of it, which has no definition.
fn partial(v: &Value) -> Option<Vec<u8>> {
    use codec::protobuf::{encode_message, fields};
    let message = |v: &Value, name: &str| {
        let definition = format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}");
        encode_message(v.as_object()?, kinds::catalog().definitions.get(&definition)?).ok()
    };
    let metadata = |v: &Value| Some(fields(&[(1, &message(&v["metadata"], "ObjectMeta")?)]));
    let Some(items) = v["items"].as_array() else { return metadata(v) };
    let mut raw = fields(&[(1, &message(&v["metadata"], "ListMeta")?)]);
    for i in items {
        raw.extend_from_slice(&fields(&[(2, &metadata(i)?)]));
    }
    Some(raw)
}

/// Encodes a response.
pub fn write(negotiated: &Negotiated, v: &Value) -> (&'static str, Vec<u8>) {
    match negotiated.encoding {
        Encoding::Yaml => ("application/yaml", codec::yaml::to_string(v).into_bytes()),
        Encoding::Protobuf => {
            if let Some(bytes) = to_protobuf(v) {
                return (PROTOBUF, bytes);
            }
            (JSON, order::json(v, false))
        }
        Encoding::Cbor => (CBOR, codec::cbor::to_vec(v)),
        Encoding::Json => (JSON, order::json(v, negotiated.pretty)),
    }
}
