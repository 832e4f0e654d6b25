//! Which cached slot leaves when a slot is needed: S3-FIFO with queues of equal size, each ordered by the last use.
//!
//! A new object enters the *small* queue. When it reaches that queue's end it leaves if nobody looked it up, and else
//! moves to the *main* queue, where each use since the last visit buys one more round. The names of what left the small
//! queue are remembered (*ghosts*); who comes back while its name is remembered enters the main queue at once. So a prompt
//! that nobody repeats cannot push out what many share.
//!
//! The small queue has half of the slots, not a tenth as in the paper: reuse here is mostly the next turn of a
//! conversation, minutes later, which a short queue forgets. `benches evict` has the figures, for LRU and SIEVE too.
//!
//! Source: Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023. There a queue is in the order of
//! arrival; here a slot that is held is in no queue, and enters its queue again when it is released.

use shared::{BlockName, SlotIndex};

use super::lru::Lru;
use crate::recent::Recent;

/// The cached slots of a pool: sealed, named, held by nobody.
#[derive(Debug)]
pub(super) struct Cached {
    small: Lru,
    main: Lru,
    marks: Vec<Mark>,
    /// The names that left the small queue last, as many as there are slots.
    ghosts: Recent<()>,
}

/// What is known of the object in a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// Its queue is the main one.
    main: bool,
    /// Looked up since it came, or since the end of its queue was last reached.
    used: bool,
}

impl Cached {
    /// Nothing cached, with room for slots below `slots`.
    pub(super) fn new(slots: usize) -> Self {
        Self {
            small: Lru::new(slots),
            main: Lru::new(slots),
            marks: vec![Mark::default(); slots],
            ghosts: Recent::new(slots),
        }
    }

    /// Slots that are cached now.
    pub(super) fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    /// A slot was given this name. It is cached from its first [`Cached::push`] on.
    pub(super) fn named(&mut self, slot: SlotIndex, name: BlockName) {
        self.marks[slot.index()] = Mark { main: self.ghosts.take(name).is_some(), used: false };
    }

    /// Somebody looked the slot's object up.
    pub(super) fn used(&mut self, slot: SlotIndex) {
        self.marks[slot.index()].used = true;
    }

    /// Nobody holds the slot any more: it is the newest of its queue.
    pub(super) fn push(&mut self, slot: SlotIndex) {
        if self.marks[slot.index()].main {
            self.main.push_newest(slot);
        } else {
            self.small.push_newest(slot);
        }
    }

    /// The slot is held, or not to be found any more.
    pub(super) fn remove(&mut self, slot: SlotIndex) {
        self.small.remove(slot);
        self.main.remove(slot);
    }

    /// Takes the slot that is to leave. Each turn of the loop evicts or uses up one look-up.
    pub(super) fn pop(&mut self, name_of: impl Fn(SlotIndex) -> BlockName) -> Option<SlotIndex> {
        loop {
            let small = self.main.len() <= self.small.len();
            let slot = if small { self.small.pop_oldest() } else { self.main.pop_oldest() }?;
            let mark = &mut self.marks[slot.index()];
            if std::mem::take(&mut mark.used) {
                mark.main = true;
                self.main.push_newest(slot);
                continue;
            }
            if small {
                self.ghosts.put(name_of(slot), ());
            }
            return Some(slot);
        }
    }

    /// Forgets who left.
    pub(super) fn forget_ghosts(&mut self) {
        self.ghosts.clear();
    }

    /// The slots, queue by queue, walked link by link.
    pub(super) fn iter(&self) -> impl Iterator<Item = SlotIndex> + '_ {
        self.small.iter().chain(self.main.iter())
    }
}

#[cfg(test)]
mod tests {
    use shared::{BlockName, SlotIndex};

    use super::Cached;

    fn name(slot: SlotIndex) -> BlockName {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&slot.0.to_le_bytes());
        BlockName(bytes)
    }

    /// Slots 0 to `count` - 1, cached in that order under the names of their numbers.
    fn filled(count: u32) -> Cached {
        let mut cached = Cached::new(SlotIndex(count).index());
        for slot in (0..count).map(SlotIndex) {
            cached.named(slot, name(slot));
            cached.push(slot);
        }
        cached
    }

    fn look_up(cached: &mut Cached, slot: SlotIndex) {
        cached.used(slot);
        cached.remove(slot);
        cached.push(slot);
    }

    fn order(cached: &mut Cached) -> Vec<u32> {
        std::iter::from_fn(|| cached.pop(name)).map(|slot| slot.0).collect()
    }

    #[test]
    fn what_nobody_looked_up_leaves_in_the_order_it_came() {
        assert_eq!(order(&mut filled(4)), [0, 1, 2, 3]);
    }

    #[test]
    fn a_look_up_buys_one_round_in_the_main_queue() {
        let mut cached = filled(4);
        look_up(&mut cached, SlotIndex(0));
        assert_eq!(cached.pop(name), Some(SlotIndex(1)));
        look_up(&mut cached, SlotIndex(2));
        assert_eq!(order(&mut cached), [3, 0, 2]);
        assert_eq!(cached.len(), 0);
    }

    #[test]
    fn many_that_come_once_do_not_push_out_what_was_used() {
        let mut cached = filled(4);
        for slot in [0, 1].map(SlotIndex) {
            look_up(&mut cached, slot);
        }
        for number in 100..150 {
            let slot = cached.pop(name).unwrap();
            cached.named(slot, name(SlotIndex(number)));
            cached.push(slot);
        }
        let mut left: Vec<u32> = cached.iter().map(|slot| slot.0).collect();
        left.sort_unstable();
        assert_eq!(left, [0, 1, 2, 3]);
        assert!(cached.marks[0].main && cached.marks[1].main, "the used ones are still there");
    }

    #[test]
    fn who_comes_back_soon_enters_the_main_queue() {
        let mut cached = filled(4);
        let slot = cached.pop(name).unwrap();
        cached.named(slot, name(SlotIndex(0)));
        cached.push(slot);
        assert_eq!(order(&mut cached), [1, 2, 3, 0]);
        cached.forget_ghosts();
        cached.named(SlotIndex(1), name(SlotIndex(1)));
        assert!(!cached.marks[1].main, "forgotten with the others");
    }
}
