//! This process's own key, for as long as it lives.

use std::convert::Infallible;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::client::Client;
use super::{Etcd, value};
use crate::config::MemberConfig;
use crate::discovery::{ANSWER_MAX, Pauses, View};

/// Keeps this process registered.
pub(in crate::discovery) struct Registrar {
    etcd: Etcd,
    name: String,
    value: Vec<u8>,
    view: Arc<View>,
    /// The endpoint in turn, and the lease that is kept now.
    held: Mutex<(usize, Option<i64>)>,
    /// Why it is not registered, as it was said last.
    reported: Mutex<Option<String>>,
}

impl Registrar {
    pub(in crate::discovery) fn new(etcd: Etcd, me: &MemberConfig, view: Arc<View>) -> Self {
        let held = Mutex::new((0, None));
        let reported = Mutex::new(None);
        Self { etcd, name: me.name.clone(), value: value(me), view, held, reported }
    }

    /// Registers, keeps the lease, and does it anew whenever that ends.
    #[expect(clippy::infinite_loop, reason = "its caller drops it at the end")]
    pub(in crate::discovery) async fn keep(&self) {
        let mut pauses = Pauses::up_to(self.etcd.pause_max());
        loop {
            let turn = self.held.lock().0;
            let Err(reason) = self.keep_once(turn, &mut pauses).await;
            self.report(reason);
            *self.held.lock() = (turn + 1, None);
            sleep(pauses.take()).await;
        }
    }

    async fn keep_once(&self, turn: usize, pauses: &mut Pauses) -> Result<Infallible, String> {
        let mut client = Client::connect(&self.etcd, turn).await?;
        let lease = client.grant(self.etcd.config.lease_s).await?;
        self.held.lock().1 = Some(lease);
        client.put(self.etcd.key(&self.name), self.value.clone(), lease).await?;
        let mut keeping = client.keep(lease).await?;
        *self.reported.lock() = None;
        tracing::info!(member = self.name, "registered in etcd");
        pauses.reset();
        // Twice in vain, and the third one is still in time.
        let mut period = interval(self.etcd.lease() / 3);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            period.tick().await;
            keeping.again().await?;
        }
    }

    /// Says why it is not registered, once as long as the reason stays the same.
    fn report(&self, reason: String) {
        self.view.failed();
        let mut reported = self.reported.lock();
        if reported.as_ref() != Some(&reason) {
            tracing::warn!(member = self.name, reason, "not registered in etcd; trying again");
            *reported = Some(reason);
        }
    }

    /// Takes the key out, so that others need not wait for the end of the lease.
    pub(in crate::discovery) async fn leave(&self) {
        let (turn, lease) = *self.held.lock();
        let Some(lease) = lease else { return };
        let leaving = async {
            let mut client = Client::connect(&self.etcd, turn).await?;
            client.revoke(lease).await
        };
        if let Ok(Err(reason)) = timeout(ANSWER_MAX, leaving).await {
            tracing::debug!(reason, "the key is left to the end of its lease");
        }
    }
}
