//! Messages into the types of crate `shared`, and back.
//!
//! Into a message every value goes; out of a message comes a value or a [`WireError`] that names the field. Checked here
//! is what a message can get wrong (what is missing, too long, too many, unknown); whether a request makes sense is for
//! the worker, which checks requests of its own process as well.
//!
//! A [`shared::Timestamp`] counts from the start of its own process, so a deadline travels as the milliseconds left and
//! the time on the way is not counted: loopback and one data centre, below a millisecond.

mod constraints;
mod errors;
mod events;
mod objects;
mod requests;
#[cfg(test)]
mod tests;

use shared::{
    BlockName, DpRank, RequestContext, RequestId, TenantTag, TokenId, TraceContext, WorkerId,
    WorkerRank,
};

use super::v1;

pub(super) use events::{Assembler, question_from_wire, question_to_wire, worker_event_part};
pub(super) use objects::{
    locate_request_from_wire, locate_request_to_wire, offer_request_from_wire,
    offer_request_to_wire,
};
pub(super) use requests::{
    decode_request_from_wire, decode_request_to_wire, prefill_request_from_wire,
    prefill_request_to_wire,
};

/// Most tokens of one list: 4 Mi, four times the longest context of the family.
pub const TOKENS_MAX: usize = 1 << 22;
/// Most block names of one request: those of [`TOKENS_MAX`] tokens.
pub const NAMES_MAX: usize = TOKENS_MAX / 128;
/// Most objects of one lookup or offer: a block and a window object for each name.
pub const OBJECTS_MAX: usize = 2 * NAMES_MAX;
/// Most names of one message of a cache event; what has more goes as several messages of 1 MiB.
pub const PART_NAMES_MAX: usize = 1 << 16;
/// Most names of one cache event: 16 Mi, 256 MiB of names for 1.8 TiB of Flash blocks.
pub const CHANGE_NAMES_MAX: usize = 1 << 24;
/// Most bytes of a text for people. Longer ones are cut before they are sent.
pub const TEXT_BYTES_MAX: usize = 4_096;

/// What is wrong with a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A field that must be there is not.
    #[error("{field} is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field of fixed length has another one, or a list of fixed-length entries ends inside of one.
    #[error("{field} has {found} bytes, expected {expected}")]
    Length {
        /// The field.
        field: &'static str,
        /// Its length in bytes.
        found: usize,
        /// The length it should have.
        expected: &'static str,
    },
    /// A list of fixed length has another one.
    #[error("{field} has {found} entries, expected {expected}")]
    Count {
        /// The field.
        field: &'static str,
        /// Its entries.
        found: usize,
        /// The entries it should have.
        expected: usize,
    },
    /// An enumeration has a value that this version does not know.
    #[error("{field} has the unknown value {found}")]
    Unknown {
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
    },
    /// A list or text is longer than anything this cluster sends.
    #[error("{field} has {found} entries, at most {max} are taken")]
    TooMany {
        /// The field.
        field: &'static str,
        /// Its length.
        found: usize,
        /// The bound.
        max: usize,
    },
    /// A number is out of its range.
    #[error("{field} is {found}, expected {expected}")]
    Range {
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
        /// Its range.
        expected: &'static str,
    },
    /// Messages that belong together do not fit together.
    #[error("{field} differs between the parts of one event")]
    Parts {
        /// The field.
        field: &'static str,
    },
}

pub(super) fn required<T>(value: Option<T>, field: &'static str) -> Result<T, WireError> {
    value.ok_or(WireError::Missing { field })
}

fn bounded(found: usize, max: usize, field: &'static str) -> Result<(), WireError> {
    if max < found { Err(WireError::TooMany { field, found, max }) } else { Ok(()) }
}

fn bytes_16(bytes: &[u8], field: &'static str) -> Result<[u8; 16], WireError> {
    bytes.try_into().map_err(|_| WireError::Length { field, found: bytes.len(), expected: "16" })
}

fn bytes_32(bytes: &[u8], field: &'static str) -> Result<[u8; 32], WireError> {
    bytes.try_into().map_err(|_| WireError::Length { field, found: bytes.len(), expected: "32" })
}

/// A text for people, cut at a character when it is too long.
fn text_to_wire(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}

fn text_from_wire(text: String, field: &'static str) -> Result<String, WireError> {
    bounded(text.len(), TEXT_BYTES_MAX, field)?;
    Ok(text)
}

pub(super) fn request_id(bytes: &[u8], field: &'static str) -> Result<RequestId, WireError> {
    Ok(RequestId(u128::from_be_bytes(bytes_16(bytes, field)?)))
}

