//! Requests as they came: recorded, captured or made up.
//!
//! A trace holds arrivals, lengths and which blocks are equal; never content. Formats: Mooncake's, Azure's, our own
//! capture, and days of conversations made up from the lengths of a recorded trace.

mod azure;
mod capture;
mod days;
mod mooncake;

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shared::{BLOCK_TOKENS, BlockName, Timestamp};

use crate::settings::{GEOMETRY, Settings, ms, size, wide};
use shared::random::{Random, mix};

pub use capture::{CaptureLine, capture_header};

/// Longest line of a trace: a prompt of ten million tokens in any of the formats.
const LINE_BYTES_MAX: u64 = 4 << 20;
/// Longest prompt or answer that is taken, in tokens.
const TOKENS_MAX: u32 = 100_000_000;

/// What sets the draws of arrivals apart from all others of a seed.
const ARRIVALS: u64 = 0x6172_7269_7661_6c73;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON lines with `timestamp`, `input_length`, `output_length`, `hash_ids` for each 512 tokens.
    Mooncake,
    /// CSV with `TIMESTAMP,ContextTokens,GeneratedTokens`; nothing is shared.
    Azure,
    /// JSON lines written by a router of this project.
    Capture,
}

/// A trace that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("{} cannot be read: {source}; give the path of a trace", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is not one of its format.
    #[error("{}, line {line}: {what}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong and what to do.
        what: String,
    },
    /// There is nothing to replay.
    #[error("{} holds no requests; give a trace with at least one", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
}

/// Requests in the order of their arrival.
#[derive(Clone, Debug)]
pub struct Trace {
    /// What it is, for every output. Says SYNTHETIC when nobody ever sent these requests.
    pub label: String,
    /// The requests.
    pub requests: Vec<Request>,
}

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// When it arrives, from the beginning of the trace.
    pub at: Timestamp,
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens of the answer, at least 1.
    pub answer_tokens: u32,
    /// Which blocks it shares with others.
    pub chain: Chain,
}

/// How the blocks of a request are named.
#[derive(Clone, Debug, PartialEq)]
pub enum Chain {
    /// No other request has any of them.
    Private,
    /// One id for each `blocks_per_id` blocks of the prompt, each standing for the whole prefix; what follows is private.
    Ids {
        /// The ids.
        ids: Arc<[u64]>,
        /// Blocks of an id.
        blocks_per_id: u32,
    },
    /// A turn of a conversation: prompts and answers of all its turns are one text.
    Conversation {
        /// Which.
        number: u64,
        /// The prompt it shares with other conversations.
        shared_prompt: u64,
        /// Whole blocks of that.
        shared_blocks: u32,
    },
}

/// What a cache without bound would find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Tokens of leading whole blocks that came before.
    pub hit_tokens: u64,
    /// The same below the hand-off boundary S, which is all that is ever attached.
    pub usable_tokens: u64,
    /// Different blocks, those of answers included.
    pub blocks: u64,
}

impl Trace {
    /// Reads a file; at most `settings.requests` requests of it.
    ///
    /// # Errors
    /// The file, or the first line that is not one of the format.
    pub fn load(file: &Path, format: Format, settings: &Settings) -> Result<Self, TraceError> {
        let mut requests = match format {
            Format::Mooncake => read(file, settings, Order::Checked, mooncake::request)?,
            Format::Azure => {
                read(file, settings, Order::Checked, azure::Reader::default().reading())?
            }
            Format::Capture => {
                read(file, settings, Order::Any, capture::Reader::default().reading())?
            }
        };
        let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
        let mut label = format!("{name}, {} requests", requests.len());
        if 0.0 < settings.arrival_step_ms {
            spread_arrivals(&mut requests, settings);
            label.push_str(&format!(", arrivals spread over {} ms", settings.arrival_step_ms));
        }
        Ok(Self { label, requests })
    }

    /// Days of conversations with the lengths of this trace. Nobody ever sent these requests; the label says so.
    #[must_use]
    pub fn days(&self, settings: &Settings) -> Self {
        let requests = days::requests(&self.requests, settings);
        let label = format!(
            "SYNTHETIC, {} requests of {} days, lengths drawn from {}",
            requests.len(),
            settings.days,
            self.label
        );
        Self { label, requests }
    }

    /// What a cache without bound would find, when each request stores its blocks the moment it arrives.
    #[must_use]
    pub fn bound(&self) -> Bound {
        let mut seen: HashSet<BlockName> = HashSet::new();
        let mut bound = Bound::default();
        let mut private_blocks = 0;
        for (number, request) in self.requests.iter().enumerate() {
            let names = request.prompt_names(number);
            bound.prompt_tokens += u64::from(request.prompt_tokens);
            let hits = names.iter().take_while(|name| seen.contains(*name)).count();
            let usable = size(u64::from(GEOMETRY.boundary(request.prompt_tokens) / BLOCK_TOKENS));
            bound.hit_tokens += wide(hits) * u64::from(BLOCK_TOKENS);
            bound.usable_tokens += wide(hits.min(usable)) * u64::from(BLOCK_TOKENS);
            let prompt_blocks = request.prompt_tokens / BLOCK_TOKENS;
            let all_blocks = request.tokens() / BLOCK_TOKENS;
            if matches!(request.chain, Chain::Conversation { .. }) {
                seen.extend((prompt_blocks..all_blocks).map(|block| request.name(number, block)));
            } else {
                private_blocks += u64::from(all_blocks - prompt_blocks);
            }
            seen.extend(names.iter());
        }
        bound.blocks = wide(seen.len()) + private_blocks;
        bound
    }

