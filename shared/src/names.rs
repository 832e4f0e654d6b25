//! Names of blocks, a chained keyed hash of everything that determines a block's bytes, and of pieces of media embeddings.
//!
//! `root = derive_key(cluster secret, tenant, salt, model id, layout, numerics, lineage)` and
//! `name_i = keyed(root; name_{i-1}, i, 128 token ids, media runs)`, first 16 bytes. Source: architecture.md §3 step 2.
//! Piece j of a media embedding is `keyed(root; domain, media id, j)`, first 16 bytes.
//!
//! Invariant: equal names mean equal bytes (one numerics, lineage exact). Every field is length-prefixed or of fixed
//! size, so that no two different inputs hash the same byte string.

use std::fmt;

use crate::ids::{MediaId, TenantId, TokenId};
use crate::layout::BLOCK_TOKENS;

/// The 16 bytes that name a block everywhere, or a piece of a media embedding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockName(pub [u8; 16]);

impl fmt::Display for BlockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for BlockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockName({self})")
    }
}

/// The secret key under which all names of one tenant, model and lineage are made. Never logged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Root([u8; 32]);

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Root(secret)")
    }
}

/// What a start without a window object does. Part of the root, because it decides what later blocks contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lineage {
    /// Windows come from a window object or from a replay long enough to be exact: a block's bytes are a function of
    /// its name.
    Exact,
    /// Without a window object a fixed number of rows is replayed; what is sealed after it is an approximation.
    Bounded,
}

impl Lineage {
    /// The word used in configuration and reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Bounded => "bounded",
        }
    }
}

/// The engine's revision string, for example `cpu-exact-1`. Raised by any change of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Numerics(pub String);

/// Everything a root depends on.
#[derive(Clone, Copy)]
pub struct RootInputs<'a> {
    /// The cluster's secret.
    pub cluster_secret: &'a [u8; 32],
    /// Whose cache it is.
    pub tenant: &'a TenantId,
    /// A caller's own separation inside the tenant; may be empty.
    pub salt: &'a str,
    /// Digest of configuration, tokenizer and weights.
    pub model_id: &'a [u8; 32],
    /// [`crate::KvLayout::fingerprint`].
    pub layout: &'a [u8; 32],
    /// The engine's revision.
    pub numerics: &'a Numerics,
    /// The lineage.
    pub lineage: Lineage,
}

impl Root {
    /// Derives the root from its inputs.
    #[must_use]
    pub fn derive(inputs: RootInputs<'_>) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("kvasir 2026 block root 1");
        let fields: [&[u8]; 7] = [
            inputs.cluster_secret,
            inputs.tenant.0.as_bytes(),
            inputs.salt.as_bytes(),
            inputs.model_id,
            inputs.layout,
            inputs.numerics.0.as_bytes(),
            inputs.lineage.as_str().as_bytes(),
        ];
        for field in fields {
            hasher.update(&(field.len() as u64).to_le_bytes());
            hasher.update(field);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// A root from raw bytes, as a wire format carries it between trusted processes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The raw bytes, for a wire format between trusted processes. They are a secret.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 32] {
        self.0
    }
}

/// The part of an image span that lies in one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaRun {
    /// The image.
    pub media: MediaId,
    /// First row of the block that belongs to the span.
    pub first_in_block: u32,
    /// The row of the span that lies there.
    pub first_in_span: u32,
    /// Rows of the run.
    pub rows: u32,
    /// Height and width of the span in model tokens.
    pub shape: [u32; 2],
}

/// What is hashed of a block without its media runs: the name before it, its index, its tokens, the number of runs.
const FIXED_BYTES: usize = 16 + 8 + 4 * BLOCK_TOKENS as usize + 8;

