use crate::testing::{Server, run_with, snapshot};
use meta::Value;
use serde_json::json;

const PATH: &str = "/apis/apps/v1/namespaces/default/deployments/w";

fn patch() -> String {
    format!("PATCH {PATH}?fieldManager=kubectl-set")
}

fn deployment() -> Value {
    json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "w"}, "spec": {"template": {"spec": {"containers": [
        {"name": "c", "image": "a", "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ]},
    ]}}}})
}

fn server() -> Server {
    Server::new()
        .on(&format!("GET {PATH}"), 200, deployment())
        .on(&patch(), 200, deployment())
        .on(
            "GET /api/v1/namespaces/default/secrets/s",
            200,
            json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s"}, "data": {"k": "eA==", "a-b": ""}}),
        )
        .on(
            "GET /api/v1/namespaces/default/services/v",
            200,
            json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "v"}, "spec": {"selector": {"a": "b"}}}),
        )
        .on(
            "PATCH /api/v1/namespaces/default/services/v?fieldManager=kubectl-set",
            200,
            json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "v"}}),
        )
}

/// Returns the change of the only container in a patch.
fn sent(s: &Server) -> Value {
    s.body_of(&patch())["spec"]["template"]["spec"]["containers"][0].clone()
}

#[tokio::test]
async fn sets_images() {
    let s = server();
    for (line, expected) in [
        ("set image deploy/w c=b", "deployment.apps/w image updated\n"),
        ("set image deploy w *=a", ""),
        ("set image deploy/w x=b", "! error: unable to find container named \"x\"\nexit 1\n"),
        ("set image deploy/w c=b --dry-run=client", "deployment.apps/w image updated (dry run)\n"),
        ("set image deploy/w", "! error: at least one image update is required\nexit 1\n"),
        (
            "set image deploy/w *=a c=b",
            "! error: all containers are already specified by *, but saw more than one container_name=container_image pairs\nexit 1\n",
        ),
    ] {
        assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
    }
    assert_eq!((&sent(&s)["name"], &sent(&s)["image"]), (&json!("c"), &json!("b")));
}

#[tokio::test]
async fn sets_and_removes_variables() {
    let s = server();
    for (line, expected) in [
        ("set env deploy/w A=2 N=3", "deployment.apps/w env updated\n"),
        ("set env deploy/w A=1", ""),
        ("set env deploy/w --list", "# Deployment w, container c\nA=1\n# B from secret s, key k\n"),
        ("set env deploy/w --list --resolve", "# Deployment w, container c\nA=1\nB=x\n"),
        (
            "set env deploy/w A=2 --overwrite=false",
            "! error: deployments/w 'A' already has a value (1), and --overwrite is false\nexit 1\n",
        ),
        (
            "set env deploy/w A=2 A-",
            "! error: can not both modify and remove the same environment variable in the same command\nexit 1\n",
        ),
        (
            "set env deploy/w A=2 deploy/x",
            "! error: all resources must be specified before environment changes: deploy/w A=2 deploy/x\nexit 1\n",
        ),
        ("set env deploy/w -c x* N=1", "! Warning: Deployment/w does not have any containers matching \"x*\"\n"),
        (
            "set env svc/v A=1",
            "! error: services/v the object is not a pod or does not have a pod template: *v1.Service\nexit 1\n",
        ),
        (
            "set env --keys=a deploy/w",
            "! error: when specifying --keys, a configmap or secret must be provided with --from\nexit 1\n",
        ),
    ] {
        assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
    }
    assert_eq!(sent(&s)["env"], json!([{"name": "A", "value": "2"}, {"name": "N", "value": "3"}]));
    let output = snapshot(&s, "set env deploy/w --from=secret/s --prefix=P_ B-", "").await;
    assert_eq!(
        output,
        "deployment.apps/w env updated\n! Warning: key a-b transferred to A_B\n! Warning: key k transferred to K\n"
    );
    assert_eq!(
        sent(&s)["env"],
        json!([
            {"name": "P_A_B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a-b"}}},
            {"name": "P_K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"$patch": "delete", "name": "B"},
        ])
    );
    let done = run_with(&s, &["set", "env", "deploy/w", "-e", "-"], "X=1 # c\nnothing\nY=2=3\n").await;
    assert_eq!(done, (0, "deployment.apps/w env updated\n".into(), String::new()));
    assert_eq!(sent(&s)["env"], json!([{"name": "X", "value": "1 "}, {"name": "Y", "value": "2=3"}]));
}

