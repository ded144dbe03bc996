//! The kubelet's flags that stand for a field of its configuration file.

use super::tree::{Node, Origin, Value};

/// How the text after a flag becomes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagKind {
    Text,
    /// May stand alone, meaning true.
    Bool,
    Int,
    /// `a,b,c`
    List,
    /// `a=b,c=d`; replaces the map.
    Map,
    /// `a<b,c<d`; replaces the map.
    LessMap,
    /// `A=true,B=false`; merged into the map.
    Gates,
    /// `key=value:Effect,...`
    Taints,
    /// `name:value,...`, a name may come twice.
    Headers,
    /// `node:type=quantity,type=quantity;...`
    ReservedMemory,
}

#[derive(Debug, PartialEq, Eq)]
pub struct ConfigFlag {
    pub name: &'static str,
    pub path: &'static [&'static str],
    pub kind: FlagKind,
}

macro_rules! flags {
    ($($name:literal $kind:ident $($path:literal).+;)+) => {
        /// Sorted by what they stand for, as in the configuration.
        pub static CONFIG_FLAGS: &[ConfigFlag] =
            &[$(ConfigFlag { name: $name, path: &[$($path),+], kind: FlagKind::$kind }),+];
    };
}

flags! {
    "enable-server" Bool "enableServer";
    "pod-manifest-path" Text "staticPodPath";
    "sync-frequency" Text "syncFrequency";
    "file-check-frequency" Text "fileCheckFrequency";
    "http-check-frequency" Text "httpCheckFrequency";
    "manifest-url" Text "staticPodURL";
    "manifest-url-header" Headers "staticPodURLHeader";
    "address" Text "address";
    "port" Int "port";
    "read-only-port" Int "readOnlyPort";
    "tls-cert-file" Text "tlsCertFile";
    "tls-private-key-file" Text "tlsPrivateKeyFile";
    "tls-cipher-suites" List "tlsCipherSuites";
    "tls-min-version" Text "tlsMinVersion";
    "rotate-certificates" Bool "rotateCertificates";
    "rotate-server-certificates" Bool "serverTLSBootstrap";
    "anonymous-auth" Bool "authentication"."anonymous"."enabled";
    "authentication-token-webhook" Bool "authentication"."webhook"."enabled";
    "authentication-token-webhook-cache-ttl" Text "authentication"."webhook"."cacheTTL";
    "client-ca-file" Text "authentication"."x509"."clientCAFile";
    "authorization-mode" Text "authorization"."mode";
    "authorization-webhook-cache-authorized-ttl" Text "authorization"."webhook"."cacheAuthorizedTTL";
    "authorization-webhook-cache-unauthorized-ttl" Text "authorization"."webhook"."cacheUnauthorizedTTL";
    "registry-qps" Int "registryPullQPS";
    "registry-burst" Int "registryBurst";
    "event-qps" Int "eventRecordQPS";
    "event-burst" Int "eventBurst";
    "enable-debugging-handlers" Bool "enableDebuggingHandlers";
    "contention-profiling" Bool "enableContentionProfiling";
    "healthz-port" Int "healthzPort";
    "healthz-bind-address" Text "healthzBindAddress";
    "oom-score-adj" Int "oomScoreAdj";
    "cluster-domain" Text "clusterDomain";
    "cluster-dns" List "clusterDNS";
    "streaming-connection-idle-timeout" Text "streamingConnectionIdleTimeout";
    "node-status-update-frequency" Text "nodeStatusUpdateFrequency";
    "minimum-image-ttl-duration" Text "imageMinimumGCAge";
    "image-gc-high-threshold" Int "imageGCHighThresholdPercent";
    "image-gc-low-threshold" Int "imageGCLowThresholdPercent";
    "volume-stats-agg-period" Text "volumeStatsAggPeriod";
    "kubelet-cgroups" Text "kubeletCgroups";
    "system-cgroups" Text "systemCgroups";
    "cgroup-root" Text "cgroupRoot";
    "cgroups-per-qos" Bool "cgroupsPerQOS";
    "cgroup-driver" Text "cgroupDriver";
    "cpu-manager-policy" Text "cpuManagerPolicy";
    "cpu-manager-policy-options" Map "cpuManagerPolicyOptions";
    "cpu-manager-reconcile-period" Text "cpuManagerReconcilePeriod";
    "memory-manager-policy" Text "memoryManagerPolicy";
    "topology-manager-policy" Text "topologyManagerPolicy";
    "topology-manager-scope" Text "topologyManagerScope";
    "topology-manager-policy-options" Map "topologyManagerPolicyOptions";
    "qos-reserved" Map "qosReserved";
    "runtime-request-timeout" Text "runtimeRequestTimeout";
    "hairpin-mode" Text "hairpinMode";
    "max-pods" Int "maxPods";
    "pod-cidr" Text "podCIDR";
    "pod-max-pids" Int "podPidsLimit";
    "resolv-conf" Text "resolvConf";
    "runonce" Bool "runOnce";
    "cpu-cfs-quota" Bool "cpuCFSQuota";
    "cpu-cfs-quota-period" Text "cpuCFSQuotaPeriod";
    "node-status-max-images" Int "nodeStatusMaxImages";
    "max-open-files" Int "maxOpenFiles";
    "kube-api-content-type" Text "contentType";
    "kube-api-qps" Int "kubeAPIQPS";
    "kube-api-burst" Int "kubeAPIBurst";
    "serialize-image-pulls" Bool "serializeImagePulls";
    "eviction-hard" LessMap "evictionHard";
    "eviction-soft" LessMap "evictionSoft";
    "eviction-soft-grace-period" Map "evictionSoftGracePeriod";
    "eviction-pressure-transition-period" Text "evictionPressureTransitionPeriod";
    "eviction-max-pod-grace-period" Int "evictionMaxPodGracePeriod";
    "eviction-minimum-reclaim" Map "evictionMinimumReclaim";
    "pods-per-core" Int "podsPerCore";
    "enable-controller-attach-detach" Bool "enableControllerAttachDetach";
    "protect-kernel-defaults" Bool "protectKernelDefaults";
    "make-iptables-util-chains" Bool "makeIPTablesUtilChains";
    "feature-gates" Gates "featureGates";
    "fail-swap-on" Bool "failSwapOn";
    "container-log-max-size" Text "containerLogMaxSize";
    "container-log-max-files" Int "containerLogMaxFiles";
    "system-reserved" Map "systemReserved";
    "kube-reserved" Map "kubeReserved";
    "reserved-cpus" Text "reservedSystemCPUs";
    "reserved-memory" ReservedMemory "reservedMemory";
    "system-reserved-cgroup" Text "systemReservedCgroup";
    "kube-reserved-cgroup" Text "kubeReservedCgroup";
    "enforce-node-allocatable" List "enforceNodeAllocatable";
    "allowed-unsafe-sysctls" List "allowedUnsafeSysctls";
    "volume-plugin-dir" Text "volumePluginDir";
    "provider-id" Text "providerID";
    "kernel-memcg-notification" Bool "kernelMemcgNotification";
    "logging-format" Text "logging"."format";
    "v" Int "logging"."verbosity";
    "log-flush-frequency" Text "logging"."flushFrequency";
    "seccomp-default" Bool "seccompDefault";
    "register-with-taints" Taints "registerWithTaints";
    "register-node" Bool "registerNode";
    "local-storage-capacity-isolation" Bool "localStorageCapacityIsolation";
    "container-runtime-endpoint" Text "containerRuntimeEndpoint";
    "image-service-endpoint" Text "imageServiceEndpoint";
    "fail-cgroupv1" Bool "failCgroupV1";
}

