//! Selection of server, user and namespace by the rules of the documentation on kubeconfig files, one by one; and
//! authentication, proxies and timeouts.

use crate::handover::editor;
use crate::runner::Case;
use crate::story::{Story, text};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};

pub const TESTS: &[Case] = &[
    ("kubeconfig::files_are_merged", files_are_merged),
    ("kubeconfig::contexts_clusters_and_users_are_chosen", contexts_clusters_and_users_are_chosen),
    ("kubeconfig::certificates_and_tokens", certificates_and_tokens),
    ("kubeconfig::plugins_provide_credentials", plugins_provide_credentials),
    ("kubeconfig::connects_through_proxies", connects_through_proxies),
    ("kubeconfig::impersonates_users", impersonates_users),
    ("kubeconfig::requests_have_a_limit", requests_have_a_limit),
    ("kubeconfig::config_changes_the_file", config_changes_the_file),
    ("kubeconfig::applies_kuberc", applies_kuberc),
];

/// Returns a file in which all names begin with a letter.
fn named(letter: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: {letter}-context\nclusters:\n\
         - {{name: {letter}-cluster, cluster: {{server: 'https://{letter}:1'}}}}\n\
         contexts:\n- {{name: {letter}-context, context: {{cluster: {letter}-cluster, user: {user}, namespace: {letter}-ns}}}}\n\
         users:\n- {{name: {user}, user: {{token: of-{letter}}}}}\n"
    )
}

/// Runs a command with only `variables` in its environment.
fn alone(s: &Story, variables: &[(&str, &str)], args: &[&str]) -> Output {
    let mut c = s.bare(args);
    c.env_remove("KUBECONFIG");
    for v in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"] {
        c.env_remove(v);
    }
    c.envs(variables.iter().copied()).output().unwrap()
}

fn stderr(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

/// Rule 1: which files are read, and what is taken from each.
fn files_are_merged(s: &Story) {
    s.file("a", &named("a", "red-user"));
    s.file("b", &named("b", "red-user"));
    s.file("bad", "clusters: {{{\n");
    s.file(".kube/config", &named("home", "home-user"));
    let token = "jsonpath={range .users[*]}{.name}={.user.token} {end}";
    let clusters = "jsonpath={range .clusters[*]}{.name} {end}";
    for (rule, list, flags, form, expected) in [
        ("--kubeconfig is the only file", "a", &["--kubeconfig=b"][..], clusters, "b-cluster "),
        ("the last --kubeconfig counts", "a", &["--kubeconfig=a", "--kubeconfig=b"], clusters, "b-cluster "),
        ("the list is merged", "a:b", &[], clusters, "a-cluster b-cluster "),
        ("empty names are nothing", ":a::b:", &[], clusters, "a-cluster b-cluster "),
        ("missing files are skipped", "none:a:none-too", &[], clusters, "a-cluster "),
        ("the first current-context counts", "b:a", &[], "jsonpath={.current-context}", "b-context"),
        ("the first red-user counts, whole", "a:b", &["--raw"], token, "red-user=of-a "),
        ("the first red-user counts, the other way round", "b:a", &["--raw"], token, "red-user=of-b "),
        (
            "contexts of both files",
            "a:b",
            &["--minify", "--context=b-context"],
            "jsonpath={.contexts[0].context.namespace}",
            "b-ns",
        ),
        ("an unset list is ~/.kube/config", "", &[], clusters, "home-cluster "),
    ] {
        let line = [&["config", "view", "-o", form], flags].concat();
        let list: &[(&str, &str)] = if list.is_empty() { &[] } else { &[("KUBECONFIG", list)] };
        assert_eq!(text(&[rule], &alone(s, list, &line)), expected, "{rule}");
    }
    // Nothing of the second red-user is merged into the first, even without contradiction.
    s.file("c", "users:\n- {name: red-user, user: {as: somebody}}\n");
    let users = alone(s, &[("KUBECONFIG", "a:c")], &["config", "view", "--raw", "-o", "jsonpath={.users}"]);
    assert!(!text(&[], &users).contains("somebody"));
    let o = alone(s, &[("KUBECONFIG", "a:bad")], &["config", "view"]);
    assert_eq!(o.status.code(), Some(1));
    assert!(stderr(&o).starts_with("error: error loading config file \"bad\": yaml: "), "{}", stderr(&o));
    let o = alone(s, &[], &["get", "pods", "--kubeconfig=none"]);
    assert!(
        o.status.code() == Some(1) && stderr(&o).contains("stat none: no such file or directory"),
        "{}",
        stderr(&o)
    );
}

/// Returns a kubeconfig of the cluster with the given user, and the server's address.
fn own(s: &Story, user: &Value, cluster: &Value) -> (Value, String) {
    let raw = s.ok(&["config", "view", "--raw", "--flatten", "-o", "json"]);
    let all: Value = serde_json::from_str(&raw).unwrap();
    let mut c = all["clusters"][0]["cluster"].clone();
    c.as_object_mut().unwrap().extend(cluster.as_object().unwrap().clone());
    let server = c["server"].as_str().unwrap().to_owned();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "c", "cluster": c}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": s.ns}}],
        "users": [{"name": "u", "user": user}],
    });
    (config, server)
}

