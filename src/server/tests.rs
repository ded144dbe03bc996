use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use keelson_agent::registry::Registry;
use keelson_core::ids::PodUid;
use keelson_core::timeline::Beginning;
use keelson_core::view::PodRow;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::{client, healthz, local};

fn row(name: &str, phase: &str) -> PodRow {
    PodRow {
        uid: format!("uid-{name}"),
        namespace: "default".into(),
        name: name.into(),
        source: "file".into(),
        phase: phase.into(),
        ready_containers: 0,
        containers: 1,
        ready: false,
        restarts: 0,
        ip: None,
        created_at: None,
        reason: String::new(),
    }
}

struct Served {
    socket: PathBuf,
    registry: Registry,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    _directory: tempfile::TempDir,
}

async fn served() -> Served {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("run/keelson.sock");
    let (registry, shutdown) = (Registry::default(), CancellationToken::new());
    let local = local::listen(&socket).await.unwrap();
    let task = tokio::spawn(local::serve(local, registry.clone(), shutdown.clone()));
    Served { socket, registry, shutdown, task, _directory: directory }
}

async fn exchange(socket: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    // A server that drops the connection mid-request may reset it; what it said before still counts.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = vec![];
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn the_socket_is_for_its_owner_only_and_goes_with_the_agent() {
    let served = served().await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&served.socket), 0o600);
    assert_eq!(mode(served.socket.parent().unwrap()), 0o700);
    served.shutdown.cancel();
    served.task.await.unwrap();
    assert!(!served.socket.exists());
}

#[tokio::test]
async fn pods_are_listed_sorted_and_watched_as_they_change() {
    let served = served().await;
    for (name, phase) in [("b", "Pending"), ("a", "Running")] {
        let uid = PodUid::try_from(name).unwrap();
        served.registry.publish(&uid, &Arc::default(), Arc::default(), row(name, phase));
    }
    let names: Vec<_> = client::pods(&served.socket).await.unwrap().into_iter().map(|row| row.name).collect();
    assert_eq!(names, ["a", "b"]);

    let mut snapshots = client::watch_pods(&served.socket).await.unwrap();
    assert_eq!(snapshots.next().await.unwrap().unwrap().len(), 2);
    served.registry.remove(&PodUid::try_from("a").unwrap());
    let after = snapshots.next().await.unwrap().unwrap();
    assert_eq!(after.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["b"]);
    served.shutdown.cancel();
    // A broken-off answer and a finished one both show a watcher that the agent is gone.
    assert!(!matches!(snapshots.next().await, Ok(Some(_))));
}

#[tokio::test]
async fn a_pod_is_asked_after_by_name_and_an_unknown_one_is_answered_with_what_is_known() {
    let served = served().await;
    let uid = PodUid::try_from("u1").unwrap();
    let timelines = served.registry.timelines();
    timelines.of(&uid, |began| Beginning::left(&uid, "ns", "a b&c", began));
    let report = client::why(&served.socket, "a b&c", Some("ns")).await.unwrap();
    assert_eq!((report.uid.as_str(), report.phase.as_str()), ("u1", "Pending"));
    let unknown = client::why(&served.socket, "a b&d", None).await.unwrap_err().to_string();
    assert!(
        unknown.starts_with("no pod called a b&d") && unknown.ends_with("similar: ns/a b&c"),
        "{unknown}"
    );
    served.registry.remove(&uid);
    assert_eq!(client::why(&served.socket, "u1", None).await.unwrap().phase, "Gone");
    for request in ["/why", "/why?pod=", "/why?pod=%f"] {
        let answer = exchange(
            &served.socket,
            &format!("GET {request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
        )
        .await;
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("which pod?"), "{request}: {answer}");
    }
}

#[tokio::test]
async fn bad_requests_are_answered_and_the_next_one_is_served() {
    let served = served().await;
    for (case, request, expected) in [
        (
            "another path",
            "GET /../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 404",
        ),
        ("another method", "POST /pods HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 405"),
        (
            "another parameter",
            "GET /pods?x=y HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 400",
        ),
        ("not HTTP", "hello\r\n\r\n", "HTTP/1.1 400"),
        ("health", "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 200"),
    ] {
        let answer = exchange(&served.socket, request).await;
        assert!(answer.starts_with(expected), "{case}: {answer}");
    }
    let huge = format!("GET /pods HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(1 << 20));
    let answer = exchange(&served.socket, &huge).await;
    assert!(!answer.starts_with("HTTP/1.1 200"), "a head of 1 MiB was read");
    assert!(client::pods(&served.socket).await.unwrap().is_empty());
}

#[tokio::test]
async fn without_an_agent_the_client_says_which_socket_is_silent() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("keelson.sock");
    let error = client::pods(&socket).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("no agent answers on {}: ", socket.display())), "{error}");
}

#[tokio::test]
async fn healthz_says_ok_or_what_is_wrong() {
    let well = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let state = well.clone();
    let health: healthz::Health = Arc::new(move || {
        if state.load(std::sync::atomic::Ordering::Relaxed) { Ok(()) } else { Err("no progress".into()) }
    });
    tokio::spawn(healthz::serve(listener, health, CancellationToken::new()));
    let ask = async |path: &str| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    assert!(ask("/healthz").await.ends_with("ok"));
    assert!(ask("/pods").await.starts_with("HTTP/1.1 404"));
    well.store(false, std::sync::atomic::Ordering::Relaxed);
    assert!(ask("/healthz").await.contains("unhealthy: no progress"));
}

#[tokio::test]
async fn port_0_switches_healthz_off_and_a_busy_port_is_named() {
    let mut config = keelson_core::config::KubeletConfiguration::default();
    config.healthz_port = 0;
    assert!(healthz::listen(&config).await.unwrap().is_none());
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    config.healthz_port = taken.local_addr().unwrap().port().into();
    let error = healthz::listen_within(&config, Duration::ZERO).await.unwrap_err().to_string();
    assert!(error.contains(&format!("127.0.0.1:{}", config.healthz_port)), "{error}");
}
