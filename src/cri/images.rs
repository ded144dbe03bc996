//! Calls about images.

use keelson_proto::runtime::v1::{
    AuthConfig, Image, ImageFsInfoRequest, ImageFsInfoResponse, ImageSpec, ImageStatusRequest,
    ListImagesRequest, PodSandboxConfig, PullImageRequest, RemoveImageRequest,
};
use tonic::Request;

use crate::Runtime;
use crate::error::CriError;
use crate::sandboxes::gone_is_fine;

impl Runtime {
    /// Pulls, however long it takes; dropping the future makes the runtime give up. Answers with the reference that a
    /// container is to be created with.
    pub async fn pull_image(
        &self,
        image: ImageSpec,
        auth: Option<AuthConfig>,
        sandbox: &PodSandboxConfig,
    ) -> Result<String, CriError> {
        let call = self.on("pull image", "");
        let name = image.image.clone();
        let request = Request::new(PullImageRequest {
            image: Some(image),
            auth,
            sandbox_config: Some(sandbox.clone()),
        });
        let began = std::time::Instant::now();
        let answer = self.images().pull_image(request).await;
        crate::operations::record(call.operation, began.elapsed(), answer.is_err());
        let reference = answer
            .map_err(|status| CriError::from_status(call.operation, &name, &status))?
            .into_inner()
            .image_ref;
        if reference.is_empty() {
            return Err(CriError::bad_answer(call.operation, &name, "the image reference is empty".into()));
        }
        Ok(reference)
    }

    /// `None` when the runtime does not have the image.
    pub async fn image_status(&self, image: &str) -> Result<Option<Image>, CriError> {
        let call = self.on("get status of image", image);
        let request = call.request(ImageStatusRequest { image: Some(named(image)), verbose: false });
        match call.answer(self.images().image_status(request)).await {
            Ok(answer) => Ok(answer.image.filter(|image| !image.id.is_empty())),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub async fn list_images(&self) -> Result<Vec<Image>, CriError> {
        let call = self.on("list images of", self.endpoint());
        let request = call.request(ListImagesRequest { filter: None });
        Ok(call.answer(self.images().list_images(request)).await?.images)
    }

    /// An image that is gone is a success.
    pub async fn remove_image(&self, image: &str) -> Result<(), CriError> {
        let call = self.on("remove image", image);
        let request = call.request(RemoveImageRequest { image: Some(named(image)) });
        gone_is_fine(call.answer(self.images().remove_image(request)).await)
    }

    /// What the file systems of images and of containers' writable layers hold.
    pub async fn image_fs_info(&self) -> Result<ImageFsInfoResponse, CriError> {
        let call = self.on("get image file systems of", self.endpoint());
        let request = call.request(ImageFsInfoRequest {});
        call.answer(self.images().image_fs_info(request)).await
    }
}

fn named(image: &str) -> ImageSpec {
    ImageSpec { image: image.to_owned(), ..Default::default() }
}
