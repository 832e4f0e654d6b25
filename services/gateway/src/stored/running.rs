//! Responses that are made while nobody waits for them: bounded in number, looked at, cancelled, and kept once they ended.
//!
//! Invariants: each is over exactly once, by its end, a fault, a cancel or a deletion, whichever takes it out first; whoever looks
//! finds it at any moment, running or over.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{Key, ResponseStore, Stored, Tenancy, TenantResponses};
use crate::error::ApiError;

/// A response in the making.
pub(super) struct Running {
    stored: Arc<Stored>,
    cancel: Arc<Notify>,
}

impl Running {
    /// Tells whoever makes it to stop.
    pub(super) fn stop(self) {
        self.cancel.notify_one();
    }
}

/// What came of a wish to cancel a response.
#[derive(Debug)]
pub(crate) enum Cancelled {
    /// It is stopped now, or was over already.
    Over(Arc<Stored>),
    /// Somebody waited for it, so nobody else ends it.
    Attended,
    Missing,
}

/// The hold that whoever makes a response has on it. Dropped without [`Self::finish`], the response failed.
pub(crate) struct Unfinished {
    memory: Arc<TenantResponses>,
    id: String,
    begun: Arc<Stored>,
    cancel: Arc<Notify>,
    over: bool,
}

impl ResponseStore {
    pub(super) fn running(&self, key: &Key) -> Option<Arc<Stored>> {
        self.shelf.lock().running.get(key).map(|running| Arc::clone(&running.stored))
    }

    /// How many are in the making.
    pub(crate) fn running_count(&self) -> usize {
        self.shelf.lock().running.len()
    }

    /// Keeps what a response became, unless it was cancelled or deleted before.
    fn end(&self, key: Key, stored: Stored) -> Option<Running> {
        let entry = self.entry(stored);
        let mut shelf = self.shelf.lock();
        let running = shelf.running.remove(&key)?;
        shelf.insert(key, entry, &self.bounds, self.clock.now());
        Some(running)
    }
}

impl TenantResponses {
    /// Begins to make a response that nobody waits for; `begun` is what is seen of it meanwhile.
    ///
    /// # Errors
    /// When as many as may be are in the making, of all or of this tenant, or none can be kept.
    pub(crate) fn begin(self: &Arc<Self>, id: &str, begun: Stored) -> Result<Unfinished, ApiError> {
        let bounds = &self.store.bounds;
        let share = match self.tenancy {
            Tenancy::Sole => bounds.running_max,
            Tenancy::Shared => bounds.running_max.div_ceil(2),
        };
        if bounds.running_max == 0 || bounds.responses_max == 0 || bounds.bytes_max == 0 {
            let message =
                "background is not offered by this server, which keeps no responses; leave it out";
            return Err(ApiError::unsupported("background", message));
        }
        let (begun, cancel) = (Arc::new(begun), Arc::new(Notify::new()));
        let mut shelf = self.store.shelf.lock();
        if bounds.running_max <= shelf.running.len() {
            return Err(ApiError::too_many_running(bounds.running_max));
        }
        if share <= shelf.running.keys().filter(|(tenant, _)| *tenant == self.tenant).count() {
            return Err(ApiError::over_share_of_running(share));
        }
        let running = Running { stored: Arc::clone(&begun), cancel: Arc::clone(&cancel) };
        shelf.running.insert(self.key(id), running);
        drop(shelf);
        let (memory, id) = (Arc::clone(self), id.to_owned());
        Ok(Unfinished { memory, id, begun, cancel, over: false })
    }

    /// Stops a response that is in the making.
    pub(crate) fn cancel(&self, id: &str) -> Cancelled {
        let key = self.key(id);
        if let Some(running) = self.store.running(&key) {
            let cancelled = with_status(&running, "cancelled");
            if let Some(running) = self.store.end(key.clone(), cancelled.clone()) {
                running.stop();
                return Cancelled::Over(Arc::new(cancelled));
            }
        }
        match self.store.find(&key) {
            Some(stored) if stored.object["background"] == true => Cancelled::Over(stored),
            Some(_) => Cancelled::Attended,
            None => Cancelled::Missing,
        }
    }
}

impl Unfinished {
    /// Returns once the response was cancelled or deleted. Cancel-safe.
    pub(crate) async fn cancelled(&self) {
        self.cancel.notified().await;
    }

    /// The response is complete.
    pub(crate) fn finish(mut self, object: Value) {
        self.end(object);
    }

    /// It cannot be completed.
    pub(crate) fn fail(mut self, error: &ApiError) {
        self.end(self.failed(error.code, &error.message));
    }

    fn failed(&self, code: &str, message: &str) -> Value {
        let mut object = with_status(&self.begun, "failed").object;
        object["error"] = json!({"code": code, "message": message});
        object
    }

    fn end(&mut self, object: Value) {
        self.over = true;
        let stored = Stored { object, input: self.begun.input.clone() };
        let key = self.memory.key(&self.id);
        // Nothing is to be stopped any more; when it was cancelled before, that stays.
        drop(self.memory.store.end(key, stored));
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.over {
            let error = ApiError::broken();
            let object = self.failed(error.code, "the response broke off; ask again");
            self.end(object);
        }
    }
}

