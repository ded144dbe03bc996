//! The part of etcd's API that the overlay needs, with one of several servers at a time.

use std::path::Path;
use std::time::Duration;

use keelson_kit::error_chain::chain;
use keelson_proto::etcd::etcdserverpb as pb;
use keelson_proto::etcd::mvccpb::KeyValue;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request};

use crate::config::EtcdOptions;

const ANSWER: Duration = Duration::from_secs(5);
/// flannel's values are a few hundred bytes. Other writers of these keys must not fill our memory.
const LARGEST_ANSWER: usize = 16 * 1024 * 1024;

/// Where distributions keep them.
const SYSTEM_AUTHORITIES: [&str; 2] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    #[error("cannot read {path}: {source}")]
    File { path: String, source: std::io::Error },
    #[error("etcd endpoint {endpoint:?} cannot be used: {why}")]
    Endpoint { endpoint: String, why: String },
    #[error("etcd at {endpoint}: {operation}: {why}")]
    Call {
        endpoint: String,
        operation: &'static str,
        why: String,
        /// The server said no. Otherwise it may have done what was asked, or do it yet.
        refused: bool,
    },
    #[error("{0}")]
    Content(String),
}

/// One connection.
pub struct Client {
    endpoint: String,
    channel: Channel,
    token: Option<MetadataValue<tonic::metadata::Ascii>>,
}

