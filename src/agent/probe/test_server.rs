//! For tests: a server that answers what it is told to, remembers what it was asked, and a container to ask it for.

use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Pod};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use keelson_apiserver::EventRecorder;
use keelson_core::ids::ContainerId;
use keelson_cri::Runtime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::handler::Place;
use super::resolver::Resolver;

/// Gone when it is dropped.
pub struct TestServer {
    pub port: u16,
    asked: Arc<Mutex<Vec<String>>>,
    _task: AbortOnDropHandle<()>,
}

impl TestServer {
    /// `answer` makes the whole answer from a request's path.
    pub async fn start(answer: impl Fn(&str) -> String + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let log = asked.clone();
        let task = tokio::spawn(async move {
            while let Ok((mut peer, _)) = listener.accept().await {
                let request = read_head(&mut peer).await;
                let answer = match request.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()) {
                    Some(path) => answer(path),
                    None => "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n".to_owned(),
                };
                log.lock().unwrap().push(request);
                let _ = peer.write_all(answer.as_bytes()).await;
            }
        });
        Self { port, asked, _task: AbortOnDropHandle::new(task) }
    }

    /// Every request so far, as it came.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    pub fn get(&self, path: &str) -> HTTPGetAction {
        get(self.port, path)
    }
}

pub fn get(port: u16, path: &str) -> HTTPGetAction {
    HTTPGetAction { path: Some(path.into()), port: IntOrString::Int(port.into()), ..Default::default() }
}

/// A port that nobody listens on, for as long as it is kept.
pub struct Closed {
    pub port: u16,
    _socket: TcpSocket,
}

impl Closed {
    pub fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((std::net::Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        Self { port: socket.local_addr().unwrap().port(), _socket: socket }
    }
}

async fn read_head(peer: &mut TcpStream) -> String {
    let mut head = vec![];
    let mut chunk = [0; 4096];
    loop {
        let read = peer.read(&mut chunk).await.unwrap_or(0);
        head.extend_from_slice(&chunk[..read]);
        let text = String::from_utf8_lossy(&head);
        if read == 0 || !text.starts_with("GET ") || text.contains("\r\n\r\n") {
            return text.into_owned();
        }
    }
}

/// An answer with a body of its length.
pub fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}")
}

/// A container that is on this machine, of a runtime that is not there.
pub fn place(spec: Container) -> Place {
    let second = std::time::Duration::from_secs(1);
    Place {
        runtime: Runtime::connect("unix:///nonexistent", None, second).unwrap(),
        container: ContainerId::try_from(format!("{}-0", spec.name)).unwrap(),
        pod_ip: Some(std::net::Ipv4Addr::LOCALHOST.into()),
        spec: Arc::new(spec),
        pod: Arc::new(Pod::default()),
        events: EventRecorder::standalone(),
        resolver: Resolver::for_pod(),
    }
}
