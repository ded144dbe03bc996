//! Connection tracking entries that must go because what they lead to has moved.

use std::net::IpAddr;

use crate::addr::{Family, read_addr};
use crate::error::Result;
use crate::socket::{Request, Socket};
use crate::wire::{self, Message};

const SUBSYSTEM: u16 = 1;
const CT_NEW: u16 = SUBSYSTEM << 8;
const CT_GET: u16 = SUBSYSTEM << 8 | 1;
const CT_DELETE: u16 = SUBSYSTEM << 8 | 2;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const IP_V4_DST: u16 = 2;
const IP_V6_DST: u16 = 4;
const PROTO_NUM: u16 = 1;
const PROTO_DST_PORT: u16 = 3;

pub const UDP: u8 = 17;

/// A connection as its first packet was, before any rewriting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Original {
    pub dst: IpAddr,
    pub protocol: u8,
    pub dst_port: u16,
}

/// Deletes the connections that `stale` picks out; returns how many there were.
pub fn delete(socket: &mut Socket, family: Family, stale: impl Fn(&Original) -> bool) -> Result<usize> {
    let list = Request::new("list tracked connections", Message::new(CT_GET, 0).fixed(&header(family)));
    let found = socket.dump(&list, |kind, payload| {
        let body = payload.get(4..).filter(|_| kind == CT_NEW)?;
        let tuple = wire::find(body, CTA_TUPLE_ORIG)?;
        stale(&parse(tuple)?).then(|| {
            (
                tuple.to_vec(),
                wire::find(body, CTA_ID).map(<[u8]>::to_vec),
                wire::find(body, CTA_ZONE).map(<[u8]>::to_vec),
            )
        })
    })?;
    let mut deleted = 0;
    for (tuple, id, zone) in found {
        let mut message = Message::new(CT_DELETE, 0).fixed(&header(family));
        message.nest(CTA_TUPLE_ORIG, |m| {
            m.raw(&tuple);
        });
        if let Some(zone) = zone {
            message.attr(CTA_ZONE, &zone);
        }
        if let Some(id) = id {
            message.attr(CTA_ID, &id);
        }
        match socket.call(Request::new("delete a tracked connection", message)) {
            Ok(_) => deleted += 1,
            Err(error) if error.is_missing() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(deleted)
}

fn header(family: Family) -> [u8; 4] {
    [family.number(), 0, 0, 0]
}

fn parse(tuple: &[u8]) -> Option<Original> {
    let ip = wire::find(tuple, TUPLE_IP)?;
    let proto = wire::find(tuple, TUPLE_PROTO)?;
    Some(Original {
        dst: wire::find(ip, IP_V4_DST).or_else(|| wire::find(ip, IP_V6_DST)).and_then(read_addr)?,
        protocol: *wire::find(proto, PROTO_NUM)?.first()?,
        dst_port: u16::from_be_bytes(wire::find(proto, PROTO_DST_PORT)?.try_into().ok()?),
    })
}
