//! The hash that tells whether a running container is still the one that was asked for.

use k8s_openapi::api::core::v1::Container;

/// The value of the annotation io.kubernetes.container.hash: lowercase hex without padding. It covers the image and
/// the name only, rendered as the kubelet renders them, so that either agent adopts what the other one started.
pub fn container_hash(container: &Container) -> String {
    let rendered = rendering(container.image.as_deref().unwrap_or_default(), &container.name);
    format!("{:x}", fnv1a_32(rendered.as_bytes()))
}

/// What is hashed: the JSON object of both fields, shown as a Go slice of its bytes in decimal.
fn rendering(image: &str, name: &str) -> String {
    let mut json = String::from("{\"image\":");
    push_json(&mut json, image);
    json.push_str(",\"name\":");
    push_json(&mut json, name);
    json.push('}');

    let bytes: Vec<String> = json.bytes().map(|b| b.to_string()).collect();
    format!("([]uint8)[{}]", bytes.join(" "))
}

/// Go's JSON encoder escapes what could end a script element, and the two separators JavaScript treats as newlines.
pub(crate) fn push_json(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..'\u{20}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

pub(crate) fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, b| (hash ^ u32::from(*b)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Produced by the reference's own hashing of the same names and images.
    #[test]
    fn the_hash_is_what_the_kubelet_writes() {
        for (name, image, want) in [
            ("web", "nginx", "9690f4d"),
            ("a", "", "33f2e30"),
            ("init-page", "registry.k8s.io/pause:3.10", "cd9906a"),
            ("", "", "edd67cc4"),
            ("x", "10.0.0.1:5000/a/b@sha256:0123", "abe91e6e"),
            ("q", "he\"l<l>o&\u{2028}é\\\n\u{1}\u{7f}", "c216a52f"),
            ("tab", "\t\r\u{8}\u{c}😀", "d8632f87"),
        ] {
            let container = Container { name: name.into(), image: Some(image.into()), ..Default::default() };
            assert_eq!(container_hash(&container), want, "{name} {image:?}");
        }
    }

    #[test]
    fn only_image_and_name_count() {
        let base = Container { name: "a".into(), image: Some("b".into()), ..Default::default() };
        let other = Container { args: Some(vec!["x".into()]), ..base.clone() };
        assert_eq!(container_hash(&base), container_hash(&other));
        let renamed = Container { name: "c".into(), ..base.clone() };
        assert_ne!(container_hash(&base), container_hash(&renamed));
    }
}
