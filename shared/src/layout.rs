//! Where every byte of a block lies.
//!
//! A block holds, for each KV-source layer in layer order, an *index section* (all entries' E2M1 codes, then all
//! entries' E8M0 scales) and a *main section* (entries one after another, each E2M1 codes then E4M3 scales). Each
//! section is padded to 32 bytes. Source: specs/deepinfer-engine.md §1.4.
//!
//! A window object is `[encoder layer][128 positions][entry]`, entries of E4M3 codes then E8M0 scales, without padding.

/// Tokens in a block. Fixed by the design: the grain of names, hand-off and persistence.
pub const BLOCK_TOKENS: u32 = 128;

const SECTION_ALIGN: usize = 32;
/// Elements that share one scale in index keys and window entries.
const SCALE_GROUP: usize = 32;
/// Elements that share one scale in main entries.
const MAIN_SCALE_GROUP: usize = 16;

/// The sizes of the model that determine a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Width of the one KV head, in elements. A multiple of 32.
    pub head_dim: usize,
    /// Width of an index key, in elements. A multiple of 32.
    pub index_dim: usize,
    /// Encoder layers: those below the boundary layer.
    pub encoder_layers: usize,
    /// The KV-source layers in ascending order.
    pub sources: Vec<SourceShape>,
}

/// One KV-source layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceShape {
    /// The layer's number.
    pub layer: usize,
    /// m: tokens per compressed entry. Divides 128.
    pub ratio: u32,
}

/// Why a shape has no layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A width does not hold whole scale groups.
    #[error("{field} is {found}, expected a positive multiple of {SCALE_GROUP}")]
    Width {
        /// The field.
        field: &'static str,
        /// Its value.
        found: usize,
    },
    /// A ratio does not divide the block.
    #[error("compress ratio of layer {layer} is {found}, expected a divisor of {BLOCK_TOKENS}")]
    Ratio {
        /// The layer.
        layer: usize,
        /// Its ratio.
        found: u32,
    },
    /// There is no source layer, or they are not ascending.
    #[error("KV source layers must be given in ascending order and there must be at least one")]
    Sources,
}

/// The byte map of one KV-source layer inside a block. Offsets count from the start of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLayout {
    /// The layer's number.
    pub layer: usize,
    /// m: tokens per compressed entry.
    pub ratio: u32,
    /// 128 / m.
    pub entries: usize,
    /// Start of the index codes, `[entries][index_dim / 2]`.
    pub index_codes: usize,
    /// Start of the index scales, `[entries][index_dim / 32]`.
    pub index_scales: usize,
    /// Start of the main entries, `[entries][main_entry_bytes]`.
    pub main: usize,
    /// First byte after this layer's sections.
    pub end: usize,
}

/// The byte layout of blocks and window objects of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvLayout {
    shape: KvShape,
    sources: Vec<SourceLayout>,
    block_bytes: usize,
}

impl KvLayout {
    /// Builds the layout of a model.
    ///
    /// # Errors
    /// When a width is not a multiple of 32, a ratio does not divide 128, or the sources are not ascending.
    pub fn new(shape: KvShape) -> Result<Self, LayoutError> {
        for (field, found) in [("head_dim", shape.head_dim), ("index_head_dim", shape.index_dim)] {
            if found == 0 || !found.is_multiple_of(SCALE_GROUP) {
                return Err(LayoutError::Width { field, found });
            }
        }
        if shape.sources.is_empty() || !shape.sources.is_sorted_by(|a, b| a.layer < b.layer) {
            return Err(LayoutError::Sources);
        }
        let mut sources = Vec::with_capacity(shape.sources.len());
        let mut offset = 0;
        for source in &shape.sources {
            if source.ratio == 0 || !BLOCK_TOKENS.is_multiple_of(source.ratio) {
                return Err(LayoutError::Ratio { layer: source.layer, found: source.ratio });
            }
            let placed = place(&shape, *source, offset);
            offset = placed.end;
            sources.push(placed);
        }
        Ok(Self { shape, sources, block_bytes: offset })
    }

    /// Bytes of one block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Bytes of one main entry: `head_dim / 2` codes and `head_dim / 16` scales.
    #[must_use]
    pub fn main_entry_bytes(&self) -> usize {
        main_entry_bytes(&self.shape)
    }