fn administrator(s: &Story) -> Value {
    let raw = s.ok(&["config", "view", "--raw", "--flatten", "-o", "json"]);
    serde_json::from_str::<Value>(&raw).unwrap()["users"][0]["user"].clone()
}

/// Rules 2 to 6: contexts, then clusters and users; the first that sets a value wins.
fn contexts_clusters_and_users_are_chosen(s: &Story) {
    let admin = administrator(s);
    let (mut config, server) = own(s, &admin, &json!({}));
    let list = |key: &str, name: &str, value: Value, config: &mut Value| {
        let (plural, singular) = (format!("{key}s"), key);
        config[&plural].as_array_mut().unwrap().push(json!({"name": name, singular: value}));
    };
    list("user", "nobody", json!({"token": "wrong"}), &mut config);
    list("user", "two", json!({"token": "t", "username": "a", "password": "b"}), &mut config);
    list("cluster", "gone", json!({"server": "https://127.0.0.1:1"}), &mut config);
    list("context", "other", json!({"cluster": "gone", "user": "nobody", "namespace": "elsewhere"}), &mut config);
    list("context", "clash", json!({"cluster": "c", "user": "two"}), &mut config);
    list("context", "empty", json!({}), &mut config);
    s.file("config", &config.to_string());
    s.ok(&["create", "configmap", "c"]);
    let run = |flags: &[&str]| {
        alone(
            s,
            &[("KUBECONFIG", "config")],
            &[&["get", "configmap", "c", "-o", "jsonpath={.metadata.namespace}"], flags].concat(),
        )
    };
    assert_eq!(text(&[], &run(&[])), s.ns, "the current context, with its namespace");
    for (flags, why) in [
        (&["--context=other"][..], "127.0.0.1:1 was refused"),
        (&["--cluster=gone"], "127.0.0.1:1 was refused"),
        (&["--server=https://127.0.0.1:2"], "127.0.0.1:2 was refused"),
        (&["--user=nobody"], "You must be logged in to the server"),
        (&["--token=wrong"], "You must be logged in to the server"),
        (&["--context=nope"], "Error in configuration: context was not found for specified context: nope"),
        (&["--cluster=nope"], "error: no server found for cluster \"nope\""),
        (&["--user=nope"], "error: auth info \"nope\" does not exist"),
        (
            &["--user=two"],
            "error: more than one authentication method found for two; found [token basicAuth], only one is allowed",
        ),
        (
            &["--context=clash"],
            "error: more than one authentication method found for two; found [token basicAuth], only one is allowed",
        ),
        (
            &["--token=x", "--username=u", "--password=p"],
            "more than one authentication method found for u; found [token basicAuth]",
        ),
        (&["--context=empty"], "localhost:8080 was refused"),
        (
            &["--client-certificate=none", "--client-key=none"],
            "* unable to read client-cert none for u due to open none: no such file or directory\n* unable to read client-key none for u",
        ),
        (
            &["--certificate-authority=none"],
            "error: unable to read certificate-authority none for c due to open none: no such file or directory",
        ),
        (&["-n", "elsewhere"], "(NotFound)"),
    ] {
        let o = run(flags);
        assert!(o.status.code() == Some(1) && stderr(&o).contains(why), "{flags:?}: {}", stderr(&o));
    }
    // A flag for one half and the file for the other.
    let o = run(&["--context=other", "--cluster=c", "--user=u", "-n", &s.ns]);
    assert_eq!(text(&[], &o), s.ns);
    let o = run(&["--context=other", "--user=u", "-n", &s.ns, "--server", &server, "--insecure-skip-tls-verify"]);
    assert_eq!(text(&[], &o), s.ns);
    s.file("ca", "x");
    let o = run(&["--insecure-skip-tls-verify", "--certificate-authority=ca"]);
    assert!(
        stderr(&o).contains("specifying a root certificates file with the insecure flag is not allowed"),
        "{}",
        stderr(&o)
    );
}

