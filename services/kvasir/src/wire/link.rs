//! One warm connection to one member.
//!
//! A task of its own makes it, says `Hello`, watches it and makes it again, so that a caller never waits for a handshake:
//! it finds the connection ready, or learns at once that the member cannot be had.

mod connect;
mod lane;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use shared::{Clock, ServeError, WorkerRank};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::codegen::http::Uri;

use super::Facts;
use super::tasks::Tasks;
use crate::identity::{Identity, MemberIdentity};
use crate::lanes::Lanes;
use connect::Fault;
use lane::Lane;

#[cfg(test)]
pub(super) use lane::State as LaneState;

pub(super) use connect::{Channel, Kind};

/// What a caller is told to wait when too many calls are in progress.
const RETRY_AFTER_MS: u64 = 1_000;

/// Where a member is, as the configuration says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberAddress {
    /// Role and name. TLS checks both.
    pub member: MemberIdentity,
    /// The worker it must say it is.
    pub worker: WorkerRank,
    /// Host and port of its control plane, for example `10.0.0.7:7402`. A host name is looked up at every attempt.
    pub control: String,
}

/// The bounds of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLimits {
    /// Longest attempt to connect, `Hello` included.
    pub connect_max: Duration,
    /// First pause between attempts; doubled by each failure.
    pub pause_min: Duration,
    /// Longest pause between attempts, and the pause after a refusal.
    pub pause_max: Duration,
    /// Pause between signs of life asked of the member, also while nothing is called.
    pub keep_alive_interval: Duration,
    /// Longest wait for one; then the connection counts as lost and its calls end.
    pub keep_alive_timeout: Duration,
    /// Calls at a time, those included that only pin something. Below the server's bound, so that none waits there.
    pub calls_max: usize,
}

impl LinkLimits {
    /// 3 s for an attempt, pauses of 50 ms to 1 s, signs of life every second within 3 s, 2,048 calls.
    pub const DEFAULT: Self = Self {
        connect_max: Duration::from_secs(3),
        pause_min: Duration::from_millis(50),
        pause_max: Duration::from_secs(1),
        keep_alive_interval: Duration::from_secs(1),
        keep_alive_timeout: Duration::from_secs(3),
        calls_max: 2_048,
    };
}

/// What a link is made of.
pub struct LinkOptions {
    /// The other side.
    pub peer: MemberAddress,
    /// This side.
    pub facts: Facts,
    /// How this side proves who it is; asked anew for each connection.
    pub identity: Arc<Identity>,
    /// Where the link's tasks run.
    pub runtime: Handle,
    /// Threads that have a connection of their own for what they call; none are needed.
    pub(crate) lanes: Lanes,
    /// The clock that deadlines of requests are counted by.
    pub clock: Arc<dyn Clock>,
    /// The bounds.
    pub limits: LinkLimits,
}

/// How a link stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Not connected; attempts go on.
    Connecting {
        /// Why the last attempt or connection ended, once there was one.
        error: Option<String>,
    },
    /// Connected, and the member's facts agree with ours.
    Ready(Arc<Facts>),
    /// The member was reached and does not fit: another model, role, worker or cluster. Attempts go on, seldom, since it
    /// may be replaced by one that fits.
    Refused {
        /// Why, with both sides where facts differ.
        reason: String,
    },
    /// The link was stopped.
    Closed,
}

/// What a link did since it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkStats {
    /// Connections that became ready.
    pub connections: u64,
    /// Threads of requests that have a connection of their own now.
    pub lanes: usize,
    /// Calls in progress now.
    pub calls: usize,
    /// Calls refused because too many were in progress.
    pub calls_refused: u64,
}

/// A link to one member. Dropping it ends its tasks and calls; [`Link::stop`] waits for that as well.
pub struct Link {
    inner: Arc<LinkInner>,
}

