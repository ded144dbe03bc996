//! The lines of a watch: JSON documents, one a line, arriving in pieces of any size.

use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Body;

/// No object is that large: etcd holds 1.5 MiB. A server that never ends its line must not fill our memory.
const LONGEST_LINE: usize = 16 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    #[error("a line is longer than {LONGEST_LINE} bytes")]
    TooLong,
    #[error("{0}")]
    Transport(#[source] Box<dyn std::error::Error + Send + Sync>),
}

pub(super) struct Lines<B> {
    body: B,
    buffer: BytesMut,
    /// Bytes at the start of the buffer that are known to hold no line end.
    searched: usize,
}

impl<B> Lines<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub(super) fn new(body: B) -> Self {
        Self { body, buffer: BytesMut::new(), searched: 0 }
    }

    /// The next whole line, or None at the end. Half a line at the end is no line: its event is sent
    /// again to whoever watches from the last resourceVersion. Cancel-safe: nothing read is lost.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, LineError> {
        loop {
            if let Some(offset) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + offset);
                self.buffer.advance(1);
                self.searched = 0;
                if self.buffer.is_empty() {
                    // One large object must not leave its buffer behind on an idle watch.
                    self.buffer = BytesMut::new();
                }
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(line.freeze()));
            }
            self.searched = self.buffer.len();
            if self.searched > LONGEST_LINE {
                return Err(LineError::TooLong);
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    let frame = frame.map_err(|error| LineError::Transport(error.into()))?;
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    fn body(pieces: &[&'static str]) -> impl Body<Data = Bytes, Error = std::io::Error> + Unpin {
        let frames: Vec<_> = pieces
            .iter()
            .map(|piece| Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(piece.as_bytes()))))
            .collect();
        StreamBody::new(futures::stream::iter(frames))
    }

    #[tokio::test]
    async fn lines_come_out_whole_however_they_went_in() {
        let cases: [(&str, &[&'static str], &[&str]); 5] = [
            ("one a piece", &["a\n", "b\n"], &["a", "b"]),
            ("two in a piece", &["a\nb\n"], &["a", "b"]),
            ("cut in the middle", &["a", "a\nb", "b\n"], &["aa", "bb"]),
            ("half a line at the end is dropped", &["a\n{\"ty"], &["a"]),
            ("empty lines are not lines", &["\n\r\n", "a\n"], &["a"]),
        ];
        for (name, pieces, expected) in cases {
            let mut lines = Lines::new(body(pieces));
            let mut seen = Vec::new();
            while let Some(line) = lines.next().await.unwrap() {
                seen.push(String::from_utf8(line.to_vec()).unwrap());
            }
            assert_eq!(seen, expected, "{name}");
        }
    }
}
