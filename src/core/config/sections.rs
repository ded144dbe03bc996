//! The nested sections of a KubeletConfiguration.

use std::collections::BTreeMap;

use super::checks::{between, flush_frequency};
use super::fields::section;
use super::{AuthorizationMode, LogFormat, Period, QuantityText, SwapBehavior, TaintEffect};

section! {
    Authentication {
        pub x509: X509Authentication = if_absent(X509Authentication::default()) => "x509";
        pub webhook: WebhookAuthentication = if_absent(WebhookAuthentication::default()) => "webhook";
        pub anonymous: AnonymousAuthentication = if_absent(AnonymousAuthentication::default()) => "anonymous";
    }
    X509Authentication {
        pub client_ca_file: String = if_zero(String::new()) => "clientCAFile", flag("client-ca-file", Text);
    }
    WebhookAuthentication {
        pub enabled: bool = if_absent(true) => "enabled", flag("authentication-token-webhook", Bool);
        pub cache_ttl: Period = if_zero(Period::minutes(2)) => "cacheTTL",
            flag("authentication-token-webhook-cache-ttl", Text);
    }
    AnonymousAuthentication {
        pub enabled: bool = if_absent(false) => "enabled", flag("anonymous-auth", Bool);
    }
    Authorization {
        pub mode: AuthorizationMode = if_absent(AuthorizationMode::Webhook) => "mode", flag("authorization-mode", Text);
        pub webhook: WebhookAuthorization = if_absent(WebhookAuthorization::default()) => "webhook";
    }
    WebhookAuthorization {
        pub cache_authorized_ttl: Period = if_zero(Period::minutes(5)) => "cacheAuthorizedTTL",
            flag("authorization-webhook-cache-authorized-ttl", Text);
        pub cache_unauthorized_ttl: Period = if_zero(Period::seconds(30)) => "cacheUnauthorizedTTL",
            flag("authorization-webhook-cache-unauthorized-ttl", Text);
    }
    MemorySwap {
        pub swap_behavior: SwapBehavior = if_absent(SwapBehavior::Unset) => "swapBehavior";
    }
    Logging {
        pub format: LogFormat = if_absent(LogFormat::Text) => "format", flag("logging-format", Text);
        pub(super) flush_frequency: FlushFrequency = if_absent(FlushFrequency(Period::seconds(5))) => "flushFrequency",
            flag("log-flush-frequency", Text), check(flush_frequency);
        pub verbosity: u32 = if_absent(0) => "verbosity", flag("v", Int);
        pub(super) vmodule: Vec<VModule> = if_absent(vec![]) => "vmodule";
        pub options: LogOptions = if_absent(LogOptions::default()) => "options";
    }
    VModule {
        pub(super) file_pattern: String = if_absent(String::new()) => "filePattern";
        pub(super) verbosity: u32 = if_absent(0) => "verbosity";
    }
    LogOptions {
        pub text: LogRouting = if_absent(LogRouting::default()) => "text";
        pub json: LogRouting = if_absent(LogRouting::default()) => "json";
    }
    LogRouting {
        pub(super) split_stream: bool = if_absent(false) => "splitStream";
        pub(super) info_buffer_size: QuantityText = if_zero(QuantityText::of("0")) => "infoBufferSize";
    }
    ShutdownGracePeriodByPodPriority {
        pub(super) priority: i32 = if_absent(0) => "priority";
        pub(super) shutdown_grace_period_seconds: i64 = if_absent(0) => "shutdownGracePeriodSeconds";
    }
    CrashLoopBackOff {
        pub max_container_restart_period: Period = if_absent(Period::minutes(5)) => "maxContainerRestartPeriod",
            check(between(Period::seconds(1), Period::minutes(5)));
    }
    MemoryReservation {
        pub numa_node: i32 = if_absent(0) => "numaNode";
        pub limits: BTreeMap<String, QuantityText> = if_absent(BTreeMap::new()) => "limits";
    }
    Tracing {
        pub(super) endpoint: Option<String> = if_absent(None) => "endpoint";
        pub(super) sampling_rate_per_million: Option<i32> = if_absent(None) => "samplingRatePerMillion";
    }
    UserNamespaces {
        pub ids_per_pod: i64 = if_absent(65536) => "idsPerPod";
    }
    /// A taint that the node is registered with.
    Taint {
        pub key: String = if_absent(String::new()) => "key";
        pub value: String = if_absent(String::new()) => "value";
        pub effect: TaintEffect = if_absent(TaintEffect::NoSchedule) => "effect";
        pub time_added: Option<String> = if_absent(None) => "timeAdded";
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
