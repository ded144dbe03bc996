//! The image half of the fake.

use keelson_proto::runtime::v1::image_service_server::ImageService;
use keelson_proto::runtime::v1::{
    FilesystemIdentifier, FilesystemUsage, ImageFsInfoRequest, ImageFsInfoResponse, ImageStatusRequest,
    ImageStatusResponse, ListImagesRequest, ListImagesResponse, PullImageRequest, PullImageResponse,
    RemoveImageRequest, RemoveImageResponse, StreamImagesRequest, StreamImagesResponse, UInt64Value,
};
use tonic::{Request, Response, Status};

use super::Shared;
use super::faults::Rpc;

#[tonic::async_trait]
impl ImageService for Shared {
    type StreamImagesStream = tokio_stream::Empty<Result<StreamImagesResponse, Status>>;

    async fn list_images(
        &self,
        _request: Request<ListImagesRequest>,
    ) -> Result<Response<ListImagesResponse>, Status> {
        self.serve(Rpc::ListImages, |world, _| {
            Ok(ListImagesResponse { images: world.images.values().cloned().collect() })
        })
        .await
    }

    async fn stream_images(
        &self,
        _request: Request<StreamImagesRequest>,
    ) -> Result<Response<Self::StreamImagesStream>, Status> {
        self.not_offered(Rpc::StreamImages).await
    }

    async fn image_status(
        &self,
        request: Request<ImageStatusRequest>,
    ) -> Result<Response<ImageStatusResponse>, Status> {
        let name = request.into_inner().image.unwrap_or_default().image;
        self.serve(Rpc::ImageStatus, |world, _| {
            Ok(ImageStatusResponse { image: world.find_image(&name).cloned(), ..Default::default() })
        })
        .await
    }

    async fn pull_image(
        &self,
        request: Request<PullImageRequest>,
    ) -> Result<Response<PullImageResponse>, Status> {
        let name = request.into_inner().image.unwrap_or_default().image;
        self.serve(Rpc::PullImage, |world, lie| {
            let image_ref = world.add_image(&name);
            Ok(PullImageResponse { image_ref: if lie.is_some() { String::new() } else { image_ref } })
        })
        .await
    }

    async fn remove_image(
        &self,
        request: Request<RemoveImageRequest>,
    ) -> Result<Response<RemoveImageResponse>, Status> {
        let name = request.into_inner().image.unwrap_or_default().image;
        self.serve(Rpc::RemoveImage, |world, _| {
            world.images.retain(|tag, image| *tag != name && image.id != name);
            Ok(RemoveImageResponse {})
        })
        .await
    }

    async fn image_fs_info(
        &self,
        _request: Request<ImageFsInfoRequest>,
    ) -> Result<Response<ImageFsInfoResponse>, Status> {
        self.serve(Rpc::ImageFsInfo, |world, _| {
            let usage = FilesystemUsage {
                timestamp: 1,
                fs_id: Some(FilesystemIdentifier { mountpoint: "/".into() }),
                used_bytes: Some(UInt64Value { value: world.images.values().map(|image| image.size).sum() }),
                inodes_used: Some(UInt64Value { value: 1 }),
            };
            Ok(ImageFsInfoResponse {
                image_filesystems: vec![usage.clone()],
                container_filesystems: vec![usage],
            })
        })
        .await
    }
}