impl Client {
    /// Connects to the endpoint with that number, counted around.
    pub async fn connect(options: &EtcdOptions, number: usize) -> Result<Self, EtcdError> {
        let endpoint =
            options.endpoints.get(number % options.endpoints.len().max(1)).cloned().unwrap_or_default();
        let unusable = |why: String| EtcdError::Endpoint { endpoint: endpoint.clone(), why };
        let mut to = Endpoint::from_shared(endpoint.clone())
            .map_err(|e| unusable(e.to_string()))?
            .connect_timeout(ANSWER)
            // A server that vanished silently is noticed within 45 seconds.
            .http2_keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(15))
            .keep_alive_while_idle(true);
        if endpoint.starts_with("https") {
            to = to.tls_config(tls(options)?).map_err(|e| unusable(chain(&e)))?;
        }
        let channel = to.connect().await.map_err(|e| unusable(chain(&e)))?;
        let mut client = Client { endpoint, channel, token: None };
        if let Some(name) = options.username.clone() {
            client.token =
                Some(client.authenticate(name, options.password.clone().unwrap_or_default()).await?);
        }
        Ok(client)
    }

    async fn authenticate(
        &self,
        name: String,
        password: String,
    ) -> Result<MetadataValue<tonic::metadata::Ascii>, EtcdError> {
        let mut auth = pb::auth_client::AuthClient::new(self.channel.clone());
        let call = auth.authenticate(pb::AuthenticateRequest { name, password });
        let answer = self.within("authenticate", call).await?;
        MetadataValue::try_from(answer.token)
            .map_err(|_| self.failed("authenticate", "an unusable token".into()))
    }

    fn kv(&self) -> pb::kv_client::KvClient<Channel> {
        pb::kv_client::KvClient::new(self.channel.clone()).max_decoding_message_size(LARGEST_ANSWER)
    }

    /// The value of one key.
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, EtcdError> {
        let request = pb::RangeRequest { key: key.into(), range_end: vec![] };
        let answer =
            self.within("read the network configuration", self.kv().range(self.request(request))).await?;
        Ok(answer.kvs.into_iter().next().map(|kv| kv.value))
    }

    /// Everything under a prefix, and the revision at which it was so.
    pub async fn list(&self, prefix: &str) -> Result<(Vec<KeyValue>, i64), EtcdError> {
        let request = pb::RangeRequest { key: prefix.into(), range_end: end_of(prefix) };
        let answer = self.within("list leases", self.kv().range(self.request(request))).await?;
        Ok((answer.kvs, answer.header.map_or(0, |h| h.revision)))
    }

    /// Writes a key that lives for `ttl`; with `is_new`, only if it does not exist. Returns whether it was written.
    pub async fn put(&self, key: &str, value: &str, ttl: Duration, is_new: bool) -> Result<bool, EtcdError> {
        let mut leases = pb::lease_client::LeaseClient::new(self.channel.clone());
        let ttl = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        let grant = self.request(pb::LeaseGrantRequest { ttl, id: 0 });
        let lease = self.within("get a lease", leases.lease_grant(grant)).await?.id;
        let put = pb::PutRequest { key: key.into(), value: value.into(), lease };
        let written = match is_new {
            false => self.within("write our lease", self.kv().put(self.request(put))).await.map(|_| true),
            true => {
                let absent = pb::Compare {
                    result: pb::compare::CompareResult::Equal as i32,
                    target: pb::compare::CompareTarget::Version as i32,
                    key: key.into(),
                    target_union: Some(pb::compare::TargetUnion::Version(0)),
                };
                let put = pb::RequestOp { request: Some(pb::request_op::Request::RequestPut(put)) };
                let txn = pb::TxnRequest { compare: vec![absent], success: vec![put], failure: vec![] };
                self.within("write our lease", self.kv().txn(self.request(txn)))
                    .await
                    .map(|answer| answer.succeeded)
            }
        };
        // Revoking a lease takes every key under it along. A server that was only slow carries the write out after all, and
        // the next attempt finds it; a lease that nothing was written under runs out by itself.
        if matches!(written, Ok(false) | Err(EtcdError::Call { refused: true, .. })) {
            let revoke = self.request(pb::LeaseRevokeRequest { id: lease });
            let _ = self.within("give a lease back", leases.lease_revoke(revoke)).await;
        }
        written
    }

    pub async fn delete(&self, key: &str) -> Result<(), EtcdError> {
        let request = pb::DeleteRangeRequest { key: key.into(), range_end: vec![] };
        self.within("delete a lease", self.kv().delete_range(self.request(request))).await.map(drop)
    }

    /// Follows everything under a prefix from a revision on.
    pub async fn watch(
        &self,
        prefix: &str,
        from: i64,
    ) -> Result<tonic::Streaming<pb::WatchResponse>, EtcdError> {
        let create = pb::WatchCreateRequest {
            key: prefix.into(),
            range_end: end_of(prefix),
            start_revision: from,
            progress_notify: true,
        };
        let first =
            pb::WatchRequest { request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)) };
        // The request side must stay open: etcd ends the watch when it is closed.
        let requests =
            futures::StreamExt::chain(futures::stream::once(async { first }), futures::stream::pending());
        let mut client = pb::watch_client::WatchClient::new(self.channel.clone())
            .max_decoding_message_size(LARGEST_ANSWER);
        let mut request = self.request(requests);
        // A server without a leader must fail the watch instead of staying silent.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        self.within("watch leases", client.watch(request)).await
    }

    fn request<T>(&self, body: T) -> Request<T> {
        let mut request = Request::new(body);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    async fn within<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, EtcdError> {
        match tokio::time::timeout(ANSWER, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(EtcdError::Call {
                endpoint: self.endpoint.clone(),
                operation,
                why: status.message().to_owned(),
                refused: is_refusal(status.code()),
            }),
            Err(_) => Err(self.failed(operation, format!("no answer within {} s", ANSWER.as_secs()))),
        }
    }

    pub fn failed(&self, operation: &'static str, why: String) -> EtcdError {
        EtcdError::Call { endpoint: self.endpoint.clone(), operation, why, refused: false }
    }
}

/// Whether a status means that the request was not and will not be carried out. All that a broken connection, a lost
/// leader or a deadline can end in does not.
fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Unauthenticated
    )
}

/// The first key after all that begin with `prefix`.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

fn tls(options: &EtcdOptions) -> Result<ClientTlsConfig, EtcdError> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|source| EtcdError::File { path: path.display().to_string(), source })
    };
    let mut tls = ClientTlsConfig::new();
    // Without --etcd-cafile, the machine's own certificate authorities are trusted.
    let system = || SYSTEM_AUTHORITIES.into_iter().map(Path::new).find(|path| path.exists());
    if let Some(ca) = options.ca_file.as_deref().or_else(system) {
        tls = tls.ca_certificate(Certificate::from_pem(read(ca)?));
    }
    if let (Some(cert), Some(key)) = (&options.cert_file, &options.key_file) {
        tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    Ok(tls)
}