/// The tokens in as few bytes each as the largest of them needs, behind that number of bytes; no byte where there are none.
fn tokens_to_wire(tokens: &[TokenId]) -> Vec<u8> {
    fn packed<const WIDTH: usize>(tokens: &[TokenId]) -> Vec<u8> {
        let mut bytes = vec![0; 1 + WIDTH * tokens.len()];
        let (width, packed) = bytes.split_first_mut().expect("the width's byte");
        *width = u8::try_from(WIDTH).expect("at most 4");
        for (place, token) in packed.as_chunks_mut::<WIDTH>().0.iter_mut().zip(tokens) {
            place.copy_from_slice(&token.0.to_le_bytes()[..WIDTH]);
        }
        bytes
    }
    match tokens.iter().map(|token| token.0).max() {
        None => Vec::new(),
        Some(0..=0xFF) => packed::<1>(tokens),
        Some(0x100..=0xFFFF) => packed::<2>(tokens),
        Some(0x1_0000..=0xFF_FFFF) => packed::<3>(tokens),
        Some(_) => packed::<4>(tokens),
    }
}

/// The tokens as whatever collection the request wants.
fn tokens_from_wire<C: FromIterator<TokenId>>(
    bytes: &[u8],
    field: &'static str,
) -> Result<C, WireError> {
    fn unpacked<const WIDTH: usize, C: FromIterator<TokenId>>(
        bytes: &[u8],
        field: &'static str,
    ) -> Result<C, WireError> {
        let (tokens, rest) = bytes.as_chunks::<WIDTH>();
        if !rest.is_empty() {
            let expected = "1 and a multiple of the first";
            return Err(WireError::Length { field, found: 1 + bytes.len(), expected });
        }
        bounded(tokens.len(), TOKENS_MAX, field)?;
        let token = |bytes: &[u8; WIDTH]| {
            let mut wide = [0; 4];
            wide[..WIDTH].copy_from_slice(bytes);
            TokenId(u32::from_le_bytes(wide))
        };
        Ok(tokens.iter().map(token).collect())
    }
    let Some((width, packed)) = bytes.split_first() else { return Ok(C::from_iter([])) };
    match width {
        1 => unpacked::<1, C>(packed, field),
        2 => unpacked::<2, C>(packed, field),
        3 => unpacked::<3, C>(packed, field),
        4 => unpacked::<4, C>(packed, field),
        _ => {
            let expected = "1..=4 bytes for each token";
            Err(WireError::Range { field, found: width.to_string(), expected })
        }
    }
}

pub(super) fn names_to_wire(names: &[BlockName]) -> Vec<u8> {
    names.iter().flat_map(|name| name.0).collect()
}

/// The names as whatever collection is wanted.
pub(super) fn names_from_wire<C: FromIterator<BlockName>>(
    bytes: &[u8],
    max: usize,
    field: &'static str,
) -> Result<C, WireError> {
    let (names, rest) = bytes.as_chunks::<16>();
    if !rest.is_empty() {
        let expected = "a multiple of 16";
        return Err(WireError::Length { field, found: bytes.len(), expected });
    }
    bounded(names.len(), max, field)?;
    Ok(names.iter().copied().map(BlockName).collect())
}

impl From<WorkerRank> for v1::WorkerRank {
    fn from(worker: WorkerRank) -> Self {
        Self { worker: worker.worker.0, rank: worker.rank.0.into() }
    }
}

impl TryFrom<v1::WorkerRank> for WorkerRank {
    type Error = WireError;

    fn try_from(message: v1::WorkerRank) -> Result<Self, WireError> {
        let rank = u16::try_from(message.rank).map_err(|_| WireError::Range {
            field: "rank",
            found: message.rank.to_string(),
            expected: "at most 65535",
        })?;
        Ok(Self { worker: WorkerId(message.worker), rank: DpRank(rank) })
    }
}

fn context_from_wire(
    id: &[u8],
    trace: Option<v1::TraceContext>,
    tenant: u64,
) -> Result<RequestContext, WireError> {
    let tenant = TenantTag(tenant);
    Ok(RequestContext { id: request_id(id, "id")?, trace: trace_from_wire(trace)?, tenant })
}

fn trace_to_wire(trace: TraceContext) -> Option<v1::TraceContext> {
    let TraceContext { trace, span, sampled } = trace;
    (trace != 0).then(|| v1::TraceContext { trace: trace.to_be_bytes().to_vec(), span, sampled })
}

fn trace_from_wire(message: Option<v1::TraceContext>) -> Result<TraceContext, WireError> {
    let Some(v1::TraceContext { trace, span, sampled }) = message else {
        return Ok(TraceContext::NONE);
    };
    let trace = u128::from_be_bytes(bytes_16(&trace, "trace")?);
    Ok(TraceContext { trace, span, sampled })
}
