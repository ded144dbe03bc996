//! When a client certificate ends, read from its DER. A server only ever says "unauthorized"; whoever has to fix that
//! needs to know that the certificate ran out, and where it lies.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use keelson_core::der::element;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// The end of validity of the first certificate in a PEM file. None when there is none, or it is not understood.
pub(crate) fn expiry_of_pem(pem: &[u8]) -> Option<Timestamp> {
    let certificate = CertificateDer::pem_slice_iter(pem).next()?.ok()?;
    not_after(&certificate)
}

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;

fn not_after(der: &[u8]) -> Option<Timestamp> {
    let (_, certificate, _) = element(der)?;
    let (_, mut fields, _) = element(certificate)?;
    // version (optional), serial number, signature algorithm, issuer; then validity.
    if fields.first() == Some(&VERSION) {
        fields = element(fields)?.2;
    }
    for _ in 0..3 {
        fields = element(fields)?.2;
    }
    let (SEQUENCE, validity, _) = element(fields)? else { return None };
    let (_, _, rest) = element(validity)?;
    let (kind, text, _) = element(rest)?;
    let text = std::str::from_utf8(text).ok()?;
    // UTCTime has two digits of year, which RFC 5280 places between 1950 and 2049.
    let full = match (kind, text.get(..2)?.parse::<u8>().ok()?) {
        (UTC_TIME, year) if year < 50 => format!("20{text}"),
        (UTC_TIME, _) => format!("19{text}"),
        _ => text.to_owned(),
    };
    let number = |range: std::ops::Range<usize>| full.get(range)?.parse::<i16>().ok();
    let small = |range| number(range).and_then(|n| i8::try_from(n).ok());
    let time = DateTime::new(
        number(0..4)?,
        small(4..6)?,
        small(6..8)?,
        small(8..10)?,
        small(10..12)?,
        small(12..14)?,
        0,
    );
    time.ok()?.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made with `openssl ca -enddate 20300102030405Z`.
    const PEM: &str = "\
-----BEGIN CERTIFICATE-----
MIIBCDCBsAIBATAKBggqhkjOPQQDAjARMQ8wDQYDVQQDDAZleHBpcnkwHhcNMjQw
MTAxMDAwMDAwWhcNMzAwMTAyMDMwNDA1WjARMQ8wDQYDVQQDDAZleHBpcnkwWTAT
BgcqhkjOPQIBBggqhkjOPQMBBwNCAAQGaPQ5KbWvm/zqB+SI9B24cl4vav34LOIq
iGyMzfmksKcnpTJDoNw3vizK/XIr2sIO2lRTfAtidrDWLPZ/EVswMAoGCCqGSM49
BAMCA0cAMEQCIHn1qNoEsm9fFaJTy2uM7eCAX1SqJxzBICY2uYJ5hPi8AiA3e2vX
ChdHdTeS6oMUA7VnFGprQ9GBq52vprqHU/CtxA==
-----END CERTIFICATE-----
";

    #[test]
    fn the_end_of_validity_is_read() {
        assert_eq!(expiry_of_pem(PEM.as_bytes()), Some("2030-01-02T03:04:05Z".parse().unwrap()));
    }

    #[test]
    fn rubbish_is_not_a_certificate_and_no_reason_to_fail() {
        let cut = PEM.len() / 2;
        for bad in [
            &b""[..],
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            &PEM.as_bytes()[..cut],
        ] {
            assert_eq!(expiry_of_pem(bad), None);
        }
        for end in 0..64 {
            assert_eq!(not_after(&vec![0x30; end]), None);
        }
    }
}
