//! A list of slots in the order of their last use, linked through a table: every operation takes constant time.

use shared::SlotIndex;

/// Slots from the least to the most recently used. Each slot is in it at most once.
#[derive(Debug)]
pub(super) struct Lru {
    links: Vec<Link>,
    oldest: Option<SlotIndex>,
    newest: Option<SlotIndex>,
    len: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    linked: bool,
    older: Option<SlotIndex>,
    newer: Option<SlotIndex>,
}

impl Lru {
    /// An empty list with room for slots below `slots`.
    pub(super) fn new(slots: usize) -> Self {
        Self { links: vec![Link::default(); slots], oldest: None, newest: None, len: 0 }
    }

    /// Slots in the list.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Makes a slot that is not in the list the most recently used.
    pub(super) fn push_newest(&mut self, slot: SlotIndex) {
        let link = Link { linked: true, older: self.newest, newer: None };
        let before = std::mem::replace(&mut self.links[slot.index()], link);
        assert!(!before.linked, "a slot is in the list once");
        match self.newest {
            Some(newest) => self.links[newest.index()].newer = Some(slot),
            None => self.oldest = Some(slot),
        }
        self.newest = Some(slot);
        self.len += 1;
    }

    /// Takes a slot out of the list, if it is in it.
    pub(super) fn remove(&mut self, slot: SlotIndex) {
        let link = std::mem::take(&mut self.links[slot.index()]);
        if !link.linked {
            return;
        }
        match link.older {
            Some(older) => self.links[older.index()].newer = link.newer,
            None => self.oldest = link.newer,
        }
        match link.newer {
            Some(newer) => self.links[newer.index()].older = link.older,
            None => self.newest = link.older,
        }
        self.len -= 1;
    }

    /// Takes the least recently used slot.
    pub(super) fn pop_oldest(&mut self) -> Option<SlotIndex> {
        let slot = self.oldest?;
        self.remove(slot);
        Some(slot)
    }

    /// The slots, least recently used first, walked link by link.
    pub(super) fn iter(&self) -> impl Iterator<Item = SlotIndex> + '_ {
        std::iter::successors(self.oldest, |slot| self.links[slot.index()].newer)
    }
}

#[cfg(test)]
mod tests {
    use shared::SlotIndex;

    use super::Lru;

    #[test]
    fn order_is_that_of_the_last_use() {
        let mut lru = Lru::new(4);
        for slot in [2, 0, 3, 1] {
            lru.push_newest(SlotIndex(slot));
        }
        lru.remove(SlotIndex(0));
        lru.remove(SlotIndex(0));
        lru.push_newest(SlotIndex(0));
        lru.remove(SlotIndex(2));
        let order: Vec<u32> = lru.iter().map(|slot| slot.0).collect();
        assert_eq!((order, lru.len()), (vec![3, 1, 0], 3));
        let popped: Vec<_> = std::iter::from_fn(|| lru.pop_oldest()).map(|slot| slot.0).collect();
        assert_eq!((popped, lru.len()), (vec![3, 1, 0], 0));
    }
}
