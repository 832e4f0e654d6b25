//! `kvasir kv` on the files of a store, stopped and running.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use kvasir::clock::SystemClock;
use kvstore::{
    DiskConfig, DiskTier, DiskWiring, HostMemory, HostTier, HostTierConfig, HostWiring,
    LocalTransport, LocalTransportConfig, Pool, PoolConfig, Seal, Transport,
};
use serde_json::Value;
use shared::{
    BlockName, BlockStore, Clock, Durability, Flow, Grouped, Numerics, ObjectKind, OfferEvent,
    RegionId, RequestContext, SlotMemory, TenantId, TenantTag, Tier,
};

use crate::process::{errors_of, run};

/// Odd, and less than a page.
const BLOCK_BYTES: usize = 1_001;
const SLOTS: u32 = 64;
/// What fits the test's segments of 16 pages.
const SEGMENT_BLOCKS: u64 = 13;
const PAGE: usize = 4_096;
const LONG: Duration = Duration::from_secs(20);

/// A store that runs in this process.
struct Store {
    disk: Arc<DiskTier>,
    host: HostTier,
    /// A worker's blocks, and its pieces of media embeddings.
    pools: [Pool; 2],
}

impl Store {
    fn start(folder: &Path) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let config = DiskConfig {
            // So large that the write budget takes all of the test's blocks at once.
            bytes_max: 64 << 20,
            segment_bytes: 1 << 16,
            sync_ms: 0,
            ..DiskConfig::in_folder(folder.to_owned())
        };
        let wiring = DiskWiring {
            quotas: Arc::default(),
            block_bytes: BLOCK_BYTES,
            layout: [7; 32],
            numerics: Numerics("cpu-exact-1".into()),
            clock: Arc::clone(&clock),
        };
        let disk = Arc::new(DiskTier::start(&config, wiring).expect("a disk tier starts"));
        let transport = LocalTransport::start(LocalTransportConfig { queue_max: 16 });
        let transport = Arc::new(transport.expect("a transport starts"));
        let bytes = u64::from(SLOTS) * u64::try_from(BLOCK_BYTES).expect("a block is small");
        let config = HostTierConfig {
            block_bytes_max: bytes,
            window_bytes_max: bytes,
            ..HostTierConfig::DEFAULT
        };
        let wiring = HostWiring {
            quotas: Arc::default(),
            block_slot_bytes: BLOCK_BYTES,
            window_slot_bytes: BLOCK_BYTES,
            block_region: RegionId(10),
            window_region: RegionId(11),
            transport: Arc::clone(&transport) as Arc<dyn Transport>,
            clock,
            disk: Some(Arc::clone(&disk)),
        };
        let host = HostTier::start(&config, wiring).expect("a host tier starts");
        let pools = [(1, ObjectKind::Block), (2, ObjectKind::Media)].map(|(region, kind)| {
            let memory = HostMemory::with_slots(SLOTS, BLOCK_BYTES).expect("little memory");
            let config = PoolConfig { region: RegionId(region), kind, tier: Tier::Device };
            Pool::new(config, Arc::new(memory) as Arc<dyn SlotMemory>)
        });
        for pool in pools.iter().chain([host.blocks(), host.windows()]) {
            transport.register(pool).expect("regions of their own");
        }
        Self { disk, host, pools }
    }

    /// Stores blocks and makes them durable.
    fn write(&self, numbers: std::ops::Range<u64>) {
        self.write_for(TenantTag::NONE, numbers);
    }

    /// The same for a tenant.
    fn write_for(&self, tenant: TenantTag, numbers: std::ops::Range<u64>) {
        self.write_from(&self.pools[0], tenant, numbers);
    }

    fn write_from(&self, pool: &Pool, tenant: TenantTag, numbers: std::ops::Range<u64>) {
        let context = RequestContext { tenant, ..RequestContext::NONE };
        for number in numbers {
            let mut slot = pool.reserve(1).expect("a slot is free").remove(0);
            slot.write(&mut |bytes| bytes.copy_from_slice(&payload(number)));
            let bytes = u32::try_from(BLOCK_BYTES).expect("a block is small");
            let block = pool.seal(slot, Seal { name: name(number), exact: true, bytes });
            let (sender, events) = channel();
            let sink =
                move |event: OfferEvent| sender.send(event).map_or(Flow::Closed, |()| Flow::Open);
            let offered = vec![Grouped { item: block.descriptor(), group: name(number) }];
            let _ticket = self.host.offer(context, offered, Durability::Memory, Box::new(sink));
            events.recv_timeout(LONG).expect("an offer is answered");
            assert!(self.disk.flush(LONG));
        }
    }
}

