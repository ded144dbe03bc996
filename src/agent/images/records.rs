//! The files under image_manager: what was pulled with whose credentials, and which pulls are under way. Each is written beside its
//! place and renamed, so that nobody reads half of one.

use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use keelson_core::image::{PullCredentials, PullIntent, PulledRecord, file_name, without_tag};
use keelson_kit::whole_file;

/// A record has a line for each secret.
const MOST_BYTES: u64 = 16 << 20;

#[derive(Clone)]
pub(super) struct Records(Arc<Files>);

struct Files {
    pulling: PathBuf,
    pulled: PathBuf,
    /// Records are read, changed and written back.
    changing: Mutex<()>,
}

impl Records {
    pub fn new(root_dir: &Path) -> Self {
        let dir = root_dir.join("image_manager");
        let files =
            Files { pulling: dir.join("pulling"), pulled: dir.join("pulled"), changing: Mutex::default() };
        Self(Arc::new(files))
    }

    /// The record of an image that is here, and whether a pull under that name had begun.
    pub async fn about(&self, image: &str, id: &str) -> Result<(Option<PulledRecord>, bool), String> {
        let (image, id) = (image.to_owned(), id.to_owned());
        self.blocking(move |files| {
            let record = files.record(&id)?;
            Ok((record, files.intent_path(&image).try_exists()?))
        })
        .await
    }

    pub async fn intend(&self, image: &str) -> Result<(), String> {
        let image = image.to_owned();
        self.blocking(move |files| write(&files.intent_path(&image), &PullIntent::new(&image).encode())).await
    }

    pub async fn forget_intent(&self, image: &str) {
        let name = image.to_owned();
        let forgotten = self.blocking(move |files| files.remove_intent(&name)).await;
        if let Err(error) = forgotten {
            tracing::warn!(error, image, "the intent of a pull that failed stays on record");
        }
    }

    /// The image came, for those.
    pub async fn pulled(&self, image: &str, id: &str, who: PullCredentials, now: Timestamp) {
        self.note(image, id, move |files, image, id| {
            files.admit(image, id, &who, now)?;
            // Only now: an image without a record would count as one that was always there.
            files.remove_intent(image)
        })
        .await;
    }

    /// The image is here, and those may use it.
    pub async fn admit(&self, image: &str, id: &str, who: PullCredentials, now: Timestamp) {
        self.note(image, id, move |files, image, id| files.admit(image, id, &who, now)).await;
    }

    /// A pull whose end nobody saw did bring the image, for nobody that is known.
    pub async fn settle_intent(&self, image: &str, id: &str) {
        self.note(image, id, |files, image, id| {
            if files.intent_path(image).try_exists()? {
                files.admit(image, id, &PullCredentials::default(), Timestamp::now())?;
                files.remove_intent(image)?;
            }
            Ok(())
        })
        .await;
    }

    /// The images whose pulls an earlier agent began and did not see the end of.
    pub async fn earlier_intents(&self) -> Vec<String> {
        let read = self.blocking(|files| files.intents()).await;
        read.unwrap_or_else(|error| {
            tracing::warn!(error, "pulls of an earlier agent are not known");
            vec![]
        })
    }

    async fn note(
        &self,
        image: &str,
        id: &str,
        change: impl FnOnce(&Files, &str, &str) -> io::Result<()> + Send + 'static,
    ) {
        let (name, id) = (image.to_owned(), id.to_owned());
        let noted = self.blocking(move |files| {
            let _changing = files.changing.lock().unwrap_or_else(PoisonError::into_inner);
            change(files, &name, &id)
        });
        if let Err(error) = noted.await {
            tracing::warn!(error, image, "who may use the image is not on record; it will be pulled again");
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Files) -> io::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        let files = self.0.clone();
        let done = tokio::task::spawn_blocking(move || work(&files)).await;
        done.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
    }
}

impl Files {
    fn intent_path(&self, image: &str) -> PathBuf {
        self.pulling.join(file_name(image))
    }

    fn record(&self, id: &str) -> io::Result<Option<PulledRecord>> {
        let path = self.pulled.join(file_name(id));
        let text = match read_bounded(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(named(&path, e)),
        };
        let record = PulledRecord::decode(&text).map_err(|e| named(&path, io::Error::other(e)))?;
        Ok(Some(record).filter(|record| record.image_ref == id))
    }

