//! A host of its own for each test: a network namespace with an uplink to an outside world, directories
//! for leases and plugins, and containers that are nothing but namespaces.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use keelson_netkit::{NetNs, Socket, link, multicast};
use serde_json::Value;

/// Long enough for a loaded machine; only failures ever wait for it.
pub const PATIENCE: Duration = Duration::from_secs(5);
pub const NAMES: [&str; 4] = ["bridge", "host-local", "loopback", "portmap"];

/// Ends the test as skipped where it cannot run.
#[macro_export]
macro_rules! needs_rig {
    () => {
        keelson_require::require!(keelson_require::network_namespaces());
    };
}

/// The reference plugins: CNI_REFERENCE, or the part.
pub fn reference() -> Result<PathBuf, keelson_require::Missing> {
    std::env::var_os("CNI_REFERENCE")
        .map(PathBuf::from)
        .map_or_else(|| keelson_require::part("cni-reference"), Ok)
}

pub struct Rig {
    pub host: NetNs,
    pub outside: NetNs,
    pub dir: tempfile::TempDir,
    /// Our plugins, as links to the one executable.
    pub plugins: PathBuf,
}

/// A container: an id and a namespace that lives as long as this.
pub struct Container {
    pub id: String,
    pub netns: NetNs,
}

impl Container {
    pub fn new(id: &str) -> Self {
        Container { id: id.to_owned(), netns: NetNs::anonymous().unwrap() }
    }

    /// A path by which other processes can open the namespace.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.netns.fd().as_raw_fd())
    }
}

/// How a plugin ended.
pub struct Ended {
    pub ok: bool,
    pub json: Value,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    pub fn from(output: Output) -> Self {
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        Ended {
            ok: output.status.success(),
            json: serde_json::from_str(&stdout).unwrap_or(Value::Null),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            stdout,
        }
    }

    #[track_caller]
    pub fn expect_ok(self, what: &str) -> Value {
        assert!(self.ok, "{what} failed: {} {}", self.stdout, self.stderr);
        self.json
    }

    #[track_caller]
    pub fn expect_code(&self, code: u64, what: &str) {
        assert!(!self.ok, "{what} should have failed, but said {}", self.stdout);
        assert_eq!(self.json["code"], code, "{what}: {}", self.stdout);
        assert!(
            self.json["msg"].is_string() && self.json["cniVersion"].is_string(),
            "{what}: {}",
            self.stdout
        );
    }
}

impl Rig {
    /// Makes a host that the calling thread lives in from now on.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let plugins = dir.path().join("plugins");
        std::fs::create_dir(&plugins).unwrap();
        for name in NAMES {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_keelson-cni"), plugins.join(name)).unwrap();
        }
        let (host, outside) = (NetNs::anonymous().unwrap(), NetNs::anonymous().unwrap());
        rustix::thread::move_into_link_name_space(host.fd(), None).unwrap();
        let rig = Rig { host, outside, dir, plugins };
        let far = format!("/proc/{}/fd/{}", std::process::id(), rig.outside.fd().as_raw_fd());
        sh("ip link set lo up");
        sh(&format!("ip link add uplink type veth peer name eth0 netns {far}"));
        sh(
            "ip addr add 192.0.2.1/24 dev uplink && ip addr add 2001:db8::1/64 dev uplink nodad && ip link set uplink up",
        );
        wait_until_resolvable("uplink", "2001:db8::1");
        rig.outside
            .run(|| {
                sh("ip link set lo up && ip addr add 192.0.2.2/24 dev eth0 && ip addr add 2001:db8::2/64 dev eth0 nodad && ip link set eth0 up");
                wait_until_resolvable("eth0", "2001:db8::2");
                Ok::<(), keelson_netkit::Error>(())
            })
            .unwrap();
        rig
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("leases")
    }

    /// A plugin's process with the usual environment, not started.
    pub fn command(
        &self,
        plugins: &Path,
        plugin: &str,
        command: &str,
        container: &str,
        netns: &str,
    ) -> Command {
        let mut process = Command::new(plugins.join(plugin));
        process
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", container)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", plugins)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if !netns.is_empty() {
            process.env("CNI_NETNS", netns);
        }
        process
    }

    /// Runs one of our plugins.
    pub fn run(&self, plugin: &str, command: &str, conf: &Value, container: &Container) -> Ended {
        self.run_at(&self.plugins, plugin, command, conf, container)
    }

    pub fn run_at(
        &self,
        plugins: &Path,
        plugin: &str,
        command: &str,
        conf: &Value,
        container: &Container,
    ) -> Ended {
        feed(self.command(plugins, plugin, command, &container.id, &container.path()), &conf.to_string())
    }

    /// The leases of a network, as (file name, content), without what only we keep there.
    pub fn leases(&self, network: &str) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.data_dir().join(network)).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if entry.file_type().unwrap().is_file() && name.parse::<IpAddr>().is_ok() {
                found.push((name, std::fs::read_to_string(entry.path()).unwrap()));
            }
        }
        found.sort();
        found
    }
}

