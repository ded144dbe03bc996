//! Service accounts, of which credential providers want annotations.

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::core::Request;
use kube::core::params::GetParams;

use crate::client::Api;
use crate::error::ApiError;

impl Api {
    /// The service account of a pod that is bound to this node; a node may read no other.
    pub async fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccount, ApiError> {
        let operation = format!("get service account {namespace}/{name}");
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        let request = Request::new(path).get(name, &GetParams::default());
        self.call_past_authorizer_lag(&operation, request).await
    }
}
