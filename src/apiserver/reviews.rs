//! Asks the apiserver who a stranger is and what they may do with this node.
//!
//! These questions come from outside, as many as somebody cares to send. They have an allowance of their own, so that a
//! crowd at the door cannot hold up what this node itself has to say.

use std::collections::BTreeMap;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::core::Request;
use kube::core::params::PostParams;

use crate::call::body;
use crate::client::Api;
use crate::error::ApiError;
use crate::rate_limit::Priority;

/// Somebody, as the apiserver knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Api {
    /// Whose token this is. None when it is nobody's, or not any more.
    pub async fn review_token(&self, token: &str) -> Result<Option<User>, ApiError> {
        let operation = "review a bearer token";
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: None },
            ..TokenReview::default()
        };
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        let request = Request::new(path).create(&PostParams::default(), body(operation, &review)?);
        let answer: TokenReview = self.call(operation, Priority::Reviews, request).await?;
        let status = answer.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).unwrap_or_default();
        let Some(name) = user.username.filter(|n| !n.is_empty()) else { return Ok(None) };
        Ok(Some(User {
            name,
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        }))
    }

    /// Whether this user may do this with a subresource of this node.
    pub async fn review_access(&self, user: &User, verb: &str, subresource: &str) -> Result<bool, ApiError> {
        let operation = "review access to this node";
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: Some(user.uid.clone()).filter(|u| !u.is_empty()),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()).filter(|e| !e.is_empty()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(verb.to_owned()),
                    version: Some("v1".to_owned()),
                    resource: Some("nodes".to_owned()),
                    subresource: Some(subresource.to_owned()),
                    name: Some(self.node_name().to_owned()),
                    ..ResourceAttributes::default()
                }),
                non_resource_attributes: None,
            },
            ..SubjectAccessReview::default()
        };
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let request = Request::new(path).create(&PostParams::default(), body(operation, &review)?);
        let answer: SubjectAccessReview = self.call(operation, Priority::Reviews, request).await?;
        Ok(answer.status.is_some_and(|s| s.allowed && s.denied != Some(true)))
    }
}
