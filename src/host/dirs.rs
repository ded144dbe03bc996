//! Where the agent keeps things on disk. The layout is the kubelet's, so that either can take over from the other.

use std::fs::{self, DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use keelson_core::ids::PodUid;

use crate::mountinfo;
use crate::path_error::{At, PathError};
use crate::tree;

/// The agent's own directories under one root, /var/lib/kubelet unless configured otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootDirs {
    root: PathBuf,
    pods: PathBuf,
}

/// One pod's directories: ROOT/pods/UID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDirs {
    uid: PodUid,
    path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error("pod directory {} still has something mounted in it: {}", pod.display(), list(mounts))]
    StillMounted { pod: PathBuf, mounts: Vec<PathBuf> },
    #[error(transparent)]
    Path(#[from] PathError),
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl RootDirs {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self { pods: root.join("pods"), root }
    }

    /// The same directories, made where they are missing, by the names that the kernel has for them: what is mounted in
    /// them is found by its path, and somebody may have put them on another disk behind a link.
    pub fn resolved(self) -> Result<Self, PathError> {
        self.ensure()?;
        let real = |path: &Path| fs::canonicalize(path).at("resolve", path);
        Ok(Self { root: real(&self.root)?, pods: real(&self.pods)? })
    }

    pub fn path(&self) -> &Path {
        &self.root
    }
    pub fn pods(&self) -> PathBuf {
        self.pods.clone()
    }
    pub fn plugins_registry(&self) -> PathBuf {
        self.root.join("plugins_registry")
    }
    pub fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }
    pub fn pod(&self, uid: &PodUid) -> PodDirs {
        PodDirs { uid: uid.clone(), path: self.pods.join(uid.as_str()) }
    }

    /// Makes the directories that everything else lies in.
    pub fn ensure(&self) -> Result<(), PathError> {
        make(&self.root, 0o755)?;
        for dir in
            [self.pods(), self.root.join("plugins"), self.plugins_registry(), self.root.join("pod-resources")]
        {
            make(&dir, 0o750)?;
        }
        make(&self.pki(), 0o700)
    }

    /// The pods that have a directory, whether anybody still wants them or not. What is no pod is not named.
    pub fn list_pods(&self) -> Result<Vec<PodUid>, PathError> {
        let pods = self.pods();
        let mut found = Vec::new();
        for entry in entries(&pods)? {
            let is_dir = entry.file_type().is_ok_and(|t| t.is_dir());
            let uid = entry.file_name().to_str().map(PodUid::try_from);
            if let (true, Some(Ok(uid))) = (is_dir, uid) {
                found.push(uid);
            }
        }
        found.sort();
        Ok(found)
    }
}

impl PodDirs {
    pub fn uid(&self) -> &PodUid {
        &self.uid
    }
    pub fn path(&self) -> &Path {
        &self.path
    }
    pub fn volumes(&self) -> PathBuf {
        self.path.join("volumes")
    }
    /// `plugin` is a name such as `kubernetes.io~empty-dir`, `volume` the volume's name in the pod.
    pub fn volume(&self, plugin: &str, volume: &str) -> PathBuf {
        self.volumes().join(plugin).join(volume)
    }
    /// The names of the volumes of one kind that the pod has a directory for.
    pub fn list_volumes(&self, plugin: &str) -> Result<Vec<String>, PathError> {
        let path = self.volumes().join(plugin);
        let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|t| t.is_dir());
        let mut found = Vec::new();
        for entry in entries(&path)?.into_iter().filter(is_dir) {
            found.extend(entry.file_name().into_string());
        }
        found.sort();
        Ok(found)
    }
    /// Where the bind mounts of sub-paths lie: volume-subpaths/VOLUME/CONTAINER/INDEX.
    pub fn subpaths(&self) -> PathBuf {
        self.path.join("volume-subpaths")
    }
    pub fn containers(&self) -> PathBuf {
        self.path.join("containers")
    }
    pub fn container(&self, name: &str) -> PathBuf {
        self.containers().join(name)
    }
    pub fn etc_hosts(&self) -> PathBuf {
        self.path.join("etc-hosts")
    }
    pub fn plugins(&self) -> PathBuf {
        self.path.join("plugins")
    }
    /// Which ids of the host the pod's own users have.
    pub fn user_namespace(&self) -> PathBuf {
        self.path.join("userns")
    }

    /// The file that says of a volume that it was made ready once: plugins/PLUGIN/VOLUME/ready.
    pub fn ready_mark(&self, plugin: &str, volume: &str) -> PathBuf {
        self.plugins().join(plugin).join(volume).join("ready")
    }

    /// Makes the directories of the pod, not those of its volumes and containers.
    pub fn ensure(&self) -> Result<(), PathError> {
        for dir in [self.path.clone(), self.volumes(), self.plugins(), self.containers()] {
            make(&dir, 0o750)?;
        }
        Ok(())
    }

    pub fn exists(&self) -> bool {
        self.path.symlink_metadata().is_ok()
    }

    /// Removes everything of the pod, unless anything is mounted in it: then nothing is touched, since what is behind a
    /// mount is not the pod's to delete.
    pub fn remove(&self) -> Result<(), RemoveError> {
        let mounts = mountinfo::mounts_under(&self.path)?;
        if !mounts.is_empty() {
            let mounts = mounts.into_iter().map(|m| m.point).collect();
            return Err(RemoveError::StillMounted { pod: self.path.clone(), mounts });
        }
        Ok(tree::remove(&self.path)?)
    }
}

