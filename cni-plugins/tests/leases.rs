//! The leases under whatever happens to them: any order of events, other implementations, reboots,
//! crashes, and files full of anything.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use keelson_cni::host_local::{Boot, Draft, LeaseOwner, RangeSet, Store};
use keelson_cni::skel::{Env, run};
use proptest::prelude::*;
use serde_json::{Value, json};

fn owner(n: u8) -> LeaseOwner {
    LeaseOwner { container: format!("c{n}"), ifname: Some("eth0".into()) }
}

fn sets() -> Vec<RangeSet> {
    let draft = Draft { subnet: "10.0.0.0/28".parse().unwrap(), start: None, end: None, gateway: None };
    vec![RangeSet::check(vec![draft]).unwrap()]
}

fn boot(id: &str) -> Boot {
    Boot { id: id.into(), began: SystemTime::now() - Duration::from_secs(1000) }
}

fn open(dir: &Path, id: &str) -> Store {
    Store::open(dir, Duration::from_secs(5), boot(id), 1).unwrap()
}

fn lease_files(dir: &Path) -> HashMap<IpAddr, String> {
    fs::read_dir(dir)
        .unwrap()
        .flatten()
        .filter_map(|e| Some((e.file_name().to_str()?.parse().ok()?, fs::read_to_string(e.path()).ok()?)))
        .collect()
}

/// What can happen to a network's leases.
#[derive(Debug, Clone)]
enum Event {
    Add(u8),
    AddAt(u8, u8),
    Del(u8),
    Gc(Vec<u8>),
    /// The reference plugin gives or frees an address, knowing nothing of the index.
    ForeignAdd(u8, u8),
    ForeignDel(u8),
    /// A plugin died after writing the index and before making the lease.
    CrashBeforeLease(u8, u8),
    /// A plugin died after making the lease and before noting that the index is complete.
    CrashBeforeStamp,
    LoseIndex,
    /// Somebody rewrites one container's lease to be another's, in place, which the directory does not show.
    Rewrite(u8, u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0u8..12).prop_map(Event::Add),
        1 => (0u8..12, 0u8..18).prop_map(|(c, a)| Event::AddAt(c, a)),
        4 => (0u8..12).prop_map(Event::Del),
        1 => prop::collection::vec(0u8..12, 0..6).prop_map(Event::Gc),
        2 => (0u8..12, 2u8..15).prop_map(|(c, a)| Event::ForeignAdd(c, a)),
        1 => (0u8..12).prop_map(Event::ForeignDel),
        1 => (0u8..12, 2u8..15).prop_map(|(c, a)| Event::CrashBeforeLease(c, a)),
        1 => Just(Event::CrashBeforeStamp),
        1 => Just(Event::LoseIndex),
        1 => (0u8..12, 0u8..12).prop_map(|(from, to)| Event::Rewrite(from, to)),
    ]
}