impl ConfigFlag {
    /// Writes the flag's value over the field it stands for.
    pub(super) fn apply(&self, tree: &mut Node, given: &str) -> Result<(), String> {
        let origin = Origin::Flag(self.name);
        let node = |value| Node { origin: origin.clone(), value };
        let text = |text: &str| node(Value::Text(text.trim().to_owned()));
        let map = |entries: Vec<(&str, &str)>| {
            Value::Map(entries.into_iter().map(|(k, v)| (k.to_owned(), origin.clone(), text(v))).collect())
        };
        let value = match self.kind {
            FlagKind::Text => Value::Text(given.to_owned()),
            FlagKind::Bool => Value::Bool(boolean(given)?),
            FlagKind::Int => {
                Value::Int(given.parse().map_err(|_| format!("{given:?} is not a whole number"))?)
            }
            FlagKind::List => Value::List(parts(given).map(text).collect()),
            FlagKind::Map => map(pairs(given, '=', "name=value")?),
            FlagKind::LessMap => map(pairs(given, '<', "signal<threshold")?),
            FlagKind::Gates => {
                for (gate, on) in pairs(given, '=', "Gate=true")? {
                    let path = [self.path, &[gate]].concat();
                    tree.set(&path, node(Value::Bool(boolean(on)?)));
                }
                return Ok(());
            }
            FlagKind::Taints => Value::List(
                parts(given)
                    .map(|part| taint(part).map(|taint| node(map(taint))))
                    .collect::<Result<_, _>>()?,
            ),
            FlagKind::Headers => {
                let mut headers: Vec<(String, Origin, Node)> = vec![];
                for (name, value) in pairs(given, ':', "name:value")? {
                    match headers.iter_mut().find(|(known, ..)| known == name) {
                        Some((_, _, Node { value: Value::List(values), .. })) => values.push(text(value)),
                        _ => {
                            headers.push((name.into(), origin.clone(), node(Value::List(vec![text(value)]))))
                        }
                    }
                }
                Value::Map(headers)
            }
            FlagKind::ReservedMemory => Value::List(
                given
                    .split(';')
                    .filter(|part| !part.trim().is_empty())
                    .map(|part| {
                        reservation(part).map(|(numa, limits)| {
                            node(Value::Map(vec![
                                ("numaNode".into(), origin.clone(), node(Value::Int(numa))),
                                ("limits".into(), origin.clone(), node(map(limits))),
                            ]))
                        })
                    })
                    .collect::<Result<_, _>>()?,
            ),
        };
        tree.set(self.path, node(value));
        Ok(())
    }
}

