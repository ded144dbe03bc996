//! The pod network of one node in the rig: a bridge with addresses of that node's own range.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::built;
use crate::parts::Part;
use crate::suite::folder;

/// Where a runtime finds its plugins and its network.
#[derive(Debug, Clone)]
pub struct Network {
    pub bin_dir: PathBuf,
    pub conf_dir: PathBuf,
    /// Where addresses given out are recorded; a file each.
    pub leases: PathBuf,
    pub bridge: String,
}

/// Lays out a network. `number` (below 250) sets its range and bridge apart from those of other nodes in the run.
pub fn prepare(dir: &Path, number: u8) -> Result<Network> {
    let dir = folder(dir, "cni")?;
    let conf_dir = folder(&dir, "net.d")?;
    let data_dir = folder(&dir, "networks")?;
    let bridge = format!("rigbr{number}");
    let conf = json!({
        "cniVersion": "1.0.0", "name": "rig",
        "plugins": [
            {"type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": true, "hairpinMode": true,
             "ipam": {"type": "host-local", "dataDir": data_dir, "routes": [{"dst": "0.0.0.0/0"}],
                      "ranges": [[{"subnet": format!("10.88.{number}.0/24")}]]}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    let network = Network { bin_dir: plugins(&dir)?, leases: data_dir.join("rig"), conf_dir, bridge };
    network.write(&conf.to_string())?;
    Ok(network)
}

impl Network {
    /// Takes the network configuration away, as on a node whose network is not set up yet.
    pub fn take_away(&self) -> Result<String> {
        let conf = self.read()?;
        fs::remove_file(self.file())?;
        Ok(conf)
    }

    pub fn read(&self) -> Result<String> {
        let file = self.file();
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
    }

    /// Puts a configuration in place at once, since the runtime watches the directory.
    pub fn write(&self, conf: &str) -> Result<()> {
        let half = self.conf_dir.join(".half");
        fs::write(&half, conf)?;
        fs::rename(half, self.file()).context("cannot place the network configuration")
    }

    /// Puts a script in front of plugins that keeps what they are handed, and then is the plugin. Returns where it is kept: a
    /// file for each command, plugin and container.
    pub fn record(&self, names: &[&str]) -> Result<PathBuf> {
        let dir = self.conf_dir.parent().context("the network has no directory")?;
        ensure!(self.bin_dir.starts_with(dir), "plugins that are not this network's own cannot be recorded");
        let (kept, real) = (folder(dir, "kept")?, self.real()?);
        for name in names {
            let (plugin, script) = (self.bin_dir.join(name), self.bin_dir.join(format!(".{name}")));
            let line = format!(
                "#!/bin/sh\nfile='{}'/$CNI_COMMAND.{name}.$CNI_CONTAINERID\ncat >\"$file.$$\"\nmv \"$file.$$\" \"$file\"\n\
                 exec '{}' <\"$file\"\n",
                kept.display(),
                real.join(name).display()
            );
            fs::write(&script, line)?;
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
            fs::rename(&plugin, real.join(name))?;
            fs::rename(script, plugin)?;
        }
        Ok(kept)
    }

    /// Takes the scripts away again.
    pub fn stop_recording(&self) -> Result<()> {
        for plugin in fs::read_dir(self.real()?)?.flatten() {
            fs::rename(plugin.path(), self.bin_dir.join(plugin.file_name()))?;
        }
        Ok(())
    }

    fn real(&self) -> Result<PathBuf> {
        folder(self.conf_dir.parent().context("the network has no directory")?, "recorded")
    }

    /// The addresses that are given out now.
    pub fn addresses(&self) -> Vec<String> {
        let names = fs::read_dir(&self.leases).into_iter().flatten().flatten();
        names
            .filter_map(|e| e.file_name().into_string().ok())
            .filter(|n| n.parse::<std::net::IpAddr>().is_ok())
            .collect()
    }

    fn file(&self) -> PathBuf {
        self.conf_dir.join("10-rig.conflist")
    }
}

/// The plugins of this project where they were built, else the reference ones.
fn plugins(dir: &Path) -> Result<PathBuf> {
    if let (Ok(own), true) = (built::cni(), std::env::var_os("KEELSON_REFERENCE_CNI").is_none()) {
        let bin = folder(dir, "bin")?;
        for name in ["bridge", "host-local", "loopback", "portmap"] {
            symlink(&own, bin.join(name)).with_context(|| format!("cannot link {name}"))?;
        }
        return Ok(bin);
    }
    if Part::CniReference.available().is_ok() {
        return Part::CniReference.dir();
    }
    bail!("no CNI plugins: build the workspace's, or name the reference ones among the target's needs")
}
