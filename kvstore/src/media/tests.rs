use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use shared::{
    BlockName, BlockStore, Clock, Descriptor, Durability, Flow, Grouped, LocateEvent, ManualClock,
    MediaId, Miss, ObjectKey, ObjectKind, OfferEvent, OfferOutcome, Random, RegionId,
    RequestContext, Root, Sink, SlotMemory, TenantTag, Ticket, Tier, media_piece_name,
};

use super::piece::HEADER_BYTES;
use super::{
    MediaClient, MediaEmbedding, MediaError, MediaMiss, MediaSize, MediaStats, MediaWiring,
};
use crate::disk::DiskTier;
use crate::host::{HostTier, HostTierConfig, HostWiring, NoStore};
use crate::memory::HostMemory;
use crate::pool::{Pool, PoolConfig, Seal};
use crate::tenants::TenantQuotas;
use crate::testing::{asked, next, offers};
use crate::transport::{
    LocalTransport, LocalTransportConfig, ReadDone, ReadError, ReadRequest, Transport,
};

mod disk;

/// Bytes of a piece, and of a block: no power of two.
pub(crate) const PIECE_BYTES: usize = 200;
/// Slots of the store.
const STORE_SLOTS: u64 = 24;
/// Slots of a client.
const CLIENT_SLOTS: u32 = 12;
const SIZE: MediaSize = MediaSize { rows: 11, row_bytes: 50 };
/// Of an embedding of that size: four full pieces and one of six bytes.
const PIECES: u32 = 5;
const OWN: [u8; 32] = [1; 32];

/// A store for pieces, registered nowhere.
pub(crate) fn host(
    transport: Arc<dyn Transport>,
    disk: Option<Arc<DiskTier>>,
    quotas: TenantQuotas,
) -> Arc<HostTier> {
    let bytes = STORE_SLOTS * u64::try_from(PIECE_BYTES).unwrap();
    let config = HostTierConfig {
        block_bytes_max: bytes,
        window_bytes_max: bytes,
        batch_max: 3,
        ..HostTierConfig::DEFAULT
    };
    let wiring = HostWiring {
        quotas: Arc::new(quotas),
        block_slot_bytes: PIECE_BYTES,
        window_slot_bytes: PIECE_BYTES,
        block_region: RegionId(10),
        window_region: RegionId(11),
        transport,
        clock: Arc::new(ManualClock::new()) as Arc<dyn Clock>,
        disk,
    };
    Arc::new(HostTier::start(&config, wiring).unwrap())
}

/// Slots of a client.
pub(crate) fn slots(region: u64, slots: u32) -> Pool {
    let memory = Arc::new(HostMemory::with_slots(slots, PIECE_BYTES).unwrap());
    let kind = ObjectKind::Media;
    let config = PoolConfig { region: RegionId(region), kind, tier: Tier::Host };
    Pool::new(config, memory as Arc<dyn SlotMemory>)
}

pub(crate) fn client(
    store: &Arc<HostTier>,
    transport: Arc<dyn Transport>,
    pool: &Pool,
) -> MediaClient {
    let store = Arc::clone(store) as Arc<dyn BlockStore>;
    MediaClient::new(MediaWiring { store, transport, pool: pool.clone(), piece_bytes: PIECE_BYTES })
}

pub(crate) fn embedding(number: u8) -> MediaEmbedding {
    let (root, media) = (Root::from_bytes(OWN), MediaId([number; 32]));
    MediaEmbedding { root, media, size: SIZE }
}

pub(crate) fn piece_name(number: u8, piece: u32) -> BlockName {
    media_piece_name(&Root::from_bytes(OWN), MediaId([number; 32]), piece)
}

/// The rows of an embedding: bytes that no other one has.
pub(crate) fn rows(number: u8) -> Vec<u8> {
    let mut generator = Random::new(u64::from(number));
    let bytes = usize::try_from(SIZE.rows * SIZE.row_bytes).unwrap();
    (0..bytes).map(|_| generator.word().to_le_bytes()[0]).collect()
}

fn sending<E: Send + 'static>() -> (Box<dyn Sink<E>>, Receiver<E>) {
    let (sender, receiver) = unbounded();
    let sink = move |event: E| sender.send(event).map_or(Flow::Closed, |()| Flow::Open);
    (Box::new(sink), receiver)
}

pub(crate) fn put(client: &MediaClient, number: u8, durability: Durability) -> OfferOutcome {
    put_for(client, TenantTag::NONE, number, durability)
}

