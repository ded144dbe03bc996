//! Leases in etcd: flannel's keys and values.

use keelson_kit::cidr::{self, IpNetwork};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Lease, LeasedSubnet, OwnAttributes, Vtep, public_address};

/// The value of a lease's key, as flannel writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseValue {
    #[serde(rename = "PublicIP")]
    public4: Option<String>,
    #[serde(rename = "PublicIPv6", default)]
    public6: Option<String>,
    #[serde(rename = "BackendType", default)]
    backend: String,
    #[serde(rename = "BackendData", default, skip_serializing_if = "Value::is_null")]
    data4: Value,
    #[serde(rename = "BackendV6Data", default, skip_serializing_if = "Value::is_null")]
    data6: Value,
}

impl LeaseValue {
    pub fn of(own: &OwnAttributes) -> Self {
        let data = |vtep: Option<Vtep>| vtep.map_or(Value::Null, |vtep| vtep.write());
        LeaseValue {
            public4: own.public4.map(|a| a.to_string()),
            public6: own.public6.map(|a| a.to_string()),
            backend: own.backend.clone(),
            data4: data(own.vtep4),
            data6: data(own.vtep6),
        }
    }

    pub fn parse(value: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(value).map_err(|e| format!("its value is not what flannel writes: {e}"))
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Whether this was written by a host with the given address.
    pub fn is_from(&self, public: std::net::IpAddr) -> bool {
        let own = public.to_string();
        self.public4.as_deref() == Some(own.as_str()) || self.public6.as_deref() == Some(own.as_str())
    }

    /// The lease behind a key with this value.
    pub fn lease(&self, key: &str) -> Result<Lease, String> {
        let (v4, v6) = parse_key(key).ok_or("its key is not a subnet such as 10.1.2.0-24".to_owned())?;
        let leased = |subnet: IpNetwork, public: &Option<String>, data: &Value, is_v4| {
            let Some(public) = public.as_deref().filter(|text| !text.is_empty()) else { return Ok(None) };
            let vtep = Vtep::read(data)?;
            Ok::<_, String>(Some(LeasedSubnet { subnet, public: public_address(public, is_v4)?, vtep }))
        };
        let v4 = leased(v4, &self.public4, &self.data4, true)?;
        let v6 = match v6 {
            Some(v6) => leased(v6, &self.public6, &self.data6, false)?,
            None => None,
        };
        Ok(Lease::new(key, &self.backend, v4, v6))
    }
}

/// The last part of a key: 10.1.2.0-24, or with IPv6 10.1.2.0-24&fd00::-64.
pub fn subnet_key(v4: IpNetwork, v6: Option<IpNetwork>) -> String {
    let one = |net: IpNetwork| format!("{}-{}", net.ip(), net.prefix());
    match v6 {
        None => one(v4),
        Some(v6) => format!("{}&{}", one(v4), one(v6)),
    }
}

pub fn parse_key(key: &str) -> Option<(IpNetwork, Option<IpNetwork>)> {
    let one = |text: &str, v4: bool| {
        let (addr, len) = text.rsplit_once('-')?;
        let net = cidr::parse_cidr(&format!("{addr}/{len}")).ok()?;
        (net.is_ipv4() == v4 && cidr::truncated(net) == net).then_some(net)
    };
    match key.split_once('&') {
        None => Some((one(key, true)?, None)),
        Some((v4, v6)) => Some((one(v4, true)?, Some(one(v6, false)?))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back_as_written() {
        for key in ["10.1.2.0-24", "10.1.2.0-24&fd00:1:2::-64"] {
            let (v4, v6) = parse_key(key).unwrap();
            assert_eq!(subnet_key(v4, v6), key);
        }
        for bad in [
            "",
            "10.1.2.0",
            "10.1.2.0-33",
            "10.1.2.3-24",
            "fd00::-64",
            "10.1.2.0-24&10.1.3.0-24",
            "../config",
        ] {
            assert_eq!(parse_key(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_flanneld_wrote_is_read() {
        let value = br#"{"PublicIP":"192.0.2.7","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"6a:0b:c4:11:22:33"}}"#;
        let lease = LeaseValue::parse(value).unwrap().lease("10.1.2.0-24").unwrap();
        assert_eq!(lease.v4.unwrap().vtep.unwrap().vni, 1);
        let udp = br#"{"PublicIP":"192.0.2.7","PublicIPv6":null}"#;
        let record = LeaseValue::parse(udp).unwrap();
        assert_eq!(record.lease("10.1.2.0-24").unwrap().v4.unwrap().vtep, None);
        assert!(
            record.is_from("192.0.2.7".parse().unwrap()) && !record.is_from("192.0.2.8".parse().unwrap())
        );
    }

    #[test]
    fn what_is_written_is_what_flanneld_reads() {
        let own = OwnAttributes {
            backend: "vxlan".into(),
            public4: "192.0.2.7".parse().ok(),
            public6: None,
            vtep4: Some(Vtep { vni: 1, mac: "6a:0b:c4:11:22:33".parse().unwrap() }),
            vtep6: None,
        };
        assert_eq!(
            LeaseValue::of(&own).to_json(),
            r#"{"PublicIP":"192.0.2.7","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"6a:0b:c4:11:22:33"}}"#
        );
    }

    #[test]
    fn hostile_values_are_refused() {
        for (key, value) in [
            ("10.1.2.0-24", &b"\xff\x00"[..]),
            ("10.1.2.0-24", br#"{"PublicIP":7}"#),
            ("10.1.2.0-24", br#"{"PublicIP":"0.0.0.0"}"#),
            ("10.1.2.0-24", br#"{"PublicIP":"192.0.2.7","BackendData":[1]}"#),
            ("x", br#"{"PublicIP":"192.0.2.7"}"#),
        ] {
            assert!(LeaseValue::parse(value).and_then(|r| r.lease(key)).is_err(), "{key}");
        }
    }
}
