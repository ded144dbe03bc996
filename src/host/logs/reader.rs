//! Reads one container's log from where it was asked to, across rotations.
//!
//! What is promised to a follower ([`LogReader::follow`]): every byte once and in order, however late it runs, as long as no
//! more than [`MOST_WAITING`] rotated files wait for it. Beyond that it loses the oldest file that it has not begun, whole,
//! and the log says so. The promise covers rotation by this process, which hands a file over before its name goes
//! ([`followers`](super::followers)). A file that another process rotates and removes between two calls of
//! [`LogReader::look`] is lost.
//!
//! Files that come up while an older one is still being read are opened at once and wait in a queue. A file is left for the
//! next one when nobody has it open for writing any more.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use keelson_core::logs::rotation::is_plain_rotated;

use super::followers::{Followers, MOST_WAITING, Registration};
use super::open::{LogDir, LogFile};
use super::writers::{Writers, writers};

const TAIL_BLOCK: usize = 64 << 10;

pub struct LogReader {
    dir: LogDir,
    /// The log's own name, such as 0.log.
    name: String,
    current: Option<LogFile>,
    offset: u64,
    /// Nobody writes to the current file any more.
    complete: bool,
    waiting: VecDeque<LogFile>,
    /// The newest rotated name that was considered.
    newest: String,
    registration: Option<Registration>,
    /// Newer files that rotation has handed over, by name; they may have lost it.
    handed_over: BTreeMap<String, LogFile>,
}

/// What a read came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    Bytes(usize),
    /// The file has ended and the next one begins; an entry that was cut off stays cut off.
    NextFile,
    /// The file became shorter: somebody has emptied it, and it begins anew.
    Truncated,
    /// Nothing for now.
    End,
    /// A newer file waits, but this one may still grow.
    Unfinished,
}

impl LogReader {
    /// `log` must lie below `root`. In the moment of a rotation the log is not there; then its newest rotated file is
    /// where to begin.
    pub fn open(root: &Path, log: &Path) -> io::Result<Self> {
        let (dir, name) = LogDir::of(root, log)?;
        Self::begin(dir, name, None)
    }

    /// The same for a reader that is to be handed what rotation removes.
    pub fn follow(root: &Path, log: &Path, followers: &Followers) -> io::Result<Self> {
        let (dir, name) = LogDir::of(root, log)?;
        // Before the first file is opened, so that no rotation falls between the two.
        let registration = followers.register(&dir, &name)?;
        Self::begin(dir, name, Some(registration))
    }

    fn begin(dir: LogDir, name: String, registration: Option<Registration>) -> io::Result<Self> {
        let mut this = Self {
            dir,
            name,
            current: None,
            offset: 0,
            complete: false,
            waiting: VecDeque::new(),
            newest: String::new(),
            registration,
            handed_over: BTreeMap::new(),
        };
        for attempt in 0.. {
            let rotated = this.rotated()?;
            match this.dir.open(&this.name) {
                Ok(file) => this.current = Some(file),
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                Err(e) => match rotated.last().map(|newest| this.dir.open(newest)) {
                    Some(Ok(file)) => this.current = Some(file),
                    // Compressed just now: then the log is back.
                    Some(Err(gone)) if gone.kind() == io::ErrorKind::NotFound && attempt < 3 => continue,
                    Some(Err(other)) => return Err(other),
                    None => return Err(e),
                },
            }
            break;
        }
        // Listed again after the file was opened: what is newer than it comes after it.
        let rotated = this.rotated()?;
        let own = this.current.as_ref().map(|c| c.inode);
        let mut newest = rotated.last().cloned();
        for name in rotated {
            let handed_over = this.handed_over.get(&name).map(|file| file.inode);
            let inode = if handed_over.is_some() { handed_over } else { this.dir.inode(&name)? };
            if inode.is_some() && inode == own {
                newest = Some(name);
                break;
            }
        }
        this.newest = newest.unwrap_or_default();
        this.look()?;
        Ok(this)
    }

    pub fn dir(&self) -> &LogDir {
        &self.dir
    }

    /// Takes notice of files that came up since. To be called whenever names in the directory changed.
    pub fn look(&mut self) -> io::Result<()> {
        self.take_rotated()?;
        loop {
            let log = self.find(&self.name)?;
            // A rotation meanwhile has put a file before the one that was just opened, or renamed that.
            if !self.take_rotated()? {
                log.into_iter().for_each(|file| self.hold(file));
                return Ok(());
            }
        }
    }

