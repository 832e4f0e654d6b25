//! Who the members of the cluster are now: from the configuration file, from etcd, or from Kubernetes.
//!
//! A source yields addresses and nothing else. Who a member is follows from its certificate, and what it may call from its
//! role; an entry that lies is a link that is refused.
//!
//! Invariants: the file counts until the source has answered once, and then the source alone; a source that does not answer
//! changes nothing, however long (the age of the view is a gauge); a member leaves when the source says so; an entry that
//! cannot be is left out and reported, and the others count; this process's own entry is that of its file.
//!
//! What it deliberately is not: a health check. Links notice what is gone by themselves.
//!
//! Start reading at [`run`], then `view.rs`, then `etcd.rs` and `kubernetes.rs`.

mod config;
mod etcd;
mod kubernetes;
#[cfg(test)]
mod tests;
mod tls;
mod view;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

pub use config::{DiscoveryBackend, DiscoveryConfig, EtcdConfig, KubernetesConfig};
pub(crate) use view::View;

use crate::config::MemberConfig;
use crate::identity::Identity;
use view::Follower;

/// Pause after the first fault of a source; doubled by each further one.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause: a source that is back is followed again within it.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Longest wait for an address to accept a connection, and for an answer to one question.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// What a source says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The members that there are now, other than this process.
    pub(crate) members: Vec<MemberConfig>,
    /// The names of those that are about to end: they finish what they have and are to get nothing new.
    pub(crate) ending: BTreeSet<String>,
}

/// Takes what there is now.
pub(crate) type Apply = Box<dyn Fn(Found) + Send + Sync>;

/// What discovery is made of.
pub(crate) struct Discovery {
    pub(crate) config: DiscoveryConfig,
    /// This process, which is registered where the source wants that.
    pub(crate) me: MemberConfig,
    pub(crate) identity: Arc<Identity>,
    /// Where the state of it is seen.
    pub(crate) view: Arc<View>,
    pub(crate) apply: Apply,
}

/// Follows the source until `stopped` says so, then leaves it. With the backend `static` it does nothing.
pub(crate) async fn run(discovery: Discovery, mut stopped: watch::Receiver<bool>) {
    let Discovery { config, me, identity, view, apply } = discovery;
    let follower = Follower::new(me.clone(), Arc::clone(&view), apply);
    let stop = async move {
        // A dropped sender says the same.
        drop(stopped.wait_for(|stop| *stop).await);
    };
    match config.backend {
        DiscoveryBackend::Static => stop.await,
        DiscoveryBackend::Etcd => {
            let etcd = etcd::Etcd::new(config.etcd, identity);
            let registrar = etcd::Registrar::new(etcd.clone(), &me, view);
            tokio::select! {
                () = stop => {}
                () = etcd::follow(&etcd, follower) => {}
                () = registrar.keep() => {}
            }
            registrar.leave().await;
        }
        DiscoveryBackend::Kubernetes => tokio::select! {
            () = stop => {}
            () = kubernetes::follow(config.kubernetes, follower) => {}
        },
    }
}

/// Pauses between attempts, from [`PAUSE_MIN`] to a longest one.
#[derive(Clone, Copy, Debug)]
struct Pauses {
    next: Duration,
    longest: Duration,
}

impl Pauses {
    fn up_to(longest: Duration) -> Self {
        Self { next: PAUSE_MIN, longest }
    }

    /// The source answered: the next fault is a first one.
    fn reset(&mut self) {
        self.next = PAUSE_MIN;
    }

    fn take(&mut self) -> Duration {
        let pause = self.next;
        self.next = (2 * pause).min(self.longest);
        pause
    }
}
