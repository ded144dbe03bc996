//! Two hundred containers at once, some of whose plugins are killed, as a busy runtime would have it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use std::collections::HashSet;
use std::io::Write;
use std::process::Child;
use std::thread;
use std::time::Duration;

use rig::{Container, Ended, Rig, sh};
use serde_json::{Value, json};

const CONTAINERS: usize = 200;

fn conf(rig: &Rig, subnet: &str) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "podnet", "type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true,
        "ipam": {"type": "host-local", "dataDir": rig.data_dir(),
            "ranges": [[{"subnet": subnet}], [{"subnet": "fd00:88::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}
    })
}

/// Starts a plugin for every container before any of them is waited for.
fn start(rig: &Rig, command: &str, conf: &Value, containers: &[&Container]) -> Vec<Child> {
    let text = conf.to_string();
    containers
        .iter()
        .map(|c| {
            let mut child = rig.command(&rig.plugins, "bridge", command, &c.id, &c.path()).spawn().unwrap();
            child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
            child
        })
        .collect()
}

fn ends(children: Vec<Child>) -> Vec<Ended> {
    children.into_iter().map(|c| Ended::from(c.wait_with_output().unwrap())).collect()
}

fn addresses(results: &[Ended], family: usize) -> HashSet<String> {
    results.iter().map(|r| r.json["ips"][family]["address"].as_str().unwrap().to_owned()).collect()
}

fn nothing_is_left(rig: &Rig) {
    assert_eq!(rig.leases("podnet"), []);
    assert!(!sh("ip -o link show type veth").contains("master"));
    let rules = sh("nft list ruleset");
    assert!(!rules.contains("chain masq-") && !rules.contains("jump"), "{rules}");
    let index: Vec<_> = std::fs::read_dir(rig.data_dir().join("podnet/.keelson"))
        .unwrap()
        .flatten()
        .map(|e| e.file_name())
        .collect();
    assert!(index.len() <= 2, "the index holds nobody: {index:?}");
}

#[test]
fn two_hundred_adds_at_once_give_two_hundred_addresses() {
    needs_rig!();
    let rig = Rig::new();
    let conf = conf(&rig, "10.88.0.0/24");
    let containers: Vec<Container> = (0..CONTAINERS).map(|i| Container::new(&format!("c{i}"))).collect();
    let all: Vec<&Container> = containers.iter().collect();
    let results = ends(start(&rig, "ADD", &conf, &all));
    for result in &results {
        assert!(result.ok, "{}", result.stdout);
    }
    assert_eq!(addresses(&results, 0).len(), CONTAINERS);
    assert_eq!(addresses(&results, 1).len(), CONTAINERS);
    assert_eq!(rig.leases("podnet").len(), 2 * CONTAINERS);
    assert_eq!(sh("nft list ruleset").matches("chain masq-").count(), CONTAINERS);
    for result in ends(start(&rig, "DEL", &conf, &all)) {
        assert!(result.ok, "{}", result.stdout);
    }
    nothing_is_left(&rig);
}

#[test]
fn plugins_killed_at_random_and_tried_again_lose_and_double_nothing() {
    needs_rig!();
    let rig = Rig::new();
    // Just enough addresses: one that got lost would be missed.
    let conf = conf(&rig, "10.88.0.0/24");
    let containers: Vec<Container> = (0..CONTAINERS).map(|i| Container::new(&format!("c{i}"))).collect();
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut without: Vec<&Container> = containers.iter().collect();
    let mut killed = 0;
    for round in 0.. {
        let mut children = start(&rig, "ADD", &conf, &without);
        // A third are killed, at moments spread over the time that all of them take.
        let victims: Vec<usize> = (0..children.len()).filter(|_| round < 3 && next() % 3 == 0).collect();
        for victim in victims {
            let _ = children[victim].kill();
            thread::sleep(Duration::from_micros(next() % 3000));
        }
        let mut failed = Vec::new();
        for (container, result) in without.iter().zip(ends(children)) {
            if !result.ok {
                assert!(result.json.is_null(), "only the killed ones fail: {}", result.stdout);
                failed.push(*container);
                killed += 1;
            }
        }
        if failed.is_empty() {
            break;
        }
        // What a runtime does with an ADD that failed: DEL, possibly killed as well, then another try.
        let mut children = start(&rig, "DEL", &conf, &failed);
        for child in children.iter_mut().filter(|_| round < 3 && next() % 3 == 0) {
            let _ = child.kill();
        }
        ends(children);
        for result in ends(start(&rig, "DEL", &conf, &failed)) {
            assert!(result.ok, "{}", result.stdout);
        }
        without = failed;
    }
    assert!(killed > 20, "only {killed} were killed");
    let leases = rig.leases("podnet");
    assert_eq!(leases.len(), 2 * CONTAINERS, "each container has its two addresses");
    let owners: HashSet<&String> = leases.iter().map(|(_, owner)| owner).collect();
    assert_eq!(owners.len(), CONTAINERS);
    assert_eq!(sh("nft list ruleset").matches("chain masq-").count(), CONTAINERS);
    let all: Vec<&Container> = containers.iter().collect();
    let mut children = start(&rig, "DEL", &conf, &all);
    for child in children.iter_mut().filter(|_| next() % 4 == 0) {
        let _ = child.kill();
    }
    ends(children);
    for result in ends(start(&rig, "DEL", &conf, &all)) {
        assert!(result.ok, "{}", result.stdout);
    }
    nothing_is_left(&rig);
}
