//! Authorization: nodes and impersonation.

use apiserver::as_identity;
use auth::User;
use bytes::Bytes;
use http::{Method, Request};
use serde_json::{Value, json};
use testkit::Cluster;

pub async fn as_user(
    c: &Cluster,
    user: &User,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: Value,
) -> (u16, Value) {
    let mut r = Request::builder().method(method).uri(path).header("content-type", "application/json");
    for (k, v) in headers {
        r = r.header(*k, v.as_bytes());
    }
    let bytes = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let response = c.server.handle(as_identity(r.body(bytes).unwrap(), user.clone())).await;
    let code = response.status().as_u16();
    if code == 200 && path.contains("watch=") {
        return (code, Value::Null);
    }
    (code, serde_json::from_slice(&response.into_body().collect().await.unwrap()).unwrap_or_default())
}

pub async fn made(c: &Cluster, path: &str, body: Value) {
    let a = c.call("POST", path, body).await;
    assert_eq!(a.code, 201, "{path}: {}", a.body);
}

async fn cluster_with_a_pod() -> Cluster {
    let c = Cluster::start(1).await;
    let ns = "/api/v1/namespaces/default";
    for name in ["env", "from", "mounted", "projected", "pull", "other"] {
        made(&c, &format!("{ns}/secrets"), json!({"metadata": {"name": name}})).await;
    }
    for name in ["config", "other"] {
        made(&c, &format!("{ns}/configmaps"), json!({"metadata": {"name": name}})).await;
    }
    let container = json!({"name": "c", "image": "i",
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "env", "key": "k"}}}],
        "envFrom": [{"secretRef": {"name": "from"}}, {"configMapRef": {"name": "config"}}]});
    let volumes = json!([{"name": "a", "secret": {"secretName": "mounted"}},
        {"name": "b", "projected": {"sources": [{"secret": {"name": "projected"}}]}},
        {"name": "c", "persistentVolumeClaim": {"claimName": "claim"}}]);
    let spec = json!({"nodeName": "one", "containers": [container], "volumes": volumes,
        "imagePullSecrets": [{"name": "pull"}]});
    made(&c, &format!("{ns}/pods"), json!({"metadata": {"name": "p"}, "spec": spec})).await;
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        "volumeName": "volume"});
    made(&c, &format!("{ns}/persistentvolumeclaims"), json!({"metadata": {"name": "claim"}, "spec": claim})).await;
    for name in ["volume", "other"] {
        let volume =
            json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}});
        made(&c, "/api/v1/persistentvolumes", json!({"metadata": {"name": name}, "spec": volume})).await;
    }
    c
}

