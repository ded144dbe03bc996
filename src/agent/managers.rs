//! Who has which CPUs, and whose memory comes from where: decided by the core, written to the kubelet's files, and made true
//! of the containers by whoever makes them and by `upkeep::cpusets`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use keelson_core::admission::Rejection;
use keelson_core::cpu_manager::checkpoint::{self as cpu_file, BadCheckpoint};
use keelson_core::cpuset::CpuSet;
use keelson_core::ids::PodUid;
use keelson_core::memory_manager::checkpoint as memory_file;
use keelson_core::resource_managers::{Binding, Held, ResourceManagers, Seen};
use keelson_kit::metrics::Text;
use keelson_kit::whole_file;
use tokio::sync::watch;

mod counts;

use counts::Counts;

const CPU_FILE: &str = "cpu_manager_state";
const MEMORY_FILE: &str = "memory_manager_state";

pub struct Managers {
    configured: ResourceManagers,
    held: Mutex<Held>,
    /// It was not written down, or not so that it can be gone on from.
    lost: AtomicBool,
    /// Counts changes of who has what.
    changed: watch::Sender<u64>,
    dir: PathBuf,
    counts: Counts,
}

impl Managers {
    /// Goes on from what was written last, by this agent or by a kubelet.
    pub fn open(configured: ResourceManagers, dir: &Path) -> Self {
        let (held, lost) = match read(&configured, dir) {
            Ok(held) => (held, false),
            Err(NotRead::Missing) => (configured.initial(), true),
            Err(NotRead::Bad(file, why)) => {
                let file = dir.join(file);
                tracing::warn!(file = %file.display(), why, "what was given to containers will be found out from what runs");
                (configured.initial(), true)
            }
        };
        Self {
            configured,
            held: Mutex::new(held),
            lost: AtomicBool::new(lost),
            changed: watch::Sender::new(0),
            dir: dir.into(),
            counts: Counts::default(),
        }
    }

    /// What was found to run, before the first pod is admitted.
    pub fn found(&self, running: &[Seen]) {
        let mut held = self.lock();
        if self.lost.swap(false, Ordering::AcqRel) {
            *held = self.configured.rebuilt(running);
        }
        self.write(&held);
    }

    /// Gives a pod what it asks for, or says why it cannot. One that has it keeps it.
    pub fn admit(&self, pod: &Pod, uid: &PodUid) -> Result<(), Rejection> {
        let began = Instant::now();
        let result = self.change(|configured, held| configured.admit(held, pod, uid));
        self.counts.admitted(&self.configured, pod, &result, began.elapsed());
        result.map_err(Rejection::from)
    }

    /// Nothing of the pod runs any more.
    pub fn release(&self, uid: &PodUid) {
        self.change(|configured, held| configured.release(held, uid));
    }

    /// Takes back what pods have that are not here any more.
    pub fn keep_only(&self, here: impl Fn(&PodUid) -> bool) {
        let gone: BTreeSet<PodUid> = {
            let held = self.lock();
            let all = held.cpu.exclusive.keys().chain(held.memory.blocks.keys());
            all.filter(|uid| !here(uid)).cloned().collect()
        };
        gone.iter().for_each(|uid| self.release(uid));
    }

    /// What a container is to run on now.
    pub fn binding(&self, uid: &PodUid, container: &str) -> Binding {
        self.configured.binding(&self.lock(), uid, container)
    }

    /// Containers that have CPUs of their own which are not among these.
    pub fn on_others_than(&self, online: &CpuSet) -> Vec<(PodUid, String, CpuSet)> {
        let held = self.lock();
        let all = held.cpu.exclusive.iter().flat_map(|(uid, of_pod)| of_pod.iter().map(move |c| (uid, c)));
        let lost = all.map(|(uid, (name, cpus))| (uid.clone(), name.clone(), cpus.difference(online)));
        lost.filter(|(_, _, lost)| !lost.is_empty()).collect()
    }

    pub fn write_metrics(&self, text: &mut Text) {
        self.counts.write(text, &self.configured, &self.lock());
    }

    /// Whether CPUs are given out at all.
    pub fn binds_cpus(&self) -> bool {
        self.configured.cpu.is_some()
    }

    /// Wakes whenever somebody has other CPUs than before.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn change<T>(&self, change: impl FnOnce(&ResourceManagers, &mut Held) -> T) -> T {
        let mut held = self.lock();
        let before = held.clone();
        let result = change(&self.configured, &mut held);
        if *held != before {
            self.write(&held);
            drop(held);
            self.changed.send_modify(|n| *n += 1);
        }
        result
    }

    /// A file that cannot be written costs what a lost one costs: the next agent finds out from what runs.
    fn write(&self, held: &Held) {
        let cpu = cpu_file::encode(cpu_policy(&self.configured), &held.cpu);
        let memory = memory_file::encode(memory_policy(&self.configured), &held.memory);
        for (name, text) in [(CPU_FILE, cpu), (MEMORY_FILE, memory)] {
            if let Err(error) =
                whole_file::replace(&self.dir.join(name), 0o600, |file| file.write_all(text.as_bytes()))
            {
                tracing::warn!(file = %self.dir.join(name).display(), %error, "what was given to containers is not written down");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cpu_policy(configured: &ResourceManagers) -> &'static str {
    if configured.cpu.is_some() { "static" } else { "none" }
}

fn memory_policy(configured: &ResourceManagers) -> &'static str {
    if configured.memory.is_some() { "Static" } else { "None" }
}

enum NotRead {
    /// One of them is not there.
    Missing,
    Bad(&'static str, String),
}

fn read(configured: &ResourceManagers, dir: &Path) -> Result<Held, NotRead> {
    let text = |name: &'static str| match fs::read_to_string(dir.join(name)) {
        Ok(text) => Ok(text),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(NotRead::Missing),
        Err(e) => Err(NotRead::Bad(name, e.to_string())),
    };
    let bad = |name| move |why: BadCheckpoint| NotRead::Bad(name, why.to_string());
    let cpu = cpu_file::decode(&text(CPU_FILE)?, cpu_policy(configured)).map_err(bad(CPU_FILE))?;
    let memory =
        memory_file::decode(&text(MEMORY_FILE)?, memory_policy(configured)).map_err(bad(MEMORY_FILE))?;
    let held = Held::new(cpu, memory);
    configured.check(&held).map_err(|why| NotRead::Bad(CPU_FILE, why))?;
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_managers_writes_what_a_kubelet_writes() {
        let dir = tempfile::tempdir().unwrap();
        let managers = Managers::open(ResourceManagers::default(), dir.path());
        managers.found(&[]);
        let cpu = fs::read_to_string(dir.path().join(CPU_FILE)).unwrap();
        assert_eq!(cpu, r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#);
        let memory = fs::read_to_string(dir.path().join(MEMORY_FILE)).unwrap();
        assert_eq!(memory, r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#);
        let uid = PodUid::try_from("a".to_owned()).unwrap();
        assert_eq!(managers.binding(&uid, "main"), Binding::default());
    }

    #[test]
    fn a_file_that_is_cut_is_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        Managers::open(ResourceManagers::default(), dir.path()).found(&[]);
        let good = fs::read_to_string(dir.path().join(CPU_FILE)).unwrap();
        fs::write(dir.path().join(CPU_FILE), &good[..10]).unwrap();
        Managers::open(ResourceManagers::default(), dir.path()).found(&[]);
        assert_eq!(fs::read_to_string(dir.path().join(CPU_FILE)).unwrap(), good);
    }
}
