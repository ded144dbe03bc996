//! What the tests of this crate share: directories that go away, a pod with volumes, and a source of objects.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Volume};
use keelson_core::ids::PodUid;
use keelson_core::volumes::{Needs, PodVolumes, VolumeOutcome, VolumePlan};
use keelson_host::dirs::{PodDirs, RootDirs};
use keelson_require::Missing;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Gather, Gathered, NoProgress, PodSetup, VolumeManager};

pub fn dir() -> TempDir {
    tempfile::Builder::new().prefix("keelson-volumes-").tempdir().expect("a temporary directory")
}

/// A directory under which this process may mount.
pub fn mountable() -> Result<TempDir, Missing> {
    keelson_require::mounts().map(|()| dir())
}

pub fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(work)
}

pub fn pod_dirs(root: &Path) -> PodDirs {
    RootDirs::new(root).pod(&PodUid::try_from("u-1").expect("uid"))
}

/// ConfigMaps and Secrets by name, each with one key, and who asked for something.
#[derive(Default)]
pub struct Objects {
    pub texts: Mutex<BTreeMap<String, String>>,
    pub asked: Mutex<Vec<String>>,
    pub renew_at: Option<Timestamp>,
}

impl Objects {
    pub fn set(&self, name: &str, text: &str) {
        self.texts.lock().expect("lock").insert(name.to_owned(), text.to_owned());
    }
    pub fn take_asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().expect("lock"))
    }
}

impl Gather for Objects {
    fn gather<'a>(&'a self, volume: &'a str, needs: Needs) -> BoxFuture<'a, Result<Gathered, String>> {
        self.asked.lock().expect("lock").push(volume.to_owned());
        let texts = self.texts.lock().expect("lock");
        let mut gathered = Gathered { renew_at: self.renew_at, ..Gathered::default() };
        for name in needs.config_maps {
            let found = texts.get(&name).map(|text| ConfigMap {
                data: Some([("key".to_owned(), text.clone())].into()),
                ..Default::default()
            });
            gathered.config_maps.extend(found.map(|object| (name, Arc::new(object))));
        }
        for name in needs.secrets {
            let found = texts.get(&name).map(|text| Secret {
                data: Some([("key".to_owned(), k8s_openapi::ByteString(text.clone().into_bytes()))].into()),
                ..Default::default()
            });
            gathered.secrets.extend(found.map(|object| (name, Arc::new(object))));
        }
        gathered.tokens.extend(needs.tokens.into_iter().map(|need| (need, "token".to_owned())));
        Box::pin(async { Ok(gathered) })
    }
}

/// A pod with volumes on this machine, as a worker holds it.
pub struct Rig {
    pub manager: VolumeManager,
    pub setup: Arc<PodSetup>,
    pub objects: Objects,
    pub states: PodVolumes,
}

impl Rig {
    pub fn new(root: &Path, volumes: Value, spec: Value) -> Self {
        let mut pod = json!({"metadata": {"name": "p", "namespace": "ns", "labels": {"a": "b"}}, "spec": {"containers": []}});
        let fields = pod["spec"].as_object_mut().expect("spec");
        fields.extend(spec.as_object().expect("an object").clone());
        fields.insert("volumes".into(), volumes);
        let pod: Pod = serde_json::from_value(pod).expect("the test's pod");
        let setup = PodSetup {
            pod: Arc::new(pod),
            dirs: pod_dirs(root),
            node_allocatable: BTreeMap::new(),
            progress: Arc::new(NoProgress),
        };
        Self {
            manager: VolumeManager::new(),
            setup: Arc::new(setup),
            objects: Objects::default(),
            states: PodVolumes::default(),
        }
    }

    pub fn volumes(&self) -> Vec<Volume> {
        self.setup.pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).cloned().collect()
    }

    pub fn dirs(&self) -> &PodDirs {
        &self.setup.dirs
    }

    /// One round at an instant: what was planned, and the messages of what failed.
    pub fn round(&mut self, now: Timestamp) -> (VolumePlan, Vec<String>) {
        let plan = self.states.plan(&self.volumes(), now);
        let outcomes = wait(self.manager.carry_out(&plan, &self.setup, &self.objects));
        let failures = outcomes.iter().filter_map(VolumeOutcome::failure).map(str::to_owned).collect();
        outcomes.into_iter().for_each(|outcome| self.states.apply(outcome, now));
        self.states.review(&self.volumes(), now);
        (plan, failures)
    }

    pub fn teardown(&self) {
        wait(self.manager.teardown(self.dirs())).expect("teardown");
    }
}

/// Unmounts whatever a test has left, so that a failed one leaves nothing behind.
impl Drop for Rig {
    fn drop(&mut self) {
        wait(self.manager.teardown(&self.setup.dirs)).ok();
    }
}