/// Clauses: K11.certificate-data K11.certificate-file K11.relative K11.authority K11.token-file K11.tls-server-name
fn certificates_and_tokens(s: &Story) {
    // A certificate of the cluster's CA for a user with a single permission.
    let key = rcgen::KeyPair::generate().unwrap();
    let mut names = rcgen::CertificateParams::new(Vec::new()).unwrap();
    names.distinguished_name.push(rcgen::DnType::CommonName, "carla");
    let csr = names.serialize_request(&key).unwrap().pem().unwrap();
    let request = base64(csr.as_bytes());
    let name = format!("{}-carla", s.ns);
    s.post("/apis/certificates.k8s.io/v1/certificatesigningrequests", json!({
        "metadata": {"name": name},
        "spec": {"request": request, "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]},
    }));
    s.ok(&["certificate", "approve", &name]);
    let path = format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}");
    let issued = s.until_at(&path, |c| c["status"]["certificate"].is_string());
    let data = issued["status"]["certificate"].as_str().unwrap().to_owned();
    let pem = s.ok(&["get", "csr", &name, "-o", "go-template={{.status.certificate | base64decode}}"]);
    s.ok(&["delete", "csr", &name]);
    let key = key.serialize_pem();
    let whoami = |config: &str, flags: &[&str]| {
        alone(s, &[("KUBECONFIG", config)], &[&["auth", "whoami", "-o", "json"], flags].concat())
    };
    let is =
        |o: &Output| serde_json::from_str::<Value>(&text(&[], o)).unwrap()["status"]["userInfo"]["username"].clone();
    let by_data = json!({"client-certificate-data": data, "client-key-data": base64(key.as_bytes())});
    s.file("data", &own(s, &by_data, &json!({})).0.to_string());
    assert_eq!(is(&whoami("data", &[])), "carla");

    // Paths in a file are relative to it, paths in flags to the working directory.
    let by_file = json!({"client-certificate": "carla.crt", "client-key": "keys/carla.key"});
    let (mut config, _) = own(s, &by_file, &json!({}));
    let authority = config["clusters"][0]["cluster"]["certificate-authority-data"].as_str().unwrap().to_owned();
    config["clusters"][0]["cluster"].as_object_mut().unwrap().remove("certificate-authority-data");
    config["clusters"][0]["cluster"]["certificate-authority"] = "ca.crt".into();
    s.file("deep/config", &config.to_string());
    s.file("deep/carla.crt", &pem);
    s.file("deep/keys/carla.key", &key);
    s.file("deep/ca.crt", &String::from_utf8(unbase64(&authority)).unwrap());
    assert_eq!(is(&whoami("deep/config", &[])), "carla");
    let (plain, _) = own(s, &json!({}), &json!({}));
    s.file("plain", &plain.to_string());
    assert_eq!(
        is(&whoami("plain", &["--client-certificate=deep/carla.crt", "--client-key=deep/keys/carla.key"])),
        "carla"
    );
    let o = whoami("deep/config", &["--tls-server-name=somebody.else"]);
    assert!(o.status.code() == Some(1) && stderr(&o).contains("certificate"), "{}", stderr(&o));
    // Another CA is not trusted.
    let stranger = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap();
    s.file("stranger.crt", &stranger.cert.pem());
    let o = whoami("data", &["--certificate-authority=stranger.crt"]);
    assert!(o.status.code() == Some(1) && stderr(&o).contains("certificate"), "{}", stderr(&o));

    s.ok(&["create", "serviceaccount", "robot"]);
    let token = s.ok(&["create", "token", "robot"]);
    s.file("deep/token", &token);
    s.file("deep/by-token", &own(s, &json!({"tokenFile": "token"}), &json!({})).0.to_string());
    let robot = format!("system:serviceaccount:{}:robot", s.ns);
    assert_eq!(is(&whoami("deep/by-token", &[])), json!(robot));
    assert_eq!(is(&whoami("plain", &["--token", token.trim()])), json!(robot));
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn unbase64(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).unwrap()
}

