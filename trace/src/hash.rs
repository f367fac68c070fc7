//! Ids that equal content gives again.

/// The hash of some bytes, by FNV-1a. Runs on disk have such ids, so it stays.
pub fn fnv_1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hashes_are_the_published_ones() {
        assert_eq!(fnv_1a([]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv_1a(*b"foobar"), 0x8594_4171_f739_67e8);
    }
}
