//! The operations of every path, from the rows, for OpenAPI v2 and v3 ([`super::paths`]). Names and parameters are
//! those of upstream's `endpoints/installer.go`, and of `customresource` builders for custom resources.

use super::{META, place_of};
use kinds::{Kind, Subresource};
use meta::{GroupVersion, Gvk, Value};
use registry::Rows;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// The methods of a path with their operations.
pub(super) type Methods = BTreeMap<&'static str, Operation>;

/// A path or query parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Parameter {
    pub name: &'static str,
    pub ty: &'static str,
    pub text: &'static str,
    pub in_path: bool,
}

/// The content of a request or response.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    /// An object of a definition.
    Definition(String),
    Text,
}

#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub id: String,
    pub tag: String,
    pub text: String,
    /// `x-kubernetes-action`.
    pub action: Option<&'static str>,
    pub gvk: Option<Value>,
    pub parameters: Vec<Parameter>,
    /// The description of `{name}` mentions this kind.
    pub named: Option<String>,
    /// Whether the body is required.
    pub body: Option<(Content, bool)>,
    pub consumes: Vec<&'static str>,
    pub produces: Vec<&'static str>,
    pub answers: Vec<(u16, Content)>,
}

const fn query(name: &'static str, ty: &'static str, text: &'static str) -> Parameter {
    Parameter { name, ty, text, in_path: false }
}

const fn in_path(name: &'static str, text: &'static str) -> Parameter {
    Parameter { name, ty: "string", text, in_path: true }
}

const NAMESPACE: Parameter = in_path("namespace", "the namespace of the object");
const PATH: Parameter = in_path("path", "the path below the resource");
const PRETTY: Parameter = query("pretty", "string", "With 'true' the answer is written in lines, with indentation.");

const CONTINUE: Parameter =
    query("continue", "string", "Where an earlier list of a part ended: its `metadata.continue`.");
const FIELD_SELECTOR: Parameter = query("fieldSelector", "string", "Restricts the objects by their fields.");
const LABEL_SELECTOR: Parameter = query("labelSelector", "string", "Restricts the objects by their labels.");
const LIMIT: Parameter = query("limit", "integer", "At most so many objects; the answer says how to go on.");
const RESOURCE_VERSION: Parameter =
    query("resourceVersion", "string", "The version that is to be read, or watched from.");
const VERSION_MATCH: Parameter =
    query("resourceVersionMatch", "string", "How `resourceVersion` is meant: `Exact` or `NotOlderThan`.");
const SEND_INITIAL: Parameter =
    query("sendInitialEvents", "boolean", "A watch begins with the objects there are, then sends a bookmark.");
const TIMEOUT: Parameter = query("timeoutSeconds", "integer", "The longest time the call may take, in seconds.");
const BOOKMARKS: Parameter = query("allowWatchBookmarks", "boolean", "A watch may send events of the type BOOKMARK.");
const WATCH: Parameter = query("watch", "boolean", "Changes are sent as they happen, instead of a list.");

const DRY_RUN: Parameter = query("dryRun", "string", "With 'All' everything is done but the writing.");
const MANAGER: Parameter = query("fieldManager", "string", "The manager that owns the written fields.");
const VALIDATION: Parameter = query(
    "fieldValidation",
    "string",
    "What becomes of unknown and doubled fields: 'Ignore', 'Warn' (the default) or 'Strict'.",
);
const FORCE: Parameter = query("force", "boolean", "An apply takes fields from other managers instead of a conflict.");

const GRACE: Parameter = query("gracePeriodSeconds", "integer", "How long the object may take to end, in seconds.");
const IGNORE_READ: Parameter = query(
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "boolean",
    "An object that cannot be read is deleted without looking at it. What depends on it is not cleaned up.",
);
const ORPHAN: Parameter = query("orphanDependents", "boolean", "Instead of `propagationPolicy`; deprecated.");
const PROPAGATION: Parameter =
    query("propagationPolicy", "string", "What becomes of dependents: 'Orphan', 'Background' or 'Foreground'.");

const LIST: [Parameter; 10] = [
    BOOKMARKS,
    CONTINUE,
    FIELD_SELECTOR,
    LABEL_SELECTOR,
    LIMIT,
    RESOURCE_VERSION,
    VERSION_MATCH,
    SEND_INITIAL,
    TIMEOUT,
    WATCH,
];
const WRITE: [Parameter; 3] = [DRY_RUN, MANAGER, VALIDATION];
const DELETE: [Parameter; 5] = [DRY_RUN, GRACE, IGNORE_READ, ORPHAN, PROPAGATION];