fn parts(given: &str) -> impl Iterator<Item = &str> {
    given.split(',').map(str::trim).filter(|part| !part.is_empty())
}

fn pairs<'a>(given: &'a str, separator: char, form: &str) -> Result<Vec<(&'a str, &'a str)>, String> {
    parts(given)
        .map(|part| {
            let (key, value) =
                part.split_once(separator).ok_or_else(|| format!("{part:?} is not of the form {form}"))?;
            Ok((key.trim(), value.trim()))
        })
        .collect()
}

fn boolean(given: &str) -> Result<bool, String> {
    match given.trim() {
        "true" | "True" | "TRUE" | "1" | "t" | "T" => Ok(true),
        "false" | "False" | "FALSE" | "0" | "f" | "F" => Ok(false),
        other => Err(format!("{other:?} is neither true nor false")),
    }
}

fn taint(part: &str) -> Result<Vec<(&str, &str)>, String> {
    let wrong = || format!("{part:?} is not a taint: write key=value:Effect or key:Effect");
    let (key, effect) = part.rsplit_once(':').ok_or_else(wrong)?;
    let (key, value) = key.split_once('=').unwrap_or((key, ""));
    if key.is_empty() || effect.is_empty() {
        return Err(wrong());
    }
    Ok(vec![("key", key), ("value", value), ("effect", effect)])
}

/// A NUMA node and what is set aside on it, by resource.
type Reservation<'a> = (i64, Vec<(&'a str, &'a str)>);

fn reservation(part: &str) -> Result<Reservation<'_>, String> {
    let wrong = || format!("{part:?} is not of the form 0:memory=1Gi,hugepages-1Gi=2Gi");
    let (numa, limits) = part.split_once(':').ok_or_else(wrong)?;
    Ok((numa.trim().parse().map_err(|_| wrong())?, pairs(limits, '=', "memory=1Gi")?))
}

impl FlagKind {
    /// What stands for the value in a usage message.
    pub fn value_name(self) -> &'static str {
        match self {
            Self::Bool => "true|false",
            Self::Int => "N",
            Self::Text => "TEXT",
            Self::List | Self::Taints | Self::Headers => "LIST",
            Self::Map | Self::LessMap | Self::Gates | Self::ReservedMemory => "PAIRS",
        }
    }
}
