//! Bytes as lowercase hexadecimal digits, as digests and keys are written.

pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 0x0f)]);
    bytes.as_ref().iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_two_digits() {
        assert_eq!(encode([0x00, 0x0f, 0xa0, 0xff]), "000fa0ff");
        assert_eq!(encode([]), "");
    }
}
