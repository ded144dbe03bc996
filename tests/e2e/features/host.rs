//! The machine around the pods: its swap, and the chains that others look for.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use keelson_tests::agent::Agent;
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::process::output;
use keelson_tests::suite::{Suite, folder};
use keelson_tests::wait::until_true;
use serde_json::{Value, json};

use super::LIMIT;

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &mut Node) {
    let case = "the chains that others look for are there once, and again after a flush";
    match keelson_require::program("iptables") {
        Ok(_) => suite.case(case, LIMIT * 2, iptables_chains(node)).await,
        Err(missing) => suite.leave_out(case, &missing),
    }
    cluster.reset(suite, node).await;
    let dir = folder(suite.dir(), "other-agents");
    let case = "a machine with swap is refused unless that is configured";
    suite.case(case, LIMIT * 2, async { swap(cluster, node, &dir?).await }).await;
}

async fn iptables_chains(node: &mut Node) -> Result<()> {
    let rules = async |arguments: &[&str]| output("iptables", arguments).await.unwrap_or_default();
    for round in ["at first", "after a flush", "after a restart"] {
        if round != "at first" {
            node.agent.stop().await?;
            if round == "after a flush" {
                for table in ["mangle", "nat", "filter"] {
                    output("iptables", &["-t", table, "-F"]).await?;
                    output("iptables", &["-t", table, "-X"]).await?;
                }
            }
            node.agent.restart().await?;
        }
        // The last that is made.
        until_true("the chains are there", LIMIT, async || {
            Ok(!rules(&["-t", "filter", "-S", "KUBE-KUBELET-CANARY"]).await.is_empty())
        })
        .await?;
        let hint = rules(&["-t", "mangle", "-S", "KUBE-IPTABLES-HINT"]).await;
        ensure!(hint == "-N KUBE-IPTABLES-HINT\n", "{round}: the hint is {hint:?}");
        for chain in ["INPUT", "OUTPUT"] {
            let all = rules(&["-S", chain]).await;
            let jumps = all.lines().filter(|l| *l == format!("-A {chain} -j KUBE-FIREWALL")).count();
            ensure!(jumps == 1, "{round}: {all}");
        }
        let firewall = rules(&["-S", "KUBE-FIREWALL"]).await;
        let dropped = "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP";
        ensure!(firewall == format!("-N KUBE-FIREWALL\n{dropped}\n"), "{round}: {firewall:?}");
    }
    Ok(())
}

/// Whether this machine swaps depends on what is mounted over the kernel's file, which nobody else sees.
async fn swap(cluster: &Cluster, node: &Node, dir: &Path) -> Result<()> {
    let swaps = dir.join("swaps");
    let shown = swaps.display().to_string();
    let headings = "Filename Type Size Used Priority\n";
    let limited = json!({"failSwapOn": false, "memorySwap": {"swapBehavior": "LimitedSwap"}});
    let cases: [(&str, &str, Value, Option<&str>); 4] = [
        (
            "swap",
            "/swapfile file 1024 0 -2\n",
            json!({"failSwapOn": true}),
            Some("running with swap on is not supported"),
        ),
        ("swap that is allowed", "/swapfile file 1024 0 -2\n", json!({"failSwapOn": false}), None),
        ("no swap", "", json!({"failSwapOn": true}), None),
        ("limited swap, which is none on cgroup v1", "", limited, None),
    ];
    for (number, (case, line, config, refused)) in cases.into_iter().enumerate() {
        std::fs::write(&swaps, format!("{headings}{line}"))?;
        output("mount", &["--bind", &shown, "/proc/swaps"]).await?;
        let options = cluster.options(&format!("swapping-{number}"), &node.containerd, config)?;
        let started = Agent::start(dir, options).await;
        output("umount", &["/proc/swaps"]).await?;
        match (started, refused) {
            (Ok(mut agent), None) => drop(agent.stop().await?),
            (Ok(_), Some(_)) => anyhow::bail!("{case}: it has started"),
            (Err(error), None) => return Err(error).context(case),
            (Err(error), Some(words)) => ensure!(format!("{error:#}").contains(words), "{case}: {error:#}"),
        }
        let _ = cluster
            .kubectl
            .run(&["delete", "node", &format!("swapping-{number}"), "--ignore-not-found"])
            .await?;
    }
    Ok(())
}
