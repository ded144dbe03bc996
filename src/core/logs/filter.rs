//! Turns a log file's bytes into the bytes that somebody asked for, block by block.
//!
//! Nothing but the head of an entry is ever held back, so a line of any length passes through in constant memory, and
//! its text passes byte for byte.

use jiff::Timestamp;

use super::entry::{self, Reading, Source};
use super::request::Stream;

#[derive(Debug, Clone)]
pub struct Filter {
    since: Option<(i64, u32)>,
    timestamps: bool,
    stream: Stream,
    /// How many bytes may still be shown.
    bytes_left: u64,
    /// How many entries may still be shown.
    entries_left: u64,
    /// What comes next begins a line, also when that line is put together from several entries.
    at_line_start: bool,
    place: Place,
    /// The beginning of an entry whose head is not complete yet.
    head: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Head,
    Text {
        shown: bool,
        partial: bool,
        empty: bool,
    },
    /// In an entry that is not in the format; its end is awaited.
    Foreign,
}

impl Filter {
    pub fn new(since: Option<Timestamp>, timestamps: bool, stream: Stream, limit: Option<u64>) -> Self {
        let since = since.map(|t| {
            // A moment before 1970 has a negative fraction.
            let nanos = t.subsec_nanosecond();
            let borrow = i64::from(nanos < 0);
            let nanos = nanos + if nanos < 0 { 1_000_000_000 } else { 0 };
            (t.as_second() - borrow, u32::try_from(nanos).unwrap_or_default())
        });
        Self {
            since,
            timestamps,
            stream,
            bytes_left: limit.unwrap_or(u64::MAX),
            entries_left: u64::MAX,
            at_line_start: true,
            place: Place::Head,
            head: Vec::new(),
        }
    }

    /// Ends after so many entries, wanted ones or not. For a tail that is not followed, so that what is written
    /// meanwhile does not make it longer.
    pub fn at_most(mut self, entries: u64) -> Self {
        self.entries_left = entries;
        self
    }

    /// True when nothing more will be shown.
    pub fn is_done(&self) -> bool {
        self.bytes_left == 0 || self.entries_left == 0
    }

    /// Takes the next bytes of the file and appends to `out` what of them is shown.
    pub fn push(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() && !self.is_done() {
            let newline = memchr::memchr(b'\n', input);
            let (piece, rest) = input.split_at(newline.map_or(input.len(), |at| at + 1));
            input = rest;
            self.piece(piece, newline.is_some(), out);
        }
    }

    /// The file has ended, maybe in the middle of an entry: that counts as an end of the entry.
    pub fn end_of_file(&mut self, out: &mut Vec<u8>) {
        let held = std::mem::take(&mut self.head);
        if !held.is_empty() {
            self.begin(&held, true, out);
        }
        if let Place::Text { empty, partial, .. } = self.place {
            self.at_line_start = partial && empty;
            self.entries_left = self.entries_left.saturating_sub(1);
        }
        self.place = Place::Head;
    }

    /// A part of one entry; `whole` if it goes to the entry's end.
    fn piece(&mut self, piece: &[u8], whole: bool, out: &mut Vec<u8>) {
        match self.place {
            Place::Head if self.head.is_empty() => self.begin(piece, whole, out),
            Place::Head => {
                let mut held = std::mem::take(&mut self.head);
                held.extend_from_slice(piece);
                self.begin(&held, whole, out);
            }
            Place::Text { shown, partial, empty } => self.text(piece, whole, shown, partial, empty, out),
            Place::Foreign if whole => self.place = Place::Head,
            Place::Foreign => {}
        }
    }

    fn begin(&mut self, bytes: &[u8], whole: bool, out: &mut Vec<u8>) {
        match entry::read_head(bytes) {
            Reading::Head(head) => {
                let wanted = match (self.stream, head.source) {
                    (Stream::All, _) => true,
                    (Stream::Stdout, source) => source == Source::Stdout,
                    (Stream::Stderr, source) => source == Source::Stderr,
                };
                let recent = self.since.is_none_or(|since| (head.stamp.seconds, head.stamp.nanos) >= since);
                let shown = wanted && recent;
                if shown && self.timestamps && self.at_line_start {
                    let from = out.len();
                    head.stamp.write(out);
                    out.push(b' ');
                    self.charge(from, out);
                }
                self.text(&bytes[head.length..], whole, shown, head.partial, true, out);
            }
            Reading::Unfinished => self.head = bytes.to_vec(),
            Reading::Foreign => self.place = if whole { Place::Head } else { Place::Foreign },
        }
    }

    fn text(&mut self, text: &[u8], whole: bool, shown: bool, partial: bool, empty: bool, out: &mut Vec<u8>) {
        // The newline behind a partial entry is the format's, not the container's.
        let kept = if partial { text.strip_suffix(b"\n").unwrap_or(text) } else { text };
        let empty = empty && kept.is_empty();
        if shown {
            let from = out.len();
            out.extend_from_slice(kept);
            self.charge(from, out);
        }
        if whole {
            self.at_line_start = !partial || empty;
            self.entries_left = self.entries_left.saturating_sub(1);
            self.place = Place::Head;
        } else {
            self.place = Place::Text { shown, partial, empty };
        }
    }

    /// Takes what was appended since `from` off the allowance, and cuts it where that ends.
    fn charge(&mut self, from: usize, out: &mut Vec<u8>) {
        let added = (out.len() - from) as u64;
        if added > self.bytes_left {
            out.truncate(from + usize::try_from(self.bytes_left).unwrap_or(usize::MAX));
        }
        self.bytes_left = self.bytes_left.saturating_sub(added);
    }
}