fn put_for(
    client: &MediaClient,
    tenant: TenantTag,
    number: u8,
    durability: Durability,
) -> OfferOutcome {
    let context = RequestContext { tenant, ..RequestContext::NONE };
    let (sink, events) = sending();
    let put = client.put(context, &embedding(number), &rows(number), durability, sink);
    let _ticket = put.unwrap();
    next(&events)
}

/// Reads the whole embedding.
pub(crate) fn read(client: &MediaClient, embedding: &MediaEmbedding) -> Result<Vec<u8>, MediaMiss> {
    let (sink, events) = sending();
    let all = 0..embedding.size.rows;
    let _ticket = client.read(RequestContext::NONE, embedding, all, sink).unwrap();
    next(&events)
}

/// A store and a client beside it.
struct Rig {
    tier: Arc<HostTier>,
    transport: Arc<LocalTransport>,
    pool: Pool,
    client: MediaClient,
}

impl Rig {
    fn new() -> Self {
        Self::over(None, TenantQuotas::default())
    }

    fn over(disk: Option<Arc<DiskTier>>, quotas: TenantQuotas) -> Self {
        let transport = LocalTransport::start(LocalTransportConfig { queue_max: 64 }).unwrap();
        let transport = Arc::new(transport);
        let tier = host(Arc::clone(&transport) as Arc<dyn Transport>, disk, quotas);
        transport.register(tier.blocks()).unwrap();
        let (pool, client) = another(&tier, &transport, 1, CLIENT_SLOTS);
        Self { tier, transport, pool, client }
    }

    /// Another client of the same store.
    fn another(&self, region: u64, slots: u32) -> (Pool, MediaClient) {
        another(&self.tier, &self.transport, region, slots)
    }

    /// The client has nothing of its own.
    fn forget_own(&self) {
        assert_eq!(self.pool.audit().leaked, 0);
        let _evicted = self.pool.evict_all();
        assert_eq!(self.pool.held(), 0);
    }

    /// Offers a payload under the name of a piece, as a wrong program would.
    fn plant(&self, number: u8, piece: u32, payload: &[u8]) {
        let pool = slots(99, 1);
        self.transport.register(&pool).unwrap();
        let mut slot = pool.reserve(1).unwrap().remove(0);
        slot.write(&mut |bytes| bytes[..payload.len()].copy_from_slice(payload));
        let bytes = u32::try_from(payload.len()).unwrap();
        let seal = Seal { name: piece_name(number, piece), exact: true, bytes };
        let sealed = pool.seal(slot, seal);
        let (sink, events) = sending();
        let objects = offers(&[sealed.descriptor()]);
        let _ticket = self.tier.offer(RequestContext::NONE, objects, Durability::Memory, sink);
        assert_eq!(next(&events).outcome, OfferOutcome::Stored);
        assert!(self.transport.unregister(RegionId(99)));
    }

    /// The store's thread has ended what it answered before, and nobody holds anything.
    fn assert_at_rest(&self) {
        let (told, seen) = unbounded();
        self.tier.places(Vec::new(), Box::new(move |_| told.send(()).unwrap()));
        next(&seen);
        for pool in [&self.pool, self.tier.blocks()] {
            assert!(pool.audit().is_at_rest(), "{:?}", pool.audit());
        }
    }
}

fn another(
    tier: &Arc<HostTier>,
    transport: &Arc<LocalTransport>,
    region: u64,
    slots: u32,
) -> (Pool, MediaClient) {
    let pool = self::slots(region, slots);
    transport.register(&pool).unwrap();
    let client = client(tier, Arc::clone(transport) as Arc<dyn Transport>, &pool);
    (pool, client)
}

#[test]
fn rows_come_back_as_they_were_put() {
    let rig = Rig::new();
    assert_eq!(put(&rig.client, 1, Durability::Memory), OfferOutcome::Stored);
    assert_eq!(rig.tier.stats().stored, u64::from(PIECES));
    assert_eq!(rig.tier.audit()[0].cached, usize::try_from(PIECES).unwrap());
    // From the client's own pool, from the store, and by one that never had it.
    let (_, other) = rig.another(2, CLIENT_SLOTS);
    assert_eq!(read(&rig.client, &embedding(1)), Ok(rows(1)));
    assert_eq!(rig.tier.stats().hits, 0);
    rig.forget_own();
    assert_eq!(read(&rig.client, &embedding(1)), Ok(rows(1)));
    assert_eq!(read(&other, &embedding(1)), Ok(rows(1)));
    assert_eq!(rig.tier.stats().hits, 2 * u64::from(PIECES));
    assert_eq!(rig.client.stats(), MediaStats { stored: 1, hits: 2, ..MediaStats::default() });
    rig.assert_at_rest();
}