/// What the tasks of a link share with it. They hold no [`Link`], whose drop ends them.
pub(super) struct LinkInner {
    pub(super) peer: MemberAddress,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) tasks: Tasks,
    pub(super) limits: LinkLimits,
    facts: Facts,
    identity: Arc<Identity>,
    /// `https://NAME.ROLE.kvasir`.
    origin: Uri,
    state: watch::Sender<LinkState>,
    /// There while the state is `Ready`.
    main: Mutex<Option<Main>>,
    threads: Lanes,
    /// One per thread of requests.
    pub(super) lanes: Box<[Lane]>,
    seats: Arc<Semaphore>,
    connections: AtomicU64,
    calls_refused: AtomicU64,
}

/// The connection that says how the link stands.
struct Main {
    channel: Channel,
    /// Cancelled when it ends; the connections of lanes take no new call then.
    ended: CancellationToken,
}

/// Leave to make one call.
pub(super) struct Call {
    pub(super) channel: Channel,
    /// Where the call is to run: on the thread of its connection.
    pub(super) tasks: Tasks,
    pub(super) origin: Uri,
    /// Given back when the call is over.
    pub(super) seat: OwnedSemaphorePermit,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("peer", &self.inner.peer.member)
            .field("state", &*self.inner.state.borrow())
            .finish_non_exhaustive()
    }
}

impl Link {
    /// Starts the task that keeps the connection. Returns at once; the first attempt is under way.
    ///
    /// # Panics
    /// When a bound on calls is zero or above what a semaphore holds.
    #[must_use]
    pub fn start(options: LinkOptions) -> Self {
        let LinkOptions { peer, facts, identity, runtime, lanes, clock, limits } = options;
        assert!((1..=Semaphore::MAX_PERMITS).contains(&limits.calls_max), "a link makes calls");
        let origin = Uri::builder()
            .scheme("https")
            .authority(peer.member.dns_name())
            .path_and_query("/")
            .build()
            .expect("labels of a domain name make an authority");
        let inner = Arc::new(LinkInner {
            peer,
            clock,
            tasks: Tasks::new(runtime),
            limits,
            facts,
            identity,
            origin,
            state: watch::Sender::new(LinkState::Connecting { error: None }),
            main: Mutex::new(None),
            lanes: (0..lanes.len()).map(|number| Lane::new(lanes.runtime(number))).collect(),
            threads: lanes,
            seats: Arc::new(Semaphore::new(limits.calls_max)),
            connections: AtomicU64::new(0),
            calls_refused: AtomicU64::new(0),
        });
        inner.tasks.spawn(Arc::clone(&inner).keep());
        Self { inner }
    }

    /// The other side.
    #[must_use]
    pub fn peer(&self) -> &MemberAddress {
        &self.inner.peer
    }

    /// How the link stands now.
    #[must_use]
    pub fn state(&self) -> LinkState {
        self.inner.state.borrow().clone()
    }

    /// Whether a call would be sent now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(*self.inner.state.borrow(), LinkState::Ready(_))
    }

    /// Follows the state. A receiver sees the latest one and may miss those in between; it ends with the link.
    #[must_use]
    pub fn states(&self) -> watch::Receiver<LinkState> {
        self.inner.state.subscribe()
    }

    /// The link in numbers.
    #[must_use]
    pub fn stats(&self) -> LinkStats {
        let inner = &self.inner;
        LinkStats {
            connections: inner.connections.load(Ordering::Relaxed),
            lanes: inner.lanes.iter().filter(|lane| lane.is_ready()).count(),
            calls: inner.limits.calls_max - inner.seats.available_permits(),
            calls_refused: inner.calls_refused.load(Ordering::Relaxed),
        }
    }

    /// Ends all calls and the connection, and waits until their tasks are gone.
    pub async fn stop(&self) {
        self.inner.close();
        self.inner.tasks.ended().await;
        for lane in &self.inner.lanes {
            lane.ended().await;
        }
    }

    pub(super) fn inner(&self) -> &Arc<LinkInner> {
        &self.inner
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.inner.close();
    }
}

