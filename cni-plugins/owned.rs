//! Chains of rules that belong to one container, and the map elements that lead to them.
//!
//! Base chains do not list containers: they look packets up in maps, whose elements lead to the chain of
//! whoever the packet is for. So a packet costs the same however many containers there are. An owner's
//! chain is found by its name, and every rule in it carries, in its comment, the element that leads to it;
//! taking the chain down needs no other knowledge.

use keelson_netkit::nft::{self, Batch, ElementValue, Expr, Table, Verdict};
use keelson_netkit::{Error, Result, Socket};
use rustix::io::Errno;

use crate::owner::Owner;

/// An element of a map, by which a chain is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    pub map: String,
    pub key: Vec<u8>,
}

/// A rule, filed under the element that leads to its chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub element: Element,
    pub exprs: Vec<Expr>,
}

/// An owner's chain as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedChain {
    pub name: String,
    pub rules: Vec<Rule>,
}

/// What all owners share.
pub struct Base {
    /// One of its chains, by which it is known to be there; the table alone may be somebody else's making.
    pub chain: &'static str,
    /// Adds the table and all of it.
    pub add: fn(&mut Batch),
}

/// How often a change is tried again because somebody else changed the rule set in between.
const ATTEMPTS: usize = 20;

/// Makes the chains, in place of what the owner had, and the base where it is missing. An element that leads elsewhere is redirected: the last one wins.
pub fn install(
    socket: &mut Socket,
    table: Table,
    base: &Base,
    owner: &Owner,
    chains: &[OwnedChain],
) -> Result<()> {
    let mut batch = Batch::new();
    // In the usual case nothing is in the way, and one exchange with the kernel does it.
    for chain in chains {
        batch.new_chain(table, &chain.name);
        add_rules(&mut batch, table, owner, chain);
    }
    match batch.run(socket, None) {
        Err(error) if error.is_conflict() => {}
        other => return other,
    }
    retry(|| {
        let generation = nft::generation(socket)?;
        let mut batch = Batch::new();
        let fresh = !nft::chain_exists(socket, table, base.chain)?;
        if fresh {
            (base.add)(&mut batch);
        }
        for chain in chains {
            if !fresh {
                remove_rules(socket, &mut batch, table, &chain.name)?;
                redirect(socket, &mut batch, table, chain)?;
            }
            batch.chain(table, &chain.name, None);
            add_rules(&mut batch, table, owner, chain);
        }
        batch.run(socket, Some(generation))
    })
}

/// Removes chains with all that leads to them; those that are not there are fine.
pub fn remove(socket: &mut Socket, table: Table, chains: &[String]) -> Result<()> {
    retry(|| {
        let generation = nft::generation(socket)?;
        let mut batch = Batch::new();
        for chain in chains {
            if remove_rules(socket, &mut batch, table, chain)? {
                batch.delete_chain(table, chain);
            }
        }
        batch.run(socket, Some(generation))
    })
}

/// Removes the chains that start with the prefix and are not to be kept.
pub fn collect(socket: &mut Socket, table: Table, prefix: &str, keep: &[String]) -> Result<()> {
    for chain in nft::list_chains(socket, table)? {
        if chain.starts_with(prefix) && !keep.contains(&chain) {
            remove(socket, table, &[chain])?;
        }
    }
    Ok(())
}

/// The first element that does not lead to its chain, if there is one.
pub fn find_missing<'a>(
    socket: &mut Socket,
    table: Table,
    chain: &'a OwnedChain,
) -> Result<Option<&'a Element>> {
    for rule in &chain.rules {
        let found = nft::element(socket, table, &rule.element.map, &rule.element.key)?;
        if found.is_none_or(|e| e.chain.as_ref() != Some(&chain.name)) {
            return Ok(Some(&rule.element));
        }
    }
    Ok(None)
}

fn add_rules(batch: &mut Batch, table: Table, owner: &Owner, chain: &OwnedChain) {
    for rule in &chain.rules {
        batch.rule(table, &chain.name, &owner.comment(&filed(&rule.element)), &rule.exprs);
    }
    let here = ElementValue::Verdict(Verdict::Jump(chain.name.clone()));
    let mut added: Vec<&Element> = Vec::new();
    for rule in &chain.rules {
        if !added.contains(&&rule.element) {
            batch.element(table, &rule.element.map, &rule.element.key, &here);
            added.push(&rule.element);
        }
    }
}

/// Takes away the elements that lead to other chains.
fn redirect(socket: &mut Socket, batch: &mut Batch, table: Table, chain: &OwnedChain) -> Result<()> {
    let mut removed: Vec<&Element> = Vec::new();
    for Rule { element, .. } in &chain.rules {
        let found = nft::element(socket, table, &element.map, &element.key)?;
        if found.is_some_and(|e| e.chain.as_ref() != Some(&chain.name)) && !removed.contains(&element) {
            batch.delete_element(table, &element.map, &element.key);
            removed.push(element);
        }
    }
    Ok(())
}

/// Takes away the elements that lead to the chain, and empties it. Tells whether there was anything.
fn remove_rules(socket: &mut Socket, batch: &mut Batch, table: Table, chain: &str) -> Result<bool> {
    let rules = nft::list_rules(socket, table, chain)?;
    if rules.is_empty() {
        return Ok(false);
    }
    let mut removed: Vec<Element> = Vec::new();
    for element in rules.iter().filter_map(|r| element_of(r.comment.as_deref()?)) {
        if removed.contains(&element) {
            continue;
        }
        // By now it may lead to another owner, who got the address or port meanwhile.
        if nft::element(socket, table, &element.map, &element.key)?
            .is_some_and(|e| e.chain.as_deref() == Some(chain))
        {
            batch.delete_element(table, &element.map, &element.key);
        }
        removed.push(element);
    }
    batch.flush(table, chain);
    Ok(true)
}

/// The front of a rule's comment: the map, and the key in hexadecimal.
fn filed(element: &Element) -> String {
    let key = keelson_kit::hex::encode(&element.key);
    format!("{}/{key}", element.map)
}

fn element_of(comment: &str) -> Option<Element> {
    let (map, key) = comment.split(' ').next()?.split_once('/')?;
    let bytes = key.as_bytes();
    if !bytes.len().is_multiple_of(2) || !key.is_ascii() {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(&key[at..at + 2], 16).ok();
    let key = (0..bytes.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?;
    Some(Element { map: map.to_owned(), key })
}

/// Looks and changes again when somebody else changed the rule set in between.
pub fn retry(mut change: impl FnMut() -> Result<()>) -> Result<()> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match change() {
            Err(error) if attempt < ATTEMPTS && is_race(&error) => {}
            other => return other,
        }
    }
}

fn is_race(error: &Error) -> bool {
    matches!(error.errno(), Some(Errno::RESTART | Errno::BUSY | Errno::EXIST | Errno::NOENT | Errno::AGAIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_element_is_read_back_from_a_rule_s_comment() {
        let owner = Owner { network: "net".into(), container: "abc".into(), ifname: "eth0".into() };
        let element = Element { map: "pods4".into(), key: vec![10, 1, 2, 255] };
        assert_eq!(element_of(&owner.comment(&filed(&element))), Some(element));
    }

    #[test]
    fn comments_of_other_makers_lead_nowhere() {
        for comment in ["", "hello", "pods4/xyz", "pods4/0", "pods4/é", "a b/00"] {
            assert_eq!(element_of(comment), None, "{comment:?}");
        }
    }
}