/// The name of block `index`, which follows the block named `previous` (none for block 0).
///
/// # Panics
/// When `ids` does not hold exactly 128 tokens, or `previous` is missing for a block other than the first.
#[must_use]
pub fn next_name(
    root: &Root,
    previous: Option<BlockName>,
    index: usize,
    ids: &[TokenId],
    media: &[MediaRun],
) -> BlockName {
    assert_eq!(ids.len(), BLOCK_TOKENS as usize, "a block is named once it is full");
    assert_eq!(previous.is_none(), index == 0, "only block 0 has no predecessor");
    // One piece: handing over number by number takes longer than hashing.
    let mut bytes = [0; FIXED_BYTES];
    let (head, rest) = bytes.split_at_mut(16 + 8);
    let (tokens, count) = rest.split_at_mut(4 * BLOCK_TOKENS as usize);
    head[..16].copy_from_slice(&previous.map_or([0; 16], |name| name.0));
    head[16..].copy_from_slice(&(index as u64).to_le_bytes());
    for (place, id) in tokens.chunks_exact_mut(4).zip(ids) {
        place.copy_from_slice(&id.0.to_le_bytes());
    }
    count.copy_from_slice(&(media.len() as u64).to_le_bytes());
    let mut hasher = blake3::Hasher::new_keyed(&root.0);
    hasher.update(&bytes);
    for run in media {
        hasher.update(&run.media.0);
        for value in [run.first_in_block, run.first_in_span, run.rows, run.shape[0], run.shape[1]] {
            hasher.update(&value.to_le_bytes());
        }
    }
    let mut name = [0; 16];
    name.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    BlockName(name)
}

/// The names of all complete blocks of a text-only token sequence, in order.
#[must_use]
pub fn block_names(root: &Root, ids: &[TokenId]) -> Vec<BlockName> {
    names_after(root, Vec::with_capacity(ids.len() / BLOCK_TOKENS as usize), ids)
}

/// The same where the names of the leading blocks are known.
#[must_use]
pub fn names_after(root: &Root, known: Vec<BlockName>, ids: &[TokenId]) -> Vec<BlockName> {
    let mut names = known;
    for (index, block) in ids.chunks_exact(BLOCK_TOKENS as usize).enumerate().skip(names.len()) {
        let name = next_name(root, names.last().copied(), index, block, &[]);
        names.push(name);
    }
    names
}

/// What the hash of a piece's name begins with. Together with the fixed length, which is far below [`FIXED_BYTES`], it keeps
/// names of pieces and of blocks apart.
const MEDIA_DOMAIN: &[u8; 32] = b"kvasir 2026 media piece 1\0\0\0\0\0\0\0";

