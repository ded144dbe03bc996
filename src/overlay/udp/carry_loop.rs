//! The thread of one queue. It carries both ways: an answer finds it awake, and two threads would wake each other more often
//! than they would help each other.

use keelson_netkit::IpNet;
use rustix::io::Errno;

use crate::counters::Tally;
use crate::receive_loop::ReceiveLoop;
use crate::send_loop::SendLoop;
use crate::shared::{Handle, Queue};
use crate::wait::Woken;

pub struct CarryLoop<'a> {
    shared: &'a Handle,
    queue: &'a Queue,
    outward: SendLoop<'a>,
    inward: ReceiveLoop<'a>,
}

impl<'a> CarryLoop<'a> {
    pub fn new(shared: &'a Handle, queue: &'a Queue, tally: &'a Tally, own: &[IpNet], udp: bool) -> Self {
        let outward = SendLoop::new(shared, queue, tally);
        let inward = ReceiveLoop::new(shared, queue, tally, own, udp);
        CarryLoop { shared, queue, outward, inward }
    }

    /// Runs until the end is asked for. An error means that the device or a socket is gone.
    pub fn run(&mut self) -> Result<(), Errno> {
        loop {
            let [device, sockets @ ..] = match self.shared.stop.wait_for(self.queue.sources())? {
                Woken::Stopped => return Ok(()),
                Woken::Readable(which) => which,
            };
            if device {
                self.outward.batch()?;
            }
            for (socket, _) in self.queue.sockets().zip(sockets).filter(|(_, readable)| *readable) {
                self.inward.batch(socket)?;
            }
        }
    }
}
