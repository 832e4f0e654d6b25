//! How many requests are in work, and whether new ones are taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::error::ApiError;
use crate::metrics::{Metrics, Outcome};

/// Counts requests in work against a bound.
pub(crate) struct Admission {
    in_flight: AtomicUsize,
    in_flight_max: usize,
    retry_after_s: u64,
    draining: AtomicBool,
    empty: Notify,
    metrics: Arc<Metrics>,
}

impl Admission {
    pub(crate) fn new(in_flight_max: usize, retry_after_s: u64, metrics: Arc<Metrics>) -> Self {
        Self {
            in_flight: AtomicUsize::new(0),
            in_flight_max,
            retry_after_s,
            draining: AtomicBool::new(false),
            empty: Notify::new(),
            metrics,
        }
    }

    /// Takes a request into work.
    ///
    /// # Errors
    /// When draining or full.
    pub(crate) fn admit(self: &Arc<Self>) -> Result<Flight, ApiError> {
        let step = |count| (count < self.in_flight_max).then_some(count + 1);
        let order = Ordering::SeqCst;
        if self.in_flight.fetch_update(order, order, step).is_err() {
            let error = ApiError::full(self.in_flight_max, self.retry_after_s);
            self.metrics.request_ended(error.outcome);
            return Err(error);
        }
        // Counted before the look at `draining`, so that a drain either sees the request or refuses it.
        let flight = Flight { admission: Arc::clone(self), outcome: Outcome::ClientGone };
        if self.is_draining() {
            let error = ApiError::draining(self.retry_after_s);
            flight.end(error.outcome);
            return Err(error);
        }
        Ok(flight)
    }

    pub(crate) fn begin_drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Waits until no request is in work.
    pub(crate) async fn drained(&self) {
        loop {
            let emptied = self.empty.notified();
            if self.in_flight() == 0 {
                return;
            }
            emptied.await;
        }
    }
}

/// A request in work. Dropped without [`Self::end`], its client went away.
pub(crate) struct Flight {
    admission: Arc<Admission>,
    outcome: Outcome,
}

impl Flight {
    /// The request is over.
    pub(crate) fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.admission.metrics.request_ended(self.outcome);
        if self.admission.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.admission.empty.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Admission;
    use crate::metrics::{Metrics, Outcome};

    #[test]
    fn the_bound_holds_and_a_drain_refuses_everything() {
        let admission = Arc::new(Admission::new(2, 3, Arc::new(Metrics::new())));
        let first = admission.admit().ok().unwrap();
        let second = admission.admit().ok().unwrap();
        let full = admission.admit().err().unwrap();
        assert_eq!((full.status.as_u16(), full.retry_after), (503, Some(3)));
        first.end(Outcome::Stop);
        drop(second);
        assert_eq!(admission.in_flight(), 0);
        admission.begin_drain();
        let draining = admission.admit().err().unwrap();
        assert_eq!((draining.status.as_u16(), draining.code), (503, "draining"));
        assert_eq!(admission.in_flight(), 0);
    }

    #[test]
    fn drained_returns_once_the_last_request_ends() {
        let admission = Arc::new(Admission::new(2, 3, Arc::new(Metrics::new())));
        let flight = admission.admit().ok().unwrap();
        let mut waiting = Box::pin(admission.drained());
        let mut context = std::task::Context::from_waker(futures::task::noop_waker_ref());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        drop(flight);
        assert!(waiting.as_mut().poll(&mut context).is_ready());
    }
}
