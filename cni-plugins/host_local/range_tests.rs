use std::collections::HashSet;

use super::*;

fn draft(subnet: &str) -> Draft {
    Draft { subnet: subnet.parse().unwrap(), start: None, end: None, gateway: None }
}

#[test]
fn what_is_not_given_is_filled_in() {
    for (subnet, gateway, end) in [
        ("10.1.2.0/24", "10.1.2.1", "10.1.2.254"),
        ("10.1.2.0/30", "10.1.2.1", "10.1.2.2"),
        ("10.0.0.0/8", "10.0.0.1", "10.255.255.254"),
        ("fd00::/120", "fd00::1", "fd00::ff"),
        ("0.0.0.0/0", "0.0.0.1", "255.255.255.254"),
        ("::/0", "::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ] {
        let range = Range::check(draft(subnet)).unwrap();
        assert_eq!(range.gateway.to_string(), gateway, "{subnet}");
        assert_eq!(range.start.to_string(), gateway, "{subnet}");
        assert_eq!(range.end.to_string(), end, "{subnet}");
    }
}

#[test]
fn ranges_that_make_no_sense_are_refused_with_the_reason() {
    let base = draft("10.1.2.0/24");
    let addr = |text: &str| text.parse().ok();
    for (name, draft, reason) in [
        ("too small", draft("10.1.2.0/31"), "too small"),
        ("too small for IPv6", draft("fd00::/127"), "too small"),
        ("host bits", draft("10.1.2.1/24"), "host bits"),
        ("start outside", Draft { start: addr("10.1.3.1"), ..base.clone() }, "rangeStart"),
        ("end outside", Draft { end: addr("10.1.3.1"), ..base.clone() }, "rangeEnd"),
        ("start of the other family", Draft { start: addr("fd00::1"), ..base.clone() }, "rangeStart"),
        ("wrong order", Draft { start: addr("10.1.2.9"), end: addr("10.1.2.8"), ..base.clone() }, "after"),
    ] {
        let error = Range::check(draft).unwrap_err();
        assert!(error.contains(reason), "{name}: {error}");
    }
    assert!(RangeSet::check(vec![]).is_err());
    assert!(RangeSet::check(vec![base.clone(), draft("fd00::/64")]).unwrap_err().contains("mixes"));
    assert!(RangeSet::check(vec![base.clone(), base]).unwrap_err().contains("overlap"));
}

#[test]
fn candidates_go_round_the_whole_set_once_and_leave_out_the_gateways() {
    let set = RangeSet::check(vec![draft("10.1.2.0/29"), draft("10.1.3.0/29")]).unwrap();
    for last in [None, Some("10.1.2.4"), Some("10.1.3.6"), Some("10.1.2.1"), Some("192.0.2.1")] {
        let last = last.map(|l| l.parse().unwrap());
        let all: Vec<IpAddr> = set.candidates(last).map(|(addr, _)| addr).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 10, "starting after {last:?}: {all:?}");
        assert_eq!(all.len(), 10);
    }
    let after = |last: &str| set.candidates(last.parse().ok()).next().unwrap().0.to_string();
    assert_eq!(after("10.1.2.4"), "10.1.2.5");
    assert_eq!(after("10.1.2.6"), "10.1.3.2");
    assert_eq!(after("10.1.3.6"), "10.1.2.2");
}

proptest::proptest! {
    #[test]
    fn any_starting_point_gives_every_address_exactly_once(prefix in 24u8..=30, last in 0u32..600, two in proptest::bool::ANY) {
        let mut drafts = vec![draft(&format!("10.0.0.0/{prefix}"))];
        if two {
            drafts.push(draft("10.0.1.0/28"));
        }
        let set = RangeSet::check(drafts).unwrap();
        let last = from_number(0x0a00_0000 + u128::from(last), true);
        let all: Vec<IpAddr> = set.candidates(Some(last)).map(|(a, _)| a).collect();
        let size = (1usize << (32 - prefix)) - 3 + if two { 13 } else { 0 };
        proptest::prop_assert_eq!(all.len(), size);
        proptest::prop_assert_eq!(all.iter().collect::<HashSet<_>>().len(), size);
        if set.range_of(last).is_some_and(|r| r.gateway != last) {
            proptest::prop_assert_eq!(all.last(), Some(&last));
        }
    }
}
