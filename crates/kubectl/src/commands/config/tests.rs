use crate::testing::{Server, run_in};

/// Runs lines in one directory of kubeconfigs: `a` exists, `b` does not. Paths are shown as `D`.
async fn lines(start: &str, all: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path().to_string_lossy().into_owned();
    let (a, b) = (format!("{d}/a"), format!("{d}/b"));
    std::fs::write(&a, start).unwrap();
    std::fs::write(format!("{d}/ca.pem"), "PEM").unwrap();
    let list = format!("{a}:{b}");
    for (line, expected) in all {
        let line = line.replace("D/", &format!("{d}/"));
        let words: Vec<&str> = line.split_whitespace().collect();
        let l = list.clone();
        let (code, out, err) =
            run_in(&Server::default(), &words, "", move |n| (n == "KUBECONFIG").then(|| l.clone())).await;
        let err: String = err.lines().map(|l| format!("! {l}\n")).collect();
        let exit = if code == 0 { String::new() } else { format!("exit {code}\n") };
        assert_eq!(format!("{out}{err}{exit}").replace(&d, "D"), *expected, "{line}");
    }
    std::fs::read_to_string(&a).unwrap().replace(&d, "D")
}

#[tokio::test]
async fn adds_changes_and_removes_entries() {
    let left = lines(
        "",
        &[
            ("config set-cluster c --server=https://x --certificate-authority=D/ca.pem", "Cluster \"c\" set.\n"),
            ("config set-cluster e --embed-certs --certificate-authority=D/ca.pem", "Cluster \"e\" set.\n"),
            ("config set-cluster i --insecure-skip-tls-verify --proxy-url=http://p", "Cluster \"i\" set.\n"),
            (
                "config set-cluster s -s https://x",
                "! error: unknown shorthand flag: 's' in -s\n! See 'kubectl config set-cluster --help' for usage.\nexit 1\n",
            ),
            ("config set-credentials u --token=t", "User \"u\" set.\n"),
            ("config set-credentials u --username=n --password=p", "User \"u\" set.\n"),
            (
                "config set-credentials x --exec-command=cmd --exec-arg=a,b --exec-env=K=V --exec-api-version=v1",
                "User \"x\" set.\n",
            ),
            ("config set-credentials z --exec-command=cmd --exec-env=K=V", "User \"z\" set.\n"),
            ("config set-credentials z --exec-env=K-", "User \"z\" set.\n"),
            ("config set-context k --cluster=c --user=u --namespace=n", "Context \"k\" created.\n"),
            ("config set-context k --namespace=", "Context \"k\" modified.\n"),
            ("config use-context k", "Switched to context \"k\".\n"),
            ("config set-context --current --namespace=m", "Context \"k\" modified.\n"),
            ("config rename-context k k2", "Context \"k\" renamed to \"k2\".\n"),
            ("config current-context", "k2\n"),
            ("config set contexts.k2.cluster e", "Property \"contexts.k2.cluster\" set.\n"),
            ("config set clusters.a.b.server https://y", "Property \"clusters.a.b.server\" set.\n"),
            (
                "config set clusters.c.certificate-authority-data eA==",
                "Property \"clusters.c.certificate-authority-data\" set.\n",
            ),
            ("config unset clusters.i", "Property \"clusters.i\" unset.\n"),
            ("config unset users.u.password", "Property \"users.u.password\" unset.\n"),
            ("config delete-cluster c", "deleted cluster c from D/a\n"),
            ("config get-clusters", "NAME\na.b\ne\n"),
            ("config get-users", "NAME\nu\nx\nz\n"),
        ],
    )
    .await;
    assert_eq!(
        left,
        "apiVersion: v1\nclusters:\n- cluster:\n    server: https://y\n  name: a.b\n- cluster:\n    certificate-authority-data: UEVN\n    server: \"\"\n  name: e\ncontexts:\n- context:\n    cluster: e\n    namespace: m\n    user: u\n  name: k2\ncurrent-context: k2\nkind: Config\nusers:\n- name: u\n  user:\n    username: \"n\"\n- name: x\n  user:\n    exec:\n      apiVersion: v1\n      args:\n      - a\n      - b\n      command: cmd\n      env:\n      - name: K\n        value: V\n      provideClusterInfo: false\n- name: z\n  user:\n    exec:\n      args: null\n      command: cmd\n      env: []\n      provideClusterInfo: false\n"
    );
}

