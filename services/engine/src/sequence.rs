//! The state of one sequence: its tokens, its block table, its window rings and compressor carries.
//!
//! Everything that is not global KV lives here. Rings hold W + B positions per layer, so that after a roll-back by up to
//! B tokens a full window remains. Invariants: a ring row at `position mod ring` belongs to `position` for all positions
//! from `encoder_from` (or `decoder_from`) up to the last processed one; carries hold the positions of the last
//! unfinished groups.

use shared::{BLOCK_TOKENS, SlotIndex, TokenId};

/// One ring of equal rows, addressed by position.
#[derive(Clone, Debug)]
pub(crate) struct Ring<T> {
    values: Vec<T>,
    width: usize,
    rows: usize,
}

impl<T: Copy + Default> Ring<T> {
    pub(crate) fn new(rows: usize, width: usize) -> Self {
        Self { values: vec![T::default(); rows * width], width, rows }
    }

    pub(crate) fn row(&self, position: usize) -> &[T] {
        let start = position % self.rows * self.width;
        &self.values[start..start + self.width]
    }

    pub(crate) fn row_mut(&mut self, position: usize) -> &mut [T] {
        let start = position % self.rows * self.width;
        &mut self.values[start..start + self.width]
    }
}

/// Sizes that a sequence needs from the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequenceShape {
    pub(crate) encoder_layers: usize,
    /// Decoder layers whose windows are kept; 0 for a prefill worker.
    pub(crate) decoder_layers: usize,
    /// W.
    pub(crate) window: usize,
    /// Slots of a ring: W + B.
    pub(crate) ring: usize,
    pub(crate) window_entry_bytes: usize,
    /// Source layers that pool more than one token.
    pub(crate) pooled_sources: usize,
    /// Rows of a carry: the largest ratio plus B.
    pub(crate) carry: usize,
    pub(crate) head_dim: usize,
}

/// One sequence. Cloning copies rings and carries; the block table then names the same slots twice, which is the
/// caller's business.
#[derive(Clone, Debug)]
pub struct Sequence {
    ids: Vec<TokenId>,
    blocks: Vec<SlotIndex>,
    processed: u32,
    shape: SequenceShape,
    /// Window entries of layers, encoder layers first.
    pub(crate) windows: Vec<Ring<u8>>,
    /// Unrounded keys, then scores, of recent positions per pooled source.
    pub(crate) carries: Vec<Ring<f64>>,
    /// First position whose encoder window entries are held.
    pub(crate) encoder_from: u32,
    /// First position whose decoder window entries are held.
    pub(crate) decoder_from: u32,
    /// First position whose decoder window entries are not written yet.
    pub(crate) decoder_next: u32,
}

impl Sequence {
    pub(crate) fn new(ids: &[TokenId], shape: SequenceShape) -> Self {
        let layers = shape.encoder_layers + shape.decoder_layers;
        Self {
            ids: ids.to_vec(),
            blocks: Vec::new(),
            processed: 0,
            shape,
            windows: vec![Ring::new(shape.ring, shape.window_entry_bytes); layers],
            carries: vec![Ring::new(shape.carry, 2 * shape.head_dim); shape.pooled_sources],
            encoder_from: 0,
            decoder_from: 0,
            decoder_next: 0,
        }
    }

    /// All tokens known so far, processed or not.
    #[must_use]
    pub fn ids(&self) -> &[TokenId] {
        &self.ids
    }

    /// Appends a token that a later row will process.
    pub fn push(&mut self, token: TokenId) {
        self.ids.push(token);
    }

    /// Forgets tokens that have not been processed.
    ///
    /// # Panics
    /// When a token to forget has been processed.
    pub fn truncate_tokens(&mut self, tokens: usize) {
        assert!(
            self.processed as usize <= tokens,
            "processed tokens are rolled back, not truncated"
        );
        self.ids.truncate(tokens);
    }

    /// Position of the next row: all rows below have been processed, or start below the history of this sequence.
    #[must_use]
    pub fn processed(&self) -> u32 {
        self.processed
    }

    /// The slots of the blocks, in order.
    #[must_use]
    pub fn blocks(&self) -> &[SlotIndex] {
        &self.blocks
    }

    /// Appends a slot to the block table.
    pub fn push_block(&mut self, slot: SlotIndex) {
        self.blocks.push(slot);
    }

    /// Replaces a slot by another one with equal bytes, for example after sealing found a held copy.
    ///
    /// # Panics
    /// When there is no such block.
    pub fn replace_block(&mut self, index: usize, slot: SlotIndex) {
        self.blocks[index] = slot;
    }