impl LinkInner {
    /// Leave for one call by the main connection.
    ///
    /// # Errors
    /// `WorkerLost` when the link is not ready, `Overloaded` when too many calls are in progress.
    pub(super) fn begin(&self) -> Result<Call, ServeError> {
        self.begin_after(|main| (main.channel.clone(), self.tasks.clone()))
    }

    /// The same by the connection of the calling thread, as soon as it has its own.
    pub(super) fn begin_here(self: &Arc<Self>) -> Result<Call, ServeError> {
        self.begin_after(|main| {
            let own = self.own_lane(&main.ended);
            own.unwrap_or_else(|| (main.channel.clone(), self.tasks.clone()))
        })
    }

    fn begin_after(
        &self,
        choose: impl FnOnce(&Main) -> (Channel, Tasks),
    ) -> Result<Call, ServeError> {
        let Some((channel, tasks)) = self.main.lock().as_ref().map(choose) else {
            return Err(self.lost());
        };
        let Ok(seat) = Arc::clone(&self.seats).try_acquire_owned() else {
            self.calls_refused.fetch_add(1, Ordering::Relaxed);
            return Err(ServeError::Overloaded {
                waiting: self.limits.calls_max,
                waiting_max: self.limits.calls_max,
                retry_after_ms: RETRY_AFTER_MS,
            });
        };
        Ok(Call { channel, tasks, origin: self.origin.clone(), seat })
    }

    /// The number of the connection that the link has or had last: another one means that calls of before have ended.
    pub(super) fn connection(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn lost(&self) -> ServeError {
        ServeError::WorkerLost { worker: self.peer.worker }
    }

    pub(super) fn states(&self) -> watch::Receiver<LinkState> {
        self.state.subscribe()
    }

    fn close(&self) {
        self.publish(None, LinkState::Closed);
        self.tasks.stop();
        for lane in &self.lanes {
            lane.stop();
        }
    }

    fn publish(&self, main: Option<Main>, state: LinkState) {
        self.state.send_if_modified(|now| {
            if *now == LinkState::Closed {
                return false;
            }
            // Under the state's lock, so that both change together.
            if let Some(before) = std::mem::replace(&mut *self.main.lock(), main) {
                before.ended.cancel();
            }
            let changed = *now != state;
            *now = state;
            changed
        });
    }

    /// Keeps the connection until the task is dropped.
    #[expect(clippy::infinite_loop, reason = "the link's tasks end together, when it is stopped")]
    async fn keep(self: Arc<Self>) {
        let mut pause = self.limits.pause_min;
        loop {
            let ended = match self.connect(&self.tasks, Kind::Main).await {
                Ok(connected) => {
                    pause = self.limits.pause_min;
                    self.connections.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(peer = %self.peer.member, "connected");
                    let main = Main { channel: connected.channel, ended: CancellationToken::new() };
                    self.publish(Some(main), LinkState::Ready(connected.facts));
                    connected.driver.await
                }
                Err(fault) => fault,
            };
            let next = match ended {
                Fault::Down(error) => {
                    self.report(&error);
                    self.publish(None, LinkState::Connecting { error: Some(error) });
                    let next = pause;
                    pause = (2 * pause).min(self.limits.pause_max);
                    next
                }
                Fault::Refused(reason) => {
                    self.report(&reason);
                    self.publish(None, LinkState::Refused { reason });
                    self.limits.pause_max
                }
            };
            sleep(next).await;
        }
    }

    /// Logs a fault, once as long as it stays the same.
    fn report(&self, fault: &str) {
        let known = match &*self.state.borrow() {
            LinkState::Connecting { error } => error.as_deref() == Some(fault),
            LinkState::Refused { reason } => reason == fault,
            LinkState::Ready(_) | LinkState::Closed => false,
        };
        if !known {
            let (peer, control) = (&self.peer.member, &self.peer.control);
            tracing::warn!(%peer, control, fault, "not connected; trying again");
        }
    }
}
