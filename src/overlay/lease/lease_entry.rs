//! One lease as the table stores it: compact, because there are thousands of them, nearly all of one family.

use std::borrow::Cow;
use std::sync::Arc;

use super::{Lease, LeasedSubnet, ReportedLease};

#[derive(Debug)]
pub(super) struct LeaseEntry {
    lease: Result<CompactLease, Box<str>>,
    pub(super) serves4: bool,
    pub(super) serves6: bool,
    pub(super) rejection: Option<Box<str>>,
}

/// A lease without the holder's name, which is its key.
#[derive(Debug)]
struct CompactLease {
    backend: Cow<'static, str>,
    v4: Option<LeasedSubnet>,
    v6: Option<Box<LeasedSubnet>>,
}

impl LeaseEntry {
    pub(super) fn new(reported: ReportedLease, rejection: Option<Box<str>>) -> Box<Self> {
        let lease = match reported {
            Ok(lease) => {
                Ok(CompactLease { backend: lease.backend, v4: lease.v4, v6: lease.v6.map(Box::new) })
            }
            Err(why) => Err(why.into()),
        };
        Box::new(LeaseEntry { lease, serves4: false, serves6: false, rejection })
    }

    /// Whether the stored lease equals a reported one.
    pub(super) fn is(&self, reported: &ReportedLease) -> bool {
        match (&self.lease, reported) {
            (Ok(own), Ok(lease)) => {
                own.backend == lease.backend && own.v4 == lease.v4 && own.v6.as_deref() == lease.v6.as_ref()
            }
            (Err(own), Err(why)) => **own == **why,
            _ => false,
        }
    }

    /// The whole lease, served or not; Err says why it could not be read.
    pub(super) fn reported(&self, holder: &Arc<str>) -> Result<Lease, &str> {
        let lease = self.lease.as_ref().map_err(|why| &**why)?;
        let (backend, v6) = (lease.backend.clone(), lease.v6.as_deref().copied());
        Ok(Lease { holder: holder.clone(), backend, v4: lease.v4, v6 })
    }

    /// The subnet of a family, if it is served.
    pub(super) fn leased_subnet(&self, v4: bool) -> Option<&LeasedSubnet> {
        let lease = self.lease.as_ref().ok()?;
        match v4 {
            true => lease.v4.as_ref().filter(|_| self.serves4),
            false => lease.v6.as_deref().filter(|_| self.serves6),
        }
    }

    /// The served part of the lease.
    pub(super) fn peer(&self, holder: &Arc<str>) -> Option<Lease> {
        let (v4, v6) = (self.leased_subnet(true).copied(), self.leased_subnet(false).copied());
        let lease = self.reported(holder).ok()?;
        (v4.is_some() || v6.is_some()).then_some(Lease { v4, v6, ..lease })
    }
}
