//! How the container runtime is, and what follows from it for the node.

use std::time::Duration;

use k8s_openapi::api::core::v1::{NodeFeatures, NodeRuntimeHandler};

/// The runtime does not report by itself whether it is well.
const HEARTBEAT: Duration = Duration::from_secs(5);
const HEARTBEAT_WHEN_DOWN: Duration = Duration::from_secs(1);
/// How long a runtime may leave questions unanswered before it counts as down; a kubelet waits as long. A restart takes a
/// second or two, and a node that is not ready for that long has all its pods marked so.
const PATIENCE: Duration = Duration::from_secs(30);
/// The list of images is long and changes with pulls, after which it is read anyway; this is for what others do to it.
const IMAGES_EVERY: Duration = Duration::from_secs(300);

/// What the Node shows of the runtime.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeRuntime {
    pub state: RuntimeState,
    /// See [`runtime_version`].
    pub version: String,
    pub handlers: Vec<NodeRuntimeHandler>,
    /// `None` where the runtime does not report any.
    pub features: Option<NodeFeatures>,
    /// See [`largest_images`].
    pub images: Vec<NodeImage>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeImage {
    /// Digests and tags.
    pub names: Vec<String>,
    pub size_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RuntimeState {
    /// It has not answered since this agent started.
    #[default]
    Unknown,
    /// It answered once and no longer does.
    Down {
        error: String,
    },
    Answering {
        runtime: RuntimeCondition,
        network: RuntimeCondition,
    },
}

/// One of the runtime's own conditions, RuntimeReady or NetworkReady.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeCondition {
    pub ready: bool,
    pub reason: String,
    pub message: String,
}

impl RuntimeState {
    pub fn is_ready(&self) -> bool {
        self.problems().is_empty()
    }

    /// How long until it is asked again. `answered`: the last question was.
    pub fn heartbeat(&self, answered: bool) -> Duration {
        if answered && self.is_ready() { HEARTBEAT } else { HEARTBEAT_WHEN_DOWN }
    }

    /// The state after a question that was not answered. What it was counts on for a while; `silent` is how long ago the last
    /// answer was.
    #[must_use]
    pub fn unanswered(self, silent: Option<Duration>, error: String) -> Self {
        match self {
            Self::Answering { .. } if silent.is_some_and(|silent| silent < PATIENCE) => self,
            _ => Self::Down { error },
        }
    }

    /// Whether the list of images is to be read; `age` is that of the last one.
    pub fn wants_images(&self, age: Option<Duration>) -> bool {
        self.is_ready() && age.is_none_or(|age| age > IMAGES_EVERY)
    }

    pub(super) fn problems(&self) -> Vec<String> {
        match self {
            Self::Unknown => vec!["container runtime status check may not have completed yet".to_owned()],
            Self::Down { error } if error.is_empty() => vec!["container runtime is down".to_owned()],
            Self::Down { error } => vec![format!("container runtime is down: {error}")],
            Self::Answering { runtime, .. } => {
                let runtime_problem = (!runtime.ready)
                    .then(|| format!("container runtime not ready: {}", words("RuntimeReady", runtime)));
                runtime_problem.into_iter().chain(self.network_problem()).collect()
            }
        }
    }

    /// What keeps pods from getting a network.
    pub fn network_problem(&self) -> Option<String> {
        match self {
            Self::Answering { network, .. } if !network.ready => {
                Some(format!("container runtime network not ready: {}", words("NetworkReady", network)))
            }
            _ => None,
        }
    }
}

fn words(name: &str, condition: &RuntimeCondition) -> String {
    format!("{name}=false reason:{} message:{}", condition.reason, condition.message)
}

/// The runtime and its version as the Node shows them, containerd://2.1.9: the kubelet's way of writing what runtimes and
/// distributions write as v2.1.9 or 1.6.20~ds1. `None` is a version that is not known.
pub fn runtime_version(name: &str, reported: Option<&str>) -> String {
    let version = reported.and_then(plain_version).unwrap_or_else(|| "Unknown".to_owned());
    format!("{name}://{version}")
}

