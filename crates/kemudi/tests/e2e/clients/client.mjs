// What a program with the client for Node.js does in its namespace, from creating to deleting.
//
// Arguments: where the client is installed, the namespace, and the specification of a pod with a shell that runs for good, as
// JSON.

import assert from 'node:assert/strict';
import { Writable } from 'node:stream';
import { pathToFileURL } from 'node:url';

const [where, namespace, pod] = process.argv.slice(2);
const k8s = await import(pathToFileURL(`${where}/node_modules/@kubernetes/client-node/dist/index.js`).href);

const config = new k8s.KubeConfig();
config.loadFromDefault();
const core = config.makeApiClient(k8s.CoreV1Api);
const apps = config.makeApiClient(k8s.AppsV1Api);
const as = (strategy) => k8s.setHeaderOptions('Content-Type', strategy);
const { ServerSideApply, MergePatch, StrategicMergePatch, JsonPatch } = k8s.PatchStrategy;

// The call fails with this status and reason; gives back the answer.
async function refused(status, reason, call) {
  try {
    await call();
  } catch (e) {
    const body = typeof e.body === 'string' ? JSON.parse(e.body) : e.body;
    assert.deepEqual([e.code, body.reason], [status, reason], String(e));
    return body;
  }
  assert.fail(`not refused with ${reason}`);
}

async function configMaps() {
  const create = (body) => core.createNamespacedConfigMap({ namespace, body });
  const made = await create({ metadata: { name: 'c', labels: { app: 'node' } }, data: { a: '1' } });
  assert.ok(made.metadata.uid && made.metadata.creationTimestamp instanceof Date);
  await refused(409, 'AlreadyExists', () => create({ metadata: { name: 'c' } }));
  await refused(404, 'NotFound', () => core.readNamespacedConfigMap({ name: 'none', namespace }));
  const invalid = await refused(422, 'Invalid', () => create({ metadata: { name: 'No' } }));
  assert.equal(invalid.details.causes[0].field, 'metadata.name');

  const patch = (body, strategy) => core.patchNamespacedConfigMap({ name: 'c', namespace, body }, as(strategy));
  assert.deepEqual((await patch({ data: { b: '2' } }, MergePatch)).data, { a: '1', b: '2' });
  assert.deepEqual((await patch({ data: { b: null, c: '3' } }, StrategicMergePatch)).data, { a: '1', c: '3' });
  const listed = await patch([{ op: 'remove', path: '/data/a' }], JsonPatch);
  assert.deepEqual(listed.data, { c: '3' });
  made.data = { late: '1' };
  await refused(409, 'Conflict', () => core.replaceNamespacedConfigMap({ name: 'c', namespace, body: made }));
  listed.data = { new: '1' };
  await core.replaceNamespacedConfigMap({ name: 'c', namespace, body: listed });
  assert.deepEqual((await core.readNamespacedConfigMap({ name: 'c', namespace })).data, { new: '1' });
}

// Follows a path until enough was seen.
async function watched(path, query, enough) {
  const seen = [];
  let stop;
  await new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`nothing more of ${path} after ${JSON.stringify(seen)}`)), 60_000);
    const event = (type, object) => {
      seen.push([type, object]);
      if (enough(seen)) {
        clearTimeout(late);
        resolve();
      }
    };
    const ended = (e) => e && reject(e);
    stop = new k8s.Watch(config).watch(path, query, event, ended).catch(reject);
  });
  (await stop).abort();
  return seen;
}

