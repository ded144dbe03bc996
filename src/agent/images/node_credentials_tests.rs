use keelson_core::image::{ImageName, Keyring, Source};
use tempfile::TempDir;

use super::*;

struct Machine {
    dir: TempDir,
    credentials: NodeCredentials,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for place in ["kubelet", "working", "home/.docker", "root/.docker"] {
            fs::create_dir_all(at(place)).unwrap();
        }
        let (home, root) = (at("home"), at("root"));
        let credentials = NodeCredentials::in_places(&at("kubelet"), &at("working"), Some(&home), &root);
        Self { credentials, dir }
    }

    fn write(&self, file: &str, text: &str) {
        let half = self.dir.path().join("half");
        fs::write(&half, text).unwrap();
        fs::rename(half, self.dir.path().join(file)).unwrap();
    }

    fn remove(&self, file: &str) {
        fs::remove_file(self.dir.path().join(file)).unwrap();
    }

    /// Which user the node is at r.io; none where it has no credential.
    async fn user(&self) -> String {
        let mut keyring = Keyring::default();
        keyring.add(&Source::Node, self.credentials.read().await);
        let mut found = keyring.credentials(&ImageName::parse("r.io/x").unwrap());
        if found.is_empty() { "none".into() } else { found.remove(0).credential.username }
    }
}

fn newer(user: &str) -> String {
    format!(r#"{{"auths": {{"r.io": {{"username": "{user}", "password": "p"}}}}, "credsStore": "x"}}"#)
}

fn older(user: &str) -> String {
    format!(r#"{{"r.io": {{"username": "{user}", "password": "p"}}}}"#)
}

#[tokio::test]
async fn the_first_of_a_kubelets_places_counts_and_the_newer_kind_before_the_older() {
    let machine = Machine::new();
    assert_eq!(machine.user().await, "none");
    // From the last place to the first: each hides those before it.
    for (file, user) in [
        ("root/.dockercfg", "8"),
        ("home/.dockercfg", "7"),
        ("working/.dockercfg", "6"),
        ("kubelet/.dockercfg", "5"),
        ("root/.docker/config.json", "4"),
        ("home/.docker/config.json", "3"),
        ("working/config.json", "2"),
        ("kubelet/config.json", "1"),
    ] {
        machine.write(file, &if file.ends_with("json") { newer(user) } else { older(user) });
        assert_eq!(machine.user().await, user, "{file}");
    }
}

#[tokio::test]
async fn a_file_that_changes_is_read_again_and_a_bad_one_gives_way() {
    let machine = Machine::new();
    machine.write("kubelet/config.json", &newer("a"));
    machine.write("root/.docker/config.json", &newer("last"));
    assert_eq!(machine.user().await, "a");
    machine.write("kubelet/config.json", &newer("b"));
    assert_eq!(machine.user().await, "b");
    let long = format!("{}{}", newer("c"), " ".repeat(2 << 20));
    for bad in ["", "{", "[]", &older("c")[..5], &long] {
        machine.write("kubelet/config.json", bad);
        assert_eq!(machine.user().await, "last", "{:.20}", bad);
    }
    machine.remove("kubelet/config.json");
    fs::create_dir(machine.dir.path().join("kubelet/config.json")).unwrap();
    assert_eq!(machine.user().await, "last", "a directory is no file");
    machine.remove("root/.docker/config.json");
    assert_eq!(machine.user().await, "none");
}
