//! What requests look like as bytes, for QUIC and shared memory alike. All numbers are big-endian.
//!
//! A reader of bytes from a peer never panics and never allocates by a number it was sent: counts are bounded by
//! [`REQUEST_MAX`] and checked against the bytes that are there.

use shared::{
    BlockName, Descriptor, Generation, Location, ObjectKey, ObjectKind, RegionId, RequestContext,
    RequestId, SlotIndex, TenantTag, TraceContext,
};

use super::ReadError;

/// The version of both protocols. The first byte of every request.
pub(super) const VERSION: u8 = 3;

/// Objects in one request at most.
pub(super) const REQUEST_MAX: usize = 256;

/// Bytes of one descriptor: kind, exactness, name, region, slot, generation, length, checksum.
pub(super) const DESCRIPTOR_BYTES: usize = 1 + 1 + 16 + 8 + 4 + 8 + 4 + 4;

/// Bytes of a context: request, tenant, trace, span, whether the trace is recorded.
pub(super) const CONTEXT_BYTES: usize = 16 + 8 + 16 + 8 + 1;

/// Bytes of a request over QUIC before its descriptors: version, verb, context, count.
const REQUEST_HEAD_BYTES: usize = 4 + CONTEXT_BYTES;

/// Bytes of the longest request over QUIC.
pub(super) const REQUEST_BYTES_MAX: usize = REQUEST_HEAD_BYTES + REQUEST_MAX * DESCRIPTOR_BYTES;

/// Bytes before each payload of an answer over QUIC: status and length.
pub(super) const HEAD_BYTES: usize = 5;

/// What is asked of a peer over QUIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// Send the objects.
    Read,
    /// The objects arrived damaged: check your copies, forget them if they are damaged.
    Check,
}

/// What a peer says about one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// Here it is.
    Ready,
    /// The region is not registered there.
    UnknownRegion,
    /// The slot holds something else by now.
    Stale,
    /// The owner's copy is damaged and was forgotten.
    Damaged,
    /// The region is there but not in shared memory: read it over QUIC.
    NotShared,
}

impl Status {
    /// The status of an open that failed.
    pub(super) fn of(error: ReadError) -> Self {
        match error {
            ReadError::UnknownRegion { .. } => Self::UnknownRegion,
            _ => Self::Stale,
        }
    }

    pub(super) fn code(self) -> u8 {
        match self {
            Self::Ready => 0,
            Self::UnknownRegion => 1,
            Self::Stale => 2,
            Self::Damaged => 3,
            Self::NotShared => 4,
        }
    }

    pub(super) fn from_code(code: u8) -> Option<Self> {
        let all = [Self::Ready, Self::UnknownRegion, Self::Stale, Self::Damaged, Self::NotShared];
        all.into_iter().find(|status| status.code() == code)
    }
}

/// A request over QUIC. At most [`REQUEST_MAX`] objects.
pub(super) fn request(verb: Verb, context: RequestContext, objects: &[Descriptor]) -> Vec<u8> {
    assert!(objects.len() <= REQUEST_MAX, "runs are cut shorter");
    let mut bytes = Vec::with_capacity(REQUEST_HEAD_BYTES + objects.len() * DESCRIPTOR_BYTES);
    let verb = match verb {
        Verb::Read => 1,
        Verb::Check => 2,
    };
    bytes.extend_from_slice(&[VERSION, verb]);
    put_context(&mut bytes, context);
    put_descriptors(&mut bytes, objects);
    bytes
}

/// Reads a request; none when it is malformed, of another version or too long.
pub(super) fn read_request(bytes: &[u8]) -> Option<(Verb, RequestContext, Vec<Descriptor>)> {
    let mut fields = Fields(bytes);
    if fields.u8()? != VERSION {
        return None;
    }
    let verb = match fields.u8()? {
        1 => Verb::Read,
        2 => Verb::Check,
        _ => return None,
    };
    let context = fields.context()?;
    let objects = fields.descriptors()?;
    fields.is_empty().then_some((verb, context, objects))
}

/// On whose behalf the reader asks.
pub(super) fn put_context(bytes: &mut Vec<u8>, context: RequestContext) {
    let RequestContext { id, trace, tenant } = context;
    bytes.extend_from_slice(&id.0.to_be_bytes());
    bytes.extend_from_slice(&tenant.0.to_be_bytes());
    bytes.extend_from_slice(&trace.trace.to_be_bytes());
    bytes.extend_from_slice(&trace.span.to_be_bytes());
    bytes.push(u8::from(trace.sampled));
}

