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
    Lines(LineStream),
}

/// LineStream on their way. What is sent last is flushed before the end of the body is sent: a client that gets both in one
/// read may see the end only. The apiserver does, where it turns a log into WebSocket messages.
pub(crate) struct LineStream {
    from: mpsc::Receiver<Bytes>,
    unflushed: bool,
}

impl From<mpsc::Receiver<Bytes>> for Reply {
    fn from(from: mpsc::Receiver<Bytes>) -> Self {
        Self::Lines(LineStream { from, unflushed: false })
    }
}

impl LineStream {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let polled = self.from.poll_recv(context);
        match &polled {
            Poll::Ready(Some(_)) => self.unflushed = true,
            Poll::Pending => self.unflushed = false,
            Poll::Ready(None) if self.unflushed => {
                self.unflushed = false;
                // The server flushes before it asks again.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(None) => {}
        }
        polled
    }
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
            Self::Lines(lines) => lines.poll(context).map(|line| line.map(|line| Ok(Frame::data(line)))),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_flushed_before_the_end_is_sent() {
        let (sender, lines) = mpsc::channel(2);
        sender.try_send(Bytes::from_static(b"one")).unwrap();
        sender.try_send(Bytes::from_static(b"two")).unwrap();
        drop(sender);
        let mut reply = Reply::from(lines);
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut polled = || match Pin::new(&mut reply).poll_frame(&mut context) {
            Poll::Ready(Some(Ok(frame))) => {
                frame.into_data().map_or_else(|_| "no data".into(), |d| format!("{d:?}"))
            }
            Poll::Ready(None) => "end".into(),
            Poll::Pending => "pending".into(),
        };
        assert_eq!([polled(), polled(), polled(), polled()], ["b\"one\"", "b\"two\"", "pending", "end"]);
    }
}
