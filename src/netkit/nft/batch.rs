//! Changes to the rule set, applied whole or not at all.

use rustix::io::Errno;

use super::expr::put_verdict;
use super::{Expr, SUBSYSTEM, Table, Verdict, attribute as a, header, kind, message};
use crate::error::{Error, Result};
use crate::socket::Socket;
use crate::wire::{Message, flags};

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const BATCH_GENERATION: u16 = 1;

const SET_MAP: u32 = 0x8;
const DATA_TYPE_VERDICT: u32 = 0xffff_ff00;
const POLICY_ACCEPT: u32 = 1;
/// The kind of user data that `nft list` shows as a comment, and how much of it nft reads.
const USERDATA_COMMENT: u8 = 0;
const COMMENT_MAX: usize = 128;
/// An attribute is at most 64 KiB long, and a key in it takes some 40 bytes.
const KEYS_AT_ONCE: usize = 1000;

/// Where a base chain hangs in the packet's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hook {
    /// "nat" or "filter".
    pub kind: &'static str,
    /// 0 prerouting, 1 input, 2 forward, 3 output, 4 postrouting.
    pub number: u32,
    pub priority: i32,
}

/// What an element of a map leads to; plain sets have none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElementValue {
    None,
    Verdict(Verdict),
}

/// An ordered list of changes.
#[derive(Default)]
pub struct Batch {
    steps: Vec<(String, Message)>,
    sets: u32,
}

impl Batch {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Makes the table unless it is there.
    pub fn table(&mut self, table: Table) -> &mut Self {
        let mut m =
            Message::new(kind(message::NEWTABLE), flags::CREATE).fixed(&header(table.family as u8, 0));
        m.attr_str(a::TABLE_NAME, table.name);
        self.push(format!("create nf_tables table {table}"), m)
    }

    pub fn delete_table(&mut self, table: Table) -> &mut Self {
        let mut m = Message::new(kind(message::DELTABLE), 0).fixed(&header(table.family as u8, 0));
        m.attr_str(a::TABLE_NAME, table.name);
        self.push(format!("delete nf_tables table {table}"), m)
    }

    /// Makes a chain unless it is there. A base chain needs a hook; do not declare one again without need,
    /// as the kernel takes many milliseconds for it.
    pub fn chain(&mut self, table: Table, name: &str, hook: Option<Hook>) -> &mut Self {
        let mut m =
            Message::new(kind(message::NEWCHAIN), flags::CREATE).fixed(&header(table.family as u8, 0));
        m.attr_str(a::CHAIN_TABLE, table.name).attr_str(a::CHAIN_NAME, name);
        if let Some(hook) = hook {
            m.nest(a::CHAIN_HOOK, |m| {
                m.attr_be32(a::HOOK_NUMBER, hook.number).attr_be32(a::HOOK_PRIORITY, hook.priority as u32);
            });
            m.attr_be32(a::CHAIN_POLICY, POLICY_ACCEPT).attr_str(a::CHAIN_TYPE, hook.kind);
        }
        self.push(format!("create chain {name} in nf_tables table {table}"), m)
    }

    /// Makes a chain that must not be there yet.
    pub fn new_chain(&mut self, table: Table, name: &str) -> &mut Self {
        let create = flags::CREATE | flags::EXCL;
        let mut m = Message::new(kind(message::NEWCHAIN), create).fixed(&header(table.family as u8, 0));
        m.attr_str(a::CHAIN_TABLE, table.name).attr_str(a::CHAIN_NAME, name);
        self.push(format!("create chain {name} in nf_tables table {table}"), m)
    }

    /// Deletes a chain, which must be without rules and references by then.
    pub fn delete_chain(&mut self, table: Table, name: &str) -> &mut Self {
        let mut m = Message::new(kind(message::DELCHAIN), 0).fixed(&header(table.family as u8, 0));
        m.attr_str(a::CHAIN_TABLE, table.name).attr_str(a::CHAIN_NAME, name);
        self.push(format!("delete chain {name} from nf_tables table {table}"), m)
    }

    /// Removes all rules of a chain.
    pub fn flush(&mut self, table: Table, chain: &str) -> &mut Self {
        let mut m = Message::new(kind(message::DELRULE), 0).fixed(&header(table.family as u8, 0));
        m.attr_str(a::RULE_TABLE, table.name).attr_str(a::RULE_CHAIN, chain);
        self.push(format!("flush chain {chain} of nf_tables table {table}"), m)
    }