/// Clauses: K11.exec K11.exec-env K11.exec-cluster K11.exec-failures K11.exec-policy
fn plugins_provide_credentials(s: &Story) {
    s.ok(&["create", "serviceaccount", "robot"]);
    let token = s.ok(&["create", "token", "robot"]).trim().to_owned();
    let version = "client.authentication.k8s.io/v1";
    let answer = json!({"apiVersion": version, "kind": "ExecCredential", "status": {"token": token}}).to_string();
    s.file("answer", &answer);
    // The plugin finds its input in environment and arguments.
    editor(s, "cd \"$(dirname \"$0\")\"; echo \"$KUBERNETES_EXEC_INFO\" > told; echo \"$1 $WHO\" > given; cat answer");
    let exec = |more: Value| {
        let mut e = json!({"apiVersion": version, "command": "./editor", "args": ["one"], "interactiveMode": "Never",
            "env": [{"name": "WHO", "value": "me"}], "provideClusterInfo": true, "installHint": "get it there"});
        e.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        s.file("config", &own(s, &json!({"exec": e}), &json!({})).0.to_string());
        alone(s, &[("KUBECONFIG", "config")], &["auth", "whoami", "-o", "json"])
    };
    let o = exec(json!({}));
    let me: Value = serde_json::from_str(&text(&[], &o)).unwrap();
    assert_eq!(me["status"]["userInfo"]["username"], json!(format!("system:serviceaccount:{}:robot", s.ns)));
    let read = |name: &str| std::fs::read_to_string(s.dir.join(name)).unwrap();
    assert_eq!(read("given"), "one me\n");
    let told: Value = serde_json::from_str(&read("told")).unwrap();
    assert_eq!((&told["kind"], &told["apiVersion"]), (&json!("ExecCredential"), &json!(version)));
    assert_eq!(told["spec"]["interactive"], false);
    let cluster = &told["spec"]["cluster"];
    assert!(cluster["server"].as_str().unwrap().starts_with("https://"), "{told}");
    assert!(cluster["certificate-authority-data"].is_string(), "{told}");

    let getting = "getting credentials: ";
    for (more, answered, why) in [
        (json!({"command": "no-such-plugin"}), &*answer, "exec: executable no-such-plugin not found"),
        (json!({"command": "no-such-plugin"}), &answer, "get it there"),
        (
            json!({"interactiveMode": "Always"}),
            &answer,
            "exec plugin cannot support interactive mode: standard input is not a terminal",
        ),
        (
            json!({"interactiveMode": null}),
            &answer,
            "interactiveMode must be specified for u to use exec authentication plugin",
        ),
        (json!({"command": ""}), &answer, "command must be specified for u to use exec authentication plugin"),
        (json!({"apiVersion": "client.authentication.k8s.io/v1alpha1"}), &answer, "exec plugin: invalid apiVersion"),
        (
            json!({"apiVersion": format!("{version}beta1")}),
            &answer,
            "plugin returned version client.authentication.k8s.io/v1",
        ),
        (
            json!({}),
            "{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{}}",
            "exec plugin didn't return a token or cert/key pair",
        ),
        (json!({}), "hello", "decoding stdout: "),
    ] {
        s.file("answer", answered);
        let o = exec(more.clone());
        assert!(o.status.code() == Some(1) && stderr(&o).contains(why), "{more}: {}", stderr(&o));
    }
    s.file("answer", &answer);
    editor(s, "exit 3");
    assert!(stderr(&exec(json!({}))).contains("failed with exit code 3"));
    editor(s, "cat \"$(dirname \"$0\")/answer\"");
    text(&[], &exec(json!({})));
    // The user's preferences restrict which plugins may run.
    let policy = |p: &str| {
        s.file(".kube/kuberc", &format!("apiVersion: kubectl.config.k8s.io/v1beta1\nkind: Preference\n{p}\n"))
    };
    policy("credentialPluginPolicy: DenyAll");
    let o = exec(json!({}));
    assert!(
        stderr(&o).contains(getting) && stderr(&o).contains("not allowed: policy set to \"DenyAll\""),
        "{}",
        stderr(&o)
    );
    policy("credentialPluginPolicy: Allowlist\ncredentialPluginAllowlist: [{command: other}]");
    assert!(stderr(&exec(json!({}))).contains("is not permitted by the credential plugin allowlist"));
    policy(&format!(
        "credentialPluginPolicy: Allowlist\ncredentialPluginAllowlist: [{{command: {}}}]",
        s.dir.join("editor").display()
    ));
    text(&[], &exec(json!({})));
}

