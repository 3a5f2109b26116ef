use super::*;
use hickory_proto::op::Query;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

fn zone() -> Zone {
    let service = |ns: &str, name: &str, spec: Value| -> Service {
        serde_json::from_value(json!({"metadata": {"namespace": ns, "name": name}, "spec": spec})).unwrap()
    };
    let endpoint = |ip: &str, hostname: Option<&str>, ready: bool| json!({"addresses": [ip], "hostname": hostname, "conditions": {"ready": ready}});
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"namespace": "db", "labels": {"kubernetes.io/service-name": "mysql"}}, "addressType": "IPv4",
        "ports": [{"name": "sql", "port": 3306, "protocol": "TCP"}],
        "endpoints": [endpoint("10.0.0.1", Some("mysql-0"), true), endpoint("10.0.0.2", None, true), endpoint("10.0.0.3", None, false)]
    }))
    .unwrap();
    let services = [
        service(
            "default",
            "web",
            json!({"clusterIP": "10.96.0.5", "ports": [{"name": "http", "port": 80}, {"port": 81}]}),
        ),
        service("db", "mysql", json!({"clusterIP": "None", "ports": [{"name": "sql", "port": 3306}]})),
        service("db", "empty", json!({"clusterIP": "None"})),
        service("default", "out", json!({"type": "ExternalName", "externalName": "example.ORG."})),
    ];
    Zone::build(&services, &[slice], "cluster.local")
}

fn ask(asked: &str, kind: RecordType) -> Message {
    let mut m = Message::new(7, MessageType::Query, OpCode::Query);
    m.metadata.recursion_desired = true;
    m.add_query(Query::query(name(asked), kind));
    m
}

/// Answers as text, sorted; or the code and whether the domain's authority is told.
fn say(asked: &str, kind: RecordType) -> String {
    match answer(&zone(), &ask(asked, kind)) {
        Answer::Foreign { .. } => "foreign".into(),
        Answer::Response(m) => {
            assert_eq!(m.metadata.id, 7);
            let sent = Message::from_vec(&m.to_vec().unwrap()).unwrap();
            if sent.answers.is_empty() {
                assert_eq!(sent.authorities.len(), 1, "an answer without records names the authority");
                return format!("{:?}", sent.metadata.response_code);
            }
            assert!(sent.answers.iter().all(|r| r.ttl == TTL));
            let mut all: Vec<String> = sent.answers.iter().map(|r| r.data.to_string()).collect();
            all.sort();
            all.join(" ")
        }
    }
}

/// Clauses: K01
#[test]
fn names_have_the_answers_of_the_specification() {
    use RecordType::{A, AAAA, CNAME, PTR, SRV, TXT};
    let table: &[(&str, RecordType, &str)] = &[
        ("web.default.svc.cluster.local.", A, "10.96.0.5"),
        ("WEB.Default.svc.cluster.LOCAL.", A, "10.96.0.5"),
        ("web.default.svc.cluster.local.", AAAA, "NoError"),
        ("web.default.svc.cluster.local.", TXT, "NoError"),
        ("nope.default.svc.cluster.local.", A, "NXDomain"),
        // What a search path makes of names: only the right one exists.
        ("web.default.default.svc.cluster.local.", A, "NXDomain"),
        ("web.default.svc.svc.cluster.local.", A, "NXDomain"),
        ("example.org.svc.cluster.local.", A, "NXDomain"),
        ("_http._tcp.web.default.svc.cluster.local.", SRV, "0 100 80 web.default.svc.cluster.local."),
        ("_http._udp.web.default.svc.cluster.local.", SRV, "NXDomain"),
        ("_tcp.web.default.svc.cluster.local.", SRV, "NoError"),
        ("mysql.db.svc.cluster.local.", A, "10.0.0.1 10.0.0.2"),
        ("mysql-0.mysql.db.svc.cluster.local.", A, "10.0.0.1"),
        ("10-0-0-2.mysql.db.svc.cluster.local.", A, "10.0.0.2"),
        ("10-0-0-3.mysql.db.svc.cluster.local.", A, "NXDomain"),
        (
            "_sql._tcp.mysql.db.svc.cluster.local.",
            SRV,
            "0 100 3306 10-0-0-2.mysql.db.svc.cluster.local. 0 100 3306 mysql-0.mysql.db.svc.cluster.local.",
        ),
        ("empty.db.svc.cluster.local.", A, "NoError"),
        ("10-1-2-3.default.pod.cluster.local.", A, "10.1.2.3"),
        ("10-1-2.default.pod.cluster.local.", A, "NXDomain"),
        ("out.default.svc.cluster.local.", A, "example.org."),
        ("out.default.svc.cluster.local.", CNAME, "example.org."),
        ("svc.cluster.local.", A, "NoError"),
        ("default.svc.cluster.local.", A, "NoError"),
        ("cluster.local.", A, "NoError"),
        ("5.0.96.10.in-addr.arpa.", PTR, "web.default.svc.cluster.local."),
        ("1.0.0.10.in-addr.arpa.", PTR, "mysql-0.mysql.db.svc.cluster.local."),
        ("9.9.9.9.in-addr.arpa.", PTR, "foreign"),
        ("example.org.", A, "foreign"),
        ("notcluster.local.", A, "foreign"),
    ];
    for (asked, kind, want) in table {
        assert_eq!(say(asked, *kind), *want, "{asked} {kind}");
    }
}

#[test]
fn queries_that_are_none_are_refused() {
    let code = |m: Message| match answer(&zone(), &m) {
        Answer::Response(r) => r.metadata.response_code,
        Answer::Foreign { .. } => unreachable!("a broken query has no name"),
    };
    assert_eq!(code(Message::new(1, MessageType::Query, OpCode::Query)), ResponseCode::FormErr);
    assert_eq!(code(Message::new(1, MessageType::Query, OpCode::Update)), ResponseCode::NotImp);
}

#[test]
fn what_does_not_fit_is_cut() {
    let q = ask("x.cluster.local.", RecordType::A);
    let mut long = empty(&q, ResponseCode::NoError);
    for n in 0..100u8 {
        long.add_answer(Rr::from_rdata(name("x.cluster.local."), TTL, RData::A(A([10, 0, 0, n].into()))));
    }
    let bytes = udp_bytes(&q, &long).unwrap();
    assert!(bytes.len() <= PLAIN_UDP);
    assert!(Message::from_vec(&bytes).unwrap().metadata.truncation);
}
