//! Masquerading by nf_tables as the reference plugins do it, for whoever asks for the backend by its name: what either
//! made, the other finds and takes down.
//!
//! ```text
//! table inet cni_plugins_masquerade
//!   chain postrouting: multicast returns; all else goes to masq_checks
//!   chain masq_checks: a rule for each address, found by its comment
//! ```

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::Socket;
use keelson_netkit::nft::{self, Batch, Expr, Family, Table, Verdict};

use super::masquerade::{POSTROUTING, leaves, return_multicast};
use crate::owned;
use crate::owner::{Owner, reference_masquerade_comment, reference_masquerade_network};
use crate::skel::{Failure, ValidAttachment};

const TABLE: Table = Table { family: Family::Inet, name: "cni_plugins_masquerade" };
const BASE: &str = "postrouting";
const CHECKS: &str = "masq_checks";

/// Masquerades what comes from the given addresses and leaves their networks.
pub fn set_up(owner: &Owner, nets: &[IpNetwork]) -> Result<(), Failure> {
    let mut socket = Socket::netfilter()?;
    let comment = reference_masquerade_comment(owner);
    owned::retry(|| {
        let generation = nft::generation(&mut socket)?;
        let mut batch = Batch::new();
        if !nft::chain_exists(&mut socket, TABLE, BASE)? {
            add_base(&mut batch);
        }
        for stale in rules(&mut socket, &instance(&comment))? {
            batch.delete_rule(TABLE, CHECKS, stale);
        }
        for net in nets {
            batch.rule(TABLE, CHECKS, &comment, &leaves(*net));
        }
        batch.run(&mut socket, Some(generation))
    })
    .map_err(Failure::from)
}

/// Removes the owner's rules; having none is fine.
pub fn tear_down(socket: &mut Socket, owner: &Owner) -> Result<(), Failure> {
    let comment = reference_masquerade_comment(owner);
    owned::retry(|| {
        let mut batch = Batch::new();
        for rule in rules(socket, &instance(&comment))? {
            batch.delete_rule(TABLE, CHECKS, rule);
        }
        batch.run(socket, None)
    })
    .map_err(Failure::from)
}

/// Removes the rules of all owners on a network but those to be kept.
pub fn collect(socket: &mut Socket, network: &str, keep: &[ValidAttachment]) -> Result<(), Failure> {
    let of_network = reference_masquerade_network(network);
    let keep: Vec<String> = keep
        .iter()
        .map(|at| instance(&reference_masquerade_comment(&Owner::kept(network, at))).to_owned())
        .collect();
    owned::retry(|| {
        let mut batch = Batch::new();
        for rule in nft::list_rules(socket, TABLE, CHECKS)? {
            let comment = rule.comment.unwrap_or_default();
            if comment.starts_with(&of_network) && !keep.iter().any(|kept| comment.starts_with(kept)) {
                batch.delete_rule(TABLE, CHECKS, rule.handle);
            }
        }
        batch.run(socket, None)
    })
    .map_err(Failure::from)
}

/// The part of a comment that tells owners apart; what follows is for people, and cut where it gets long.
fn instance(comment: &str) -> String {
    comment.split(',').next().unwrap_or_default().to_owned()
}

fn rules(socket: &mut Socket, instance: &str) -> keelson_netkit::Result<Vec<u64>> {
    let rules = nft::list_rules(socket, TABLE, CHECKS)?;
    let own = |comment: &str| comment.starts_with(instance);
    Ok(rules.into_iter().filter(|r| r.comment.as_deref().is_some_and(own)).map(|r| r.handle).collect())
}

fn add_base(batch: &mut Batch) {
    batch.table(TABLE).chain(TABLE, CHECKS, None).chain(TABLE, BASE, Some(POSTROUTING));
    for multicast in return_multicast() {
        batch.rule(TABLE, BASE, "", &multicast);
    }
    batch.rule(TABLE, BASE, "", &[Expr::Verdict(Verdict::Goto(CHECKS.into()))]);
}
