//! The node's HTTPS API, as far as it can be decided without a socket: which endpoint a request means, what its caller
//! must be allowed to do, who a certificate speaks for, and whether there is anybody the API could be served to at all.

pub mod access;
pub mod exposure;
pub mod log_query;
pub mod path;
pub mod query;
pub mod route;
pub mod streams;
pub mod subject;

pub use access::{Access, access};
pub use exposure::{Exposure, exposure};
pub use path::{BadPath, Segments};
pub use query::Query;
pub use route::{Endpoint, OfContainer, OfPod, Refusal, route};
pub use subject::{Subject, subject};