/// A proxy that records the targets of CONNECT requests.
fn connect_proxy() -> (String, std::sync::Arc<std::sync::Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = asked.clone();
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let log = log.clone();
            std::thread::spawn(move || {
                let mut near = near.unwrap();
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") && near.read(&mut byte).is_ok_and(|n| n == 1) {
                    head.push(byte[0]);
                }
                let head = String::from_utf8(head).unwrap();
                log.lock().unwrap().push(head.lines().next().unwrap_or_default().to_owned());
                let to = head.split(' ').nth(1).unwrap();
                let Ok(mut far) = TcpStream::connect(to) else { return };
                near.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
                let (mut back, mut forth) = (far.try_clone().unwrap(), near.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut back, &mut forth));
                let _ = std::io::copy(&mut near, &mut far);
            });
        }
    });
    (format!("http://{address}"), asked)
}

/// Clauses: K11.proxy-url K11.proxy-environment K11.no-proxy
fn connects_through_proxies(s: &Story) {
    let (proxy, asked) = connect_proxy();
    let took = |o: Output| {
        text(&["through a proxy"], &o);
        std::mem::take(&mut *asked.lock().unwrap())
    };
    let (config, server) = own(s, &administrator(s), &json!({"proxy-url": proxy}));
    let host = server.strip_prefix("https://").unwrap().to_owned();
    s.file("config", &config.to_string());
    let get = ["get", "configmaps"];
    let lines = took(alone(s, &[("KUBECONFIG", "config")], &get));
    assert!(!lines.is_empty() && lines.iter().all(|l| l.starts_with(&format!("CONNECT {host} "))), "{lines:?}");
    // The loopback address is reached without the environment's proxy; a host name for it is not exempt.
    let (mut config, _) = own(s, &administrator(s), &json!({}));
    s.file("config", &config.to_string());
    assert!(took(alone(s, &[("KUBECONFIG", "config"), ("HTTPS_PROXY", &proxy)], &get)).is_empty());
    let address =
        s.get_at("/api/v1/namespaces/default/endpoints/kubernetes")["subsets"][0]["addresses"][0]["ip"].clone();
    let Some(address) = address.as_str().filter(|a| !a.starts_with("127.")) else { return };
    let port = host.rsplit(':').next().unwrap();
    config["clusters"][0]["cluster"]["server"] = format!("https://{address}:{port}").into();
    config["clusters"][0]["cluster"]["tls-server-name"] = "kubernetes".into();
    s.file("config", &config.to_string());
    assert!(!took(alone(s, &[("KUBECONFIG", "config"), ("HTTPS_PROXY", &proxy)], &get)).is_empty());
    let without = [("KUBECONFIG", "config"), ("HTTPS_PROXY", &proxy), ("NO_PROXY", address)];
    assert!(took(alone(s, &without, &get)).is_empty());
}