async function pagesAndWatches() {
  const labelSelector = 'set=pages';
  for (let i = 0; i < 7; i++) {
    const body = { metadata: { name: `page-${i}`, labels: { set: 'pages' } } };
    await core.createNamespacedConfigMap({ namespace, body });
  }
  const names = [];
  let next;
  do {
    const page = await core.listNamespacedConfigMap({ namespace, labelSelector, limit: 3, _continue: next });
    names.push(...page.items.map((i) => i.metadata.name));
    next = page.metadata._continue;
  } while (next);
  assert.deepEqual(names, [0, 1, 2, 3, 4, 5, 6].map((i) => `page-${i}`));
  const { resourceVersion } = (await core.listNamespacedConfigMap({ namespace })).metadata;
  await core.patchNamespacedConfigMap({ name: 'page-3', namespace, body: { data: { x: 'y' } } }, as(MergePatch));
  await core.deleteNamespacedConfigMap({ name: 'page-4', namespace });
  const path = `/api/v1/namespaces/${namespace}/configmaps`;
  const seen = await watched(path, { labelSelector, resourceVersion }, (s) => s.length === 2);
  assert.deepEqual(seen.map(([type, o]) => [type, o.metadata.name]), [['MODIFIED', 'page-3'], ['DELETED', 'page-4']]);
  await core.deleteCollectionNamespacedConfigMap({ namespace, labelSelector });
  assert.equal((await core.listNamespacedConfigMap({ namespace, labelSelector })).items.length, 0);

  // The informer of controllers: it lists, follows, and knows what there is.
  const list = () => core.listNamespacedConfigMap({ namespace, labelSelector });
  const informer = k8s.makeInformer(config, path, list, labelSelector);
  const heard = new Promise((resolve) => informer.on('add', resolve));
  await informer.start();
  await core.createNamespacedConfigMap({ namespace, body: { metadata: { name: 'later', labels: { set: 'pages' } } } });
  assert.equal((await heard).metadata.name, 'later');
  assert.ok(informer.get('later', namespace));
  await informer.stop();
}

function deployment(replicas) {
  const labels = { app: 'web' };
  const template = { metadata: { labels }, spec: JSON.parse(pod) };
  const spec = { replicas, selector: { matchLabels: labels }, template };
  return { apiVersion: 'apps/v1', kind: 'Deployment', metadata: { name: 'web' }, spec };
}

async function deployments() {
  const name = 'web';
  const apply = (replicas, force) => {
    const request = { name, namespace, body: deployment(replicas), fieldManager: 'node', force };
    return apps.patchNamespacedDeployment(request, as(ServerSideApply));
  };
  assert.deepEqual((await apply(2)).metadata.managedFields.map((e) => [e.manager, e.operation]), [['node', 'Apply']]);
  // A list with keys is merged by them.
  const env = { spec: { template: { spec: { containers: [{ name: 'c', env: [{ name: 'B', value: '2' }] }] } } } };
  const patched = await apps.patchNamespacedDeployment({ name, namespace, body: env }, as(StrategicMergePatch));
  assert.deepEqual(patched.spec.template.spec.containers[0].env.map((e) => e.name).sort(), ['A', 'B']);
  const scale = { name, namespace, body: { spec: { replicas: 3 } } };
  await apps.patchNamespacedDeploymentScale(scale, as(MergePatch));
  const conflict = await refused(409, 'Conflict', () => apply(2));
  assert.equal(conflict.details.causes[0].field, '.spec.replicas');
  await apply(2, true);

  const done = ({ metadata: m, status: s }) =>
    s.observedGeneration === m.generation && s.replicas === 2 && s.updatedReplicas === 2 && s.availableReplicas === 2;
  const path = `/apis/apps/v1/namespaces/${namespace}/deployments`;
  await watched(path, { fieldSelector: 'metadata.name=web' }, (seen) => done(seen.at(-1)[1]));
  const pods = (await core.listNamespacedPod({ namespace, labelSelector: 'app=web' })).items;
  const up = pods.find((p) => p.status.phase === 'Running' && !p.metadata.deletionTimestamp).metadata.name;

  const said = { out: '', err: '' };
  const into = (key) => new Writable({ write: (chunk, _, next) => { said[key] += chunk; next(); } });
  const command = ['sh', '-c', 'echo hello; echo wrong >&2; exit 3'];
  const status = await new Promise((resolve, reject) => {
    const exec = new k8s.Exec(config).exec(namespace, up, 'c', command, into('out'), into('err'), null, false, resolve);
    exec.catch(reject);
  });
  assert.deepEqual(said, { out: 'hello\n', err: 'wrong\n' });
  assert.deepEqual([status.status, status.reason], ['Failure', 'NonZeroExitCode']);
  assert.equal(await core.readNamespacedPodLog({ name: up, namespace }), 'begun\n');
  await apps.deleteNamespacedDeployment({ name, namespace, propagationPolicy: 'Foreground' });
}

for (const step of [configMaps, pagesAndWatches, deployments]) {
  await step();
}
console.log('done');
process.exit(0);