fn with_status(stored: &Stored, status: &str) -> Stored {
    let mut stored = stored.clone();
    stored.object["status"] = status.into();
    stored
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::{Value, json};
    use shared::{ManualClock, TenantId};

    use super::Cancelled;
    use crate::stored::{ResponseStore, Stored, StoredBounds, Tenancy, TenantResponses};

    fn begun() -> Stored {
        let object = json!({"status": "in_progress", "background": true, "output": []});
        Stored { object, input: vec![json!({"role": "user"})] }
    }

    fn tenants(running_max: usize) -> (Arc<ResponseStore>, [Arc<TenantResponses>; 2]) {
        let kept_for = Duration::from_secs(10);
        let bounds = StoredBounds {
            bytes_max: 1 << 20,
            responses_max: 10,
            kept_for,
            running_max,
            recalled_bytes_max: 1 << 20,
        };
        let store = Arc::new(ResponseStore::new(bounds, Arc::new(ManualClock::new())));
        let tenant = |name: &str| {
            let name = TenantId(name.into());
            Arc::new(TenantResponses::new(Arc::clone(&store), name, Tenancy::Shared))
        };
        let both = [tenant("a"), tenant("b")];
        (store, both)
    }

    fn status(memory: &TenantResponses, id: &str) -> Value {
        memory.find(id).map_or(Value::Null, |stored| stored.object["status"].clone())
    }

    #[test]
    fn a_response_is_seen_while_it_is_made_and_kept_when_it_ended() {
        let (store, [ours, theirs]) = tenants(2);
        for (id, act) in [("done", 0), ("failed", 1), ("dropped", 2)] {
            let unfinished = ours.begin(id, begun()).unwrap();
            assert_eq!(
                (status(&ours, id), status(&theirs, id)),
                (json!("in_progress"), Value::Null)
            );
            match act {
                0 => unfinished.finish(json!({"status": "completed"})),
                1 => unfinished.fail(&crate::error::ApiError::broken()),
                _ => drop(unfinished),
            }
            let expected = if act == 0 { "completed" } else { "failed" };
            assert_eq!(status(&ours, id), expected);
        }
        assert_eq!(store.running_count(), 0);
    }

    #[test]
    fn the_bound_holds_and_is_given_back() {
        let (_, [ours, theirs]) = tenants(1);
        let first = ours.begin("1", begun()).unwrap();
        assert_eq!(theirs.begin("2", begun()).err().unwrap().code, "overloaded");
        drop(first);
        assert!(theirs.begin("2", begun()).is_ok());
        let (_, [ours, _]) = tenants(0);
        assert_eq!(ours.begin("1", begun()).err().unwrap().param.as_deref(), Some("background"));
    }

    #[test]
    fn of_several_tenants_none_gets_all_that_can_run() {
        let (store, [ours, theirs]) = tenants(3);
        let held = ["1", "2"].map(|id| ours.begin(id, begun()).unwrap());
        let refused = ours.begin("3", begun()).err().unwrap();
        assert_eq!((refused.status.as_u16(), refused.code), (429, "over_share"));
        let other = theirs.begin("4", begun()).unwrap();
        assert_eq!(theirs.begin("5", begun()).err().unwrap().code, "overloaded");
        drop((held, other));
        let alone = TenantResponses::new(store, TenantId("a".into()), Tenancy::Sole);
        let alone = Arc::new(alone);
        let held = ["1", "2", "3"].map(|id| alone.begin(&format!("sole {id}"), begun()).unwrap());
        assert_eq!(alone.begin("sole 4", begun()).err().unwrap().code, "overloaded");
        drop(held);
    }

    #[test]
    fn who_cancels_first_has_the_last_word() {
        let (store, [ours, theirs]) = tenants(2);
        let unfinished = ours.begin("1", begun()).unwrap();
        assert!(matches!(theirs.cancel("1"), Cancelled::Missing));
        for _ in 0..2 {
            let Cancelled::Over(stored) = ours.cancel("1") else { panic!("it was there") };
            assert_eq!(stored.object["status"], "cancelled");
        }
        let mut told = Box::pin(unfinished.cancelled());
        let mut context = std::task::Context::from_waker(futures::task::noop_waker_ref());
        assert!(told.as_mut().poll(&mut context).is_ready());
        drop(told);
        unfinished.finish(json!({"status": "completed"}));
        assert_eq!(status(&ours, "1"), "cancelled");
        let deleted = ours.begin("2", begun()).unwrap();
        assert!(ours.delete("2"));
        deleted.finish(json!({"status": "completed"}));
        assert_eq!((status(&ours, "2"), store.running_count()), (Value::Null, 0));
        ours.put("3", Stored { object: json!({"background": false}), input: Vec::new() });
        assert!(matches!(ours.cancel("3"), Cancelled::Attended));
    }
}
