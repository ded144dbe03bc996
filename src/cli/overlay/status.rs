//! `keelson overlay status`.

use std::io::Write;
use std::path::PathBuf;

use clap::ArgMatches;
use keelson_overlay::status::Status;

use super::SOCKET;

pub(crate) fn show(matches: &ArgMatches, flags: &ArgMatches) -> anyhow::Result<()> {
    let socket = matches.get_one::<PathBuf>("socket").cloned().unwrap_or_else(|| SOCKET.into());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let status = runtime.block_on(keelson_overlay::ask(&socket))?;
    let mut out = std::io::stdout().lock();
    match flags.get_one::<String>("output").map(String::as_str) {
        Some("json") => writeln!(out, "{}", serde_json::to_string_pretty(&status)?)?,
        _ => out.write_all(page(&status).as_bytes())?,
    }
    Ok(())
}

/// For a person: this host, its peers as a table, and what is wrong.
fn page(status: &Status) -> String {
    let heard = if status.heard { "" } else { ", remembered from earlier" };
    let mut text = format!(
        "backend     {} over {} ({}), MTU {}\nnetwork     {}\nthis host   {}\nleases      {}{heard}\nrepairs     {}\n\n",
        status.backend,
        status.interface,
        status.public.join(", "),
        status.mtu,
        status.networks.join(", "),
        if status.subnets.is_empty() { "no subnet yet".to_owned() } else { status.subnets.join(", ") },
        status.leases,
        status.repairs
    );
    let mut lines: Vec<Vec<String>> = vec![
        ["PEER", "SUBNET", "ADDRESS", "PATH", "LOSS", "RTT", "MTU", "PROBLEM"].map(String::from).to_vec(),
    ];
    for peer in &status.peers {
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        // One line for each family; what is wrong stands in the first.
        let mut problems = Some(peer.problems.join("; "));
        for ((_, path), subnet) in peer.paths().zip(&peer.subnets) {
            lines.push(vec![
                peer.holder.clone(),
                subnet.clone(),
                path.public.clone(),
                path.path.clone(),
                or_dash(path.loss.map(|loss| format!("{loss}%"))),
                or_dash(path.rtt.map(|rtt| format!("{rtt:.2} ms"))),
                or_dash(path.mtu.map(|mtu| mtu.to_string())),
                problems.take().unwrap_or_default(),
            ]);
        }
    }
    text.push_str(&crate::table::aligned(&lines));
    if !status.problems.is_empty() {
        text.push_str("\nproblems:\n");
        for problem in &status.problems {
            text.push_str(&format!("  {}\n", crate::table::shown(problem)));
        }
    }
    text
}
