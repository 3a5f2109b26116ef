//! From a query to a response.

use std::str::FromStr;

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, CNAME, PTR, SOA, SRV};
use hickory_proto::rr::{DNSClass, Name, RData, Record as Rr, RecordType};

use crate::zone::{Found, Record, Zone};

/// Seconds that answers may be kept; what CoreDNS gives by default.
pub const TTL: u32 = 5;
/// Answers longer than this are cut for clients that do not say that they take more.
const PLAIN_UDP: usize = 512;
/// What we take and give at most over UDP.
const MOST_UDP: u16 = 1232;

/// What to do with a query.
#[derive(Debug)]
pub enum Answer {
    Response(Box<Message>),
    /// A name that is not ours; `refusal` is what to say if nobody can be asked.
    Foreign {
        refusal: Box<Message>,
    },
}

fn name(text: &str) -> Name {
    let mut n = Name::from_str(text).unwrap_or_default();
    n.set_fqdn(true);
    n
}

fn empty(query: &Message, code: ResponseCode) -> Message {
    let mut m = Message::response(query.metadata.id, query.metadata.op_code);
    m.metadata.message_type = MessageType::Response;
    m.metadata.recursion_desired = query.metadata.recursion_desired;
    m.metadata.response_code = code;
    m.queries = query.queries.clone();
    if let Some(theirs) = &query.edns {
        let mut ours = hickory_proto::op::Edns::new();
        ours.set_max_payload(MOST_UDP).set_version(0);
        ours.set_dnssec_ok(theirs.flags().dnssec_ok);
        m.set_edns(ours);
    }
    m
}

/// Who is responsible for the domain, for answers that have nothing to say.
fn soa(zone: &Zone) -> Rr {
    let d = zone.domain();
    let data = SOA::new(name(&format!("ns.dns.{d}")), name(&format!("hostmaster.{d}")), 1, 7200, 1800, 86_400, TTL);
    Rr::from_rdata(name(d), TTL, RData::SOA(data))
}

/// Answers a query from the zone.
pub fn answer(zone: &Zone, query: &Message) -> Answer {
    let respond = |m: Message| Answer::Response(Box::new(m));
    if query.metadata.op_code != OpCode::Query {
        return respond(empty(query, ResponseCode::NotImp));
    }
    let [q] = &query.queries[..] else { return respond(empty(query, ResponseCode::FormErr)) };
    if q.query_class() != DNSClass::IN {
        return respond(empty(query, ResponseCode::Refused));
    }
    let asked = q.name().to_ascii();
    let pod;
    let records = match zone.find(&asked) {
        Found::Foreign => return Answer::Foreign { refusal: Box::new(empty(query, ResponseCode::Refused)) },
        Found::Nothing => {
            let mut m = empty(query, ResponseCode::NXDomain);
            m.metadata.authoritative = true;
            m.add_authority(soa(zone));
            return respond(m);
        }
        Found::Pod(ip) => {
            pod = [Record::A(ip)];
            &pod[..]
        }
        Found::Records(r) => r,
    };
    let mut m = empty(query, ResponseCode::NoError);
    m.metadata.authoritative = true;
    let wanted = q.query_type();
    let put = |owner: &Name, r: &Record| {
        let data = match r {
            Record::A(ip) => RData::A(A(*ip)),
            Record::Srv { port, target } => RData::SRV(SRV::new(0, 100, *port, name(target))),
            Record::Cname(target) => RData::CNAME(CNAME(name(target))),
            Record::Ptr(target) => RData::PTR(PTR(name(target))),
        };
        Rr::from_rdata(owner.clone(), TTL, data)
    };
    for r in records {
        let kind = match r {
            Record::A(_) => RecordType::A,
            Record::Srv { .. } => RecordType::SRV,
            Record::Cname(_) => RecordType::CNAME,
            Record::Ptr(_) => RecordType::PTR,
        };
        // An alias answers for every type.
        if kind == wanted || wanted == RecordType::ANY || kind == RecordType::CNAME {
            m.add_answer(put(q.name(), r));
        }
        if let Record::Srv { target, .. } = r
            && wanted == RecordType::SRV
            && let Found::Records(addresses) = zone.find(target)
        {
            let owner = name(target);
            m.add_additionals(
                addresses.iter().filter(|a| matches!(a, Record::A(_))).map(|a| put(&owner, a)).collect::<Vec<_>>(),
            );
        }
    }
    if wanted == RecordType::SOA && asked.trim_end_matches('.').eq_ignore_ascii_case(zone.domain()) {
        m.add_answer(soa(zone));
    }
    if m.answers.is_empty() {
        m.add_authority(soa(zone));
    }
    respond(m)
}

/// The bytes of a response over UDP: what does not fit is left out and said so, so that the client asks over TCP.
pub fn udp_bytes(query: &Message, response: &Message) -> Option<Vec<u8>> {
    let bytes = response.to_vec().ok()?;
    let most = match &query.edns {
        Some(e) => usize::from(e.max_payload().clamp(PLAIN_UDP as u16, MOST_UDP)),
        None => PLAIN_UDP,
    };
    if bytes.len() <= most { Some(bytes) } else { response.truncate().to_vec().ok() }
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
