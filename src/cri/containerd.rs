//! Bringing an image into containerd without a registry. CRI has no call for that; containerd's own services on the same socket
//! have: blobs are written under a lease, which keeps them from being collected, and then get a name.

use std::collections::BTreeMap;
use std::time::Duration;

use keelson_proto::containerd::services::content::v1::content_client::ContentClient;
use keelson_proto::containerd::services::content::v1::{WriteAction, WriteContentRequest};
use keelson_proto::containerd::services::images::v1::images_client::ImagesClient;
use keelson_proto::containerd::services::images::v1::{
    CreateImageRequest, GetImageRequest, Image, UpdateImageRequest,
};
use keelson_proto::containerd::services::leases::v1::leases_client::LeasesClient;
use keelson_proto::containerd::services::leases::v1::{CreateRequest, DeleteRequest};
use keelson_proto::containerd::types::Descriptor;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{AsciiMetadataValue, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request};

use crate::error::{CriError, ErrorKind};
use crate::runtime::{Call, channel};

/// Where the images that CRI sees are.
const NAMESPACE: &str = "k8s.io";
/// By which CRI knows an image that nobody collects.
const PINNED: (&str, &str) = ("io.cri-containerd.pinned", "pinned");
const EXPIRES: &str = "containerd.io/gc.expire";
/// For calls that move no content.
const LIMIT: Duration = Duration::from_secs(60);
/// Pieces that wait to be sent, so that reading and sending go on side by side.
const AHEAD: usize = 2;

#[derive(Clone)]
pub struct Containerd {
    images: ImagesClient<Channel>,
    content: ContentClient<Channel>,
    leases: LeasesClient<Channel>,
}

/// Keeps what was written under it until it is given back or has expired.
pub struct Lease(String);

/// What is written.
pub struct Blob {
    pub digest: String,
    pub size: u64,
    pub labels: BTreeMap<String, String>,
}

/// What a name is for.
pub struct ImageTarget {
    pub media_type: String,
    pub digest: String,
    pub size: u64,
}

impl Containerd {
    /// Nothing is asked of it yet; with a runtime that is not containerd every call is [`ErrorKind::Unimplemented`].
    pub fn connect(endpoint: &str) -> Result<Self, CriError> {
        let channel = channel(endpoint, |_| ())?;
        Ok(Self {
            images: ImagesClient::new(channel.clone()),
            content: ContentClient::new(channel.clone()),
            leases: LeasesClient::new(channel),
        })
    }

    /// Whether the name stands for this digest, and is kept.
    pub async fn has_pinned(&self, name: &str, digest: &str) -> Result<bool, CriError> {
        let call = on("get image", name);
        let request = within(call.request(GetImageRequest { name: name.to_owned() }), None);
        let found = match call.answer(self.images.clone().get(request)).await {
            Ok(found) => found.image.unwrap_or_default(),
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) => return Err(error),
        };
        let pinned = found.labels.get(PINNED.0).is_some_and(|value| value == PINNED.1);
        Ok(pinned && found.target.is_some_and(|target| target.digest == digest))
    }

    /// Until `expires`, as RFC 3339 has it.
    pub async fn lease(&self, id: String, expires: &str) -> Result<Lease, CriError> {
        let call = on("create lease", &id);
        let labels = [(EXPIRES.to_owned(), expires.to_owned())].into();
        let request = within(call.request(CreateRequest { id: id.clone(), labels }), None);
        match call.answer(self.leases.clone().create(request)).await {
            Err(error) if error.kind != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(Lease(id)),
        }
    }

    pub async fn release(&self, lease: Lease) -> Result<(), CriError> {
        let call = on("delete lease", &lease.0);
        let request = within(call.request(DeleteRequest { id: lease.0.clone() }), None);
        call.answer(self.leases.clone().delete(request)).await.map(drop)
    }

    /// Writes a blob that comes in pieces through `pieces`; one that is there already is a success. Who fills the channel finds
    /// it closed when no more is wanted.
    pub async fn write(
        &self,
        lease: &Lease,
        blob: &Blob,
        mut pieces: mpsc::Receiver<Vec<u8>>,
    ) -> Result<(), CriError> {
        let (send, requests) = mpsc::channel(AHEAD);
        let total = i64::try_from(blob.size).unwrap_or(i64::MAX);
        let feed = async {
            let mut offset = 0;
            let mut next = WriteContentRequest {
                // From its beginning, whatever an earlier agent has left of it.
                r#ref: format!("keelson-{}", blob.digest),
                action: WriteAction::Write.into(),
                expected: blob.digest.clone(),
                total,
                ..WriteContentRequest::default()
            };
            while let Some(data) = pieces.recv().await {
                let bytes = i64::try_from(data.len()).unwrap_or(i64::MAX);
                if send.send(WriteContentRequest { data, offset, ..next }).await.is_err() {
                    return;
                }
                offset += bytes;
                next = WriteContentRequest { action: WriteAction::Write.into(), ..Default::default() };
            }
            let commit = WriteContentRequest {
                action: WriteAction::Commit.into(),
                expected: blob.digest.clone(),
                labels: blob.labels.clone(),
                offset,
                total,
                ..next
            };
            // Whoever does not take it any more says why.
            let _ = send.send(commit).await;
            drop(send);
        };
        let call = async {
            let mut content = self.content.clone();
            let mut answers = content
                .write(within(Request::new(ReceiverStream::new(requests)), Some(lease)))
                .await?
                .into_inner();
            while answers.message().await?.is_some() {}
            Ok::<_, tonic::Status>(())
        };
        let ((), done) = tokio::join!(feed, call);
        match done {
            Err(status) if status.code() != Code::AlreadyExists => {
                Err(CriError::from_status("write content", &blob.digest, &status))
            }
            _ => Ok(()),
        }
    }

    /// Gives what was written a name, or another meaning to a name, and has it kept.
    pub async fn name(&self, lease: &Lease, name: &str, target: &ImageTarget) -> Result<(), CriError> {
        let image = Image {
            name: name.to_owned(),
            labels: [(PINNED.0.to_owned(), PINNED.1.to_owned())].into(),
            target: Some(Descriptor {
                media_type: target.media_type.clone(),
                digest: target.digest.clone(),
                size: i64::try_from(target.size).unwrap_or(i64::MAX),
                ..Descriptor::default()
            }),
        };
        let call = on("create image", name);
        let request = within(call.request(CreateImageRequest { image: Some(image.clone()) }), Some(lease));
        match call.answer(self.images.clone().create(request)).await {
            Err(error) if error.kind == ErrorKind::AlreadyExists => {}
            other => return other.map(drop),
        }
        let call = on("update image", name);
        let request = within(call.request(UpdateImageRequest { image: Some(image) }), Some(lease));
        call.answer(self.images.clone().update(request)).await.map(drop)
    }
}

fn on<'a>(operation: &'static str, object: &'a str) -> Call<'a> {
    Call { operation, object, limit: LIMIT }
}

fn within<T>(mut request: Request<T>, lease: Option<&Lease>) -> Request<T> {
    let metadata = request.metadata_mut();
    metadata.insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
    if let Some(id) = lease.and_then(|lease| AsciiMetadataValue::try_from(&lease.0).ok()) {
        metadata.insert("containerd-lease", id);
    }
    request
}