    /// Appends a rule. The comment is cut to what nft shows.
    pub fn rule(&mut self, table: Table, chain: &str, comment: &str, exprs: &[Expr]) -> &mut Self {
        self.new_rule(flags::CREATE | flags::APPEND, table, chain, comment, exprs)
    }

    /// The same, before all other rules of the chain.
    pub fn rule_in_front(&mut self, table: Table, chain: &str, comment: &str, exprs: &[Expr]) -> &mut Self {
        self.new_rule(flags::CREATE, table, chain, comment, exprs)
    }

    fn new_rule(
        &mut self,
        create: u16,
        table: Table,
        chain: &str,
        comment: &str,
        exprs: &[Expr],
    ) -> &mut Self {
        let mut m = Message::new(kind(message::NEWRULE), create).fixed(&header(table.family as u8, 0));
        m.attr_str(a::RULE_TABLE, table.name).attr_str(a::RULE_CHAIN, chain);
        m.nest(a::RULE_EXPRESSIONS, |m| exprs.iter().for_each(|e| e.put(m)));
        if !comment.is_empty() {
            m.attr(a::RULE_USERDATA, &comment_bytes(comment));
        }
        self.push(format!("add a rule to chain {chain} of nf_tables table {table}"), m)
    }

    pub fn delete_rule(&mut self, table: Table, chain: &str, handle: u64) -> &mut Self {
        let mut m = Message::new(kind(message::DELRULE), 0).fixed(&header(table.family as u8, 0));
        m.attr_str(a::RULE_TABLE, table.name).attr_str(a::RULE_CHAIN, chain);
        m.attr(a::RULE_HANDLE, &handle.to_be_bytes());
        self.push(format!("delete a rule from chain {chain} of nf_tables table {table}"), m)
    }

    /// Makes a map from keys to verdicts unless it is there. `key_type` is only for who lists the map.
    pub fn verdict_map(&mut self, table: Table, name: &str, key_type: u32, key_len: u32) -> &mut Self {
        self.sets += 1;
        let mut m = Message::new(kind(message::NEWSET), flags::CREATE).fixed(&header(table.family as u8, 0));
        m.attr_str(a::SET_TABLE, table.name).attr_str(a::SET_NAME, name);
        m.attr_be32(a::SET_FLAGS, SET_MAP).attr_be32(a::SET_KEY_TYPE, key_type);
        m.attr_be32(a::SET_KEY_LEN, key_len).attr_be32(a::SET_DATA_TYPE, DATA_TYPE_VERDICT);
        m.attr_be32(a::SET_ID, self.sets);
        self.push(format!("create map {name} in nf_tables table {table}"), m)
    }

    /// Makes a set of keys unless it is there. `key_type` is only for who lists the set.
    pub fn set(&mut self, table: Table, name: &str, key_type: u32, key_len: u32) -> &mut Self {
        self.sets += 1;
        let mut m = Message::new(kind(message::NEWSET), flags::CREATE).fixed(&header(table.family as u8, 0));
        m.attr_str(a::SET_TABLE, table.name).attr_str(a::SET_NAME, name);
        m.attr_be32(a::SET_FLAGS, 0).attr_be32(a::SET_KEY_TYPE, key_type);
        m.attr_be32(a::SET_KEY_LEN, key_len).attr_be32(a::SET_ID, self.sets);
        self.push(format!("create set {name} in nf_tables table {table}"), m)
    }

    /// Adds an element; one with the same key and another value is an error.
    pub fn element(&mut self, table: Table, set: &str, key: &[u8], value: &ElementValue) -> &mut Self {
        let m = elements(message::NEWSETELEM, flags::CREATE, table, set, key, value);
        self.push(format!("add an element to {set} of nf_tables table {table}"), m)
    }

    /// Adds keys to a set, many in one message.
    pub fn add_keys(&mut self, table: Table, set: &str, keys: &[Vec<u8>]) -> &mut Self {
        for keys in keys.chunks(KEYS_AT_ONCE) {
            let m = key_list(message::NEWSETELEM, flags::CREATE, table, set, keys);
            self.push(format!("add elements to {set} of nf_tables table {table}"), m);
        }
        self
    }

