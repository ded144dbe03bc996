//! As much of the D-Bus protocol as talking to systemd takes: method calls with a few types of arguments, their replies,
//! and signals. Blocking, over a unix socket, with a limit on how long and how much is read.

mod wire;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(super) use wire::{Arg, Target, Value};
use wire::{DbusMessage, ERROR, METHOD_RETURN, NO_REPLY, SIGNAL, encode_call};

/// systemd answers late when a machine mounts and unmounts much; 25 s is what its own clients wait.
const TIMEOUT: Duration = Duration::from_secs(25);
const MAX_MESSAGE: usize = 1 << 20;

/// How long the first answer may take before the other side is nudged.
const NUDGE_AFTER: Duration = Duration::from_millis(20);

const PING: Target<'static> =
    Target { destination: "org.freedesktop.systemd1", path: "/", interface: "org.freedesktop.DBus.Peer" };

pub(super) struct Connection {
    stream: UnixStream,
    peer: Peer,
    serial: u32,
    /// Signals that came while a reply was awaited.
    signals: Vec<DbusMessage>,
}

/// Who is at the other end of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// A message bus, which wants to be greeted first.
    Bus,
    /// The service itself.
    Service,
}

#[derive(Debug)]
pub(super) enum CallError {
    Io(io::Error),
    /// The other side's error name and message.
    Refused {
        name: String,
        message: String,
    },
}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(e) => write!(f, "{e}"),
            Self::Refused { name, message } => write!(f, "{message} ({name})"),
        }
    }
}

impl Connection {
    pub fn open(socket: &Path, peer: Peer) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let uid = keelson_kit::hex::encode(rustix::process::getuid().as_raw().to_string());
        stream.write_all(format!("\0AUTH EXTERNAL {uid}\r\n").as_bytes())?;
        let answer = read_line(&mut stream)?;
        if !answer.starts_with("OK ") {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("authentication was answered {answer:?}"),
            ));
        }
        stream.write_all(b"BEGIN\r\n")?;
        Ok(Self { stream, peer, serial: 0, signals: Vec::new() })
    }

    /// Calls a method and waits for its reply.
    pub fn call(
        &mut self,
        to: &Target<'_>,
        member: &str,
        args: &[Arg<'_>],
    ) -> Result<DbusMessage, CallError> {
        self.serial += 1;
        let serial = self.serial;
        self.stream.write_all(&encode_call(serial, 0, to, member, args))?;
        if serial == 1 && self.peer == Peer::Service {
            self.nudge()?;
        }
        loop {
            let message = self.read()?;
            match message.kind {
                METHOD_RETURN if message.reply_to == serial => return Ok(message),
                ERROR if message.reply_to == serial => {
                    let text = message.texts().into_iter().next().unwrap_or_default();
                    return Err(CallError::Refused { name: message.error, message: text });
                }
                SIGNAL => self.signals.push(message),
                _ => {}
            }
        }
    }

    /// systemd overlooks a first message that it reads together with the end of the authentication, until more arrives.
    /// So as long as it is silent it is sent pings that want no answer.
    fn nudge(&mut self) -> io::Result<()> {
        let patience = Timespec { tv_sec: 0, tv_nsec: NUDGE_AFTER.subsec_nanos().into() };
        for _ in 0..TIMEOUT.as_millis() / NUDGE_AFTER.as_millis() {
            if poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&patience))? > 0 {
                return Ok(());
            }
            self.serial += 1;
            self.stream.write_all(&encode_call(self.serial, NO_REPLY, &PING, "Ping", &[]))?;
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// The next signal, of those that came already or of those to come.
    pub fn signal(&mut self) -> io::Result<DbusMessage> {
        if !self.signals.is_empty() {
            return Ok(self.signals.remove(0));
        }
        loop {
            let message = self.read()?;
            if message.kind == SIGNAL {
                return Ok(message);
            }
        }
    }

    fn read(&mut self) -> io::Result<DbusMessage> {
        let mut fixed = [0u8; 16];
        self.stream.read_exact(&mut fixed)?;
        if fixed[0] != b'l' {
            return Err(malformed("a message that is not little-endian"));
        }
        let number =
            |at: usize| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]) as usize;
        let (body_length, fields_length) = (number(4), number(12));
        if body_length > MAX_MESSAGE || fields_length > MAX_MESSAGE {
            return Err(malformed("a message that is too long"));
        }
        let mut fields = vec![0u8; fields_length.next_multiple_of(8)];
        self.stream.read_exact(&mut fields)?;
        let mut body = vec![0u8; body_length];
        self.stream.read_exact(&mut body)?;
        DbusMessage::decode(fixed[1], &fields[..fields_length], body)
            .ok_or_else(|| malformed("a message with an unreadable header"))
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the bus sent {what}"))
}

fn read_line(stream: &mut UnixStream) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0u8];
    while !line.ends_with(b"\r\n") && line.len() < 512 {
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}
