//! Those that carry the pods' packets. Each is set up beside the others; the one whose turn it is gets the routes.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::rig::flanneld::{Etcd, Flanneld, parts};
use crate::world::{World, host_address};

pub struct Contender {
    pub name: &'static str,
    mtu: u32,
    /// The route to the other host's subnet, for each host.
    routes: [String; 2],
    processes: Vec<u32>,
    /// What has to live as long as this.
    _kept: Kept,
}

#[derive(Default)]
struct Kept {
    _carriers: Vec<Carrier>,
    _flanneld: Vec<Flanneld>,
    _etcd: Vec<Etcd>,
}

struct Carrier(Child);

impl Drop for Carrier {
    fn drop(&mut self) {
        // It ends when its input does, and may have counters to tell before.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

pub const KEELSON: &str = "keelson udp";
pub const FLANNELD: &str = "flanneld udp";
const OTHERS: u32 = 4998;

impl Contender {
    pub fn all(world: &World) -> Result<Vec<Contender>, Box<dyn Error>> {
        let mut all = vec![
            Self::keelson(world, KEELSON, "keel0", 9285, 0)?,
            Self::keelson(world, "... 5,000 peers", "keel1", 9286, OTHERS)?,
        ];
        match Self::flanneld(world) {
            Some(flanneld) => all.push(flanneld),
            None => println!("left out: flanneld, because it is not built (tests/parts.sh flanneld etcd)"),
        }
        all.push(Self::vxlan(world));
        all.push(Self::direct());
        Ok(all)
    }

    fn keelson(
        world: &World,
        name: &'static str,
        device: &str,
        port: u16,
        others: u32,
    ) -> Result<Contender, Box<dyn Error>> {
        let mut kept = Kept::default();
        for (n, host) in (1..).zip(&world.hosts) {
            let far = 3 - n;
            let mut command = Command::new(std::env::current_exe()?);
            command.args([
                "carry",
                device,
                &format!("{}:{port}", host_address(n)),
                &format!("10.1.{n}.0/24"),
            ]);
            command.args([others.to_string(), format!("{}:{port}=10.1.{far}.0/24", host_address(far))]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = host.run(|| command.spawn())?;
            let output = child.stdout.take();
            kept._carriers.push(Carrier(child));
            let mut line = String::new();
            BufReader::new(output.ok_or("the path has no output")?).read_line(&mut line)?;
            if line.trim() != "ready" {
                return Err(format!("the path on {device} did not start").into());
            }
            host.ip(&[
                &format!("link set {device} mtu 1472 up"),
                &format!("addr add 10.1.{n}.0/32 dev {device}"),
            ]);
        }
        let processes = kept._carriers.iter().map(|carrier| carrier.0.id()).collect();
        let routes = [2, 1].map(|far| format!("10.1.{far}.0/24 dev {device}"));
        Ok(Contender { name, mtu: 1472, routes, processes, _kept: kept })
    }

    fn flanneld(world: &World) -> Option<Contender> {
        let parts = parts()?;
        let mut kept = Kept::default();
        for (n, host) in (1u8..).zip(&world.hosts) {
            let etcd = Etcd::start(&parts, host);
            let network = r#"{"Network":"10.1.0.0/16","SubnetLen":24,"Backend":{"Type":"udp"}}"#;
            etcd.put("/coreos.com/network/config", network);
            for n in 1..=2 {
                let lease = format!(r#"{{"PublicIP":"{}","BackendType":"udp"}}"#, host_address(n));
                etcd.put(&format!("/coreos.com/network/subnets/10.1.{n}.0-24"), &lease);
            }
            kept._flanneld.push(Flanneld::start(&parts, host, n, &etcd));
            kept._etcd.push(etcd);
        }
        let processes = kept._flanneld.iter().map(Flanneld::id).collect();
        let routes = [2, 1].map(|far| format!("10.1.{far}.0/24 dev flannel0"));
        Some(Contender { name: FLANNELD, mtu: 1472, routes, processes, _kept: kept })
    }

    fn vxlan(world: &World) -> Contender {
        for (n, host) in (1..).zip(&world.hosts) {
            let far = 3 - n;
            host.ip(&[
                &format!(
                    "link add flannel.1 type vxlan id 1 dstport 8472 local {} nolearning",
                    host_address(n)
                ),
                &format!("link set flannel.1 address 02:00:00:00:00:0{n} mtu 1450 up"),
                &format!("addr add 10.1.{n}.0/32 dev flannel.1"),
                &format!("neigh add 10.1.{far}.0 lladdr 02:00:00:00:00:0{far} dev flannel.1 nud permanent"),
            ]);
            host.bridge(&format!(
                "fdb add 02:00:00:00:00:0{far} dev flannel.1 dst {} self permanent",
                host_address(far)
            ));
        }
        let routes = [2, 1].map(|far| format!("10.1.{far}.0/24 via 10.1.{far}.0 dev flannel.1 onlink"));
        Contender { name: "kernel vxlan", mtu: 1450, routes, processes: Vec::new(), _kept: Kept::default() }
    }

    fn direct() -> Contender {
        let routes = [2, 1].map(|far| format!("10.1.{far}.0/24 via {}", host_address(far)));
        Contender { name: "direct routing", mtu: 1500, routes, processes: Vec::new(), _kept: Kept::default() }
    }

    /// From now on the pods' packets go this way.
    pub fn take_over(&self, world: &World) -> Result<(), Box<dyn Error>> {
        world.set_mtu(self.mtu);
        for (host, route) in world.hosts.iter().zip(&self.routes) {
            host.ip(&[&format!("route replace {route}")]);
        }
        Ok(())
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
