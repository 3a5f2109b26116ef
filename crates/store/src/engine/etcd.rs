//! The engine for several servers: etcd v3.
//!
//! Keys are `PREFIX resource 0 namespace 0 name`. Revisions are etcd's, shared with whatever else the cluster stores, so ours
//! rise with gaps. Invariant: every revision that the store knows from here changed a key under the prefix (opening writes a
//! marker), so history is complete up to a revision once an event at or after it was received. etcd's progress notifications
//! would confirm that, too, but releases up to 3.4.24 send them too early.
//!
//! A request that never reached a member is sent again, to another member. A read is sent again after any failure that may pass; a transaction is
//! not, since it may have happened.

use super::*;
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, Error, EventType, GetOptions, Identity, KeyValue,
    KvClient, PutOptions, TlsOptions, Txn, TxnOp, TxnOpResponse, WatchClient, WatchOptions, WatchStream,
};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Objects read at a time when opening.
const PAGE: i64 = 1_000;
/// Delay between attempts to watch again.
const RETRY: Duration = Duration::from_millis(250);
/// Delay between attempts to send a request to another member.
const NEXT_MEMBER: Duration = Duration::from_millis(50);
/// How long a request may take, with all attempts.
const PATIENCE: Duration = Duration::from_secs(10);
/// A connection that is silent for so long is probed, and closed without an answer to the probe.
const SILENT: Duration = Duration::from_secs(5);
const UNANSWERED: Duration = Duration::from_secs(3);
/// gRPC codes after which the request was certainly not executed.
const RESOURCE_EXHAUSTED: i32 = 8;
const OUT_OF_RANGE: i32 = 11;
/// gRPC codes of failures that may pass: a deadline, and a member that cannot serve.
const DEADLINE_EXCEEDED: i32 = 4;
const UNAVAILABLE: i32 = 14;

/// How to reach an etcd cluster.
#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    /// URLs of its members.
    pub endpoints: Vec<String>,
    /// Prefix of all keys; several stores may share a cluster under different ones.
    pub prefix: String,
    /// TLS, for URLs with `https`.
    pub tls: EtcdTls,
}

/// Certificates for etcd, in PEM.
#[derive(Clone, Debug, Default)]
pub struct EtcdTls {
    /// The CAs of the members' certificates.
    pub authority: Option<Vec<u8>>,
    /// The client certificate and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// A store in an etcd cluster.
pub struct Etcd {
    kv: KvClient,
    watch: WatchClient,
    prefix: String,
}

impl Etcd {
    /// Creates a client; connections are made when they are needed.
    ///
    /// # Errors
    /// A URL or a certificate is invalid.
    pub async fn connect(options: &EtcdOptions) -> Result<Arc<Etcd>, EngineError> {
        let mut connect = ConnectOptions::new()
            .with_connect_timeout(UNANSWERED)
            .with_keep_alive(SILENT, UNANSWERED)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        if options.endpoints.iter().any(|e| e.starts_with("https://")) {
            let mut tls = TlsOptions::new();
            if let Some(authority) = &options.tls.authority {
                tls = tls.ca_certificate(Certificate::from_pem(authority));
            }
            if let Some((certificate, key)) = &options.tls.identity {
                tls = tls.identity(Identity::from_pem(certificate, key));
            }
            connect = connect.with_tls(tls);
        }
        let client = Client::connect(&options.endpoints, Some(connect)).await.map_err(backend)?;
        // Pages and histories of large objects are larger than gRPC's default limit.
        let kv = client.kv_client().max_decoding_message_size(usize::MAX);
        let watch = client.watch_client().max_decoding_message_size(usize::MAX);
        Ok(Arc::new(Etcd { kv, watch, prefix: options.prefix.clone() }))
    }

    /// Reads a value of the cluster itself that is no object, or writes it if there is none. Returns the value that is stored then.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn read_or_create(&self, name: &str, value: Option<Vec<u8>>) -> Result<Option<Bytes>, EngineError> {
        let path = format!("{}{name}", self.prefix);
        let mut txn = Txn::new()
            .when([Compare::create_revision(path.clone(), CompareOp::Greater, 0)])
            .and_then([TxnOp::get(path.clone(), None)]);
        if let Some(value) = &value {
            txn = txn.or_else([TxnOp::put(path, value.clone(), None)]);
        }
        // Repeating it is harmless.
        let response = self.repeat(|kv| kv_txn(kv, txn.clone()), may_pass).await.map_err(backend)?;
        let found = response.op_responses().into_iter().find_map(|op| match op {
            TxnOpResponse::Get(read) => read.kvs().first().map(|found| Bytes::copy_from_slice(found.value())),
            _ => None,
        });
        Ok(found.or(value.filter(|_| !response.succeeded()).map(Bytes::from)))
    }

