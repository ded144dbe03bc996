//! The iptables chains that a node has for the benefit of others. Nothing here needs them: whoever runs beside the agent
//! finds out by the hint which iptables this machine uses, and the firewall chain drops what claims to be from outside and
//! goes to a loopback address, which a service proxy makes reachable (CVE-2020-8558). The names and rules are the kubelet's,
//! in the order in which it makes them, so that neither has them twice after a swap.

/// Gone when somebody has flushed everything, which is how that is noticed.
const CANARY: &str = "KUBE-KUBELET-CANARY";
const HINT: &str = "KUBE-IPTABLES-HINT";
const FIREWALL: &str = "KUBE-FIREWALL";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Ipv4,
    Ipv6,
}

/// Something that has to be there, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ensure {
    pub table: &'static str,
    pub chain: &'static str,
    /// None: the chain itself.
    pub rule: Option<Rule>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Before all other rules of its chain, else behind them.
    pub first: bool,
    /// As iptables takes it.
    pub words: &'static [&'static str],
}

/// What to look for: while it is there, nobody has flushed the tables.
pub const fn canary() -> Ensure {
    chain("mangle", CANARY)
}

/// Everything, in order; the canaries last, so that they stand for all of it.
pub fn utility_chains(family: Family) -> Vec<Ensure> {
    const JUMP: Rule = Rule { first: true, words: &["-j", FIREWALL] };
    const LOOPBACK: Rule = Rule {
        first: false,
        words: &[
            "-m",
            "comment",
            "--comment",
            "block incoming localnet connections",
            "--dst",
            "127.0.0.0/8",
            "!",
            "--src",
            "127.0.0.0/8",
            "-m",
            "conntrack",
            "!",
            "--ctstate",
            "RELATED,ESTABLISHED,DNAT",
            "-j",
            "DROP",
        ],
    };
    let mut wanted = vec![chain("mangle", HINT)];
    // An address of loopback does not come in by another link with IPv6, whatever is configured.
    if family == Family::Ipv4 {
        wanted.extend([
            chain("filter", FIREWALL),
            Ensure { table: "filter", chain: "OUTPUT", rule: Some(JUMP) },
            Ensure { table: "filter", chain: "INPUT", rule: Some(JUMP) },
            Ensure { table: "filter", chain: FIREWALL, rule: Some(LOOPBACK) },
        ]);
    }
    wanted.extend(["mangle", "nat", "filter"].map(|table| chain(table, CANARY)));
    wanted
}

const fn chain(table: &'static str, chain: &'static str) -> Ensure {
    Ensure { table, chain, rule: None }
}

impl Ensure {
    /// The arguments that succeed where it is there.
    pub fn check(&self) -> Vec<&'static str> {
        match self.rule {
            Some(rule) => self.arguments("-C", rule.words),
            None => self.arguments("-S", &[]),
        }
    }

    /// The arguments that make it.
    pub fn make(&self) -> Vec<&'static str> {
        match self.rule {
            Some(rule) => self.arguments(if rule.first { "-I" } else { "-A" }, rule.words),
            None => self.arguments("-N", &[]),
        }
    }

    fn arguments(&self, operation: &'static str, rest: &[&'static str]) -> Vec<&'static str> {
        // Others change the tables too; iptables waits for its turn for so many seconds.
        [&["-w", "5", "-t", self.table, operation, self.chain], rest].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_comes_before_what_refers_to_it_and_the_canaries_come_last() {
        for family in [Family::Ipv4, Family::Ipv6] {
            let wanted = utility_chains(family);
            for (at, ensure) in wanted.iter().enumerate() {
                let target = ensure.rule.and_then(|rule| rule.words.last().copied());
                let made = |name: &str| wanted[..at].iter().any(|w| w.rule.is_none() && w.chain == name);
                assert!(target.is_none_or(|target| target == "DROP" || made(target)), "{ensure:?}");
                let own = ensure.rule.is_some() && ensure.chain == FIREWALL;
                assert!(!own || made(FIREWALL), "{ensure:?}");
            }
            assert!(
                wanted[wanted.len() - 3..].iter().all(|w| w.chain == CANARY) && wanted.contains(&canary())
            );
        }
        assert!(utility_chains(Family::Ipv6).iter().all(|w| w.rule.is_none()));
    }

    #[test]
    fn things_are_checked_and_made_in_the_words_of_iptables() {
        let jump = utility_chains(Family::Ipv4)[2];
        assert_eq!(jump.check().join(" "), "-w 5 -t filter -C OUTPUT -j KUBE-FIREWALL");
        assert_eq!(jump.make().join(" "), "-w 5 -t filter -I OUTPUT -j KUBE-FIREWALL");
        assert_eq!(canary().check().join(" "), "-w 5 -t mangle -S KUBE-KUBELET-CANARY");
        assert_eq!(canary().make().join(" "), "-w 5 -t mangle -N KUBE-KUBELET-CANARY");
    }
}
