//! Media embeddings, as the encoder stores them and prefill and decode read them.
//!
//! An embedding is the rows of one image's span, delimiters included, under its media id. Stores and transports move slots of
//! one size, that of a block, and embeddings have any size: so one is cut into *pieces* (`media/piece.rs`), each an object
//! of kind [`ObjectKind::Media`] that is stored, found and read by its name as a block is. Nothing below this module knows
//! that pieces belong together; only that they are one group, so that they have one owner among several stores.
//!
//! What it is not: it encodes nothing and knows no image. It owns no thread: answers come on those of store and transport.
//!
//! Invariants: a read gives all rows that were asked for, each checked, or none; pieces that are not of this very embedding
//! are a miss, are counted, and are not asked for again; whoever does not know the root finds nothing.
//!
//! Start reading at [`MediaClient`].

mod piece;
mod put;
mod read;

#[cfg(test)]
pub(crate) mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use shared::{
    BlockName, BlockStore, Durability, Grouped, MediaId, Miss, ObjectKey, ObjectKind, OfferOutcome,
    RequestContext, Root, Sink, Ticket, media_piece_name,
};

use crate::pool::{Pool, PoolFull};
use crate::recent::Recent;
use crate::transport::{ReadError, Transport};
use piece::Cut;
use put::Putting;
use read::Reading;

/// Bytes of the largest embedding. An image has at most 1,024 tokens, which in one column take 2,050 rows of 5,120 BF16
/// numbers: 21 MB.
pub const MEDIA_BYTES_MAX: u64 = 32 << 20;

/// Pieces of the largest embedding: what the queue of a store takes at its default. Flash blocks need 295 for 32 MiB.
pub const MEDIA_PIECES_MAX: u32 = 1_024;

/// Names of wrong pieces that are remembered.
const QUARANTINE_MAX: usize = 4_096;

/// How large an embedding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaSize {
    /// Rows of the span, delimiters included. At least 1.
    pub rows: u32,
    /// Bytes of a row: the model's width in BF16. At least 1.
    pub row_bytes: u32,
}

/// Which embedding is meant. Its size is part of what is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaEmbedding {
    /// Under which its pieces are named: tenant, model and numerics. A secret.
    pub root: Root,
    /// The image and all that changes its embedding.
    pub media: MediaId,
    /// How large it is.
    pub size: MediaSize,
}

/// What a client is connected to.
#[derive(Clone)]
pub struct MediaWiring {
    /// Where pieces are kept.
    pub store: Arc<dyn BlockStore>,
    /// How they are read from there.
    pub transport: Arc<dyn Transport>,
    /// Slots for pieces on their way, and for those that were used last. It is of kind [`ObjectKind::Media`], has room for the
    /// largest embedding that is to be moved, and is registered with the transport by which the store reads.
    pub pool: Pool,
    /// Bytes of a block ([`shared::KvLayout::block_bytes`]), the most that a piece has. The same for everybody.
    pub piece_bytes: usize,
}

/// Why an embedding was not put, or not asked for: the caller is at fault, or out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MediaError {
    /// It has no bytes.
    #[error("an embedding of {rows} rows of {row_bytes} bytes is empty; give it at least one row")]
    Empty {
        /// Its rows.
        rows: u32,
        /// Bytes of a row.
        row_bytes: u32,
    },
    /// It is too large.
    #[error(
        "an embedding of {bytes} bytes in {pieces} pieces is too large, at most {MEDIA_BYTES_MAX} bytes and {MEDIA_PIECES_MAX} pieces are kept; embed it again where it is needed"
    )]
    TooLarge {
        /// Its bytes.
        bytes: u64,
        /// Its pieces.
        pieces: u64,
    },
    /// What was given is not as long as was said.
    #[error("{found} bytes were given for an embedding of {expected}; give all of its rows")]
    Length {
        /// Bytes that were given.
        found: usize,
        /// Bytes of the embedding.
        expected: usize,
    },
    /// There are no such rows.
    #[error(
        "rows {first} to {end} of an embedding of {rows} were asked for; ask for some that it has"
    )]
    Rows {
        /// The first row.
        first: u32,
        /// The row behind the last one.
        end: u32,
        /// Rows of the embedding.
        rows: u32,
    },
    /// The client's own pool is full.
    #[error("no room for its pieces: {0}")]
    NoSlots(#[from] PoolFull),
}

/// Why rows were not had. Whatever it is, the image is to be embedded again, or by another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MediaMiss {
    /// At least one piece was not found.
    #[error("a piece of the embedding was not found ({}); embed the image again", .0.as_str())]
    NotFound(Miss),
    /// At least one piece could not be read.
    #[error("a piece of the embedding was not read ({0}); embed the image again")]
    NotRead(ReadError),
    /// A piece is not of this embedding, or not of the same encoding as the others. It is not asked for again.
    #[error(
        "a piece of the embedding is another one's; embed the image again, and look for a program that stores wrong bytes"
    )]
    Differs,
    /// The client's own pool is full.
    #[error("no room for the pieces of the embedding: {0}")]
    NoSlots(PoolFull),
}