/// Clauses: K10.node-authorizer
#[tokio::test]
async fn a_node_reads_what_its_pods_use() {
    let c = cluster_with_a_pod().await;
    let node = |name: &str| User::new(format!("system:node:{name}"), &[auth::user::GROUP_NODES]);
    let (one, two) = (node("one"), node("two"));
    let ns = "/api/v1/namespaces/default";
    let get = async |user: &User, path: &str| as_user(&c, user, Method::GET, path, &[], Value::Null).await;
    for path in
        ["secrets/env", "secrets/from", "secrets/mounted", "secrets/projected", "secrets/pull", "configmaps/config"]
    {
        assert_eq!(get(&one, &format!("{ns}/{path}")).await.0, 200, "{path}");
        let (code, body) = get(&two, &format!("{ns}/{path}")).await;
        assert_eq!(code, 403, "{path}");
        let message = body["message"].as_str().unwrap();
        assert!(message.ends_with("no relationship found between node 'two' and this object"), "{message}");
    }
    for path in ["secrets/other", "configmaps/other", "secrets", "configmaps", "secrets/none"] {
        assert_eq!(get(&one, &format!("{ns}/{path}")).await.0, 403, "{path}");
    }
    // One is watched by its name; nothing is written.
    let named = format!("{ns}/secrets?watch=1&fieldSelector=metadata.name%3D");
    assert_eq!(get(&one, &format!("{named}env")).await.0, 200);
    assert_eq!(get(&one, &format!("{named}other")).await.0, 403);
    let put = as_user(&c, &one, Method::DELETE, &format!("{ns}/secrets/env"), &[], Value::Null).await;
    assert_eq!(put.0, 403);
    assert_eq!(get(&one, &format!("{ns}/persistentvolumeclaims/claim")).await.0, 200);
    assert_eq!(get(&two, &format!("{ns}/persistentvolumeclaims/claim")).await.0, 403);
    assert_eq!(get(&one, "/api/v1/persistentvolumes/volume").await.0, 200);
    assert_eq!(get(&one, "/api/v1/persistentvolumes/other").await.0, 403);
    // Tokens are made for the accounts of its pods.
    let token = format!("{ns}/serviceaccounts/default/token");
    let ask =
        async |user: &User| as_user(&c, user, Method::POST, &token, &[], json!({"spec": {"audiences": []}})).await.0;
    assert_eq!((ask(&one).await, ask(&two).await), (201, 403));
    // The lease is its own.
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    assert_eq!(get(&one, &format!("{lease}/one")).await.0, 404);
    assert_eq!(get(&one, &format!("{lease}/two")).await.0, 403);
    // Of nodes it reads itself, of pods those it runs.
    for (path, code) in [
        ("/api/v1/nodes/one", 404),
        ("/api/v1/nodes/two", 403),
        ("/api/v1/nodes", 403),
        ("/api/v1/nodes?fieldSelector=metadata.name%3Done", 200),
        ("/api/v1/pods", 403),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Done", 200),
        ("/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Done", 200),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dtwo", 403),
        ("/api/v1/pods?fieldSelector=spec.nodeName!%3Done", 403),
        ("/api/v1/namespaces/default/pods/p", 200),
        ("/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Done", 200),
        ("/apis/resource.k8s.io/v1/resourceslices", 403),
    ] {
        assert_eq!(get(&one, path).await.0, code, "{path}");
    }
    assert_eq!(get(&two, "/api/v1/namespaces/default/pods/p").await.0, 403);
    let (_, body) = get(&one, "/api/v1/pods").await;
    let message = "can only list/watch pods with spec.nodeName field selector";
    assert!(body["message"].as_str().unwrap().ends_with(message), "{body}");
    // Everything else is as the role says, which does not exist here.
    assert_eq!(get(&one, "/api/v1/services").await.0, 403);
    let rules = json!([{"verbs": ["list"], "apiGroups": [""], "resources": ["services", "nodes", "secrets"]}]);
    let role = json!({"metadata": {"name": "system:node"}, "rules": rules});
    made(&c, "/apis/rbac.authorization.k8s.io/v1/clusterroles", role).await;
    c.rbac.load(&c.server.registry.store);
    assert_eq!(get(&one, "/api/v1/services").await.0, 200);
    assert_eq!(get(&one, "/api/v1/nodes").await.0, 403, "the role does not open what has a relation");
    assert_eq!(get(&one, &format!("{ns}/secrets")).await.0, 403);
    assert_eq!(get(&User::new("system:node:one", &[]), "/api/v1/nodes").await.0, 403, "a name alone is no node");
}

/// Clauses: K10.impersonation
#[tokio::test]
async fn impersonation_needs_permission_per_part() {
    let c = Cluster::start(1).await;
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let admin = User::new("admin", &[auth::user::GROUP_MASTERS]);
    let headers = [
        ("impersonate-user", "jane"),
        ("impersonate-group", "system:masters"),
        ("impersonate-uid", "u-1"),
        ("impersonate-extra-acme.com%2Fscopes", "view"),
        ("impersonate-extra-acme.com%2Fscopes", "edit"),
    ];
    let ask =
        async |user: &User, headers: &[(&str, &str)]| as_user(&c, user, Method::POST, path, headers, json!({})).await;
    let (code, body) = ask(&admin, &headers).await;
    assert_eq!(code, 201, "{body}");
    let info = &body["status"]["userInfo"];
    assert_eq!((&info["username"], &info["uid"]), (&json!("jane"), &json!("u-1")));
    assert_eq!(info["extra"], json!({"acme.com/scopes": ["view", "edit"]}));
    // A name in any language is that name: without it the request would be the admin's own.
    let (code, body) = ask(&admin, &[("impersonate-user", "jörg"), headers[1], ("impersonate-group", "grün")]).await;
    let info = &body["status"]["userInfo"];
    assert_eq!((code, &info["username"], &info["groups"][1]), (201, &json!("jörg"), &json!("grün")), "{body}");
    let (code, body) = ask(&admin, &headers[1..3]).await;
    let why = "requested &user.DefaultInfo{Name:\"\", UID:\"u-1\", Groups:[]string{\"system:masters\"}, Extra:map[string][]string(nil)} without impersonating a user name";
    assert_eq!((code, body["message"].as_str().unwrap()), (400, why));

    let rules = json!([{"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users", "groups"]},
        {"verbs": ["impersonate"], "apiGroups": ["authentication.k8s.io"], "resources": ["userextras/acme.com/scopes"],
            "resourceNames": ["view"]}]);
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    made(&c, &format!("{rbac}/clusterroles"), json!({"metadata": {"name": "r"}, "rules": rules})).await;
    let subject = json!({"kind": "User", "name": "bob", "apiGroup": "rbac.authorization.k8s.io"});
    let to = json!({"kind": "ClusterRole", "name": "r", "apiGroup": "rbac.authorization.k8s.io"});
    let binding = json!({"metadata": {"name": "b"}, "roleRef": to, "subjects": [subject]});
    made(&c, &format!("{rbac}/clusterrolebindings"), binding).await;
    c.rbac.load(&c.server.registry.store);
    let bob = User::new("bob", &[]);
    let view = [headers[0], headers[1], headers[3]];
    assert_eq!(ask(&bob, &view).await.0, 201);
    let (code, body) = ask(&bob, &headers[..3]).await;
    assert_eq!(code, 403);
    assert!(body["message"].as_str().unwrap().contains("cannot impersonate resource \"uids\""), "{body}");
    assert_eq!(ask(&bob, &[headers[0], headers[1], headers[4]]).await.0, 403, "another scope");
}

