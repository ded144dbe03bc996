//! Leases in Kubernetes: a Node's podCIDRs and flannel's annotations on it.

use std::collections::BTreeMap;

use keelson_kit::cidr::{self, IpNetwork};
use serde_json::Value;

use super::{Lease, LeasedSubnet, OwnAttributes, Vtep, public_address};

/// The names of flannel's annotations, which share a prefix that can be configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotations {
    prefix: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot begin the name of an annotation; a domain such as \"flannel.alpha.coreos.com\" is expected, \
     or one with a slash and the beginning of a name"
)]
pub struct PrefixError(String);

impl Annotations {
    pub fn new(prefix: &str) -> Result<Self, PrefixError> {
        let bad = || PrefixError(prefix.to_owned());
        let (domain, name) = prefix.split_once('/').unwrap_or((prefix, ""));
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
        let labels: Vec<&str> = domain.split('.').collect();
        let domain_is_good = labels.len() > 1 && labels.iter().all(|l| !l.is_empty() && l.chars().all(plain));
        if !domain_is_good || !name.chars().all(plain) {
            return Err(bad());
        }
        let dash = if name.is_empty() || name.ends_with('-') { "" } else { "-" };
        Ok(Annotations { prefix: format!("{domain}/{name}{dash}") })
    }

    fn name(&self, last: &str) -> String {
        format!("{}{last}", self.prefix)
    }

    /// A node's subnets, at most one of each family.
    pub fn subnets(&self, pod_ranges: &[String]) -> Result<Vec<IpNetwork>, String> {
        subnets(pod_ranges).map(|(v4, v6)| v4.into_iter().chain(v6).collect())
    }

    /// The lease of a node, None for a node without the overlay. The error says what is wrong with it.
    pub fn lease(
        &self,
        node: &str,
        annotations: &BTreeMap<String, String>,
        pod_ranges: &[String],
    ) -> Result<Option<Lease>, String> {
        let get = |last: &str| annotations.get(&self.name(last)).map(String::as_str);
        if get("kube-subnet-manager") != Some("true") {
            return Ok(None);
        }
        let (v4, v6) = subnets(pod_ranges)?;
        let leased = |subnet: Option<IpNetwork>, address: &str, data: &str, is_v4: bool| {
            let (Some(subnet), Some(public)) = (subnet, get(address)) else { return Ok(None) };
            let public = public_address(public, is_v4)?;
            Ok::<_, String>(Some(LeasedSubnet {
                subnet,
                public,
                vtep: Vtep::read(&backend_data(get(data))?)?,
            }))
        };
        let v4 = leased(v4, "public-ip", "backend-data", true)?;
        let v6 = leased(v6, "public-ipv6", "backend-v6-data", false)?;
        Ok(Some(Lease::new(node, get("backend-type").unwrap_or_default(), v4, v6)))
    }

    /// The public addresses that an administrator wrote on the Node, to be used instead of the interface's.
    pub fn overwrites(&self, annotations: &BTreeMap<String, String>) -> (Option<String>, Option<String>) {
        let get = |last: &str| annotations.get(&self.name(last)).filter(|v| !v.is_empty()).cloned();
        (get("public-ip-overwrite"), get("public-ipv6-overwrite"))
    }

    /// The annotations that are missing or different on this host's own Node.
    pub fn missing(&self, own: &OwnAttributes, found: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut wanted = BTreeMap::from([
            (self.name("kube-subnet-manager"), "true".to_owned()),
            (self.name("backend-type"), own.backend.clone()),
        ]);
        let families = [("", own.public4, own.vtep4), ("v6", own.public6, own.vtep6)]
            .into_iter()
            .filter(|f| f.1.is_some());
        for (family, public, vtep) in families {
            let data = vtep.map_or(Value::Null, |vtep| vtep.write()).to_string();
            let (address, backend) = match family {
                "v6" => ("public-ipv6", "backend-v6-data"),
                _ => ("public-ip", "backend-data"),
            };
            wanted.insert(self.name(address), public.map(|p| p.to_string()).unwrap_or_default());
            wanted.insert(self.name(backend), data);
        }
        wanted.retain(|name, value| found.get(name) != Some(value));
        wanted
    }
}

/// At most one subnet of each family.
fn subnets(ranges: &[String]) -> Result<(Option<IpNetwork>, Option<IpNetwork>), String> {
    let (mut v4, mut v6) = (None, None);
    for text in ranges.iter().filter(|text| !text.is_empty()) {
        let net = cidr::parse_cidr(text).map_err(|e| format!("its pod range {e}"))?;
        let slot = if net.is_ipv4() { &mut v4 } else { &mut v6 };
        if slot.replace(cidr::truncated(net)).is_some_and(|other: IpNetwork| other != cidr::truncated(net)) {
            return Err(format!("it has several pod ranges of one family, of which {text} is one"));
        }
    }
    Ok((v4, v6))
}