fn name(number: u64) -> BlockName {
    let mut bytes = [0xc0; 16];
    bytes[8..].copy_from_slice(&number.to_be_bytes());
    BlockName(bytes)
}

fn payload(number: u64) -> Vec<u8> {
    let number = number.to_le_bytes()[0];
    (0..BLOCK_BYTES).map(|at| at.to_le_bytes()[0].wrapping_mul(31) ^ number).collect()
}

/// A folder with two sealed segments and an open one with four blocks.
fn stopped() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder for the store");
    Store::start(folder.path()).write(0..2 * SEGMENT_BLOCKS + 4);
    folder
}

fn segment(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:016x}.segment"))
}

fn flip(folder: &Path, number: u64, offset: usize) {
    let mut bytes = fs::read(segment(folder, number)).expect("a segment can be read");
    bytes[offset] ^= 4;
    fs::write(segment(folder, number), bytes).expect("a segment can be written");
}

/// `kvasir kv COMMAND FOLDER ...`.
fn kv(command: &str, folder: &Path, rest: &[&str]) -> Output {
    let folder = folder.to_str().expect("UTF-8");
    run(&[&["kv", command, folder], rest].concat())
}

fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

fn objects(output: &Output) -> Vec<Value> {
    let parse = |line: &String| serde_json::from_str(line).expect("a line is an object");
    lines(output).iter().map(parse).collect()
}

#[test]
fn a_stopped_store_is_listed_inspected_and_clean() {
    let folder = stopped();
    let folder = folder.path();
    let segments = objects(&kv("ls", folder, &["--json"]));
    let states: Vec<&str> = segments.iter().filter_map(|it| it["state"].as_str()).collect();
    assert_eq!(states, ["sealed", "sealed", "open"]);
    assert_eq!(segments[0]["blocks"], 13);
    assert_eq!(segments[2]["numerics"], "cpu-exact-1");
    assert_eq!(lines(&kv("ls", folder, &[])).len(), 4, "a head and three segments");
    assert_eq!(objects(&kv("ls", folder, &["--records", "--json"])).len(), 30);
    assert_eq!(lines(&kv("ls", folder, &["--records"])).len(), 31);

    let copy = folder.join("payload");
    let out = ["--json", "--out", copy.to_str().expect("UTF-8")];
    let wanted = name(5).to_string();
    let found = kv("inspect", folder, &[&[wanted.as_str()], &out[..]].concat());
    assert_eq!(found.status.code(), Some(0), "{}", errors_of(&found));
    let found = &objects(&found)[0];
    assert_eq!((&found["counts"], &found["intact"]), (&Value::from(true), &Value::from(true)));
    assert_eq!(fs::read(copy).expect("it was written"), payload(5));
    let missing = kv("inspect", folder, &[&name(77).to_string()]);
    assert_eq!((missing.status.code(), lines(&missing).len()), (Some(1), 0));

    let usage = &objects(&kv("du", folder, &["--json"]))[0];
    let count = |key: &str| usage[key].as_u64().expect("a number");
    assert_eq!((count("live_blocks"), count("superseded_blocks")), (30, 0));
    assert_eq!(usage["live_bytes_by_age"]["1h"], 30 * BLOCK_BYTES);
    let parts =
        ["live_bytes", "superseded_bytes", "padding_bytes", "structure_bytes", "lost_bytes"];
    assert_eq!(parts.into_iter().map(count).sum::<u64>(), count("file_bytes"));
    assert!(lines(&kv("du", folder, &[])).iter().any(|line| line.starts_with("live payload")));

    for (command, rest) in [("fsck", &[][..]), ("scrub", &["--mib-per-s", "1000"])] {
        let output = kv(command, folder, rest);
        assert_eq!(output.status.code(), Some(0), "{command}");
        let text = lines(&output);
        assert!(text.len() == 1 && text[0].starts_with("clean: 3 segments, 30 of 30"), "{text:?}");
    }
}