    fn admit(&self, image: &str, id: &str, who: &PullCredentials, now: Timestamp) -> io::Result<()> {
        let known = self.record(id).unwrap_or_else(|error| {
            tracing::warn!(%error, "a record of a pulled image is written anew");
            None
        });
        let is_new = known.is_none();
        let mut record = known.unwrap_or_else(|| PulledRecord::new(id, now));
        if record.admit(without_tag(image), who, now) || is_new {
            write(&self.pulled.join(file_name(id)), &record.encode())?;
        }
        Ok(())
    }

    fn remove_intent(&self, image: &str) -> io::Result<()> {
        match fs::remove_file(self.intent_path(image)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    fn intents(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.pulling) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            Err(e) => return Err(named(&self.pulling, e)),
        };
        let mut images = vec![];
        for entry in entries.flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if !name.starts_with("sha256-") {
                continue;
            }
            let read = read_bounded(&path).map_err(|e| e.to_string());
            match read.and_then(|text| PullIntent::decode(&text).map_err(|e| e.to_string())) {
                Ok(intent) => images.push(intent.image),
                Err(error) => {
                    tracing::warn!(file = %path.display(), error, "the intent of an earlier pull cannot be read");
                }
            }
        }
        Ok(images)
    }
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > MOST_BYTES {
        return Err(io::Error::other(format!("is longer than {MOST_BYTES} bytes")));
    }
    fs::read(path)
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let dir = path.parent().unwrap_or(path);
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    let written =
        made.and_then(|()| whole_file::replace(path, 0o600, |file| file.write_all(text.as_bytes())));
    written.map_err(|e| named(path, e))
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: &str = "r.io/x:1";
    const ID: &str = "sha256:00";

    fn everybody() -> PullCredentials {
        PullCredentials::of(None)
    }

    async fn known(records: &Records) -> Option<PullCredentials> {
        let (record, _) = records.about(IMAGE, ID).await.unwrap();
        record.and_then(|record| record.credentials("r.io/x").cloned())
    }

    #[tokio::test]
    async fn a_pull_is_on_record_from_before_it_begins() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(dir.path());
        assert_eq!(records.about(IMAGE, ID).await.unwrap(), (None, false));
        records.intend(IMAGE).await.unwrap();
        assert_eq!(records.about(IMAGE, ID).await.unwrap(), (None, true));
        records.forget_intent(IMAGE).await;
        assert_eq!(records.about(IMAGE, ID).await.unwrap(), (None, false));
        records.intend(IMAGE).await.unwrap();
        records.pulled(IMAGE, ID, everybody(), Timestamp::now()).await;
        let (record, intended) = records.about(IMAGE, ID).await.unwrap();
        assert!(record.is_some() && !intended);
        assert_eq!(known(&records).await, Some(everybody()));
    }

    #[tokio::test]
    async fn a_pull_whose_end_nobody_saw_is_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        Records::new(dir.path()).intend(IMAGE).await.unwrap();
        fs::write(dir.path().join("image_manager/pulling/sha256-bad"), "{").unwrap();
        let next = Records::new(dir.path());
        assert_eq!(next.earlier_intents().await, [IMAGE]);
        next.settle_intent(IMAGE, ID).await;
        let (record, intended) = next.about(IMAGE, ID).await.unwrap();
        assert!(record.is_some() && !intended);
        assert_eq!(known(&next).await, None, "whoever wants it has to show that they may");
    }

    #[tokio::test]
    async fn a_record_that_is_damaged_admits_nobody_and_is_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(dir.path());
        records.pulled(IMAGE, ID, everybody(), Timestamp::now()).await;
        let file = dir.path().join("image_manager/pulled").join(file_name(ID));
        let good = fs::read(&file).unwrap();
        fs::write(&file, &good[..good.len() / 2]).unwrap();
        let error = records.about(IMAGE, ID).await.unwrap_err();
        assert!(error.contains("image_manager/pulled/sha256-"), "{error}");
        records.pulled(IMAGE, ID, everybody(), Timestamp::now()).await;
        assert_eq!(known(&records).await, Some(everybody()));
        let foreign = dir.path().join("image_manager/pulled").join(file_name("sha256:11"));
        fs::rename(&file, foreign).unwrap();
        assert_eq!(records.about(IMAGE, "sha256:11").await.unwrap().0, None, "that is about another image");
    }
}
