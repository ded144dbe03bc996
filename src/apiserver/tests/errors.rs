use keelson_fakes::api::Fault;

use super::*;
use crate::ErrorKind;

#[tokio::test]
async fn a_busy_server_is_asked_again_when_it_said() {
    let rig = rig().await;
    rig.fake.put("pods", &pod("a"));
    rig.fake.fault("get", "pods", 2, Fault::Busy(0));
    let found = soon(rig.api.get_pod("default", "a")).await.unwrap();
    assert!(found.is_some());
    assert_eq!(rig.fake.requests("get", "pods"), 3);
}

#[tokio::test]
async fn a_server_that_stays_busy_is_reported_as_busy() {
    let rig = rig().await;
    rig.fake.fault("get", "pods", 100, Fault::Busy(0));
    let error = soon(rig.api.get_pod("default", "a")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::TooManyRequests { retry_after: Duration::ZERO });
    assert!(error.is_transient());
}

#[tokio::test]
async fn a_long_wait_is_left_to_the_caller() {
    let rig = rig().await;
    rig.fake.fault("get", "pods", 1, Fault::Busy(3600));
    let error = soon(rig.api.get_pod("default", "a")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::TooManyRequests { retry_after: Duration::from_secs(3600) });
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_once_more() {
    let rig = rig().await;
    rig.fake.put("pods", &pod("a"));
    rig.fake.fault("get", "pods", 1, Fault::LostAnswer);
    assert!(soon(rig.api.get_pod("default", "a")).await.unwrap().is_some());
}

#[tokio::test]
async fn a_failure_names_the_operation_the_object_and_the_cause() {
    let mut rig = rig().await;
    rig.fake.fault("get", "pods", 1, Fault::Status(403));
    rig.fake.fault("get", "pods", 1, Fault::Status(401));
    let forbidden = soon(rig.api.get_pod("default", "a")).await.unwrap_err();
    assert_eq!((forbidden.kind, forbidden.operation.as_str()), (ErrorKind::Forbidden, "get pod default/a"));
    let unauthorized = soon(rig.api.get_pod("default", "a")).await.unwrap_err();
    assert_eq!(unauthorized.kind, ErrorKind::Unauthorized);
    assert!(unauthorized.message.contains("kubeconfig"), "{unauthorized}");
    rig.fake.stop().await;
    let unreachable = soon(rig.api.get_pod("default", "a")).await.unwrap_err();
    assert_eq!(unreachable.kind, ErrorKind::Unreachable);
    let text = unreachable.to_string();
    assert!(text.contains(&rig.fake.url) && text.contains("refused"), "{text}");
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up_on() {
    let rig = rig_with(Timings { request: Duration::from_millis(50), ..impatient() }).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let path = rig.fake.kubeconfig(rig.directory.path());
    std::fs::write(&path, std::fs::read_to_string(&path).unwrap().replace(&rig.fake.url, &url)).unwrap();
    let options = ClientOptions {
        timings: Timings { request: Duration::from_millis(50), ..impatient() },
        ..ClientOptions::new(&path, "n1")
    };
    let api = Api::connect(&options).await.unwrap();
    let error = soon(api.get_pod("default", "a")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unreachable);
    assert!(error.message.contains("did not answer"), "{error}");
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_used_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    let cases = [
        ("missing", None),
        ("not yaml", Some("{{{".to_owned())),
        ("empty", Some(String::new())),
        (
            "names a certificate that is not there",
            Some(
                json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
                    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
                    "users": [{"name": "u", "user": {"client-certificate": "/nonexistent.crt", "client-key": "/nonexistent.key"}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]})
                .to_string(),
            ),
        ),
    ];
    for (name, content) in cases {
        let _ = std::fs::remove_file(&path);
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        let Err(error) = Api::connect(&ClientOptions::new(&path, "n1")).await else {
            panic!("{name}: accepted")
        };
        assert_eq!(error.kind, ErrorKind::Config, "{name}");
        assert!(error.to_string().contains("kubeconfig"), "{name}: {error}");
    }
}

#[tokio::test]
async fn a_replaced_kubeconfig_is_taken_up_without_a_restart() {
    let rig = rig().await;
    let second = FakeApi::start().await;
    second.put("pods", &pod("a"));
    assert!(soon(rig.api.get_pod("default", "a")).await.unwrap().is_none());
    let path = rig.directory.path().join("kubeconfig");
    std::fs::write(&path, "half a kubeconf").unwrap();
    assert!(
        soon(rig.api.get_pod("default", "a")).await.unwrap().is_none(),
        "the old identity serves meanwhile"
    );
    second.kubeconfig(rig.directory.path());
    assert!(soon(rig.api.get_pod("default", "a")).await.unwrap().is_some());
}
