//! The DNS server: requests over UDP and TCP.

use crate::request_queue::RequestQueue;
use crate::zone::{Answer, Kind, Record as ZoneRecord, ServiceView, SliceView, Zone};
use client::KeyedLimit;
use client::{ApiResource, Change, Informer, Informers, Scope, Shutdown};
use futures::future::join_all;
use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, PTR, SOA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use network::namespace;
use parking_lot::RwLock;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use supervisor::panics::caught_now;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;

/// The most open TCP connections in total, and from one address.
const MAX_CONNECTIONS: usize = 512;
const MAX_PER_ADDRESS: usize = 16;
/// The time to live of answers in seconds; CoreDNS's default for the cluster domain.
const TTL: u32 = 30;
/// The largest answer over UDP in bytes if the client sends no limit (EDNS), and the largest limit that is accepted.
const UDP_DEFAULT: usize = 512;
const UDP_MAX: usize = 4096;
/// The largest request in bytes.
const MAX_REQUEST: usize = 4096;
/// The least size of a record in an answer, in bytes.
const RECORD_MIN: usize = 16;
/// Requests over UDP that are answered concurrently.
const WORKERS: usize = 4;
/// The time limit of a TCP client for each of: starting a request, sending the rest of it, and receiving the answer.
const TCP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the server waits after an error of a socket: for a descriptor, when there is none for another connection.
const AFTER_ERROR: Duration = Duration::from_millis(50);

pub struct Options {
    /// Informers of a client that acts as the DNS server's service account.
    pub informers: Informers,
    pub domain: String,
    /// The addresses to listen on, one of each family, in the network namespace `namespace` if it is given.
    pub addresses: Vec<SocketAddr>,
    pub namespace: Option<PathBuf>,
    pub shutdown: Shutdown,
}

#[derive(Debug, thiserror::Error)]
#[error("listening on {address}: {source}")]
pub struct Error {
    address: SocketAddr,
    source: std::io::Error,
}

struct Server {
    /// The handlers keep the zone up to date.
    _informers: (Informer<ServiceView>, Informer<SliceView>),
    _subscriptions: [client::informer::Subscription; 2],
    domain: String,
    zone: Arc<RwLock<Zone>>,
}

/// Listens, and answers requests until shutdown. Fails if it cannot listen.
pub fn run(options: Options) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
    Box::pin(serve(options))
}

