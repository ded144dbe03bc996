//! A path in a process of its own, as the daemon would run it, until a line comes in, or the end.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};

use keelson_netkit::{IfName, IpNet};
use keelson_overlay_udp::{Config, Leave, Path, Peer};

pub fn run(words: &[String]) -> Result<(), Box<dyn Error>> {
    let [device, listen, own, others, peers @ ..] = words else {
        return Err("carry needs a device, an address, a subnet and how many more peers there are".into());
    };
    let config = Config {
        device: IfName::try_from(device.as_str())?,
        listen: vec![listen.parse()?],
        subnets: vec![own.parse()?],
        queues: std::env::var("QUEUES").ok().and_then(|n| n.parse().ok()),
    };
    let path = Path::start(&config)?;
    let mut list = Vec::new();
    for word in peers {
        let (endpoint, subnet) = word.split_once('=').ok_or("a peer is ENDPOINT=SUBNET")?;
        list.push(Peer { endpoint: endpoint.parse()?, subnets: vec![subnet.parse()?] });
    }
    list.extend((0..others.parse()?).map(other));
    path.peers().replace(list);
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    if std::env::var_os("BENCH_COUNTERS").is_some() {
        for (name, value) in path.counters().rows().filter(|(_, value)| *value > 0) {
            eprintln!("{device}: {name} {value}");
        }
    }
    path.stop(Leave::Nothing);
    Ok(())
}

/// A peer that exists in the table only.
fn other(number: u32) -> Peer {
    let subnet = IpNet::new(Ipv4Addr::from_bits(0x0b00_0000 | number << 8).into(), 24);
    let endpoint = SocketAddr::new(Ipv4Addr::from_bits(0xc612_0000 | number).into(), 8285);
    Peer { endpoint, subnets: vec![subnet] }
}
