//! An image that is not there for its container: the waiting reason, the words, the event, and when to try again.

use crate::plan::PlannedEvent;
use crate::pod::{StartFailure, StartRetry};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageFailure {
    InvalidName {
        image: String,
        problem: String,
    },
    /// The policy forbids pulling and the image is not there.
    NeverPull {
        image: String,
    },
    /// The runtime could not be asked whether it is there.
    Inspect {
        image: String,
        error: String,
    },
    /// The pull was tried; `error` is what the runtime says of it.
    Pull {
        image: String,
        error: String,
    },
}

/// The waiting reason of a container whose image serves its back-off.
pub const PULL_BACK_OFF: &str = "ImagePullBackOff";
const NEVER_PULL: &str = "ErrImageNeverPull";
const INVALID_NAME: &str = "InvalidImageName";
const INSPECT: &str = "ImageInspectError";
const PULL: &str = "ErrImagePull";
/// Words that a runtime begins its error with, and what they mean. They become the reason themselves.
const NAMED: [(&str, &str); 2] = [
    ("RegistryUnavailable", "the registry is unavailable"),
    ("SignatureValidationFailed", "the signature validation failed"),
];

/// Whether this waiting reason is that of a pull which was tried, and which is in back-off from now on.
pub fn is_failed_pull(reason: &str) -> bool {
    reason == PULL || NAMED.iter().any(|(name, _)| *name == reason)
}

/// Whether this waiting reason is about the container's image.
pub fn is_image_reason(reason: &str) -> bool {
    is_failed_pull(reason) || [NEVER_PULL, INVALID_NAME, INSPECT, PULL_BACK_OFF].contains(&reason)
}

impl ImageFailure {
    /// As the container's waiting reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidName { .. } => INVALID_NAME,
            Self::NeverPull { .. } => NEVER_PULL,
            Self::Inspect { .. } => INSPECT,
            Self::Pull { error, .. } => named(error).map_or(PULL, |(name, _, _)| name),
        }
    }

    /// As the waiting reason's message.
    pub fn message(&self) -> String {
        match self {
            Self::InvalidName { image, problem } => format!(
                "Failed to apply default image tag {image:?}: couldn't parse image name {image:?}: {problem}"
            ),
            Self::NeverPull { image } => {
                format!("Container image {image:?} is not present with pull policy of Never")
            }
            Self::Inspect { image, error } => format!("Failed to inspect image {image:?}: {error}"),
            Self::Pull { image, error } => match named(error) {
                Some((_, meaning, rest)) => format!("image pull failed for {image} because {meaning}{rest}"),
                None => error.clone(),
            },
        }
    }

    /// What is said of it beside "Error: " and the reason.
    pub fn event(&self) -> PlannedEvent {
        match self {
            Self::InvalidName { .. } | Self::Inspect { .. } => {
                PlannedEvent::warning("InspectFailed", self.message())
            }
            Self::NeverPull { .. } => PlannedEvent::warning(NEVER_PULL, self.message()),
            Self::Pull { image, error } => {
                PlannedEvent::warning("Failed", format!("Failed to pull image {image:?}: {error}"))
            }
        }
    }
}

/// A registry is given time between two pulls, longer each time. What has not asked one is tried again as anything else is.
impl From<ImageFailure> for StartFailure {
    fn from(failure: ImageFailure) -> Self {
        let retry = match failure {
            ImageFailure::Pull { .. } => StartRetry::Pull,
            _ => StartRetry::Later,
        };
        Self { reason: failure.reason(), message: failure.message(), retry }
    }
}

/// What keeps a volume's image from its container. The container has an image of its own, so the message says which is meant.
pub fn of_volume(volume: &str, image: &str, failure: StartFailure) -> StartFailure {
    StartFailure { message: format!("{VOLUME}{volume:?} ({image}): {}", failure.message), ..failure }
}

/// The image that such a message is about, also where more was said in front of it.
pub(crate) fn image_of_volume(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once(VOLUME)?;
    let (_, rest) = rest.split_once("\" (")?;
    rest.split_once("): ").map(|(image, _)| image)
}

const VOLUME: &str = "image volume ";

/// A pod may name secrets for its images that do not exist: what needs none of them is pulled all the same.
pub fn unknown_secrets(named: &[&str], known: impl Fn(&str) -> bool) -> Option<PlannedEvent> {
    let unknown: Vec<&str> = named.iter().copied().filter(|name| !known(name)).collect();
    let message = format!(
        "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
        unknown.join(", ")
    );
    (!unknown.is_empty()).then(|| PlannedEvent::warning("FailedToRetrieveImagePullSecret", message))
}

