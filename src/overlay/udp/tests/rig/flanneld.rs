//! A real flanneld with leases in a real etcd, as its own host would run it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::{TestNetns, eventually};

pub struct Parts {
    flanneld: PathBuf,
    etcd: PathBuf,
}

impl Parts {
    /// From the directories of the parts of these names.
    pub fn of(flanneld: &Path, etcd: &Path) -> Parts {
        Parts { flanneld: flanneld.join("flanneld"), etcd: etcd.join("etcd") }
    }
}

/// A program that is killed with the one that started it, should that end without tidying up.
pub fn mortal(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// A new directory.
pub fn directory(of: &str) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("overlay-{of}-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// An etcd that listens on the loopback of one namespace, with its data in a directory that goes with it.
pub struct Etcd {
    child: Child,
    dir: PathBuf,
    pub place_path: String,
    ns: keelson_netkit::NetNs,
}

pub const CLIENT: &str = "127.0.0.1:2379";

impl Etcd {
    pub fn start(parts: &Parts, netns: &TestNetns) -> Etcd {
        let dir = directory("etcd");
        let url = format!("http://{CLIENT}");
        let mut command = mortal(&parts.etcd);
        command.arg("--data-dir").arg(&dir).args(["--unsafe-no-fsync", "--listen-client-urls", &url]);
        command.args(["--advertise-client-urls", &url, "--listen-peer-urls", "http://127.0.0.1:2380"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = netns.run(|| command.spawn()).unwrap();
        let ns = keelson_netkit::NetNs::open(netns.path()).unwrap();
        let etcd = Etcd { child, dir, place_path: netns.path(), ns };
        eventually("etcd answers", || etcd.post("/v3/kv/range", r#"{"key":"YQ=="}"#).is_some());
        etcd
    }

    pub fn put(&self, key: &str, value: &str) {
        let body = format!(r#"{{"key":"{}","value":"{}"}}"#, base64(key), base64(value));
        assert!(self.post("/v3/kv/put", &body).is_some(), "etcd did not take {key}");
    }

    /// Many keys with their values.
    pub fn put_all(&self, pairs: &[(String, String)]) {
        // etcd takes 128 operations at once.
        for some in pairs.chunks(100) {
            let put = |(key, value): &(String, String)| {
                format!(r#"{{"requestPut":{{"key":"{}","value":"{}"}}}}"#, base64(key), base64(value))
            };
            let puts: Vec<String> = some.iter().map(put).collect();
            let body = format!(r#"{{"success":[{}]}}"#, puts.join(","));
            assert!(self.post("/v3/kv/txn", &body).is_some(), "etcd did not take {} keys", some.len());
        }
    }

    /// The answer to a request over etcd's JSON gateway; None when there is none or it is an error.
    fn post(&self, path: &str, body: &str) -> Option<String> {
        let connect = || Ok::<_, keelson_netkit::Error>(TcpStream::connect(CLIENT).ok());
        let mut stream = self.ns.run(connect).unwrap()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(body.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.starts_with("HTTP/1.1 200").then_some(text)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn base64(text: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let bits =
            chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for n in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * n)) as usize & 63];
            out.push(if n <= chunk.len() { letter.into() } else { '=' });
        }
    }
    out
}

pub struct Flanneld {
    child: Child,
    dir: PathBuf,
}

impl Flanneld {
    /// Starts flanneld on a host whose loopback reaches `etcd`, and waits until its device carries.
    pub fn start(parts: &Parts, host: &TestNetns, number: u8, etcd: &Etcd) -> Flanneld {
        assert_eq!(etcd.place_path, host.path(), "etcd must be on flanneld's own loopback");
        let dir = directory("flanneld");
        let env_file = dir.join("subnet.env");
        // It takes the lease whose address is its own, if this file says that it had it before.
        let subnet = format!("FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.{}.1/24\n", number);
        std::fs::write(&env_file, subnet).unwrap();
        let log = std::fs::File::create(dir.join("log")).unwrap();
        let mut command = mortal(&parts.flanneld);
        command.arg("-etcd-endpoints").arg(format!("http://{CLIENT}")).arg("-subnet-file").arg(&env_file);
        command.args(["-iface", "eth0", "-ip-masq=false"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::from(log));
        let child = host.run(|| command.spawn()).unwrap();
        let flanneld = Flanneld { child, dir };
        carries(host, number, "flanneld");
        flanneld
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Flanneld {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Waits until the device on this host is up, with the subnet that `who` was to take.
pub fn carries(host: &TestNetns, number: u8, who: &str) {
    eventually(&format!("{who}'s device is up"), || {
        let show = || Command::new("ip").args(["-4", "addr", "show", "flannel0"]).output();
        let output = host.run(show).unwrap();
        String::from_utf8_lossy(&output.stdout).contains(&format!("10.1.{number}.0"))
    });
}
