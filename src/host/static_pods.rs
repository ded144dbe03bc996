//! Pods from a directory of manifests. Every change of the directory yields the complete set anew: what runs and what
//! is wrong, so that nobody has to remember what a missing file once said.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use keelson_core::manifest::{self, CONFIG_SEEN, MAX_MANIFEST_BYTES, ManifestError, Origin, StaticPod};
use rustix::fs::OFlags;
use tokio::sync::watch;

use crate::watch::DirWatch;

/// What one look at the directory found, in the order of file names.
pub type ManifestSet = Vec<Result<StaticPod, ManifestError>>;

/// How often the directory is read although nothing was reported: a network filesystem reports nothing. The kubelet's
/// fileCheckFrequency.
pub const DEFAULT_RESCAN: Duration = Duration::from_secs(20);

#[derive(Debug, Clone)]
pub struct Settings {
    /// The directory, or a single file.
    pub path: PathBuf,
    pub node_name: String,
    pub rescan: Duration,
}

impl Settings {
    pub fn new(path: impl Into<PathBuf>, node_name: impl Into<String>) -> Self {
        Self { path: path.into(), node_name: node_name.into(), rescan: DEFAULT_RESCAN }
    }
}

/// Reads the directory, publishes what it found, and does so again after every change, until nobody listens any more.
pub async fn run(settings: Settings, sets: watch::Sender<Option<Arc<ManifestSet>>>) {
    let mut previous: Arc<ManifestSet> = Arc::default();
    let mut watch = DirWatch::new(&settings.path)
        .inspect_err(|e| tracing::warn!(path = %settings.path.display(), error = %e, "cannot watch the manifests; looking at intervals instead"))
        .ok();
    loop {
        if let Some(w) = &mut watch
            && let Err(e) = w.arm()
        {
            tracing::warn!(path = %settings.path.display(), error = %e, "cannot watch the manifests");
        }
        let Some(set) = look(&settings, &previous).await else { return };
        let changed = sets.send_if_modified(|current| {
            let differs = current.as_ref().is_none_or(|c| **c != *set);
            if differs {
                *current = Some(Arc::clone(&set));
            }
            differs
        });
        if changed {
            tracing::debug!(path = %settings.path.display(), manifests = set.len(), "manifests read");
        }
        previous = set;
        tokio::select! {
            () = sets.closed() => return,
            () = change(watch.as_mut()) => {}
            () = tokio::time::sleep(settings.rescan) => {}
        }
    }
}

/// Off the async threads: the directory may lie on a filesystem that hangs. None when the runtime is shutting down.
async fn look(settings: &Settings, previous: &Arc<ManifestSet>) -> Option<Arc<ManifestSet>> {
    let (settings, previous) = (settings.clone(), Arc::clone(previous));
    let scan = move || scan(&settings.path, &settings.node_name, Timestamp::now(), &previous);
    tokio::task::spawn_blocking(scan).await.ok().map(Arc::new)
}

/// Waits for a reported change; for ever where none can be reported.
async fn change(watch: Option<&mut DirWatch>) {
    match watch {
        Some(watch) => {
            if let Err(e) = watch.changed().await {
                tracing::warn!(error = %e, "the watch of the manifests failed");
                std::future::pending::<()>().await;
            }
        }
        None => std::future::pending().await,
    }
}

/// One look at the directory. A pod that was there before keeps the time at which it was first seen.
pub fn scan(path: &Path, node_name: &str, now: Timestamp, previous: &ManifestSet) -> ManifestSet {
    let files = match candidates(path) {
        Ok(files) => files,
        Err(error) => return vec![Err(error)],
    };
    let mut found = Vec::new();
    for file in files {
        match file {
            Ok(candidate) => {
                let pod = read_file(&candidate.path, node_name, now, previous);
                found.extend(pod.map(|result| (candidate.modified, result)));
            }
            Err(error) => found.push((SystemTime::UNIX_EPOCH, Err(error))),
        }
    }
    settle_names(found)
}

struct Candidate {
    path: PathBuf,
    modified: SystemTime,
}

