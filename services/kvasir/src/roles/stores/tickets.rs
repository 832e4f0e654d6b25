//! What nodes hold for one call of a worker.

use parking_lot::Mutex;
use shared::Ticket;

/// The tickets of all nodes that were asked. Tickets are dropped outside the lock, since a drop may end in another call.
pub(super) struct Tickets(Mutex<Option<Vec<Ticket>>>);

impl Default for Tickets {
    /// None yet.
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
}

impl Tickets {
    /// Keeps a ticket; when the worker has let go meanwhile, it drops here.
    pub(super) fn keep(&self, ticket: Ticket) {
        let late = match &mut *self.0.lock() {
            Some(tickets) => {
                tickets.push(ticket);
                None
            }
            None => Some(ticket),
        };
        drop(late);
    }

    /// Drops all tickets, and those that come later.
    pub(super) fn release(&self) {
        let tickets = self.0.lock().take();
        drop(tickets);
    }
}