#[test]
fn any_rows_are_read_and_only_their_pieces_asked_for() {
    let rig = Rig::new();
    assert_eq!(put(&rig.client, 1, Durability::Memory), OfferOutcome::Stored);
    let room = PIECE_BYTES - HEADER_BYTES;
    let (whole, row_bytes) = (rows(1), 50);
    let mut asked = 0;
    for first in 0..11 {
        for end in first + 1..=11 {
            rig.forget_own();
            let (sink, events) = sending();
            let some = u32::try_from(first).unwrap()..u32::try_from(end).unwrap();
            let read = rig.client.read(RequestContext::NONE, &embedding(1), some, sink);
            let _ticket = read.unwrap();
            let (start, end) = (first * row_bytes, end * row_bytes);
            assert_eq!(next(&events), Ok(whole[start..end].to_vec()), "bytes {start} to {end}");
            asked += end.div_ceil(room) - start / room;
        }
    }
    assert_eq!(rig.tier.stats().hits, u64::try_from(asked).unwrap());
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let rig = Rig::new();
    let put = |size, bytes: &[u8]| {
        let (sink, _events) = sending();
        let embedding = MediaEmbedding { size, ..embedding(1) };
        rig.client.put(RequestContext::NONE, &embedding, bytes, Durability::Memory, sink).map(drop)
    };
    let length = MediaError::Length { found: 549, expected: 550 };
    assert_eq!(put(SIZE, &rows(1)[1..]), Err(length));
    let empty = MediaSize { rows: 0, row_bytes: 50 };
    assert_eq!(put(empty, &[]), Err(MediaError::Empty { rows: 0, row_bytes: 50 }));
    let large = MediaSize { rows: 1 << 20, row_bytes: 50 };
    assert!(matches!(put(large, &[]), Err(MediaError::TooLarge { .. })));
    let wide = MediaSize { rows: 34, row_bytes: 50 };
    let full = put(wide, &[0; 34 * 50]).unwrap_err();
    assert!(full.to_string().contains("13 cache slots are needed, 12 can be had"), "{full}");
    for (first, end) in [(0, 12), (3, 3), (4, 3), (u32::MAX - 1, u32::MAX)] {
        let (sink, _events) = sending();
        let read = rig.client.read(RequestContext::NONE, &embedding(1), first..end, sink);
        assert_eq!(read.map(drop), Err(MediaError::Rows { first, end, rows: 11 }));
    }
    rig.assert_at_rest();
}

#[test]
fn one_missing_piece_makes_the_whole_a_miss() {
    for piece in 0..PIECES {
        let rig = Rig::new();
        assert_eq!(put(&rig.client, 1, Durability::Memory), OfferOutcome::Stored);
        rig.forget_own();
        let lost = rig.tier.blocks().hold(piece_name(1, piece)).unwrap();
        assert!(rig.tier.blocks().forget(&lost.descriptor()));
        drop(lost);
        let miss = Err(MediaMiss::NotFound(Miss::Evicted));
        assert_eq!(read(&rig.client, &embedding(1)), miss, "piece {piece}");
        assert_eq!(rig.client.stats().misses, 1);
        // It is put again: what is there stays, what is missing comes.
        assert_eq!(put(&rig.client, 1, Durability::Memory), OfferOutcome::Stored);
        rig.forget_own();
        assert_eq!(read(&rig.client, &embedding(1)), Ok(rows(1)));
        rig.assert_at_rest();
    }
}

#[test]
fn evicted_pieces_leave_nothing_of_an_embedding() {
    let rig = Rig::new();
    let outcomes = (0..9).map(|number| put(&rig.client, number, Durability::Memory));
    assert!(outcomes.into_iter().all(|outcome| outcome == OfferOutcome::Stored));
    rig.forget_own();
    let mut hits = 0;
    for number in 0..9 {
        match read(&rig.client, &embedding(number)) {
            Ok(bytes) => {
                assert_eq!(bytes, rows(number));
                hits += 1;
            }
            Err(miss) => assert_eq!(miss, MediaMiss::NotFound(Miss::Evicted)),
        }
    }
    // 24 slots have room for four of them.
    assert!((1..=4).contains(&hits), "{hits}");
    rig.assert_at_rest();
}

