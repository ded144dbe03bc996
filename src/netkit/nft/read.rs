//! What is in the rule set now.

use super::{Table, attribute as a, header, kind, message};
use crate::error::Result;
use crate::socket::{Request, Socket};
use crate::wire::{self, Message};

const GENERATION_ID: u16 = 1;
const USERDATA_COMMENT: u8 = 0;

/// A rule, by what identifies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundRule {
    pub handle: u64,
    pub comment: Option<String>,
    /// What its counter says, where it has one.
    pub packets: Option<u64>,
}

/// An element of a map, by the chain it leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundElement {
    pub chain: Option<String>,
}

/// The rule set's generation, which every change advances.
pub fn generation(socket: &mut Socket) -> Result<u32> {
    let m = Message::new(kind(message::GETGEN), 0).fixed(&header(0, 0));
    let replies = socket.call(Request::new("read the nf_tables generation", m))?;
    let id = replies
        .iter()
        .find(|r| r.kind == kind(message::NEWGEN))
        .and_then(|r| wire::find(r.payload.get(4..)?, GENERATION_ID).and_then(|v| wire::read_be32(v, 0)));
    Ok(id.unwrap_or(0))
}

pub fn table_exists(socket: &mut Socket, table: Table) -> Result<bool> {
    let mut m = Message::new(kind(message::GETTABLE), 0).fixed(&header(table.family as u8, 0));
    m.attr_str(a::TABLE_NAME, table.name);
    exists(socket, Request::new(format!("look up nf_tables table {table}"), m))
}

pub fn chain_exists(socket: &mut Socket, table: Table, chain: &str) -> Result<bool> {
    let mut m = Message::new(kind(message::GETCHAIN), 0).fixed(&header(table.family as u8, 0));
    m.attr_str(a::CHAIN_TABLE, table.name).attr_str(a::CHAIN_NAME, chain);
    exists(socket, Request::new(format!("look up chain {chain} of nf_tables table {table}"), m))
}

/// The rules of one chain, in order. A missing table or chain has none.
pub fn list_rules(socket: &mut Socket, table: Table, chain: &str) -> Result<Vec<FoundRule>> {
    let mut m = Message::new(kind(message::GETRULE), 0).fixed(&header(table.family as u8, 0));
    m.attr_str(a::RULE_TABLE, table.name).attr_str(a::RULE_CHAIN, chain);
    let request = Request::new(format!("list chain {chain} of nf_tables table {table}"), m);
    let rules = socket.dump(&request, |found, payload| {
        let body = payload.get(4..).filter(|_| found == kind(message::NEWRULE))?;
        // Old kernels ignore the filter in the request.
        let named =
            |attribute, name: &str| wire::find(body, attribute).map(wire::text).as_deref() == Some(name);
        if !named(a::RULE_TABLE, table.name) || !named(a::RULE_CHAIN, chain) {
            return None;
        }
        let handle = wire::find(body, a::RULE_HANDLE)?.try_into().ok().map(u64::from_be_bytes)?;
        Some(FoundRule {
            handle,
            comment: wire::find(body, a::RULE_USERDATA).and_then(comment),
            packets: wire::find(body, a::RULE_EXPRESSIONS).and_then(counted),
        })
    });
    absent_is_empty(rules)
}

/// The names of a table's chains.
pub fn list_chains(socket: &mut Socket, table: Table) -> Result<Vec<String>> {
    let mut m = Message::new(kind(message::GETCHAIN), 0).fixed(&header(table.family as u8, 0));
    m.attr_str(a::CHAIN_TABLE, table.name);
    let request = Request::new(format!("list the chains of nf_tables table {table}"), m);
    let chains = socket.dump(&request, |found, payload| {
        let body = payload.get(4..).filter(|_| found == kind(message::NEWCHAIN))?;
        if wire::find(body, a::CHAIN_TABLE).map(wire::text).as_deref() != Some(table.name) {
            return None;
        }
        wire::find(body, a::CHAIN_NAME).map(wire::text)
    });
    absent_is_empty(chains)
}