/// What a directory holds. One that is not there holds nothing.
fn entries(path: &Path) -> Result<Vec<fs::DirEntry>, PathError> {
    match fs::read_dir(path) {
        Ok(entries) => entries.collect::<Result<_, _>>().at("list", path),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(vec![]),
        Err(e) => Err(PathError::new("list", path, e)),
    }
}

/// Makes a directory and its missing parents. One that is there is left as it is, unless it is something else.
pub fn make(path: &Path, mode: u32) -> Result<(), PathError> {
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => return Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => return Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(PathError::new("make the directory", path, e)),
    }
    DirBuilder::new().recursive(true).mode(mode).create(path).at("make the directory", path)
}

/// Makes an empty file that says something by being there, and the directories to it.
pub fn make_mark(path: &Path) -> Result<(), PathError> {
    if let Some(parent) = path.parent() {
        make(parent, 0o750)?;
    }
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o640)
        .open(path)
        .at("make", path)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::testing;

    fn uid(text: &str) -> PodUid {
        PodUid::try_from(text).expect("uid")
    }

    #[test]
    fn the_layout_is_the_one_other_tools_know() {
        let pod = RootDirs::new("/var/lib/kubelet").pod(&uid("u-1"));
        assert_eq!(
            pod.volume("kubernetes.io~empty-dir", "data"),
            Path::new("/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~empty-dir/data")
        );
        assert_eq!(pod.container("main"), Path::new("/var/lib/kubelet/pods/u-1/containers/main"));
        assert_eq!(pod.etc_hosts(), Path::new("/var/lib/kubelet/pods/u-1/etc-hosts"));
    }

    #[test]
    fn directories_are_made_listed_and_removed() {
        let temp = testing::dir();
        let root = RootDirs::new(temp.path().join("a/b"));
        assert!(root.list_pods().expect("nothing there yet").is_empty());
        root.ensure().expect("root");
        root.ensure().expect("again");
        let pod = root.pod(&uid("u-2"));
        pod.ensure().expect("pod");
        root.pod(&uid("u-1")).ensure().expect("pod");
        fs::write(root.pods().join("stray-file"), "").expect("write");
        assert_eq!(root.list_pods().expect("list"), [uid("u-1"), uid("u-2")]);
        let mode = fs::metadata(pod.path()).expect("stat").permissions().mode();
        assert_eq!(mode & 0o777, 0o750);
        pod.remove().expect("remove");
        pod.remove().expect("again");
        assert!(!pod.exists());
    }

    #[test]
    fn links_on_the_way_are_resolved_once() {
        let temp = testing::dir();
        let real = fs::canonicalize(temp.path()).expect("a real path");
        for dir in ["disk/kubelet", "other-disk/pods"] {
            fs::create_dir_all(real.join(dir)).expect("mkdir");
        }
        std::os::unix::fs::symlink("disk/kubelet", real.join("kubelet")).expect("link");
        std::os::unix::fs::symlink("../../other-disk/pods", real.join("disk/kubelet/pods")).expect("link");
        let root = RootDirs::new(real.join("kubelet")).resolved().expect("resolved");
        assert_eq!(root.path(), real.join("disk/kubelet"));
        assert_eq!(root.pod(&uid("u")).path(), real.join("other-disk/pods/u"));
        assert!(RootDirs::new(real.join("not/yet")).resolved().is_ok(), "what is missing is made");
    }

    #[test]
    fn a_pod_with_a_mount_is_not_removed() {
        let temp = keelson_require::require!(testing::mountable());
        let root = RootDirs::new(temp.path());
        let pod = root.pod(&uid("u"));
        let volume = pod.volume("kubernetes.io~empty-dir", "m");
        fs::create_dir_all(&volume).expect("mkdir");
        rustix::mount::mount("tmpfs", &volume, "tmpfs", rustix::mount::MountFlags::empty(), None)
            .expect("mount");
        let refused = pod.remove();
        rustix::mount::unmount(&volume, rustix::mount::UnmountFlags::DETACH).expect("unmount");
        match refused {
            Err(RemoveError::StillMounted { mounts, .. }) => {
                assert_eq!(mounts, std::slice::from_ref(&volume))
            }
            other => panic!("{other:?}"),
        }
        assert!(volume.exists());
        pod.remove().expect("remove after unmounting");
    }
}
