use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, HTTPHeader};
use keelson_core::probe::Outcome;

use crate::probe::handler;
use crate::probe::test_server::{Closed, TestServer, answer, get, place};

/// Nothing here takes that long.
const LIMIT: Duration = Duration::from_secs(60);

fn container() -> Container {
    Container { name: "c".into(), ..Default::default() }
}

fn header(name: &str, value: &str) -> HTTPHeader {
    HTTPHeader { name: name.into(), value: value.into() }
}

async fn serve() -> TestServer {
    TestServer::start(|path| match path {
        "/ok" => answer("200 OK", "", "fine"),
        "/sick" => answer("503 Service Unavailable", "", "secret"),
        "/to-ok" => answer("302 Found", "location: /ok\r\n", ""),
        "/to-sick" => answer("301 Moved Permanently", "location: sick\r\n", ""),
        "/away" => answer("302 Found", "location: http://0.0.0.0/\r\n", "<a href=\"http://0.0.0.0/\">"),
        "/round" => answer("307 Temporary Redirect", "location: /round\r\n", ""),
        "/half" => "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf".to_owned(),
        _ => answer("404 Not Found", "", ""),
    })
    .await
}

#[tokio::test]
async fn the_answer_at_the_end_of_all_redirects_is_judged() {
    let server = serve().await;
    let url = format!("http://127.0.0.1:{}", server.port);
    let failure = |status| Outcome::Failure(format!("HTTP probe failed with statuscode: {status}"));
    let away = "Probe terminated redirects, Response body: <a href=\"http://0.0.0.0/\">";
    for (path, expected, requests) in [
        ("/ok", Outcome::Success, 1),
        ("/sick", failure(503), 1),
        ("/to-ok", Outcome::Success, 2),
        ("/to-sick", failure(503), 2),
        ("/away", Outcome::Warning(away.into()), 1),
        ("/round", Outcome::Failure(format!("Get \"{url}/round\": stopped after 10 redirects")), 10),
    ] {
        let before = server.asked().len();
        let outcome = handler::http(&place(container()), &server.get(path), LIMIT).await;
        assert_eq!((outcome, server.asked().len() - before), (expected, requests), "{path}");
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_proves_nothing() {
    let server = serve().await;
    let outcome = handler::http(&place(container()), &server.get("/half"), LIMIT).await;
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
}

#[tokio::test]
async fn headers_are_the_pods_and_the_rest_is_default() {
    let server = serve().await;
    let own = format!("host: 127.0.0.1:{}", server.port);
    for (name, given, has, lacks) in [
        ("none given", vec![], vec!["user-agent: kube-probe/1.36", "accept: */*", &own], vec![]),
        (
            "other ones",
            vec![header("User-Agent", "me"), header("Host", "example.org"), header("X-Empty", "")],
            vec!["user-agent: me", "accept: */*", "host: example.org", "x-empty:"],
            vec!["kube-probe", &own],
        ),
        (
            "defaults taken away",
            vec![header("user-agent", ""), header("accept", ""), header("host", "")],
            vec![&own],
            vec!["user-agent", "accept"],
        ),
    ] {
        let mut get = server.get("/to-ok");
        get.http_headers = Some(given);
        assert_eq!(handler::http(&place(container()), &get, LIMIT).await, Outcome::Success, "{name}");
        for request in server.asked().iter().rev().take(2) {
            let lines: Vec<_> = request.to_lowercase().lines().map(|l| l.trim_end().to_owned()).collect();
            assert!(has.iter().all(|h| lines.iter().any(|l| l == h)), "{name}: {request}");
            assert!(!lacks.iter().any(|h| lines.iter().any(|l| l.contains(h))), "{name}: {request}");
        }
    }
}

#[tokio::test]
async fn nobody_there_is_said_in_known_words() {
    let closed = Closed::new();
    let port = closed.port;
    let outcome = handler::http(&place(container()), &get(port, "/ok"), LIMIT).await;
    let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!(outcome, Outcome::Failure(format!("Get \"http://127.0.0.1:{port}/ok\": {refused}")));
}
