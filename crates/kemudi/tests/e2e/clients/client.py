"""What a program with the Python client does in its namespace (the first argument), from creating to deleting.

The second argument is the specification of a pod with a shell that runs for good, as JSON."""

import json
import sys

from kubernetes import client, config, dynamic, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream

config.load_kube_config()
NAMESPACE, POD = sys.argv[1], json.loads(sys.argv[2])
core, apps = client.CoreV1Api(), client.AppsV1Api()


def refused(status, reason, call):
    """The call fails with this status and reason; gives back the answer."""
    try:
        call()
    except ApiException as e:
        body = json.loads(e.body)
        assert (e.status, body["reason"]) == (status, reason), e
        return body
    raise AssertionError(f"not refused with {reason}")


def config_maps():
    made = core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": "c", "labels": {"app": "py"}}, "data": {"a": "1"}})
    assert made.metadata.uid and made.metadata.creation_timestamp.tzinfo is not None
    refused(409, "AlreadyExists", lambda: core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": "c"}}))
    refused(404, "NotFound", lambda: core.read_namespaced_config_map("none", NAMESPACE))
    invalid = refused(422, "Invalid", lambda: core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": "No"}}))
    assert invalid["details"]["causes"][0]["field"] == "metadata.name", invalid

    merged = core.patch_namespaced_config_map("c", NAMESPACE, {"data": {"b": "2"}})
    assert merged.data == {"a": "1", "b": "2"}
    # A list is sent as a JSON patch.
    listed = core.patch_namespaced_config_map("c", NAMESPACE, [{"op": "remove", "path": "/data/a"}])
    assert listed.data == {"b": "2"}
    made.data = {"late": "1"}
    refused(409, "Conflict", lambda: core.replace_namespaced_config_map("c", NAMESPACE, made))
    listed.data = {"new": "1"}
    assert core.replace_namespaced_config_map("c", NAMESPACE, listed).data == {"new": "1"}
    assert core.read_namespaced_config_map("c", NAMESPACE).data == {"new": "1"}


def pages_and_watches():
    for i in range(7):
        core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": f"page-{i}", "labels": {"set": "pages"}}})
    names, token = [], None
    while True:
        page = core.list_namespaced_config_map(NAMESPACE, label_selector="set=pages", limit=3, _continue=token)
        names += [i.metadata.name for i in page.items]
        token = page.metadata._continue
        if not token:
            break
    assert names == [f"page-{i}" for i in range(7)], names
    revision = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    core.patch_namespaced_config_map("page-3", NAMESPACE, {"data": {"x": "y"}})
    core.delete_namespaced_config_map("page-4", NAMESPACE)
    seen, w = [], watch.Watch()
    for event in w.stream(core.list_namespaced_config_map, NAMESPACE, label_selector="set=pages",
                          resource_version=revision, timeout_seconds=60):
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 2:
            w.stop()
    assert seen == [("MODIFIED", "page-3"), ("DELETED", "page-4")], seen
    core.delete_collection_namespaced_config_map(NAMESPACE, label_selector="set=pages")
    assert not core.list_namespaced_config_map(NAMESPACE, label_selector="set=pages").items


def deployment(replicas):
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": POD,
            },
        },
    }


def running():
    """Waits by watching until the deployment has two pods of its newest template and no others, and gives one."""
    w = watch.Watch()
    done = False
    for event in w.stream(apps.list_namespaced_deployment, NAMESPACE, timeout_seconds=60):
        o, s = event["object"], event["object"].status
        done = s.observed_generation == o.metadata.generation and s.replicas == s.updated_replicas == s.available_replicas == 2
        if done:
            w.stop()
    assert done
    pods = core.list_namespaced_pod(NAMESPACE, label_selector="app=web").items
    up = [p.metadata.name for p in pods if p.status.phase == "Running" and p.metadata.deletion_timestamp is None]
    assert len(up) == 2, up
    return sorted(up)[0]


