//! The thread of one queue. It carries both ways: an answer finds it awake, and two threads would wake each other more often
//! than they would help each other.

use std::num::NonZeroU64;
use std::time::Instant;

use keelson_kit::cidr::IpNetwork;
use rustix::io::Errno;
use rustix::thread::set_current_timer_slack;

use crate::batching::{BatchPacing, BatchSize};
use crate::counters::ThreadCounters;
use crate::path_shared::{PathHandle, Queue};
use crate::receive_loop::ReceiveLoop;
use crate::send_loop::SendLoop;
use crate::wait::Woken;

/// How late a pause may end, in nanoseconds; the usual slack is as long as the pause itself.
const SLACK: Option<NonZeroU64> = NonZeroU64::new(1_000);

pub struct CarryLoop<'a> {
    shared: &'a PathHandle,
    queue: &'a Queue,
    outward: SendLoop<'a>,
    inward: ReceiveLoop<'a>,
}

impl<'a> CarryLoop<'a> {
    pub fn new(
        shared: &'a PathHandle,
        queue: &'a Queue,
        counters: &'a ThreadCounters,
        own: &[IpNetwork],
        udp: bool,
    ) -> Self {
        let outward = SendLoop::new(shared, queue, counters);
        let inward = ReceiveLoop::new(shared, queue, counters, own, udp);
        CarryLoop { shared, queue, outward, inward }
    }

    /// Runs until the end is asked for. An error means that the device or a socket is gone.
    pub fn run(&mut self) -> Result<(), Errno> {
        // Where this is refused pauses are a little longer, and nothing else.
        let _ = set_current_timer_slack(SLACK);
        let begun = Instant::now();
        let mut pacing = BatchPacing::new();
        loop {
            let [device, sockets @ ..] = match self.shared.stop.wait_for(self.queue.sources())? {
                Woken::Stopped => return Ok(()),
                Woken::Readable(which) => which,
            };
            let mut round = BatchSize::default();
            if device {
                round += self.outward.batch()?;
            }
            for (socket, _) in self.queue.sockets().zip(sockets).filter(|(_, readable)| *readable) {
                round += self.inward.batch(socket)?;
            }
            if let Some(pause) = pacing.after(round, || begun.elapsed()) {
                std::thread::sleep(pause);
            }
        }
    }
}