/// The element of a map with that key, if there is one.
pub fn element(socket: &mut Socket, table: Table, map: &str, key: &[u8]) -> Result<Option<FoundElement>> {
    let mut m = Message::new(kind(message::GETSETELEM), 0).fixed(&header(table.family as u8, 0));
    m.attr_str(a::ELEMENTS_TABLE, table.name).attr_str(a::ELEMENTS_SET, map);
    m.nest(a::ELEMENTS, |m| {
        m.nest(a::LIST_ELEMENT, |m| {
            m.nest(a::ELEMENT_KEY, |m| {
                m.attr(a::DATA_VALUE, key);
            });
        });
    });
    let request = Request::new(format!("look up an element of {map} in nf_tables table {table}"), m);
    let replies = match socket.call(request) {
        Err(error) if error.is_missing() => return Ok(None),
        other => other?,
    };
    Ok(replies.iter().find(|r| r.kind == kind(message::NEWSETELEM)).and_then(|r| {
        let list = wire::find(r.payload.get(4..)?, a::ELEMENTS)?;
        let found = wire::find(list, a::LIST_ELEMENT)?;
        let chain = wire::find(found, a::ELEMENT_DATA)
            .and_then(|data| wire::find(data, a::DATA_VERDICT))
            .and_then(|verdict| wire::find(verdict, a::VERDICT_CHAIN))
            .map(wire::text);
        Some(FoundElement { chain })
    }))
}

/// Hands every key of a set, or of a map, to `each`; some more than once should the set change meanwhile. A missing set
/// has none.
pub fn each_key(socket: &mut Socket, table: Table, set: &str, mut each: impl FnMut(&[u8])) -> Result<()> {
    let mut m = Message::new(kind(message::GETSETELEM), 0).fixed(&header(table.family as u8, 0));
    m.attr_str(a::ELEMENTS_TABLE, table.name).attr_str(a::ELEMENTS_SET, set);
    let request = Request::new(format!("list the elements of {set} in nf_tables table {table}"), m);
    let listed = socket.dump(&request, |found, payload| {
        let body = payload.get(4..).filter(|_| found == kind(message::NEWSETELEM))?;
        for (_, element) in wire::attrs(wire::find(body, a::ELEMENTS)?) {
            let key = wire::find(element, a::ELEMENT_KEY).and_then(|key| wire::find(key, a::DATA_VALUE));
            key.into_iter().for_each(&mut each);
        }
        None::<()>
    });
    absent_is_empty(listed).map(drop)
}

/// The table that a message is about; of every kind of object but a table itself, the first attribute names it.
pub(crate) fn named_table(received: &wire::Received<'_>) -> Option<String> {
    let kind = received.kind & 0xff;
    if kind == message::NEWGEN || kind == message::GETGEN {
        return None;
    }
    wire::find(received.payload.get(4..)?, a::TABLE_NAME).map(wire::text)
}

fn exists(socket: &mut Socket, request: Request) -> Result<bool> {
    match socket.call(request) {
        Ok(_) => Ok(true),
        Err(error) if error.is_missing() => Ok(false),
        Err(error) => Err(error),
    }
}

fn absent_is_empty<T>(found: Result<Vec<T>>) -> Result<Vec<T>> {
    match found {
        Err(error) if error.is_missing() => Ok(Vec::new()),
        other => other,
    }
}

/// The packets of the first counter among a rule's expressions.
fn counted(expressions: &[u8]) -> Option<u64> {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    const COUNTER_PACKETS: u16 = 2;
    let is_counter = |e: &&[u8]| wire::find(e, NAME).map(wire::text).as_deref() == Some("counter");
    let counter = wire::attrs(expressions).map(|(_, value)| value).find(is_counter)?;
    wire::find(wire::find(counter, DATA)?, COUNTER_PACKETS)?.try_into().ok().map(u64::from_be_bytes)
}

/// The comment among a rule's user data, which is a list of type, length and value, a byte each.
fn comment(userdata: &[u8]) -> Option<String> {
    let mut rest = userdata;
    while let [kind, len, tail @ ..] = rest {
        let value = tail.get(..usize::from(*len))?;
        if *kind == USERDATA_COMMENT {
            return Some(wire::text(value));
        }
        rest = &tail[value.len()..];
    }
    None
}
