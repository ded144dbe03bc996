//! Response bodies: a whole one, or lines that come as they happen.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, StatusCode, header};
use hyper::body::{Body, Frame, SizeHint};
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

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    /// Known for a whole body, which is then sent with its length instead of in chunks.
    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Lines(_) => SizeHint::default(),
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

pub(crate) fn json(status: StatusCode, value: &impl serde::Serialize) -> Response<Reply> {
    match serde_json::to_vec(value) {
        Ok(bytes) => reply(status, "application/json", Reply::Whole(Some(bytes.into()))),
        Err(error) => {
            text(StatusCode::INTERNAL_SERVER_ERROR, format!("the answer cannot be written: {error}\n"))
        }
    }
}