#[test]
fn a_damaged_piece_is_a_miss_and_is_not_found_again() {
    let rig = Rig::new();
    assert_eq!(put(&rig.client, 1, Durability::Memory), OfferOutcome::Stored);
    rig.forget_own();
    let slot = rig.tier.blocks().hold(piece_name(1, 3)).unwrap().index();
    rig.tier.block_memory().write(slot, &mut |bytes| bytes[100] ^= 1);
    let miss = read(&rig.client, &embedding(1)).unwrap_err();
    assert!(matches!(miss, MediaMiss::NotRead(ReadError::Corrupt { .. })), "{miss}");
    assert_eq!(read(&rig.client, &embedding(1)), Err(MediaMiss::NotFound(Miss::Evicted)));
    assert_eq!(rig.client.stats(), MediaStats { stored: 1, misses: 2, ..MediaStats::default() });
    assert_eq!(put(&rig.client, 1, Durability::Memory), OfferOutcome::Stored);
    rig.forget_own();
    assert_eq!(read(&rig.client, &embedding(1)), Ok(rows(1)));
    rig.assert_at_rest();
}

#[test]
fn a_piece_of_something_else_is_a_miss_is_counted_and_left_alone() {
    let rig = Rig::new();
    let mut wrong = vec![0x5a; PIECE_BYTES];
    let (other, donor) = rig.another(2, CLIENT_SLOTS);
    assert_eq!(put(&donor, 7, Durability::Memory), OfferOutcome::Stored);
    other.lookup(piece_name(7, 2)).unwrap().read(&mut |bytes| wrong.copy_from_slice(bytes));
    // What lies under the name of a piece: one of another image, one that is too short, no piece at all.
    for (number, wrong) in (1..).zip([wrong.as_slice(), &wrong[..70], &[0x5a; PIECE_BYTES]]) {
        rig.plant(number, 2, wrong);
        assert_eq!(put(&rig.client, number, Durability::Memory), OfferOutcome::Stored);
        rig.forget_own();
        let before = rig.client.stats().mismatches;
        assert_eq!(read(&rig.client, &embedding(number)), Err(MediaMiss::Differs));
        assert_eq!(rig.client.stats().mismatches, before + 1);
        rig.forget_own();
        let lookups = rig.tier.stats();
        assert_eq!(read(&rig.client, &embedding(number)), Err(MediaMiss::Differs));
        let after = rig.tier.stats();
        assert_eq!((lookups.hits, lookups.misses), (after.hits, after.misses), "nobody was asked");
        // The wrong one leaves, the right one comes.
        let _evicted = rig.tier.evict_all();
        assert_eq!(put(&rig.client, number, Durability::Memory), OfferOutcome::Stored);
        rig.forget_own();
        assert_eq!(read(&rig.client, &embedding(number)), Ok(rows(number)));
    }
    assert_eq!(rig.client.stats().mismatches, 3);
    rig.assert_at_rest();
}

#[test]
fn two_encodings_of_one_image_are_never_mixed() {
    let rig = Rig::new();
    let (pool, other) = rig.another(2, CLIENT_SLOTS);
    let (sink, events) = sending();
    let bytes = rows(2);
    let _put = other.put(RequestContext::NONE, &embedding(1), &bytes, Durability::Memory, sink);
    assert_eq!(next(&events), OfferOutcome::Stored);
    let lost = rig.tier.blocks().hold(piece_name(1, 4)).unwrap();
    assert!(rig.tier.blocks().forget(&lost.descriptor()));
    drop(lost);
    assert_eq!(put(&rig.client, 1, Durability::Memory), OfferOutcome::Stored);
    // Each has its own; the store has some of both.
    assert_eq!(read(&other, &embedding(1)), Ok(rows(2)));
    assert_eq!(read(&rig.client, &embedding(1)), Ok(rows(1)));
    let (_, third) = rig.another(3, CLIENT_SLOTS);
    assert_eq!(read(&third, &embedding(1)), Err(MediaMiss::Differs));
    assert_eq!(pool.audit().leaked, 0);
}

