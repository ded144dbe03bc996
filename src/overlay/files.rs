//! Writes files that other programs read, and the state file. All are replaced atomically.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use keelson_kit::cidr::{self, IpNetwork};
use keelson_kit::whole_file;
use serde_json::{Value, json};

#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {source}")]
pub struct WriteError {
    path: PathBuf,
    source: io::Error,
}

/// Writes a temporary file and renames it. A file with the same content is left alone, so that its watchers are not woken.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> Result<bool, WriteError> {
    if fs::read(path).is_ok_and(|now| now == content) {
        return Ok(false);
    }
    write(path, mode, |file| file.write_all(content)).map(|()| true)
}

/// The same with content that is produced while it is written.
pub fn write(
    path: &Path,
    mode: u32,
    fill: impl FnOnce(&mut fs::File) -> io::Result<()>,
) -> Result<(), WriteError> {
    let failed = |source| WriteError { path: path.to_owned(), source };
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(failed)?;
    whole_file::replace(path, mode, |file| fill(file).and_then(|()| file.sync_all())).map_err(failed)
}

/// flannel's subnet.env: the network, this host's subnet and the MTU.
pub fn subnet_env(networks: &[IpNetwork], subnets: &[IpNetwork], mtu: u32, masquerade: bool) -> String {
    let mut text = String::new();
    for (v4, prefix) in [(true, "FLANNEL_"), (false, "FLANNEL_IPV6_")] {
        let of = |nets: &[IpNetwork]| nets.iter().copied().find(|net| net.is_ipv4() == v4);
        if let (Some(network), Some(subnet)) = (of(networks), of(subnets)) {
            let first = cidr::with_length(cidr::next(subnet.ip()), subnet.prefix());
            text.push_str(&format!("{prefix}NETWORK={network}\n{prefix}SUBNET={first}\n"));
        }
    }
    text.push_str(&format!("FLANNEL_MTU={mtu}\nFLANNEL_IPMASQ={masquerade}\n"));
    text
}

/// The subnets in a subnet.env.
pub fn read_subnet_env(text: &str) -> Vec<IpNetwork> {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        cidr::parse_cidr(line.trim()).ok().map(cidr::truncated)
    };
    ["FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"].into_iter().filter_map(value).collect()
}

/// A CNI network for the container runtime: a bridge with this host's subnets, host-local addresses, and port mappings.
/// Traffic that leaves the pod network is masqueraded by the overlay, so the bridge does not.
pub fn cni_conflist(subnets: &[IpNetwork], mtu: u32) -> String {
    let ranges: Vec<Value> = subnets.iter().map(|net| json!([{"subnet": net.to_string()}])).collect();
    let defaults = subnets.iter().map(|net| if net.is_ipv4() { "0.0.0.0/0" } else { "::/0" });
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

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(list: &[&str]) -> Vec<IpNetwork> {
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
