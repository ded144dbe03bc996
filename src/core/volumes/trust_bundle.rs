//! clusterTrustBundle: the certificates of authorities that a pod is to trust, from objects of the whole cluster.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::ClusterTrustBundleProjection;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::payload::MAX_PAYLOAD_BYTES;

/// As much of a ClusterTrustBundle as is needed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrustBundle {
    pub name: String,
    /// Empty for a bundle of no signer.
    pub signer: String,
    pub labels: BTreeMap<String, String>,
    /// Certificates in PEM.
    pub pem: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrustBundleProblem {
    #[error("clustertrustbundle {0:?} not found")]
    Missing(String),
    #[error("no clustertrustbundle of signer {0:?} matches the labelSelector")]
    NoMatch(String),
    #[error("a clusterTrustBundle source must have a name or a signerName")]
    NoReference,
    #[error("labelSelector: {0:?} is no operator; In, NotIn, Exists and DoesNotExist are")]
    Operator(String),
    #[error("the certificates of its trust bundles take more than {MAX_PAYLOAD_BYTES} bytes")]
    TooLarge,
}

/// The certificates that a source shows. Each is there once, and in an order that stays the same while they do.
pub fn trust_anchors(
    source: &ClusterTrustBundleProjection,
    bundles: &[TrustBundle],
) -> Result<Vec<u8>, TrustBundleProblem> {
    let optional = source.optional == Some(true);
    let (chosen, missing): (Vec<&TrustBundle>, _) = if let Some(name) = &source.name {
        (bundles.iter().filter(|b| b.name == *name).collect(), TrustBundleProblem::Missing(name.clone()))
    } else if let Some(signer) = &source.signer_name {
        let chosen = of_signer(signer, source.label_selector.as_ref(), bundles)?;
        (chosen, TrustBundleProblem::NoMatch(signer.clone()))
    } else {
        return Err(TrustBundleProblem::NoReference);
    };
    if chosen.is_empty() {
        return if optional { Ok(vec![]) } else { Err(missing) };
    }
    written(&chosen)
}

/// Without a selector nothing matches, and everything with an empty one.
fn of_signer<'a>(
    signer: &str,
    selector: Option<&LabelSelector>,
    bundles: &'a [TrustBundle],
) -> Result<Vec<&'a TrustBundle>, TrustBundleProblem> {
    let Some(selector) = selector else { return Ok(vec![]) };
    let mut chosen = vec![];
    for bundle in bundles.iter().filter(|b| b.signer == signer) {
        if matches(selector, &bundle.labels)? {
            chosen.push(bundle);
        }
    }
    Ok(chosen)
}

fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> Result<bool, TrustBundleProblem> {
    let mut all = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    for LabelSelectorRequirement { key, operator, values } in selector.match_expressions.iter().flatten() {
        let value = labels.get(key);
        let listed = value.is_some_and(|value| values.iter().flatten().any(|v| v == value));
        all &= match operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            other => return Err(TrustBundleProblem::Operator(other.to_owned())),
        };
    }
    Ok(all)
}

