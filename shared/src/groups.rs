//! Groups of blocks, and which store nodes own one.
//!
//! Every 32 blocks of a chain are one group, named by the first of them: what is looked up together lies together, and
//! a long prompt spreads over the nodes. Owners come by rendezvous hashing: each member gets a number for each group,
//! and the highest number wins. So everybody who knows the same members names the same owners without asking anybody;
//! a member that leaves moves only the groups that it owned, and one that joins takes its share from all others alike.
//!
//! What it is not: it knows no load and no distance. Source: architecture.md §7.

use crate::ids::WorkerRank;
use crate::names::BlockName;
use crate::objects::{Descriptor, ObjectKey};

/// Blocks of a group: 4,096 tokens.
pub const GROUP_BLOCKS: usize = 32;

/// Keys the numbers of members. Part of the agreement between processes: another key gives other owners.
const OWNERS_KEY: &[u8; 32] = b"kvasir 2026 owners of a group 01";

/// Something of a chain together with the group it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grouped<T> {
    /// The thing.
    pub item: T,
    /// The name of the first block of its group; see [`group_of`]. A window object belongs to the group of the block
    /// with its name; the pieces of a media embedding are one group, named by the first of them.
    pub group: BlockName,
}

impl Grouped<ObjectKey> {
    /// A key as a group of its own, for a store that keeps everything in one place.
    #[must_use]
    pub fn alone(item: ObjectKey) -> Self {
        Self { item, group: item.name }
    }
}

impl Grouped<Descriptor> {
    /// An object as a group of its own, for a store that keeps everything in one place.
    #[must_use]
    pub fn alone(item: Descriptor) -> Self {
        Self { item, group: item.key.name }
    }
}

/// The things without their groups, in the same order.
#[must_use]
pub fn ungrouped<T>(grouped: Vec<Grouped<T>>) -> Vec<T> {
    grouped.into_iter().map(|grouped| grouped.item).collect()
}

/// The group of block `index` of the chain with these names: the name of block `index / 32 * 32`.
///
/// # Panics
/// When the chain has no such block.
#[must_use]
pub fn group_of(names: &[BlockName], index: usize) -> BlockName {
    assert!(index < names.len(), "block {index} of a chain of {}", names.len());
    names[index - index % GROUP_BLOCKS]
}

/// The owners of a group, the first one first: at most `count` places in `members`, which names each member once, in any
/// order. The owners do not depend on that order.
///
/// Costs one hash per member, about 0.1 µs.
#[must_use]
pub fn owners(group: BlockName, members: &[WorkerRank], count: usize) -> Vec<usize> {
    let number = |place: &usize| number(group, members[*place]);
    let mut numbered: Vec<(u64, WorkerRank, usize)> =
        (0..members.len()).map(|place| (number(&place), members[place], place)).collect();
    // Equal numbers are decided by the rank, so that everybody decides alike.
    numbered.sort_unstable_by(|a, b| b.cmp(a));
    numbered.into_iter().take(count).map(|(_, _, place)| place).collect()
}

