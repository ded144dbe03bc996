//! nf_tables spoken over netlink, without the nft binary.
//!
//! Changes are collected in a [`Batch`] that the kernel applies whole or not at all. What is asked of the
//! kernel is plain data ([`Expr`], [`Verdict`]), so that planning code can be tested without one.

mod batch;
mod expr;
mod read;

pub use batch::{Batch, ElementValue, Hook};
pub use expr::{Compare, Expr, NatFamily, REG_VERDICT, Verdict, register};
pub(crate) use read::named_table;
pub use read::{
    FoundElement, FoundRule, chain_exists, each_key, element, generation, list_chains, list_rules,
    table_exists,
};

/// The address family of a table; numbers as in linux/netfilter.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    Inet = 1,
    Ip = 2,
    Bridge = 7,
    Ip6 = 10,
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Family::Inet => "inet",
            Family::Ip => "ip",
            Family::Bridge => "bridge",
            Family::Ip6 => "ip6",
        })
    }
}

/// A table, named with its family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    pub family: Family,
    pub name: &'static str,
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

pub(crate) const SUBSYSTEM: u16 = 10;

pub(crate) mod message {
    pub const NEWTABLE: u16 = 0;
    pub const GETTABLE: u16 = 1;
    pub const DELTABLE: u16 = 2;
    pub const NEWCHAIN: u16 = 3;
    pub const GETCHAIN: u16 = 4;
    pub const DELCHAIN: u16 = 5;
    pub const NEWRULE: u16 = 6;
    pub const GETRULE: u16 = 7;
    pub const DELRULE: u16 = 8;
    pub const NEWSET: u16 = 9;
    pub const NEWSETELEM: u16 = 12;
    pub const GETSETELEM: u16 = 13;
    pub const DELSETELEM: u16 = 14;
    pub const NEWGEN: u16 = 15;
    pub const GETGEN: u16 = 16;
}

pub(crate) mod attribute {
    pub const TABLE_NAME: u16 = 1;
    pub const CHAIN_TABLE: u16 = 1;
    pub const CHAIN_NAME: u16 = 3;
    pub const CHAIN_HOOK: u16 = 4;
    pub const CHAIN_POLICY: u16 = 5;
    pub const CHAIN_TYPE: u16 = 7;
    pub const HOOK_NUMBER: u16 = 1;
    pub const HOOK_PRIORITY: u16 = 2;
    pub const RULE_TABLE: u16 = 1;
    pub const RULE_CHAIN: u16 = 2;
    pub const RULE_HANDLE: u16 = 3;
    pub const RULE_EXPRESSIONS: u16 = 4;
    pub const RULE_USERDATA: u16 = 7;
    pub const SET_TABLE: u16 = 1;
    pub const SET_NAME: u16 = 2;
    pub const SET_FLAGS: u16 = 3;
    pub const SET_KEY_TYPE: u16 = 4;
    pub const SET_KEY_LEN: u16 = 5;
    pub const SET_DATA_TYPE: u16 = 6;
    pub const SET_ID: u16 = 10;
    pub const ELEMENTS_TABLE: u16 = 1;
    pub const ELEMENTS_SET: u16 = 2;
    pub const ELEMENTS: u16 = 3;
    pub const ELEMENT_KEY: u16 = 1;
    pub const ELEMENT_DATA: u16 = 2;
    pub const LIST_ELEMENT: u16 = 1;
    pub const DATA_VALUE: u16 = 1;
    pub const DATA_VERDICT: u16 = 2;
    pub const VERDICT_CODE: u16 = 1;
    pub const VERDICT_CHAIN: u16 = 2;
}

pub(crate) const fn kind(message: u16) -> u16 {
    SUBSYSTEM << 8 | message
}

/// struct nfgenmsg.
pub(crate) fn header(family: u8, resource: u16) -> [u8; 4] {
    let r = resource.to_be_bytes();
    [family, 0, r[0], r[1]]
}
