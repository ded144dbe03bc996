//! The host's resolver configuration, from which a pod's is made.

use std::path::Path;

use keelson_core::dns::{DnsConfig, parse_resolv_conf};

use crate::files::read_bounded;
use crate::path_error::PathError;

/// Reads the file that `--resolv-conf` names.
pub fn read(path: &Path) -> Result<DnsConfig, PathError> {
    Ok(parse_resolv_conf(&read_bounded(path)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn the_host_file_is_read_up_to_a_bound() {
        let temp = testing::dir();
        let path = temp.path().join("resolv.conf");
        let filler = "# filler\n".repeat(200_000);
        std::fs::write(
            &path,
            format!("nameserver 10.0.0.1\nsearch a.example\n{filler}nameserver 10.0.0.2\n"),
        )
        .expect("write");
        let conf = read(&path).expect("read");
        assert_eq!(conf.servers, ["10.0.0.1"]);
        assert_eq!(conf.searches, ["a.example"]);
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read(Path::new("/no/such/resolv.conf")).expect_err("missing");
        assert!(error.to_string().contains("/no/such/resolv.conf"), "{error}");
    }
}
