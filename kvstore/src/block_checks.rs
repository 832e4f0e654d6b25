//! A worker's own check of the names it was given.

use shared::{BlockName, NameCache, Root, ServeError, TokenId};

/// Recomputes the names of the complete blocks of a text-only sequence, but for those that the worker has computed before, and
/// compares.
///
/// # Errors
/// [`ServeError::NamesDiffer`] with the first block whose name differs, or is missing on either side: sender and
/// receiver disagree on model, layout, numerics, tenant or secret, and a cache hit would serve foreign bytes.
pub fn check_names(
    computed: &mut NameCache,
    root: &Root,
    ids: &[TokenId],
    names: &[BlockName],
) -> Result<(), ServeError> {
    let expected = computed.names(root, ids);
    let equal = expected.iter().zip(names).take_while(|(a, b)| a == b).count();
    if equal == expected.len() && equal == names.len() {
        return Ok(());
    }
    Err(ServeError::NamesDiffer { index: equal })
}

#[cfg(test)]
mod tests {
    use shared::{NameCache, Root, ServeError, TokenId, block_names};

    use super::check_names;

    #[test]
    fn the_first_difference_is_named() {
        let root = Root::from_bytes([3; 32]);
        let ids: Vec<TokenId> = (0..400).map(TokenId).collect();
        let names = block_names(&root, &ids);
        let other = block_names(&Root::from_bytes([4; 32]), &ids);
        let mut late = names.clone();
        late[2] = other[2];
        let long: Vec<_> = names.iter().chain(&other[..1]).copied().collect();
        let cases = [
            (names.clone(), Ok(())),
            (other.clone(), Err(0)),
            (late, Err(2)),
            (names[..2].to_vec(), Err(2)),
            (long, Err(3)),
        ];
        for (given, expected) in cases {
            let expected = expected.map_err(|index| ServeError::NamesDiffer { index });
            let mut computed = NameCache::new(NameCache::STANDARD_BYTES);
            assert_eq!(check_names(&mut computed, &root, &ids, &given), expected);
        }
    }
}
