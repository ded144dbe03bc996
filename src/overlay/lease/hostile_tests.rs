//! Whatever stands in an annotation or a key: no panic, and what is accepted makes sense.

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
        let _ = Record::parse(&value);
        let value = format!(r#"{{"PublicIP":{},"BackendData":{}}}"#, serde_json::json!(public), if data.is_empty() { "0" } else { &data });
        let key = key.replace('/', "-");
        if let Ok(lease) = Record::parse(value.as_bytes()).and_then(|record| record.lease(&key)) {
            check(lease)?;
        }
    }
}

/// What passes is served only where it cannot do harm.
fn check(lease: Lease) -> Result<(), TestCaseError> {
    let nets: [IpNet; 2] = ["10.0.0.0/8".parse().unwrap(), "fd00::/16".parse().unwrap()];
    let own: [IpNet; 1] = ["10.1.0.0/16".parse().unwrap()];
    let backend = lease.backend.to_string();
    let mut roll = Roll::default();
    roll.settle(&Measure { networks: nets.to_vec(), own: own.to_vec(), backend, ..Measure::default() });
    roll.take(News::Whole(BTreeMap::from([(lease.holder.clone(), Ok(lease))])));
    let peers: Vec<Lease> = roll.peers().collect();
    for place in peers.iter().flat_map(Lease::places) {
        prop_assert!(nets.iter().any(|net| net.contains(place.subnet.addr)));
        prop_assert!(!own[0].overlaps(&place.subnet));
        prop_assert!(
            !place.public.is_loopback() && !place.public.is_multicast() && !place.public.is_unspecified()
        );
        prop_assert!(place.vtep.is_none_or(|vtep| vtep.mac.0[0] & 1 == 0));
    }
    Ok(())
}
