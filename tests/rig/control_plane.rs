//! etcd, kube-apiserver, kube-scheduler and kube-controller-manager on free ports of loopback.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use crate::certs::{Authority, Pair};
use crate::isolation::NODE_IP;
use crate::parts::Part;
use crate::process::Daemon;
use crate::suite::folder;
use crate::wait::{free_port, until, until_true};

/// The pods' address range of the whole cluster; each node gets a /24 of it.
pub const CLUSTER_CIDR: &str = "10.244.0.0/16";
const SERVICE_CIDR: &str = "10.96.0.0/16";

/// What of a control plane is wanted; a bench binds its pods itself and needs no scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    Whole,
    /// etcd, the apiserver and the controllers.
    WithoutScheduler,
}

pub struct ControlPlane {
    dir: PathBuf,
    authority: Authority,
    server: String,
    etcd_url: String,
    apiserver_port: u16,
    apiserver: Option<Daemon>,
    tokens: (PathBuf, PathBuf),
    admin: PathBuf,
    // Fields are dropped in this order: those that need the others first.
    controllers: Vec<Daemon>,
    etcd: Daemon,
}

impl ControlPlane {
    /// Starts everything and returns when the first pod could be made.
    pub async fn start(dir: &Path, extent: Extent) -> Result<Self> {
        let dir = folder(dir, "control-plane")?;
        let authority = Authority::new(&dir)?;
        let (etcd, etcd_url) = start_etcd(&dir)?;
        let apiserver_port = free_port()?;
        let server = format!("https://127.0.0.1:{apiserver_port}");
        let hosts = ["127.0.0.1", "10.96.0.1", NODE_IP, "localhost", "kubernetes.default.svc"];
        authority.pair("apiserver", "kube-apiserver", &[], &hosts)?;
        authority.pair("kubelet-client", "kube-apiserver-kubelet-client", &["system:masters"], &[])?;
        authority.pair("front-proxy", "front-proxy-client", &[], &[])?;
        let admin = authority.pair("admin", "admin", &["system:masters"], &[])?;
        let admin = authority.kubeconfig("admin", &server, &admin)?;
        let tokens = authority.token_key()?;
        let mut plane = Self {
            dir,
            authority,
            server,
            etcd_url,
            apiserver_port,
            apiserver: None,
            tokens,
            admin,
            controllers: vec![],
            etcd,
        };
        plane.start_apiserver()?;
        plane.start_controllers(extent)?;
        plane.ready().await?;
        Ok(plane)
    }

    /// The kubeconfig of a member of system:masters.
    pub fn admin(&self) -> &Path {
        &self.admin
    }

    pub async fn client(&self) -> Result<Client> {
        let config = Kubeconfig::read_from(&self.admin)?;
        let mut config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        config.read_timeout = None;
        Client::try_from(config).context("cannot make a client for the admin")
    }

    /// The kubeconfig of a node, as the Node authorizer and NodeRestriction want it.
    pub fn node_kubeconfig(&self, node: &str) -> Result<PathBuf> {
        let pair = self.authority.pair(node, &format!("system:node:{node}"), &["system:nodes"], &[])?;
        self.authority.kubeconfig(node, &self.server, &pair)
    }

    /// The kubeconfig of any other user, who reaches the apiserver at another of its addresses.
    pub fn user_kubeconfig(&self, user: &str, server: &str) -> Result<PathBuf> {
        let pair = self.authority.pair(user, user, &[], &[])?;
        self.authority.kubeconfig(user, server, &pair)
    }

    pub fn apiserver_port(&self) -> u16 {
        self.apiserver_port
    }

    /// A certificate for a node's own HTTPS API.
    pub fn serving_pair(&self, node: &str) -> Result<Pair> {
        let file = format!("{node}-serving");
        self.authority.pair(
            &file,
            &format!("system:node:{node}"),
            &["system:nodes"],
            &[node, "127.0.0.1", NODE_IP],
        )
    }

    /// A certificate of this cluster for a user of any name and groups.
    pub fn user_pair(&self, file: &str, user: &str, groups: &[&str]) -> Result<Pair> {
        self.authority.pair(file, user, groups, &[])
    }

    /// What the apiserver shows to nodes.
    pub fn kubelet_client(&self) -> Pair {
        Pair { cert: self.dir.join("kubelet-client.crt"), key: self.dir.join("kubelet-client.key") }
    }

    pub fn ca_file(&self) -> PathBuf {
        self.authority.ca_file()
    }

    /// Takes the apiserver away, as a crash would. Everything else stays.
    pub fn kill_apiserver(&mut self) -> Result<()> {
        if let Some(mut apiserver) = self.apiserver.take() {
            apiserver.kill()?;
        }
        Ok(())
    }

    /// Brings the apiserver back on its port.
    pub async fn restart_apiserver(&mut self) -> Result<()> {
        self.start_apiserver()?;
        self.ready().await
    }

