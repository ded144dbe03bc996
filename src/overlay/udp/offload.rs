//! The header that the kernel puts before each packet of a TUN device with offloads, as virtio defines it.

/// How many bytes it has.
pub const LENGTH: usize = 10;

const NEEDS_CHECKSUM: u8 = 1;
const NONE: u8 = 0;
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
const UDP: u8 = 5;
/// Set beside a TCP kind when the packet carries a congestion mark. Segmentation uses the packet's own flags.
const ECN: u8 = 0x80;

/// What the kernel left to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffloadWork {
    Nothing,
    /// One checksum, over everything from `start`, to be put `offset` bytes behind it.
    Checksum {
        start: usize,
        offset: usize,
    },
    /// Cutting the payload into segments of `size` bytes; the transport's header is at `start`.
    Segments {
        transport: Transport,
        start: usize,
        size: usize,
    },
    /// Something that was not asked for.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Udp,
}

impl OffloadWork {
    pub fn read(header: &[u8; LENGTH]) -> OffloadWork {
        let number = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
        let (size, start, offset) = (number(4), number(6), number(8));
        let transport = match header[1] & !ECN {
            NONE if header[0] & NEEDS_CHECKSUM == 0 => return OffloadWork::Nothing,
            NONE => return OffloadWork::Checksum { start, offset },
            TCP_V4 | TCP_V6 => Transport::Tcp,
            UDP => Transport::Udp,
            _ => return OffloadWork::Unknown,
        };
        OffloadWork::Segments { transport, start, size }
    }
}

/// The header for a packet that is as it should be.
pub const PLAIN: [u8; LENGTH] = [0; LENGTH];

/// The header for a packet that stands for many: the kernel cuts it where it has to, or never.
pub fn merged(transport: Transport, v4: bool, start: usize, headers: usize, size: usize) -> [u8; LENGTH] {
    let (kind, offset) = match (transport, v4) {
        (Transport::Tcp, true) => (TCP_V4, 16u16),
        (Transport::Tcp, false) => (TCP_V6, 16),
        (Transport::Udp, _) => (UDP, 6),
    };
    let mut header = [0; LENGTH];
    header[0] = NEEDS_CHECKSUM;
    header[1] = kind;
    header[2..4].copy_from_slice(&(headers as u16).to_ne_bytes());
    header[4..6].copy_from_slice(&(size as u16).to_ne_bytes());
    header[6..8].copy_from_slice(&(start as u16).to_ne_bytes());
    header[8..10].copy_from_slice(&offset.to_ne_bytes());
    header
}
