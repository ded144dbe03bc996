//! Ports of the host, led to a container.

use crate::skel::{Attachment, Call, CniResult, Failure, Plugin};

pub struct Portmap;

impl Plugin for Portmap {
    fn name(&self) -> &'static str {
        "portmap"
    }

    fn enters_netns(&self) -> bool {
        false
    }

    fn add(&self, call: &Call, _at: &Attachment) -> Result<CniResult, Failure> {
        call.previous_result()?.ok_or_else(|| Failure::config("portmap is a chained plugin; \"prevResult\" is missing"))
    }

    fn del(&self, _call: &Call, _at: &Attachment) -> Result<(), Failure> {
        Ok(())
    }

    fn check(&self, _call: &Call, _at: &Attachment) -> Result<(), Failure> {
        Ok(())
    }

    fn gc(&self, _: &Call) -> Result<(), Failure> {
        Ok(())
    }

    fn status(&self, _: &Call) -> Result<(), Failure> {
        Ok(())
    }
}