/// The files to read, by name. Hidden ones are left out, as are directories; links count as what they lead to. A
/// directory that is not there holds nothing.
fn candidates(path: &Path) -> Result<Vec<Result<Candidate, ManifestError>>, ManifestError> {
    let modified = |m: &fs::Metadata| m.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    match fs::metadata(path) {
        Ok(m) if m.is_file() => {
            return Ok(vec![Ok(Candidate { path: path.to_owned(), modified: modified(&m) })]);
        }
        Ok(m) if m.is_dir() => {}
        Ok(_) => return Err(trouble(path, "is neither a directory nor a file".into())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(e) => return Err(trouble(path, format!("cannot be looked at: {e}"))),
    }
    let unreadable = |e: std::io::Error| trouble(path, format!("cannot be listed: {e}"));
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable)? {
        names.push(entry.map_err(unreadable)?.file_name());
    }
    names.sort();
    let mut files = Vec::new();
    for name in names.iter().filter(|n| !n.as_encoded_bytes().starts_with(b".")) {
        let file = path.join(name);
        match fs::metadata(&file) {
            Ok(m) if m.is_file() => files.push(Ok(Candidate { path: file, modified: modified(&m) })),
            Ok(m) if m.is_dir() => {}
            Ok(_) => files.push(Err(trouble(&file, "is not a regular file".into()))),
            // Deleted between the listing and now, or a link that leads nowhere.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && file.symlink_metadata().is_err() => {}
            Err(e) => files.push(Err(trouble(&file, format!("cannot be looked at: {e}")))),
        }
    }
    Ok(files)
}

fn trouble(path: &Path, problem: String) -> ManifestError {
    ManifestError { file: path.display().to_string(), line: None, field: None, problem }
}

/// None for a file that vanished meanwhile.
fn read_file(
    path: &Path,
    node_name: &str,
    now: Timestamp,
    previous: &ManifestSet,
) -> Option<Result<StaticPod, ManifestError>> {
    let mut bytes = Vec::new();
    // One byte more than is allowed is enough to know that it is too much.
    let most = MAX_MANIFEST_BYTES as u64 + 1;
    // A pipe that took the file's place meanwhile must not be waited for.
    let open = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path);
    match open.and_then(|f| f.take(most).read_to_end(&mut bytes)) {
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return None,
        Err(e) => return Some(Err(trouble(path, format!("cannot be read: {e}")))),
    }
    let file = path.display().to_string();
    let origin = Origin { file: &file, node_name, seen: now };
    Some(manifest::parse(&origin, &bytes).map(|pod| keep_first_seen(pod, previous)))
}

fn keep_first_seen(mut pod: StaticPod, previous: &ManifestSet) -> StaticPod {
    let seen = |p: &StaticPod| p.pod.metadata.annotations.as_ref().and_then(|a| a.get(CONFIG_SEEN)).cloned();
    let before = previous.iter().flatten().find(|p| p.uid == pod.uid && p.file == pod.file);
    if let Some(first) = before.and_then(seen) {
        Arc::make_mut(&mut pod.pod)
            .metadata
            .annotations
            .get_or_insert_default()
            .insert(CONFIG_SEEN.into(), first);
    }
    pod
}

/// Of manifests that name the same pod, or bring the same uid, the one written last counts; of those the one whose file
/// name comes last. The others are errors that say so.
fn settle_names(found: Vec<(SystemTime, Result<StaticPod, ManifestError>)>) -> ManifestSet {
    let names = |p: &StaticPod| {
        let meta = &p.pod.metadata;
        let name = format!(
            "{}/{}",
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default()
        );
        [format!("pod {name}"), format!("uid {}", p.uid)]
    };
    let mut winners: BTreeMap<String, (SystemTime, String)> = BTreeMap::new();
    for (modified, pod) in &found {
        for name in pod.iter().flat_map(names) {
            let mine = (*modified, pod.as_ref().map(|p| p.file.clone()).unwrap_or_default());
            winners.entry(name).and_modify(|best| *best = best.clone().max(mine.clone())).or_insert(mine);
        }
    }
    let judge = |pod: StaticPod| {
        let loses = names(&pod).into_iter().find_map(|name| {
            let (_, winner) = winners.get(&name)?;
            (*winner != pod.file).then(|| (name, winner.clone()))
        });
        match loses {
            None => Ok(pod),
            Some((name, winner)) => Err(ManifestError {
                file: pod.file,
                line: None,
                field: Some("metadata.name".into()),
                problem: format!(
                    "describes {name}, as {winner} does, which was written later and is the one that counts; rename one of them"
                ),
            }),
        }
    };
    found.into_iter().map(|(_, result)| result.and_then(judge)).collect()
}

#[cfg(test)]
mod tests;
