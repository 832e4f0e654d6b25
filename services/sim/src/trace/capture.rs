//! Our own format: JSON lines, written by a router (`[capture]`) and read back here.
//!
//! The first line is the header. Each further one is a request that ended:
//!
//! ```text
//! {"format":"kvasir-capture","version":1,"block_tokens":128}
//! {"at_ms":12,"prompt_tokens":300,"answer_tokens":20,"blocks":["83a1…","09fe…"]}
//! ```
//!
//! `blocks` has one word of 16 hexadecimal digits for each whole block of the prompt: a hash of the block's name under a key
//! that was drawn when the capture began and is kept nowhere. Equal words are equal prefixes within one capture; nothing else
//! can be learnt from them, not even by who has the cluster's secret. Lines come in the order in which requests ended, so
//! they are sorted by arrival when they are read.

use serde::{Deserialize, Serialize};
use shared::{BLOCK_TOKENS, Timestamp};

use super::{Chain, Request, lengths};
use crate::settings::wide;

const FORMAT: &str = "kvasir-capture";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: String,
    version: u32,
    block_tokens: u32,
}

/// One request of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureLine {
    /// Milliseconds from the beginning of the capture.
    pub at_ms: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the answer.
    pub answer_tokens: u32,
    /// A word of 16 hexadecimal digits for each whole block of the prompt.
    pub blocks: Vec<String>,
}

impl CaptureLine {
    /// The line as it is written, without its end.
    #[must_use]
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("numbers and texts can be written")
    }
}

/// The first line of a capture, without its end.
#[must_use]
pub fn capture_header() -> String {
    let header = Header { format: FORMAT.to_owned(), version: VERSION, block_tokens: BLOCK_TOKENS };
    serde_json::to_string(&header).expect("numbers and texts can be written")
}

/// Reads lines; the first one is the header.
#[derive(Debug, Default)]
pub(super) struct Reader {
    begun: bool,
}

impl Reader {
    pub(super) fn reading(mut self) -> impl FnMut(&str) -> Result<Option<Request>, String> {
        move |text| {
            if std::mem::replace(&mut self.begun, true) {
                request(text).map(Some)
            } else {
                header(text)
            }
        }
    }
}

fn header(text: &str) -> Result<Option<Request>, String> {
    let header: Header = serde_json::from_str(text)
        .map_err(|error| format!("no header of a capture ({error}); see --format"))?;
    if header.format != FORMAT || header.version != VERSION || header.block_tokens != BLOCK_TOKENS {
        return Err(format!(
            "a capture of format {} {} with blocks of {} tokens; this program reads {FORMAT} {VERSION} with \
             {BLOCK_TOKENS}",
            header.format, header.version, header.block_tokens
        ));
    }
    Ok(None)
}

fn request(text: &str) -> Result<Request, String> {
    let line: CaptureLine = serde_json::from_str(text)
        .map_err(|error| format!("no request of a capture ({error}); was the file cut off?"))?;
    let (prompt_tokens, answer_tokens) =
        lengths(u64::from(line.prompt_tokens), u64::from(line.answer_tokens))?;
    let expected = u64::from(prompt_tokens / BLOCK_TOKENS);
    if wide(line.blocks.len()) != expected {
        let found = line.blocks.len();
        return Err(format!("{found} blocks for {prompt_tokens} tokens, expected {expected}"));
    }
    let word = |text: &String| {
        let digits = text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let word = digits.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        word.ok_or_else(|| format!("block {text} is not 16 hexadecimal digits"))
    };
    let ids: Vec<u64> = line.blocks.iter().map(word).collect::<Result<_, _>>()?;
    let chain = Chain::Ids { ids: ids.into(), blocks_per_id: 1 };
    Ok(Request {
        at: Timestamp(line.at_ms.saturating_mul(1_000_000)),
        prompt_tokens,
        answer_tokens,
        chain,
    })
}