fn written(bundles: &[&TrustBundle]) -> Result<Vec<u8>, TrustBundleProblem> {
    let mut certificates = BTreeSet::new();
    let mut taken = 0;
    for der in bundles.iter().flat_map(|bundle| certificates_of(&bundle.pem)) {
        let size = der.len();
        if certificates.insert(der) {
            taken += size;
        }
        if taken > MAX_PAYLOAD_BYTES / 2 {
            return Err(TrustBundleProblem::TooLarge);
        }
    }
    let mut text = String::new();
    for der in certificates {
        text.push_str(BEGIN);
        text.push('\n');
        let encoded = STANDARD.encode(der);
        let mut rest = encoded.as_str();
        while !rest.is_empty() {
            let (line, more) = rest.split_at(rest.len().min(64));
            text.push_str(line);
            text.push('\n');
            rest = more;
        }
        text.push_str(END);
        text.push('\n');
    }
    Ok(text.into_bytes())
}

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// The apiserver takes nothing but whole certificates into a bundle, so what is something else is passed over.
fn certificates_of(pem: &str) -> Vec<Vec<u8>> {
    let mut found = vec![];
    let mut inside: Option<String> = None;
    for line in pem.lines().map(str::trim) {
        match (line, &mut inside) {
            (BEGIN, _) => inside = Some(String::new()),
            (END, Some(text)) => {
                found.extend(STANDARD.decode(&text).ok().filter(|der| !der.is_empty()));
                inside = None;
            }
            (line, Some(text)) => text.push_str(line),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pem(contents: &[&str]) -> String {
        let one = |text: &&str| format!("{BEGIN}\n{}\n{END}\n", STANDARD.encode(text));
        contents.iter().map(one).collect()
    }

    fn bundles() -> Vec<TrustBundle> {
        let bundle = |name: &str, signer: &str, labels: &[(&str, &str)], pem: String| TrustBundle {
            name: name.into(),
            signer: signer.into(),
            labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            pem,
        };
        vec![
            bundle("own", "", &[], pem(&["c", "a"])),
            bundle("s:live", "s", &[("stage", "live")], pem(&["x", "y"])),
            bundle("s:next", "s", &[("stage", "next"), ("new", "")], pem(&["y", "z"])),
            bundle("t:live", "t", &[("stage", "live")], pem(&["other"])),
        ]
    }

    /// The contents of the certificates, in order.
    fn shown(source: Value) -> Result<String, String> {
        let mut source = source;
        source["path"] = json!("ca.pem");
        let source = serde_json::from_value(source).unwrap();
        let text = trust_anchors(&source, &bundles()).map_err(|e| e.to_string())?;
        let text = String::from_utf8(text).unwrap();
        let all = certificates_of(&text).into_iter().map(|der| String::from_utf8(der).unwrap());
        Ok(all.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn certificates_are_chosen_by_name_or_by_signer_and_labels() {
        let by = |selector: Value| json!({"signerName": "s", "labelSelector": selector});
        let expression = |key: &str, operator: &str, values: &[&str]| {
            by(json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
        };
        let cases = [
            (json!({"name": "own"}), Ok("a c")),
            (json!({"name": "absent"}), Err("clustertrustbundle \"absent\" not found")),
            (json!({"name": "absent", "optional": true}), Ok("")),
            (by(json!({})), Ok("x y z")),
            (by(json!({"matchLabels": {"stage": "live"}})), Ok("x y")),
            (
                by(json!({"matchLabels": {"stage": "live", "new": ""}})),
                Err("no clustertrustbundle of signer \"s\""),
            ),
            (expression("stage", "In", &["next", "past"]), Ok("y z")),
            (expression("stage", "NotIn", &["next"]), Ok("x y")),
            (expression("new", "Exists", &[]), Ok("y z")),
            (expression("new", "DoesNotExist", &[]), Ok("x y")),
            (expression("new", "Like", &[]), Err("\"Like\" is no operator")),
            (json!({"signerName": "s"}), Err("no clustertrustbundle of signer \"s\"")),
            (json!({"signerName": "s", "optional": true}), Ok("")),
            (json!({"signerName": "absent", "labelSelector": {}}), Err("signer \"absent\"")),
            (json!({}), Err("a name or a signerName")),
        ];
        for (source, expected) in cases {
            let said = shown(source.clone());
            let same = match (&said, expected) {
                (Ok(text), Ok(expected)) => text == expected,
                (Err(error), Err(expected)) => error.contains(expected),
                _ => false,
            };
            assert!(same, "{source}: {said:?}");
        }
    }

    #[test]
    fn what_is_no_certificate_is_passed_over_and_lines_are_as_others_write_them() {
        let mixed = format!(
            "words\n-----BEGIN PRIVATE KEY-----\nczNjcmV0\n-----END PRIVATE KEY-----\n{}\n{BEGIN}\n!\n{END}\n{BEGIN}\nAAAA",
            pem(&["a"])
        );
        assert_eq!(certificates_of(&mixed), [b"a".to_vec()]);
        let long = TrustBundle { pem: pem(&[&"x".repeat(100)]), ..Default::default() };
        let text = String::from_utf8(written(&[&long]).unwrap()).unwrap();
        let lengths: Vec<usize> = text.lines().map(str::len).collect();
        assert_eq!(lengths, [BEGIN.len(), 64, 64, 8, END.len()]);
    }

    #[test]
    fn trust_bundles_are_bounded() {
        let one = |n: u32| TrustBundle {
            pem: pem(&[&format!("{n}{}", "x".repeat(1 << 20))]),
            ..Default::default()
        };
        let many: Vec<TrustBundle> = (0..20).map(one).collect();
        let all: Vec<&TrustBundle> = many.iter().collect();
        assert_eq!(written(&all), Err(TrustBundleProblem::TooLarge));
        assert!(written(&[all[0]; 40]).is_ok(), "the same again takes nothing");
    }
}