#[test]
fn pieces_of_media_embeddings_are_named_by_their_kind() {
    let folder = tempfile::tempdir().expect("a folder for the store");
    let store = Store::start(folder.path());
    store.write(0..3);
    store.write_from(&store.pools[1], TenantTag::NONE, 10..12);
    drop(store);
    let folder = folder.path();
    let records = objects(&kv("ls", folder, &["--records", "--json"]));
    let kinds: Vec<&Value> = records.iter().map(|record| &record["kind"]).collect();
    assert_eq!(kinds, ["block", "block", "block", "media", "media"]);
    let text = lines(&kv("ls", folder, &["--records"]));
    assert!(text[0].ends_with(" exact kind") && text[4].ends_with(" true  media"), "{text:?}");
    for (number, kind) in [(2, "block"), (10, "media")] {
        let text = lines(&kv("inspect", folder, &[&name(number).to_string()]));
        assert!(text[0].contains(&format!(": {kind}, 1001 bytes of ")), "{text:?}");
    }
    let usage = &objects(&kv("du", folder, &["--json"]))[0];
    assert_eq!((&usage["live_blocks"], &usage["media_pieces"]), (&5.into(), &2.into()));
    assert_eq!(usage["media_bytes"], 2 * BLOCK_BYTES);
    let text = lines(&kv("fsck", folder, &[]));
    assert!(text[0].starts_with("clean: 1 segments, 5 of 5"), "{text:?}");
}

