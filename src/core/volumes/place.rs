//! Where a volume is found once it was prepared.

use k8s_openapi::api::core::v1::{ImageVolumeSource, Volume};

/// Most volumes lie on this machine and are mounted from there; some only the runtime can mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumePlace {
    Host(String),
    Image(VolumeImage),
}

/// An image whose files are a volume. It is pulled for each container that mounts it, as the container's own image is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeImage {
    pub reference: String,
    /// Always, IfNotPresent or Never.
    pub pull_policy: String,
}

impl VolumePlace {
    pub fn on_host(&self) -> Option<&str> {
        match self {
            Self::Host(path) => Some(path),
            Self::Image(_) => None,
        }
    }

    pub fn image(&self) -> Option<&VolumeImage> {
        match self {
            Self::Host(_) => None,
            Self::Image(image) => Some(image),
        }
    }
}

impl VolumeImage {
    /// `None` for a volume of another kind. The problem of one that names no image is said in words.
    pub fn of(volume: &Volume) -> Option<Result<Self, String>> {
        let ImageVolumeSource { reference, pull_policy } = volume.image.clone()?;
        let reference = reference.unwrap_or_default();
        if reference.is_empty() {
            return Some(Err("image.reference is empty; it must name an image".to_owned()));
        }
        Some(Ok(Self { reference, pull_policy: pull_policy.unwrap_or_else(|| "IfNotPresent".to_owned()) }))
    }
}

/// What a pod may ask a runtime to mount of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImagePart {
    Whole,
    SubPath,
}

/// Runtimes that are known by name, and their first versions that mount a whole image and a part of one. Older ones ignore the
/// request's field: they fail with words that say nothing of images, or mount the whole where a part was asked for.
const FIRST: [(&str, [u64; 2], [u64; 2]); 2] = [("containerd", [2, 1], [2, 2]), ("cri-o", [1, 31], [1, 33])];

/// Whether a runtime can mount images, as far as its name and version tell: it does not say so itself. The error says which can.
pub fn check_mounts_images(name: &str, version: &str, part: ImagePart) -> Result<(), String> {
    let Some((_, whole, sub_path)) = FIRST.iter().find(|(known, ..)| *known == name) else { return Ok(()) };
    let mut numbers = version.trim().trim_start_matches('v').split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next()?.parse::<u64>().ok();
    let (Some(major), Some(minor)) = (next(), next()) else { return Ok(()) };
    let (first, what) = match part {
        ImagePart::Whole => (whole, "images"),
        ImagePart::SubPath => (sub_path, "a subPath of an image"),
    };
    if [major, minor] >= *first {
        return Ok(());
    }
    Err(format!("{name} {version} cannot mount {what}; {name} {}.{} or newer can", first[0], first[1]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_runtime_that_is_too_old_to_mount_images_is_named_with_the_version_that_can() {
        let cases = [
            ("containerd", "v2.2.0", true, true),
            ("containerd", "v2.1.9", true, false),
            ("containerd", "2.1.0-rc.1", true, false),
            ("containerd", "3.0.0", true, true),
            ("containerd", "v2.0.7", false, false),
            ("containerd", "1.6.20~ds1", false, false),
            ("cri-o", "1.33.1", true, true),
            ("cri-o", "1.31.0", true, false),
            ("cri-o", "1.30.4", false, false),
            ("another", "0.1", true, true),
            ("containerd", "", true, true),
            ("containerd", "unknown", true, true),
        ];
        for (name, version, whole, sub_path) in cases {
            for (part, able) in [(ImagePart::Whole, whole), (ImagePart::SubPath, sub_path)] {
                let said = check_mounts_images(name, version, part);
                assert_eq!(said.is_ok(), able, "{name} {version} {part:?}");
                let names_both = |e: String| e.contains(version) && e.contains("or newer");
                assert!(able || said.is_err_and(names_both), "{name} {version}");
            }
        }
    }

    #[test]
    fn a_volume_of_an_image_names_one_and_says_when_it_is_pulled() {
        let of = |source| VolumeImage::of(&serde_json::from_value(source).unwrap());
        assert_eq!(of(json!({"name": "v", "emptyDir": {}})), None);
        assert!(of(json!({"name": "v", "image": {}})).unwrap().is_err());
        let image = |policy: &str| VolumeImage { reference: "r.io/x:1".into(), pull_policy: policy.into() };
        assert_eq!(
            of(json!({"name": "v", "image": {"reference": "r.io/x:1"}})),
            Some(Ok(image("IfNotPresent")))
        );
        let always = json!({"name": "v", "image": {"reference": "r.io/x:1", "pullPolicy": "Always"}});
        assert_eq!(of(always), Some(Ok(image("Always"))));
    }
}
