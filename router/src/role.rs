//! What a member of the cluster does.

/// The part a member plays in placement. One member has one role; a process that plays several joins once for each,
/// under different worker ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Computes prompts, never samples.
    Prefill,
    /// Answers requests.
    Decode,
    /// Holds blocks that every worker can read.
    Store,
}

impl Role {
    /// The word used in metrics, errors and reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Store => "store",
        }
    }
}