const LOG: [Parameter; 9] = [
    query("container", "string", "The container; needed where there are several."),
    query("follow", "boolean", "The answer goes on as the container writes."),
    query("insecureSkipTLSVerifyBackend", "boolean", "The certificate of the node's agent is not checked."),
    query("limitBytes", "integer", "The answer ends after so many bytes."),
    query("previous", "boolean", "The log of the container before its last restart."),
    query("sinceSeconds", "integer", "Only what is not older than so many seconds."),
    query("stream", "string", "Only one stream: 'Stdout' or 'Stderr'."),
    query("tailLines", "integer", "Only so many lines, the last ones."),
    query("timestamps", "boolean", "Each line begins with its time."),
];

/// The parameters of a connect subresource.
fn of_connection(subresource: &str) -> Vec<Parameter> {
    let streams = || {
        vec![
            query("container", "string", "The container; the only one, if there is one."),
            query("stderr", "boolean", "The error stream is sent."),
            query("stdin", "boolean", "The input stream is taken."),
            query("stdout", "boolean", "The output stream is sent."),
            query("tty", "boolean", "The streams are those of a terminal."),
        ]
    };
    match subresource {
        "exec" => {
            let mut all = streams();
            all.insert(0, query("command", "string", "The program and its arguments; not a shell's line."));
            all
        }
        "attach" => streams(),
        "portforward" => vec![query("ports", "integer", "The ports that are forwarded.")],
        _ => vec![query("path", "string", "The path of the request to the proxied server.")],
    }
}

const STORED: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const WATCHED: [&str; 2] = ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];
const PATCHES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// What the operations of one resource have in common.
struct OperationContext<'a> {
    kind: &'a Kind,
    is_custom: bool,
    /// The name of the definition.
    definition: &'a str,
    root: String,
}

/// The paths of one version of a group.
pub(super) fn of_version(rows: &Rows, gv: &GroupVersion) -> BTreeMap<String, Methods> {
    let mut paths = BTreeMap::new();
    let root = format!("/{}", place_of(gv));
    add_document(&mut paths, format!("{root}/"), "get available resources", "getAPIResources", "APIResourceList");
    for r in rows.iter().filter(|r| r.kind.group_version() == *gv) {
        let context = OperationContext {
            kind: &r.kind,
            is_custom: r.strategy.is_custom(),
            definition: r.kind.schema.name.as_deref().unwrap_or_default(),
            root: root.clone(),
        };
        context.add(&mut paths);
    }
    paths
}

/// Discovery paths of groups and versions, by the path of their v3 document.
pub(super) fn of_discovery(rows: &Rows) -> BTreeMap<String, BTreeMap<String, Methods>> {
    let mut out: BTreeMap<String, BTreeMap<String, Methods>> = BTreeMap::new();
    let mut add = |path: &str, text: &str, id: &str, definition: &str| {
        add_document(out.entry(path.to_owned()).or_default(), format!("/{path}/"), text, id, definition);
    };
    add("api", "get available API versions", "getAPIVersions", "APIVersions");
    add("apis", "get available API versions", "getAPIVersions", "APIGroupList");
    let groups: BTreeSet<&str> = rows.iter().map(|r| &*r.kind.group).filter(|g| !g.is_empty()).collect();
    for g in groups {
        add(&format!("apis/{g}"), "get information of a group", "getAPIGroup", "APIGroup");
    }
    let mut add = |path: &str, text: &str, id: &str, tag: &str, content: Content| {
        let mut o = document(&format!("/{path}/"), text, id, content);
        (o.id, o.tag) = (id.to_owned(), tag.to_owned());
        o.consumes = if tag == "version" { vec!["application/json"] } else { Vec::new() };
        o.produces = vec!["application/json"];
        out.entry(path.to_owned()).or_default().insert(format!("/{path}/"), Methods::from([("get", o)]));
    };
    let version = Content::Definition("io.k8s.apimachinery.pkg.version.Info".into());
    add("version", "get the version this server is built from", "getCodeVersion", "version", version);
    let text = "get the OpenID Connect discovery document of the issuer of service account tokens";
    let id = "getServiceAccountIssuerOpenIDConfiguration";
    add(".well-known/openid-configuration", text, id, "WellKnown", Content::Text);
    let text = "get the public keys of the issuer of service account tokens";
    add("openid/v1/jwks", text, "getServiceAccountIssuerOpenIDKeyset", "openid", Content::Text);
    if let Some(o) = out.get_mut("openid/v1/jwks").and_then(|p| p.get_mut("/openid/v1/jwks/")?.get_mut("get")) {
        o.produces = vec!["application/jwk-set+json"];
    }
    out
}

