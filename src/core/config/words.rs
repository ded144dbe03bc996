//! Fields that take one word of a fixed set.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($variant:ident = $word:literal),+ $(,)? } default $default:ident)+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($variant),+ }

        impl $name {
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl Default for $name {
            fn default() -> Self { Self::$default }
        }

        impl super::fields::FieldValue for $name {}

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(self.as_str()) }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl de::Visitor<'_> for Visitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        write!(f, "one of {}", listed($name::WORDS))
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        match text {
                            blank if blank.is_empty() => Ok($name::default()),
                            $($word => Ok($name::$variant),)+
                            other => Err(E::custom(format_args!(
                                "{other:?} is not known: use {}", listed($name::WORDS)
                            ))),
                        }
                    }
                }
                deserializer.deserialize_str(Visitor)
            }
        }
    )+};
}

/// `"a"`, `"a" or "b"`, `"a", "b" or "c"`.
pub(super) fn listed(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().filter(|w| !w.is_empty()).map(|w| format!("{w:?}")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, init)) => format!("{} or {last}", init.join(", ")),
        None => String::new(),
    }
}

words! {
    /// Who writes the cgroup tree: the agent itself, or systemd on its behalf.
    CgroupDriver { Cgroupfs = "cgroupfs", Systemd = "systemd" } default Cgroupfs
    HairpinMode { PromiscuousBridge = "promiscuous-bridge", HairpinVeth = "hairpin-veth", None = "none" } default PromiscuousBridge
    AuthorizationMode { AlwaysAllow = "AlwaysAllow", Webhook = "Webhook" } default Webhook
    CpuManagerPolicy { None = "none", Static = "static" } default None
    MemoryManagerPolicy { None = "None", Static = "Static" } default None
    TopologyManagerPolicy {
        None = "none", BestEffort = "best-effort", Restricted = "restricted", SingleNumaNode = "single-numa-node",
    } default None
    TopologyManagerScope { Container = "container", Pod = "pod" } default Container
    /// How changes of config maps and secrets are noticed.
    ChangeDetection { Get = "Get", Cache = "Cache", Watch = "Watch" } default Watch
    SwapBehavior { Unset = "", NoSwap = "NoSwap", LimitedSwap = "LimitedSwap" } default Unset
    MemoryReservationPolicy { None = "None", TieredReservation = "TieredReservation" } default None
    ImagePullVerification {
        NeverVerify = "NeverVerify", NeverVerifyPreloadedImages = "NeverVerifyPreloadedImages",
        NeverVerifyAllowlistedImages = "NeverVerifyAllowlistedImages", AlwaysVerify = "AlwaysVerify",
    } default NeverVerifyPreloadedImages
    LogFormat { Text = "text", Json = "json" } default Text
    /// A level of node allocatable that the cgroup tree holds pods or daemons to.
    Enforcement {
        Pods = "pods", SystemReserved = "system-reserved", SystemReservedCompressible = "system-reserved-compressible",
        KubeReserved = "kube-reserved", KubeReservedCompressible = "kube-reserved-compressible", None = "none",
    } default Pods
    TlsVersion { Unset = "", Tls12 = "VersionTLS12", Tls13 = "VersionTLS13" } default Unset
    TaintEffect { NoSchedule = "NoSchedule", PreferNoSchedule = "PreferNoSchedule", NoExecute = "NoExecute" } default NoSchedule
}