    fn start_apiserver(&mut self) -> Result<()> {
        let at = |file: &str| self.dir.join(file);
        let mut command = Command::new(Part::ApiServer.program()?);
        command
            .args(["--etcd-servers", &self.etcd_url])
            // On all addresses of the suite's own network namespace, so that pods reach it at the node's.
            .args(["--bind-address", "0.0.0.0", "--secure-port", &self.apiserver_port.to_string()])
            .arg(format!("--advertise-address={NODE_IP}"))
            .arg("--tls-cert-file")
            .arg(at("apiserver.crt"))
            .arg("--tls-private-key-file")
            .arg(at("apiserver.key"))
            .arg("--client-ca-file")
            .arg(self.authority.ca_file())
            .arg("--kubelet-client-certificate")
            .arg(at("kubelet-client.crt"))
            .arg("--kubelet-client-key")
            .arg(at("kubelet-client.key"))
            .arg("--kubelet-certificate-authority")
            .arg(self.authority.ca_file())
            .arg("--kubelet-preferred-address-types=InternalIP,Hostname")
            // For APIs that are served by others, such as metrics-server's.
            .arg("--requestheader-client-ca-file")
            .arg(self.authority.ca_file())
            .args(["--requestheader-allowed-names=front-proxy-client"])
            .args([
                "--requestheader-username-headers=X-Remote-User",
                "--requestheader-group-headers=X-Remote-Group",
            ])
            .arg("--requestheader-extra-headers-prefix=X-Remote-Extra-")
            .arg("--proxy-client-cert-file")
            .arg(at("front-proxy.crt"))
            .arg("--proxy-client-key-file")
            .arg(at("front-proxy.key"))
            .arg("--service-account-signing-key-file")
            .arg(&self.tokens.0)
            .arg("--service-account-key-file")
            .arg(&self.tokens.1)
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(format!("--service-cluster-ip-range={SERVICE_CIDR}"))
            .args(["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"])
            // Off by default, as in a kubelet; nodes show them where they are served.
            .args(["--feature-gates=ClusterTrustBundle=true,ClusterTrustBundleProjection=true"])
            .args(["--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true"])
            .args(["--allow-privileged=true", "--profiling=false"]);
        self.apiserver = Some(Daemon::spawn("kube-apiserver", command, &at("apiserver.log"))?);
        Ok(())
    }

    fn start_controllers(&mut self, extent: Extent) -> Result<()> {
        let user = |file: &str, name: &str| -> Result<PathBuf> {
            let pair = self.authority.pair(file, name, &[], &[])?;
            self.authority.kubeconfig(file, &self.server, &pair)
        };
        let mut manager = Command::new(Part::ControllerManager.program()?);
        manager
            .arg("--kubeconfig")
            .arg(user("manager", "system:kube-controller-manager")?)
            .arg("--service-account-private-key-file")
            .arg(&self.tokens.0)
            .arg("--root-ca-file")
            .arg(self.authority.ca_file())
            .arg("--cluster-signing-cert-file")
            .arg(self.dir.join("ca.crt"))
            .arg("--cluster-signing-key-file")
            .arg(self.dir.join("ca.key"))
            .args([
                "--use-service-account-credentials=true",
                "--allocate-node-cidrs=true",
                "--leader-elect=false",
            ])
            .arg(format!("--cluster-cidr={CLUSTER_CIDR}"))
            .args(["--bind-address=127.0.0.1", "--secure-port", &free_port()?.to_string()]);
        let log = self.dir.join("controller-manager.log");
        self.controllers.push(Daemon::spawn("kube-controller-manager", manager, &log)?);
        if extent == Extent::Whole {
            let mut scheduler = Command::new(Part::Scheduler.program()?);
            scheduler
                .arg("--kubeconfig")
                .arg(user("scheduler", "system:kube-scheduler")?)
                .args(["--leader-elect=false", "--bind-address=127.0.0.1"])
                .args(["--secure-port", &free_port()?.to_string()]);
            self.controllers.push(Daemon::spawn(
                "kube-scheduler",
                scheduler,
                &self.dir.join("scheduler.log"),
            )?);
        }
        Ok(())
    }

    /// Pods can be made once the apiserver answers and the controllers have made the default service account.
    async fn ready(&mut self) -> Result<()> {
        let client = self.client().await?;
        let limit = Duration::from_secs(90);
        until_true("the apiserver is ready", limit, async || {
            self.etcd.check_alive()?;
            if let Some(apiserver) = &mut self.apiserver {
                apiserver.check_alive()?;
            }
            let request = http::Request::get("/readyz").body(vec![])?;
            Ok(client.request_text(request).await? == "ok")
        })
        .await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client, "default");
        until("the default service account is there", limit, async || {
            self.controllers.iter_mut().try_for_each(Daemon::check_alive)?;
            Ok(accounts.get_opt("default").await?)
        })
        .await?;
        Ok(())
    }
}

fn start_etcd(dir: &Path) -> Result<(Daemon, String)> {
    start_etcd_at(dir, &format!("http://127.0.0.1:{}", free_port()?))
}

/// etcd that answers on the given URL, without waiting for the disk: what it holds is thrown away anyway.
pub fn start_etcd_at(dir: &Path, client: &str) -> Result<(Daemon, String)> {
    Ok((start_etcd_with(dir, client, &[])?, client.to_owned()))
}

/// An etcd for clients at some URL, with further flags.
pub fn start_etcd_with(dir: &Path, client: &str, flags: &[&str]) -> Result<Daemon> {
    let peer = format!("http://127.0.0.1:{}", free_port()?);
    let mut command = Command::new(Part::Etcd.program()?);
    command
        .arg("--data-dir")
        .arg(dir.join("etcd"))
        .args(["--listen-client-urls", client, "--advertise-client-urls", client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .arg(format!("--initial-cluster=default={peer}"))
        .arg("--unsafe-no-fsync")
        .args(flags);
    Daemon::spawn("etcd", command, &dir.join("etcd.log"))
}
