//! The Internet's checksum: ones' complement sums, carried as 64-bit words until the end.
//!
//! The sum does not depend on byte order as long as it is stored the way it was loaded, so words are read in this
//! machine's order and nothing is swapped.

/// Adds `data` to a sum. Every slice but the last of one checksum must have an even length.
pub fn add(mut sum: u64, data: &[u8]) -> u64 {
    let mut blocks = data.chunks_exact(64);
    for block in &mut blocks {
        // One chain of additions with carry, written out: this is where a payload's time goes.
        let (a, carry) = sum.carrying_add(word(block, 0), false);
        let (b, carry) = a.carrying_add(word(block, 8), carry);
        let (c, carry) = b.carrying_add(word(block, 16), carry);
        let (d, carry) = c.carrying_add(word(block, 24), carry);
        let (e, carry) = d.carrying_add(word(block, 32), carry);
        let (f, carry) = e.carrying_add(word(block, 40), carry);
        let (g, carry) = f.carrying_add(word(block, 48), carry);
        let (h, carry) = g.carrying_add(word(block, 56), carry);
        sum = h + u64::from(carry);
    }
    let mut rest = blocks.remainder().chunks_exact(8);
    for eight in &mut rest {
        sum = plus(sum, word(eight, 0));
    }
    let tail = rest.remainder();
    if tail.is_empty() {
        return sum;
    }
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    plus(sum, u64::from_ne_bytes(last))
}

/// Adds one 16-bit number that is in host order, such as a protocol or a length.
pub fn add_number(sum: u64, number: u16) -> u64 {
    plus(sum, u64::from(u16::from_ne_bytes(number.to_be_bytes())))
}

/// The sum in 16 bits, not inverted, as it is stored in memory.
pub fn fold(sum: u64) -> [u8; 2] {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    (sum as u16).to_ne_bytes()
}

/// The checksum as it goes into a header.
pub fn finish(sum: u64) -> [u8; 2] {
    fold(sum).map(|byte| !byte)
}

/// Whether a sum over data that includes its own checksum says that nothing was changed.
pub fn is_right(sum: u64) -> bool {
    fold(sum) == [0xff, 0xff]
}

/// What a checksum becomes when one 16-bit word under it changes (RFC 1624, equation 3).
pub fn adjust(checksum: [u8; 2], old: [u8; 2], new: [u8; 2]) -> [u8; 2] {
    let number = |bytes: [u8; 2]| u64::from(u16::from_ne_bytes(bytes));
    finish(number(checksum.map(|b| !b)) + number(old.map(|b| !b)) + number(new))
}

fn plus(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u64::from(carry)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |eight| u64::from_ne_bytes(*eight))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, word by word.
    fn slow(data: &[u8]) -> u16 {
        let mut sum: u32 = 0;
        for pair in data.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum as u16
    }

    #[test]
    fn the_example_of_rfc_1071() {
        let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(add(0, &data)), [0xdd, 0xf2]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn is_what_the_definition_says(data in prop::collection::vec(any::<u8>(), 0..400), cut in 0usize..400) {
            prop_assert_eq!(u16::from_be_bytes(fold(add(0, &data))), slow(&data));
            let (head, tail) = data.split_at((cut & !1).min(data.len() & !1));
            prop_assert_eq!(fold(add(add(0, head), tail)), fold(add(0, &data)));
        }

        #[test]
        fn an_adjusted_checksum_still_fits(data in prop::collection::vec(any::<u8>(), 4..100), new in any::<[u8; 2]>()) {
            let mut data = data;
            data.truncate(data.len() & !1);
            let before = finish(add(0, &data));
            let old = [data[2], data[3]];
            data[2..4].copy_from_slice(&new);
            let after = adjust(before, old, new);
            prop_assert!(is_right(add(add(0, &data), &after)) || fold(add(0, &data)) == [0, 0]);
        }
    }
}
