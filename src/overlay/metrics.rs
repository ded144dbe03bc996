//! The status in Prometheus' text format.

use crate::status::{PathStatus, PeerStatus, Status};

pub fn render(status: &Status) -> String {
    let mut out = String::new();
    let mut family = |name: &str, help: &str, kind: &str, samples: Vec<(String, String)>| {
        out.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        for (labels, value) in samples {
            out.push_str(&format!("{name}{labels} {value}\n"));
        }
    };
    let one = |value: String| vec![(String::new(), value)];
    let paths = |value: &dyn Fn(&PathStatus) -> Option<String>| {
        let mut samples = Vec::new();
        for peer in &status.peers {
            for (family, path) in peer.paths() {
                let (holder, way) = (escaped(&peer.holder), escaped(&path.path));
                let labels = format!("{{peer=\"{holder}\",family=\"{family}\",path=\"{way}\"}}");
                samples.extend(value(path).map(|value| (labels, value)));
            }
        }
        samples
    };
    let peers = |value: &dyn Fn(&PeerStatus) -> String| {
        let labels = |peer: &PeerStatus| format!("{{peer=\"{}\"}}", escaped(&peer.holder));
        status.peers.iter().map(|peer| (labels(peer), value(peer))).collect::<Vec<_>>()
    };
    family(
        "keelson_overlay_ready",
        "Whether the network is set up.",
        "gauge",
        one(u8::from(status.ready).to_string()),
    );
    family("keelson_overlay_peers", "Peers that are served.", "gauge", one(status.peers.len().to_string()));
    let problems = status.problems.len() + status.peers.iter().map(|p| p.problems.len()).sum::<usize>();
    family("keelson_overlay_problems", "Things that are wrong just now.", "gauge", one(problems.to_string()));
    family(
        "keelson_overlay_leases_heard",
        "Whether leases are heard from their source, rather than remembered.",
        "gauge",
        one(u8::from(status.heard).to_string()),
    );
    family(
        "keelson_overlay_repairs_total",
        "How often something that others changed was put right.",
        "counter",
        one(status.repairs.to_string()),
    );
    family(
        "keelson_overlay_kernel_requests_total",
        "Messages that the kernel was sent about routes, neighbours, devices and rules.",
        "counter",
        one(status.kernel_requests.to_string()),
    );
    family("keelson_overlay_mtu", "What pods may send at once.", "gauge", one(status.mtu.to_string()));
    family(
        "keelson_overlay_peer_loss_ratio",
        "Share of the latest probes that were lost.",
        "gauge",
        paths(&|p| p.loss.map(|loss| format!("{:.2}", f64::from(loss) / 100.0))),
    );
    family(
        "keelson_overlay_peer_rtt_seconds",
        "Round trip of the latest probe.",
        "gauge",
        paths(&|p| p.rtt.map(|rtt| format!("{:.6}", rtt / 1000.0))),
    );
    family(
        "keelson_overlay_peer_mtu",
        "The largest packet that got through.",
        "gauge",
        paths(&|p| p.mtu.map(|mtu| mtu.to_string())),
    );
    family(
        "keelson_overlay_peer_problems",
        "Things that are wrong with a peer.",
        "gauge",
        peers(&|p| p.problems.len().to_string()),
    );
    let counters = status
        .counters
        .iter()
        .map(|(name, value)| (format!("{{what=\"{}\"}}", escaped(name)), value.to_string()));
    family("keelson_overlay_packets_total", "What the data path counted.", "counter", counters.collect());
    out
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_peers_cannot_break_out_of_their_label() {
        let peer = PeerStatus {
            holder: "a\"\n b\\".into(),
            path: PathStatus { path: "vxlan".into(), loss: Some(25), ..PathStatus::default() },
            ..PeerStatus::default()
        };
        let text = render(&Status { peers: vec![peer], ..Status::default() });
        assert!(
            text.contains("keelson_overlay_peer_loss_ratio{peer=\"a\\\"\\n b\\\\\",family=\"ipv4\",path=\"vxlan\"} 0.25\n"),
            "{text}"
        );
        assert!(
            text.lines().all(|line| line.starts_with('#') || line.starts_with("keelson_overlay_")),
            "{text}"
        );
    }
}