/// The numbers, and behind three of them what semantic versioning allows there.
fn plain_version(reported: &str) -> Option<String> {
    let text = reported.trim();
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (numbers, rest) = text.split_at(end);
    let numbers = numbers.trim_end_matches('.');
    let parts: Vec<&str> = numbers.split('.').collect();
    if parts.len() < 2 || parts.iter().any(|part| part.is_empty()) {
        return None;
    }
    let word = |part: &str| {
        part.split('.').all(|w| !w.is_empty() && w.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'))
    };
    let (release, build) =
        rest.split_once('+').map_or((rest, None), |(release, build)| (release, Some(build)));
    let semantic = parts.len() == 3
        && parts.iter().all(|part| *part == "0" || !part.starts_with('0'))
        && (release.is_empty() || release.strip_prefix('-').is_some_and(word))
        && build.is_none_or(word);
    Some(if semantic { format!("{numbers}{rest}") } else { numbers.to_owned() })
}

/// The images that the API should carry: those that have a name, largest first, at most `most` of them.
pub fn largest_images(images: impl Iterator<Item = NodeImage>, most: usize) -> Vec<NodeImage> {
    let mut images: Vec<_> = images.filter(|image| !image.names.is_empty()).collect();
    images.sort_by(|a, b| b.size_bytes.cmp(&a.size_bytes).then_with(|| a.names.cmp(&b.names)));
    images.truncate(most);
    images
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_is_not_ready_is_asked_more_often_and_not_for_images() {
        let well = RuntimeCondition { ready: true, ..RuntimeCondition::default() };
        let ready = RuntimeState::Answering { runtime: well.clone(), network: well.clone() };
        let no_network = RuntimeState::Answering { runtime: well, network: RuntimeCondition::default() };
        for down in [RuntimeState::Unknown, no_network] {
            assert!(down.heartbeat(true) < ready.heartbeat(true));
            assert!(!down.wants_images(None));
        }
        assert!(
            ready.heartbeat(false) < ready.heartbeat(true),
            "one that did not answer is asked again soon"
        );
        assert!(ready.wants_images(None));
        assert!(!ready.wants_images(Some(IMAGES_EVERY)));
        assert!(ready.wants_images(Some(IMAGES_EVERY + Duration::from_secs(1))));
    }

    #[test]
    fn a_runtime_counts_as_down_when_it_was_silent_for_half_a_minute() {
        let ready = RuntimeCondition { ready: true, ..RuntimeCondition::default() };
        let ready = RuntimeState::Answering { runtime: ready.clone(), network: ready };
        let down = RuntimeState::Down { error: "e".into() };
        let seconds = |s| Some(Duration::from_secs(s));
        for (case, before, silent, expected) in [
            ("one answer is missing", &ready, seconds(5), &ready),
            ("the last moment", &ready, seconds(29), &ready),
            ("silent for too long", &ready, seconds(30), &down),
            ("down already", &down, seconds(1), &down),
            ("it never answered", &RuntimeState::Unknown, None, &down),
        ] {
            assert_eq!(before.clone().unanswered(silent, "e".into()), *expected, "{case}");
        }
    }

    #[test]
    fn versions_are_written_as_a_kubelet_writes_them() {
        for (reported, expected) in [
            (Some("v2.1.9"), "containerd://2.1.9"),
            (Some("2.1.9"), "containerd://2.1.9"),
            (Some("1.6.20~ds1"), "containerd://1.6.20"),
            (Some("v2.2.0-rc.1"), "containerd://2.2.0-rc.1"),
            (Some("1.7.24+build.5"), "containerd://1.7.24+build.5"),
            (Some("1.7.24-0ubuntu1~22.04.1"), "containerd://1.7.24"),
            (Some("1.30"), "containerd://1.30"),
            (Some("1.7.24.1"), "containerd://1.7.24.1"),
            (Some("3a1f"), "containerd://Unknown"),
            (Some(""), "containerd://Unknown"),
            (None, "containerd://Unknown"),
        ] {
            assert_eq!(runtime_version("containerd", reported), expected, "{reported:?}");
        }
    }

    #[test]
    fn the_largest_images_that_have_a_name_are_shown() {
        let image = |name: &str, size_bytes| NodeImage {
            names: Some(name.to_owned()).filter(|n| !n.is_empty()).into_iter().collect(),
            size_bytes,
        };
        let all = [image("small", 1), image("", 100), image("b", 50), image("a", 50)];
        let names: Vec<_> = largest_images(all.into_iter(), 2).into_iter().flat_map(|i| i.names).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
