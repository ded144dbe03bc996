//! Turns probe results into a diagnosis. Pure.

use std::net::IpAddr;

use crate::plan::Carrier;

/// The result of one sweep for one peer and family.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProbeResult {
    /// A small echo came back through the overlay; the round trip in milliseconds.
    pub small: Option<f32>,
    /// The largest echo that came back, as a whole IP packet.
    pub largest: Option<u32>,
    /// A UDP packet came back, or was refused by the peer's kernel, which proves as much.
    pub udp: bool,
    /// The peer's public address answered outside the overlay.
    pub underlay: bool,
    /// The peer answered through the udp data path, where that is the fallback.
    pub fallback: bool,
}

/// Describes what is wrong with a peer, if anything. `mtu` is what pods may send; `port` is the tunnel's.
pub fn diagnose(
    result: &ProbeResult,
    carrier: Carrier,
    public: IpAddr,
    port: Option<u16>,
    mtu: u32,
) -> Option<String> {
    let by = |port: Option<u16>| {
        port.map_or(String::new(), |port| format!("UDP port {port} is filtered between the hosts, or "))
    };
    match result {
        ProbeResult { small: None, udp: false, underlay: false, .. } => Some(format!(
            "{public} does not answer at all: the host is down or cut off, or a firewall drops its pings"
        )),
        ProbeResult { small: None, udp: false, underlay: true, .. } if carrier == Carrier::Direct => None,
        ProbeResult { small: None, udp: false, underlay: true, .. } => Some(format!(
            "{public} is up but nothing comes back through the overlay: {}the overlay does not run there, or its lease \
             tells another MAC than its device has (stale MAC)",
            by(port)
        )),
        ProbeResult { small: Some(_), udp: false, .. } if carrier != Carrier::Direct => Some(format!(
            "pings come back from {public} through the overlay but UDP does not: checksums are damaged on the way \
             (checksum offload), or a firewall drops UDP inside the overlay"
        )),
        ProbeResult { small: Some(_), largest, .. } if largest.is_none_or(|found| found < mtu) => {
            let found = largest.map_or("not even the smallest large one passes".to_owned(), |found| {
                format!("nothing above {found} bytes passes")
            });
            Some(format!("the MTU towards {public} is too small: pods may send {mtu} bytes, but {found}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pattern_of_replies_has_its_diagnosis() {
        let well =
            ProbeResult { small: Some(0.3), largest: Some(1450), udp: true, underlay: true, fallback: false };
        let cases: [(&str, ProbeResult, Carrier, &str); 8] = [
            ("all is well", well.clone(), Carrier::Vxlan, ""),
            ("nothing at all", ProbeResult::default(), Carrier::Vxlan, "does not answer at all"),
            (
                "only outside the overlay",
                ProbeResult { underlay: true, ..ProbeResult::default() },
                Carrier::Vxlan,
                "UDP port 8472 is filtered",
            ),
            ("no UDP inside", ProbeResult { udp: false, ..well.clone() }, Carrier::Vxlan, "checksum offload"),
            (
                "no large ones",
                ProbeResult { largest: Some(1400), ..well.clone() },
                Carrier::Udp,
                "nothing above 1400",
            ),
            ("none that is larger", ProbeResult { largest: None, ..well.clone() }, Carrier::Udp, "not even"),
            (
                "pings are dropped, UDP passes",
                ProbeResult { small: None, largest: None, ..well.clone() },
                Carrier::Vxlan,
                "",
            ),
            ("a direct route", ProbeResult { udp: false, ..well }, Carrier::Direct, ""),
        ];
        for (name, result, carrier, words) in cases {
            let diagnosis = diagnose(&result, carrier, "192.0.2.7".parse().unwrap(), Some(8472), 1450);
            match words {
                "" => assert_eq!(diagnosis, None, "{name}"),
                words => {
                    assert!(diagnosis.as_ref().is_some_and(|t| t.contains(words)), "{name}: {diagnosis:?}")
                }
            }
        }
    }
}