    /// When the last request arrives.
    #[must_use]
    pub fn length(&self) -> Timestamp {
        self.requests.last().map_or(Timestamp(0), |request| request.at)
    }
}

/// Gives requests of one instant, in their order, instants of their own within the step that follows. What steps longer than
/// the trace's own bring out of order is put in order.
fn spread_arrivals(requests: &mut [Request], settings: &Settings) {
    let mut random = Random::new(mix(settings.seed ^ ARRIVALS));
    for burst in requests.chunk_by_mut(|one, next| one.at == next.at) {
        let mut offsets: Vec<_> =
            burst.iter().map(|_| ms(settings.arrival_step_ms * random.unit())).collect();
        offsets.sort_unstable();
        for (request, offset) in burst.iter_mut().zip(offsets) {
            request.at = request.at.after(offset);
        }
    }
    requests.sort_by_key(|request| request.at);
}

impl Request {
    /// Tokens of prompt and answer.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.prompt_tokens.saturating_add(self.answer_tokens)
    }

    /// The name of a block of the request with this number.
    pub(crate) fn name(&self, number: usize, block: u32) -> BlockName {
        match &self.chain {
            Chain::Private => private(number, block),
            Chain::Ids { ids, blocks_per_id } => {
                let whole = block < self.prompt_tokens / BLOCK_TOKENS;
                let id = ids.get(size(u64::from(block / blocks_per_id))).filter(|_| whole);
                id.map_or_else(
                    || private(number, block),
                    |id| spread(1, *id, u64::from(block % blocks_per_id)),
                )
            }
            Chain::Conversation { shared_prompt, shared_blocks, .. } if block < *shared_blocks => {
                spread(2, *shared_prompt, u64::from(block))
            }
            Chain::Conversation { number, .. } => spread(3, *number, u64::from(block)),
        }
    }

    /// The names of the whole blocks of the prompt.
    pub(crate) fn prompt_names(&self, number: usize) -> Arc<[BlockName]> {
        (0..self.prompt_tokens / BLOCK_TOKENS).map(|block| self.name(number, block)).collect()
    }
}

fn private(number: usize, block: u32) -> BlockName {
    spread(0, wide(number), u64::from(block))
}

/// A name spread like a hash.
fn spread(kind: u64, owner: u64, place: u64) -> BlockName {
    let first = mix(mix(mix(kind) ^ owner) ^ place);
    let second = mix(mix(first.rotate_left(32) ^ owner).wrapping_add(place));
    let mut name = [0; 16];
    name[..8].copy_from_slice(&first.to_le_bytes());
    name[8..].copy_from_slice(&second.to_le_bytes());
    BlockName(name)
}

/// Whether lines come in the order of arrival.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// They must.
    Checked,
    /// They are sorted.
    Any,
}

/// Reads lines until the file or the bound on requests ends. A line that is no request (a header) gives none.
fn read(
    file: &Path,
    settings: &Settings,
    order: Order,
    mut request: impl FnMut(&str) -> Result<Option<Request>, String>,
) -> Result<Vec<Request>, TraceError> {
    let failed = |source| TraceError::File { file: file.to_owned(), source };
    let wrong = |line, what| TraceError::Line { file: file.to_owned(), line, what };
    let mut reader = BufReader::new(File::open(file).map_err(failed)?);
    let mut requests: Vec<Request> = Vec::new();
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let taken = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut text);
        if taken.map_err(failed)? == 0 || settings.requests <= wide(requests.len()) {
            break;
        }
        if wide(text.len()) == LINE_BYTES_MAX {
            return Err(wrong(
                line,
                format!("longer than {LINE_BYTES_MAX} bytes; is this a trace?"),
            ));
        }
        let text = std::str::from_utf8(&text)
            .map_err(|_| wrong(line, "no UTF-8 text; is this a trace?".to_owned()))?;
        if text.trim().is_empty() {
            continue;
        }
        let Some(next) = request(text.trim()).map_err(|what| wrong(line, what))? else { continue };
        let is_early = requests.last().is_some_and(|last| next.at < last.at);
        if order == Order::Checked && is_early {
            let what = "arrives before the request above it; sort the file by time";
            return Err(wrong(line, what.to_owned()));
        }
        requests.push(next);
    }
    if requests.is_empty() {
        return Err(TraceError::Empty { file: file.to_owned() });
    }
    requests.sort_by_key(|request| request.at);
    Ok(requests)
}

/// Checks lengths: a prompt has at least one token, an answer of none counts as one.
fn lengths(prompt: u64, answer: u64) -> Result<(u32, u32), String> {
    let tokens = |tokens: u64| u32::try_from(tokens).ok().filter(|tokens| *tokens <= TOKENS_MAX);
    match (tokens(prompt), tokens(answer)) {
        (Some(prompt), Some(answer)) if 0 < prompt => Ok((prompt, answer.max(1))),
        _ => Err(format!(
            "a prompt of {prompt} and an answer of {answer} tokens; prompts have 1 to {TOKENS_MAX}, answers at most \
             as many: mend or remove the line"
        )),
    }
}

#[cfg(test)]
mod tests;
