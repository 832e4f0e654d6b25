//! What two members must agree on before they work together.

use std::fmt;

use shared::{Numerics, WorkerRank};

use crate::identity::MemberIdentity;

/// The version of the protocol in `proto/kvasir/v1`. Raised by every change that an older peer would misread.
pub const PROTOCOL: u32 = 9;

/// What a member is and what it computes with. Sent with every handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// [`PROTOCOL`] of the sender.
    pub protocol: u32,
    /// Digest of configuration, tokenizer and weights.
    pub model: [u8; 32],
    /// [`shared::KvLayout::fingerprint`].
    pub layout: [u8; 32],
    /// The engine's revision.
    pub numerics: Numerics,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Digest of the tokenizer.
    pub tokenizer: [u8; 32],
    /// Role and name; must be those of the sender's certificate.
    pub member: MemberIdentity,
    /// The name under which routers place and descriptors point.
    pub worker: WorkerRank,
    /// Raised by every restart; 0 where nobody asks.
    pub incarnation: u64,
}

/// Two members cannot work together. Reads, for example,
/// `numerics: decode-1 has cpu-fast-1, router-1 has cpu-exact-1`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fact}: {first_name} has {first}, {second_name} has {second}")]
pub struct Disagreement {
    /// What differs.
    pub fact: &'static str,
    /// The member asked.
    pub first_name: String,
    /// What it has.
    pub first: String,
    /// The other one.
    pub second_name: String,
    /// What that has.
    pub second: String,
}

impl Facts {
    /// Compares protocol version, model, layout, numerics, block size and tokenizer, in this order.
    ///
    /// # Errors
    /// The first fact that differs, with both sides.
    pub fn agree(&self, other: &Self) -> Result<(), Disagreement> {
        let pairs = [
            ("protocol version", self.protocol.to_string(), other.protocol.to_string()),
            ("model id", digest(&self.model), digest(&other.model)),
            ("layout", digest(&self.layout), digest(&other.layout)),
            ("numerics", self.numerics.0.clone(), other.numerics.0.clone()),
            ("block tokens", self.block_tokens.to_string(), other.block_tokens.to_string()),
            ("tokenizer", digest(&self.tokenizer), digest(&other.tokenizer)),
        ];
        let Some((fact, first, second)) = pairs.into_iter().find(|(_, a, b)| a != b) else {
            return Ok(());
        };
        Err(Disagreement {
            fact,
            first_name: self.member.name().to_owned(),
            first,
            second_name: other.member.name().to_owned(),
            second,
        })
    }
}

fn digest(bytes: &[u8; 32]) -> String {
    Digest(bytes).to_string()
}

struct Digest<'a>(&'a [u8; 32]);

impl fmt::Display for Digest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use shared::Numerics;

    use super::PROTOCOL;
    use crate::wire::tests::facts;

    #[test]
    fn each_fact_that_differs_is_named_with_both_sides() {
        let first = facts("decode-1");
        let mut others = vec![first.clone(); 6];
        others[0].protocol = PROTOCOL + 1;
        others[1].model = [9; 32];
        others[2].layout = [9; 32];
        others[3].numerics = Numerics("cpu-fast-1".to_owned());
        others[4].block_tokens = 64;
        others[5].tokenizer = [9; 32];
        let nine = "09".repeat(32);
        let expected = [
            format!("protocol version: decode-1 has {PROTOCOL}, decode-1 has {}", PROTOCOL + 1),
            format!("model id: decode-1 has {}, decode-1 has {nine}", "01".repeat(32)),
            format!("layout: decode-1 has {}, decode-1 has {nine}", "02".repeat(32)),
            "numerics: decode-1 has cpu-exact-1, decode-1 has cpu-fast-1".to_owned(),
            "block tokens: decode-1 has 128, decode-1 has 64".to_owned(),
            format!("tokenizer: decode-1 has {}, decode-1 has {nine}", "03".repeat(32)),
        ];
        for (other, expected) in others.iter().zip(expected) {
            assert_eq!(first.agree(other).unwrap_err().to_string(), expected);
        }
        let mut elsewhere = facts("router-1");
        elsewhere.incarnation = 77;
        assert_eq!(first.agree(&elsewhere), Ok(()));
    }
}