fn backend_data(text: Option<&str>) -> Result<Value, String> {
    match text {
        None | Some("") => Ok(Value::Null),
        Some(text) => serde_json::from_str(text).map_err(|e| format!("its backend data is not JSON: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flannel() -> Annotations {
        Annotations::new("flannel.alpha.coreos.com").unwrap()
    }

    fn written(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| (format!("flannel.alpha.coreos.com/{k}"), (*v).to_owned())).collect()
    }

    const VXLAN: [(&str, &str); 4] = [
        ("kube-subnet-manager", "true"),
        ("backend-type", "vxlan"),
        ("backend-data", r#"{"VNI":1,"VtepMAC":"6a:0b:c4:11:22:33"}"#),
        ("public-ip", "192.0.2.7"),
    ];

    #[test]
    fn what_flannel_wrote_is_read_and_what_is_written_reads_back() {
        let lease = flannel().lease("n1", &written(&VXLAN), &["10.244.3.0/24".into()]).unwrap().unwrap();
        let leased = lease.v4.unwrap();
        assert_eq!((&*lease.holder, &*lease.backend, lease.v6), ("n1", "vxlan", None));
        assert_eq!(
            (leased.subnet.to_string(), leased.public.to_string()),
            ("10.244.3.0/24".into(), "192.0.2.7".into())
        );
        assert_eq!(leased.vtep.unwrap().mac.to_string(), "6a:0b:c4:11:22:33");

        let own = OwnAttributes {
            backend: "vxlan".into(),
            public4: Some(leased.public),
            public6: None,
            vtep4: leased.vtep,
            vtep6: None,
        };
        assert_eq!(flannel().missing(&own, &written(&VXLAN)), BTreeMap::new(), "as flannel writes it");
        let moved = OwnAttributes { public4: "192.0.2.8".parse().ok(), ..own };
        assert_eq!(flannel().missing(&moved, &written(&VXLAN)), written(&[("public-ip", "192.0.2.8")]));
    }

    #[test]
    fn a_host_that_takes_no_part_has_no_lease() {
        let quiet = written(&VXLAN[1..]);
        assert_eq!(flannel().lease("n1", &quiet, &["10.244.3.0/24".into()]), Ok(None));
    }

    #[test]
    fn garbage_is_refused_in_words() {
        for (name, value, words) in [
            ("public-ip", "localhost", "no IP address"),
            ("public-ip", "127.0.0.1", "not one that a host"),
            ("public-ip", "224.0.0.1", "not one that a host"),
            ("public-ip", "255.255.255.255", "not one that a host"),
            ("public-ip", "fd00::1", "other family"),
            ("backend-data", "{", "not JSON"),
            ("backend-data", r#"{"VNI":"one"}"#, "backend data"),
            ("backend-data", r#"{"VNI":1,"VtepMAC":"ff:ff:ff:ff:ff:ff"}"#, "not the address of one device"),
            ("backend-data", r#"{"VNI":1,"VtepMAC":"00:00:00:00:00:00"}"#, "not the address of one device"),
            ("backend-data", r#"{"VNI":1,"VtepMAC":"../../etc"}"#, "not an Ethernet address"),
        ] {
            let mut found = written(&VXLAN);
            found.extend(written(&[(name, value)]));
            let error = flannel().lease("n1", &found, &["10.244.3.0/24".into()]).unwrap_err();
            assert!(error.contains(words), "{name}={value}: {error}");
        }
        assert!(flannel().lease("n1", &written(&VXLAN), &["10.244.3.0".into()]).is_err());
        let two = ["10.244.3.0/24".into(), "10.244.4.0/24".into()];
        assert!(flannel().lease("n1", &written(&VXLAN), &two).is_err());
    }

    #[test]
    fn a_prefix_is_a_domain_with_perhaps_the_beginning_of_a_name() {
        for (prefix, name) in [
            ("flannel.alpha.coreos.com", "flannel.alpha.coreos.com/public-ip"),
            ("a.b/", "a.b/public-ip"),
            ("a.b/net", "a.b/net-public-ip"),
            ("a.b/net-", "a.b/net-public-ip"),
        ] {
            assert_eq!(Annotations::new(prefix).unwrap().name("public-ip"), name);
        }
        for bad in ["", "plain", "a..b", "A.b", "a.b/c/d", "a.b/c d"] {
            assert!(Annotations::new(bad).is_err(), "{bad:?}");
        }
    }
}
