//! Tells who asked for it that a block is durable, or will not be.

use crossbeam_channel::Sender;

/// Says once what became of a block: not durable, unless [`Ack::durable`] is called before it drops. So whoever gives a block up
/// need not remember who waits for it.
#[derive(Debug)]
pub(crate) struct Ack {
    number: u64,
    durable: bool,
    done: Sender<Acked>,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acked {
    /// The number that the asking side gave it.
    pub(crate) number: u64,
    pub(crate) durable: bool,
}

impl Ack {
    /// `done` must never block: one message comes.
    pub(crate) fn new(number: u64, done: Sender<Acked>) -> Self {
        Self { number, durable: false, done }
    }

    /// The block is synced, and the catalog has it.
    pub(crate) fn durable(mut self) {
        self.durable = true;
    }
}

impl Drop for Ack {
    fn drop(&mut self) {
        let Self { number, durable, .. } = *self;
        // Nobody waits any more.
        let _ignored = self.done.send(Acked { number, durable });
    }
}
