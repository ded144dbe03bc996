//! The Container Runtime Interface, v1, complete: messages, clients and (for tests) servers. And of etcd's API, v3, the
//! little that the overlay speaks, and of containerd's own the little that it takes to bring in an image.
//!
//! Names and numbers in `cri/*.proto` are those on the wire, as of Kubernetes 1.36, those in `etcd/*.proto` are etcd 3.6's,
//! and those in `containerd/*.proto` are the same in containerd 1.6 to 2.x; everything else about the files is ours.

pub mod runtime {
    #[allow(clippy::all, missing_docs)]
    pub mod v1 {
        tonic::include_proto!("runtime.v1");
    }
}

/// The modules are as the packages are: the generated code finds its way by that.
pub mod containerd {
    #[allow(clippy::all, missing_docs)]
    pub mod types {
        tonic::include_proto!("containerd.types");
    }
    pub mod services {
        pub mod images {
            #[allow(clippy::all, missing_docs)]
            pub mod v1 {
                tonic::include_proto!("containerd.services.images.v1");
            }
        }
        pub mod content {
            #[allow(clippy::all, missing_docs)]
            pub mod v1 {
                tonic::include_proto!("containerd.services.content.v1");
            }
        }
        pub mod leases {
            #[allow(clippy::all, missing_docs)]
            pub mod v1 {
                tonic::include_proto!("containerd.services.leases.v1");
            }
        }
    }
}

pub mod etcd {
    #[allow(clippy::all, missing_docs)]
    pub mod mvccpb {
        tonic::include_proto!("mvccpb");
    }
    #[allow(clippy::all, missing_docs)]
    pub mod etcdserverpb {
        tonic::include_proto!("etcdserverpb");
    }
}

use std::fmt;

impl fmt::Debug for runtime::v1::AuthConfig {
    /// Names who authenticates where, and by which means, but none of the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let means: Vec<&str> = [
            ("password", &self.password),
            ("auth", &self.auth),
            ("identity_token", &self.identity_token),
            ("registry_token", &self.registry_token),
        ]
        .into_iter()
        .filter(|(_, secret)| !secret.is_empty())
        .map(|(name, _)| name)
        .collect();
        f.debug_struct("AuthConfig")
            .field("username", &self.username)
            .field("server_address", &self.server_address)
            .field("secrets_given", &means)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::runtime::v1::AuthConfig;

    #[test]
    fn credentials_do_not_appear_in_debug_output() {
        let auth = AuthConfig {
            username: "ann".into(),
            password: "s3cret".into(),
            auth: "s3cret".into(),
            identity_token: "s3cret".into(),
            registry_token: "s3cret".into(),
            server_address: "registry.example".into(),
        };
        let shown = format!("{auth:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
        assert!(
            shown.contains("ann") && shown.contains("registry.example") && shown.contains("password"),
            "{shown}"
        );
    }
}
