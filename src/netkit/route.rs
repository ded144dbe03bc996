//! Routes: asked for with rtnetlink's builders, read by hand.
//!
//! The overlay lists thousands. Reading 5,000 takes netlink-packet-route 13.4 million user instructions and an allocation for
//! each route, the loop at the end of this file 0.9 million and none.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use keelson_kit::cidr::{self, IpNetwork};
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteMetric};

use crate::addr::{Family, read_addr};
use crate::error::Result;
use crate::ids::IfIndex;
use crate::socket::{Request, Socket};
use crate::wire::{self, Message, flags};

// Names and numbers as in linux/rtnetlink.h.
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;
const RTNH_F_ONLINK: u32 = 4;

/// What set a route by hand or at boot; the usual one.
pub const PROTOCOL_BOOT: u8 = libc::RTPROT_BOOT;
pub const SCOPE_UNIVERSE: u8 = libc::RT_SCOPE_UNIVERSE;
pub const SCOPE_LINK: u8 = libc::RT_SCOPE_LINK;

/// A route to be made, or one that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub dst: IpNetwork,
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
    pub fn to(dst: IpNetwork) -> Self {
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
    request(libc::RTM_NEWROUTE, flags::CREATE | flags::EXCL, "add", route)
}

/// Adds a route beside one of the same destination and metric, as a further next hop where that is possible.
pub fn add_beside(route: &Route) -> Request {
    request(libc::RTM_NEWROUTE, flags::CREATE, "add", route)
}

/// Adds a route in place of one with the same destination and metric.
pub fn replace(route: &Route) -> Request {
    request(libc::RTM_NEWROUTE, flags::CREATE | flags::REPLACE, "set", route)
}

pub fn remove(route: &Route) -> Request {
    request(libc::RTM_DELROUTE, 0, "remove", route)
}

/// The routes of one family in all tables but the local one.
pub fn list(socket: &mut Socket, family: Family) -> Result<Vec<Route>> {
    let mut asked = RouteMessage::default();
    asked.header.address_family = family.into();
    let request = Request::new("list routes", Message::of(libc::RTM_GETROUTE, 0, &asked));
    let routes = socket
        .dump(&request, |kind, payload| (kind == libc::RTM_NEWROUTE).then(|| parse(payload)).flatten())?;
    Ok(routes.into_iter().filter(|r| r.table != Some(u32::from(libc::RT_TABLE_LOCAL))).collect())
}

/// The link that packets to `addr` leave by.
pub fn link_towards(socket: &mut Socket, addr: IpAddr) -> Result<Option<IfIndex>> {
    Ok(towards(socket, addr)?.and_then(|r| r.link))
}

/// The way that packets to `addr` take: the link, the gateway if there is one, the source address.
pub fn towards(socket: &mut Socket, addr: IpAddr) -> Result<Option<Route>> {
    let mut asked = RouteMessage::default();
    asked.header.address_family = Family::of(addr).into();
    asked.header.destination_prefix_length = IpNetwork::from(addr).prefix();
    asked.attributes.push(RouteAttribute::Destination(addr.into()));
    let message = Message::of(libc::RTM_GETROUTE, 0, &asked);
    let replies = socket.call(Request::new(format!("find the route to {addr}"), message))?;
    Ok(replies.iter().find_map(|r| parse(&r.payload)))
}

fn request(kind: u16, flags: u16, verb: &str, route: &Route) -> Request {
    // The default route is the one without a destination.
    let message = match route.dst {
        IpNetwork::V4(dst) => {
            let builder = RouteMessageBuilder::<Ipv4Addr>::new();
            match dst.prefix() {
                0 => complete(builder, route),
                length => complete(builder.destination_prefix(dst.network(), length), route),
            }
        }
        IpNetwork::V6(dst) => {
            let builder = RouteMessageBuilder::<Ipv6Addr>::new();
            match dst.prefix() {
                0 => complete(builder, route),
                length => complete(builder.destination_prefix(dst.network(), length), route),
            }
        }
    };
    let via = route.gateway.map(|g| format!(" via {g}")).unwrap_or_default();
    Request::new(format!("{verb} route {}{via}", route.dst), Message::of(kind, flags, &message))
}

fn complete<T>(builder: RouteMessageBuilder<T>, route: &Route) -> RouteMessage {
    let mut builder = builder.protocol(route.protocol.into()).scope(route.scope.into());
    if let Some(table) = route.table {
        builder = builder.table_id(table);
    }
    if route.onlink {
        builder = builder.onlink();
    }
    if let Some(link) = route.link {
        builder = builder.output_interface(link.0);
    }
    if let Some(priority) = route.priority {
        builder = builder.priority(priority);
    }
    let mut message = builder.build();
    // The builder would make something else of a gateway of the other family; the kernel is to refuse it.
    message.attributes.extend(route.gateway.map(|gateway| RouteAttribute::Gateway(gateway.into())));
    message.attributes.extend(route.source.map(|source| RouteAttribute::PrefSource(source.into())));
    let mtu = route.mtu.map(RouteMetric::Mtu);
    let metrics: Vec<RouteMetric> = mtu.into_iter().chain(route.advmss.map(RouteMetric::Advmss)).collect();
    if !metrics.is_empty() {
        message.attributes.push(RouteAttribute::Metrics(metrics));
    }
    message
}

pub(crate) fn parse(payload: &[u8]) -> Option<Route> {
    let family = *payload.first()?;
    let length = *payload.get(1)?;
    let mut route = Route::to(cidr::with_length(cidr::from_number(0, family == Family::V4.number()), length));
    route.table = Some(u32::from(*payload.get(4)?));
    route.protocol = *payload.get(5)?;
    route.scope = *payload.get(6)?;
    route.onlink = wire::read_u32(payload, 8)? & RTNH_F_ONLINK != 0;
    for (kind, value) in wire::attrs(payload.get(12..)?) {
        match kind {
            libc::RTA_DST => route.dst = cidr::with_length(read_addr(value)?, length),
            libc::RTA_GATEWAY => route.gateway = read_addr(value),
            libc::RTA_OIF => route.link = wire::read_u32(value, 0).map(IfIndex),
            libc::RTA_PREFSRC => route.source = read_addr(value),
            libc::RTA_PRIORITY => route.priority = wire::read_u32(value, 0),
            libc::RTA_TABLE => route.table = wire::read_u32(value, 0),
            libc::RTA_METRICS => {
                route.mtu = wire::find(value, RTAX_MTU).and_then(|v| wire::read_u32(v, 0));
                route.advmss = wire::find(value, RTAX_ADVMSS).and_then(|v| wire::read_u32(v, 0));
            }
            _ => {}
        }
    }
    Some(route)
}
