//! preloadedImagesVerificationAllowlist: the images that every pod may use when they are there.

use super::ImageName;
use super::name::without_tag;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowlist {
    exact: Vec<String>,
    /// Each ends with a slash.
    below: Vec<String>,
}

impl Allowlist {
    /// A pattern is an image without tag and digest, or everything below a registry or a path: `r.io/*`. Names are compared as
    /// they are written: `busybox` is not `docker.io/library/busybox`.
    pub fn of(patterns: &[String]) -> Result<Self, String> {
        let mut list = Self::default();
        for pattern in patterns {
            check(pattern).map_err(|problem| format!("{pattern:?} {problem}"))?;
            match pattern.strip_suffix('*') {
                Some(prefix) => list.below.push(prefix.to_owned()),
                None => list.exact.push(pattern.clone()),
            }
        }
        Ok(list)
    }

    pub fn contains(&self, image: &str) -> bool {
        let name = without_tag(image);
        self.exact.iter().any(|exact| exact == name)
            || self.below.iter().any(|prefix| name.starts_with(prefix))
    }
}

fn check(pattern: &str) -> Result<(), &'static str> {
    if pattern.trim() != pattern {
        return Err("begins or ends with a space");
    }
    if let Some(prefix) = pattern.strip_suffix("/*") {
        return match prefix {
            "" => Err("names no registry before the star"),
            prefix if prefix.contains('*') => Err("may have a star at its end only, behind a slash"),
            _ => Ok(()),
        };
    }
    if pattern.contains('*') {
        return Err("may have a star at its end only, behind a slash");
    }
    if ImageName::parse(pattern).is_err() {
        return Err("is no name of an image");
    }
    if without_tag(pattern) != pattern {
        return Err("must have neither tag nor digest");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_matched_as_they_are_written() {
        let patterns = ["busybox", "r.io/team/*", "r.io:5000/exact"].map(str::to_owned);
        let list = Allowlist::of(&patterns).unwrap();
        for (image, expected) in [
            ("busybox", true),
            ("busybox:1.36", true),
            ("docker.io/library/busybox", false),
            ("r.io/team/app:1", true),
            ("r.io/team/deep/app", true),
            ("r.io/teams/app", false),
            ("r.io:5000/exact@sha256:00", true),
            ("r.io:5000/exact/not", false),
        ] {
            assert_eq!(list.contains(image), expected, "{image}");
        }
        assert!(!Allowlist::default().contains("busybox"));
    }

    #[test]
    fn a_pattern_that_could_mean_something_else_is_refused_by_name() {
        for (pattern, problem) in [
            (" r.io/x", "space"),
            ("/*", "registry"),
            ("*", "star"),
            ("r.*/x", "star"),
            ("r.io/*/x/*", "star"),
            ("r.io/x:1", "tag"),
            ("", "no name"),
            ("R.io/X", "no name"),
        ] {
            let error = Allowlist::of(&[pattern.to_owned()]).unwrap_err();
            assert!(error.contains(problem) && error.contains(&format!("{pattern:?}")), "{error}");
        }
    }
}
