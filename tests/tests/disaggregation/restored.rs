//! Stored, the process gone, restored: equal bytes, equal logits.
//!
//! The first process is a child: this test executable once more, with a prefill worker, a decode worker and a store over a
//! disk. It is killed with SIGKILL when its blocks are durable, so that the files of the disk are all that is left of it. The
//! second process is the test itself, with everything started anew over those files. Window objects never go to disk, so
//! that windows are replayed; the lineage is exact, so that nobody can tell.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use engine::{Arithmetic, Engine, Floors};
use kvstore::{DiskConfig, DiskTier, DiskWiring};
use shared::{
    BLOCK_TOKENS, BlockName, BlockStore, DecodeRequest, Flow, Grouped, Lineage, LocateEvent,
    ManualClock, ObjectKey, ObjectKind, RequestContext, TokenId, WindowSource, block_names,
};

use super::cluster::{Cluster, Engines, Object, request};
use super::cold::SAMPLED;
use super::hits::reported;
use super::lane::{Alone, Lane, bits};
use super::models::{Model, noise, text};

const ANSWER_TOKENS: u32 = 8;
/// More than a flush or a lookup takes.
const DISK_WAIT: Duration = Duration::from_secs(60);
/// What a child is started with besides its own name.
const CHILD: &str = "as-the-process-that-is-killed";
const CHILD_TEST: &str = "disaggregation::restored::a_child_stores_and_waits_for_its_end";
const MODELS: [Model; 2] = [Model::TinyW, Model::Seedling];

/// The request of both processes.
fn asked(model: Model, engine: &Engine) -> DecodeRequest {
    let prompt = match model {
        Model::TinyW => noise(engine, 1, 730),
        Model::Seedling => text(900),
    };
    let asked = request(9, Lineage::Exact, &prompt, ANSWER_TOKENS);
    DecodeRequest { sampling: SAMPLED, ..asked }
}

/// Segments of some blocks each, so that several files are there.
fn open_disk(engine: &Engine, folder: &Path) -> Arc<DiskTier> {
    let layout = engine.layout();
    let block_bytes = layout.block_bytes();
    let segment_bytes = u64::try_from(4 * block_bytes).unwrap().next_multiple_of(1 << 16);
    let config = DiskConfig {
        segment_bytes,
        bytes_max: 512 * segment_bytes,
        onboard_ms_max: 60_000,
        ..DiskConfig::in_folder(folder.to_owned())
    };
    let wiring = DiskWiring {
        block_bytes,
        layout: layout.fingerprint(),
        numerics: engine.numerics(),
        clock: Arc::new(ManualClock::new()),
        quotas: Arc::default(),
    };
    Arc::new(DiskTier::start(&config, wiring).unwrap())
}

#[test]
fn a_child_stores_and_waits_for_its_end() {
    // In an ordinary run of the tests there is no parent, so there is nothing to do.
    if !env::args().any(|argument| argument == CHILD) {
        return;
    }
    let mut input = BufReader::new(std::io::stdin());
    let mut line = || {
        let mut line = String::new();
        input.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    let (model, folder) = (MODELS[line().parse::<usize>().unwrap()], PathBuf::from(line()));
    let engines = Engines::load(model, Arithmetic::Exact);
    let disk = open_disk(&engines.decode, &folder);
    let cluster = Cluster::start_over(&engines, Arc::clone(&disk));
    let answer = cluster.answer(&asked(model, &engines.decode));
    cluster.rest();
    assert!(disk.flush(DISK_WAIT));
    let tokens: Vec<String> = answer.tokens.iter().map(|token| token.0.to_string()).collect();
    println!("\ndurable {}", tokens.join(" "));
    // Until the kill: the standard input stays open.
    let _end = std::io::stdin().read(&mut [0]);
}

/// The tokens of the answer of a process that stored its blocks and was killed then.
fn store_in_another_process(model: usize, folder: &Path) -> Vec<TokenId> {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", CHILD_TEST, CHILD, "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(format!("{model}\n{}\n", folder.display()).as_bytes()).unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let durable = lines.find_map(|line| Some(line.unwrap().strip_prefix("durable ")?.to_owned()));
    let durable = durable.expect("the child stores; see its errors above");
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "it was killed");
    durable.split_whitespace().map(|token| TokenId(token.parse().unwrap())).collect()
}