/// Clauses: K11.as K11.as-kubeconfig
fn impersonates_users(s: &Story) {
    let name = |o: &Output| serde_json::from_str::<Value>(&text(&[], o)).unwrap()["status"]["userInfo"].clone();
    let flags = ["--as=ann", "--as-uid=7", "--as-group=a", "--as-group=b"];
    let me = name(&s.k(&[&["auth", "whoami", "-o", "json"][..], &flags].concat()));
    assert_eq!((&me["username"], &me["uid"]), (&json!("ann"), &json!("7")));
    assert_eq!(me["groups"], json!(["a", "b", "system:authenticated"]));
    let mut user = administrator(s);
    user["as"] = "ben".into();
    user["as-groups"] = json!(["c"]);
    s.file("config", &own(s, &user, &json!({})).0.to_string());
    let run =
        |more: &[&str]| alone(s, &[("KUBECONFIG", "config")], &[&["auth", "whoami", "-o", "json"], more].concat());
    assert_eq!(name(&run(&[]))["username"], "ben");
    assert_eq!(name(&run(&["--as=carla"]))["username"], "carla");
    user.as_object_mut().unwrap().remove("as");
    s.file("config", &own(s, &user, &json!({})).0.to_string());
    assert!(stderr(&run(&[])).contains("requesting uid, groups or user-extra for u without impersonating a user"));
    let o = s.k(&["get", "pods", "--as=ann"]);
    assert!(stderr(&o).contains("User \"ann\" cannot list resource \"pods\""), "{}", stderr(&o));
}

/// Clauses: K11.request-timeout
fn requests_have_a_limit(s: &Story) {
    // The listener accepts connections and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", silent.local_addr().unwrap());
    let run = |limit: &str| alone(s, &[], &["get", "pods", "--server", &server, &format!("--request-timeout={limit}")]);
    for limit in ["1", "1s", "500ms"] {
        let o = run(limit);
        assert_eq!(o.status.code(), Some(1), "{limit}: {}", stderr(&o));
        assert!(
            stderr(&o).contains("Unable to connect to the server") && stderr(&o).contains("exceeded"),
            "{}",
            stderr(&o)
        );
    }
    let o = run("soon");
    assert!(
        stderr(&o).contains("error: Invalid timeout value. Timeout must be a single integer in seconds"),
        "{}",
        stderr(&o)
    );
    assert!(s.ok(&["get", "--raw", "/version", "--request-timeout=0"]).contains("gitVersion"));
}

