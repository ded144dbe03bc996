//! Those that carry the pods' packets, each between two hosts of its own.

use std::error::Error;
use std::path::Path;
use std::process::Command;

use crate::daemon::{self, Daemon};
use crate::rig::flanneld::{Etcd, Flanneld, Parts};
use crate::world::{World, host_address};

pub struct Contender {
    pub name: &'static str,
    pub world: World,
    processes: Vec<u32>,
    /// What has to live as long as this.
    _kept: Kept,
}

#[derive(Default)]
struct Kept {
    _daemons: Vec<Daemon>,
    _flanneld: Vec<Flanneld>,
    _etcd: Vec<Etcd>,
}

pub const KEELSON: &str = "keelson udp";
pub const MANY: &str = "... 5,000 peers";
/// A build from before: BENCH_BESIDE names the directory of its `keelson`.
pub const EARLIER: &str = "earlier udp";
pub const FLANNELD: &str = "flanneld udp";
const VXLAN: &str = "kernel vxlan";
const DIRECT: &str = "direct routing";

impl Contender {
    /// All that are wanted and can be had.
    pub fn all(wanted: impl Fn(&str) -> bool) -> Result<Vec<Contender>, Box<dyn Error>> {
        let mut all = Vec::new();
        match parts() {
            Some(parts) => {
                let program = daemon::program()?;
                for (name, others) in [(KEELSON, 0), (MANY, 4998)].into_iter().filter(|(n, _)| wanted(n)) {
                    all.push(Self::keelson(&parts, &program, name, others)?);
                }
                if let Some(program) = daemon::earlier()?.filter(|_| wanted(EARLIER)) {
                    all.push(Self::keelson(&parts, &program, EARLIER, 0)?);
                }
                all.extend(wanted(FLANNELD).then(|| Self::flanneld(&parts)).transpose()?);
            }
            None => println!("left out: keelson and flanneld, which need tests/parts.sh flanneld etcd"),
        }
        all.extend(wanted(VXLAN).then(Self::vxlan).transpose()?);
        all.extend(wanted(DIRECT).then(Self::direct).transpose()?);
        Ok(all)
    }

    fn new(name: &'static str, mtu: u32) -> Result<Contender, Box<dyn Error>> {
        let world = World::new()?;
        world.set_mtu(mtu);
        Ok(Contender { name, world, processes: Vec::new(), _kept: Kept::default() })
    }

    fn keelson(
        parts: &Parts,
        program: &Path,
        name: &'static str,
        others: u32,
    ) -> Result<Contender, Box<dyn Error>> {
        let mut contender = Self::new(name, 1472)?;
        let daemons = Daemon::both(program, parts, &contender.world, others)?;
        contender.processes = daemons.iter().map(Daemon::id).collect();
        contender._kept._daemons = daemons;
        Ok(contender)
    }

    fn flanneld(parts: &Parts) -> Result<Contender, Box<dyn Error>> {
        let mut contender = Self::new(FLANNELD, 1472)?;
        for (n, host) in (1u8..).zip(&contender.world.hosts) {
            let etcd = Etcd::start(parts, host);
            let network = r#"{"Network":"10.1.0.0/16","SubnetLen":24,"Backend":{"Type":"udp"}}"#;
            etcd.put("/coreos.com/network/config", network);
            for n in 1..=2 {
                let lease = format!(r#"{{"PublicIP":"{}","BackendType":"udp"}}"#, host_address(n));
                etcd.put(&format!("/coreos.com/network/subnets/10.1.{n}.0-24"), &lease);
            }
            contender._kept._flanneld.push(Flanneld::start(parts, host, n, &etcd));
            contender._kept._etcd.push(etcd);
        }
        contender.processes = contender._kept._flanneld.iter().map(Flanneld::id).collect();
        Ok(contender)
    }

    fn vxlan() -> Result<Contender, Box<dyn Error>> {
        let contender = Self::new(VXLAN, 1450)?;
        for (n, host) in (1..).zip(&contender.world.hosts) {
            let far = 3 - n;
            host.ip(&[
                &format!(
                    "link add flannel.1 type vxlan id 1 dstport 8472 local {} nolearning",
                    host_address(n)
                ),
                &format!("link set flannel.1 address 02:00:00:00:00:0{n} mtu 1450 up"),
                &format!("addr add 10.1.{n}.0/32 dev flannel.1"),
                &format!("neigh add 10.1.{far}.0 lladdr 02:00:00:00:00:0{far} dev flannel.1 nud permanent"),
                &format!("route add 10.1.{far}.0/24 via 10.1.{far}.0 dev flannel.1 onlink"),
            ]);
            host.bridge(&format!(
                "fdb add 02:00:00:00:00:0{far} dev flannel.1 dst {} self permanent",
                host_address(far)
            ));
        }
        Ok(contender)
    }

    fn direct() -> Result<Contender, Box<dyn Error>> {
        let contender = Self::new(DIRECT, 1500)?;
        for (n, host) in (1..).zip(&contender.world.hosts) {
            let far = 3 - n;
            host.ip(&[&format!("route add 10.1.{far}.0/24 via {}", host_address(far))]);
        }
        Ok(contender)
    }

    /// Resident memory of its larger process in MiB.
    pub fn memory(&self) -> Option<f64> {
        let of = |id: &u32| {
            let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
            let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
            line.split_whitespace().nth(1)?.parse::<f64>().ok().map(|kib| kib / 1024.0)
        };
        self.processes.iter().filter_map(of).reduce(f64::max)
    }
}

/// Where the programs are, if they were built.
fn parts() -> Option<Parts> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/parts.sh");
    let out = Command::new(script).args(["--where", "flanneld", "etcd"]).output().ok()?;
    let said = String::from_utf8(out.stdout).ok().filter(|_| out.status.success())?;
    let mut dirs = said.lines().map(Path::new);
    Some(Parts::of(dirs.next()?, dirs.next()?))
}
