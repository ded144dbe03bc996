//! Hosts in small, for what happens between hosts: network namespaces on one wire, and pods as namespaces behind a bridge
//! that our CNI plugins make.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process::{Daemon, output};
use crate::suite::folder;
use crate::wait::until_true;
use crate::{built, process};

/// The address of the wire's own end, where servers for the hosts listen.
pub const WIRE: &str = "198.51.100.254";
const WIRE6: &str = "2001:db8:1::fe";

/// Makes the wire. The bridge hears no spanning tree and passes everything at once.
pub async fn lay_wire() -> Result<()> {
    ip("link add wire type bridge").await?;
    ip(&format!("addr add {WIRE}/24 dev wire")).await?;
    ip(&format!("addr add {WIRE6}/64 dev wire nodad")).await?;
    ip("link set wire up").await
}

/// Runs `ip` with arguments that hold no spaces of their own.
pub async fn ip(line: &str) -> Result<()> {
    output("ip", &line.split(' ').collect::<Vec<_>>()).await.map(drop)
}

pub struct Host {
    pub name: String,
    pub number: u8,
    pub dir: PathBuf,
    daemon: Option<Daemon>,
    pods: u8,
}

/// A pod on a host: a namespace with an address of each family.
#[derive(Debug, Clone)]
pub struct Pod {
    pub netns: String,
    pub addresses: Vec<IpAddr>,
}

impl Host {
    /// A host with `eth0` on the wire and a default route; nothing runs on it yet.
    pub async fn plug_in(dir: &Path, number: u8) -> Result<Self> {
        let name = format!("h{number}");
        let host = Host { dir: folder(dir, &name)?, name, number, daemon: None, pods: 0 };
        let ns = &host.name;
        ip(&format!("netns add {ns}")).await?;
        ip(&format!("link add w{number} type veth peer name eth0 netns {ns}")).await?;
        ip(&format!("link set w{number} master wire up")).await?;
        for line in [
            "link set lo up".to_owned(),
            format!("addr add {} dev eth0", host.net4(number)),
            format!("addr add 2001:db8:1::{number}/64 dev eth0 nodad"),
            "link set eth0 up".to_owned(),
            format!("route add default via {WIRE}"),
            format!("-6 route add default via {WIRE6}"),
        ] {
            host.ip(&line).await?;
        }
        Ok(host)
    }

    fn net4(&self, number: u8) -> String {
        format!("198.51.100.{number}/24")
    }

    /// `ip` inside the host.
    pub async fn ip(&self, line: &str) -> Result<String> {
        let mut args = vec!["-n", &self.name];
        args.extend(line.split(' '));
        output("ip", &args).await
    }

    /// A program inside the host, run to its end.
    pub async fn run(&self, line: &str) -> Result<String> {
        inside(&self.name, line).await
    }

