//! Keeping a container from sending with another's MAC.
//!
//! The tables and chains are named as the reference plugin names them, so that either can take them down:
//! in `table bridge nat`, the base chain PREROUTING jumps by the port's name to `cni-br-iface-ID-IFNAME`,
//! and from there to the same name with `-mac`, which returns for the right MAC and drops the rest.

use keelson_netkit::nft::{self, Batch, Compare, Expr, Family, Hook, Table, Verdict, register};
use keelson_netkit::{Mac, Socket};

use crate::owner::Owner;
use crate::skel::Failure;

const TABLE: Table = Table { family: Family::Bridge, name: "nat" };
const BASE: &str = "PREROUTING";
const PREROUTING: Hook = Hook { kind: "filter", number: 0, priority: -300 };

struct Names {
    interface: String,
    mac: String,
    comment: String,
}

impl Names {
    fn of(owner: &Owner) -> Self {
        let id = format!("{}-{}", owner.container, owner.ifname);
        let interface = format!("cni-br-iface-{id}");
        Names { mac: format!("{interface}-mac"), interface, comment: format!("macspoofchk-{id}") }
    }
}

/// Lets through only what the port sends with its own MAC.
pub fn set_up(owner: &Owner, port: &str, mac: Option<Mac>) -> Result<(), Failure> {
    let Some(mac) = mac else {
        return Err(Failure::internal("the container's interface has no MAC to check"));
    };
    let names = Names::of(owner);
    let mut socket = Socket::netfilter()?;
    let mut batch = Batch::new();
    if !nft::chain_exists(&mut socket, TABLE, BASE)? {
        batch.table(TABLE).chain(TABLE, BASE, Some(PREROUTING));
    }
    for old in rules_of(&mut socket, &names)? {
        batch.delete_rule(TABLE, BASE, old);
    }
    batch.chain(TABLE, &names.interface, None).chain(TABLE, &names.mac, None);
    batch.flush(TABLE, &names.interface).flush(TABLE, &names.mac);
    let r = register(0);
    let mut name = port.as_bytes().to_vec();
    name.resize(16, 0);
    let comment = names.comment.as_str();
    let jump = |chain: &str| Expr::Verdict(Verdict::Jump(chain.to_owned()));
    let is = |value| Expr::Cmp { reg: r, op: Compare::Equal, value };
    batch.rule(TABLE, BASE, comment, &[Expr::InputName { to: r }, is(name), jump(&names.interface)]);
    batch.rule(TABLE, &names.interface, comment, &[jump(&names.mac)]);
    let source = Expr::Link { offset: 6, len: 6, to: r };
    batch.rule(TABLE, &names.mac, comment, &[source, is(mac.0.to_vec()), Expr::Verdict(Verdict::Return)]);
    batch.rule(TABLE, &names.mac, comment, &[Expr::Verdict(Verdict::Drop)]);
    batch.run(&mut socket, None).map_err(Failure::from)
}

/// Removes the owner's chains and what leads to them; having none is fine.
pub fn tear_down(socket: &mut Socket, owner: &Owner) -> Result<(), Failure> {
    let names = Names::of(owner);
    let mut batch = Batch::new();
    for rule in rules_of(socket, &names)? {
        batch.delete_rule(TABLE, BASE, rule);
    }
    for chain in [&names.interface, &names.mac] {
        if nft::chain_exists(socket, TABLE, chain)? {
            batch.flush(TABLE, chain).delete_chain(TABLE, chain);
        }
    }
    batch.run(socket, None).map_err(Failure::from)
}

/// The base chain's rules for this owner. Comments are cut short by whoever writes them, so long ids are
/// compared as far as they go.
fn rules_of(socket: &mut Socket, names: &Names) -> Result<Vec<u64>, Failure> {
    let rules = nft::list_rules(socket, TABLE, BASE)?;
    let own = |comment: &str| {
        comment == names.comment || (comment.len() >= 120 && names.comment.starts_with(comment))
    };
    Ok(rules.into_iter().filter(|r| r.comment.as_deref().is_some_and(own)).map(|r| r.handle).collect())
}