/// The name of a piece of a media embedding. Like a block's, it depends on the root, so that no other tenant, model or
/// numerics finds it.
#[must_use]
pub fn media_piece_name(root: &Root, media: MediaId, piece: u32) -> BlockName {
    let mut bytes = [0; 32 + 32 + 4];
    bytes[..32].copy_from_slice(MEDIA_DOMAIN);
    bytes[32..64].copy_from_slice(&media.0);
    bytes[64..].copy_from_slice(&piece.to_le_bytes());
    const { assert!(32 + 32 + 4 < FIXED_BYTES, "no block is hashed from so few bytes") };
    let mut name = [0; 16];
    name.copy_from_slice(&blake3::keyed_hash(&root.0, &bytes).as_bytes()[..16]);
    BlockName(name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{
        Lineage, MediaRun, Numerics, Root, RootInputs, block_names, media_piece_name, next_name,
    };
    use crate::ids::{MediaId, TenantId, TokenId};

    fn ids(count: u32) -> Vec<TokenId> {
        (0..count).map(TokenId).collect()
    }

    fn root(change: impl Fn(&mut RootInputs<'_>)) -> Root {
        let tenant = TenantId(Arc::from("a"));
        let numerics = Numerics("cpu-exact-1".into());
        let mut inputs = RootInputs {
            cluster_secret: &[7; 32],
            tenant: &tenant,
            salt: "",
            model_id: &[1; 32],
            layout: &[2; 32],
            numerics: &numerics,
            lineage: Lineage::Exact,
        };
        change(&mut inputs);
        Root::derive(inputs)
    }

    #[test]
    fn every_input_changes_the_root() {
        let base = root(|_| ());
        let tenant = TenantId(Arc::from("b"));
        let numerics = Numerics("cpu-fast-1".into());
        let others = [
            root(|i| i.cluster_secret = &[8; 32]),
            root(|i| i.salt = "a"),
            root(|i| i.model_id = &[3; 32]),
            root(|i| i.layout = &[3; 32]),
            root(|i| i.lineage = Lineage::Bounded),
            Root::derive(RootInputs {
                cluster_secret: &[7; 32],
                tenant: &tenant,
                salt: "",
                model_id: &[1; 32],
                layout: &[2; 32],
                numerics: &numerics,
                lineage: Lineage::Exact,
            }),
        ];
        for other in others {
            assert!(other != base);
        }
        assert_eq!(format!("{base:?}"), "Root(secret)");
    }

    #[test]
    fn a_name_covers_the_whole_prefix() {
        let root = root(|_| ());
        let names = block_names(&root, &ids(400));
        assert_eq!(names.len(), 3);
        let mut changed = ids(400);
        changed[5] = TokenId(9_999);
        let other = block_names(&root, &changed);
        assert!(names.iter().zip(&other).all(|(a, b)| a != b));
        let mut tail = ids(400);
        tail[399] = TokenId(9_999);
        assert_eq!(block_names(&root, &tail), names, "an incomplete block has no name");
    }

    #[test]
    fn equal_blocks_at_different_places_have_different_names() {
        let root = root(|_| ());
        let same = vec![TokenId(1); 256];
        let names = block_names(&root, &same);
        assert_ne!(names[0], names[1]);
    }

    #[test]
    fn media_content_changes_the_name() {
        let root = root(|_| ());
        let run = |byte, first_in_span| MediaRun {
            media: MediaId([byte; 32]),
            first_in_block: 3,
            first_in_span,
            rows: 10,
            shape: [2, 4],
        };
        let name = |media: &[MediaRun]| next_name(&root, None, 0, &ids(128), media);
        let names = [name(&[]), name(&[run(1, 0)]), name(&[run(2, 0)]), name(&[run(1, 1)])];
        for (i, a) in names.iter().enumerate() {
            assert!(names[i + 1..].iter().all(|b| a != b));
        }
    }

    #[test]
    fn pieces_of_media_have_names_of_their_own() {
        let own = root(|_| ());
        let other = root(|inputs| inputs.salt = "b");
        let (one, two) = (MediaId([1; 32]), MediaId([2; 32]));
        let names = [
            media_piece_name(&own, one, 0),
            media_piece_name(&own, one, 1),
            media_piece_name(&own, two, 0),
            media_piece_name(&other, one, 0),
            block_names(&own, &ids(128))[0],
        ];
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        assert_eq!(names[1], media_piece_name(&own, one, 1));
    }

    /// A change here makes every cached block unknown.
    #[test]
    fn names_stay_what_they_are() {
        let root = root(|_| ());
        let run = MediaRun {
            media: MediaId([5; 32]),
            first_in_block: 1,
            first_in_span: 2,
            rows: 3,
            shape: [4, 5],
        };
        let names = block_names(&root, &ids(300));
        let media = next_name(&root, Some(names[0]), 1, &ids(128), &[run]);
        let piece = media_piece_name(&root, MediaId([5; 32]), 3);
        let shown = [names[0], names[1], media, piece].map(|name| name.to_string());
        let known = [
            "cd3f210308bb13a44c0bd403d20f08bf",
            "40bc1f7abd6248b4961dcd3633e36fae",
            "538ffb2f92f2ab2a658e456575464314",
            "6eea8b34a8df33ece4ff14faaf190abe",
        ];
        assert_eq!(shown, known);
    }
}
