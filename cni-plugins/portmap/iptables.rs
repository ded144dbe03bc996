//! The iptables backend, with the reference plugin's chains so that either can clean up after the other.

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::Socket;
use keelson_netkit::nft::{self, Family, Table};

use super::conf::{Mapping, PortmapConf, Protocol};
use crate::iptables::{Iptables, take_turns};
use crate::owner::{Owner, reference_chain};
use crate::skel::Failure;

const DNAT: &str = "CNI-HOSTPORT-DNAT";
const SET_MARK: &str = "CNI-HOSTPORT-SETMARK";
const MASQUERADE: &str = "CNI-HOSTPORT-MASQ";
/// As many ports as one multiport match takes.
const PORTS_PER_RULE: usize = 15;

/// A rule in the words of iptables, and the chain it belongs in.
type IptablesRule = Vec<String>;

pub fn set_up(owner: &Owner, conf: &PortmapConf, containers: &[IpNetwork]) -> Result<(), Failure> {
    let _turn = take_turns(owner);
    for container in containers {
        let iptables = Iptables::of(container.ip());
        if conf.snat && conf.set_mark_chain.is_none() {
            prepare_masquerading(iptables, conf.mark_bit)?;
        }
        iptables.ensure_chain(DNAT)?;
        for entry in ["PREROUTING", "OUTPUT"] {
            // At the end, so that service rules keep precedence.
            iptables.ensure_rule(entry, &["-m", "addrtype", "--dst-type", "LOCAL", "-j", DNAT], false)?;
        }
        let chain = chain_of(owner);
        iptables.ensure_chain(&chain)?;
        for rule in rules(conf, *container) {
            iptables.ensure_rule(&chain, &words(&rule), false)?;
        }
        for rule in entries(owner, conf, container.is_ipv4()) {
            iptables.ensure_rule(DNAT, &words(&rule), false)?;
        }
    }
    Ok(())
}

pub fn check(owner: &Owner, conf: &PortmapConf, containers: &[IpNetwork]) -> Result<(), Failure> {
    for container in containers {
        let iptables = Iptables::of(container.ip());
        let own = rules(conf, *container).into_iter().map(|rule| (chain_of(owner), rule));
        let leading =
            entries(owner, conf, container.is_ipv4()).into_iter().map(|rule| (DNAT.to_owned(), rule));
        for (chain, rule) in own.chain(leading) {
            if !iptables.has_rule(&chain, &words(&rule))? {
                return Err(Failure::check(format!(
                    "{} has no rule in {chain}: {}",
                    iptables.program(),
                    rule.join(" ")
                )));
            }
        }
    }
    Ok(())
}

/// Removes the owner's chain if the backend is configured, or if the reference plugin left one.
pub fn tear_down_if_there(socket: &mut Socket, owner: &Owner, configured: bool) -> Result<(), Failure> {
    let chain = chain_of(owner);
    let mut failures = Vec::new();
    // Before looking: a program of a call that was killed may be adding the chain just now.
    let _turn = configured.then(|| take_turns(owner));
    for (iptables, family) in [(Iptables::V4, Family::Ip), (Iptables::V6, Family::Ip6)] {
        let there = nft::chain_exists(socket, Table { family, name: "nat" }, &chain)?;
        if there || (configured && iptables.is_usable()) {
            failures.extend(iptables.remove_chain(&chain, &[DNAT]).err());
        }
    }
    Failure::all(failures)
}

fn chain_of(owner: &Owner) -> String {
    reference_chain("DN-", &owner.network, &owner.container)
}

fn prepare_masquerading(iptables: Iptables, bit: u8) -> Result<(), Failure> {
    let mark = format!("{:#x}/{:#x}", 1u32 << bit, 1u32 << bit);
    let remark = |text: &'static str| ["-m", "comment", "--comment", text];
    iptables.ensure_chain(SET_MARK)?;
    let set = [&remark("CNI portfwd masquerade mark")[..], &["-j", "MARK", "--set-xmark", &mark]].concat();
    iptables.ensure_rule(SET_MARK, &set, false)?;
    iptables.ensure_chain(MASQUERADE)?;
    iptables.ensure_rule(MASQUERADE, &["-m", "mark", "--mark", &mark, "-j", "MASQUERADE"], false)?;
    // In front, or the masquerading of the network itself would be reached first.
    let enter = [&remark("CNI portfwd requiring masquerade")[..], &["-j", MASQUERADE]].concat();
    iptables.ensure_rule("POSTROUTING", &enter, true)
}

/// What leads to the owner's chain: a rule for every fifteen ports of a protocol.
fn entries(owner: &Owner, conf: &PortmapConf, v4: bool) -> Vec<IptablesRule> {
    let mut comment = format!("dnat name: \"{}\" id: \"{}\"", owner.network, owner.container);
    if comment.len() > 255 {
        comment.truncate(253);
        comment.push_str("...");
    }
    let conditions = if v4 { &conf.conditions_v4 } else { &conf.conditions_v6 };
    let mut all = Vec::new();
    for protocol in [Protocol::Sctp, Protocol::Tcp, Protocol::Udp] {
        let ports: Vec<String> = conf
            .mappings
            .iter()
            .filter(|m| m.protocol == protocol)
            .map(|m| m.host_port.to_string())
            .collect();
        for some in ports.chunks(PORTS_PER_RULE) {
            let mut rule: IptablesRule =
                ["-m", "comment", "--comment", &comment, "-m", "multiport", "-p"].map(str::to_owned).into();
            rule.extend([protocol.to_string(), "--destination-ports".to_owned(), some.join(",")]);
            rule.extend(conditions.iter().cloned());
            rule.extend(["-j".to_owned(), chain_of(owner)]);
            all.push(rule);
        }
    }
    all
}

/// The owner's chain: for each mapping the marks for masquerading first, then the rewriting.
fn rules(conf: &PortmapConf, container: IpNetwork) -> Vec<IptablesRule> {
    let v4 = container.is_ipv4();
    let mark = conf.set_mark_chain.as_deref().unwrap_or(SET_MARK);
    let mut all = Vec::new();
    for mapping in conf.mappings.iter().filter(|m| m.is_for(v4)) {
        let base = base(mapping);
        let with = |more: &[&str]| {
            let mut rule = base.clone();
            rule.extend(more.iter().map(|w| (*w).to_owned()));
            rule
        };
        if conf.snat {
            let everything = if v4 { "0.0.0.0/0" } else { "::/0" };
            let own = container.to_string();
            all.push(with(&["-s", if conf.masquerade_all { everything } else { &own }, "-j", mark]));
            if v4 && !conf.masquerade_all {
                all.push(with(&["-s", "127.0.0.1", "-j", mark]));
            }
        }
        let target = match v4 {
            true => format!("{}:{}", container.ip(), mapping.container_port),
            false => format!("[{}]:{}", container.ip(), mapping.container_port),
        };
        all.push(with(&["-j", "DNAT", "--to-destination", &target]));
    }
    all
}

fn base(mapping: &Mapping) -> IptablesRule {
    let mut rule = vec![
        "-p".to_owned(),
        mapping.protocol.to_string(),
        "--dport".to_owned(),
        mapping.host_port.to_string(),
    ];
    if let Some(ip) = mapping.single_host_ip() {
        rule.extend(["-d".to_owned(), ip.to_string()]);
    }
    rule
}

fn words(rule: &[String]) -> Vec<&str> {
    rule.iter().map(String::as_str).collect()
}

#[cfg(test)]
#[path = "iptables_tests.rs"]
mod tests;