/// Clauses: K11.config-set K11.config-use K11.config-delete K11.config-rename K11.config-get K11.config-embed
fn config_changes_the_file(s: &Story) {
    s.file("ca", "certificate");
    let config = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        alone(s, &[("KUBECONFIG", "made")], &[&["config"], &words[..]].concat())
    };
    for (line, expected) in [
        (
            "set-cluster dev --server=https://dev:6443 --certificate-authority=ca --embed-certs",
            "Cluster \"dev\" set.\n",
        ),
        ("set-credentials ann --token=t", "User \"ann\" set.\n"),
        ("set-context dev --cluster=dev --user=ann --namespace=team", "Context \"dev\" created.\n"),
        ("set-context dev --namespace=other", "Context \"dev\" modified.\n"),
        ("use-context dev", "Switched to context \"dev\".\n"),
        ("current-context", "dev\n"),
        ("get-clusters", "NAME\ndev\n"),
        ("get-users", "NAME\nann\n"),
        ("get-contexts dev --no-headers", "*     dev   dev   ann   other\n"),
        ("rename-context dev prod", "Context \"dev\" renamed to \"prod\".\n"),
        ("set contexts.prod.namespace third", "Property \"contexts.prod.namespace\" set.\n"),
        ("view -o jsonpath={.contexts[0].context.namespace}", "third"),
        ("view --raw -o jsonpath={.clusters[0].cluster.certificate-authority-data}", "Y2VydGlmaWNhdGU="),
        ("unset current-context", "Property \"current-context\" unset.\n"),
    ] {
        assert_eq!(text(&[line], &config(line)).replace("Aliases: ", ""), expected, "{line}");
    }
    let o = config("use-context nope");
    assert!(
        o.status.code() == Some(1) && stderr(&o).contains("no context exists with the name: \"nope\""),
        "{}",
        stderr(&o)
    );
    let deleted = text(&[], &config("delete-context prod"));
    assert!(deleted.starts_with("deleted context prod from "), "{deleted}");
    text(&[], &config("delete-cluster dev"));
    text(&[], &config("delete-user ann"));
    let left = text(&[], &config("view -o json"));
    assert!(!left.contains("dev") && !left.contains("ann"), "{left}");
}

/// Clauses: K11.kuberc K11.kuberc-set K11.kuberc-view K11.kuberc-off
fn applies_kuberc(s: &Story) {
    s.ok(&["create", "configmap", "c"]);
    let kuberc = |words: &[&str]| {
        let mut c: Command = s.bare(&[&["kuberc"], words].concat());
        c.output().unwrap()
    };
    let path = s.dir.join(".kube/kuberc").display().to_string();
    let updated = format!("Updated {path}\n");
    let defaults = ["set", "--section", "defaults", "--command", "get", "--option", "output=name"];
    assert_eq!(text(&[], &kuberc(&defaults)), updated);
    let o = kuberc(&defaults);
    assert!(
        stderr(&o).contains("defaults for command \"get\" already exist, use --overwrite to replace"),
        "{}",
        stderr(&o)
    );
    let alias = ["set", "--section", "aliases", "--name", "maps", "--command", "get", "--prependarg", "configmaps"];
    assert_eq!(text(&[], &kuberc(&alias)), updated);
    let mine = ["get", "configmap", "c", "-n", &s.ns];
    let run = |words: &[&str], off: bool| {
        let mut c = s.bare(words);
        if off {
            c.env("KUBERC", "off");
        }
        text(words, &c.output().unwrap())
    };
    assert_eq!(run(&mine, false), "configmap/c\n");
    assert!(run(&mine, true).starts_with("NAME"), "turned off");
    assert_eq!(run(&[&mine[..], &["-o", "jsonpath={.kind}"]].concat(), false), "ConfigMap", "what is given wins");
    assert!(run(&["maps", "-n", &s.ns], false).contains("c  "), "an alias has defaults of its own");
    let shown = text(&[], &kuberc(&["view"]));
    assert!(shown.contains("- command: get\n  name: maps\n") && shown.contains("    name: output\n"), "{shown}");
}
