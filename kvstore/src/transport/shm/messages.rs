//! The two messages: a turn of the reader, and the owner's answer. All numbers are big-endian.

use shared::{Descriptor, RegionId, RequestContext};

use crate::transport::wire::{Fields, Status, VERSION, put_context, put_descriptors};

/// What a reader says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::transport) struct Turn {
    /// On whose behalf it reads.
    pub(in crate::transport) context: RequestContext,
    /// The region all its objects are of.
    pub(in crate::transport) region: RegionId,
    /// Per object of the group opened last, in its order: whether its copy has the right checksum. Empty when no group is
    /// open.
    pub(in crate::transport) copied: Vec<bool>,
    /// What to open next. May be empty.
    pub(in crate::transport) wanted: Vec<Descriptor>,
}

/// What the owner answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::transport) struct Opened {
    /// Whether the group opened before was held until this turn came.
    pub(in crate::transport) held: bool,
    /// The segment of the region, when the reader has not got it yet. Its file comes with the message.
    pub(in crate::transport) segment: Option<SegmentShape>,
    /// Per object wanted, in order.
    pub(in crate::transport) statuses: Vec<Status>,
}

/// Where the slots of a segment are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) struct SegmentShape {
    /// Number of slots.
    pub(in crate::transport) slots: u32,
    /// Bytes of a slot.
    pub(in crate::transport) slot_bytes: u64,
    /// Bytes from the beginning of a slot to that of the next.
    pub(in crate::transport) stride: u64,
}

impl Turn {
    pub(in crate::transport) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        put_context(&mut bytes, self.context);
        bytes.extend_from_slice(&self.region.0.to_be_bytes());
        put_count(&mut bytes, self.copied.len());
        bytes.extend(self.copied.iter().map(|right| u8::from(*right)));
        put_descriptors(&mut bytes, &self.wanted);
        bytes
    }

    pub(in crate::transport) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u8()? != VERSION {
            return None;
        }
        let context = fields.context()?;
        let region = RegionId(fields.u64()?);
        let count = fields.count()?;
        let copied = (0..count).map(|_| fields.flag()).collect::<Option<_>>()?;
        let wanted = fields.descriptors()?;
        fields.is_empty().then_some(Self { context, region, copied, wanted })
    }
}

impl Opened {
    pub(in crate::transport) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, u8::from(self.held), u8::from(self.segment.is_some())];
        if let Some(shape) = self.segment {
            bytes.extend_from_slice(&shape.slots.to_be_bytes());
            bytes.extend_from_slice(&shape.slot_bytes.to_be_bytes());
            bytes.extend_from_slice(&shape.stride.to_be_bytes());
        }
        put_count(&mut bytes, self.statuses.len());
        bytes.extend(self.statuses.iter().map(|status| status.code()));
        bytes
    }

    pub(in crate::transport) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u8()? != VERSION {
            return None;
        }
        let held = fields.flag()?;
        let segment = match fields.flag()? {
            true => Some(SegmentShape {
                slots: fields.u32()?,
                slot_bytes: fields.u64()?,
                stride: fields.u64()?,
            }),
            false => None,
        };
        let count = fields.count()?;
        let status = |_| fields.u8().and_then(Status::from_code);
        let statuses = (0..count).map(status).collect::<Option<_>>()?;
        fields.is_empty().then_some(Self { held, segment, statuses })
    }
}

fn put_count(bytes: &mut Vec<u8>, count: usize) {
    let count = u16::try_from(count).expect("a group has at most 256 objects");
    bytes.extend_from_slice(&count.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use shared::{RegionId, RequestContext};

    use super::{Opened, SegmentShape, Turn};
    use crate::testing::{pool, store};
    use crate::transport::wire::{CONTEXT_BYTES, Status};

    fn turn() -> Turn {
        let pool = pool(7, 2);
        let wanted = [store(&pool, 1), store(&pool, 2)].map(|slot| slot.descriptor()).to_vec();
        let context = RequestContext::NONE;
        Turn { context, region: RegionId(7), copied: vec![true, false, true], wanted }
    }

    fn opened() -> Opened {
        let segment = Some(SegmentShape { slots: 3, slot_bytes: 37, stride: 64 });
        Opened { held: true, segment, statuses: vec![Status::Ready, Status::Stale] }
    }

    #[test]
    fn messages_come_back_as_they_were() {
        let empty = Turn { copied: Vec::new(), wanted: Vec::new(), ..turn() };
        for turn in [turn(), empty] {
            assert_eq!(Turn::decode(&turn.encode()), Some(turn));
        }
        let bare = Opened { held: false, segment: None, statuses: Vec::new() };
        for opened in [opened(), bare] {
            assert_eq!(Opened::decode(&opened.encode()), Some(opened));
        }
    }

    #[test]
    fn malformed_messages_are_refused() {
        let (turn, opened) = (turn().encode(), opened().encode());
        for length in 0..turn.len() {
            assert_eq!(Turn::decode(&turn[..length]), None, "cut at {length}");
        }
        for length in 0..opened.len() {
            assert_eq!(Opened::decode(&opened[..length]), None, "cut at {length}");
        }
        let context = CONTEXT_BYTES;
        for (place, value) in [(0, 9), (context, 2), (context + 9, 0xff), (context + 11, 2)] {
            let mut bad = turn.clone();
            bad[place] = value;
            assert_eq!(Turn::decode(&bad), None, "byte {place} of a turn is {value}");
        }
        for (place, value) in [(0, 9), (1, 2), (2, 2), (23, 0xff), (26, 9)] {
            let mut bad = opened.clone();
            bad[place] = value;
            assert_eq!(Opened::decode(&bad), None, "byte {place} of an answer is {value}");
        }
    }
}
