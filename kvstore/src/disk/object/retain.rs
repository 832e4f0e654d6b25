//! Which objects leave. Pure.

use crate::disk::catalog::{Segment, SegmentState};

/// Why an object is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Everything was evicted.
    Evicted,
    /// Its newest write is older than the retention.
    Expired,
    /// Others need its room.
    Room,
}

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) retention_s: u64,
    /// 0 is none.
    pub(super) bytes_max: u64,
}

impl Bounds {
    /// Whether a segment that was last written at `newest` is too old for the object store.
    pub(super) fn is_over(&self, newest: u64, now: u64) -> bool {
        self.retention_s < now.saturating_sub(newest)
    }
}

/// What is deleted, and whether another object of `room` bytes fits then. `rows` are ascending. Of what makes room only
/// what lies on no drive leaves, oldest first: the others would be uploaded again.
pub(super) fn leaving(
    rows: &[(u64, Segment)],
    bounds: Bounds,
    room: u64,
    now: u64,
) -> (Vec<(u64, Why)>, bool) {
    let mut leaving = Vec::new();
    let mut held = room;
    let mut spare = Vec::new();
    for (number, row) in rows.iter().filter(|(_, row)| row.state.is_copied()) {
        if row.is_doomed() {
            leaving.push((*number, Why::Evicted));
        } else if bounds.is_over(row.newest_unix_seconds, now) && 0 < row.records {
            leaving.push((*number, Why::Expired));
        } else {
            held += row.bytes;
            spare.extend((row.state == SegmentState::Remote).then_some((*number, row.bytes)));
        }
    }
    let fits = |held: u64| bounds.bytes_max == 0 || held <= bounds.bytes_max;
    let mut spare = spare.into_iter();
    while !fits(held)
        && let Some((number, bytes)) = spare.next()
    {
        held -= bytes;
        leaving.push((number, Why::Room));
    }
    (leaving, fits(held))
}

#[cfg(test)]
mod tests {
    use super::{Bounds, Why, leaving};
    use crate::disk::catalog::{Segment, SegmentState};

    fn row(state: SegmentState, newest: u64) -> Segment {
        let (bytes, records, oldest_unix_seconds) = (10, 3, 1);
        Segment { state, bytes, records, oldest_unix_seconds, newest_unix_seconds: newest }
    }

    #[test]
    fn old_objects_leave_and_then_the_oldest_that_lie_on_no_drive() {
        let rows = [
            (1, Segment::doomed(10)),
            (2, row(SegmentState::Remote, 10)),
            (3, row(SegmentState::Copied, 10)),
            (4, row(SegmentState::Remote, 150)),
            (5, row(SegmentState::Copied, 160)),
            (6, row(SegmentState::Remote, 170)),
            (7, row(SegmentState::Sealed, 1)),
            (8, row(SegmentState::Open, 1)),
            (9, row(SegmentState::Foreign, 1)),
            // Its names are being entered.
            (10, Segment { records: 0, ..row(SegmentState::Remote, 0) }),
        ];
        let old = [(1, Why::Evicted), (2, Why::Expired), (3, Why::Expired)];
        let cases: [(u64, u64, &[u64], bool); 6] = [
            (0, 1_000, &[], true),
            (40, 0, &[], true),
            (40, 1, &[4], true),
            (40, 11, &[4, 6], true),
            (10, 0, &[4, 6, 10], true),
            (9, 0, &[4, 6, 10], false),
        ];
        for (bytes_max, room, dropped, fits) in cases {
            let bounds = Bounds { retention_s: 100, bytes_max };
            let mut expected = old.to_vec();
            expected.extend(dropped.iter().map(|number| (*number, Why::Room)));
            assert_eq!(leaving(&rows, bounds, room, 200), (expected, fits), "{bytes_max} {room}");
        }
    }
}