#[tokio::test]
async fn changes_files_without_a_server() {
    let s = Server::default();
    let file = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: a}]}\n";
    for (line, expected) in [
        ("set env --local -f - A=1 -o jsonpath={.spec.containers[0].env[0].name}", "A"),
        ("set image --local -f - c=b -o jsonpath={.spec.containers[0].image}", "b"),
        ("set resources --local -f - --limits=cpu=1000m -o jsonpath={.spec.containers[0].resources.limits.cpu}", "1"),
        ("set sa --local -f - me -o jsonpath={.spec.serviceAccountName}", "me"),
        ("set env --local -f - A=1", "pod/p env updated\n"),
        (
            "set image --local pod/p c=b",
            "! error: you must specify resources by --filename when --local is set.\n! Example resource specifications include:\n!    '-f rsrc.yaml'\n!    '--filename=rsrc.json'\nexit 1\n",
        ),
        (
            "set env --local --dry-run=server -f - A=1",
            "! error: cannot specify --local and --dry-run=server - did you mean --dry-run=client?\nexit 1\n",
        ),
    ] {
        assert_eq!(snapshot(&s, line, file).await, expected, "{line}");
    }
    assert!(s.requests().is_empty());
}

#[tokio::test]
async fn sets_resources_selectors_and_accounts() {
    let s = server();
    for (line, expected) in [
        (
            "set resources deploy/w --limits=cpu=200m --requests=memory=1Gi",
            "deployment.apps/w resource requirements updated\n",
        ),
        (
            "set resources deploy/w",
            "! error: you must specify an update to requests or limits (in the form of --requests/--limits)\nexit 1\n",
        ),
        (
            "set resources deploy/w --limits=cpu",
            "! error: Invalid argument syntax cpu, expected <resource>=<value>\nexit 1\n",
        ),
        ("set resources deploy/w -c x --limits=cpu=1", "! error: unable to find container named x\nexit 1\n"),
        ("set selector svc v x=y", "service/v selector updated\n"),
        ("set selector deploy w x=y", "! error: setting a selector is only supported for Services\nexit 1\n"),
        ("set selector", "! error: one selector is required\nexit 1\n"),
        ("set serviceaccount", "! error: serviceaccount is required\nexit 1\n"),
        (
            "set selector svc v --local x=y",
            "! error: you must specify resources by --filename when --local is set.\n! Example resource specifications include:\n!    '-f rsrc.yaml'\n!    '--filename=rsrc.json'\nexit 1\n",
        ),
    ] {
        assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
    }
    assert_eq!(sent(&s)["resources"], json!({"limits": {"cpu": "200m"}, "requests": {"memory": "1Gi"}}));
    let selected = s.body_of("PATCH /api/v1/namespaces/default/services/v?fieldManager=kubectl-set");
    assert_eq!(selected["spec"]["selector"], json!({"a": null, "x": "y"}));
    assert_eq!(snapshot(&s, "set sa deploy/w me", "").await, "deployment.apps/w serviceaccount updated\n");
    assert_eq!(s.body_of(&patch())["spec"]["template"]["spec"]["serviceAccountName"], "me");
}

#[tokio::test]
async fn adds_subjects() {
    let file = "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: b}\nsubjects:\n- {kind: User, apiGroup: rbac.authorization.k8s.io, name: u}\n";
    let s = Server::default();
    for (line, expected) in [
        ("set subject --local -f - --user=u", ""),
        (
            "set subject --local -f - --user=v --group=g --serviceaccount=:a -o jsonpath={.subjects[*].name}{.subjects[3].namespace}",
            "u v g adefault",
        ),
        ("set subject --local -f - --serviceaccount=a", "! error: serviceaccount must be <namespace>:<name>\nexit 1\n"),
        (
            "set subject --local -f -",
            "! error: you must specify at least one value of user, group or serviceaccount\nexit 1\n",
        ),
    ] {
        assert_eq!(snapshot(&s, line, file).await, expected, "{line}");
    }
}
