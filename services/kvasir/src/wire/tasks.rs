//! Tasks with an owner.

use std::future::Future;

use hyper::rt::Executor;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::lanes::counted;

/// The tasks of one server or link, which end together. Clones share them; whoever owns them calls [`Tasks::stop`].
#[derive(Clone, Debug)]
pub(super) struct Tasks {
    runtime: Handle,
    tracker: TaskTracker,
    stopped: CancellationToken,
}

impl Tasks {
    pub(super) fn new(runtime: Handle) -> Self {
        Self { runtime, tracker: TaskTracker::new(), stopped: CancellationToken::new() }
    }

    /// Runs a future until it or all tasks end. After [`Tasks::stop`] it is dropped without a poll.
    pub(super) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let stopped = self.stopped.clone();
        let until_stopped = counted(async move {
            // None: stopped, and the future was dropped.
            let _: Option<()> = stopped.run_until_cancelled_owned(future).await;
        });
        // The tracker, not the handle, is what is waited on.
        drop(self.tracker.spawn_on(until_stopped, &self.runtime));
    }

    /// Ends all tasks at their next await. Does not block.
    pub(super) fn stop(&self) {
        self.stopped.cancel();
        self.tracker.close();
    }

    /// Waits until every task has ended. Call [`Tasks::stop`] before.
    pub(super) async fn ended(&self) {
        self.tracker.wait().await;
    }
}

impl<F> Executor<F> for Tasks
where
    F: Future + Send + 'static,
{
    fn execute(&self, future: F) {
        self.spawn(async move {
            // What hyper runs here has no result.
            drop(future.await);
        });
    }
}