def deployments():
    web = dynamic.DynamicClient(client.ApiClient()).resources.get(api_version="apps/v1", kind="Deployment")
    applied = web.server_side_apply(body=json.dumps(deployment(2)), name="web", namespace=NAMESPACE, field_manager="python")
    assert [e.manager for e in applied.metadata.managedFields] == ["python"]
    # A list with keys is merged by them.
    env = {"spec": {"template": {"spec": {"containers": [{"name": "c", "env": [{"name": "B", "value": "2"}]}]}}}}
    patched = apps.patch_namespaced_deployment("web", NAMESPACE, env)
    assert {e.name for e in patched.spec.template.spec.containers[0].env} == {"A", "B"}
    apps.patch_namespaced_deployment_scale("web", NAMESPACE, {"spec": {"replicas": 3}})
    conflict = refused(409, "Conflict", lambda: web.server_side_apply(
        body=json.dumps(deployment(2)), name="web", namespace=NAMESPACE, field_manager="python"))
    assert conflict["details"]["causes"][0]["field"] == ".spec.replicas", conflict
    web.server_side_apply(body=json.dumps(deployment(2)), name="web", namespace=NAMESPACE, field_manager="python", force_conflicts=True)
    pod = running()
    said = stream(core.connect_get_namespaced_pod_exec, pod, NAMESPACE, command=["sh", "-c", "echo hello; echo wrong >&2"],
                  stdin=False, stdout=True, stderr=True, tty=False)
    assert sorted(said.split()) == ["hello", "wrong"], said
    assert core.read_namespaced_pod_log(pod, NAMESPACE) == "begun\n"
    apps.delete_namespaced_deployment("web", NAMESPACE, propagation_policy="Foreground")


def custom_resources():
    group = f"{NAMESPACE}.example.com"
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer", "default": 3}}}}}
    definitions, custom = client.ApiextensionsV1Api(), client.CustomObjectsApi()
    definitions.create_custom_resource_definition({
        "metadata": {"name": f"boxes.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": {"plural": "boxes", "kind": "Box"},
                 "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]},
    })
    try:
        w = watch.Watch()
        for event in w.stream(definitions.list_custom_resource_definition, field_selector=f"metadata.name=boxes.{group}", timeout_seconds=60):
            if any(c.type == "Established" and c.status == "True" for c in event["object"].status.conditions or []):
                w.stop()
        place = (group, "v1", NAMESPACE, "boxes")
        box = custom.create_namespaced_custom_object(*place, {"apiVersion": f"{group}/v1", "kind": "Box", "metadata": {"name": "b"}, "spec": {}})
        assert box["spec"]["size"] == 3, box
        refused(422, "Invalid", lambda: custom.patch_namespaced_custom_object(*place, "b", {"spec": {"size": "large"}}))
        assert custom.patch_namespaced_custom_object(*place, "b", {"spec": {"size": 5}})["spec"]["size"] == 5
        assert len(custom.list_namespaced_custom_object(*place)["items"]) == 1
    finally:
        definitions.delete_custom_resource_definition(f"boxes.{group}")


def who_may_what():
    review = client.AuthorizationV1Api().create_self_subject_access_review(
        {"spec": {"resourceAttributes": {"verb": "create", "resource": "pods", "namespace": NAMESPACE}}})
    assert review.status.allowed is True
    token = core.create_namespaced_service_account_token(
        "default", NAMESPACE, {"spec": {"audiences": [], "expirationSeconds": 600}}).status.token
    theirs = client.Configuration.get_default_copy()
    theirs.api_key, theirs.cert_file, theirs.key_file = {"authorization": f"Bearer {token}"}, None, None
    theirs = client.CoreV1Api(client.ApiClient(theirs))
    refused(403, "Forbidden", lambda: theirs.list_namespaced_secret(NAMESPACE))


for step in (config_maps, pages_and_watches, deployments, custom_resources, who_may_what):
    step()
print("done")