fn add_document(paths: &mut BTreeMap<String, Methods>, path: String, text: &str, id: &str, definition: &str) {
    let o = document(&path, text, id, Content::Definition(format!("{META}{definition}")));
    paths.insert(path, Methods::from([("get", o)]));
}

fn document(path: &str, text: &str, id: &str, content: Content) -> Operation {
    let (id, tag) = named_by(id, path);
    Operation {
        id,
        tag,
        text: text.to_owned(),
        action: None,
        gvk: None,
        parameters: Vec::new(),
        named: None,
        body: None,
        consumes: STORED.to_vec(),
        produces: STORED.to_vec(),
        answers: vec![(200, content)],
    }
}

/// The ID of an operation, with the group and version after the verb, and its tag (upstream `GetOperationIDAndTags`).
fn named_by(operation: &str, path: &str) -> (String, String) {
    const VERBS: [&str; 10] =
        ["get", "read", "list", "create", "replace", "patch", "delete", "watch", "connect", "deletecollection"];
    let verb = VERBS.iter().take(9).find(|v| operation.starts_with(**v)).copied().unwrap_or_default();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version) = match parts[..] {
        ["api", ..] => ("core", parts.get(1)),
        ["apis", group, ..] => (group.strip_suffix(".k8s.io").unwrap_or(group), parts.get(2)),
        _ => ("", None),
    };
    let version = version.copied().unwrap_or_default();
    let id = [verb.to_owned(), word(group, true), word(version, true), word(&operation[verb.len()..], true)].concat();
    let tag = match (group, version) {
        ("", _) => word(parts[0], false),
        (g, "") => word(g, false),
        (g, v) => format!("{}_{}", word(g, false), word(v, false)),
    };
    (id, tag)
}

/// Converts to camel case: letters and digits, with a capital after any other character.
fn word(text: &str, capital: bool) -> String {
    let mut capital = capital;
    let mut out = String::new();
    for (i, c) in text.chars().enumerate() {
        if c.is_alphabetic() || c == '_' || (i > 0 && c.is_numeric()) {
            match std::mem::take(&mut capital) {
                true => out.extend(c.to_uppercase()),
                false => out.push(c),
            }
        } else {
            capital = true;
        }
    }
    out
}

/// Prefixes `a` or `an`.
fn article(noun: &str) -> String {
    let vowel = noun.starts_with(['A', 'E', 'I', 'O', 'U', 'a', 'e', 'i', 'o', 'u']);
    format!("{} {noun}", if vowel { "an" } else { "a" })
}

