//! Socket options that nix does not name, declared with its macro.

use nix::{getsockopt_impl, setsockopt_impl, sockopt_impl};

// As in linux/icmp.h and linux/icmpv6.h.
const ICMP_FILTER: libc::c_int = 1;
const ICMPV6_FILTER: libc::c_int = 1;

sockopt_impl!(Ipv6Mtu, GetOnly, libc::IPPROTO_IPV6, libc::IPV6_MTU, libc::c_int);
sockopt_impl!(
    /// Which kinds of ICMP messages a raw socket is spared, a bit each.
    IcmpFilter,
    SetOnly,
    libc::SOL_RAW,
    ICMP_FILTER,
    [u32; 8]
);
sockopt_impl!(
    /// The same for ICMPv6.
    Icmpv6Filter,
    SetOnly,
    libc::IPPROTO_ICMPV6,
    ICMPV6_FILTER,
    [u32; 8]
);
