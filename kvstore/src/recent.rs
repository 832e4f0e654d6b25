//! The last names something was noted of, within a bound.

use std::collections::{HashMap, VecDeque};

use shared::BlockName;

/// A note per name, for the names noted last. Forgets the oldest note when there are as many as there is room for.
#[derive(Debug)]
pub(crate) struct Recent<V> {
    room: usize,
    /// The number of the note and the note.
    notes: HashMap<BlockName, (u64, V)>,
    /// All notes in order; one whose number is not that in `notes` is void.
    order: VecDeque<(BlockName, u64)>,
    next: u64,
}

impl<V> Recent<V> {
    /// Room for so many notes, void ones included.
    pub(crate) fn new(room: usize) -> Self {
        Self { room, notes: HashMap::new(), order: VecDeque::new(), next: 0 }
    }

    /// Notes something of a name, in place of what was noted of it before.
    pub(crate) fn put(&mut self, name: BlockName, note: V) {
        if self.order.len() == self.room
            && let Some((oldest, number)) = self.order.pop_front()
            && self.notes.get(&oldest).is_some_and(|(current, _)| *current == number)
        {
            self.notes.remove(&oldest);
        }
        self.notes.insert(name, (self.next, note));
        self.order.push_back((name, self.next));
        self.next += 1;
    }

    pub(crate) fn get(&self, name: BlockName) -> Option<&V> {
        self.notes.get(&name).map(|(_, note)| note)
    }

    pub(crate) fn take(&mut self, name: BlockName) -> Option<V> {
        self.notes.remove(&name).map(|(_, note)| note)
    }

    pub(crate) fn clear(&mut self) {
        self.notes.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use shared::BlockName;

    use super::Recent;

    #[test]
    fn the_last_notes_are_kept_and_void_ones_take_room() {
        let name = |number| BlockName([number; 16]);
        let mut recent = Recent::new(3);
        for (number, note) in [(1, 'a'), (2, 'b'), (1, 'c'), (3, 'd')] {
            recent.put(name(number), note);
            assert!(recent.order.len() <= 3 && recent.notes.len() <= 3);
        }
        let notes = [1, 2, 3].map(|number| recent.get(name(number)).copied());
        assert_eq!(notes, [Some('c'), Some('b'), Some('d')]);
        recent.put(name(4), 'e');
        assert_eq!(recent.get(name(2)), None, "the oldest that was not void");
        assert_eq!(recent.take(name(1)), Some('c'));
        assert_eq!(recent.take(name(1)), None);
        recent.clear();
        assert_eq!(recent.get(name(4)), None);
    }
}