    /// Bytes of one window entry: `head_dim` codes and `head_dim / 32` scales.
    #[must_use]
    pub fn window_entry_bytes(&self) -> usize {
        self.shape.head_dim + self.shape.head_dim / SCALE_GROUP
    }

    /// Bytes of one window object.
    #[must_use]
    pub fn window_bytes(&self) -> usize {
        self.shape.encoder_layers * block_tokens() * self.window_entry_bytes()
    }

    /// The shape this layout was built from.
    #[must_use]
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// The source layers in block order.
    #[must_use]
    pub fn sources(&self) -> &[SourceLayout] {
        &self.sources
    }

    /// A digest that differs whenever two layouts would place a byte differently. Part of every root.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("kvasir 2026 kv layout 1");
        let shape = [self.shape.head_dim, self.shape.index_dim, self.shape.encoder_layers];
        for value in shape {
            hasher.update(&(value as u64).to_le_bytes());
        }
        for source in &self.sources {
            hasher.update(&(source.layer as u64).to_le_bytes());
            hasher.update(&source.ratio.to_le_bytes());
        }
        *hasher.finalize().as_bytes()
    }
}

fn block_tokens() -> usize {
    BLOCK_TOKENS as usize
}

fn main_entry_bytes(shape: &KvShape) -> usize {
    shape.head_dim / 2 + shape.head_dim / MAIN_SCALE_GROUP
}

fn place(shape: &KvShape, source: SourceShape, offset: usize) -> SourceLayout {
    let entries = (BLOCK_TOKENS / source.ratio) as usize;
    let index_codes = offset;
    let index_scales = index_codes + entries * shape.index_dim / 2;
    let main =
        (index_scales + entries * shape.index_dim / SCALE_GROUP).next_multiple_of(SECTION_ALIGN);
    let end = (main + entries * main_entry_bytes(shape)).next_multiple_of(SECTION_ALIGN);
    SourceLayout {
        layer: source.layer,
        ratio: source.ratio,
        entries,
        index_codes,
        index_scales,
        main,
        end,
    }
}

#[cfg(test)]
mod tests {
    use super::{KvLayout, KvShape, LayoutError, SourceShape};

    fn flash() -> KvShape {
        let source = |layer, ratio| SourceShape { layer, ratio };
        KvShape {
            head_dim: 512,
            index_dim: 128,
            encoder_layers: 20,
            sources: vec![source(2, 2), source(8, 2), source(14, 2), source(20, 1)],
        }
    }

    #[test]
    fn flash_block_has_the_published_byte_map() {
        let layout = KvLayout::new(flash()).unwrap();
        assert_eq!(layout.block_bytes(), 113_920);
        assert_eq!(layout.window_entry_bytes(), 528);
        assert_eq!(layout.window_bytes(), 1_351_680);
        let found: Vec<_> = layout
            .sources()
            .iter()
            .map(|s| (s.layer, s.entries, s.index_codes, s.main, s.end))
            .collect();
        let expected = [
            (2, 64, 0, 4_352, 22_784),
            (8, 64, 22_784, 27_136, 45_568),
            (14, 64, 45_568, 49_920, 68_352),
            (20, 128, 68_352, 77_056, 113_920),
        ];
        assert_eq!(found, expected);
        assert_eq!(layout.sources()[3].index_scales, 68_352 + 128 * 64);
    }

    #[test]
    fn impossible_shapes_are_refused_by_field() {
        let mut odd = flash();
        odd.head_dim = 500;
        assert_eq!(KvLayout::new(odd), Err(LayoutError::Width { field: "head_dim", found: 500 }));
        let mut ratio = flash();
        ratio.sources[1].ratio = 3;
        assert_eq!(KvLayout::new(ratio), Err(LayoutError::Ratio { layer: 8, found: 3 }));
        let mut order = flash();
        order.sources.reverse();
        assert_eq!(KvLayout::new(order), Err(LayoutError::Sources));
    }

    #[test]
    fn fingerprint_sees_every_size() {
        let base = KvLayout::new(flash()).unwrap().fingerprint();
        let mut wider = flash();
        wider.index_dim = 64;
        let mut deeper = flash();
        deeper.encoder_layers = 19;
        for other in [wider, deeper] {
            assert_ne!(KvLayout::new(other).unwrap().fingerprint(), base);
        }
    }
}
