use std::time::Duration;

use crate::api::Method;
use crate::api::registration::{InfoRequest, PluginInfo};
use crate::{Answers, Code, Connection, Error, Limits, Server, SocketPath, Status};

const ECHO: Method<PluginInfo, PluginInfo> = Method::new("/test.Service/Echo");
const COUNT: Method<InfoRequest, PluginInfo> = Method::new("/test.Service/Count");
const SOON: Duration = Duration::from_secs(20);

fn named(name: impl Into<String>) -> PluginInfo {
    PluginInfo { name: name.into(), ..PluginInfo::default() }
}

fn server() -> Server {
    Server::new()
        .unary(&ECHO, |q: PluginInfo| async move {
            match q.name.as_str() {
                "hang" => futures::future::pending().await,
                "fail" => Err(Status::failed_precondition("volume is in use")),
                "long" => Ok(named("x".repeat(5 << 20))),
                "verbose" => Err(Status::internal("y".repeat(3000))),
                _ => Ok(q),
            }
        })
        .streaming(&COUNT, |_| async {
            let items = futures::stream::iter(["1", "2"].map(|n| Ok(named(n))));
            Ok(Box::pin(items) as Answers<PluginInfo>)
        })
}

#[tokio::test]
async fn calls_have_deadlines_limits_and_go_s_errors() {
    let directory = tempfile::tempdir().unwrap();
    // Longer than the address of a socket may be.
    let long = directory.path().join("d".repeat(120));
    std::fs::create_dir(&long).unwrap();
    let socket = SocketPath::below(&long, "/csi.sock");
    let connection = Connection::new(socket.clone(), Limits::default());
    let call = |name: &str, deadline| {
        let (connection, name) = (connection.clone(), name.to_owned());
        async move { connection.call(&ECHO, named(name), deadline).await }
    };
    let error = call("a", SOON).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    assert!(error.to_string().contains("No such file or directory"), "{error}");

    let running = server().serve(&socket).unwrap();
    assert_eq!(call("a", SOON).await.unwrap().name, "a");
    let error = call("hang", Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(error.to_string(), "rpc error: code = DeadlineExceeded desc = context deadline exceeded");
    let error = call("fail", SOON).await.unwrap_err();
    assert_eq!(error.to_string(), "rpc error: code = FailedPrecondition desc = volume is in use");
    assert_eq!(call("long", SOON).await.unwrap_err().code(), Code::OutOfRange);
    assert!(call("verbose", SOON).await.unwrap_err().to_string().len() < 1200);
    let absent: Method<PluginInfo, PluginInfo> = Method::new("/test.Service/Absent");
    let error = connection.call(&absent, named("a"), SOON).await.unwrap_err();
    assert_eq!(error.to_string(), "rpc error: code = Unimplemented desc = unknown method /test.Service/Absent");

    let mut messages = connection.stream(&COUNT, InfoRequest {}, SOON).await.unwrap();
    let mut names = Vec::new();
    while let Some(message) = messages.next().await.unwrap() {
        names.push(message.name);
    }
    assert_eq!(names, ["1", "2"]);

    // Another server takes the socket over.
    let replaced = server().serve(&socket).unwrap();
    drop(running);
    assert_eq!(call("b", SOON).await.unwrap().name, "b");
    drop(replaced);
}

#[tokio::test]
async fn a_socket_is_not_searched_beyond_its_directory() {
    let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let outside = SocketPath::below(elsewhere.path(), "csi.sock");
    let _running = server().serve(&outside).unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("csi.sock"), directory.path().join("link.sock")).unwrap();
    let through_link = SocketPath::below(directory.path(), "link.sock");
    let error = Connection::new(through_link, Limits::default()).call(&ECHO, named("a"), SOON).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error}");
}