/// Acting for others in some requests and not in all (KEP-5284). Clauses: K10.impersonation
#[tokio::test]
async fn constrained_impersonation_needs_permission_per_request() {
    let c = Cluster::start(1).await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let group = "authentication.k8s.io";
    let rules = json!([
        {"verbs": ["impersonate:user-info"], "apiGroups": [group], "resources": ["users"], "resourceNames": ["jane"]},
        {"verbs": ["impersonate:user-info"], "apiGroups": [group], "resources": ["groups"], "resourceNames": ["dev", "system:masters"]},
        {"verbs": ["impersonate:serviceaccount"], "apiGroups": [group], "resources": ["serviceaccounts"], "resourceNames": ["default"]},
        {"verbs": ["impersonate:associated-node"], "apiGroups": [group], "resources": ["nodes"]},
        {"verbs": ["impersonate-on:user-info:create", "impersonate-on:serviceaccount:create", "impersonate-on:associated-node:create"],
            "apiGroups": [group], "resources": ["selfsubjectreviews"]}]);
    made(&c, &format!("{rbac}/clusterroles"), json!({"metadata": {"name": "r"}, "rules": rules})).await;
    let to = json!({"kind": "ClusterRole", "name": "r", "apiGroup": "rbac.authorization.k8s.io"});
    let subjects = json!([{"kind": "User", "name": "bob", "apiGroup": "rbac.authorization.k8s.io"},
        {"kind": "ServiceAccount", "name": "agent", "namespace": "golden"}]);
    made(
        &c,
        &format!("{rbac}/clusterrolebindings"),
        json!({"metadata": {"name": "b"}, "roleRef": to, "subjects": subjects}),
    )
    .await;
    let rules = json!([{"verbs": ["create"], "apiGroups": [group], "resources": ["selfsubjectreviews"]}]);
    made(&c, &format!("{rbac}/clusterroles"), json!({"metadata": {"name": "basic"}, "rules": rules})).await;
    let basic = json!({"kind": "ClusterRole", "name": "basic", "apiGroup": "rbac.authorization.k8s.io"});
    let all = json!([{"kind": "Group", "name": "system:authenticated", "apiGroup": "rbac.authorization.k8s.io"}]);
    let binding = json!({"metadata": {"name": "a"}, "roleRef": basic, "subjects": all});
    made(&c, &format!("{rbac}/clusterrolebindings"), binding).await;
    c.rbac.load(&c.server.registry.store);
    let bob = User::new("bob", &[]);
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let ask = async |user: &User, headers: &[(&str, &str)]| {
        let (code, body) = as_user(&c, user, Method::POST, path, headers, json!({})).await;
        let info = &body["status"]["userInfo"];
        let groups = info["groups"].as_array().cloned().unwrap_or_default();
        let groups: Vec<String> = groups.iter().map(|g| g.as_str().unwrap().to_owned()).collect();
        (code, info["username"].as_str().unwrap_or_default().to_owned(), groups.join(","), body["message"].clone())
    };
    let jane = ("impersonate-user", "jane");
    let (code, name, groups, why) = ask(&bob, &[jane, ("impersonate-group", "dev")]).await;
    assert_eq!((code, &*name, &*groups), (201, "jane", "dev,system:authenticated"), "{why}");
    for (headers, why) in [
        (
            vec![("impersonate-user", "joe")],
            "users.authentication.k8s.io \"joe\" is forbidden: User \"bob\" cannot impersonate:user-info resource \"users\"",
        ),
        (vec![jane, ("impersonate-group", "system:masters")], "impersonating the system:masters group is not allowed"),
        (
            vec![jane, ("impersonate-uid", "1")],
            "cannot impersonate:user-info resource \"uids\" in API group \"authentication.k8s.io\"",
        ),
        (vec![jane, ("impersonate-extra-scopes", "1")], "must be a domain-prefixed path"),
        (
            vec![("impersonate-user", "system:node:n")],
            "cannot impersonate-on:arbitrary-node:create resource \"selfsubjectreviews\"",
        ),
    ] {
        let (code, .., message) = ask(&bob, &headers).await;
        assert!(code == 403 && message.as_str().unwrap().contains(why), "{message}");
    }
    let account = ("impersonate-user", "system:serviceaccount:golden:default");
    let (code, _, groups, _) = ask(&bob, &[account]).await;
    assert_eq!((code, &*groups), (201, "system:serviceaccounts,system:serviceaccounts:golden,system:authenticated"));
    // What may be done so is said as well.
    let (code, body) = as_user(&c, &bob, Method::GET, "/api/v1/nodes", &[jane], Value::Null).await;
    let why = body["message"].as_str().unwrap();
    assert!(code == 403 && why.contains("cannot impersonate-on:user-info:list resource \"nodes\""), "{why}");
    // The agent of a node is whoever has a pod there.
    let mut agent = User::new("system:serviceaccount:golden:agent", &[]);
    agent.extra.insert("authentication.kubernetes.io/node-name".into(), vec!["n".into()]);
    let (code, name, groups, why) = ask(&agent, &[("impersonate-user", "system:node:n")]).await;
    assert_eq!((code, &*name, &*groups), (201, "system:node:n", "system:nodes,system:authenticated"), "{why}");
    assert_eq!(ask(&agent, &[("impersonate-user", "system:node:m")]).await.0, 403);
}