#[test]
fn of_two_who_put_at_once_the_first_write_wins() {
    let rig = Rig::new();
    let (_, other) = rig.another(2, CLIENT_SLOTS);
    let outcomes = std::thread::scope(|scope| {
        let writers = [&rig.client, &other].map(|client| {
            scope.spawn(move || [1, 2].map(|number| put(client, number, Durability::Memory)))
        });
        writers.map(|writer| writer.join().unwrap())
    });
    for outcome in outcomes.as_flattened() {
        assert!(matches!(outcome, OfferOutcome::Stored | OfferOutcome::AlreadyHeld), "{outcome:?}");
    }
    let stats = rig.tier.stats();
    let pieces = u64::from(PIECES);
    assert_eq!((stats.stored, stats.already_held), (2 * pieces, 2 * pieces));
    assert_eq!(put(&other, 1, Durability::Memory), OfferOutcome::AlreadyHeld);
    let (_, third) = rig.another(3, CLIENT_SLOTS);
    for number in [1, 2] {
        assert_eq!(read(&third, &embedding(number)), Ok(rows(number)));
    }
}

#[test]
fn whoever_has_another_root_finds_nothing() {
    let rig = Rig::new();
    assert_eq!(put(&rig.client, 1, Durability::Memory), OfferOutcome::Stored);
    let other = MediaEmbedding { root: Root::from_bytes([2; 32]), ..embedding(1) };
    assert_eq!(read(&rig.client, &other), Err(MediaMiss::NotFound(Miss::NeverStored)));
    // One who believes in another size does not get what there is.
    rig.forget_own();
    let longer = MediaSize { rows: 12, row_bytes: 50 };
    let longer = MediaEmbedding { size: longer, ..embedding(1) };
    assert_eq!(read(&rig.client, &longer), Err(MediaMiss::Differs));
}

/// What the store finds under the name of a piece when a kind of object is asked for.
fn found_as(rig: &Rig, kind: ObjectKind) -> Result<ObjectKind, Miss> {
    let (sink, events) = sending::<LocateEvent>();
    let keys = asked(&[ObjectKey { kind, name: piece_name(1, 0) }]);
    let _ticket = rig.tier.locate(RequestContext::NONE, keys, sink);
    next(&events).found[0].map(|found| found.key.kind)
}

#[test]
fn a_piece_is_found_as_a_piece_only() {
    let rig = Rig::new();
    assert_eq!(put(&rig.client, 1, Durability::Memory), OfferOutcome::Stored);
    assert_eq!(found_as(&rig, ObjectKind::Media), Ok(ObjectKind::Media));
    for kind in [ObjectKind::Block, ObjectKind::Window] {
        assert!(found_as(&rig, kind).is_err(), "{kind:?}");
    }
    rig.assert_at_rest();
}

#[test]
fn pieces_are_one_group_whichever_are_asked_for() {
    for pieces in [0..PIECES, 0..1, 2..4] {
        let keys = super::keys(&embedding(1), pieces.clone());
        assert!(keys.iter().all(|key| key.group == piece_name(1, 0)));
        let names: Vec<BlockName> = keys.iter().map(|key| key.item.name).collect();
        assert_eq!(names, pieces.map(|piece| piece_name(1, piece)).collect::<Vec<_>>());
    }
}

#[test]
fn routers_hear_nothing_of_pieces() {
    let rig = Rig::new();
    assert_eq!(put(&rig.client, 1, Durability::Memory), OfferOutcome::Stored);
    assert_eq!(rig.tier.blocks().drain_changes(), []);
    assert_eq!(rig.tier.blocks().resync_changes(), [shared::CacheChange::Cleared]);
    assert_eq!(rig.tier.blocks().held(), usize::try_from(PIECES).unwrap());
    assert_eq!(rig.tier.evict_all(), usize::try_from(PIECES).unwrap());
    assert_eq!(rig.tier.blocks().drain_changes(), []);
}

#[test]
fn dropped_tickets_cancel_and_leave_nothing_behind() {
    let rig = Rig::new();
    // Slots for all that can be under way at once.
    let (pool, client) = rig.another(2, 600);
    assert_eq!(put(&client, 1, Durability::Memory), OfferOutcome::Stored);
    for _ in 0..50 {
        let _evicted = pool.evict_all();
        let (sink, answers) = sending();
        let read = client.read(RequestContext::NONE, &embedding(1), 0..11, sink);
        drop::<Ticket>(read.unwrap());
        // The answer, or the end of the sink.
        if let Ok(answer) = answers.recv_timeout(Duration::from_secs(20)) {
            assert_eq!(answer, Ok(rows(1)));
        }
        let (sink, answers) = sending();
        let bytes = rows(2);
        let put = client.put(RequestContext::NONE, &embedding(2), &bytes, Durability::Memory, sink);
        drop::<Ticket>(put.unwrap());
        let _answer_or_end = answers.recv_timeout(Duration::from_secs(20));
    }
    assert_eq!(read(&client, &embedding(1)), Ok(rows(1)));
    assert_eq!(put(&client, 2, Durability::Memory), OfferOutcome::Stored);
    let _evicted = pool.evict_all();
    assert_eq!(read(&client, &embedding(2)), Ok(rows(2)));
    assert!(pool.audit().is_at_rest(), "{:?}", pool.audit());
}