    /// Sends a request until it succeeds, fails in another way than `again` accepts, or the time is over.
    async fn repeat<T, F: Future<Output = Result<T, Error>>>(
        &self,
        send: impl Fn(KvClient) -> F,
        again: impl Fn(&Error) -> bool,
    ) -> Result<T, Error> {
        let end = Instant::now() + PATIENCE;
        loop {
            let answer = timeout_at(end, send(self.kv.clone())).await;
            match answer {
                Ok(Err(error)) if again(&error) && Instant::now() + NEXT_MEMBER < end => {
                    tokio::time::sleep(NEXT_MEMBER).await;
                }
                Ok(answer) => return answer,
                Err(_) => return Err(late()),
            }
        }
    }

    fn path(&self, key: &Key) -> String {
        format!("{}{}\0{}\0{}", self.prefix, key.resource, key.namespace, key.name)
    }

    /// Not a key of an object: it has no zero bytes.
    fn marker(&self) -> String {
        format!("{}opened", self.prefix)
    }

    /// `None`: not an object.
    fn parse(&self, path: &[u8]) -> Option<Key> {
        let path = std::str::from_utf8(path.strip_prefix(self.prefix.as_bytes())?).ok()?;
        let mut parts = path.split('\0');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(resource), Some(namespace), Some(name), None) => Some(Key::new(resource, namespace, name)),
            _ => None,
        }
    }

    /// Creates a revision of a key under the prefix.
    async fn put_marker(&self) -> Result<u64, Error> {
        let marker = self.marker();
        let send = |mut kv: KvClient| {
            let marker = marker.clone();
            async move { kv.put(marker, "", None::<PutOptions>).await }
        };
        let marked = self.repeat(send, may_pass).await?;
        Ok(marked.header().map_or(0, |header| header.revision()) as u64)
    }

    /// The newest revision of the cluster, at or above that of every transaction that was answered before the call.
    async fn newest_revision(&self) -> Result<u64, Error> {
        let marker = self.marker();
        let send = |mut kv: KvClient| {
            let marker = marker.clone();
            async move { kv.get(marker, Some(GetOptions::new().with_keys_only())).await }
        };
        let found = self.repeat(send, may_pass).await?;
        Ok(found.header().map_or(0, |header| header.revision()) as u64)
    }

    async fn watch_after(&self, after: u64, previous: bool) -> Result<WatchStream, Error> {
        let mut options = WatchOptions::new().with_prefix().with_start_revision(after as i64 + 1);
        if previous {
            options = options.with_prev_key();
        }
        let mut watch = self.watch.clone();
        let started = watch.watch(self.prefix.clone(), Some(options));
        tokio::time::timeout(PATIENCE, started).await.map_err(|_| late())?
    }

    fn version(found: &KeyValue) -> Version {
        Version { revision: found.mod_revision() as u64, value: Bytes::copy_from_slice(found.value()) }
    }

    /// Every object under a prefix of keys at a revision (0: the newest), page by page.
    async fn pages(
        &self,
        prefix: Vec<u8>,
        revision: i64,
        mut each: impl FnMut(&Key, &KeyValue) -> Result<(), EngineError> + Send,
    ) -> Result<(), EngineError> {
        let end = prefix_end(&prefix);
        let mut from = prefix;
        loop {
            let page = GetOptions::new().with_range(end.clone()).with_limit(PAGE).with_revision(revision);
            let send = |mut kv: KvClient| {
                let (from, page) = (from.clone(), page.clone());
                async move { kv.get(from, Some(page)).await }
            };
            let found = self.repeat(send, may_pass).await.map_err(backend)?;
            for object in found.kvs() {
                if let Some(key) = self.parse(object.key()) {
                    each(&key, object)?;
                }
            }
            match found.kvs().last() {
                Some(last) if found.more() => from = [last.key(), &[0]].concat(),
                _ => return Ok(()),
            }
        }
    }

    /// Feeds until the connection breaks (`Ok`) or revisions are lost.
    async fn feed_once(&self, after: &mut u64, sink: &tokio::sync::mpsc::Sender<Fed>) -> Result<(), EngineError> {
        let Ok(mut stream) = self.watch_after(*after, false).await else { return Ok(()) };
        while let Ok(Some(response)) = stream.message().await {
            if response.canceled() {
                let oldest = response.compact_revision() as u64;
                return if oldest > *after { Err(EngineError::Expired { oldest }) } else { Ok(()) };
            }
            let mut revisions: BTreeMap<u64, Vec<(Key, Option<Bytes>)>> = BTreeMap::new();
            for event in response.events() {
                let Some(found) = event.kv() else { continue };
                let changes = revisions.entry(found.mod_revision() as u64).or_default();
                if let Some(key) = self.parse(found.key()) {
                    let put = event.event_type() == EventType::Put;
                    changes.push((key, put.then(|| Bytes::copy_from_slice(found.value()))));
                }
            }
            for (revision, changes) in revisions {
                *after = revision;
                if sink.send(Fed { revision, changes }).await.is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Engine for Etcd {
    /// etcd's defaults: 128 operations and 1.5 MiB per request.
    fn capabilities(&self) -> Capabilities {
        Capabilities { history: true, max_ops: 128, max_bytes: 1_570_000 }
    }

    async fn load(&self, decode: Decode) -> Result<Loaded, EngineError> {
        let revision = match self.put_marker().await {
            Ok(revision) => revision,
            // A database without space can still be read.
            Err(error) if is_refused(&error) => self.newest_revision().await.map_err(backend)?,
            Err(error) => return Err(backend(error)),
        };
        let revision = revision as i64;
        let mut decoded = Decoded::default();
        self.pages(self.prefix.clone().into_bytes(), revision, |key, object| {
            let revision = object.mod_revision() as u64;
            decoded.add(key, revision, decode(key, revision, object.value()))
        })
        .await?;
        let Decoded { entries, damaged } = decoded;
        Ok(Loaded { revision: revision as u64, compacted: 0, entries, damaged })
    }

    async fn visit(&self, resource: &str, visit: Visit) -> Result<(), EngineError> {
        let prefix = format!("{}{resource}\0", self.prefix).into_bytes();
        self.pages(prefix, 0, |key, object| {
            visit(key, object.mod_revision() as u64, object.value());
            Ok(())
        })
        .await
    }

    async fn changes(
        &self,
        scope: Option<&Scope>,
        after: u64,
        upto: u64,
        limit: usize,
    ) -> Result<Changes, EngineError> {
        let mut found = Changes { changes: Vec::new(), through: after };
        if after >= upto {
            return Ok(found);
        }
        let mut stream = self.watch_after(after, true).await.map_err(backend)?;
        let mut looked = 0;
        while found.through < upto && looked < limit {
            let message = tokio::time::timeout(PATIENCE, stream.message()).await.map_err(|_| backend(late()))?;
            let response = message.map_err(backend)?.ok_or(EngineError::Closed)?;
            if response.canceled() {
                let oldest = response.compact_revision() as u64;
                return Err(match oldest {
                    0 => EngineError::Backend(response.cancel_reason().to_owned()),
                    oldest => EngineError::Expired { oldest },
                });
            }
            // A response holds whole revisions.
            for event in response.events() {
                let Some(object) = event.kv() else { continue };
                let revision = object.mod_revision() as u64;
                if revision > upto {
                    found.through = upto;
                    break;
                }
                found.through = revision;
                looked += 1;
                let Some(key) = self.parse(object.key()) else { continue };
                if scope.is_none_or(|scope| scope.contains(&key)) {
                    let put = event.event_type() == EventType::Put;
                    let value = put.then(|| Bytes::copy_from_slice(object.value()));
                    let previous = event.prev_kv().map(Etcd::version);
                    found.changes.push(RawChange { revision, key, value, previous });
                }
            }
        }
        Ok(found)
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn role(self: Arc<Self>) -> Role {
        Role::Shared(self)
    }

    async fn close(&self) {}
}

#[async_trait]
impl SharedWriter for Etcd {
    async fn transact(&self, ops: Vec<SharedOp>) -> Result<Outcome, WriteError> {
        let (mut compares, mut writes, mut reads) = (Vec::new(), Vec::new(), Vec::new());
        for op in &ops {
            let path = self.path(&op.key);
            match op.expect {
                Expect::Any => {}
                Expect::Absent => compares.push(Compare::create_revision(path.clone(), CompareOp::Equal, 0)),
                // Revision 0 would match a key that does not exist.
                Expect::Revision(revision) => {
                    let expected = if revision == 0 { i64::MAX } else { revision as i64 };
                    compares.push(Compare::mod_revision(path.clone(), CompareOp::Equal, expected));
                }
            }
            if op.expect != Expect::Any {
                reads.push(TxnOp::get(path.clone(), None));
            }
            match &op.action {
                SharedAction::Put(value) => writes.push(TxnOp::put(path, value.clone(), None)),
                SharedAction::Delete => writes.push(TxnOp::delete(path, None)),
                SharedAction::Check => {}
            }
        }
        let txn = Txn::new().when(compares).and_then(writes).or_else(reads);
        let response = self.repeat(|kv| kv_txn(kv, txn.clone()), never_sent).await.map_err(write_error)?;
        if response.succeeded() {
            let changed = response.op_responses().iter().any(|response| match response {
                TxnOpResponse::Put(_) => true,
                TxnOpResponse::Delete(deletion) => deletion.deleted() > 0,
                _ => false,
            });
            let revision = response.header().map_or(0, |header| header.revision()) as u64;
            return Ok(Outcome::Committed { revision: changed.then_some(revision) });
        }
        let mut found = response.op_responses().into_iter();
        for (at, op) in ops.iter().enumerate().filter(|(_, op)| op.expect != Expect::Any) {
            let Some(TxnOpResponse::Get(read)) = found.next() else { break };
            let current = read.kvs().first().map(Etcd::version);
            let holds = match op.expect {
                Expect::Any => true,
                Expect::Absent => current.is_none(),
                Expect::Revision(revision) => current.as_ref().is_some_and(|version| version.revision == revision),
            };
            if !holds {
                return Ok(Outcome::Conflict { op: at, current });
            }
        }
        Err(WriteError::Fatal(EngineError::Backend("a refused transaction has no conflict".into())))
    }

    async fn newest(&self) -> Result<u64, EngineError> {
        self.newest_revision().await.map_err(backend)
    }

    async fn mark(&self) -> Result<(), EngineError> {
        self.put_marker().await.map(drop).map_err(backend)
    }

    async fn feed(&self, mut after: u64, sink: tokio::sync::mpsc::Sender<Fed>) -> Result<(), EngineError> {
        while !sink.is_closed() {
            self.feed_once(&mut after, &sink).await?;
            tokio::time::sleep(RETRY).await;
        }
        Ok(())
    }

    async fn compact(&self, revision: u64) -> Result<(), EngineError> {
        match self.kv.clone().compact(revision as i64, None).await {
            // Another server was faster.
            Err(Error::GRpcStatus(status)) if status.code() as i32 == OUT_OF_RANGE => Ok(()),
            other => other.map(drop).map_err(backend),
        }
    }
}

/// The first key after all that have the prefix.
fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

fn backend(error: Error) -> EngineError {
    EngineError::Backend(describe(&error))
}

async fn kv_txn(mut kv: KvClient, txn: Txn) -> Result<etcd_client::TxnResponse, Error> {
    kv.txn(txn).await
}

/// The error in words: gRPC's message, without its code and metadata.
fn describe(error: &Error) -> String {
    match error {
        Error::GRpcStatus(status) if never_sent(error) => {
            format!("etcd: no member can be reached: {}", status.message())
        }
        Error::GRpcStatus(status) => format!("etcd: {}", status.message()),
        error => format!("etcd: {error}"),
    }
}

fn late() -> Error {
    Error::GRpcStatus(tonic::Status::deadline_exceeded(format!("no answer within {} s", PATIENCE.as_secs())))
}

/// Whether etcd refused it: the database has no space, or there are too many requests.
fn is_refused(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.code() as i32 == RESOURCE_EXHAUSTED)
}

/// Whether the request never reached a member.
fn never_sent(error: &Error) -> bool {
    let Error::GRpcStatus(status) = error else { return false };
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Whether the same request may succeed later, or at another member.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => {
            matches!(status.code() as i32, UNAVAILABLE | DEADLINE_EXCEEDED) || never_sent(error)
        }
        Error::TransportError(_) => true,
        _ => false,
    }
}

fn write_error(error: Error) -> WriteError {
    match error {
        Error::GRpcStatus(status) if status.code() as i32 == RESOURCE_EXHAUSTED => {
            WriteError::Refused(describe(&Error::GRpcStatus(status)))
        }
        error if never_sent(&error) => WriteError::Refused(describe(&error)),
        error => WriteError::Unanswered(describe(&error)),
    }
}
