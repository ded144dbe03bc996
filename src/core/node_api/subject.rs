//! Who a client certificate speaks for: its common name is the user, its organisations are the groups.
//!
//! Only read from certificates whose signature has been checked; still, nothing in one may make this fail loudly.

use crate::der::element;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub user: String,
    pub groups: Vec<String>,
}

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const OBJECT_ID: u8 = 0x06;
const UTF8: u8 = 0x0c;
const PRINTABLE: u8 = 0x13;
const IA5: u8 = 0x16;
/// 2.5.4.3 and 2.5.4.10.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];

/// None when there is no common name, or the certificate is not understood.
pub fn subject(der: &[u8]) -> Option<Subject> {
    let (SEQUENCE, certificate, _) = element(der)? else { return None };
    let (SEQUENCE, mut fields, _) = element(certificate)? else { return None };
    // version (optional), serial number, signature algorithm, issuer, validity; then the subject.
    if fields.first() == Some(&VERSION) {
        fields = element(fields)?.2;
    }
    for _ in 0..4 {
        fields = element(fields)?.2;
    }
    let (SEQUENCE, mut names, _) = element(fields)? else { return None };
    let (mut user, mut groups) = (None, vec![]);
    while !names.is_empty() {
        let (SET, mut several, rest) = element(names)? else { return None };
        names = rest;
        while !several.is_empty() {
            let (SEQUENCE, attribute, rest) = element(several)? else { return None };
            several = rest;
            let (OBJECT_ID, kind, value) = element(attribute)? else { return None };
            if kind != COMMON_NAME && kind != ORGANIZATION {
                continue;
            }
            let (UTF8 | PRINTABLE | IA5, text, _) = element(value)? else { return None };
            let text = std::str::from_utf8(text).ok()?.to_owned();
            if kind == COMMON_NAME { user = Some(text) } else { groups.push(text) }
        }
    }
    Some(Subject { user: user.filter(|u| !u.is_empty())?, groups })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![tag, 0x82, (content.len() >> 8) as u8, content.len() as u8];
        out.extend_from_slice(content);
        out
    }

    fn attribute(kind: &[u8], tag: u8, text: &str) -> Vec<u8> {
        tlv(SET, &tlv(SEQUENCE, &[tlv(OBJECT_ID, kind), tlv(tag, text.as_bytes())].concat()))
    }

    fn certificate(attributes: &[Vec<u8>]) -> Vec<u8> {
        let filler = tlv(SEQUENCE, &[]);
        let serial = tlv(0x02, &[1]);
        let fields = [
            tlv(VERSION, &[]),
            serial,
            filler.clone(),
            filler.clone(),
            filler.clone(),
            tlv(SEQUENCE, &attributes.concat()),
            filler,
        ];
        tlv(SEQUENCE, &tlv(SEQUENCE, &fields.concat()))
    }

    #[test]
    fn the_common_name_is_the_user_and_organisations_are_groups() {
        let country: &[u8] = &[0x55, 0x04, 0x06];
        let der = certificate(&[
            attribute(ORGANIZATION, PRINTABLE, "system:masters"),
            attribute(country, PRINTABLE, "XX"),
            attribute(ORGANIZATION, UTF8, "ops"),
            attribute(COMMON_NAME, UTF8, "alice"),
        ]);
        let expected = Subject { user: "alice".into(), groups: vec!["system:masters".into(), "ops".into()] };
        assert_eq!(subject(&der), Some(expected));
    }

    #[test]
    fn without_a_name_that_can_be_read_nobody_is_meant() {
        for (case, attributes) in [
            ("no name", vec![attribute(ORGANIZATION, UTF8, "ops")]),
            ("an empty one", vec![attribute(COMMON_NAME, UTF8, "")]),
            ("an odd alphabet", vec![attribute(COMMON_NAME, 0x1e, "alice")]),
        ] {
            assert_eq!(subject(&certificate(&attributes)), None, "{case}");
        }
        let whole = certificate(&[attribute(COMMON_NAME, UTF8, "alice")]);
        for end in 0..whole.len() {
            assert_eq!(subject(&whole[..end]), None, "cut off after {end}");
        }
    }
}