/// Starts a process, gives it its input, and waits for its end.
pub fn feed(process: Command, stdin: &str) -> Ended {
    Ended::from(start(process, stdin).wait_with_output().unwrap())
}

/// Starts a plugin and leaves it running.
pub fn start(mut process: Command, stdin: &str) -> Child {
    let mut child = process.spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child
}

/// Runs a shell line in the calling thread's namespace.
#[track_caller]
pub fn sh(line: &str) -> String {
    let output = Command::new("sh").args(["-ec", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a shell line that prints JSON.
#[track_caller]
pub fn sh_json(line: &str) -> Value {
    let text = sh(line);
    serde_json::from_str(if text.trim().is_empty() { "[]" } else { &text })
        .unwrap_or_else(|e| panic!("{line}: {e}: {text}"))
}

/// Does something inside a namespace.
pub fn inside<T>(netns: &NetNs, work: impl FnOnce() -> T) -> T {
    netns.run(|| Ok::<T, keelson_netkit::Error>(work())).unwrap()
}

/// Answers TCP connections inside a namespace for as long as the test runs; what comes back is the address
/// of each who connected.
pub fn listen(netns: &NetNs, addr: &str) -> mpsc::Receiver<IpAddr> {
    let listener = inside(netns, || TcpListener::bind(addr)).unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        while let Ok((mut stream, peer)) = listener.accept() {
            let _ = stream.write_all(b"hello");
            let _ = tell.send(peer.ip().to_canonical());
        }
    });
    told
}

/// The kernel joins the solicited-node group of a new IPv6 address a moment after it has it.
fn wait_until_resolvable(link: &str, address: &str) {
    let mut socket = Socket::route().unwrap();
    let link = link::get_by_name(&mut socket, link).unwrap();
    while !multicast::has_joined_solicited_node(&link, address.parse().unwrap()).unwrap() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a TCP connection from inside a namespace is answered. A kernel that is late with a new IPv6 address lets those who
/// ask for it be told that there is nobody, so one who was told asks again.
pub fn reaches(netns: &NetNs, addr: &str) -> bool {
    let addr: SocketAddr = addr.parse().unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut stream = loop {
        match inside(netns, || TcpStream::connect_timeout(&addr, PATIENCE)) {
            Ok(stream) => break stream,
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Err(_) => return false,
        }
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buf = [0; 5];
    stream.read_exact(&mut buf).is_ok() && &buf == b"hello"
}

/// Answers UDP datagrams inside a namespace with the given word, for as long as the test runs.
pub fn answer_udp(netns: &NetNs, addr: &str, word: &'static [u8]) {
    let socket = inside(netns, || UdpSocket::bind(addr)).unwrap();
    std::thread::spawn(move || {
        let mut buf = [0; 100];
        while let Ok((_, peer)) = socket.recv_from(&mut buf) {
            let _ = socket.send_to(word, peer);
        }
    });
}
