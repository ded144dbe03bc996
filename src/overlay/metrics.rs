//! The status in Prometheus' text format.

use keelson_kit::metrics::Kind::{Counter, Gauge};
use keelson_kit::metrics::Text;

use crate::status::{PathStatus, Status};

pub fn render(status: &Status) -> String {
    let mut text = Text::default();
    let ready = u8::from(status.ready);
    text.single("keelson_overlay_ready", Gauge, "Whether the network is set up.", ready);
    text.single("keelson_overlay_peers", Gauge, "Peers that are served.", status.peers.len());
    let problems = status.problems.len() + status.peers.iter().map(|p| p.problems.len()).sum::<usize>();
    text.single("keelson_overlay_problems", Gauge, "Things that are wrong just now.", problems);
    text.single(
        "keelson_overlay_leases_heard",
        Gauge,
        "Whether leases are heard from their source, rather than remembered.",
        u8::from(status.heard),
    );
    text.single(
        "keelson_overlay_repairs_total",
        Counter,
        "How often something that others changed was put right.",
        status.repairs,
    );
    text.single(
        "keelson_overlay_kernel_requests_total",
        Counter,
        "Messages that the kernel was sent about routes, neighbours, devices and rules.",
        status.kernel_requests,
    );
    text.single("keelson_overlay_mtu", Gauge, "What pods may send at once.", status.mtu);
    text.family("keelson_overlay_peer_loss_ratio", Gauge, "Share of the latest probes that were lost.");
    each_path(&mut text, status, |p| p.loss.map(|loss| format!("{:.2}", f64::from(loss) / 100.0)));
    text.family("keelson_overlay_peer_rtt_seconds", Gauge, "Round trip of the latest probe.");
    each_path(&mut text, status, |p| p.rtt.map(|rtt| format!("{:.6}", rtt / 1000.0)));
    text.family("keelson_overlay_peer_mtu", Gauge, "The largest packet that got through.");
    each_path(&mut text, status, |p| p.mtu.map(|mtu| mtu.to_string()));
    text.family("keelson_overlay_peer_problems", Gauge, "Things that are wrong with a peer.");
    for peer in &status.peers {
        text.sample(&[("peer", &peer.holder)], peer.problems.len());
    }
    text.family("keelson_overlay_packets_total", Counter, "What the data path counted.");
    for (name, value) in &status.counters {
        text.sample(&[("what", name)], value);
    }
    text.finish()
}

fn each_path(text: &mut Text, status: &Status, value: impl Fn(&PathStatus) -> Option<String>) {
    for peer in &status.peers {
        for (family, path) in peer.paths() {
            let labels = [("peer", peer.holder.as_str()), ("family", family), ("path", &path.path)];
            text.known(&labels, value(path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::PeerStatus;

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
