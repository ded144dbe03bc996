//! What systemd is to the agent: it hears that the agent is ready, and keeps descriptors for it from one start to the next.

use std::fs;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// As many as the unit allows.
const MOST: usize = 32;

pub struct Supervisor {
    path: PathBuf,
    socket: UnixDatagram,
    ready: bool,
    kept: Vec<(String, OwnedFd)>,
}

impl Supervisor {
    pub fn listen(path: &Path) -> Result<Self> {
        let _ = fs::remove_file(path);
        let socket = UnixDatagram::bind(path).context("cannot bind the notification socket")?;
        socket.set_nonblocking(true)?;
        Ok(Self { path: path.into(), socket, ready: false, kept: vec![] })
    }

    /// Whether the agent has said READY=1 since it was started.
    pub fn is_ready(&mut self) -> Result<bool> {
        self.hear()?;
        Ok(self.ready)
    }

    /// The command of the next start, which is handed what was kept. [`Supervisor::spawned`] follows when it runs.
    pub fn command(&mut self, program: &Path) -> Result<Command> {
        self.hear()?;
        self.ready = false;
        self.let_go_of_ended()?;
        // The shell becomes the program, so the process id is right, and puts descriptors where they belong.
        let mut script = String::from("LISTEN_PID=$$; export LISTEN_PID; exec \"$0\" \"$@\"");
        for (n, (_, descriptor)) in self.kept.iter().enumerate() {
            fcntl_setfd(descriptor, FdFlags::empty())?;
            let number = descriptor.as_raw_fd();
            script += &format!(" {}<&{number} {number}<&-", n + 3);
        }
        let mut command = Command::new("bash");
        let names: Vec<&str> = self.kept.iter().map(|(name, _)| name.as_str()).collect();
        command
            .args(["-c", &script])
            .arg(program)
            .env("NOTIFY_SOCKET", &self.path)
            .env("LISTEN_FDS", names.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"));
        Ok(command)
    }

    /// What else is started gets nothing of what was kept.
    pub fn spawned(&self) -> Result<()> {
        for (_, descriptor) in &self.kept {
            fcntl_setfd(descriptor, FdFlags::CLOEXEC)?;
        }
        Ok(())
    }

    /// Reads all that was said.
    fn hear(&mut self) -> Result<()> {
        loop {
            let (mut text, mut space) =
                ([0; 1024], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))]);
            let mut attached = RecvAncillaryBuffer::new(&mut space);
            let mut slices = [IoSliceMut::new(&mut text)];
            let got = match recvmsg(&self.socket, &mut slices, &mut attached, RecvFlags::CMSG_CLOEXEC) {
                Ok(got) => got.bytes,
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error).context("cannot read a notification"),
            };
            let text = String::from_utf8_lossy(&text[..got]).into_owned();
            self.ready |= text.lines().any(|line| line == "READY=1");
            let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or("stored");
            let keep = text.lines().any(|line| line == "FDSTORE=1");
            if text.lines().any(|line| line == "FDSTOREREMOVE=1") {
                self.kept.retain(|(kept, _)| kept != name);
            }
            for message in attached.drain() {
                let RecvAncillaryMessage::ScmRights(descriptors) = message else { continue };
                for descriptor in descriptors.filter(|_| keep) {
                    if self.kept.len() < MOST {
                        self.kept.push((name.to_owned(), descriptor));
                    }
                }
            }
        }
    }

    fn let_go_of_ended(&mut self) -> Result<()> {
        let mut lasting = vec![];
        for (name, descriptor) in self.kept.drain(..) {
            let mut polled = [PollFd::new(&descriptor, PollFlags::empty())];
            poll(&mut polled, Some(&Timespec::default()))?;
            if polled[0].revents().is_empty() {
                lasting.push((name, descriptor));
            }
        }
        self.kept = lasting;
        Ok(())
    }
}
