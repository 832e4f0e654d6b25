//! The two messages: a question of the reader, and the owner's answer. All numbers are big-endian.

use shared::{Descriptor, RequestContext};

use crate::transport::wire::{Fields, Status, VERSION, put_context, put_descriptors};

/// What a reader asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) struct Ask {
    /// On whose behalf it reads.
    pub(in crate::transport) context: RequestContext,
    /// The object that it could not copy. Its region is the one whose segment it wants, if it has not got it.
    pub(in crate::transport) object: Descriptor,
    /// Whether it copied other bytes: the owner then looks at its own.
    pub(in crate::transport) wrong: bool,
}

/// What the owner answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) struct Told {
    /// What it says of the object: [`Status::Ready`] when it holds it, [`Status::Damaged`] after a wrong copy alone.
    pub(in crate::transport) status: Status,
    /// The segment of the region, when the reader has not got it yet. Its file comes with the message.
    pub(in crate::transport) segment: Option<SegmentShape>,
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

impl Ask {
    pub(in crate::transport) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        put_context(&mut bytes, self.context);
        bytes.push(u8::from(self.wrong));
        put_descriptors(&mut bytes, &[self.object]);
        bytes
    }

    pub(in crate::transport) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u8()? != VERSION {
            return None;
        }
        let (context, wrong) = (fields.context()?, fields.flag()?);
        let [object] = fields.descriptors()?[..] else {
            return None;
        };
        fields.is_empty().then_some(Self { context, object, wrong })
    }
}

impl Told {
    pub(in crate::transport) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, self.status.code(), u8::from(self.segment.is_some())];
        if let Some(shape) = self.segment {
            bytes.extend_from_slice(&shape.slots.to_be_bytes());
            bytes.extend_from_slice(&shape.slot_bytes.to_be_bytes());
            bytes.extend_from_slice(&shape.stride.to_be_bytes());
        }
        bytes
    }

    pub(in crate::transport) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u8()? != VERSION {
            return None;
        }
        let status = fields.u8().and_then(Status::from_code)?;
        let segment = match fields.flag()? {
            true => Some(SegmentShape {
                slots: fields.u32()?,
                slot_bytes: fields.u64()?,
                stride: fields.u64()?,
            }),
            false => None,
        };
        fields.is_empty().then_some(Self { status, segment })
    }
}

#[cfg(test)]
mod tests {
    use shared::RequestContext;

    use super::{Ask, SegmentShape, Told};
    use crate::testing::{pool, store};
    use crate::transport::wire::{CONTEXT_BYTES, Status};

    fn ask() -> Ask {
        let object = store(&pool(7, 2), 1).descriptor();
        Ask { context: RequestContext::NONE, object, wrong: true }
    }

    fn told() -> Told {
        let segment = Some(SegmentShape { slots: 3, slot_bytes: 37, stride: 64 });
        Told { status: Status::Stale, segment }
    }

    #[test]
    fn messages_come_back_as_they_were() {
        assert_eq!(Ask::decode(&ask().encode()), Some(ask()));
        for told in [told(), Told { status: Status::Ready, segment: None }] {
            assert_eq!(Told::decode(&told.encode()), Some(told));
        }
    }

    #[test]
    fn malformed_messages_are_refused() {
        let (ask, told) = (ask().encode(), told().encode());
        for length in 0..ask.len() {
            assert_eq!(Ask::decode(&ask[..length]), None, "cut at {length}");
        }
        for length in 0..told.len() {
            assert_eq!(Told::decode(&told[..length]), None, "cut at {length}");
        }
        let context = CONTEXT_BYTES;
        for (place, value) in
            [(0, 9), (context, 2), (context + 1, 2), (context + 3, 0), (context + 3, 2)]
        {
            let mut bad = ask.clone();
            bad[place] = value;
            assert_eq!(Ask::decode(&bad), None, "byte {place} of a question is {value}");
        }
        for (place, value) in [(0, 9), (1, 9), (2, 2)] {
            let mut bad = told.clone();
            bad[place] = value;
            assert_eq!(Told::decode(&bad), None, "byte {place} of an answer is {value}");
        }
        for message in [&ask, &told] {
            let longer = [&message[..], &[0]].concat();
            assert_eq!((Ask::decode(&longer), Told::decode(&longer)), (None, None));
        }
    }
}
