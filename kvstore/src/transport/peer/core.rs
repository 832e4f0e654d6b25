//! What the parts of a transport have in common.

use std::sync::Arc;
use std::time::Duration;

use quinn::Endpoint;
use shared::Clock;
use tokio_util::sync::CancellationToken;

use super::counters::Counters;
use super::members::Members;
use super::registry::Registry;
use super::{DataTls, PeerDirectory, PeerTransportConfig};

/// State and wiring of one [`super::PeerTransport`], shared by its tasks.
pub(in crate::transport) struct Core {
    pub(in crate::transport) config: PeerTransportConfig,
    pub(in crate::transport) registry: Registry,
    pub(in crate::transport) counters: Arc<Counters>,
    pub(in crate::transport) tls: Arc<dyn DataTls>,
    pub(in crate::transport) endpoint: Endpoint,
    /// Ends every task; parent of all tokens of batches.
    pub(in crate::transport) closing: CancellationToken,
    pub(super) directory: Arc<dyn PeerDirectory>,
    pub(super) members: Members,
    pub(super) clock: Arc<dyn Clock>,
}

impl Core {
    /// How long one object may take to arrive.
    pub(in crate::transport) fn read_limit(&self) -> Duration {
        Duration::from_millis(self.config.read_ms_max)
    }

    /// How long a batch may take, waiting included.
    pub(in crate::transport) fn batch_limit(&self) -> Duration {
        Duration::from_millis(self.config.batch_ms_max)
    }

    /// How long a peer may leave a stream or a socket blocked.
    pub(in crate::transport) fn hold_limit(&self) -> Duration {
        Duration::from_millis(self.config.hold_ms_max)
    }
}
