//! The expressions that rules are made of.

use super::attribute as a;
use crate::wire::Message;

/// Where an expression leaves a verdict.
pub const REG_VERDICT: u32 = 0;

/// The nth 32-bit register; longer values take as many as they need, padded.
pub const fn register(n: u32) -> u32 {
    8 + n
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    Equal,
    Different,
}

/// What happens to a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NatFamily {
    V4,
    V6,
}

/// One step of a rule. A rule ends at the first comparison that fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    /// Loads the layer-three protocol, one byte.
    NfProto {
        to: u32,
    },
    /// Loads the layer-four protocol, one byte.
    L4Proto {
        to: u32,
    },
    /// Loads the name of the interface a packet came in by, sixteen bytes.
    InputName {
        to: u32,
    },
    /// Loads the name of the interface a packet leaves by, sixteen bytes.
    OutputName {
        to: u32,
    },
    /// Loads the packet's mark, four bytes.
    Mark {
        to: u32,
    },
    /// Loads bytes of the Ethernet header.
    Link {
        offset: u32,
        len: u32,
        to: u32,
    },
    /// Loads bytes of the IP header.
    Network {
        offset: u32,
        len: u32,
        to: u32,
    },
    /// Loads bytes of the TCP, UDP or SCTP header.
    Transport {
        offset: u32,
        len: u32,
        to: u32,
    },
    /// Loads the type of the destination address, four bytes: RTN_LOCAL is 2.
    DestinationType {
        to: u32,
    },
    /// Loads the status bits of the connection, four bytes.
    ConnectionStatus {
        to: u32,
    },
    /// Keeps only the bits of a register that are set in the mask.
    And {
        reg: u32,
        mask: Vec<u8>,
    },
    Cmp {
        reg: u32,
        op: Compare,
        value: Vec<u8>,
    },
    /// Compares a big-endian number with a range, both ends included.
    InRange {
        reg: u32,
        op: Compare,
        from: Vec<u8>,
        to: Vec<u8>,
    },
    /// Looks a key up in a set.
    InSet {
        set: String,
        key: u32,
    },
    /// Looks a key up in a map of verdicts and follows what is found.
    FollowMap {
        map: String,
        key: u32,
    },
    /// Puts a constant into a register.
    Load {
        to: u32,
        value: Vec<u8>,
    },
    Verdict(Verdict),
    Masquerade,
    /// As above, from a port that nobody can guess, which also keeps two packets from choosing the same one at once.
    MasqueradeFullyRandom,
    /// Counts the packets that get this far.
    Counter,
    /// Rewrites the destination from registers.
    Dnat {
        family: NatFamily,
        addr: u32,
        port: u32,
    },
}

/// NF_NAT_RANGE_PROTO_RANDOM_FULLY.
const RANDOM_FULLY: u32 = 16;
const PAYLOAD_LINK: u32 = 0;
const PAYLOAD_NETWORK: u32 = 1;
const PAYLOAD_TRANSPORT: u32 = 2;

impl Expr {
    /// Writes the expression as an element of a rule's list.
    pub(crate) fn put(&self, list: &mut Message) {
        match self {
            Expr::NfProto { to } => meta(list, 15, *to),
            Expr::L4Proto { to } => meta(list, 16, *to),
            Expr::InputName { to } => meta(list, 6, *to),
            Expr::OutputName { to } => meta(list, 7, *to),
            Expr::Mark { to } => meta(list, 3, *to),
            Expr::Link { offset, len, to } => payload(list, PAYLOAD_LINK, *offset, *len, *to),
            Expr::Network { offset, len, to } => payload(list, PAYLOAD_NETWORK, *offset, *len, *to),
            Expr::Transport { offset, len, to } => payload(list, PAYLOAD_TRANSPORT, *offset, *len, *to),
            Expr::DestinationType { to } => element(list, "fib", |m| {
                m.attr_be32(1, *to).attr_be32(2, 3).attr_be32(3, 2);
            }),
            Expr::ConnectionStatus { to } => element(list, "ct", |m| {
                m.attr_be32(1, *to).attr_be32(2, 2);
            }),
            Expr::And { reg, mask } => element(list, "bitwise", |m| {
                m.attr_be32(1, *reg).attr_be32(2, *reg).attr_be32(3, mask.len() as u32);
                value(m, 4, mask);
                value(m, 5, &vec![0; mask.len()]);
            }),
            Expr::Cmp { reg, op, value: expected } => element(list, "cmp", |m| {
                m.attr_be32(1, *reg).attr_be32(2, u32::from(*op == Compare::Different));
                value(m, 3, expected);
            }),
            Expr::InRange { reg, op, from, to } => element(list, "range", |m| {
                m.attr_be32(1, *reg).attr_be32(2, u32::from(*op == Compare::Different));
                value(m, 3, from);
                value(m, 4, to);
            }),
            Expr::InSet { set, key } => element(list, "lookup", |m| {
                m.attr_str(1, set).attr_be32(2, *key);
            }),
            Expr::FollowMap { map, key } => element(list, "lookup", |m| {
                m.attr_str(1, map).attr_be32(2, *key).attr_be32(3, REG_VERDICT);
            }),
            Expr::Load { to, value: constant } => element(list, "immediate", |m| {
                m.attr_be32(1, *to);
                value(m, 2, constant);
            }),
            Expr::Verdict(verdict) => element(list, "immediate", |m| {
                m.attr_be32(1, REG_VERDICT).nest(2, |m| put_verdict(m, verdict));
            }),
            Expr::Masquerade => element(list, "masq", |_| ()),
            Expr::MasqueradeFullyRandom => element(list, "masq", |m| {
                m.attr_be32(1, RANDOM_FULLY);
            }),
            Expr::Counter => element(list, "counter", |_| ()),
            Expr::Dnat { family, addr, port } => element(list, "nat", |m| {
                let family = if *family == NatFamily::V4 { 2 } else { 10 };
                m.attr_be32(1, 1).attr_be32(2, family).attr_be32(3, *addr).attr_be32(5, *port);
            }),
        }
    }
}

pub(crate) fn put_verdict(message: &mut Message, verdict: &Verdict) {
    let (code, chain) = match verdict {
        Verdict::Drop => (0, None),
        Verdict::Accept => (1, None),
        Verdict::Jump(chain) => (-3, Some(chain)),
        Verdict::Goto(chain) => (-4, Some(chain)),
        Verdict::Return => (-5, None),
    };
    message.nest(a::DATA_VERDICT, |m| {
        m.attr_be32(a::VERDICT_CODE, code as u32);
        if let Some(chain) = chain {
            m.attr_str(a::VERDICT_CHAIN, chain);
        }
    });
}

fn element(list: &mut Message, name: &str, fill: impl FnOnce(&mut Message)) {
    list.nest(a::LIST_ELEMENT, |m| {
        m.attr_str(1, name).nest(2, fill);
    });
}

fn meta(list: &mut Message, key: u32, to: u32) {
    element(list, "meta", |m| {
        m.attr_be32(1, to).attr_be32(2, key);
    });
}

fn payload(list: &mut Message, base: u32, offset: u32, len: u32, to: u32) {
    element(list, "payload", |m| {
        m.attr_be32(1, to).attr_be32(2, base).attr_be32(3, offset).attr_be32(4, len);
    });
}

fn value(message: &mut Message, kind: u16, bytes: &[u8]) {
    message.nest(kind, |m| {
        m.attr(a::DATA_VALUE, bytes);
    });
}