/// What a client did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediaStats {
    /// Embeddings all of whose pieces the store holds after they were put.
    pub stored: u64,
    /// Embeddings of which the store took not all.
    pub dropped: u64,
    /// Reads that gave their rows.
    pub hits: u64,
    /// Reads that did not.
    pub misses: u64,
    /// Pieces that were not of the embedding they were read for. Always 0 unless a program is wrong.
    pub mismatches: u64,
}

/// Puts and reads embeddings. A cheap handle.
#[derive(Clone)]
pub struct MediaClient {
    /// Not among what puts and reads hold on to: it ends when its owners let go, whatever is under way on its threads.
    store: Arc<dyn BlockStore>,
    shared: Arc<Shared>,
}

/// What puts and reads under way have in common.
struct Shared {
    transport: Arc<dyn Transport>,
    pool: Pool,
    piece_bytes: usize,
    quarantine: Mutex<Recent<()>>,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    stored: AtomicU64,
    dropped: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    mismatches: AtomicU64,
}

impl MediaClient {
    /// A client of a store.
    ///
    /// # Panics
    /// When the pool is of another kind, its slots are smaller than a piece, or a piece has no room for its header.
    #[must_use]
    pub fn new(wiring: MediaWiring) -> Self {
        let MediaWiring { store, transport, pool, piece_bytes } = wiring;
        assert_eq!(pool.config().kind, ObjectKind::Media, "the pool holds pieces");
        assert!(piece_bytes <= pool.memory().slot_bytes(), "a slot holds a piece");
        assert!(piece::HEADER_BYTES < piece_bytes, "a piece holds more than its header");
        let quarantine = Mutex::new(Recent::new(QUARANTINE_MAX));
        let counters = Counters::default();
        let shared = Shared { transport, pool, piece_bytes, quarantine, counters };
        Self { store, shared: Arc::new(shared) }
    }

    /// Offers all pieces of an embedding to the store. One event: the worst that became of a piece. A piece that the store has
    /// already stays as it is: first write wins. Dropping the ticket withdraws what is not read yet, and drops the sink. A store
    /// that ends without a word took nothing.
    ///
    /// Copies the bytes into the client's pool on the calling thread; waits for nobody.
    ///
    /// # Errors
    /// When `bytes` are not those of an embedding of that size, or have no room: nothing is put then.
    pub fn put(
        &self,
        context: RequestContext,
        embedding: &MediaEmbedding,
        bytes: &[u8],
        durability: Durability,
        sink: Box<dyn Sink<OfferOutcome>>,
    ) -> Result<Ticket, MediaError> {
        let cut = self.cut(embedding)?;
        let (found, expected) = (bytes.len(), cut.bytes());
        if found != expected {
            return Err(MediaError::Length { found, expected });
        }
        let putting = Putting::seal(&self.shared, &cut, embedding, bytes, sink)?;
        Ok(putting.offer(&*self.store, context, durability))
    }

    /// Reads rows of an embedding, from the client's own pool or the store. One event: all of these rows, one behind the other,
    /// or why not. Drop the ticket then: until that the store keeps what was found. Dropping it before cancels, and drops
    /// the sink.
    ///
    /// Waits for nobody. What the client's own pool holds is copied on the calling thread, and when that is all, the answer
    /// comes on it before `read` returns.
    ///
    /// # Errors
    /// When there are no such rows, or the embedding is larger than any that is kept.
    pub fn read(
        &self,
        context: RequestContext,
        embedding: &MediaEmbedding,
        rows: Range<u32>,
        sink: Box<dyn Sink<Result<Vec<u8>, MediaMiss>>>,
    ) -> Result<Ticket, MediaError> {
        let cut = self.cut(embedding)?;
        if rows.end <= rows.start || embedding.size.rows < rows.end {
            let (first, end, rows) = (rows.start, rows.end, embedding.size.rows);
            return Err(MediaError::Rows { first, end, rows });
        }
        let (reading, asked) = Reading::new(&self.shared, cut, context, (embedding, rows), sink);
        Ok(reading.start(&*self.store, asked))
    }

    /// What it did so far.
    #[must_use]
    pub fn stats(&self) -> MediaStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { stored, dropped, hits, misses, mismatches } = &self.shared.counters;
        MediaStats {
            stored: read(stored),
            dropped: read(dropped),
            hits: read(hits),
            misses: read(misses),
            mismatches: read(mismatches),
        }
    }

    fn cut(&self, embedding: &MediaEmbedding) -> Result<Cut, MediaError> {
        Cut::new(embedding.media, embedding.size, self.shared.piece_bytes)
    }
}

impl fmt::Debug for MediaClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MediaClient").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The keys of some of its pieces. All of them are one group.
fn keys(embedding: &MediaEmbedding, pieces: Range<u32>) -> Vec<Grouped<ObjectKey>> {
    let name = |piece| media_piece_name(&embedding.root, embedding.media, piece);
    let group: BlockName = name(0);
    let key = |piece| ObjectKey { kind: ObjectKind::Media, name: name(piece) };
    pieces.map(|piece| Grouped { item: key(piece), group }).collect()
}
