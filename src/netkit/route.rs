//! Routes.

use std::net::IpAddr;

use crate::addr::{Family, addr_bytes, read_addr};
use crate::error::Result;
use crate::ids::{IfIndex, IpNet};
use crate::socket::{Request, Socket};
use crate::wire::{self, Message, flags};

const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_TABLE: u16 = 15;
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;

const TABLE_MAIN: u32 = 254;
const TABLE_LOCAL: u32 = 255;
/// What set a route by hand or at boot; the usual one.
pub const PROTOCOL_BOOT: u8 = 3;
const TYPE_UNICAST: u8 = 1;
const NEXT_HOP_ONLINK: u32 = 4;
pub const SCOPE_UNIVERSE: u8 = 0;
pub const SCOPE_LINK: u8 = 253;

/// A route to be made, or one that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub dst: IpNet,
    pub gateway: Option<IpAddr>,
    pub link: Option<IfIndex>,
    pub priority: Option<u32>,
    pub table: Option<u32>,
    pub scope: u8,
    pub mtu: Option<u32>,
    pub advmss: Option<u32>,
    /// The gateway is reached directly on the link, even if no connected route says so.
    pub onlink: bool,
    /// Who made the route, by number; its maker finds it again by that.
    pub protocol: u8,
    /// The address that packets get when nothing else decides it.
    pub source: Option<IpAddr>,
}

impl Route {
    pub fn to(dst: IpNet) -> Self {
        Route {
            dst,
            gateway: None,
            link: None,
            priority: None,
            table: None,
            scope: SCOPE_UNIVERSE,
            mtu: None,
            advmss: None,
            onlink: false,
            protocol: PROTOCOL_BOOT,
            source: None,
        }
    }
}

/// Adds a route; one that is there already is an error.
pub fn add(route: &Route) -> Request {
    request(RTM_NEWROUTE, flags::CREATE | flags::EXCL, "add", route)
}

/// Adds a route beside one of the same destination and metric, as a further next hop where that is possible.
pub fn add_beside(route: &Route) -> Request {
    request(RTM_NEWROUTE, flags::CREATE, "add", route)
}

/// Adds a route in place of one with the same destination and metric.
pub fn replace(route: &Route) -> Request {
    request(RTM_NEWROUTE, flags::CREATE | flags::REPLACE, "set", route)
}

pub fn remove(route: &Route) -> Request {
    request(RTM_DELROUTE, 0, "remove", route)
}

/// The routes of one family in all tables but the local one.
pub fn list(socket: &mut Socket, family: Family) -> Result<Vec<Route>> {
    let mut fixed = [0; 12];
    fixed[0] = family.number();
    let request = Request::new("list routes", Message::new(RTM_GETROUTE, 0).fixed(&fixed));
    let routes =
        socket.dump(&request, |kind, payload| (kind == RTM_NEWROUTE).then(|| parse(payload)).flatten())?;
    Ok(routes.into_iter().filter(|r| r.table != Some(TABLE_LOCAL)).collect())
}

/// The link that packets to `addr` leave by.
pub fn link_towards(socket: &mut Socket, addr: IpAddr) -> Result<Option<IfIndex>> {
    Ok(towards(socket, addr)?.and_then(|r| r.link))
}

/// The way that packets to `addr` take: the link, the gateway if there is one, the source address.
pub fn towards(socket: &mut Socket, addr: IpAddr) -> Result<Option<Route>> {
    let mut fixed = [0; 12];
    fixed[0] = Family::of(addr).number();
    fixed[1] = if addr.is_ipv4() { 32 } else { 128 };
    let mut message = Message::new(RTM_GETROUTE, 0).fixed(&fixed);
    message.attr(RTA_DST, &addr_bytes(addr));
    let replies = socket.call(Request::new(format!("find the route to {addr}"), message))?;
    Ok(replies.iter().find_map(|r| parse(&r.payload)))
}

fn request(kind: u16, flags: u16, verb: &str, route: &Route) -> Request {
    let mut message = Message::new(kind, flags).fixed(&header(route));
    if route.dst.prefix > 0 {
        message.attr(RTA_DST, &addr_bytes(route.dst.network().addr));
    }
    if let Some(gateway) = route.gateway {
        message.attr(RTA_GATEWAY, &addr_bytes(gateway));
    }
    if let Some(link) = route.link {
        message.attr_u32(RTA_OIF, link.0);
    }
    if let Some(source) = route.source {
        message.attr(RTA_PREFSRC, &addr_bytes(source));
    }
    if let Some(priority) = route.priority {
        message.attr_u32(RTA_PRIORITY, priority);
    }
    if let Some(table) = route.table {
        message.attr_u32(RTA_TABLE, table);
    }
    if route.mtu.is_some() || route.advmss.is_some() {
        message.nest(RTA_METRICS, |m| {
            if let Some(mtu) = route.mtu {
                m.attr_u32(RTAX_MTU, mtu);
            }
            if let Some(advmss) = route.advmss {
                m.attr_u32(RTAX_ADVMSS, advmss);
            }
        });
    }
    let via = route.gateway.map(|g| format!(" via {g}")).unwrap_or_default();
    Request::new(format!("{verb} route {}{via}", route.dst), message)
}

/// struct rtmsg.
fn header(route: &Route) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[0] = Family::of(route.dst.addr).number();
    bytes[1] = route.dst.prefix;
    // Numbers beyond a byte go in an attribute only; zero here then means "see there".
    bytes[4] = route.table.map_or(TABLE_MAIN as u8, |t| u8::try_from(t).unwrap_or(0));
    bytes[5] = route.protocol;
    bytes[6] = route.scope;
    bytes[7] = TYPE_UNICAST;
    let flags = if route.onlink { NEXT_HOP_ONLINK } else { 0 };
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes
}

pub(crate) fn parse(payload: &[u8]) -> Option<Route> {
    let family = *payload.first()?;
    let any: IpAddr =
        if family == Family::V4.number() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let mut route = Route::to(IpNet::new(any, *payload.get(1)?));
    route.table = Some(u32::from(*payload.get(4)?));
    route.protocol = *payload.get(5)?;
    route.scope = *payload.get(6)?;
    route.onlink = wire::read_u32(payload, 8)? & NEXT_HOP_ONLINK != 0;
    for (kind, value) in wire::attrs(payload.get(12..)?) {
        match kind {
            RTA_DST => route.dst.addr = read_addr(value)?,
            RTA_GATEWAY => route.gateway = read_addr(value),
            RTA_OIF => route.link = wire::read_u32(value, 0).map(IfIndex),
            RTA_PREFSRC => route.source = read_addr(value),
            RTA_PRIORITY => route.priority = wire::read_u32(value, 0),
            RTA_TABLE => route.table = wire::read_u32(value, 0),
            RTA_METRICS => {
                route.mtu = wire::find(value, RTAX_MTU).and_then(|v| wire::read_u32(v, 0));
                route.advmss = wire::find(value, RTAX_ADVMSS).and_then(|v| wire::read_u32(v, 0));
            }
            _ => {}
        }
    }
    Some(route)
}
