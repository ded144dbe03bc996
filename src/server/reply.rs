//! Response bodies: a whole one, or lines that come as they happen.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, StatusCode, header};
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;

pub(crate) enum Reply {
    Whole(Option<Bytes>),
    /// Ends when the sender is dropped.
    Lines(mpsc::Receiver<Bytes>),
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Lines(lines) => lines.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line)))),
        }
    }
}

pub(crate) fn reply(status: StatusCode, content_type: &'static str, body: Reply) -> Response<Reply> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}

pub(crate) fn text(status: StatusCode, text: impl Into<String>) -> Response<Reply> {
    reply(status, "text/plain; charset=utf-8", Reply::Whole(Some(Bytes::from(text.into()))))
}
