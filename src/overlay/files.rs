//! Files that others read, and those that this host needs again after a reboot. All are replaced whole or not at all.

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use keelson_netkit::IpNet;
use serde_json::{Value, json};

#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {source}")]
pub struct WriteError {
    path: PathBuf,
    source: io::Error,
}

/// Writes a file beside its place and moves it there. A file that holds the same already is left alone, so that nobody
/// who watches it is woken.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> Result<bool, WriteError> {
    if fs::read(path).is_ok_and(|now| now == content) {
        return Ok(false);
    }
    write(path, mode, |file| file.write_all(content)).map(|()| true)
}

/// The same with a content that is made while it is written.
pub fn write(
    path: &Path,
    mode: u32,
    fill: impl FnOnce(&mut fs::File) -> io::Result<()>,
) -> Result<(), WriteError> {
    let failed = |source| WriteError { path: path.to_owned(), source };
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(failed)?;
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let fresh = dir.join(format!(".{name}.{}", std::process::id()));
    let written = (|| {
        let _ = fs::remove_file(&fresh);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
        fill(&mut file)?;
        file.sync_all()?;
        fs::rename(&fresh, path)
    })();
    if let Err(source) = written {
        let _ = fs::remove_file(&fresh);
        return Err(failed(source));
    }
    Ok(())
}

/// What flannel's CNI plugin and others read: the network, this host's part of it, and how large packets may be.
pub fn subnet_env(networks: &[IpNet], subnets: &[IpNet], mtu: u32, masquerade: bool) -> String {
    let mut text = String::new();
    for (v4, prefix) in [(true, "FLANNEL_"), (false, "FLANNEL_IPV6_")] {
        let of = |nets: &[IpNet]| nets.iter().copied().find(|net| net.is_v4() == v4);
        if let (Some(network), Some(subnet)) = (of(networks), of(subnets)) {
            let first = IpNet::new(next(subnet.addr), subnet.prefix);
            text.push_str(&format!("{prefix}NETWORK={network}\n{prefix}SUBNET={first}\n"));
        }
    }
    text.push_str(&format!("FLANNEL_MTU={mtu}\nFLANNEL_IPMASQ={masquerade}\n"));
    text
}

/// The subnets that a file of that kind names.
pub fn read_subnet_env(text: &str) -> Vec<IpNet> {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        line.trim().parse::<IpNet>().ok().map(|net| net.network())
    };
    ["FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"].into_iter().filter_map(value).collect()
}

/// A network for the container runtime: a bridge with this host's subnets, its addresses handed out here, ports mapped.
/// What leaves the pod network is masqueraded by the overlay and not again by the bridge.
pub fn cni_conflist(subnets: &[IpNet], mtu: u32) -> String {
    let ranges: Vec<Value> = subnets.iter().map(|net| json!([{"subnet": net.to_string()}])).collect();
    let defaults = subnets.iter().map(|net| if net.is_v4() { "0.0.0.0/0" } else { "::/0" });
    let routes: Vec<Value> = defaults.map(|dst| json!({"dst": dst})).collect();
    let conf = json!({
        "cniVersion": "1.0.0",
        "name": "cbr0",
        "plugins": [
            {"type": "bridge", "bridge": "cni0", "isGateway": true, "isDefaultGateway": true, "ipMasq": false,
             "hairpinMode": true, "mtu": mtu,
             "ipam": {"type": "host-local", "ranges": ranges, "routes": routes}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    format!("{conf:#}\n")
}

fn next(addr: IpAddr) -> IpAddr {
    match addr {
        IpAddr::V4(a) => Ipv4Addr::from_bits(a.to_bits().wrapping_add(1)).into(),
        IpAddr::V6(a) => Ipv6Addr::from_bits(a.to_bits().wrapping_add(1)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(list: &[&str]) -> Vec<IpNet> {
        list.iter().map(|n| n.parse().unwrap()).collect()
    }

    #[test]
    fn the_environment_file_is_flannels_and_reads_back() {
        let subnets = nets(&["10.244.3.0/24", "fd00:0:0:3::/64"]);
        let text = subnet_env(&nets(&["10.244.0.0/16", "fd00::/56"]), &subnets, 1450, true);
        assert_eq!(
            text,
            "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_IPV6_NETWORK=fd00::/56\n\
             FLANNEL_IPV6_SUBNET=fd00:0:0:3::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
        );
        assert_eq!(read_subnet_env(&text), subnets);
        assert_eq!(read_subnet_env("FLANNEL_SUBNET=garbage\n\0"), []);
    }

    #[test]
    fn a_file_is_replaced_whole_and_only_when_it_differs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/subnet.env");
        assert!(replace(&path, b"one", 0o644).unwrap());
        assert!(!replace(&path, b"one", 0o644).unwrap());
        assert!(replace(&path, b"two", 0o644).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no half-made file is left");
    }
}
