//! Which pods this node is to run: the sources, admission, mirrors of static pods, and a worker for each.

pub mod admission;
pub mod desired_store;
pub mod mirror;
pub mod mirror_reconcile;
pub mod node_lookup;
pub mod orphans;
pub mod pod_loop;
mod record;
pub mod resizes;
pub mod supervisor;
