//! The name of an image, by the grammar that registries and runtimes share.

/// Where an image lies: the registry's host and the repository on it. Short names are Docker Hub's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageName {
    /// With its port, if it has one.
    pub host: String,
    pub repository: String,
}

/// Docker Hub, under the name that images carry.
const HUB: &str = "docker.io";
/// The same under its former name, which is still the key of most credentials for it.
pub(super) const FORMER_HUB: &str = "index.docker.io";
const LONGEST_REPOSITORY: usize = 255;
const LONGEST_TAG: usize = 128;
const UNREADABLE: &str = "invalid reference format";

impl ImageName {
    pub fn parse(image: &str) -> Result<Self, String> {
        let is_id = image.len() == 64 && image.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if is_id {
            return Err(format!(
                "invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"
            ));
        }
        let (host, rest) = split_host(image);
        // On the hub, a name of one word belongs to its own library.
        let rest = match host == HUB && !rest.contains('/') {
            true => &format!("library/{rest}"),
            false => rest,
        };
        let remote = rest.split(':').next().unwrap_or(rest);
        if remote.chars().any(char::is_uppercase) {
            return Err(format!("{UNREADABLE}: repository name ({remote}) must be lowercase"));
        }
        let (rest, digest) = match rest.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (rest, None),
        };
        let (repository, tag) = match rest.split_once(':') {
            Some((repository, tag)) => (repository, Some(tag)),
            None => (rest, None),
        };
        let readable = is_host(host) && repository.split('/').all(is_component) && tag.is_none_or(is_tag);
        if !readable {
            return Err(UNREADABLE.into());
        }
        if repository.len() > LONGEST_REPOSITORY {
            return Err(format!("repository name must not be more than {LONGEST_REPOSITORY} characters"));
        }
        digest.map_or(Ok(()), check_digest)?;
        Ok(Self { host: host.to_owned(), repository: repository.to_owned() })
    }
}

/// Why this can be no image's name, in the words of a container's status.
pub fn check_name(image: &str) -> Result<(), super::ImageFailure> {
    ImageName::parse(image)
        .map(drop)
        .map_err(|problem| super::ImageFailure::InvalidName { image: image.to_owned(), problem })
}

/// The name as it was written, without tag and digest: what records of pulled images go by.
pub fn without_tag(image: &str) -> &str {
    let image = image.split_once('@').map_or(image, |(name, _)| name);
    let last = image.rfind('/').map_or(0, |slash| slash + 1);
    image[last..].find(':').map_or(image, |colon| &image[..last + colon])
}

/// The name in full, with its registry and a tag or digest: what a runtime files an image under.
pub fn full_name(image: &str) -> Result<String, String> {
    let name = ImageName::parse(image)?;
    let version = &image[without_tag(image).len()..];
    Ok(format!("{name}{}", if version.is_empty() { ":latest" } else { version }))
}

impl std::fmt::Display for ImageName {
    /// In full, without tag and digest: docker.io/library/busybox.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.host, self.repository)
    }
}

/// A first part is a host if it could be no part of a repository: by a dot, a port, capitals, or by being localhost.
fn split_host(image: &str) -> (&str, &str) {
    match image.split_once('/') {
        Some((FORMER_HUB, rest)) => (HUB, rest),
        Some((first, rest))
            if first == "localhost"
                || first.contains(['.', ':'])
                || first.chars().any(char::is_uppercase) =>
        {
            (first, rest)
        }
        _ => (HUB, image),
    }
}

fn is_host(text: &str) -> bool {
    let port = |p: &str| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit());
    if let Some(rest) = text.strip_prefix('[') {
        let Some((address, after)) = rest.split_once(']') else { return false };
        let address_ok = !address.is_empty() && address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':');
        return address_ok && (after.is_empty() || after.strip_prefix(':').is_some_and(port));
    }
    let (name, given) = match text.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    };
    let label = |l: &str| {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        !l.is_empty() && l.bytes().all(allowed) && !l.starts_with('-') && !l.ends_with('-')
    };
    name.split('.').all(label) && given.is_none_or(port)
}

/// Words of small letters and digits, joined by a dot, one or two underscores, or any number of dashes.
fn is_component(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let mut rest = text;
    loop {
        let after = rest.trim_start_matches(is_word);
        if after.len() == rest.len() {
            return false;
        }
        rest = after.trim_start_matches(['.', '_', '-']);
        if after.is_empty() {
            return true;
        }
        let separator = &after[..after.len() - rest.len()];
        if !matches!(separator, "." | "_" | "__") && (separator.is_empty() || separator.contains(['.', '_']))
        {
            return false;
        }
    }
}

fn is_tag(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.bytes().next().is_some_and(word)
        && text.len() <= LONGEST_TAG
        && text.bytes().all(|b| word(b) || matches!(b, b'.' | b'-'))
}