/// The reason that an error begins with, its meaning, and what comes after it.
fn named(error: &str) -> Option<(&'static str, &'static str, &str)> {
    NAMED.iter().find_map(|(name, meaning)| Some((*name, *meaning, error.strip_prefix(name)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_its_reason_its_words_and_its_time() {
        let image = || "r.io/x:1".to_owned();
        let pull = |error: &str| ImageFailure::Pull { image: image(), error: error.into() };
        let said = "Failed to pull image \"r.io/x:1\": ";
        let never = "Container image \"r.io/x:1\" is not present with pull policy of Never";
        let inspect = "Failed to inspect image \"r.io/x:1\": gone";
        let name = "Failed to apply default image tag \"A\": couldn't parse image name \"A\": no";
        let unavailable =
            "image pull failed for r.io/x:1 because the registry is unavailable: connection refused";
        let unsigned = "image pull failed for r.io/x:1 because the signature validation failed: no key";
        let cases = [
            (
                pull("not found"),
                "ErrImagePull",
                "not found",
                format!("Failed: {said}not found"),
                StartRetry::Pull,
            ),
            (
                pull("RegistryUnavailable: connection refused"),
                "RegistryUnavailable",
                unavailable,
                format!("Failed: {said}RegistryUnavailable: connection refused"),
                StartRetry::Pull,
            ),
            (
                pull("SignatureValidationFailed: no key"),
                "SignatureValidationFailed",
                unsigned,
                format!("Failed: {said}SignatureValidationFailed: no key"),
                StartRetry::Pull,
            ),
            (
                pull("it says RegistryUnavailable"),
                "ErrImagePull",
                "it says RegistryUnavailable",
                format!("Failed: {said}it says RegistryUnavailable"),
                StartRetry::Pull,
            ),
            (
                ImageFailure::NeverPull { image: image() },
                "ErrImageNeverPull",
                never,
                format!("ErrImageNeverPull: {never}"),
                StartRetry::Later,
            ),
            (
                ImageFailure::Inspect { image: image(), error: "gone".into() },
                "ImageInspectError",
                inspect,
                format!("InspectFailed: {inspect}"),
                StartRetry::Later,
            ),
            (
                ImageFailure::InvalidName { image: "A".into(), problem: "no".into() },
                "InvalidImageName",
                name,
                format!("InspectFailed: {name}"),
                StartRetry::Later,
            ),
        ];
        for (failure, reason, message, event, retry) in cases {
            let said = failure.event();
            assert!(said.warning);
            assert_eq!(format!("{}: {}", said.reason, said.message), event);
            let start = StartFailure::from(failure);
            assert_eq!((start.reason, start.message.as_str(), start.retry), (reason, message, retry));
            assert!(is_image_reason(reason));
            assert_eq!(is_failed_pull(reason), retry == StartRetry::Pull, "{reason}");
        }
        for other in ["ImagePullBackOff", "CreateContainerError", "CrashLoopBackOff"] {
            assert!(!is_failed_pull(other), "{other}");
        }
        assert!(!is_image_reason("CreateContainerConfigError"));
    }

    #[test]
    fn a_failure_of_a_volume_s_image_names_the_volume_and_the_image() {
        let failure = ImageFailure::Pull { image: "r.io/x:1".into(), error: "not found".into() };
        let said = of_volume("data", "r.io/x:1", failure.into());
        assert_eq!((said.reason, said.retry), ("ErrImagePull", StartRetry::Pull));
        assert_eq!(said.message, "image volume \"data\" (r.io/x:1): not found");
        assert_eq!(image_of_volume(&said.message), Some("r.io/x:1"));
        let softened = format!("Back-off pulling image \"r.io/x:1\": ErrImagePull: {}", said.message);
        assert_eq!(image_of_volume(&softened), Some("r.io/x:1"));
        assert_eq!(image_of_volume("not found"), None);
    }

    #[test]
    fn secrets_that_do_not_exist_are_named_once_together() {
        let known = |name: &str| name == "a";
        assert_eq!(unknown_secrets(&[], known), None);
        assert_eq!(unknown_secrets(&["a"], known), None);
        let event = unknown_secrets(&["b", "a", "c"], known).unwrap();
        assert_eq!(event.reason, "FailedToRetrieveImagePullSecret");
        assert!(event.message.contains("(b, c)"), "{}", event.message);
    }
}