fn addr(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

proptest! {
    // Quick by default; PROPTEST_CASES=5000 digs deeper.
    #![proptest_config(ProptestConfig { cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(60), ..ProptestConfig::default() })]

    /// A simple model, a map from address to container, is compared with the files after every event.
    #[test]
    fn no_address_is_given_twice_and_none_is_lost_in_any_order_of_events(events in prop::collection::vec(event(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("net");
        let mut model: HashMap<IpAddr, u8> = HashMap::new();
        drop(open(&dir, "boot"));
        for event in events {
            let holds = |model: &HashMap<IpAddr, u8>, c: u8| model.values().any(|v| *v == c);
            match event.clone() {
                Event::Add(c) => {
                    let got = open(&dir, "boot").reserve(&owner(c), &sets(), &[]);
                    if holds(&model, c) {
                        prop_assert!(got.is_err(), "{c} holds an address and got another");
                    } else if model.len() == 13 {
                        prop_assert!(got.is_err(), "there is none left");
                    } else {
                        let given = got.unwrap()[0].address.ip();
                        prop_assert!(given != addr(1), "the gateway's address was given");
                        prop_assert!(model.insert(given, c).is_none(), "{given} was given twice");
                    }
                }
                Event::AddAt(c, a) => {
                    let got = open(&dir, "boot").reserve(&owner(c), &sets(), &[addr(a)]);
                    let possible = !holds(&model, c) && (2..15).contains(&a) && !model.contains_key(&addr(a));
                    prop_assert_eq!(got.is_ok(), possible);
                    if possible {
                        model.insert(addr(a), c);
                    }
                }
                Event::Del(c) => {
                    open(&dir, "boot").release(&owner(c)).unwrap();
                    model.retain(|_, v| *v != c);
                }
                Event::Gc(keep) => {
                    open(&dir, "boot").retain(|o| keep.iter().any(|c| *o == owner(*c))).unwrap();
                    model.retain(|_, v| keep.contains(v));
                }
                Event::ForeignAdd(c, a) => {
                    if !model.contains_key(&addr(a)) && !holds(&model, c) {
                        fs::write(dir.join(addr(a).to_string()), owner(c).content()).unwrap();
                        fs::write(dir.join("last_reserved_ip.0"), addr(a).to_string()).unwrap();
                        model.insert(addr(a), c);
                    }
                }
                Event::ForeignDel(c) => {
                    for a in model.iter().filter(|(_, v)| **v == c).map(|(a, _)| *a).collect::<Vec<_>>() {
                        fs::remove_file(dir.join(a.to_string())).unwrap();
                    }
                    model.retain(|_, v| *v != c);
                }
                Event::CrashBeforeLease(c, a) => {
                    // The index is a directory of links; a wrong one must not be believed.
                    if !holds(&model, c) {
                        let before: HashSet<_> = fs::read_dir(dir.join(".keelson")).unwrap().flatten().map(|e| e.file_name()).collect();
                        if !model.contains_key(&addr(a)) {
                            open(&dir, "boot").reserve(&owner(c), &sets(), &[addr(a)]).unwrap();
                            fs::remove_file(dir.join(addr(a).to_string())).unwrap();
                            let after: HashSet<_> = fs::read_dir(dir.join(".keelson")).unwrap().flatten().map(|e| e.file_name()).collect();
                            prop_assert!(after.len() >= before.len());
                        }
                    }
                }
                Event::CrashBeforeStamp => {
                    let _ = fs::remove_file(dir.join(".keelson/stamp"));
                }
                Event::LoseIndex => {
                    let _ = fs::remove_dir_all(dir.join(".keelson"));
                }
                Event::Rewrite(from, to) => {
                    if !holds(&model, to) {
                        for (a, holder) in model.iter_mut().filter(|(_, v)| **v == from) {
                            fs::write(dir.join(a.to_string()), owner(to).content()).unwrap();
                            *holder = to;
                        }
                    }
                }
            }
            let files: HashMap<IpAddr, String> = model.iter().map(|(a, c)| (*a, owner(*c).content())).collect();
            prop_assert_eq!(lease_files(&dir), files, "after {:?}", event);
            let store = open(&dir, "boot");
            for c in 0..12 {
                let mut expected: Vec<IpAddr> = model.iter().filter(|(_, v)| **v == c).map(|(a, _)| *a).collect();
                let mut found = store.find(&owner(c)).unwrap();
                expected.sort();
                found.sort();
                prop_assert_eq!(found, expected, "the index about {} after {:?}", c, event);
            }
        }
    }

    /// Configurations, arguments and lease files of any content: an error in the protocol's words or a
    /// result, never a panic, and never a file outside the network's directory.
    #[test]
    fn any_configuration_gets_an_answer(noise in ".{0,60}", keys in prop::collection::vec((0usize..14, json_value()), 0..6), args in "[A-Za-z0-9=;.:/ ]{0,30}", lease in prop::collection::vec(any::<u8>(), 0..40)) {
        const KEYS: [&str; 14] = ["name", "cniVersion", "type", "ipam", "ipam/ranges", "ipam/routes", "ipam/subnet", "ipam/dataDir/x",
            "runtimeConfig", "args", "prevResult", "dns", "ipam/resolvConf", "ipam/type"];
        let home = tempfile::tempdir().unwrap();
        let data = home.path().join("data");
        fs::create_dir_all(data.join("net")).unwrap();
        fs::write(data.join("net/10.0.0.2"), &lease).unwrap();
        fs::write(data.join("net/last_reserved_ip.0"), &lease).unwrap();
        let mut conf = json!({"name": "net", "cniVersion": "1.1.0", "ipam": {"type": "host-local", "dataDir": data, "subnet": "10.0.0.0/29"}});
        for (key, value) in keys {
            match KEYS[key].split_once('/') {
                Some((outer, inner)) if conf[outer].is_object() => conf[outer][inner] = value,
                Some(_) => {}
                None => conf[KEYS[key]] = value,
            }
        }
        for stdin in [conf.to_string(), noise.clone(), format!("{}{noise}", conf)] {
            for plugin in ["host-local", "portmap"] {
                for command in ["ADD", "CHECK", "DEL", "GC", "STATUS", "VERSION"] {
                    // What portmap would do to the machine's rules is tried elsewhere, on a host of its own.
                    if plugin == "portmap" && matches!(command, "DEL" | "GC" | "ADD" | "CHECK") {
                        continue;
                    }
                    let env = Env::default().with("CNI_COMMAND", command).with("CNI_CONTAINERID", "c").with("CNI_IFNAME", "eth0")
                        .with("CNI_NETNS", "/nowhere").with("CNI_PATH", "/nowhere").with("CNI_ARGS", &args);
                    let (mut out, mut err) = (Vec::new(), Vec::new());
                    let status = run(keelson_cni::plugin(plugin).unwrap(), &env, &mut stdin.as_bytes(), &mut out, &mut err);
                    if status != 0 {
                        let told: Value = serde_json::from_slice(&out).unwrap();
                        prop_assert!(told["code"].is_u64() && told["msg"].is_string(), "{}", told);
                    }
                }
            }
        }
        let strays: Vec<_> = fs::read_dir(home.path()).unwrap().flatten().map(|e| e.file_name()).filter(|n| n != "data").collect();
        prop_assert!(strays.is_empty(), "{:?}", strays);
    }
}

/// Any JSON, with a liking for what looks like a proper value.
fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        prop::sample::select(vec![
            "10.0.0.0/29",
            "10.0.0.0/0",
            "::/0",
            "fd00::/64",
            "10.0.0.3",
            "0.4.0",
            "host-local",
            "255.255.255.255/32",
            "net"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(
                prop::sample::select(vec![
                    "subnet",
                    "rangeStart",
                    "rangeEnd",
                    "gateway",
                    "dst",
                    "gw",
                    "ips",
                    "cni",
                    "address",
                    "ranges",
                    "type",
                    "x"
                ])
                .prop_map(str::to_owned),
                inner,
                0..4
            )
            .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

#[test]
fn leases_of_a_former_boot_are_reclaimed_when_they_are_needed_and_not_before() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for c in 0..13 {
        open(dir, "first").reserve(&owner(c), &sets(), &[]).unwrap();
    }
    assert!(open(dir, "first").reserve(&owner(20), &sets(), &[]).is_err(), "all are taken in this boot");
    let mut store = open(dir, "second");
    assert_eq!(lease_files(dir).len(), 13, "nothing is reclaimed for being old");
    assert_eq!(store.find(&owner(3)).unwrap().len(), 1, "a runtime can still free them one by one");
    store.release(&owner(3)).unwrap();
    store.reserve(&owner(20), &sets(), &[]).unwrap();
    assert_eq!(lease_files(dir).len(), 13);
    // The next one finds none free, and so what is left of the former boot goes.
    drop(store);
    open(dir, "second").reserve(&owner(21), &sets(), &[]).unwrap();
    let owners: HashSet<String> = lease_files(dir).into_values().collect();
    assert_eq!(owners, HashSet::from([owner(20).content(), owner(21).content()]));
    assert!(open(dir, "second").reserve(&owner(21), &sets(), &[]).is_err(), "what was given since stays");
}

#[test]
fn a_requested_address_of_a_former_boot_is_reclaimed() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path(), "first").reserve(&owner(1), &sets(), &[addr(5)]).unwrap();
    assert!(open(dir.path(), "first").reserve(&owner(2), &sets(), &[addr(5)]).is_err());
    open(dir.path(), "second").reserve(&owner(2), &sets(), &[addr(5)]).unwrap();
}

#[test]
fn foreign_leases_are_judged_by_their_time_after_a_boot() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    open(dir, "first").reserve(&owner(1), &sets(), &[addr(2)]).unwrap();
    // In the new boot, before our first call, the reference plugin gave an address.
    fs::write(dir.join("10.0.0.3"), owner(2).content()).unwrap();
    let old = SystemTime::now() - Duration::from_secs(5000);
    fs::File::open(dir.join("10.0.0.2")).unwrap().set_modified(old).unwrap();
    let mut store = open(dir, "second");
    assert!(store.reserve(&owner(3), &sets(), &[addr(3)]).is_err(), "the lease of this boot is respected");
    store.reserve(&owner(3), &sets(), &[addr(2)]).expect("the one of the former boot is not");
}

#[test]
fn a_lease_rewritten_in_place_is_its_new_owner_s() {
    for new in [owner(2), LeaseOwner { container: "c2".into(), ifname: None }] {
        for by_old_owner_first in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let dir = dir.path();
            open(dir, "boot").reserve(&owner(1), &sets(), &[addr(5)]).unwrap();
            fs::write(dir.join("10.0.0.5"), new.content()).unwrap();
            if by_old_owner_first {
                open(dir, "boot").release(&owner(1)).unwrap();
                assert_eq!(lease_files(dir).len(), 1, "it is not the old owner's to free");
            }
            assert_eq!(open(dir, "boot").find(&owner(2)).unwrap(), [addr(5)]);
            open(dir, "boot").release(&owner(2)).unwrap();
            assert_eq!(lease_files(dir), HashMap::new());
        }
    }
}

#[test]
fn failures_are_told_in_the_reference_s_words_where_callers_match_them() {
    let dir = tempfile::tempdir().unwrap();
    let ranges = json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24"}]]);
    let base = json!({"name": "net", "ipam": {"type": "host-local", "dataDir": dir.path(), "ranges": ranges},
        "args": {"cni": {"ips": ["10.1.2.88", "10.1.2.77"]}}});
    for (version, words) in [
        ("0.1.0", "CNI version 0.1.0 does not support more than 1 address per family"),
        ("0.2.0", "CNI version 0.2.0 does not support more than 1 address per family"),
        ("0.3.1", "failed to allocate all requested IPs: 10.1.2.77"),
    ] {
        let mut conf = base.clone();
        conf["cniVersion"] = version.into();
        let env = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "c"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/nowhere"),
            ("CNI_PATH", "/nowhere"),
        ];
        let env = env.into_iter().fold(Env::default(), |env, (name, value)| env.with(name, value));
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let plugin = keelson_cni::plugin("host-local").unwrap();
        assert_eq!(run(plugin, &env, &mut conf.to_string().as_bytes(), &mut out, &mut err), 1);
        let told: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(told["msg"], words);
    }
}
