//! Questions over UDP and TCP.

use crate::places::Places;
use crate::questions::Questions;
use crate::zone::{Answer, Kind, Record as Rr, ServiceView, SliceView, Zone};
use client::panics::caught_now;
use client::{ApiResource, Change, Informer, Informers, Scope, Shutdown};
use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, CNAME, PTR, SOA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use network::namespace;
use parking_lot::RwLock;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;

/// Seconds an answer may be remembered, as CoreDNS's default for the cluster.
const TTL: u32 = 30;
/// The largest answer over UDP when the client does not say, and whatever it says.
const UDP_DEFAULT: usize = 512;
const UDP_MAX: usize = 4096;
/// What a record takes in an answer, at least.
const RECORD_MIN: usize = 16;
/// Questions over UDP that are answered at the same time.
const WORKERS: usize = 4;
/// How long a TCP client may take for a question to begin, for the rest of it, and for its answer.
const QUIET: Duration = Duration::from_secs(10);
/// How long the server waits after an error of a socket: for a descriptor, when there is none for another connection.
const AFTER_ERROR: Duration = Duration::from_millis(50);

pub struct Options {
    /// As the service account of the DNS server.
    pub informers: Informers,
    pub domain: String,
    /// Where to listen, inside `namespace` if there is one.
    pub address: SocketAddr,
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
    /// What keeps the zone up to date.
    _informers: (Informer<ServiceView>, Informer<SliceView>),
    domain: String,
    zone: Arc<RwLock<Zone>>,
}

/// Listens, and then answers until shutdown.
pub fn run(options: Options) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
    Box::pin(serve(options))
}

