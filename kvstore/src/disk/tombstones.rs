//! Who was evicted when: records of that tenant written at or before that second are dead, wherever they lie.
//!
//! Bytes in segments leave with their segment, long after the eviction. Until then whoever makes the catalog from segments (a
//! start, `kv rebuild`, `fsck --repair`) leaves dead records out, and who looks names up does not find them. So the list lies
//! in a file of its own beside the segments, written anew as a whole and synced; the catalog has a copy, which tells
//! whether its names were taken out.
//!
//! ```text
//! file `evicted`     magic "KVSRGONE", version u32, count u32, then for each: tenant's tag u64, second u64, segments u64;
//!                    CRC-32C of all that u32. Little-endian.
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use shared::TenantTag;

use super::segment::sync_folder;

/// The file, beside the segments.
pub(crate) const FILE: &str = "evicted";
const FILE_NEW: &str = "evicted.new";
const MAGIC: [u8; 8] = *b"KVSRGONE";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 16;
const ITEM_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 4;
/// Tenants in it at most: 1.5 MiB. One leaves when the last segment left that can hold bytes of it.
const TOMBSTONES_MAX: usize = 65_536;

/// One eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tombstone {
    /// Seconds since the Unix epoch.
    pub(crate) second: u64,
    /// Dead records lie in segments with smaller numbers.
    pub(crate) segments: u64,
}

/// All evictions that still matter: the last one of each tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tombstones(BTreeMap<TenantTag, Tombstone>);

impl Tombstones {
    /// Whether a record of a tenant that was written then is dead.
    pub(crate) fn covers(&self, tenant: TenantTag, written_unix_seconds: u64) -> bool {
        self.0.get(&tenant).is_some_and(|stone| written_unix_seconds <= stone.second)
    }

    /// Adds an eviction; false when there is no room for another tenant.
    pub(crate) fn add(&mut self, tenant: TenantTag, stone: Tombstone) -> bool {
        if !self.has_room(tenant) {
            return false;
        }
        let held = self.0.entry(tenant).or_default();
        held.second = held.second.max(stone.second);
        held.segments = held.segments.max(stone.segments);
        true
    }

    /// Drops those that no segment from `oldest` on can hold bytes of, and says whose they were.
    pub(crate) fn expire(&mut self, oldest: u64) -> Vec<TenantTag> {
        let over = self.0.extract_if(.., |_, stone| stone.segments <= oldest);
        over.map(|(tenant, _)| tenant).collect()
    }

    /// Whether an eviction of this tenant could be added.
    pub(crate) fn has_room(&self, tenant: TenantTag) -> bool {
        self.0.len() < TOMBSTONES_MAX || self.0.contains_key(&tenant)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (TenantTag, Tombstone)> {
        self.0.iter().map(|(tenant, stone)| (*tenant, *stone))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    fn encode(&self) -> Vec<u8> {
        let count = u32::try_from(self.0.len()).expect("the bound is smaller");
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&count.to_le_bytes());
        for (tenant, stone) in &self.0 {
            for number in [tenant.0, stone.second, stone.segments] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>()?;
        let (head, items) = body.split_first_chunk::<HEAD_BYTES>()?;
        let intact = crc32c::crc32c(body) == u32::from_le_bytes(*checksum);
        let known = head.starts_with(&MAGIC) && head[8..12] == VERSION.to_le_bytes();
        let (items, rest) = items.as_chunks::<ITEM_BYTES>();
        let count = u32::from_le_bytes(head[12..].try_into().ok()?);
        if !intact || !known || !rest.is_empty() || u32::try_from(items.len()) != Ok(count) {
            return None;
        }
        let stones = items.iter().map(|item| {
            let (numbers, _) = item.as_chunks::<8>();
            let [tenant, second, segments] =
                [0, 1, 2].map(|at: usize| u64::from_le_bytes(numbers[at]));
            (TenantTag(tenant), Tombstone { second, segments })
        });
        Some(Self(stones.collect()))
    }

    /// Reads the file of a folder; none is nobody. Blocks.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged ([`io::ErrorKind::InvalidData`]).
    pub(crate) fn read(folder: &Path) -> io::Result<Self> {
        let bytes = match fs::read(folder.join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            read => read?,
        };
        let damaged = "the list of evicted tenants is damaged, and without it their blocks would come back: restore it, \
                       or remove it together with all *.segment files";
        Self::decode(&bytes).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, damaged))
    }

    /// Writes the file anew. Durable on return. Blocks.
    ///
    /// # Errors
    /// When the system refuses; the old file stays then.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        let (path, new) = (folder.join(FILE), folder.join(FILE_NEW));
        let mut file = File::create(&new)?;
        file.write_all(&self.encode())?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        sync_folder(folder)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io;

    use shared::TenantTag;

    use super::{FILE, TOMBSTONES_MAX, Tombstone, Tombstones};

    fn stone(second: u64, segments: u64) -> Tombstone {
        Tombstone { second, segments }
    }

    #[test]
    fn records_up_to_the_second_are_dead_and_the_last_eviction_counts() {
        let mut stones = Tombstones::default();
        let (one, two) = (TenantTag(1), TenantTag(2));
        assert!(stones.add(one, stone(10, 3)) && stones.add(one, stone(8, 5)));
        let cases = [(one, 9, true), (one, 10, true), (one, 11, false), (two, 9, false)];
        for (tenant, written, dead) in cases {
            assert_eq!(stones.covers(tenant, written), dead, "{tenant} {written}");
        }
        assert_eq!(stones.expire(4), []);
        assert_eq!(stones.expire(5), [one]);
        assert_eq!(stones.len(), 0);
    }

    #[test]
    fn the_file_comes_back_and_every_flipped_bit_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Tombstones::read(folder.path()).unwrap(), Tombstones::default(), "no file");
        let mut stones = Tombstones::default();
        for tenant in [1, 7, u64::MAX] {
            stones.add(TenantTag(tenant), stone(tenant / 2, 9));
        }
        stones.write(folder.path()).unwrap();
        assert_eq!(Tombstones::read(folder.path()).unwrap(), stones);
        let bytes = fs::read(folder.path().join(FILE)).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Tombstones::decode(&bad), None, "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert_eq!(Tombstones::decode(&bytes[..length]), None, "{length} bytes");
        }
        fs::write(folder.path().join(FILE), b"short").unwrap();
        let refused = Tombstones::read(folder.path()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn tenants_beyond_the_bound_are_refused() {
        let mut stones = Tombstones::default();
        for tenant in 0..u64::try_from(TOMBSTONES_MAX).unwrap() {
            assert!(stones.add(TenantTag(tenant), stone(1, 1)));
        }
        assert!(!stones.add(TenantTag(u64::MAX), stone(1, 1)));
        assert!(stones.add(TenantTag(3), stone(2, 2)), "one that is there");
    }
}