async fn serve(options: Options) -> Result<(), Error> {
    let (mut sockets, mut listeners) = (Vec::new(), Vec::new());
    for address in &options.addresses {
        let (udp, tcp) = listen(options.namespace.as_deref(), *address)?;
        sockets.push(Arc::new(udp));
        listeners.push(tcp);
    }
    let server = Server::new(&options);
    let queue = Arc::new(RequestQueue::default());
    let mut workers = JoinSet::new(); // aborted when it is dropped
    for _ in 0..WORKERS {
        let (server, sockets, queue) = (server.clone(), sockets.clone(), queue.clone());
        workers.spawn(async move {
            loop {
                let (request, from) = queue.pop().await;
                let answer = caught_now("dns", from, || server.answer(&request, Transport::Udp));
                let is_same = |s: &&Arc<UdpSocket>| s.local_addr().is_ok_and(|own| own.is_ipv4() == from.is_ipv4());
                if let (Ok(Some(answer)), Some(socket)) = (answer, sockets.iter().find(is_same)) {
                    let _ = socket.send_to(&answer, from).await;
                }
            }
        });
    }
    let datagrams = sockets.iter().map(|udp| async {
        let mut buffer = vec![0; 4096];
        loop {
            match udp.recv_from(&mut buffer).await {
                Ok((n, from)) => queue.push((buffer[..n].to_vec(), from)),
                // A pause, so that a socket that returns only errors does not take a whole core.
                Err(error) => {
                    tracing::debug!(%error, "receiving a DNS request failed");
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
        }
    });
    let connections = KeyedLimit::new(MAX_CONNECTIONS, MAX_PER_ADDRESS);
    let streams = listeners.iter().map(|tcp| async {
        loop {
            match tcp.accept().await {
                Ok((stream, from)) => {
                    // Beyond the limit, the connection is closed at once.
                    let Some(permit) = connections.acquire(from.ip().to_canonical()) else { continue };
                    let s = server.clone();
                    tokio::spawn(async move {
                        s.serve_tcp(stream).await;
                        drop(permit);
                    });
                }
                // Most likely there are no file descriptors left.
                Err(e) => {
                    tracing::warn!("accepting a connection of the DNS server failed: {e}");
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
        }
    });
    let (datagrams, streams) = (join_all(datagrams), join_all(streams));
    let _ = options.shutdown.race(async { tokio::join!(datagrams, streams) }).await;
    Ok(())
}

/// The sockets of an address in a network namespace.
fn listen(namespace: Option<&Path>, address: SocketAddr) -> Result<(UdpSocket, TcpListener), Error> {
    let fail = |source| Error { address, source };
    let handle = tokio::runtime::Handle::current();
    namespace::run_in(namespace, move || {
        let _entered = handle.enter();
        let udp = std::net::UdpSocket::bind(address)?;
        udp.set_nonblocking(true)?;
        let tcp = std::net::TcpListener::bind(address)?;
        tcp.set_nonblocking(true)?;
        Ok((UdpSocket::from_std(udp)?, TcpListener::from_std(tcp)?))
    })
    .map_err(fail)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
}

impl Server {
    fn new(options: &Options) -> Arc<Self> {
        let zone = Arc::new(RwLock::new(Zone::new(&options.domain)));
        let services = options.informers.informer(&ApiResource::typed::<Service>(), &Scope::default());
        let slices = options.informers.informer(&ApiResource::typed::<EndpointSlice>(), &Scope::default());
        let (a, b) = (zone.clone(), zone.clone());
        let for_services = services.subscribe(move |c: &Change<ServiceView>| match &c.new {
            Some(service) => a.write().put_service(&service.meta, &service.view),
            None => a.write().remove_service(&c.latest().meta),
        });
        let for_slices = slices.subscribe(move |c: &Change<SliceView>| match &c.new {
            Some(slice) => b.write().put_slice(&slice.meta, &slice.view),
            None => b.write().remove_slice(&c.latest().meta),
        });
        Arc::new(Self {
            _informers: (services, slices),
            _subscriptions: [for_services, for_slices],
            domain: options.domain.clone(),
            zone,
        })
    }

    async fn serve_tcp(&self, mut stream: TcpStream) {
        loop {
            let Ok(Ok(n)) = tokio::time::timeout(TCP_TIMEOUT, stream.read_u16()).await else { return };
            if usize::from(n) > MAX_REQUEST {
                return;
            }
            let mut buffer = vec![0; n.into()];
            let Ok(Ok(_)) = tokio::time::timeout(TCP_TIMEOUT, stream.read_exact(&mut buffer)).await else { return };
            let Some(answer) = self.answer(&buffer, Transport::Tcp) else { return };
            let mut out = u16::try_from(answer.len()).unwrap_or(0).to_be_bytes().to_vec();
            out.extend_from_slice(&answer);
            let Ok(Ok(())) = tokio::time::timeout(TCP_TIMEOUT, stream.write_all(&out)).await else { return };
        }
    }

    /// The encoded answer to a message. `None` if it cannot be decoded, or is a response.
    fn answer(&self, bytes: &[u8], transport: Transport) -> Option<Vec<u8>> {
        if bytes.get(2)? & RESPONSE != 0 {
            return None;
        }
        if !is_request(bytes) {
            return refusal(bytes);
        }
        let question = Message::from_vec(bytes).ok()?;
        let limit = match transport {
            Transport::Tcp => usize::from(u16::MAX),
            Transport::Udp => usize::from(question.max_payload()).clamp(UDP_DEFAULT, UDP_MAX),
        };
        let id = question.metadata.id;
        let mut m = Message::response(id, question.metadata.op_code);
        m.metadata.recursion_desired = question.metadata.recursion_desired;
        m.metadata.recursion_available = true;
        m.add_queries(question.queries.iter().cloned());
        match (question.metadata.op_code, question.queries.first()) {
            (OpCode::Query, Some(q)) => {
                let name = q.name().to_ascii();
                // One record more than can fit, so that the answer is truncated.
                let max_records = limit / RECORD_MIN + 1;
                let answer =
                    self.zone.read().answer(name.trim_end_matches('.'), record_kind(q.query_type()), max_records);
                self.fill(&mut m, answer);
            }
            (OpCode::Query, None) => m.metadata.response_code = ResponseCode::FormErr,
            _ => m.metadata.response_code = ResponseCode::NotImp,
        }
        let out = m.to_vec().ok()?;
        if out.len() > limit { m.truncate().to_vec().ok() } else { Some(out) }
    }

    fn fill(&self, m: &mut Message, answer: Answer) {
        match answer {
            Answer::Found(records) => {
                m.metadata.authoritative = true;
                let records: Vec<Record> = records.iter().filter_map(record).collect();
                if records.is_empty() {
                    m.add_authorities(self.authority());
                }
                m.add_answers(records);
            }
            Answer::NoSuchName => {
                m.metadata.authoritative = true;
                m.metadata.response_code = ResponseCode::NXDomain;
                m.add_authorities(self.authority());
            }
            Answer::NotAuthoritative => m.metadata.response_code = ResponseCode::Refused,
        }
    }

    /// The SOA record, which limits how long clients cache a negative answer.
    fn authority(&self) -> Option<Record> {
        let zone = Name::from_ascii(format!("{}.", self.domain)).ok()?;
        let host = Name::from_ascii(format!("ns.dns.{}.", self.domain)).ok()?;
        let admin = Name::from_ascii(format!("hostmaster.{}.", self.domain)).ok()?;
        Some(Record::from_rdata(zone, TTL, RData::SOA(SOA::new(host, admin, 1, 7200, 1800, 86400, TTL))))
    }
}

/// Whether a message has the size and the number of queries of a request. Names that are compressed make a small message a large one.
fn is_request(bytes: &[u8]) -> bool {
    let queries = bytes.get(4..6).map(|b| u16::from_be_bytes([b[0], b[1]]));
    bytes.len() <= MAX_REQUEST && queries.is_some_and(|n| n <= 1)
}

/// The bit of the third byte that makes a message a response. Responses are never answered: two servers would answer each other for ever.
const RESPONSE: u8 = 0x80;

/// FORMERR for a request that is not decoded: its header alone.
fn refusal(bytes: &[u8]) -> Option<Vec<u8>> {
    const FORM_ERROR: u8 = 1;
    let [a, b, flags, ..] = *bytes else { return None };
    let mut out = vec![a, b, flags | RESPONSE, FORM_ERROR];
    out.resize(12, 0);
    Some(out)
}

fn record_kind(t: RecordType) -> Kind {
    match t {
        RecordType::A => Kind::A,
        RecordType::AAAA => Kind::Aaaa,
        RecordType::SRV => Kind::Srv,
        RecordType::CNAME => Kind::Cname,
        RecordType::PTR => Kind::Ptr,
        _ => Kind::Other,
    }
}

fn record(r: &ZoneRecord) -> Option<Record> {
    let absolute = |n: &str| Name::from_ascii(format!("{}.", n.trim_end_matches('.'))).ok();
    let (name, data) = match r {
        ZoneRecord::Address(n, IpAddr::V4(ip)) => (n, RData::A(A(*ip))),
        ZoneRecord::Address(n, IpAddr::V6(ip)) => (n, RData::AAAA(AAAA(*ip))),
        ZoneRecord::Srv { name, port, target } => (name, RData::SRV(SRV::new(0, 100, *port, absolute(target)?))),
        ZoneRecord::Cname(n, t) => (n, RData::CNAME(CNAME(absolute(t)?))),
        ZoneRecord::Ptr(n, t) => (n, RData::PTR(PTR(absolute(t)?))),
    };
    Some(Record::from_rdata(absolute(name)?, TTL, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages with thousands of queries delayed all other answers.
    #[test]
    fn messages_with_many_queries_are_refused_undecoded() {
        let header = |queries: u16| {
            let [high, low] = queries.to_be_bytes();
            vec![0x12, 0x34, 1, 0, high, low, 0, 0, 0, 0, 0, 0]
        };
        assert!(is_request(&header(0)) && is_request(&header(1)) && !is_request(&header(2)) && !is_request(&[0; 5]));
        assert!(!is_request(&[&header(1)[..], &[0; MAX_REQUEST]].concat()));
        let answer = Message::from_vec(&refusal(&header(10_000)).unwrap()).unwrap();
        assert_eq!((answer.metadata.id, answer.metadata.response_code), (0x1234, ResponseCode::FormErr));
        assert_eq!(refusal(&[1, 2]), None);
    }
}