fn number(group: BlockName, member: WorkerRank) -> u64 {
    let mut input = [0; 22];
    input[..16].copy_from_slice(&group.0);
    input[16..20].copy_from_slice(&member.worker.0.to_le_bytes());
    input[20..].copy_from_slice(&member.rank.0.to_le_bytes());
    let mut number = [0; 8];
    number.copy_from_slice(&blake3::keyed_hash(OWNERS_KEY, &input).as_bytes()[..8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::{GROUP_BLOCKS, group_of, number, owners};
    use crate::ids::{DpRank, WorkerId, WorkerRank};
    use crate::names::BlockName;

    const GROUPS: u32 = 10_000;

    fn member(worker: u32) -> WorkerRank {
        WorkerRank { worker: WorkerId(worker), rank: DpRank(0) }
    }

    fn members(count: u32) -> Vec<WorkerRank> {
        (400..400 + count).map(member).collect()
    }

    /// Names are hashes; these are, too.
    fn group(number: u32) -> BlockName {
        let mut name = [0; 16];
        name.copy_from_slice(&blake3::hash(&number.to_le_bytes()).as_bytes()[..16]);
        BlockName(name)
    }

    fn first(group: BlockName, members: &[WorkerRank]) -> WorkerRank {
        members[owners(group, members, 1)[0]]
    }

    #[test]
    fn each_32_blocks_have_the_name_of_their_first() {
        let names: Vec<_> = (0..70).map(|byte| BlockName([byte; 16])).collect();
        let cases = [(0, 0), (1, 0), (31, 0), (32, 32), (63, 32), (64, 64), (69, 64)];
        for (index, first) in cases {
            assert_eq!(group_of(&names, index), names[first], "block {index}");
        }
        assert_eq!(GROUP_BLOCKS, 32);
    }

    #[test]
    fn numbers_are_the_same_in_every_process_and_version() {
        // Computed apart from this crate, with BLAKE3 in Python.
        let golden = [
            (BlockName([0; 16]), member(0), 0x8a9b_1490_07d8_edc8),
            (BlockName([7; 16]), member(401), 0x345b_0324_b9e0_6581),
            (
                BlockName([7; 16]),
                WorkerRank { worker: WorkerId(401), rank: DpRank(1) },
                0x62b8_30c1_f4eb_6c73,
            ),
            (BlockName([255; 16]), member(u32::MAX), 0x74c1_1cdc_aa84_e2d4),
        ];
        for (group, member, expected) in golden {
            assert_eq!(number(group, member), expected, "{group} {member}");
        }
        let order = |byte| owners(BlockName([byte; 16]), &members(5), 5);
        assert_eq!([order(1), order(2)], [[3, 4, 0, 2, 1], [1, 3, 4, 0, 2]]);
    }

    #[test]
    fn the_order_of_the_members_does_not_matter() {
        let (sorted, mut shuffled) = (members(7), members(7));
        shuffled.rotate_left(3);
        shuffled.swap(0, 4);
        for group in (0..200).map(group) {
            let ranks = |members: &[WorkerRank]| -> Vec<_> {
                owners(group, members, 3).into_iter().map(|place| members[place]).collect()
            };
            assert_eq!(ranks(&sorted), ranks(&shuffled));
        }
    }

    #[test]
    fn there_are_as_many_owners_as_wanted_and_members_there_are() {
        for (count, wanted, expected) in [(0, 2, 0), (1, 2, 1), (5, 0, 0), (5, 3, 3)] {
            let mut places = owners(group(1), &members(count), wanted);
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), expected, "{count} members, {wanted} wanted");
        }
    }

    #[test]
    fn a_member_that_leaves_moves_only_its_groups_to_the_next_owner() {
        let before = members(6);
        let left = before[2];
        let after: Vec<_> = before.iter().copied().filter(|other| *other != left).collect();
        for group in (0..GROUPS).map(group) {
            let places = owners(group, &before, 2);
            let [owner, next] = [before[places[0]], before[places[1]]];
            let expected = if owner == left { next } else { owner };
            assert_eq!(first(group, &after), expected);
        }
    }

    #[test]
    fn a_member_that_joins_takes_its_share_and_nothing_else_moves() {
        let (before, after) = (members(7), members(8));
        let joined = after[7];
        let mut taken = 0;
        for group in (0..GROUPS).map(group) {
            let (was, is) = (first(group, &before), first(group, &after));
            assert!(is == was || is == joined);
            taken += u32::from(is == joined);
        }
        // An eighth is 1,250; the standard deviation is 33.
        assert!((1_100..=1_400).contains(&taken), "{taken} of {GROUPS}");
    }

    #[test]
    fn ten_thousand_groups_spread_within_a_tenth_over_eight_members() {
        let members = members(8);
        let mut owned = [0_u32; 8];
        for group in (0..GROUPS).map(group) {
            owned[owners(group, &members, 1)[0]] += 1;
        }
        assert!(owned.iter().all(|groups| (1_125..=1_375).contains(groups)), "{owned:?}");
    }
}
