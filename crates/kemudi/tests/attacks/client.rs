//! Credentials that `kemudi kubectl` could give away: to a server without TLS, or to programs placed where it runs programs from.

use crate::runner::Case;
use crate::story::Story;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

pub const TESTS: &[Case] = &[
    ("client::nothing_secret_is_sent_without_tls", nothing_secret_is_sent_without_tls),
    ("client::programs_of_the_current_directory_are_not_run", programs_of_the_current_directory_are_not_run),
];

/// A server that keeps the lines it is sent, for as long as the test process lives.
fn listener() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let lines = Arc::new(Mutex::new(Vec::new()));
    let heard = lines.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            for line in BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok) {
                if line.is_empty() {
                    break;
                }
                heard.lock().unwrap().push(line.to_lowercase());
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}");
        }
    });
    (address, lines)
}

const PLUGIN: &str = "#!/bin/sh\ntouch \"$MARK\"\n\
    echo '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"plugged\"}}'\n";

/// A kubeconfig whose user has these fields.
fn kubeconfig(s: &Story, name: &str, server: &str, user: &str) {
    s.file(
        name,
        &format!(
            "clusters: [{{name: c, cluster: {{server: \"{server}\"}}}}]\nusers: [{{name: u, user: {user}}}]\n\
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n"
        ),
    );
}

fn nothing_secret_is_sent_without_tls(s: &Story) {
    let (server, lines) = listener();
    let mark = s.dir.join("ran");
    s.file("plugin", PLUGIN);
    fs::set_permissions(s.dir.join("plugin"), fs::Permissions::from_mode(0o755)).unwrap();
    kubeconfig(s, "token", &server, "{token: stolen}");
    kubeconfig(s, "basic", &server, "{username: stolen, password: stolen}");
    let exec = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never}}";
    kubeconfig(s, "exec", &server, exec);
    for arguments in [
        &["--kubeconfig", "token"][..],
        &["--kubeconfig", "basic"],
        &["--kubeconfig", "exec"],
        &["--server", &server, "--token", "stolen"],
    ] {
        let before = lines.lock().unwrap().len();
        let mut c = s.bare(&[arguments, &["get", "--raw", "/api/v1/pods"]].concat());
        c.env("MARK", &mark).env("KUBECONFIG", "/nonexistent").output().unwrap();
        let heard = lines.lock().unwrap()[before..].to_vec();
        assert!(heard.iter().any(|l| l.starts_with("get /api/v1/pods")), "{arguments:?}: {heard:?}");
        assert!(!heard.iter().any(|l| l.starts_with("authorization") || l.contains("stolen")), "{heard:?}");
    }
    assert!(!mark.exists(), "a plugin is not even asked");
}

/// Somebody else's directory, a hurried user, and a `PATH` that begins with a dot.
fn programs_of_the_current_directory_are_not_run(s: &Story) {
    let mark = s.dir.join("ran");
    for name in ["login-helper", "diff", "vi"] {
        s.file(name, PLUGIN);
        fs::set_permissions(s.dir.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let exec = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: login-helper, interactiveMode: Never}}";
    kubeconfig(s, "exec", "https://127.0.0.1:1", exec);
    s.file("map.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {a: b}\n");
    s.ok(&["apply", "-f", "map.yaml"]);
    s.file("map.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {a: c}\n");
    for path in [".:/usr/bin:/bin", ":/usr/bin:/bin", "./:/usr/bin"] {
        for (arguments, complaint) in [
            (&["--kubeconfig", "exec", "get", "pods"][..], "executable login-helper not found"),
            (&["diff", "-f", "map.yaml"], "cannot run executable found relative to current directory"),
            (&["edit", "configmap", "m"], "editor"),
        ] {
            let o = s.command(arguments).env("MARK", &mark).env("PATH", path).env_remove("EDITOR").output().unwrap();
            let said = String::from_utf8_lossy(&o.stderr).into_owned();
            assert!(!o.status.success() && said.contains(complaint), "{path} {arguments:?}: {said}");
            assert!(!mark.exists(), "{path} {arguments:?}: it was run");
        }
    }
}
