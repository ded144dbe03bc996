//! The versions of the CNI protocol.

/// A version of the protocol; later ones compare greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CniVersion {
    V010,
    V020,
    V030,
    V031,
    V040,
    V100,
    V110,
}

impl CniVersion {
    pub const ALL: [CniVersion; 7] = [
        CniVersion::V010,
        CniVersion::V020,
        CniVersion::V030,
        CniVersion::V031,
        CniVersion::V040,
        CniVersion::V100,
        CniVersion::V110,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            CniVersion::V010 => "0.1.0",
            CniVersion::V020 => "0.2.0",
            CniVersion::V030 => "0.3.0",
            CniVersion::V031 => "0.3.1",
            CniVersion::V040 => "0.4.0",
            CniVersion::V100 => "1.0.0",
            CniVersion::V110 => "1.1.0",
        }
    }

    /// Reads a version; a configuration without one means the oldest.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(CniVersion::V010);
        }
        Self::ALL.into_iter().find(|v| v.as_str() == text)
    }
}

impl std::fmt::Display for CniVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

pub fn supported_versions() -> Vec<&'static str> {
    CniVersion::ALL.into_iter().map(CniVersion::as_str).collect()
}