/// Brings blocks from the disk to host memory and gives those that are there.
fn restore(cluster: &Cluster, names: &[BlockName]) -> Vec<Option<Object>> {
    let keys = names.iter().map(|name| ObjectKey { kind: ObjectKind::Block, name: *name });
    let (sender, events) = channel::<LocateEvent>();
    let sink = move |event| if sender.send(event).is_ok() { Flow::Open } else { Flow::Closed };
    let keys = keys.map(Grouped::<ObjectKey>::alone).collect();
    let _pins = cluster.host.locate(RequestContext::NONE, keys, Box::new(sink));
    let found = events.recv_timeout(DISK_WAIT).expect("an answer comes").found;
    assert_eq!(found.len(), names.len());
    let object = |name: &BlockName| cluster.store.object(ObjectKind::Block, *name);
    names.iter().zip(found).map(|(name, found)| found.ok().and_then(|_| object(name))).collect()
}

/// Logits from restored blocks: windows replayed below the boundary, the tail and the answer computed behind it.
fn logits_restored(engine: &Engine, alone: &Alone<'_>, blocks: &[Object]) -> Vec<Vec<u32>> {
    let prompt = prompt_of(alone);
    let length = u32::try_from(prompt.len()).unwrap();
    let geometry = engine.geometry();
    let start = geometry.boundary(length);
    let rows = geometry.exact_replay_rows().min(start);
    let mut lane = Lane::of_prompt(engine, prompt, prompt.len() + alone.tokens.len());
    lane.floors = Floors { window: start - rows, write: start, ..lane.floors };
    for (index, block) in (0..).zip(blocks) {
        lane.put_block(index, &block.bytes);
    }
    lane.sequence.begin(start - rows);
    go_on(&mut lane, length, &alone.tokens)
}

/// The same of a sequence that computes everything by itself.
fn logits_cold(engine: &Engine, alone: &Alone<'_>) -> Vec<Vec<u32>> {
    let prompt = prompt_of(alone);
    let mut lane = Lane::of_prompt(engine, prompt, prompt.len() + alone.tokens.len());
    go_on(&mut lane, u32::try_from(prompt.len()).unwrap(), &alone.tokens)
}

fn go_on(lane: &mut Lane<'_>, length: u32, tokens: &[TokenId]) -> Vec<Vec<u32>> {
    let mut logits = bits(&lane.run_to(length));
    for (end, token) in (length + 1..).zip(tokens) {
        lane.sequence.push(*token);
        logits.extend(bits(&lane.run_to(end)));
    }
    logits
}

fn prompt_of<'a>(alone: &'a Alone<'_>) -> &'a [TokenId] {
    let ids = alone.lane.sequence.ids();
    &ids[..ids.len() - alone.tokens.len()]
}

fn check(number: usize) {
    let model = MODELS[number];
    let folder = tempfile::tempdir().unwrap();
    let stored = store_in_another_process(number, folder.path());
    let engines = Engines::load(model, Arithmetic::Exact);
    let asked = asked(model, &engines.decode);
    let alone = Alone::answer(&engines.decode, &asked.prompt, &asked.sampling, ANSWER_TOKENS);
    assert_eq!(stored, alone.tokens, "{model:?}: the first process");

    let disk = open_disk(&engines.decode, folder.path());
    let cluster = Cluster::start_over(&engines, Arc::clone(&disk));
    let names = block_names(&asked.root, &asked.prompt);
    let geometry = engines.decode.geometry();
    let start = geometry.boundary(u32::try_from(asked.prompt.len()).unwrap());
    let attached = usize::try_from(start / BLOCK_TOKENS).unwrap();
    assert!(3 <= attached && attached <= names.len());
    // Of bytes: every block, those behind the boundary too.
    let restored = restore(&cluster, &names);
    for (index, block) in (0..).zip(&restored) {
        let expected = Object { bytes: alone.lane.block(index), exact: true };
        assert!(block.as_ref() == Some(&expected), "{model:?}: block {index}");
    }
    let read = disk.stats().read;
    assert_eq!(read, u64::try_from(names.len()).unwrap(), "{model:?}: all came from the disk");

    let blocks: Vec<Object> = restored.into_iter().take(attached).flatten().collect();
    let cold = logits_cold(&engines.decode, &alone);
    let warm = logits_restored(&engines.decode, &alone, &blocks);
    assert!(cold == warm, "{model:?}: logits behind restored blocks");

    let answer = cluster.answer(&asked);
    cluster.rest();
    cluster.check(&asked, &answer, &alone);
    let rows = geometry.exact_replay_rows().min(start);
    let expected = (start, rows, WindowSource::Replayed(rows));
    assert_eq!(reported(&answer.start), expected, "{model:?}");
}

#[test]
fn blocks_of_a_killed_process_give_the_bytes_and_logits_of_a_cold_run_with_short_windows() {
    check(0);
}

#[test]
fn blocks_of_a_killed_process_give_the_bytes_and_logits_of_a_cold_run() {
    check(1);
}