    /// True if there were any new ones.
    fn take_rotated(&mut self) -> io::Result<bool> {
        let mut any = false;
        for name in self.rotated()? {
            if name <= self.newest {
                continue;
            }
            if !self.handed_over.contains_key(&name)
                && let Some(file) = self.find(&name)?
            {
                self.hold(file);
            } else {
                // Handed over before it was listed, or since.
                self.receive();
                self.handed_over.remove(&name).into_iter().for_each(|file| self.hold(file));
            }
            self.newest = name;
            any = true;
        }
        self.handed_over.retain(|name, _| *name > self.newest);
        Ok(any)
    }

    /// Takes in what was handed over; true if there was something.
    fn receive(&mut self) -> bool {
        let received = self.registration.as_ref().map(Registration::take).unwrap_or_default();
        let any = !received.is_empty();
        self.handed_over.extend(received.into_iter().map(|handed| (handed.name, handed.file)));
        any
    }

    /// The file of that name, unless it is gone or held already.
    fn find(&self, name: &str) -> io::Result<Option<LogFile>> {
        let Some(inode) = self.dir.inode(name)? else { return Ok(None) };
        if self.holds(inode) {
            return Ok(None);
        }
        match self.dir.open(name) {
            Ok(file) => Ok(Some(file)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn holds(&self, inode: u64) -> bool {
        self.current.iter().chain(&self.waiting).any(|f| f.inode == inode)
    }

    fn hold(&mut self, file: LogFile) {
        // The name may have come to mean another file between the look at it and its opening.
        if self.holds(file.inode) {
            return;
        }
        if self.waiting.len() == MOST_WAITING {
            tracing::warn!(log = %self.dir.path().join(&self.name).display(), "a reader is too slow and loses a rotated log");
            self.waiting.pop_front();
        }
        self.waiting.push_back(file);
    }

    /// The names of all rotated files, sorted, with those that were handed over. A file is handed over before its name goes,
    /// so a listing during which nothing was handed over lacks none.
    fn rotated(&mut self) -> io::Result<Vec<String>> {
        self.receive();
        let mut names = loop {
            let names = self.dir.names(&self.name)?;
            if !self.receive() {
                break names;
            }
        };
        names.retain(|n| is_plain_rotated(&self.name, n));
        names.extend(self.handed_over.keys().cloned());
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Begins with the last `lines` lines of the file.
    pub fn seek_tail(&mut self, lines: u64) -> io::Result<()> {
        if let Some(current) = &self.current {
            self.offset = tail_start(current, lines)?;
        }
        Ok(())
    }

    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<Read> {
        let Some(current) = &self.current else { return Ok(Read::End) };
        loop {
            let n = match current.file.read_at(buffer, self.offset) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if n > 0 {
                self.offset += n as u64;
                return Ok(Read::Bytes(n));
            }
            break;
        }
        if current.file.metadata()?.len() < self.offset {
            self.offset = 0;
            return Ok(Read::Truncated);
        }
        if self.waiting.is_empty() {
            return Ok(Read::End);
        }
        if self.complete {
            self.current = self.waiting.pop_front();
            self.offset = 0;
            self.complete = false;
            return Ok(Read::NextFile);
        }
        match writers(&current.file) {
            Writers::None => {
                // What was written between the read above and the question is read before the file is left.
                self.complete = true;
                self.read(buffer)
            }
            Writers::Some | Writers::Unknown => Ok(Read::Unfinished),
        }
    }

    /// True when no newer file is known.
    pub fn at_last_file(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Waiting for the current file's last writer has taken long enough.
    pub fn give_up_waiting(&mut self) {
        self.complete = true;
    }
}

/// Where the last `lines` lines begin, found from the end backwards.
fn tail_start(log: &LogFile, lines: u64) -> io::Result<u64> {
    let mut end = log.file.metadata()?.len();
    if lines == 0 {
        return Ok(end);
    }
    let mut block = vec![0; TAIL_BLOCK];
    let mut seen = 0;
    while end > 0 {
        let start = end.saturating_sub(TAIL_BLOCK as u64);
        let piece = &mut block[..usize::try_from(end - start).unwrap_or(TAIL_BLOCK)];
        match log.file.read_exact_at(piece, start) {
            Ok(()) => {}
            // Emptied meanwhile.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
            Err(e) => return Err(e),
        }
        for (at, _) in piece.iter().enumerate().rev().filter(|(_, b)| **b == b'\n') {
            seen += 1;
            // The newline at the very end closes the last line; the one before the first wanted line is one further.
            if seen > lines {
                return Ok(start + at as u64 + 1);
            }
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests;
