//! The standard health question of gRPC services (grpc.health.v1), as a probe asks it.

use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

/// An answer is a few bytes; more must not fill the agent's memory.
const ANSWER_LIMIT: usize = 4 * 1024;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Question {
    #[prost(string, tag = "1")]
    pub service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Answer {
    #[prost(int32, tag = "1")]
    pub status: i32,
}

/// An error says what the service answered instead of SERVING, or why it did not answer.
pub async fn check(target: &str, service: &str) -> Result<(), String> {
    let endpoint = Endpoint::from_shared(format!("http://{target}")).map_err(|e| e.to_string())?;
    let channel = endpoint.connect().await.map_err(|e| reason(&e))?;
    let mut client = Grpc::new(channel).max_decoding_message_size(ANSWER_LIMIT);
    client.ready().await.map_err(|e| reason(&e))?;
    let codec = ProstCodec::<Question, Answer>::default();
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    match client.unary(Request::new(Question { service: service.into() }), path, codec).await {
        Ok(answer) => match answer.into_inner().status {
            1 => Ok(()),
            2 => Err("it answered NOT_SERVING".into()),
            3 => Err(format!("it does not know the service {service:?}")),
            other => Err(format!("it answered with the unknown status {other}")),
        },
        Err(status) if status.code() == Code::NotFound => {
            Err(format!("it does not know the service {service:?}"))
        }
        Err(status) if status.code() == Code::Unimplemented => {
            Err("it does not implement grpc.health.v1.Health".into())
        }
        Err(status) => Err(format!("{:?}: {}", status.code(), status.message())),
    }
}

/// The innermost cause, since the outer ones only say that something went wrong.
fn reason(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{Ready, ready};
    use std::net::SocketAddr;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::net::TcpListener;
    use tonic::body::Body;
    use tonic::codegen::Service;
    use tonic::server::{NamedService, UnaryService};
    use tonic::{Response, Status};

    use super::*;

    /// Answers with the status that the asked service's name is.
    #[derive(Clone)]
    struct Health;

    impl NamedService for Health {
        const NAME: &'static str = "grpc.health.v1.Health";
    }

    impl UnaryService<Question> for Health {
        type Response = Answer;
        type Future = Ready<Result<Response<Answer>, Status>>;

        fn call(&mut self, request: Request<Question>) -> Self::Future {
            let asked = request.into_inner().service;
            let status = asked.parse().map_err(|_| Status::not_found("unknown service"));
            ready(status.map(|status| Response::new(Answer { status })))
        }
    }

    impl Service<http::Request<Body>> for Health {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<Body>) -> Self::Future {
            Box::pin(async move {
                let mut grpc = tonic::server::Grpc::new(ProstCodec::<Answer, Question>::default());
                Ok(grpc.unary(Health, request).await)
            })
        }
    }

    async fn serve() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        tokio::spawn(tonic::transport::Server::builder().add_service(Health).serve_with_incoming(incoming));
        address
    }

    #[tokio::test]
    async fn only_serving_is_well() {
        let target = serve().await.to_string();
        assert_eq!(check(&target, "1").await, Ok(()));
        for (service, told) in [
            ("2", "it answered NOT_SERVING"),
            ("3", "it does not know the service \"3\""),
            ("0", "it answered with the unknown status 0"),
            ("other", "it does not know the service \"other\""),
        ] {
            assert_eq!(check(&target, service).await, Err(told.to_owned()), "{service}");
        }
    }

    #[tokio::test]
    async fn nobody_there_and_no_grpc_are_told() {
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = closed.local_addr().unwrap().to_string();
        drop(closed);
        let refused = check(&target, "").await.unwrap_err();
        assert!(refused.contains("refused"), "{refused}");

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (mut peer, _) = listener.accept().await.unwrap();
            let _ = tokio::io::AsyncWriteExt::write_all(&mut peer, b"HTTP/1.0 200 OK\r\n\r\n").await;
        });
        assert!(check(&target, "").await.is_err());
    }
}
