//! Counts the responses in what a runtime sends on a connection whose client, and with it what was asked, is gone.
//!
//! By hand, because no HTTP/2 library takes up a connection in its middle, and h2 keeps its frames to itself.

use std::collections::BTreeSet;

/// Of a frame: its length, its type, its flags and the stream it belongs to (RFC 9113, 4.1).
const HEAD: usize = 9;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
/// The last type that servers send.
const CONTINUATION: u8 = 9;
const END_OF_STREAM: u8 = 1;

/// What was seen of a connection so far. It is read from between two frames on, as they are sent whole.
#[derive(Debug, Default)]
pub struct ResponseCounter {
    head: Vec<u8>,
    /// Bytes of the frame's body that are still to come.
    body: usize,
    ended: BTreeSet<u32>,
}

impl ResponseCounter {
    /// Reads what came next and returns how many calls have ended in all; None for bytes that are no frames.
    pub fn read(&mut self, mut bytes: &[u8]) -> Option<usize> {
        loop {
            let skipped = self.body.min(bytes.len());
            self.body -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return Some(self.ended.len());
            }
            let (more, rest) = bytes.split_at(bytes.len().min(HEAD - self.head.len()));
            self.head.extend_from_slice(more);
            bytes = rest;
            if let [l1, l2, l3, kind, flags, s1, s2, s3, s4] = self.head[..] {
                self.head.clear();
                if kind > CONTINUATION {
                    return None;
                }
                self.body = u32::from_be_bytes([0, l1, l2, l3]) as usize;
                if kind == RESET || (kind == HEADERS && flags & END_OF_STREAM != 0) {
                    self.ended.insert(u32::from_be_bytes([s1, s2, s3, s4]) & 0x7fff_ffff);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, body: &[u8]) -> Vec<u8> {
        let length = u8::try_from(body.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, stream], body].concat()
    }

    #[test]
    fn a_response_is_a_stream_that_ended_however_the_bytes_are_cut() {
        let sent = [
            frame(4, 0, 0, &[0; 6]),        // SETTINGS
            frame(1, 4, 1, b"status"),      // the head of a response
            frame(0, 0, 1, &[9; 40]),       // its body
            frame(8, 0, 0, &[0, 0, 0, 40]), // WINDOW_UPDATE
            frame(1, 5, 1, b"trailers"),
            frame(1, 5, 3, b"refused at once"),
            frame(3, 0, 5, &[0; 4]),
            frame(3, 0, 1, &[0; 4]), // once more
        ]
        .concat();
        for size in [1, 2, 5, 9, 13, sent.len()] {
            let mut counter = ResponseCounter::default();
            let counts: Vec<_> = sent.chunks(size).map(|chunk| counter.read(chunk)).collect();
            assert_eq!(counts.last(), Some(&Some(3)), "in pieces of {size}: {counts:?}");
        }
    }

    #[test]
    fn what_is_no_frame_is_not_counted() {
        assert_eq!(ResponseCounter::default().read(b"HTTP/1.1 400 Bad Request\r\n"), None);
    }
}
