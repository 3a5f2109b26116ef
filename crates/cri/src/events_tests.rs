//! Events of a runtime with and without a stream of events: a server that answers what the agent calls when it opens a runtime.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::stream::unfold;
use k8s_cri::v1;
use plugins::api::Method;
use plugins::{Answers, Running, Server, SocketPath, Status};
use runtime::{Event, LogLimits, Runtime, Timestamp};
use tokio::sync::{broadcast, watch};

use super::Pace;
use crate::{Cri, Options};

macro_rules! method {
    ($name:literal) => {
        &Method::new(concat!("/runtime.v1.RuntimeService/", $name))
    };
}

const PATIENCE: Duration = Duration::from_secs(30);
/// Nothing is listed for longer than the test takes, unless there is no stream.
const PACE: Pace = Pace {
    poll: Duration::from_millis(5),
    check: Duration::from_secs(3600),
    retry: Duration::from_millis(5),
    gather: Duration::from_millis(1),
};

/// What becomes of the stream of events.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    /// This many events have been sent.
    Sent(usize),
    /// It ends.
    Ended,
    /// The runtime has none.
    Absent,
}

#[derive(Default)]
struct State {
    containers: Mutex<Vec<v1::Container>>,
    listed: AtomicUsize,
    opened: AtomicUsize,
}

struct Fake {
    state: Arc<State>,
    stream: watch::Sender<Stream>,
    _server: Running,
    directory: tempfile::TempDir,
}

impl Fake {
    fn start(stream: Stream) -> Self {
        let (state, stream) = (Arc::new(State::default()), watch::Sender::new(stream));
        let directory = tempfile::tempdir().unwrap();
        let (listing, opening, sent) = (state.clone(), state.clone(), stream.clone());
        let server = Server::new()
            .unary(method!("Version"), |_: v1::VersionRequest| async {
                Ok(v1::VersionResponse { runtime_name: "fake".into(), ..v1::VersionResponse::default() })
            })
            .unary(method!("Status"), |_: v1::StatusRequest| async { Ok(v1::StatusResponse::default()) })
            .unary(method!("ListPodSandbox"), |_: v1::ListPodSandboxRequest| async {
                Ok(v1::ListPodSandboxResponse::default())
            })
            .unary(&Method::new("/runtime.v1.ImageService/ListImages"), |_: v1::ListImagesRequest| async {
                Ok(v1::ListImagesResponse::default())
            })
            .unary(method!("ListContainers"), move |_: v1::ListContainersRequest| {
                listing.listed.fetch_add(1, Ordering::SeqCst);
                let containers = listing.containers.lock().unwrap().clone();
                async { Ok(v1::ListContainersResponse { containers }) }
            })
            .unary(method!("ContainerStatus"), |request: v1::ContainerStatusRequest| async {
                let status = v1::ContainerStatus {
                    id: request.container_id,
                    state: v1::ContainerState::ContainerExited.into(),
                    exit_code: 3,
                    ..v1::ContainerStatus::default()
                };
                Ok(v1::ContainerStatusResponse { status: Some(status), ..v1::ContainerStatusResponse::default() })
            })
            .streaming(method!("GetContainerEvents"), move |_: v1::GetEventsRequest| {
                let sent = sent.subscribe();
                opening.opened.fetch_add(1, Ordering::SeqCst);
                async move {
                    if *sent.borrow() == Stream::Absent {
                        return Err(Status::unimplemented("unknown method GetContainerEvents"));
                    }
                    let events = unfold(sent, |mut sent| async move {
                        sent.changed().await.ok()?;
                        let is_open = matches!(*sent.borrow_and_update(), Stream::Sent(_));
                        is_open.then(|| (Ok(v1::ContainerEventResponse::default()), sent))
                    });
                    Ok(Box::pin(events) as Answers<v1::ContainerEventResponse>)
                }
            });
        let server = server.serve(&SocketPath::below(directory.path(), "cri.sock")).unwrap();
        Self { state, stream, _server: server, directory }
    }

    async fn open(&self) -> (Cri, broadcast::Receiver<Event>) {
        let options = Options {
            endpoint: format!("unix://{}", self.directory.path().join("cri.sock").display()).parse().unwrap(),
            image_endpoint: None,
            directory: self.directory.path().join("files"),
            cgroup_prefix: "kemudi-test-events".into(),
            owner: "node".into(),
            clock: Arc::new(|| Timestamp { secs: 1_000_000, nanos: 0 }),
            timeout: PATIENCE,
            log_limits: LogLimits::default(),
        };
        let cri = Cri::connect(options, PACE).await.unwrap();
        let events = cri.subscribe();
        (cri, events)
    }

    fn listed(&self) -> usize {
        self.state.listed.load(Ordering::SeqCst)
    }

    fn set(&self, id: &str, state: v1::ContainerState) {
        let mut all = self.state.containers.lock().unwrap();
        all.retain(|c| c.id != id);
        all.push(v1::Container { id: id.into(), state: state.into(), ..v1::Container::default() });
    }

    fn send_event(&self) {
        self.stream.send_modify(|s| {
            *s = match *s {
                Stream::Sent(n) => Stream::Sent(n + 1),
                other => other,
            }
        });
    }
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !is() {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn next(events: &mut broadcast::Receiver<Event>) -> Event {
    tokio::time::timeout(PATIENCE, events.recv()).await.expect("an event in time").unwrap()
}

fn started(id: &str) -> Event {
    Event::ContainerStarted { pod: String::new(), container: id.into() }
}

#[tokio::test]
async fn a_stream_of_events_replaces_polling_while_it_lasts() {
    let fake = Fake::start(Stream::Sent(0));
    let (cri, mut events) = fake.open().await;
    until("the stream is open", || fake.state.opened.load(Ordering::SeqCst) == 1).await;
    // It is listed once more when the stream has been opened.
    until("it was listed", || fake.listed() >= 2).await;
    let before = fake.listed();
    let begun = tokio::time::Instant::now();
    while begun.elapsed() < PACE.poll * 20 {
        cri.status().await.unwrap();
    }
    fake.set("a", v1::ContainerState::ContainerRunning);
    assert!(fake.listed() <= before + 1, "it is polled all the same: {} and {before}", fake.listed());
    fake.send_event();
    assert_eq!(next(&mut events).await, started("a"));
    // Without a stream, it is polled.
    fake.stream.send_replace(Stream::Ended);
    fake.stream.send_replace(Stream::Absent);
    let before = fake.listed();
    until("it is polled", || fake.listed() > before + 3).await;
    fake.set("a", v1::ContainerState::ContainerExited);
    let exited = Event::ContainerExited { pod: String::new(), container: "a".into(), exit_code: 3 };
    assert_eq!(next(&mut events).await, exited);
}

#[tokio::test]
async fn a_runtime_without_a_stream_is_polled() {
    let fake = Fake::start(Stream::Absent);
    let (_cri, mut events) = fake.open().await;
    fake.set("a", v1::ContainerState::ContainerRunning);
    assert_eq!(next(&mut events).await, started("a"));
    // A newer runtime at the same socket has one.
    fake.stream.send_replace(Stream::Sent(0));
    let before = fake.state.opened.load(Ordering::SeqCst);
    until("it is asked again", || fake.state.opened.load(Ordering::SeqCst) > before).await;
}
