//! What containers use, as the runtime measures it.

use keelson_proto::runtime::v1::{ContainerStats, ContainerStatsFilter, ListContainerStatsRequest};

use crate::Runtime;
use crate::error::CriError;

impl Runtime {
    pub async fn list_container_stats(
        &self,
        filter: Option<ContainerStatsFilter>,
    ) -> Result<Vec<ContainerStats>, CriError> {
        let call = self.on("list container stats of", self.endpoint());
        let request = call.request(ListContainerStatsRequest { filter });
        Ok(call.answer(self.client().list_container_stats(request)).await?.stats)
    }
}
