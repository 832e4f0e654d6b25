//! The ages of window objects. Pure: time comes in, what has grown too old goes out.

use std::time::Duration;

use shared::{Descriptor, Timestamp};

/// When the object in each slot was last used. One entry per slot, so its size is fixed.
#[derive(Debug)]
pub(super) struct WindowAges {
    last_used: Vec<Option<(Timestamp, Descriptor)>>,
    ttl: Duration,
    /// No object is due before this; saves the scan.
    due: Option<Timestamp>,
}

impl WindowAges {
    pub(super) fn new(slots: usize, ttl: Duration) -> Self {
        Self { last_used: vec![None; slots], ttl, due: None }
    }

    /// The object was stored or found at `now`.
    pub(super) fn touch(&mut self, object: Descriptor, now: Timestamp) {
        self.last_used[object.location.slot.index()] = Some((now, object));
        let due = now.after(self.ttl);
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }

    /// Takes the objects that were last used `ttl` or longer before `now`. Some may have been evicted since; their
    /// descriptors are stale then.
    pub(super) fn expire(&mut self, now: Timestamp) -> Vec<Descriptor> {
        if self.due.is_none_or(|due| now < due) {
            return Vec::new();
        }
        let mut expired = Vec::new();
        self.due = None;
        for entry in &mut self.last_used {
            let Some((used, object)) = *entry else {
                continue;
            };
            let due = used.after(self.ttl);
            if due <= now {
                expired.push(object);
                *entry = None;
            } else {
                self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
            }
        }
        expired
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shared::{
        BlockName, Descriptor, Generation, Location, ObjectKey, ObjectKind, RegionId, SlotIndex,
        Timestamp,
    };

    use super::WindowAges;

    fn object(slot: u32) -> Descriptor {
        Descriptor {
            key: ObjectKey { kind: ObjectKind::Window, name: BlockName([0; 16]) },
            location: Location {
                region: RegionId(0),
                slot: SlotIndex(slot),
                generation: Generation(0),
            },
            bytes: 0,
            checksum: 0,
            exact: true,
        }
    }

    #[test]
    fn objects_leave_when_unused_for_the_ttl() {
        let at = |seconds: u64| Timestamp(seconds * 1_000_000_000);
        let mut ages = WindowAges::new(3, Duration::from_secs(10));
        let slots = |ages: &mut WindowAges, seconds| -> Vec<u32> {
            ages.expire(at(seconds)).iter().map(|object| object.location.slot.0).collect()
        };
        assert!(slots(&mut ages, 100).is_empty());
        for (slot, seconds) in [(2, 100), (0, 101), (1, 105)] {
            ages.touch(object(slot), at(seconds));
        }
        assert!(slots(&mut ages, 109).is_empty());
        ages.touch(object(0), at(109));
        assert_eq!(slots(&mut ages, 110), [2]);
        assert_eq!(slots(&mut ages, 118), [1]);
        assert_eq!(slots(&mut ages, 119), [0]);
        assert!(slots(&mut ages, 1_000).is_empty());
    }
}
