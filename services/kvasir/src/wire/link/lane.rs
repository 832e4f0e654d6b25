//! One more connection to the member, for one thread of requests: made when that thread first calls, used by nobody else.
//!
//! The link's main connection says how the member stands. Those of lanes come after it and take no new call once it has
//! ended; calls in progress end by themselves there, as on the main one when the member drains. Until a thread has its own,
//! or when it is lost, its calls go by the main one.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::connect::{Channel, Fault, Kind};
use super::{LinkInner, LinkState};
use crate::wire::Facts;
use crate::wire::tasks::Tasks;

/// Pause after a connection could not be had or was lost.
const PAUSE: Duration = Duration::from_secs(1);

/// See the module's documentation.
pub(in crate::wire) struct Lane {
    tasks: Tasks,
    pub(in crate::wire) state: watch::Sender<State>,
}

/// How a lane stands.
pub(in crate::wire) enum State {
    /// The next call asks for a connection.
    Idle,
    /// It was asked for, or a pause is made.
    Busy,
    /// There it is, with what is cancelled when the main connection of its time ends.
    Ready(Channel, CancellationToken),
}

impl Lane {
    pub(super) fn new(runtime: &Handle) -> Self {
        Self { tasks: Tasks::new(runtime.clone()), state: watch::Sender::new(State::Idle) }
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(*self.state.borrow(), State::Ready(..))
    }

    /// Ends its tasks at their next await, once the link is closed.
    pub(super) fn stop(&self) {
        self.tasks.stop();
    }

    /// Waits for that.
    pub(super) async fn ended(&self) {
        self.tasks.ended().await;
        drop(self.state.send_replace(State::Idle));
    }

    /// Its connection, unless it is about to end. `is_asked` becomes whether the caller has to see to one.
    fn channel(&self, is_asked: &mut bool) -> Option<Channel> {
        let mut found = None;
        *is_asked = self.state.send_if_modified(|state| match state {
            State::Ready(channel, main_ended) => {
                let is_ending = main_ended.is_cancelled() || channel.is_closed();
                found = (!is_ending).then(|| channel.clone());
                false
            }
            State::Busy => false,
            State::Idle => {
                *state = State::Busy;
                true
            }
        });
        found
    }
}

impl LinkInner {
    /// The connection of this thread and where its calls run; none while it has none, and then one is seen to. `main_ended`
    /// is of the main connection.
    pub(super) fn own_lane(
        self: &Arc<Self>,
        main_ended: &CancellationToken,
    ) -> Option<(Channel, Tasks)> {
        let number = self.threads.here()?;
        let lane = &self.lanes[number];
        let mut is_asked = false;
        let channel = lane.channel(&mut is_asked);
        if is_asked {
            lane.tasks.spawn(Arc::clone(self).keep_lane(number, main_ended.clone()));
        }
        channel.map(|channel| (channel, lane.tasks.clone()))
    }

    /// Whether they are of the process that the main connection leads to.
    fn is_same_life(&self, facts: &Facts) -> bool {
        let state = self.state.borrow();
        matches!(&*state, LinkState::Ready(main) if main.incarnation == facts.incarnation)
    }

    /// One connection, from its beginning to its end.
    async fn keep_lane(self: Arc<Self>, number: usize, main_ended: CancellationToken) {
        let lane = &self.lanes[number];
        let set = |state| drop(lane.state.send_replace(state));
        let living = async {
            let ended = match self.connect(&lane.tasks, Kind::Lane).await {
                Ok(connected) if !self.is_same_life(&connected.facts) => {
                    Fault::Down("it is another life of the member".to_owned())
                }
                Ok(connected) => {
                    set(State::Ready(connected.channel, main_ended.clone()));
                    connected.driver.await
                }
                Err(fault) => fault,
            };
            set(State::Busy);
            let (Fault::Down(reason) | Fault::Refused(reason)) = ended;
            tracing::debug!(peer = %self.peer.member, lane = number, reason, "a further connection ended");
            sleep(PAUSE).await;
        };
        // None: it ended with the main connection.
        let _: Option<()> = main_ended.run_until_cancelled(Box::pin(living)).await;
        set(State::Idle);
    }
}
