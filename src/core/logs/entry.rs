//! The head of one log entry in CRI's format: `TIME stdout|stderr TAGS ` before the text.

/// Longer than any head that a runtime writes: 35 bytes of time, 6 of stream, and tags.
pub const LONGEST_HEAD: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Stdout,
    Stderr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head<'a> {
    pub stamp: Stamp<'a>,
    pub source: Source,
    /// The line goes on in the next entry of this source.
    pub partial: bool,
    /// Where the text begins.
    pub length: usize,
}

/// A moment as it was written. The writer's zone is kept, because it is shown again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp<'a> {
    pub seconds: i64,
    pub nanos: u32,
    day_and_time: &'a [u8],
    zone: &'a [u8],
}

/// What the beginning of an entry tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading<'a> {
    Head(Head<'a>),
    /// Could still become a head.
    Unfinished,
    /// Not in CRI's format.
    Foreign,
}

/// `bytes` begins with an entry and holds no byte of the next one.
pub fn read_head(bytes: &[u8]) -> Reading<'_> {
    let whole = |at: Option<usize>| at.filter(|at| *at < LONGEST_HEAD);
    let unfinished = || {
        let may_go_on = bytes.len() < LONGEST_HEAD && !bytes.contains(&b'\n');
        if may_go_on { Reading::Unfinished } else { Reading::Foreign }
    };
    let Some(first) = whole(memchr::memchr(b' ', bytes)) else { return unfinished() };
    let Some(second) = whole(next_space(bytes, first)) else { return unfinished() };
    let Some(third) = whole(next_space(bytes, second)) else { return unfinished() };
    let source = match &bytes[first + 1..second] {
        b"stdout" => Source::Stdout,
        b"stderr" => Source::Stderr,
        _ => return Reading::Foreign,
    };
    let Some(stamp) = Stamp::parse(&bytes[..first]) else { return Reading::Foreign };
    let tags = &bytes[second + 1..third];
    let partial = matches!(tags, [b'P'] | [b'P', b':', ..]);
    Reading::Head(Head { stamp, source, partial, length: third + 1 })
}

fn next_space(bytes: &[u8], after: usize) -> Option<usize> {
    memchr::memchr(b' ', &bytes[after + 1..]).map(|at| after + 1 + at)
}

impl<'a> Stamp<'a> {
    /// RFC 3339 with any number of fractional digits: `2026-01-02T03:04:05.000000006Z`, `...+02:00`.
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let (day_and_time, rest) = text.split_at_checked(19)?;
        let n = |from: usize, to: usize| number(&day_and_time[from..to]);
        let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
        if marks.iter().any(|(at, mark)| day_and_time[*at] != *mark) {
            return None;
        }
        let (year, month, day) = (n(0, 4)?, n(5, 7)?, n(8, 10)?);
        let (hour, minute, second) = (n(11, 13)?, n(14, 16)?, n(17, 19)?);
        if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let (nanos, zone) = fraction(rest)?;
        let offset = match zone {
            b"Z" => 0,
            [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
                let (hours, minutes) = (number(&[*h1, *h2])?, number(&[*m1, *m2])?);
                if hours > 23 || minutes > 59 {
                    return None;
                }
                (if *sign == b'-' { -1 } else { 1 }) * (hours * 3600 + minutes * 60)
            }
            _ => return None,
        };
        let seconds =
            days_since_epoch(year, month, day) * 86400 + hour * 3600 + minute * 60 + second - offset;
        Some(Self { seconds, nanos, day_and_time, zone })
    }

    /// With nine fractional digits always, so that lines stay aligned.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.day_and_time);
        let mut digits = *b".000000000";
        let mut rest = self.nanos;
        for digit in digits[1..].iter_mut().rev() {
            *digit = b'0' + u8::try_from(rest % 10).unwrap_or_default();
            rest /= 10;
        }
        out.extend_from_slice(&digits);
        out.extend_from_slice(self.zone);
    }
}

fn fraction(text: &[u8]) -> Option<(u32, &[u8])> {
    let Some(digits) = text.strip_prefix(b".") else { return Some((0, text)) };
    let length = digits.iter().take_while(|b| b.is_ascii_digit()).count();
    if length == 0 {
        return None;
    }
    let known = digits[..length].iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nanos = known.fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    Some((nanos, &digits[length..]))
}

fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0, |sum, b| b.is_ascii_digit().then(|| sum * 10 + i64::from(b - b'0')))
}

/// Counted from March, so that the leap day is the last of its year.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}
