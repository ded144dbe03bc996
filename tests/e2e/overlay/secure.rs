//! An etcd that wants to know who asks: TLS with client certificates, and users with passwords.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_proto::etcd::etcdserverpb as pb;
use keelson_tests::certs::{Authority, Pair};
use keelson_tests::control_plane::start_etcd_with;
use keelson_tests::hosts::{WIRE, all_reach_all};
use keelson_tests::process::Daemon;
use keelson_tests::wait::{free_port, until, until_true};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::Trio;

const SOON: Duration = Duration::from_secs(20);
const PASSWORD: &str = "not to be shown";

struct Secure {
    _daemon: Daemon,
    url: String,
    authority: Authority,
    channel: Channel,
}

impl Secure {
    async fn start(dir: &Path) -> Result<Self> {
        let authority = Authority::new(dir)?;
        let server = authority.pair("etcd", "etcd", &[], &[WIRE])?;
        let admin = authority.pair("admin", "admin", &[], &[])?;
        let url = format!("https://{WIRE}:{}", free_port()?);
        let file = |path: &Path| path.display().to_string();
        let (ca, cert, key) = (file(&authority.ca_file()), file(&server.cert), file(&server.key));
        let tls = ["--cert-file", &cert, "--key-file", &key, "--trusted-ca-file", &ca, "--client-cert-auth"];
        let mut daemon = start_etcd_with(dir, &url, &tls)?;
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(std::fs::read(authority.ca_file())?))
            .identity(Identity::from_pem(std::fs::read(&admin.cert)?, std::fs::read(&admin.key)?));
        let endpoint = Endpoint::from_shared(url.clone())?.tls_config(tls)?;
        let channel = until("etcd answers", SOON, async || {
            daemon.check_alive()?;
            Ok(endpoint.connect().await.ok())
        })
        .await?;
        Ok(Secure { _daemon: daemon, url, authority, channel })
    }

    async fn configure(&self) -> Result<()> {
        let put = pb::PutRequest {
            key: "/coreos.com/network/config".into(),
            value: r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#.into(),
            lease: 0,
        };
        pb::kv_client::KvClient::new(self.channel.clone()).put(put).await?;
        Ok(())
    }

    /// From now on only users get anywhere, and the overlay's only to flannel's keys.
    async fn demand_users(&self) -> Result<()> {
        let mut auth = pb::auth_client::AuthClient::new(self.channel.clone());
        let text = str::to_owned;
        let permission = pb::Permission {
            perm_type: pb::permission::Type::Readwrite as i32,
            key: "/coreos.com/network/".into(),
            range_end: "/coreos.com/network0".into(),
        };
        auth.role_add(pb::AuthRoleAddRequest { name: text("flannel") }).await?;
        let grant = pb::AuthRoleGrantPermissionRequest { name: text("flannel"), perm: Some(permission) };
        auth.role_grant_permission(grant).await?;
        for (name, password, role) in [("root", "root", "root"), ("overlay", PASSWORD, "flannel")] {
            auth.user_add(pb::AuthUserAddRequest { name: text(name), password: text(password) }).await?;
            auth.user_grant_role(pb::AuthUserGrantRoleRequest { user: text(name), role: text(role) }).await?;
        }
        auth.auth_enable(pb::AuthEnableRequest {}).await.context("switch users on")?;
        Ok(())
    }
}

/// The flags for a certificate.
fn flags(secure: &Secure, pair: &Pair) -> Vec<String> {
    let file = |path: &Path| path.display().to_string();
    let named = |flag: &str, value: String| [flag.to_owned(), value];
    [
        named("--etcd-endpoints", secure.url.clone()),
        named("--etcd-cafile", file(&secure.authority.ca_file())),
        named("--etcd-certfile", file(&pair.cert)),
        named("--etcd-keyfile", file(&pair.key)),
    ]
    .concat()
}

pub async fn certificates_and_users(dir: &Path, trio: &mut Trio) -> Result<()> {
    trio.clear().await?;
    let secure = Secure::start(dir).await?;
    secure.configure().await?;
    // With users demanded, etcd takes a certificate's name for the user's, unless the client says another.
    let pair = secure.authority.pair("overlay", "nobody", &[], &[])?;
    let by_certificate = flags(&secure, &pair);
    fn borrowed(flags: &[String]) -> Vec<&str> {
        flags.iter().map(String::as_str).collect()
    }
    trio.start(&borrowed(&by_certificate)).await.context("by certificate")?;
    all_reach_all(&trio.pods).await.context("by certificate")?;

    secure.demand_users().await?;
    for host in &mut trio.hosts {
        host.stop_overlay().await?;
    }
    // Without a user it says so, and goes on with what it knew.
    trio.hosts[0].start_overlay(&borrowed(&by_certificate))?;
    until_true("the host reports that it may not", SOON, async || {
        Ok(trio.hosts[0].status().await?["problems"].to_string().contains("permission denied"))
    })
    .await?;
    trio.hosts[0].stop_overlay().await?;
    let user = ["--etcd-username", "overlay", "--etcd-password", PASSWORD].map(str::to_owned);
    let by_password = [by_certificate, user.to_vec()].concat();
    trio.start_again(&borrowed(&by_password)).await.context("by password")?;
    until_true("the hosts reach etcd", SOON, async || Ok(trio.hosts[0].status().await?["heard"] == true))
        .await?;
    all_reach_all(&trio.pods).await.context("by password")?;
    ensure!(!trio.hosts[0].log().contains(PASSWORD), "the password stands in the log");
    trio.clear().await
}