fn check_digest(text: &str) -> Result<(), String> {
    let Some((algorithm, hex)) = text.split_once(':') else { return Err(UNREADABLE.into()) };
    let part = |p: &str| {
        p.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
            && p.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    if !algorithm.split(['-', '_', '+', '.']).all(part)
        || hex.len() < 32
        || !hex.bytes().all(|b| b.is_ascii_hexdigit())
    {
        return Err(UNREADABLE.into());
    }
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return Err("unsupported digest algorithm".into()),
    };
    if hex.len() != length {
        return Err("invalid checksum digest length".into());
    }
    if hex.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err("invalid checksum digest format".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_host_and_a_repository_and_short_ones_are_the_hubs() {
        let digest = "a".repeat(64);
        let with_digest = format!("r.io/x@sha256:{digest}");
        let with_both = format!("x:1@sha256:{digest}");
        for (image, host, repository) in [
            ("busybox", "docker.io", "library/busybox"),
            ("busybox:1.36", "docker.io", "library/busybox"),
            ("org/x", "docker.io", "org/x"),
            ("docker.io/x", "docker.io", "library/x"),
            ("docker.io/org/x:1", "docker.io", "org/x"),
            ("index.docker.io/org/x", "docker.io", "org/x"),
            ("localhost/x", "localhost", "x"),
            ("localhost:5000/x:1", "localhost:5000", "x"),
            ("r.io/a/b/c:1", "r.io", "a/b/c"),
            ("127.0.0.1:5000/a", "127.0.0.1:5000", "a"),
            ("[::1]:5000/a", "[::1]:5000", "a"),
            ("HOST/a", "HOST", "a"),
            ("r.io/a.b_c__d-e---f", "r.io", "a.b_c__d-e---f"),
            (with_digest.as_str(), "r.io", "x"),
            (with_both.as_str(), "docker.io", "library/x"),
        ] {
            let expected = ImageName { host: host.into(), repository: repository.into() };
            assert_eq!(ImageName::parse(image), Ok(expected), "{image}");
        }
    }

    #[test]
    fn tag_and_digest_come_off_and_a_port_stays() {
        for (image, expected) in [
            ("busybox", "busybox"),
            ("busybox:1.36", "busybox"),
            ("busybox:1@sha256:00", "busybox"),
            ("r.io:5000/x", "r.io:5000/x"),
            ("r.io:5000/a/x:1", "r.io:5000/a/x"),
            ("r.io/x@sha256:00", "r.io/x"),
        ] {
            assert_eq!(without_tag(image), expected);
        }
        assert_eq!(ImageName::parse("x:1").unwrap().to_string(), "docker.io/library/x");
        for (image, expected) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("r.io/x:1", "r.io/x:1"),
            (
                "org/x@sha256:0000000000000000000000000000000000000000000000000000000000000000",
                "docker.io/org/x@sha256:0000000000000000000000000000000000000000000000000000000000000000",
            ),
        ] {
            assert_eq!(full_name(image).as_deref(), Ok(expected));
        }
        assert!(full_name("R.io/X").is_err());
    }

    #[test]
    fn what_no_registry_could_hold_is_no_name() {
        let unreadable = "invalid reference format";
        let (id, long) = ("a".repeat(64), format!("r.io/{}", "a".repeat(256)));
        let (short_digest, odd_digest, capitals) = (
            format!("x@sha256:{}", "a".repeat(63)),
            format!("x@md5:{}", "a".repeat(32)),
            format!("x@sha256:{}", "A".repeat(64)),
        );
        let (long_tag, no_hex) = (format!("x:{}", "a".repeat(129)), format!("x@sha256:{}", "z".repeat(64)));
        for (image, expected) in [
            ("", unreadable),
            (":", unreadable),
            ("x:", unreadable),
            ("x y", unreadable),
            ("x\n", unreadable),
            ("a//b", unreadable),
            ("/x", unreadable),
            ("x/", unreadable),
            ("r.io/-x", unreadable),
            ("r.io/x-", unreadable),
            ("r.io/a..b", unreadable),
            ("r.io/a___b", unreadable),
            ("r.io/a_.b", unreadable),
            ("r.io:/x", unreadable),
            ("r.io:p/x", unreadable),
            ("-r.io/x", unreadable),
            ("a.b_c/x", unreadable),
            ("[::1/x", unreadable),
            ("x@", unreadable),
            ("x@sha256:00", unreadable),
            ("https://r.io/x", unreadable),
            (&long_tag, unreadable),
            (&no_hex, unreadable),
            ("NOT/A::name", "invalid reference format: repository name (A) must be lowercase"),
            ("Busybox", "invalid reference format: repository name (library/Busybox) must be lowercase"),
            ("org/Busybox:1", "invalid reference format: repository name (org/Busybox) must be lowercase"),
            (&long, "repository name must not be more than 255 characters"),
            (&short_digest, "invalid checksum digest length"),
            (&odd_digest, "unsupported digest algorithm"),
            (&capitals, "invalid checksum digest format"),
        ] {
            assert_eq!(ImageName::parse(image), Err(expected.to_owned()), "{image}");
        }
        let error = ImageName::parse(&id).unwrap_err();
        assert!(error.contains("64-byte hexadecimal"), "{error}");
    }
}
