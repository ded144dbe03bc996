//! What keeps the host's loopback addresses the host's own.
//!
//! A port that is reached by 127.0.0.1 needs `route_localnet` on the containers' link, and with it the kernel takes packets
//! for 127/8 from there: a container that sends frames to its gateway's MAC would reach services that listen on the host's
//! loopback address only (CVE-2020-8558). So before that is set, whatever comes in by another link than lo with such an
//! address, as its destination or its source, is dropped, ahead of connection tracking: answers to the host's own
//! connections carry the address that they were masqueraded to there.

use keelson_netkit::Socket;
use keelson_netkit::nft::{self, Batch, Compare, Expr, Hook, register};

use super::plan::TABLE;
use crate::iptables::Iptables;
use crate::owned;
use crate::skel::Failure;

const CHAIN: &str = "localnet";
const BEFORE_TRACKING: Hook = Hook { kind: "filter", number: 0, priority: -300 };
const COMMENT: &str = "loopback addresses come from lo only";

/// Makes the rules unless they are there.
pub fn guard(socket: &mut Socket) -> Result<(), Failure> {
    if nft::chain_exists(socket, TABLE, CHAIN)? {
        return Ok(());
    }
    owned::retry(|| {
        let generation = nft::generation(socket)?;
        if nft::chain_exists(socket, TABLE, CHAIN)? {
            return Ok(());
        }
        let mut batch = Batch::new();
        batch.table(TABLE).chain(TABLE, CHAIN, Some(BEFORE_TRACKING));
        for rule in rules() {
            batch.rule(TABLE, CHAIN, COMMENT, &rule);
        }
        batch.run(socket, Some(generation))
    })
    .map_err(Failure::from)
}

/// The same where the kernel has only what the older iptables programs use.
pub fn guard_by_iptables() -> Result<(), Failure> {
    for side in ["-d", "-s"] {
        let rule =
            ["!", "-i", "lo", side, "127.0.0.0/8", "-m", "comment", "--comment", COMMENT, "-j", "DROP"];
        Iptables::V4.ensure_raw_rule("PREROUTING", &rule)?;
    }
    Ok(())
}

/// One rule for the destination, one for the source.
fn rules() -> [Vec<Expr>; 2] {
    let r = register(0);
    let is = |value: Vec<u8>| Expr::Cmp { reg: r, op: Compare::Equal, value };
    let mut loopback = b"lo".to_vec();
    loopback.resize(16, 0);
    [16, 12].map(|offset| {
        let mut rule = super::plan::family(true);
        rule.extend([
            Expr::Network { offset, len: 1, to: r },
            is(vec![127]),
            Expr::InputName { to: r },
            Expr::Cmp { reg: r, op: Compare::Different, value: loopback.clone() },
            Expr::Verdict(nft::Verdict::Drop),
        ]);
        rule
    })
}
