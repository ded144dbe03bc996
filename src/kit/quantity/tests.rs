use proptest::prelude::*;

use super::*;

fn amount(text: &str) -> Amount {
    text.parse().unwrap()
}

#[test]
fn quantities_are_read_exactly_and_rounded_up() {
    for (text, milli, value) in [
        ("0", 0, 0),
        ("1", 1000, 1),
        ("250m", 250, 1),
        ("0.5", 500, 1),
        (".5", 500, 1),
        ("5.", 5000, 5),
        ("1.0001", 1001, 2),
        ("1n", 1, 1),
        ("1u", 1, 1),
        ("1500u", 2, 1),
        ("2k", 2_000_000, 2000),
        ("1Ki", 1_024_000, 1024),
        ("1.5Gi", 1_610_612_736_000, 1_610_612_736),
        ("64Mi", 67_108_864_000, 67_108_864),
        ("128M", 128_000_000_000, 128_000_000),
        ("1e3", 1_000_000, 1000),
        ("1E3", 1_000_000, 1000),
        ("1E", 1_000_000_000_000_000_000_i64.saturating_mul(1000), 1_000_000_000_000_000_000),
        ("12e-1", 1200, 2),
        ("1e-30", 1, 1),
        ("-1.5", -1500, -2),
        ("+3", 3000, 3),
        ("8Ei", i64::MAX, i64::MAX),
        ("99999999999999999999999999999999999999999999", i64::MAX, i64::MAX),
        ("1e400", i64::MAX, i64::MAX),
        ("0e400", 0, 0),
    ] {
        let amount = amount(text);
        assert_eq!((amount.milli(), amount.value()), (milli, value), "{text}");
    }
    for bad in
        ["", "m", "1 Gi", "1gi", "1KI", "1..2", "1.2.3", "e3", "1e", "1e+", "--1", "1Gi ", "0x10", "１"]
    {
        assert!(bad.parse::<Amount>().is_err(), "{bad:?} was accepted");
    }
}

#[test]
fn quantities_are_written_as_the_api_server_writes_them() {
    for (text, want) in [
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("0.25", "250m"),
        ("1024Mi", "1Gi"),
        ("1536Mi", "1536Mi"),
        ("512", "512"),
        ("1000", "1k"),
        ("100M", "100M"),
        ("2e3", "2e3"),
        ("0", "0"),
        ("0.5Ki", "512"),
    ] {
        assert_eq!(amount(text).to_string(), want, "{text}");
    }
}

proptest! {
    #[test]
    fn a_written_amount_reads_back_equal_and_is_written_the_same_again(
        number in -(1i64 << 53)..(1i64 << 53),
        fraction in "(\\.[0-9]{1,12})?",
        suffix in prop::sample::select(
            vec!["n", "u", "m", "", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E-2", "e+7"]
        ),
    ) {
        let text = format!("{number}{fraction}{suffix}");
        let first = amount(&text);
        let written = first.to_string();
        let again = amount(&written);
        prop_assert_eq!(again, first, "{} was written {}", text, written);
        prop_assert_eq!(again.to_string(), written);
    }

    /// Whoever asks for a little is not given nothing, and nobody is given a whole unit more than asked for.
    #[test]
    fn rounding_goes_away_from_zero_by_less_than_one(nanos in -(1i64 << 60)..(1i64 << 60)) {
        let exact = amount(&format!("{nanos}n"));
        for (rounded, unit) in [(exact.value(), 1_000_000_000_i128), (exact.milli(), 1_000_000)] {
            let over = (i128::from(rounded) * unit).abs() - i128::from(nanos).abs();
            prop_assert!((0..unit).contains(&over), "{}n became {}", nanos, rounded);
        }
    }

    #[test]
    fn order_is_the_order_of_the_values(a in -1_000_000i64..1_000_000, b in -1_000_000i64..1_000_000) {
        let (in_milli, in_units) = (amount(&format!("{}m", a * 1000)), amount(&b.to_string()));
        prop_assert_eq!(in_milli.cmp(&in_units), a.cmp(&b));
        prop_assert_eq!((in_milli + in_units).value(), a + b);
    }
}
