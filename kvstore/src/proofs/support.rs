//! A store with a worker beside it, and objects of which a reader can tell whether their bytes are right.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use shared::{
    BlockName, BlockStore, Clock, Descriptor, Durability, Flow, LocateEvent, ManualClock,
    ObjectKey, ObjectKind, OfferEvent, OfferOutcome, RegionId, RequestContext, Sink, TenantTag,
    Ticket,
};

use crate::disk::DiskTier;
use crate::host::{HostTier, HostTierConfig, HostWiring};
use crate::pool::{Pool, Seal, SealedSlot};
use crate::tenants::TenantQuotas;
use crate::testing::{SLOT_BYTES, asked, bytes_of, name, next, offers, payload, pool_of};
use crate::transport::{LocalTransport, LocalTransportConfig, ReadDone, ReadRequest, Transport};

/// Slots of the store, of each kind.
pub(super) const STORE_SLOTS: u32 = 16;
/// Slots of the worker, of each kind.
const WORKER_SLOTS: u32 = 32;
/// How many versions of one name are told apart.
pub(super) const VERSIONS: u64 = 8;

/// A worker's pools, a store, and an honest transport between them.
pub(super) struct Rig {
    pub(super) tier: HostTier,
    pub(super) transport: Arc<LocalTransport>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) blocks: Pool,
    pub(super) windows: Pool,
    pub(super) media: Pool,
    /// Where what was found is read to.
    target: Pool,
}

impl Rig {
    /// The store reads through `decorate(transport)`.
    pub(super) fn new(
        disk: Option<Arc<DiskTier>>,
        config: HostTierConfig,
        decorate: impl FnOnce(Arc<dyn Transport>) -> Arc<dyn Transport>,
    ) -> Self {
        Self::bounded(disk, config, Arc::default(), decorate)
    }

    /// The same with quotas.
    pub(super) fn bounded(
        disk: Option<Arc<DiskTier>>,
        config: HostTierConfig,
        quotas: Arc<TenantQuotas>,
        decorate: impl FnOnce(Arc<dyn Transport>) -> Arc<dyn Transport>,
    ) -> Self {
        let transport = LocalTransport::start(LocalTransportConfig { queue_max: 64 }).unwrap();
        let transport = Arc::new(transport);
        let clock = Arc::new(ManualClock::new());
        let wiring = HostWiring {
            quotas,
            block_slot_bytes: SLOT_BYTES,
            window_slot_bytes: SLOT_BYTES,
            block_region: RegionId(10),
            window_region: RegionId(11),
            transport: decorate(Arc::clone(&transport) as Arc<dyn Transport>),
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            disk,
        };
        let tier = HostTier::start(&config, wiring).unwrap();
        let (blocks, _) = pool_of(1, WORKER_SLOTS, ObjectKind::Block);
        let (windows, _) = pool_of(2, WORKER_SLOTS, ObjectKind::Window);
        let (media, _) = pool_of(4, WORKER_SLOTS, ObjectKind::Media);
        for pool in [&blocks, &windows, &media, tier.blocks(), tier.windows()] {
            transport.register(pool).unwrap();
        }
        let (target, _) = pool_of(3, 1, ObjectKind::Block);
        Self { tier, transport, clock, blocks, windows, media, target }
    }

    pub(super) fn pool(&self, kind: ObjectKind) -> &Pool {
        match kind {
            ObjectKind::Block => &self.blocks,
            ObjectKind::Window => &self.windows,
            ObjectKind::Media => &self.media,
        }
    }

    /// Computes an object: the bytes of this version under this key, exact if the version is even.
    pub(super) fn compute(&self, key: ObjectKey, version: u64) -> SealedSlot {
        let pool = self.pool(key.kind);
        let mut slot = pool.reserve(1).unwrap().pop().unwrap();
        slot.write(&mut |bytes| bytes.copy_from_slice(&version_of(key.name, version)));
        let bytes = u32::try_from(SLOT_BYTES).unwrap();
        pool.seal(slot, Seal { name: key.name, exact: version.is_multiple_of(2), bytes })
    }

    /// Offers and waits for all answers. Each object is answered once; what is held already is answered first.
    pub(super) fn offer(&self, objects: &[Descriptor]) -> Vec<OfferOutcome> {
        self.offer_for(TenantTag::NONE, Durability::Memory, objects)
    }

    pub(super) fn offer_for(
        &self,
        tenant: TenantTag,
        durability: Durability,
        objects: &[Descriptor],
    ) -> Vec<OfferOutcome> {
        let (sink, events) = sending();
        let context = RequestContext { tenant, ..RequestContext::NONE };
        let _ticket = self.tier.offer(context, offers(objects), durability, sink);
        let answer = |_: &Descriptor| -> (ObjectKey, OfferOutcome) {
            let OfferEvent { key, outcome } = next(&events);
            (key, outcome)
        };
        let mut outcomes: BTreeMap<ObjectKey, OfferOutcome> = objects.iter().map(answer).collect();
        objects.iter().map(|object| outcomes.remove(&object.key).expect("one each")).collect()
    }