    /// The next row is `at` and there is no window history below it. Blocks of everything below must be in the table.
    ///
    /// # Panics
    /// When a block below `at` is missing, or `at` is beyond the known tokens.
    pub fn begin(&mut self, at: u32) {
        assert!(at as usize <= self.ids.len(), "a start lies within the known tokens");
        assert!(
            at.div_ceil(BLOCK_TOKENS) as usize <= self.blocks.len(),
            "blocks below the start are attached"
        );
        self.processed = at;
        (self.encoder_from, self.decoder_from, self.decoder_next) = (at, at, at);
    }

    /// The next row is `end`, with the encoder windows of a window object that ends there.
    ///
    /// # Panics
    /// When `bytes` is not one window object, or `end` is not a block boundary of attached blocks.
    pub fn import_window(&mut self, end: u32, bytes: &[u8]) {
        let entry = self.shape.window_entry_bytes;
        assert_eq!(bytes.len(), self.shape.encoder_layers * BLOCK_TOKENS as usize * entry);
        assert!(
            BLOCK_TOKENS <= end && end.is_multiple_of(BLOCK_TOKENS),
            "windows end with a block"
        );
        self.begin(end);
        // The ring may be shorter than a block: later positions overwrite earlier ones, as when they were computed.
        let first = end - BLOCK_TOKENS;
        let layers = bytes.chunks_exact(BLOCK_TOKENS as usize * entry);
        for (ring, layer) in self.windows.iter_mut().zip(layers) {
            for (position, row) in (first..end).zip(layer.chunks_exact(entry)) {
                ring.row_mut(position as usize).copy_from_slice(row);
            }
        }
        self.encoder_from = first.max(self.seen_from(end));
    }

    /// Writes the window object that ends at `end`, a block boundary.
    ///
    /// Entries below `end` - (W - 1), which no row from `end` on can see, are zero. A replay of L_enc * (W - 1) rows does
    /// not make them exact, and without them the bytes of an exact object are a function of its name.
    ///
    /// # Panics
    /// When the windows of the last W - 1 positions before `end` are not all held, or `bytes` has the wrong length.
    pub fn export_window(&self, end: u32, bytes: &mut [u8]) {
        let entry = self.shape.window_entry_bytes;
        assert_eq!(bytes.len(), self.shape.encoder_layers * BLOCK_TOKENS as usize * entry);
        assert!(self.holds_window(end), "the window before {end} is held");
        let first = end - BLOCK_TOKENS;
        let seen = self.seen_from(end);
        let layers = bytes.chunks_exact_mut(BLOCK_TOKENS as usize * entry);
        for (ring, layer) in self.windows.iter().zip(layers) {
            for (position, row) in (first..end).zip(layer.chunks_exact_mut(entry)) {
                if seen <= position {
                    row.copy_from_slice(ring.row(position as usize));
                } else {
                    row.fill(0);
                }
            }
        }
    }

    /// Whether [`Sequence::export_window`] can be called for `end`.
    #[must_use]
    pub fn holds_window(&self, end: u32) -> bool {
        BLOCK_TOKENS <= end
            && end.is_multiple_of(BLOCK_TOKENS)
            && end <= self.processed
            && self.held_from() <= self.seen_from(end)
    }

    /// Forgets rows from `to` on.
    ///
    /// # Panics
    /// When `to` lies ahead, or further back than the rings reach.
    pub fn roll_back(&mut self, to: u32) {
        assert!(to <= self.processed, "only processed rows are rolled back");
        assert!(
            self.processed - to <= self.rollback(),
            "rings reach back {} rows",
            self.rollback()
        );
        self.encoder_from = self.held_from();
        self.decoder_from =
            self.decoder_from.max(self.decoder_next.saturating_sub(self.ring_rows())).min(to);
        self.processed = to;
        self.decoder_next = self.decoder_next.min(to);
        self.ids.truncate(to as usize);
    }

    /// Marks rows below `next` as processed.
    pub(crate) fn advance(&mut self, next: u32, decoder: Option<u32>) {
        self.encoder_from = self.encoder_from.max(next.saturating_sub(self.ring_rows()));
        self.processed = next;
        if let Some(first) = decoder {
            if first != self.decoder_next {
                self.decoder_from = first;
            }
            self.decoder_next = next;
            self.decoder_from = self.decoder_from.max(next.saturating_sub(self.ring_rows()));
        }
    }

    fn held_from(&self) -> u32 {
        self.encoder_from.max(self.processed.saturating_sub(self.ring_rows()))
    }

    /// First position that the row at `end` sees.
    fn seen_from(&self, end: u32) -> u32 {
        end.saturating_sub(self.window() - 1)
    }

    fn ring_rows(&self) -> u32 {
        u32::try_from(self.shape.ring).expect("rings are short")
    }

    fn rollback(&self) -> u32 {
        self.ring_rows() - self.window()
    }

    fn window(&self) -> u32 {
        u32::try_from(self.shape.window).expect("windows are short")
    }
}