/// A store, or a transport, that ends without a word.
struct Silent;

impl BlockStore for Silent {
    fn locate(
        &self,
        _: RequestContext,
        _: Vec<Grouped<ObjectKey>>,
        _: Box<dyn Sink<LocateEvent>>,
    ) -> Ticket {
        Ticket::empty()
    }

    fn offer(
        &self,
        _: RequestContext,
        _: Vec<Grouped<Descriptor>>,
        _: Durability,
        _: Box<dyn Sink<OfferEvent>>,
    ) -> Ticket {
        Ticket::empty()
    }
}

impl Transport for Silent {
    fn read(&self, _: RequestContext, _: Vec<ReadRequest>, _: Box<dyn Sink<ReadDone>>) -> Ticket {
        Ticket::empty()
    }
}

#[test]
fn who_is_left_without_an_answer_has_one() {
    let rig = Rig::new();
    let wiring = |store, transport| {
        MediaClient::new(MediaWiring { store, transport, pool: slots(2, 12), piece_bytes: 200 })
    };
    let transport = Arc::clone(&rig.transport) as Arc<dyn Transport>;
    let gone = wiring(Arc::new(Silent) as Arc<dyn BlockStore>, transport);
    assert_eq!(put(&gone, 1, Durability::Memory), OfferOutcome::Dropped);
    let silent = wiring(Arc::clone(&rig.tier) as Arc<dyn BlockStore>, Arc::new(Silent));
    assert_eq!(put(&rig.client, 2, Durability::Memory), OfferOutcome::Stored);
    assert_eq!(read(&gone, &embedding(2)), Err(MediaMiss::NotFound(Miss::NoAnswer)));
    let unread = Err(MediaMiss::NotRead(ReadError::Closed));
    assert_eq!(read(&silent, &embedding(2)), unread);
    let none = wiring(Arc::new(NoStore), Arc::new(Silent));
    assert_eq!(put(&none, 1, Durability::Memory), OfferOutcome::Dropped);
    assert_eq!(read(&none, &embedding(2)), Err(MediaMiss::NotFound(Miss::NotAsked)));
    rig.assert_at_rest();
}

#[test]
fn a_client_without_room_misses() {
    let rig = Rig::new();
    assert_eq!(put(&rig.client, 1, Durability::Memory), OfferOutcome::Stored);
    let (_, small) = rig.another(2, PIECES - 1);
    let miss = read(&small, &embedding(1)).unwrap_err();
    assert!(matches!(miss, MediaMiss::NoSlots(full) if full.needed == 5), "{miss}");
    rig.assert_at_rest();
}

#[test]
fn a_tenant_has_its_quota_and_is_evicted_as_with_blocks() {
    let (one, two) = (TenantTag(1), TenantTag(2));
    let bytes = 2 * 5 * u64::try_from(PIECE_BYTES).unwrap();
    let quota = crate::tenants::TenantQuota { disk_bytes_max: 0, host_bytes_max: bytes };
    let rig = Rig::over(None, TenantQuotas { others: quota, ..TenantQuotas::default() });
    for (tenant, number) in [(one, 1), (two, 2), (one, 3), (one, 4)] {
        put_for(&rig.client, tenant, number, Durability::Memory);
    }
    rig.forget_own();
    assert!(rig.tier.tenant_bytes(one) <= bytes);
    assert_eq!(read(&rig.client, &embedding(2)), Ok(rows(2)), "the other one's is there");
    assert_eq!(read(&rig.client, &embedding(4)), Ok(rows(4)));
    assert!(read(&rig.client, &embedding(1)).is_err(), "its own oldest made room");
    assert!(0 < rig.tier.evict_tenant(one).unwrap());
    rig.forget_own();
    for number in [1, 3, 4] {
        assert!(read(&rig.client, &embedding(number)).is_err(), "{number}");
    }
    assert_eq!(read(&rig.client, &embedding(2)), Ok(rows(2)));
}
