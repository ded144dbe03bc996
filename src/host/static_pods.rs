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

use crate::logs::{Writers, writers};
use crate::watch::DirWatch;

/// What one scan of the directory found, in the order of file names.
pub type ManifestSet = Vec<Result<StaticPod, ManifestError>>;

/// How often the directory is read although nothing was reported: a network filesystem reports nothing. The kubelet's
/// fileCheckFrequency.
pub const DEFAULT_RESCAN: Duration = Duration::from_secs(20);

/// A file that somebody has open for writing is read when it is closed, or when nothing was written to it for so long.
const WRITING: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct ManifestSettings {
    /// The directory, or a single file.
    pub path: PathBuf,
    pub node_name: String,
    pub rescan: Duration,
}

impl ManifestSettings {
    pub fn new(path: impl Into<PathBuf>, node_name: impl Into<String>) -> Self {
        Self { path: path.into(), node_name: node_name.into(), rescan: DEFAULT_RESCAN }
    }
}

/// Reads the directory, publishes what it found, and does so again after every change, until nobody listens any more.
pub async fn run(settings: ManifestSettings, sets: watch::Sender<Option<Arc<ManifestSet>>>) {
    let mut previous: Arc<ManifestSet> = Arc::default();
    let mut watch = DirWatch::new(&settings.path)
        .inspect_err(|e| tracing::warn!(path = %settings.path.display(), error = %e, "cannot watch the manifests; scanning at intervals instead"))
        .ok();
    loop {
        if let Some(w) = &mut watch
            && let Err(e) = w.arm()
        {
            tracing::warn!(path = %settings.path.display(), error = %e, "cannot watch the manifests");
        }
        let Some(Scan { set, unfinished }) = rescan(&settings, &previous).await else { return };
        let set = Arc::new(set);
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
        let pause = if unfinished { settings.rescan.min(WRITING) } else { settings.rescan };
        tokio::select! {
            () = sets.closed() => return,
            () = change(watch.as_mut()) => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Off the async threads: the directory may lie on a filesystem that hangs. None when the runtime is shutting down.
async fn rescan(settings: &ManifestSettings, previous: &Arc<ManifestSet>) -> Option<Scan> {
    let (settings, previous) = (settings.clone(), Arc::clone(previous));
    let scan = move || scan(&settings.path, &settings.node_name, Timestamp::now(), &previous);
    tokio::task::spawn_blocking(scan).await.ok()
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

/// What one look at the directory found.
#[derive(Debug)]
pub struct Scan {
    pub set: ManifestSet,
    /// A file is being written. What was known of it stays until it is done.
    pub unfinished: bool,
}

/// One scan of the directory. A pod that was there before keeps the time at which it was first seen; one whose file or
/// directory cannot be read now stays as it was: only what is seen to be gone is gone.
pub fn scan(path: &Path, node_name: &str, now: Timestamp, previous: &ManifestSet) -> Scan {
    let files = match candidates(path) {
        Ok(files) => files,
        Err(error) => {
            let known = previous.iter().filter(|found| found.is_ok()).cloned();
            return Scan { set: known.chain([Err(error)]).collect(), unfinished: false };
        }
    };
    let mut found = Vec::new();
    let mut unfinished = false;
    for Candidate { path, modified } in files {
        let file = path.display().to_string();
        let known = previous.iter().filter(|found| file_of(found) == file).cloned();
        match modified.and_then(|modified| Ok((modified, read_file(&path, modified)?))) {
            Ok((_, Reading::Gone)) => {}
            Ok((modified, Reading::Unfinished)) => {
                unfinished = true;
                found.extend(known.map(|known| (modified, known)));
            }
            Ok((modified, Reading::Whole(bytes))) => {
                let origin = Origin { file: &file, node_name, seen: now };
                let pod = manifest::parse(&origin, &bytes).map(|pod| keep_first_seen(pod, previous));
                found.push((modified, pod));
            }
            Err(problem) => {
                let known = known.filter(|found| found.is_ok());
                found.extend(
                    known.chain([Err(trouble(&path, problem))]).map(|one| (SystemTime::UNIX_EPOCH, one)),
                );
            }
        }
    }
    Scan { set: settle_names(found), unfinished }
}

fn file_of(found: &Result<StaticPod, ManifestError>) -> &str {
    match found {
        Ok(pod) => &pod.file,
        Err(error) => &error.file,
    }
}

struct Candidate {
    path: PathBuf,
    /// When it was written last, or why it is no manifest.
    modified: Result<SystemTime, String>,
}

/// The files to read, by name. Hidden ones are left out, as are directories; links count as what they lead to. A
/// directory that is not there holds nothing.
fn candidates(path: &Path) -> Result<Vec<Candidate>, ManifestError> {
    let modified = |m: &fs::Metadata| Ok(m.modified().unwrap_or(SystemTime::UNIX_EPOCH));
    match fs::metadata(path) {
        Ok(m) if m.is_file() => {
            return Ok(vec![Candidate { path: path.to_owned(), modified: modified(&m) }]);
        }
        Ok(m) if m.is_dir() => {}
        Ok(_) => return Err(trouble(path, "is neither a directory nor a file".into())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(e) => return Err(trouble(path, format!("cannot be read: {e}"))),
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
            Ok(m) if m.is_file() => files.push(Candidate { path: file, modified: modified(&m) }),
            Ok(m) if m.is_dir() => {}
            Ok(_) => files.push(Candidate { path: file, modified: Err("is not a regular file".into()) }),
            // Deleted between the listing and now, or a link that leads nowhere.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && file.symlink_metadata().is_err() => {}
            Err(e) => files.push(Candidate { path: file, modified: Err(format!("cannot be read: {e}")) }),
        }
    }
    Ok(files)
}

fn trouble(path: &Path, problem: String) -> ManifestError {
    ManifestError { file: path.display().to_string(), line: None, field: None, problem }
}

enum Reading {
    Whole(Vec<u8>),
    /// Somebody is writing it.
    Unfinished,
    /// It vanished meanwhile.
    Gone,
}

fn read_file(path: &Path, modified: SystemTime) -> Result<Reading, String> {
    let cannot = |e: std::io::Error| format!("cannot be read: {e}");
    // A pipe that took the file's place meanwhile must not be waited for.
    let open = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path);
    let file = match open {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Reading::Gone),
        Err(e) => return Err(cannot(e)),
    };
    // Its end is reported. A writer that never closes, or a clock that was set back, is not waited for.
    let lately = modified.elapsed().is_ok_and(|since| since < WRITING);
    if lately && writers(&file) == Writers::Some {
        return Ok(Reading::Unfinished);
    }
    let mut bytes = Vec::new();
    // One byte more than is allowed is enough to know that it is too much.
    file.take(MAX_MANIFEST_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(cannot)?;
    Ok(Reading::Whole(bytes))
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
