//! Arbitrary annotations, keys and values cause no panic, and what is accepted is valid.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Text that is nearly right, more often than not.
fn nearly() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}(/[0-9]{1,3})?",
        "[0-9a-f:]{1,40}(/[0-9]{1,3})?",
        r#"\{"VNI":[0-9]{1,9},"VtepMAC":"[0-9a-f:]{0,20}"\}"#,
        Just("null".to_owned()),
        Just(String::new()),
    ]
}

proptest! {
    #[test]
    fn annotations_are_read_or_refused(values in prop::collection::vec(nearly(), 8)) {
        let names = ["backend-type", "backend-data", "backend-v6-data", "public-ip", "public-ipv6"];
        let mut found: BTreeMap<String, String> =
            names.iter().zip(&values).map(|(n, v)| (format!("f.io/{n}"), v.clone())).collect();
        found.insert("f.io/kube-subnet-manager".into(), "true".into());
        let annotations = Annotations::new("f.io").unwrap();
        if let Ok(Some(lease)) = annotations.lease("n", &found, &values[5..]) {
            check(lease)?;
        }
    }

    #[test]
    fn keys_and_values_are_read_or_refused(key in nearly(), value in any::<Vec<u8>>(), public in nearly(), data in nearly()) {
        let _ = LeaseValue::parse(&value);
        let value = format!(r#"{{"PublicIP":{},"BackendData":{}}}"#, serde_json::json!(public), if data.is_empty() { "0" } else { &data });
        let key = key.replace('/', "-");
        if let Ok(lease) = LeaseValue::parse(value.as_bytes()).and_then(|record| record.lease(&key)) {
            check(lease)?;
        }
    }
}

/// What is served is harmless.
fn check(lease: Lease) -> Result<(), TestCaseError> {
    let nets: [IpNetwork; 2] = ["10.0.0.0/8".parse().unwrap(), "fd00::/16".parse().unwrap()];
    let own: [IpNetwork; 1] = ["10.1.0.0/16".parse().unwrap()];
    let backend = lease.backend.to_string();
    let mut table = LeaseTable::default();
    table.set_requirements(&Requirements {
        networks: nets.to_vec(),
        own: own.to_vec(),
        backend,
        ..Requirements::default()
    });
    table.apply(LeaseUpdate::Snapshot(BTreeMap::from([(lease.holder.clone(), Ok(lease))])));
    let peers: Vec<Lease> = table.peers().collect();
    for leased in peers.iter().flat_map(Lease::leased_subnets) {
        prop_assert!(nets.iter().any(|net| net.contains(leased.subnet.ip())));
        prop_assert!(!keelson_kit::cidr::overlap(own[0], leased.subnet));
        prop_assert!(
            !leased.public.is_loopback() && !leased.public.is_multicast() && !leased.public.is_unspecified()
        );
        prop_assert!(leased.vtep.is_none_or(|vtep| vtep.mac.0[0] & 1 == 0));
    }
    Ok(())
}
