//! Which addresses a container gets.

use std::net::IpAddr;

use keelson_kit::cidr::{self, IpNetwork};

use super::range::RangeSet;
use crate::skel::Failure;

/// An address chosen out of a range set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub address: IpNetwork,
    pub gateway: IpAddr,
}

/// Chooses one address out of each set: a requested one where one fits, the next free one otherwise.
///
/// `last` is the address that was given last out of the set with that number, `is_free` tells whether an
/// address can be had.
pub fn choose(
    sets: &[RangeSet],
    requested: &[IpAddr],
    last: impl Fn(usize) -> Option<IpAddr>,
    mut is_free: impl FnMut(IpAddr) -> Result<bool, Failure>,
) -> Result<Vec<Choice>, Failure> {
    let per_set = assign_requests(sets, requested)?;
    let mut choices = Vec::new();
    for (i, (set, wanted)) in sets.iter().zip(per_set).enumerate() {
        let choice = match wanted {
            Some(addr) => requested_address(i, set, addr, &mut is_free)?,
            None => next_free(i, set, last(i), &mut is_free)?,
        };
        choices.push(choice);
    }
    Ok(choices)
}

/// Which requested address each set has to give; one that no set has, or one too many, is an error.
fn assign_requests(sets: &[RangeSet], requested: &[IpAddr]) -> Result<Vec<Option<IpAddr>>, Failure> {
    let mut per_set = vec![None; sets.len()];
    let mut left_over = Vec::new();
    for addr in requested {
        let fits = |(i, set): (usize, &RangeSet)| {
            (set.range_of(*addr).is_some() && per_set[i].is_none()).then_some(i)
        };
        match sets.iter().enumerate().find_map(fits) {
            Some(i) => per_set[i] = Some(*addr),
            None => left_over.push(addr.to_string()),
        }
    }
    if left_over.is_empty() {
        return Ok(per_set);
    }
    let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
    Err(Failure::new(
        Failure::NO_ADDRESS,
        // The reference's words, which callers match.
        format!("failed to allocate all requested IPs: {}", left_over.join(" ")),
        format!("each range set gives one address; the range sets are {}", sets.join(" and ")),
    ))
}

fn requested_address(
    i: usize,
    set: &RangeSet,
    addr: IpAddr,
    is_free: &mut impl FnMut(IpAddr) -> Result<bool, Failure>,
) -> Result<Choice, Failure> {
    let refused = |why: &str| {
        Failure::new(Failure::NO_ADDRESS, format!("cannot give the requested address {addr}"), why)
    };
    let Some(range) = set.range_of(addr) else {
        return Err(refused(&format!("it is not in range set {i} ({set})")));
    };
    if addr == range.gateway {
        return Err(refused("it is the gateway's"));
    }
    if !is_free(addr)? {
        return Err(refused("another container holds it"));
    }
    Ok(Choice { address: cidr::with_length(addr, range.subnet.prefix()), gateway: range.gateway })
}

fn next_free(
    i: usize,
    set: &RangeSet,
    last: Option<IpAddr>,
    is_free: &mut impl FnMut(IpAddr) -> Result<bool, Failure>,
) -> Result<Choice, Failure> {
    for (addr, range) in set.candidates(last) {
        if is_free(addr)? {
            return Ok(Choice {
                address: cidr::with_length(addr, range.subnet.prefix()),
                gateway: range.gateway,
            });
        }
    }
    Err(Failure::new(
        Failure::NO_ADDRESS,
        format!("no free address is left in range set {i}"),
        format!("all of {set} is held by other containers; enlarge the range, or have the runtime run GC"),
    ))
}