impl OperationContext<'_> {
    fn add(&self, paths: &mut BTreeMap<String, Methods>) {
        let (k, has) = (self.kind, |v: &str| self.kind.has_verb(v));
        let plural = &k.plural;
        let base = if k.namespaced { format!("/namespaces/{{namespace}}/{plural}") } else { format!("/{plural}") };
        let item = format!("{base}/{{name}}");
        let list = Content::Definition(self.list());
        let mut put = |path: &str, method: &'static str, o: Operation| {
            let path = format!("{}{path}", self.root);
            let (id, tag) = named_by(&o.id, &path);
            paths.entry(path).or_default().insert(method, Operation { id, tag, ..o });
        };
        let scope = if k.namespaced { "Namespaced" } else { "" };
        let id = |verb: &str, rest: &str| format!("{verb}{scope}{}{rest}", k.kind);
        let watch_text = "instead of this, use the parameter 'watch' with a list";
        let listing = |id: String| Operation { produces: self.listed(), ..self.read(id, "list", list.clone(), &LIST) };
        let watching = |id: String, action| {
            let event = Content::Definition(format!("{META}WatchEvent"));
            let text = format!("watch changes of {}; deprecated: {watch_text}", k.kind);
            Operation { produces: self.listed(), text, ..self.read(id, action, event, &LIST) }
        };
        let listed = format!("list or watch objects of kind {}", k.kind);
        if has("list") {
            put(&base, "get", Operation { text: listed.clone(), ..listing(id("list", "")) });
            if k.namespaced {
                let id = format!("list{}ForAllNamespaces", k.kind);
                put(&format!("/{plural}"), "get", Operation { text: listed, ..self.everywhere(listing(id)) });
            }
        }
        if has("watch") && !self.is_custom {
            put(&format!("/watch{base}"), "get", watching(id("watch", "List"), "watchlist"));
            if k.namespaced {
                let o = watching(format!("watch{}ListForAllNamespaces", k.kind), "watchlist");
                put(&format!("/watch/{plural}"), "get", self.everywhere(o));
            }
            if has("get") {
                put(&format!("/watch{item}"), "get", self.of_item(watching(id("watch", ""), "watch"), &k.kind));
            }
        }
        let own = Content::Definition(self.definition.to_owned());
        if has("create") {
            let text = format!("create {}", article(&k.kind));
            put(&base, "post", Operation { text, ..self.write(id("create", ""), "post", &own) });
        }
        if has("deletecollection") {
            let parameters: Vec<Parameter> = LIST
                .iter()
                .filter(|p| !matches!(p.name, "watch" | "allowWatchBookmarks"))
                .chain(&DELETE)
                .copied()
                .collect();
            let all = if self.is_custom { &LIST[..] } else { &parameters[..] };
            let o = self.read(id("deletecollection", ""), "deletecollection", status(), all);
            let body = (!self.is_custom).then(|| (delete_options(), false));
            put(&base, "delete", Operation { text: format!("delete collection of {}", k.kind), body, ..o });
        }
        if has("get") {
            let parameters: &[Parameter] = if self.is_custom { &[RESOURCE_VERSION] } else { &[] };
            let o = self.read(id("read", ""), "get", own.clone(), parameters);
            put(&item, "get", self.of_item(Operation { text: format!("read the specified {}", k.kind), ..o }, &k.kind));
        }
        if has("update") {
            let o = self.write(id("replace", ""), "put", &own);
            put(
                &item,
                "put",
                self.of_item(Operation { text: format!("replace the specified {}", k.kind), ..o }, &k.kind),
            );
        }
        if has("patch") {
            let text = format!("partially update the specified {}", k.kind);
            put(&item, "patch", self.of_item(Operation { text, ..self.patch(id("patch", ""), &own) }, &k.kind));
        }
        if has("delete") {
            let answer = if k.answers_deleted { own } else { status() };
            let o = self.read(id("delete", ""), "delete", answer.clone(), &DELETE);
            let o = Operation {
                text: format!("delete {}", article(&k.kind)),
                body: Some((delete_options(), false)),
                answers: vec![(200, answer.clone()), (202, answer)],
                ..o
            };
            put(&item, "delete", self.of_item(o, &k.kind));
        }
        for s in &k.subresources {
            self.add_subresource(s, &item, &id, &mut put);
        }
    }

    fn add_subresource(
        &self,
        s: &Subresource,
        item: &str,
        id: &dyn Fn(&str, &str) -> String,
        put: &mut dyn FnMut(&str, &'static str, Operation),
    ) {
        let k = self.kind;
        let gvk = s.speaks.clone().unwrap_or_else(|| k.gvk());
        let suffix = word(&s.name, true);
        let path = format!("{item}/{}", s.name);
        let finish = |o: Operation| {
            let gvk = json!({"group": gvk.group, "version": gvk.version, "kind": gvk.kind});
            Operation { gvk: Some(gvk), ..self.of_item(o, "") }
        };
        let named = |o: Operation| Operation { named: Some(gvk.kind.clone()), ..finish(o) };
        let has = |v: &str| s.verbs.iter().any(|x| &**x == v);
        if gvk.kind.ends_with("Options") {
            let proxy: &[&'static str] = &["delete", "get", "head", "options", "patch", "post", "put"];
            let streams: &[&'static str] = &["get", "post"];
            let is_proxy = &*s.name == "proxy";
            for method in if is_proxy { proxy } else { streams } {
                let connect = |with: &str| {
                    let name = id(&format!("connect{}", word(method, true)), &format!("{suffix}{with}"));
                    let mut o = self.read(name, "connect", Content::Text, &of_connection(&s.name));
                    o.parameters.retain(|p| p.name != PRETTY.name);
                    o.produces = vec!["*/*"];
                    o.text = format!("connect {} requests to {} of {}", method.to_uppercase(), s.name, k.kind);
                    named(o)
                };
                put(&path, method, connect(""));
                if is_proxy {
                    let mut o = connect("WithPath");
                    o.parameters.push(PATH);
                    put(&format!("{path}/{{path}}"), method, o);
                }
            }
            return;
        }
        let content = match self.definition_of(&gvk) {
            Some(name) => Content::Definition(name),
            None => return,
        };
        let part = format!("{} of the specified {}", s.name, k.kind);
        if has("get") {
            let mut o = self.read(id("read", &suffix), "get", content.clone(), &[]);
            if &*s.name == "log" {
                (o.answers, o.parameters) = (vec![(200, Content::Text)], [&o.parameters[..], &LOG[..]].concat());
                o.produces.insert(0, "text/plain");
            }
            put(&path, "get", named(Operation { text: format!("read {part}"), ..o }));
        }
        if has("update") {
            let o = self.write(id("replace", &suffix), "put", &content);
            put(&path, "put", named(Operation { text: format!("replace {part}"), ..o }));
        }
        if has("patch") {
            let o = self.patch(id("patch", &suffix), &content);
            put(&path, "patch", named(Operation { text: format!("partially update {part}"), ..o }));
        }
        if has("create") {
            let o = self.write(id("create", &suffix), "post", &content);
            put(&path, "post", named(Operation { text: format!("create {} of {}", s.name, article(&k.kind)), ..o }));
        }
    }

    fn list(&self) -> String {
        let package = self.definition.rsplit_once('.').map_or("", |(package, _)| package);
        format!("{package}.{}", self.kind.list_kind())
    }

    fn definition_of(&self, gvk: &Gvk) -> Option<String> {
        if *gvk == self.kind.gvk() {
            return Some(self.definition.to_owned());
        }
        kinds::catalog().schema_of(gvk)?.name.as_deref().map(str::to_owned)
    }

    fn listed(&self) -> Vec<&'static str> {
        if self.is_custom { STORED[..2].to_vec() } else { [&STORED[..], &WATCHED[..]].concat() }
    }

    /// An operation without a body.
    fn read(&self, id: String, action: &'static str, answer: Content, parameters: &[Parameter]) -> Operation {
        let mut all = vec![PRETTY];
        if self.kind.namespaced {
            all.push(NAMESPACE);
        }
        for p in parameters {
            if !all.contains(p) {
                all.push(*p);
            }
        }
        let k = self.kind;
        Operation {
            id,
            tag: String::new(),
            text: String::new(),
            action: Some(action),
            gvk: Some(json!({"group": &*k.group, "version": &*k.version, "kind": &*k.kind})),
            parameters: all,
            named: None,
            body: None,
            consumes: if self.is_custom { STORED[..2].to_vec() } else { vec!["*/*"] },
            produces: if self.is_custom { STORED[..2].to_vec() } else { STORED.to_vec() },
            answers: vec![(200, answer)],
        }
    }

    fn write(&self, id: String, action: &'static str, content: &Content) -> Operation {
        let codes: &[u16] = if action == "post" { &[200, 201, 202] } else { &[200, 201] };
        Operation {
            body: Some((content.clone(), true)),
            answers: codes.iter().map(|c| (*c, content.clone())).collect(),
            ..self.read(id, action, content.clone(), &WRITE)
        }
    }

    fn patch(&self, id: String, content: &Content) -> Operation {
        let mut o = self.write(id, "patch", content);
        o.body = Some((Content::Definition(format!("{META}Patch")), true));
        o.parameters.push(FORCE);
        // Custom resources do not support strategic merge patch.
        o.consumes = PATCHES.into_iter().filter(|p| !self.is_custom || !p.contains("strategic")).collect();
        if self.is_custom {
            o.answers.truncate(1);
        }
        o
    }

    fn everywhere(&self, mut o: Operation) -> Operation {
        o.parameters.retain(|p| p.name != NAMESPACE.name);
        o
    }

    fn of_item(&self, o: Operation, kind: &str) -> Operation {
        Operation { named: Some(kind.to_owned()), ..o }
    }
}

fn status() -> Content {
    Content::Definition(format!("{META}Status"))
}

fn delete_options() -> Content {
    Content::Definition(format!("{META}DeleteOptions"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_named_as_clients_are_generated() {
        for (operation, path, id, tag) in [
            ("listNamespacedPod", "/api/v1/namespaces/{namespace}/pods", "listCoreV1NamespacedPod", "core_v1"),
            ("deletecollectionNamespacedPod", "/api/v1/x", "deleteCoreV1CollectionNamespacedPod", "core_v1"),
            (
                "getAPIResources",
                "/apis/rbac.authorization.k8s.io/v1/",
                "getRbacAuthorizationV1APIResources",
                "rbacAuthorization_v1",
            ),
            ("getAPIGroup", "/apis/apps/", "getAppsAPIGroup", "apps"),
            ("getAPIVersions", "/apis/", "getAPIVersions", "apis"),
            ("getAPIVersions", "/api/", "getCoreAPIVersions", "core"),
            (
                "readNamespacedToy",
                "/apis/play.example.com/v1beta1/x",
                "readPlayExampleComV1beta1NamespacedToy",
                "playExampleCom_v1beta1",
            ),
        ] {
            assert_eq!(named_by(operation, path), (id.to_owned(), tag.to_owned()), "{operation} {path}");
        }
        assert_eq!((article("Ingress"), article("Pod")), ("an Ingress".into(), "a Pod".into()));
    }
}