#[test]
fn damage_is_named_by_exit_status_and_line_and_mended() {
    let folder = stopped();
    let folder = folder.path();
    flip(folder, 1, 2 * PAGE + 500);
    flip(folder, 2, 40);
    let output = kv("fsck", folder, &[]);
    assert_eq!(output.status.code(), Some(1));
    let text = lines(&output);
    let payload = format!("damage: payload: segment 1, page 2, block {}: ", name(1));
    assert!(text[0].starts_with(&payload), "{text:?}");
    assert!(text[1].starts_with("damage: header: segment 2: "), "{text:?}");
    assert!(text[2].starts_with("2 damaged: 3 segments, 16 of 17"), "{text:?}");
    let output = kv("scrub", folder, &["--mib-per-s", "1000"]);
    assert_eq!((output.status.code(), lines(&output).len()), (Some(1), 1));
    let output = kv("inspect", folder, &[&name(1).to_string(), "--out", "/nowhere/x"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors_of(&output).contains("not intact"), "{}", errors_of(&output));

    let output = kv("fsck", folder, &["--repair", "--json"]);
    assert_eq!(output.status.code(), Some(1), "there was damage");
    let mended: Vec<Value> =
        objects(&output).into_iter().filter(|it| it.get("mended").is_some()).collect();
    assert_eq!((&mended[0]["mended"], &mended[0]["blocks"]), (&"sealed".into(), &12.into()));
    assert_eq!(mended[1]["mended"], "set_aside");
    assert!(folder.join("0000000000000002.segment.damaged").is_file());
    assert_eq!(kv("fsck", folder, &[]).status.code(), Some(0));
    let store = Store::start(folder);
    assert_eq!(store.disk.stats().objects_held, 16);
}

#[test]
fn a_catalog_is_checked_and_made_anew() {
    let folder = stopped();
    let folder = folder.path();
    let output = kv("fsck", folder, &[]);
    assert!(lines(&output)[0].ends_with("the catalog agrees in 2 segments"), "{output:?}");
    fs::remove_dir_all(folder.join("catalog")).expect("a store leaves its catalog");
    let output = kv("fsck", folder, &[]);
    assert_eq!(output.status.code(), Some(0), "a start makes it anew");
    assert!(lines(&output)[0].contains("there is no catalog"), "{output:?}");
    let output = kv("rebuild", folder, &[]);
    let expected = "the catalog is made anew: 3 segments, 30 blocks";
    assert!(lines(&output)[0].starts_with(expected), "{output:?}");
    assert_eq!(objects(&kv("rebuild", folder, &["--json"]))[0]["blocks"], 30);
    // Another store's segment of the same length in the place of the first.
    let other = tempfile::tempdir().expect("a folder for the other store");
    let store = Store::start(other.path());
    store.write(100..130);
    drop(store);
    let segment = "0000000000000001.segment";
    fs::copy(other.path().join(segment), folder.join(segment)).expect("both have a segment");
    let output = kv("fsck", folder, &[]);
    assert_eq!(output.status.code(), Some(1));
    let text = lines(&output);
    assert!(text[0].contains("13 entries without a record, 13 records without"), "{text:?}");
    let found = &objects(&kv("fsck", folder, &["--repair", "--json"]))[0]["catalog"];
    assert_eq!(found["records_without_entry"], 13);
    assert_eq!(kv("fsck", folder, &[]).status.code(), Some(0));
    assert_eq!(Store::start(folder).disk.stats().objects_held, 30);
}

#[test]
fn a_running_store_is_looked_at_and_not_changed() {
    let folder = tempfile::tempdir().expect("a folder for the store");
    let store = Store::start(folder.path());
    store.write(0..20);
    assert_eq!(lines(&kv("ls", folder.path(), &[])).len(), 3);
    assert_eq!(kv("fsck", folder.path(), &["--mib-per-s", "1000"]).status.code(), Some(0));
    for (command, rest) in [("evict", &["--all"][..]), ("fsck", &["--repair"]), ("rebuild", &[])] {
        let output = kv(command, folder.path(), rest);
        let errors = errors_of(&output);
        assert_eq!((output.status.code(), errors.lines().count()), (Some(1), 1), "{errors}");
        assert!(errors.contains("/lock; stop it first"), "{errors}");
    }
    assert_eq!(store.disk.stats().objects_held, 20);
    drop(store);
    assert_eq!(kv("evict", folder.path(), &["--all"]).status.code(), Some(0));
    assert_eq!(lines(&kv("ls", folder.path(), &[])).len(), 1, "the head alone");
}

#[test]
fn a_tenant_is_evicted_from_a_stopped_store() {
    let folder = tempfile::tempdir().expect("a folder for the store");
    let folder = folder.path();
    let tag = |name: &str| TenantId(name.into()).tag();
    {
        let store = Store::start(folder);
        store.write_for(tag("acme"), 0..5);
        store.write_for(tag("other"), 10..13);
    }
    let held = |more: &[&str]| -> Vec<(String, u64)> {
        let tenants = objects(&kv("du", folder, &[&["--tenants", "--json"][..], more].concat()));
        let tenants = tenants.iter().map(|of| {
            let blocks = of["blocks"].as_u64().expect("a number");
            (of["tenant"].as_str().expect("a tag").to_owned(), blocks)
        });
        tenants.collect()
    };
    let mut both = [(tag("acme").to_string(), 5), (tag("other").to_string(), 3)];
    both.sort_unstable();
    assert_eq!(held(&[]), both);
    assert_eq!(held(&["--page", "1"]), both[..1]);
    assert_eq!(held(&["--after", &both[0].0]), both[1..]);
    let output = kv("evict", folder, &["--tenant", "acme"]);
    let text = lines(&output);
    assert!(text[0].starts_with("evicted tenant acme"), "{text:?}");
    assert_eq!(held(&[]), [(tag("other").to_string(), 3)]);
    assert_eq!(objects(&kv("du", folder, &["--json"]))[0]["evicted_blocks"], 5);
    assert_eq!(Store::start(folder).disk.stats().objects_held, 3);
    assert_eq!(kv("rebuild", folder, &[]).status.code(), Some(0));
    assert_eq!(kv("fsck", folder, &[]).status.code(), Some(0));
    assert_eq!(Store::start(folder).disk.stats().objects_held, 3);
    for usage in [&["--tenant", "a", "--all"][..], &["--admin", "http://a", "--tenant", "a"]] {
        assert_eq!(kv("evict", folder, usage).status.code(), Some(2), "{usage:?}");
    }
}

#[test]
fn segments_are_evicted_by_age_and_number() {
    let folder = stopped();
    let folder = folder.path();
    let output = kv("evict", folder, &["--older-than", "48h", "--json"]);
    assert_eq!(objects(&output)[0]["segments"], 0, "{}", errors_of(&output));
    let output = kv("evict", folder, &["--segment", "0000000000000002.segment"]);
    assert!(lines(&output)[0].starts_with("evicted 1 segments: 13 blocks"), "{output:?}");
    let output = kv("evict", folder, &["--segment", "2"]);
    assert!(errors_of(&output).contains("kvasir kv ls shows"), "{}", errors_of(&output));
    for usage in [&[][..], &["--all", "--segment", "1"], &["--older-than", "48"]] {
        assert_eq!(kv("evict", folder, usage).status.code(), Some(2), "{usage:?}");
    }
    assert_eq!(Store::start(folder).disk.stats().objects_held, 17);
    let nowhere = kv("ls", &folder.join("nowhere"), &[]);
    assert!(errors_of(&nowhere).contains("give the folder"), "{}", errors_of(&nowhere));
}

#[test]
fn a_plan_says_whether_it_fits() {
    let plan = |tokens: &str| {
        run(&["kv", "plan", "--bytes", "7.68TB", "--retention", "72h", "--tokens-per-s", tokens])
    };
    let fits = plan("25000");
    assert_eq!(fits.status.code(), Some(0), "{}", errors_of(&fits));
    assert!(lines(&fits).iter().any(|line| line.starts_with("it fits")), "{fits:?}");
    let too_much = plan("100000");
    assert_eq!(too_much.status.code(), Some(1));
    let text = lines(&too_much).join("\n");
    assert!(text.contains("does not fit") && text.contains("take drives of at least"), "{text}");
}