async fn serve(options: Options) -> Result<(), Error> {
    let address = options.address;
    let fail = |source| Error { address, source };
    let handle = tokio::runtime::Handle::current();
    let (udp, tcp) = namespace::run_in(options.namespace.as_deref(), move || {
        let _entered = handle.enter();
        let udp = std::net::UdpSocket::bind(address).and_then(|s| {
            s.set_nonblocking(true)?;
            UdpSocket::from_std(s)
        });
        let tcp = std::net::TcpListener::bind(address).and_then(|s| {
            s.set_nonblocking(true)?;
            TcpListener::from_std(s)
        });
        Ok((udp, tcp))
    })
    .map_err(|e| fail(std::io::Error::other(e.to_string())))?;
    let (udp, tcp) = (Arc::new(udp.map_err(fail)?), tcp.map_err(fail)?);
    let server = Server::new(&options);
    let questions = Arc::new(Questions::default());
    let mut workers = JoinSet::new(); // they end with it
    for _ in 0..WORKERS {
        let (server, socket, questions) = (server.clone(), udp.clone(), questions.clone());
        workers.spawn(async move {
            loop {
                let (question, from) = questions.next().await;
                let answer = caught_now("dns", from, || server.answer(&question, Carrier::Udp));
                if let Ok(Some(answer)) = answer {
                    let _ = socket.send_to(&answer, from).await;
                }
            }
        });
    }
    let datagrams = async move {
        let mut buffer = vec![0; 4096];
        loop {
            match udp.recv_from(&mut buffer).await {
                Ok((n, from)) => questions.put((buffer[..n].to_vec(), from)),
                // Of an answer that did not arrive, most likely; a socket that has nothing but errors is not asked all the time.
                Err(error) => {
                    tracing::debug!(%error, "receiving a question");
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
        }
    };
    let streams = async move {
        let places = Arc::new(Places::default());
        loop {
            match tcp.accept().await {
                Ok((stream, from)) => {
                    // Without a place the connection is closed at once.
                    let Some(place) = places.take(from.ip()) else { continue };
                    let s = server.clone();
                    tokio::spawn(async move {
                        s.stream(stream).await;
                        drop(place);
                    });
                }
                // Out of file descriptors, most likely.
                Err(e) => {
                    tracing::warn!("accepting a connection of the DNS server: {e}");
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
        }
    };
    let _ = options.shutdown.race(async { tokio::join!(datagrams, streams) }).await;
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Udp,
    Tcp,
}

impl Server {
    fn new(options: &Options) -> Arc<Self> {
        let zone = Arc::new(RwLock::new(Zone::new(&options.domain)));
        let services = options.informers.informer(&ApiResource::of::<Service>(), &Scope::default());
        let slices = options.informers.informer(&ApiResource::of::<EndpointSlice>(), &Scope::default());
        let (a, b) = (zone.clone(), zone.clone());
        services.on_change(move |c: &Change<ServiceView>| match &c.new {
            Some(service) => a.write().put_service(&service.meta, &service.view),
            None => a.write().remove_service(&c.latest().meta),
        });
        slices.on_change(move |c: &Change<SliceView>| match &c.new {
            Some(slice) => b.write().put_slice(&slice.meta, &slice.view),
            None => b.write().remove_slice(&c.latest().meta),
        });
        Arc::new(Self { _informers: (services, slices), domain: options.domain.clone(), zone })
    }

    async fn stream(&self, mut stream: TcpStream) {
        loop {
            let Ok(Ok(n)) = tokio::time::timeout(QUIET, stream.read_u16()).await else { return };
            let mut buffer = vec![0; n.into()];
            let Ok(Ok(_)) = tokio::time::timeout(QUIET, stream.read_exact(&mut buffer)).await else { return };
            let Some(answer) = self.answer(&buffer, Carrier::Tcp) else { return };
            let mut out = u16::try_from(answer.len()).unwrap_or(0).to_be_bytes().to_vec();
            out.extend_from_slice(&answer);
            let Ok(Ok(())) = tokio::time::timeout(QUIET, stream.write_all(&out)).await else { return };
        }
    }

    /// The answer to a message; none to what is no question.
    fn answer(&self, bytes: &[u8], carrier: Carrier) -> Option<Vec<u8>> {
        let question = Message::from_vec(bytes).ok()?;
        let limit = match carrier {
            Carrier::Tcp => usize::from(u16::MAX),
            Carrier::Udp => usize::from(question.max_payload()).clamp(UDP_DEFAULT, UDP_MAX),
        };
        let id = question.metadata.id;
        let mut m = Message::response(id, question.metadata.op_code);
        m.metadata.recursion_desired = question.metadata.recursion_desired;
        m.metadata.recursion_available = true;
        m.add_queries(question.queries.iter().cloned());
        match (question.metadata.op_code, question.queries.first()) {
            (OpCode::Query, Some(q)) => {
                let name = q.name().to_ascii();
                // Of records that do not fit, one is enough to see it.
                let most = limit / RECORD_MIN + 1;
                let found = self.zone.read().answer(name.trim_end_matches('.'), kind_of(q.query_type()), most);
                self.fill(&mut m, found);
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
                let made: Vec<Record> = records.iter().filter_map(record).collect();
                if made.is_empty() {
                    m.add_authorities(self.authority());
                }
                m.add_answers(made);
            }
            Answer::NoSuchName => {
                m.metadata.authoritative = true;
                m.metadata.response_code = ResponseCode::NXDomain;
                m.add_authorities(self.authority());
            }
            Answer::Elsewhere => m.metadata.response_code = ResponseCode::Refused,
        }
    }

    /// The record that says how long a name's absence may be remembered.
    fn authority(&self) -> Option<Record> {
        let zone = Name::from_ascii(format!("{}.", self.domain)).ok()?;
        let host = Name::from_ascii(format!("ns.dns.{}.", self.domain)).ok()?;
        let admin = Name::from_ascii(format!("hostmaster.{}.", self.domain)).ok()?;
        Some(Record::from_rdata(zone, TTL, RData::SOA(SOA::new(host, admin, 1, 7200, 1800, 86400, TTL))))
    }
}

fn kind_of(t: RecordType) -> Kind {
    match t {
        RecordType::A => Kind::A,
        RecordType::SRV => Kind::Srv,
        RecordType::CNAME => Kind::Cname,
        RecordType::PTR => Kind::Ptr,
        _ => Kind::Other,
    }
}

fn record(r: &Rr) -> Option<Record> {
    let absolute = |n: &str| Name::from_ascii(format!("{}.", n.trim_end_matches('.'))).ok();
    let (name, data) = match r {
        Rr::A(n, ip) => (n, RData::A(A(*ip))),
        Rr::Srv { name, port, target } => (name, RData::SRV(SRV::new(0, 100, *port, absolute(target)?))),
        Rr::Cname(n, t) => (n, RData::CNAME(CNAME(absolute(t)?))),
        Rr::Ptr(n, t) => (n, RData::PTR(PTR(absolute(t)?))),
    };
    Some(Record::from_rdata(absolute(name)?, TTL, data))
}
