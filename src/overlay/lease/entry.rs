//! One lease as the roll keeps it: in little room, because there are thousands of them, nearly all of one family.

use std::borrow::Cow;
use std::sync::Arc;

use super::{Heard, Lease, Place};

#[derive(Debug)]
pub(super) struct Entry {
    kept: Result<Kept, Box<str>>,
    pub(super) serves4: bool,
    pub(super) serves6: bool,
    pub(super) complaint: Option<Box<str>>,
}

/// A lease without the holder's name, by which it is found.
#[derive(Debug)]
struct Kept {
    backend: Cow<'static, str>,
    v4: Option<Place>,
    v6: Option<Box<Place>>,
}

impl Entry {
    pub(super) fn new(heard: Heard, complaint: Option<Box<str>>) -> Box<Self> {
        let kept = match heard {
            Ok(lease) => Ok(Kept { backend: lease.backend, v4: lease.v4, v6: lease.v6.map(Box::new) }),
            Err(why) => Err(why.into()),
        };
        Box::new(Entry { kept, serves4: false, serves6: false, complaint })
    }

    /// Whether this is what was heard.
    pub(super) fn is(&self, heard: &Heard) -> bool {
        match (&self.kept, heard) {
            (Ok(kept), Ok(lease)) => {
                kept.backend == lease.backend
                    && kept.v4 == lease.v4
                    && kept.v6.as_deref() == lease.v6.as_ref()
            }
            (Err(kept), Err(why)) => **kept == **why,
            _ => false,
        }
    }

    /// The whole lease, served or not; or what is wrong with it.
    pub(super) fn heard(&self, holder: &Arc<str>) -> Result<Lease, &str> {
        let kept = self.kept.as_ref().map_err(|why| &**why)?;
        let (backend, v6) = (kept.backend.clone(), kept.v6.as_deref().copied());
        Ok(Lease { holder: holder.clone(), backend, v4: kept.v4, v6 })
    }

    /// What is served of a family.
    pub(super) fn place(&self, v4: bool) -> Option<&Place> {
        let kept = self.kept.as_ref().ok()?;
        match v4 {
            true => kept.v4.as_ref().filter(|_| self.serves4),
            false => kept.v6.as_deref().filter(|_| self.serves6),
        }
    }

    /// The lease as far as it is served.
    pub(super) fn peer(&self, holder: &Arc<str>) -> Option<Lease> {
        let (v4, v6) = (self.place(true).copied(), self.place(false).copied());
        let lease = self.heard(holder).ok()?;
        (v4.is_some() || v6.is_some()).then_some(Lease { v4, v6, ..lease })
    }
}
