//! The nested sections of a KubeletConfiguration.

use std::collections::BTreeMap;

use super::fields::section;
use super::{Amount, AuthorizationMode, LogFormat, Period, SwapBehavior, TaintEffect};

section! {
    Authentication {
        "x509" x509: X509Authentication = if_absent(X509Authentication::default()),
        "webhook" webhook: WebhookAuthentication = if_absent(WebhookAuthentication::default()),
        "anonymous" anonymous: AnonymousAuthentication = if_absent(AnonymousAuthentication::default()),
    }
    X509Authentication {
        "clientCAFile" client_ca_file: String = if_zero(String::new()),
    }
    WebhookAuthentication {
        "enabled" enabled: bool = if_absent(true),
        "cacheTTL" cache_ttl: Period = if_zero(Period::minutes(2)),
    }
    AnonymousAuthentication {
        "enabled" enabled: bool = if_absent(false),
    }
    Authorization {
        "mode" mode: AuthorizationMode = if_absent(AuthorizationMode::Webhook),
        "webhook" webhook: WebhookAuthorization = if_absent(WebhookAuthorization::default()),
    }
    WebhookAuthorization {
        "cacheAuthorizedTTL" cache_authorized_ttl: Period = if_zero(Period::minutes(5)),
        "cacheUnauthorizedTTL" cache_unauthorized_ttl: Period = if_zero(Period::seconds(30)),
    }
    MemorySwap {
        "swapBehavior" swap_behavior: SwapBehavior = if_absent(SwapBehavior::Unset),
    }
    Logging {
        "format" format: LogFormat = if_absent(LogFormat::Text),
        "flushFrequency" flush_frequency: FlushFrequency = if_absent(FlushFrequency(Period::seconds(5))),
        "verbosity" verbosity: u32 = if_absent(0),
        "vmodule" vmodule: Vec<VModule> = if_absent(vec![]),
        "options" options: LogOptions = if_absent(LogOptions::default()),
    }
    VModule {
        "filePattern" file_pattern: String = if_absent(String::new()),
        "verbosity" verbosity: u32 = if_absent(0),
    }
    LogOptions {
        "text" text: LogRouting = if_absent(LogRouting::default()),
        "json" json: LogRouting = if_absent(LogRouting::default()),
    }
    LogRouting {
        "splitStream" split_stream: bool = if_absent(false),
        "infoBufferSize" info_buffer_size: Amount = if_zero(Amount::zero()),
    }
    ShutdownGracePeriodByPodPriority {
        "priority" priority: i32 = if_absent(0),
        "shutdownGracePeriodSeconds" shutdown_grace_period_seconds: i64 = if_absent(0),
    }
    CrashLoopBackOff {
        /// Only with the feature gate KubeletCrashLoopBackOffMax.
        "maxContainerRestartPeriod" max_container_restart_period: Option<Period> = if_absent(None),
    }
    MemoryReservation {
        "numaNode" numa_node: i32 = if_absent(0),
        "limits" limits: BTreeMap<String, Amount> = if_absent(BTreeMap::new()),
    }
    Tracing {
        "endpoint" endpoint: Option<String> = if_absent(None),
        "samplingRatePerMillion" sampling_rate_per_million: Option<i32> = if_absent(None),
    }
    UserNamespaces {
        "idsPerPod" ids_per_pod: i64 = if_absent(65536),
    }
    /// A taint that the node is registered with.
    Taint {
        "key" key: String = if_absent(String::new()),
        "value" value: String = if_absent(String::new()),
        "effect" effect: TaintEffect = if_absent(TaintEffect::NoSchedule),
        "timeAdded" time_added: Option<String> = if_absent(None),
    }
}

/// The one duration that may be written as a bare number, of nanoseconds: older versions of the API had it so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlushFrequency(pub Period);

impl serde::Serialize for FlushFrequency {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> serde::Deserialize<'de> for FlushFrequency {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = FlushFrequency;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a duration such as \"5s\", or a number of nanoseconds")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<FlushFrequency, E> {
                text.parse().map(FlushFrequency).map_err(E::custom)
            }
            fn visit_i64<E: serde::de::Error>(self, nanos: i64) -> Result<FlushFrequency, E> {
                Ok(FlushFrequency(if nanos == 0 { Period::seconds(5) } else { Period::nanos(nanos) }))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