    /// Offers the first version of blocks and lets go of them.
    pub(super) fn store(&self, numbers: impl IntoIterator<Item = u64>) -> Vec<OfferOutcome> {
        self.store_for(TenantTag::NONE, Durability::Memory, numbers)
    }

    pub(super) fn store_for(
        &self,
        tenant: TenantTag,
        durability: Durability,
        numbers: impl IntoIterator<Item = u64>,
    ) -> Vec<OfferOutcome> {
        let held: Vec<SealedSlot> =
            numbers.into_iter().map(|number| self.compute(block(number), 0)).collect();
        let objects: Vec<Descriptor> = held.iter().map(SealedSlot::descriptor).collect();
        self.offer_for(tenant, durability, &objects)
    }

    pub(super) fn locate(&self, keys: &[ObjectKey]) -> (Ticket, Vec<Option<Descriptor>>) {
        let (sink, events) = sending();
        let ticket = self.tier.locate(RequestContext::NONE, asked(keys), sink);
        let event: LocateEvent = next(&events);
        assert_eq!(event.found.len(), keys.len());
        for (key, found) in keys.iter().zip(&event.found) {
            assert!(
                found.is_err() || found.is_ok_and(|found| found.key == *key),
                "{found:?} for {key:?}"
            );
        }
        (ticket, event.found.into_iter().map(Result::ok).collect())
    }

    /// Reads an object of the store over the honest transport; None when it is there no more. What comes has the bytes of
    /// a version of its name, which is returned.
    pub(super) fn fetch(&self, source: Descriptor) -> Option<u64> {
        let slot = self.target.reserve(1).unwrap().pop().unwrap();
        let (sink, events) = sending();
        let read = ReadRequest { source, target: slot };
        let _ticket = self.transport.read(RequestContext::NONE, vec![read], sink);
        let done: ReadDone = next(&events);
        done.result.ok()?;
        let seal = Seal { name: source.key.name, exact: source.exact, bytes: source.bytes };
        let read = self.target.seal_unnamed(done.target, seal);
        Some(version_found(source.key.name, &bytes_of(&read), source.exact))
    }

    /// Which of the blocks are found and can be read, and in which version.
    pub(super) fn versions(&self, numbers: impl IntoIterator<Item = u64>) -> Vec<(u64, u64)> {
        let mut versions = Vec::new();
        for number in numbers {
            let (_ticket, found) = self.locate(&[block(number)]);
            versions.extend(found[0].and_then(|found| Some((number, self.fetch(found)?))));
        }
        self.settle();
        versions
    }

    /// The store's thread has ended what it answered before: it keeps objects that it found a moment longer than the answer
    /// takes. Nothing is counted.
    fn settle(&self) {
        let (told, seen) = crossbeam_channel::bounded(1);
        self.tier.places(Vec::new(), Box::new(move |_| told.send(()).unwrap()));
        next(&seen);
    }

    /// Nobody holds anything, here and in the store.
    pub(super) fn assert_at_rest(&self) {
        self.settle();
        let own = [&self.blocks, &self.windows, &self.media];
        for pool in own.into_iter().chain([self.tier.blocks(), self.tier.windows()]) {
            assert!(pool.audit().is_at_rest(), "{pool:?}: {:?}", pool.audit());
        }
    }
}

pub(super) fn config() -> HostTierConfig {
    let bytes = u64::from(STORE_SLOTS) * u64::try_from(SLOT_BYTES).unwrap();
    HostTierConfig {
        block_bytes_max: bytes,
        window_bytes_max: bytes,
        window_ttl: Duration::from_secs(60),
        offer_wait_max: Duration::from_secs(30),
        batch_max: 3,
        ..HostTierConfig::DEFAULT
    }
}

/// A block, or a piece of a media embedding, which a store keeps alike: every fourth number is one.
pub(super) fn block(number: u64) -> ObjectKey {
    let kind = if number % 4 == 3 { ObjectKind::Media } else { ObjectKind::Block };
    ObjectKey { kind, name: name(number) }
}

pub(super) fn window(number: u64) -> ObjectKey {
    ObjectKey { kind: ObjectKind::Window, name: name(number) }
}

/// The bytes of a version of a name: those of no other version and no other name.
pub(super) fn version_of(name: BlockName, version: u64) -> Vec<u8> {
    assert!(version < VERSIONS, "more versions are not told apart");
    let number = u64::from_be_bytes(name.0[..8].try_into().unwrap());
    payload(number * VERSIONS + version + 1)
}

/// Which version of a name these bytes are. Fails when they are none, or have another exactness than theirs.
pub(super) fn version_found(name: BlockName, bytes: &[u8], exact: bool) -> u64 {
    let version = (0..VERSIONS).find(|version| version_of(name, *version) == bytes);
    let version = version.unwrap_or_else(|| panic!("{name} has the bytes of another object"));
    assert_eq!(exact, version.is_multiple_of(2), "{name}: the flag of another version");
    version
}

pub(super) fn sending<E: Send + 'static>() -> (Box<dyn Sink<E>>, Receiver<E>) {
    let (sender, receiver) = unbounded();
    let sink = move |event: E| sender.send(event).map_or(Flow::Closed, |()| Flow::Open);
    (Box::new(sink), receiver)
}