    /// Takes keys out of a set; one that is not there is an error.
    pub fn delete_keys(&mut self, table: Table, set: &str, keys: &[Vec<u8>]) -> &mut Self {
        for keys in keys.chunks(KEYS_AT_ONCE) {
            let m = key_list(message::DELSETELEM, 0, table, set, keys);
            self.push(format!("delete elements from {set} of nf_tables table {table}"), m);
        }
        self
    }

    pub fn delete_element(&mut self, table: Table, set: &str, key: &[u8]) -> &mut Self {
        let m = elements(message::DELSETELEM, 0, table, set, key, &ElementValue::None);
        self.push(format!("delete an element from {set} of nf_tables table {table}"), m)
    }

    /// Applies the changes. With a generation, they are applied only if nobody changed anything since it
    /// was read; otherwise the error number is RESTART and the caller looks again.
    pub fn run(mut self, socket: &mut Socket, generation: Option<u32>) -> Result<()> {
        if self.steps.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::with_capacity(256 * (self.steps.len() + 2));
        let mut begin = Message::new(BATCH_BEGIN, 0).fixed(&header(0, SUBSYSTEM));
        if let Some(generation) = generation {
            begin.attr_be32(BATCH_GENERATION, generation);
        }
        let first = socket.next_seq();
        bytes.extend_from_slice(begin.seal(first));
        for (_, m) in &mut self.steps {
            m.add_flags(flags::ACK);
            bytes.extend_from_slice(m.seal(socket.next_seq()));
        }
        socket.make_room(bytes.len());
        let mut end = Message::new(BATCH_END, 0).fixed(&header(0, SUBSYSTEM));
        bytes.extend_from_slice(end.seal(socket.next_seq()));

        let mut failure: Option<(String, Errno, Option<String>)> = None;
        socket.exchange("change the nf_tables rule set", &bytes, &mut |seq, errno, note| {
            let step = (seq.wrapping_sub(first) as usize).checked_sub(1).and_then(|at| self.steps.get(at));
            let op = step.map_or("change the nf_tables rule set", |(op, _)| op).to_owned();
            failure.get_or_insert((op, errno, note));
        })?;
        match failure {
            None => Ok(()),
            Some((op, errno, note)) => Err(Error::Kernel { op, errno, note }),
        }
    }

    fn push(&mut self, op: String, message: Message) -> &mut Self {
        self.steps.push((op, message));
        self
    }
}

fn key_list(kind_: u16, flags: u16, table: Table, set: &str, keys: &[Vec<u8>]) -> Message {
    let mut m = Message::new(kind(kind_), flags).fixed(&header(table.family as u8, 0));
    m.attr_str(a::ELEMENTS_TABLE, table.name).attr_str(a::ELEMENTS_SET, set);
    m.nest(a::ELEMENTS, |m| {
        for key in keys {
            m.nest(a::LIST_ELEMENT, |m| {
                m.nest(a::ELEMENT_KEY, |m| {
                    m.attr(a::DATA_VALUE, key);
                });
            });
        }
    });
    m
}

fn elements(kind_: u16, flags: u16, table: Table, set: &str, key: &[u8], value: &ElementValue) -> Message {
    let mut m = Message::new(kind(kind_), flags).fixed(&header(table.family as u8, 0));
    m.attr_str(a::ELEMENTS_TABLE, table.name).attr_str(a::ELEMENTS_SET, set);
    m.nest(a::ELEMENTS, |m| {
        m.nest(a::LIST_ELEMENT, |m| {
            m.nest(a::ELEMENT_KEY, |m| {
                m.attr(a::DATA_VALUE, key);
            });
            if let ElementValue::Verdict(verdict) = value {
                m.nest(a::ELEMENT_DATA, |m| put_verdict(m, verdict));
            }
        });
    });
    m
}

fn comment_bytes(comment: &str) -> Vec<u8> {
    let mut end = comment.len().min(COMMENT_MAX);
    while !comment.is_char_boundary(end) {
        end -= 1;
    }
    let text = &comment.as_bytes()[..end];
    let mut bytes = vec![USERDATA_COMMENT, (text.len() + 1) as u8];
    bytes.extend_from_slice(text);
    bytes.push(0);
    bytes
}