/// A count and as many descriptors.
pub(super) fn put_descriptors(bytes: &mut Vec<u8>, objects: &[Descriptor]) {
    let count = u16::try_from(objects.len()).expect("a request has at most 256 objects");
    bytes.extend_from_slice(&count.to_be_bytes());
    for object in objects {
        let kind = match object.key.kind {
            ObjectKind::Block => 1,
            ObjectKind::Window => 2,
            ObjectKind::Media => 3,
        };
        bytes.extend_from_slice(&[kind, u8::from(object.exact)]);
        bytes.extend_from_slice(&object.key.name.0);
        bytes.extend_from_slice(&object.location.region.0.to_be_bytes());
        bytes.extend_from_slice(&object.location.slot.0.to_be_bytes());
        bytes.extend_from_slice(&object.location.generation.0.to_be_bytes());
        bytes.extend_from_slice(&object.bytes.to_be_bytes());
        bytes.extend_from_slice(&object.checksum.to_be_bytes());
    }
}

/// The bytes of a message not read yet. Every method answers none when they do not suffice.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.bytes().map(u8::from_be_bytes)
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_be_bytes)
    }

    pub(super) fn context(&mut self) -> Option<RequestContext> {
        let id = RequestId(self.bytes().map(u128::from_be_bytes)?);
        let tenant = TenantTag(self.u64()?);
        let trace = self.bytes().map(u128::from_be_bytes)?;
        let (span, sampled) = (self.u64()?, self.flag()?);
        Some(RequestContext { id, trace: TraceContext { trace, span, sampled }, tenant })
    }

    /// A count of at most [`REQUEST_MAX`].
    pub(super) fn count(&mut self) -> Option<usize> {
        let count = usize::from(self.u16()?);
        (count <= REQUEST_MAX).then_some(count)
    }

    pub(super) fn descriptors(&mut self) -> Option<Vec<Descriptor>> {
        let count = self.count()?;
        if self.0.len() < count * DESCRIPTOR_BYTES {
            return None;
        }
        (0..count).map(|_| self.descriptor()).collect()
    }

    fn descriptor(&mut self) -> Option<Descriptor> {
        let kind = match self.u8()? {
            1 => ObjectKind::Block,
            2 => ObjectKind::Window,
            3 => ObjectKind::Media,
            _ => return None,
        };
        let exact = self.flag()?;
        let name = BlockName(self.bytes()?);
        let location = Location {
            region: RegionId(self.u64()?),
            slot: SlotIndex(self.u32()?),
            generation: Generation(self.u64()?),
        };
        let bytes = self.u32()?;
        let checksum = self.u32()?;
        Some(Descriptor { key: ObjectKey { kind, name }, location, bytes, checksum, exact })
    }
}

#[cfg(test)]
mod tests {
    use shared::{Descriptor, RequestContext, RequestId, TenantTag, TraceContext};

    use super::{
        CONTEXT_BYTES, DESCRIPTOR_BYTES, REQUEST_MAX, Status, Verb, read_request, request,
    };
    use crate::testing::{pool, store};

    fn context() -> RequestContext {
        let trace = TraceContext { trace: 0x0203, span: 0x0405, sampled: true };
        RequestContext { id: RequestId(0x0102), trace, tenant: TenantTag(0x0607) }
    }

    fn objects(count: u32) -> Vec<Descriptor> {
        let pool = pool(7, count);
        let held: Vec<_> = (0..u64::from(count)).map(|number| store(&pool, number)).collect();
        held.iter().map(|slot| slot.descriptor()).collect()
    }

    #[test]
    fn requests_come_back_as_they_were() {
        for (verb, count) in [(Verb::Read, 0), (Verb::Check, 1), (Verb::Read, 256)] {
            let objects = objects(count);
            let bytes = request(verb, context(), &objects);
            assert_eq!(bytes.len(), 4 + CONTEXT_BYTES + objects.len() * DESCRIPTOR_BYTES);
            assert_eq!(read_request(&bytes), Some((verb, context(), objects)));
        }
    }

    #[test]
    fn malformed_requests_are_refused() {
        let good = request(Verb::Read, context(), &objects(2));
        for length in 0..good.len() {
            assert_eq!(read_request(&good[..length]), None, "cut at {length}");
        }
        let mut longer = good.clone();
        longer.push(0);
        assert_eq!(read_request(&longer), None);
        let after = 2 + CONTEXT_BYTES;
        let flag = after - 1;
        let places = [
            (0, 1),
            (1, 0),
            (1, 3),
            (flag, 2),
            (after, 0xff),
            (after + 2, 0),
            (after + 2, 4),
            (after + 3, 2),
        ];
        for (place, value) in places {
            let mut bad = good.clone();
            bad[place] = value;
            assert_eq!(read_request(&bad), None, "byte {place} is {value}");
        }
        let mut many = good;
        many[after..after + 2]
            .copy_from_slice(&u16::try_from(REQUEST_MAX + 1).unwrap().to_be_bytes());
        many.resize(after + 2 + (REQUEST_MAX + 1) * DESCRIPTOR_BYTES, 1);
        assert_eq!(read_request(&many), None, "too many objects");
    }

    #[test]
    fn each_status_has_its_code() {
        for code in 0..=u8::MAX {
            let status = Status::from_code(code);
            assert_eq!(status.is_some(), code < 5, "{code}");
            assert!(status.is_none_or(|status| status.code() == code));
        }
    }
}