const TWO: &str = "apiVersion: v1\nkind: Config\ncurrent-context: one\nclusters:\n- name: c\n  cluster: {server: 'https://a', certificate-authority: ca.pem}\n- name: d\n  cluster: {server: 'https://b', certificate-authority-data: eA==}\ncontexts:\n- name: one\n  context: {cluster: c, user: u}\n- name: two\n  context: {cluster: d, user: u}\nusers:\n- name: u\n  user: {token: secret}\n";

#[tokio::test]
async fn shows_the_kubeconfig() {
    lines(
        TWO,
        &[
            (
                "config view --minify",
                "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority: ca.pem\n    server: https://a\n  name: c\ncontexts:\n- context:\n    cluster: c\n    user: u\n  name: one\ncurrent-context: one\nkind: Config\nusers:\n- name: u\n  user:\n    token: REDACTED\n",
            ),
            ("config view --minify --flatten -o jsonpath={.clusters[0].cluster.certificate-authority-data}", "UEVN"),
            ("config view --minify --context=two -o jsonpath={.clusters[*].name}", "d"),
            ("config view -o jsonpath={.clusters[1].cluster.certificate-authority-data}", "DATA+OMITTED"),
            ("config view --raw -o jsonpath={.users[0].user.token}", "secret"),
            ("config view --merge=false", "! error: if merge==false a precise file must be specified\nexit 1\n"),
            ("config get-contexts -o name", "one\ntwo\n"),
            (
                "config get-contexts two three",
                "CURRENT   NAME   CLUSTER   AUTHINFO   NAMESPACE\n          two    d         u          \n! error: context three not found\nexit 1\n",
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn errors_are_those_of_upstream() {
    lines(
        TWO,
        &[
            ("config use-context x", "! error: no context exists with the name: \"x\"\nexit 1\n"),
            ("config use-context", "! error: Unexpected args: []\n! See 'kubectl config use-context -h' for help and examples\nexit 1\n"),
            ("config set a", "! error: Unexpected args: [a]\n! See 'kubectl config set -h' for help and examples\nexit 1\n"),
            ("config set-context", "! error: you must specify a non-empty context name or --current\nexit 1\n"),
            ("config set-cluster c --embed-certs", "! error: you must specify a --certificate-authority to embed\nexit 1\n"),
            (
                "config set-credentials u --token=a --username=b",
                "! error: you cannot specify more than one authentication method at the same time: --token, --username/--password\nexit 1\n",
            ),
            ("config delete-user x", "! error: cannot delete user x, not in D/a\nexit 1\n"),
            ("config delete-user", "! error: user to delete is required\n! See 'kubectl config delete-user -h' for help and examples\nexit 1\n"),
            ("config rename-context x y", "! error: cannot rename the context \"x\", it's not in D/a\nexit 1\n"),
            ("config rename-context one two", "! error: cannot rename the context \"one\", the context \"two\" already exists in D/a\nexit 1\n"),
            ("config unset users.x.token", "! error: current map key `x` is invalid\nexit 1\n"),
            (
                "config set clusters.c.certificate-authority-data %",
                "! error: error decoding input value: illegal base64 data at input byte 0\nexit 1\n",
            ),
            (
                "config delete-context one",
                "deleted context one from D/a\n! warning: this removed your active context, use \"kubectl config use-context\" to select a different one\n",
            ),
        ],
    )
    .await;
}

/// Paths beside or below a file are stored relative to it, however the file is named; others are absolute.
#[tokio::test]
async fn stores_paths_relative_to_their_file() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path().join("k");
    std::fs::create_dir_all(d.join("sub")).unwrap();
    let file = format!("{}/sub/../config", d.display());
    for (ca, expected) in [
        (format!("{}/sub/ca", d.display()), "sub/ca".to_owned()),
        (format!("{}/sub/../ca", d.display()), "ca".to_owned()),
        (format!("{}/../ca", d.display()), format!("{}/ca", dir.path().display())),
    ] {
        for _ in 0..2 {
            let path = file.clone();
            let line = ["config", "set-cluster", "c", "--certificate-authority", &ca];
            let (code, _, err) =
                run_in(&Server::default(), &line, "", move |n| (n == "KUBECONFIG").then(|| path.clone())).await;
            assert_eq!((code, err.as_str()), (0, ""));
            let written = std::fs::read_to_string(d.join("config")).unwrap();
            assert!(written.contains(&format!("certificate-authority: {expected}\n")), "{ca}: {written}");
        }
    }
}