    /// A program inside the host that goes on, its log in the host's folder.
    pub fn spawn(&self, name: &str, program: &Path, args: &[String], env: &[(&str, &str)]) -> Result<Daemon> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program).args(args).envs(env.iter().copied());
        Daemon::spawn(name, command, &self.dir.join(format!("{name}.log")))
    }

    /// Starts our overlay with these flags, and its files in the host's folder.
    pub fn start_overlay(&mut self, flags: &[&str]) -> Result<()> {
        let at = |file: &str| self.dir.join(file).display().to_string();
        let mut args: Vec<String> = ["overlay", "--ip-masq", "--v=4"].map(String::from).to_vec();
        for (flag, file) in [
            ("state-dir", "state"),
            ("subnet-file", "subnet.env"),
            ("cni-conf", "net.d/10-keelson.conflist"),
            ("socket", "overlay.sock"),
        ] {
            args.extend([format!("--{flag}"), at(file)]);
        }
        args.extend(flags.iter().map(|f| (*f).to_owned()));
        let node = format!("NODE_NAME={}", self.name);
        let (key, value) = node.split_once('=').unwrap_or_default();
        self.daemon = Some(self.spawn("overlay", &built::agent()?, &args, &[(key, value)])?);
        Ok(())
    }

    /// Waits until pods can be given addresses.
    pub async fn wait_ready(&mut self) -> Result<()> {
        let name = self.name.clone();
        until_true(&format!("the overlay on {name} is ready"), Duration::from_secs(30), async || {
            self.daemon.as_mut().context("not started")?.check_alive()?;
            Ok(self.status().await.is_ok_and(|status| status["ready"] == true))
        })
        .await
    }

    pub fn overlay_pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::id)
    }

    pub async fn status(&self) -> Result<Value> {
        let socket = self.dir.join("overlay.sock").display().to_string();
        let text = output(built::agent()?, &["overlay", "--socket", &socket, "status", "-o", "json"]).await?;
        Ok(serde_json::from_str(&text)?)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("overlay.log")).unwrap_or_default()
    }

    /// Kills the overlay as a crash would.
    pub fn kill_overlay(&mut self) -> Result<()> {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill()?;
        }
        Ok(())
    }

    pub async fn stop_overlay(&mut self) -> Result<()> {
        if let Some(mut daemon) = self.daemon.take() {
            let status = daemon.stop(Duration::from_secs(5)).await?;
            ensure!(status.success(), "the overlay on {} ended with {status}", self.name);
        }
        Ok(())
    }

    /// Attaches a pod with the network that the overlay wrote for the runtime.
    pub async fn add_pod(&mut self) -> Result<Pod> {
        let file = self.dir.join("net.d/10-keelson.conflist");
        let conf: Value = serde_json::from_slice(&std::fs::read(&file).context("no CNI network yet")?)?;
        self.add_pod_with(&conf["plugins"][0]).await
    }

    pub async fn add_pod_with(&mut self, bridge: &Value) -> Result<Pod> {
        self.pods += 1;
        let netns = format!("{}p{}", self.name, self.pods);
        ip(&format!("netns add {netns}")).await?;
        let mut conf = bridge.clone();
        conf["cniVersion"] = "1.0.0".into();
        conf["name"] = "cbr0".into();
        conf["ipam"]["dataDir"] = self.dir.join("networks").display().to_string().into();
        let bin = folder(&self.dir, "bin")?;
        for plugin in ["bridge", "host-local"] {
            let link = bin.join(plugin);
            if !link.exists() {
                std::os::unix::fs::symlink(built::cni()?, link)?;
            }
        }
        let mut command = tokio::process::Command::new("ip");
        command
            .args(["netns", "exec", &self.name])
            .arg(bin.join("bridge"))
            .envs([("CNI_COMMAND", "ADD"), ("CNI_IFNAME", "eth0"), ("CNI_CONTAINERID", netns.as_str())])
            .env("CNI_NETNS", format!("/run/netns/{netns}"))
            .env("CNI_PATH", &bin)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().context("cannot run the bridge plugin")?;
        let mut stdin = child.stdin.take().context("no stdin")?;
        tokio::io::AsyncWriteExt::write_all(&mut stdin, conf.to_string().as_bytes()).await?;
        drop(stdin);
        let out = child.wait_with_output().await?;
        ensure!(out.status.success(), "bridge: {}", String::from_utf8_lossy(&out.stdout));
        let result: Value = serde_json::from_slice(&out.stdout)?;
        let ips = result["ips"].as_array().cloned().unwrap_or_default();
        let address = |ip: &Value| ip["address"].as_str()?.split('/').next()?.parse().ok();
        Ok(Pod { netns, addresses: ips.iter().filter_map(address).collect() })
    }

    /// Removes what an overlay and pods left: interfaces, routes, rules and files.
    pub async fn bare(&mut self) -> Result<()> {
        let links = self.ip("-o link show").await?;
        let names = links.lines().filter_map(|line| line.split(": ").nth(1)?.split('@').next());
        for name in names.filter(|name| !matches!(*name, "lo" | "eth0")) {
            // One of a pair takes the other along.
            let _ = self.ip(&format!("link del {name}")).await;
        }
        for family in ["-4", "-6"] {
            let _ = self.ip(&format!("{family} route flush proto 75")).await;
            let _ = self.ip(&format!("{family} route flush proto boot root 10.0.0.0/8")).await;
        }
        let _ = self.run("nft flush ruleset").await;
        for left in ["state", "subnet.env", "net.d", "networks"] {
            let path = self.dir.join(left);
            let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        }
        Ok(())
    }

    /// Takes the host's cable out, or puts it back.
    pub async fn connect(&self, on: bool) -> Result<()> {
        ip(&format!("link set w{} {}", self.number, if on { "up" } else { "down" })).await
    }
}

impl Pod {
    pub fn v4(&self) -> Result<IpAddr> {
        self.addresses.iter().copied().find(IpAddr::is_ipv4).context("a pod without an IPv4 address")
    }

    /// One packet there and back.
    pub async fn ping(&self, to: IpAddr) -> Result<()> {
        inside(&self.netns, &format!("busybox ping -c1 -W1 {to}")).await.map(drop)
    }

    /// Waits until packets come back.
    pub async fn reaches(&self, to: IpAddr) -> Result<()> {
        let what = format!("{} reaches {to}", self.netns);
        until_true(&what, Duration::from_secs(20), async || Ok(self.ping(to).await.is_ok())).await
    }
}

/// Every pod reaches every other, in each family.
pub async fn all_reach_all(pods: &[Pod]) -> Result<()> {
    for from in pods {
        for to in pods.iter().filter(|to| to.netns != from.netns) {
            for addr in &to.addresses {
                from.reaches(*addr).await?;
            }
        }
    }
    Ok(())
}

pub async fn inside(netns: &str, line: &str) -> Result<String> {
    let mut args = vec!["netns", "exec", netns];
    args.extend(line.split(' '));
    process::output("ip", &args).await
}
