//! The daemon as users run it, with its leases in an etcd of its own.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use crate::rig::flanneld::{CLIENT, Etcd, Parts, carries, directory, mortal};
use crate::world::{World, host_address};

const NETWORK: &str = r#"{"Network":"10.0.0.0/8","SubnetLen":24,"Backend":{"Type":"udp"}}"#;

pub struct Daemon {
    child: Child,
    dir: PathBuf,
    _etcd: Etcd,
}

/// The program: KEELSON_BIN, or what lies beside this one.
pub fn program() -> Result<PathBuf, Box<dyn Error>> {
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("keelson"));
    let path = std::env::var_os("KEELSON_BIN").map_or_else(beside, |path| Ok(path.into()))?;
    match path.is_file() {
        true => Ok(path),
        false => Err(format!("{} is not there: cargo build --release -p keelson", path.display()).into()),
    }
}

/// An earlier build's, if one is to be measured too.
pub fn earlier() -> Result<Option<PathBuf>, Box<dyn Error>> {
    let Some(dir) = std::env::var_os("BENCH_BESIDE") else { return Ok(None) };
    let path = Path::new(&dir).join("keelson");
    match path.is_file() {
        true => Ok(Some(path)),
        false => Err(format!("BENCH_BESIDE has no {}", path.display()).into()),
    }
}

impl Daemon {
    /// Starts it on both hosts, each with the other and `others` more as peers, and waits until they carry.
    pub fn both(
        program: &Path,
        parts: &Parts,
        world: &World,
        others: u32,
    ) -> Result<Vec<Daemon>, Box<dyn Error>> {
        let mut daemons = Vec::new();
        for (n, host) in (1u8..).zip(&world.hosts) {
            let etcd = Etcd::start(parts, host);
            etcd.put("/coreos.com/network/config", NETWORK);
            let hosts = (1..=2).map(|n| lease(&format!("10.1.{n}.0-24"), &host_address(n)));
            etcd.put_all(&hosts.chain((0..others).map(other)).collect::<Vec<_>>());
            let dir = directory("keelson");
            let mut command = mortal(program);
            command.args(["overlay", "--iface", "eth0", "--etcd-endpoints", &format!("http://{CLIENT}")]);
            command.arg("--subnet-file").arg(dir.join("subnet.env")).arg("--state-dir").arg(&dir);
            command.arg("--socket").arg(dir.join("socket"));
            let log = std::fs::File::create(dir.join("log"))?;
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::from(log));
            let child = host.run(|| command.spawn())?;
            daemons.push(Daemon { child, dir, _etcd: etcd });
            carries(host, n, "keelson");
        }
        Ok(daemons)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn lease(subnet: &str, public: &str) -> (String, String) {
    let key = format!("/coreos.com/network/subnets/{subnet}");
    (key, format!(r#"{{"PublicIP":"{public}","BackendType":"udp"}}"#))
}

/// A peer that holds a lease and sends nothing.
fn other(number: u32) -> (String, String) {
    let (high, low) = (number >> 8, number & 0xff);
    lease(&format!("10.{}.{low}.0-24", 32 + high), &format!("198.18.{high}.{low}"))
}