/// Clauses: K10.selectors
#[tokio::test]
async fn access_reviews_support_selectors() {
    let c = Cluster::start(1).await;
    let review = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let ask = async |more: Value| {
        let mut attributes = json!({"verb": "list", "resource": "pods"});
        for (k, v) in more.as_object().unwrap() {
            attributes[k] = v.clone();
        }
        let spec = json!({"user": "system:node:one", "groups": ["system:nodes"], "resourceAttributes": attributes});
        c.call("POST", review, json!({"spec": spec})).await
    };
    let allowed = async |more: Value| ask(more).await.body["status"]["allowed"].clone();
    let requirement = |operator: &str, values: &[&str]| json!({"fieldSelector": {"requirements": [{"key": "spec.nodeName", "operator": operator, "values": values}]}});
    assert_eq!(allowed(json!({})).await, false);
    let named = json!({"metadata": {"name": "x"}, "spec": {"user": "u", "resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let a = c.call("POST", review, named).await;
    let why = a.body["message"].as_str().unwrap();
    assert!(a.code == 422 && why.contains("metadata: Invalid value: {\"name\":\"x\"}: must be empty"), "{why}");
    assert_eq!(allowed(json!({"fieldSelector": {"rawSelector": "spec.nodeName=one"}})).await, true);
    assert_eq!(allowed(json!({"fieldSelector": {"rawSelector": "spec.nodeName=two"}})).await, false);
    assert_eq!(allowed(requirement("In", &["one"])).await, true);
    assert_eq!(allowed(requirement("NotIn", &["one"])).await, false);
    let a = ask(requirement("In", &["one", "two"])).await;
    assert_eq!(a.body["status"]["allowed"], false);
    assert_eq!(a.body["status"]["evaluationError"], "spec.resourceAttributes.fieldSelector ignored due to parse error");
    // Questions that are none.
    let a = ask(requirement("In", &[])).await;
    let cause = &a.body["details"]["causes"][0];
    let field = "spec.resourceAttributes.fieldSelector.requirements[0].values";
    assert_eq!((a.code, &cause["field"]), (422, &json!(field)));
    let both = json!({"labelSelector": {"rawSelector": "a=b", "requirements": [{"key": "a", "operator": "Exists"}]}});
    assert_eq!(ask(both).await.code, 422);
    let nobody = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    assert_eq!(c.call("POST", review, nobody).await.code, 422);
    // The rules of a node are not all that it may do.
    let node = User::new("system:node:one", &[auth::user::GROUP_NODES]);
    let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let roles = json!({"metadata": {"name": "ask"}, "rules": [
        {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectrulesreviews"]}]});
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    made(&c, &format!("{rbac}/clusterroles"), roles).await;
    let group = json!([{"kind": "Group", "name": "system:authenticated", "apiGroup": "rbac.authorization.k8s.io"}]);
    let to = json!({"kind": "ClusterRole", "name": "ask", "apiGroup": "rbac.authorization.k8s.io"});
    made(
        &c,
        &format!("{rbac}/clusterrolebindings"),
        json!({"metadata": {"name": "ask"}, "roleRef": to, "subjects": group}),
    )
    .await;
    c.rbac.load(&c.server.registry.store);
    let rules = async |user: &User| {
        let body = json!({"spec": {"namespace": "default"}});
        as_user(&c, user, Method::POST, path, &[], body).await.1["status"].clone()
    };
    let of_node = rules(&node).await;
    assert_eq!((&of_node["incomplete"], of_node["resourceRules"].as_array().unwrap().len()), (&json!(true), 1));
    let of_jane = rules(&User::new("jane", &[])).await;
    assert_eq!((&of_jane["incomplete"], &of_jane["evaluationError"]), (&json!(false), &Value::Null));
}

/// What changes is all that is read again: see `auth::rbac`.
#[tokio::test]
async fn changes_of_roles_and_bindings_apply_at_once() {
    let c = Cluster::start(1).await;
    let following = tokio::spawn(c.rbac.clone().run(c.server.registry.store.clone()));
    let jane = User::new("jane", &[]);
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let (roles, bindings) =
        (format!("{rbac}/namespaces/default/roles"), format!("{rbac}/namespaces/default/rolebindings"));
    let secrets = "/api/v1/namespaces/default/secrets";
    let until = async |verb: Method, code: u16| {
        while as_user(&c, &jane, verb.clone(), secrets, &[], json!({"metadata": {"generateName": "s"}})).await.0 != code
        {
            tokio::task::yield_now().await;
        }
    };
    let rules = |verb: &str| json!([{"verbs": [verb], "apiGroups": [""], "resources": ["secrets"]}]);
    made(&c, &roles, json!({"metadata": {"name": "r"}, "rules": rules("list")})).await;
    let binding = |user: &str| {
        json!({"metadata": {"name": "b"}, "roleRef": {"kind": "Role", "name": "r", "apiGroup": "rbac.authorization.k8s.io"},
            "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]})
    };
    made(&c, &bindings, binding("jane")).await;
    until(Method::GET, 200).await;
    let a = c.call("PUT", &format!("{roles}/r"), json!({"metadata": {"name": "r"}, "rules": rules("create")})).await;
    assert_eq!(a.code, 200);
    until(Method::GET, 403).await;
    until(Method::POST, 201).await;
    assert_eq!(c.call("PUT", &format!("{bindings}/b"), binding("joe")).await.code, 200);
    until(Method::POST, 403).await;
    assert_eq!(c.call("PUT", &format!("{bindings}/b"), binding("jane")).await.code, 200);
    until(Method::POST, 201).await;
    assert_eq!(c.call("DELETE", &format!("{roles}/r"), Value::Null).await.code, 200);
    until(Method::POST, 403).await;
    made(&c, &roles, json!({"metadata": {"name": "r"}, "rules": rules("create")})).await;
    until(Method::POST, 201).await;
    assert_eq!(c.call("DELETE", &format!("{bindings}/b"), Value::Null).await.code, 200);
    until(Method::POST, 403).await;
    following.abort();
}

#[tokio::test]
async fn parts_of_the_status_of_a_resource_claim_take_permissions_of_their_own() {
    let c = Cluster::start(1).await;
    let (rbac, claims) =
        ("/apis/rbac.authorization.k8s.io/v1", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims");
    let device_class = json!({"metadata": {"name": "gpu"}, "spec": {}});
    made(&c, "/apis/resource.k8s.io/v1/deviceclasses", device_class).await;
    let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu"}});
    made(&c, claims, json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}})).await;
    let may = async |user: &str, rules: Value| {
        let role = json!({"metadata": {"name": user}, "rules": rules});
        made(&c, &format!("{rbac}/clusterroles"), role).await;
        let subject = json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user});
        let role = json!({"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": user});
        let binding = json!({"metadata": {"name": user}, "roleRef": role, "subjects": [subject]});
        made(&c, &format!("{rbac}/clusterrolebindings"), binding).await;
    };
    let group = json!(["resource.k8s.io"]);
    let status = json!({"verbs": ["update"], "apiGroups": group, "resources": ["resourceclaims/status"]});
    let with = |rule: Value| json!([status, rule]);
    may("plain", json!([status])).await;
    may("binder", with(json!({"verbs": ["update"], "apiGroups": group, "resources": ["resourceclaims/binding"]})))
        .await;
    let driver = |verb: &str, names: &[&str]| {
        with(
            json!({"verbs": [verb], "apiGroups": group, "resources": ["resourceclaims/driver"], "resourceNames": names}),
        )
    };
    may("any", driver("arbitrary-node:update", &["d.com"])).await;
    may("other", driver("arbitrary-node:update", &["e.com"])).await;
    let account = "system:serviceaccount:default:agent";
    may(account, driver("associated-node:update", &["d.com"])).await;
    c.rbac.load(&c.server.registry.store);
    let write = async |user: &User, change: &dyn Fn(&mut Value)| {
        let mut claim = c.call("GET", &format!("{claims}/c"), Value::Null).await.body;
        change(&mut claim["status"]);
        let (code, body) = as_user(&c, user, Method::PUT, &format!("{claims}/c/status"), &[], claim).await;
        (code, body["message"].as_str().unwrap_or_default().to_owned())
    };
    let user = |name: &str| User::new(name, &[]);
    let allocate = |status: &mut Value| {
        let result = json!({"request": "r", "driver": "d.com", "pool": "p", "device": "one"});
        let here = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]);
        status["allocation"] = json!({"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": here}});
    };
    let (code, why) = write(&user("plain"), &allocate).await;
    let needs = "status.allocation: Forbidden: changing status.allocation or status.reservedFor requires \
                 resource=\"resourceclaims/binding\", verb=\"update\" permission";
    assert!(code == 422 && why.contains(needs), "{code} {why}");
    let mut made_claim = c.call("GET", &format!("{claims}/c"), Value::Null).await.body;
    made_claim["metadata"]["finalizers"] = json!(["resource.kubernetes.io/delete-protection"]);
    assert_eq!(c.call("PUT", &format!("{claims}/c"), made_claim).await.code, 200);
    assert_eq!(write(&user("binder"), &allocate).await, (200, String::new()));
    let report = |text: &'static str| {
        move |status: &mut Value| {
            status["devices"] = json!([{"driver": "d.com", "pool": "p", "device": "one", "data": {"text": text}}]);
        }
    };
    let agent = |node: &str| {
        let mut agent = User::new(account, &[]);
        agent.extra.insert("authentication.kubernetes.io/node-name".into(), vec![node.into()]);
        agent
    };
    for (user, verbs) in [
        (user("binder"), "[arbitrary-node:update]"),
        (user("other"), "[arbitrary-node:update]"),
        (agent("m"), "[arbitrary-node:update]"),
    ] {
        let (code, why) = write(&user, &report("no")).await;
        let needs = format!(
            "status.devices: Forbidden: changing status.devices requires resource=\"resourceclaims/driver\", verb={verbs:?}"
        );
        assert!(code == 422 && why.contains(&needs), "{code} {why}");
    }
    assert_eq!(write(&user("any"), &report("a")).await, (200, String::new()));
    assert_eq!(write(&agent("n"), &report("b")).await, (200, String::new()));
    // What is not changed needs nothing; reports go with the devices.
    assert_eq!(write(&user("plain"), &|_| {}).await, (200, String::new()));
    let (code, why) =
        write(&user("binder"), &|status| drop(status.as_object_mut().unwrap().remove("allocation"))).await;
    assert_eq!((code, &*why), (200, ""));
    let status = &c.call("GET", &format!("{claims}/c"), Value::Null).await.body["status"];
    assert!(status["devices"].is_null(), "{status}");
}
