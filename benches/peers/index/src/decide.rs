//! A whole decision: `Router::submit`, names given, with reports and events as they come in life.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use router::{Action, Role, Router, RouterConfig};
use shared::{
    CacheChange, CacheEvent, PlaceRequest, Priority, RequestId, StartGeometry, TenantId, Tier,
    Timestamp, WorkerEvent, WorkerRank,
};

use crate::indexes::{names, rank};
use crate::micros;
use crate::trace::{each_request, mix};

/// Requests that run at a time for each worker.
const RUNNING: usize = 4;

/// In which order workers tell of a request's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// That of the chain, as they seal them.
    Chain,
    /// That of their names, as they did before.
    Names,
}

/// Half of the workers prefill, half decode. The last column is a hash over all placements and their reasons: equal for equal
/// decisions.
pub fn run(trace: &str, order: Order, fleets: &[u32]) -> Result<()> {
    println!(
        "| workers | decisions | until it is told: p50 / p90 / p99 / p99.9 us | with what is booked behind it | checksum |"
    );
    println!("|---|---|---|---|---|");
    for &workers in fleets {
        let (times, checksum) = decisions(trace, workers, order)?;
        let told = figures(times.iter().map(|time| time.told).collect());
        let whole = figures(times.iter().map(|time| time.whole).collect());
        println!("| {workers} | {} | {told} | {whole} | {checksum:016x} |", times.len());
    }
    Ok(())
}

fn figures(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |thousandth: usize| micros(times[(times.len() - 1) * thousandth / 1_000]);
    [at(500), at(900), at(990), at(999)].join(" / ")
}

/// How long one decision took.
struct Taken {
    /// Until the placement was there.
    told: Duration,
    /// Until the router was done with it: its thread ticks once it has told.
    whole: Duration,
}

fn decisions(trace: &str, workers: u32, order: Order) -> Result<(Vec<Taken>, u64)> {
    let geometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 20 };
    let mut config = RouterConfig::with_defaults(geometry);
    config.workers_max = 1_024;
    config.index_entries_max = 100_000_000;
    config.expected_blocks_max = 2_000_000;
    let mut router = Router::new(config)?;
    for worker in 0..workers {
        let role = if worker % 2 == 0 { Role::Decode } else { Role::Prefill };
        router.worker_joined(rank(worker), role, Timestamp(0))?;
    }
    let mut requests = Vec::new();
    each_request(trace, |blocks| requests.push(names(blocks)))?;
    let mut sequences = vec![0_u64; usize::try_from(workers)?];
    let mut running = std::collections::VecDeque::new();
    let (mut times, mut checksum) = (Vec::new(), 0);
    for (number, names) in (0_u64..).zip(requests) {
        let now = Timestamp(number * 20_000_000);
        let request = PlaceRequest {
            id: RequestId(u128::from(number)),
            tenant: TenantId("tenant".into()),
            prompt_tokens: u32::try_from(names.len() * 128)?,
            names: names.into(),
            output_tokens_max: 100,
            deadline: None,
            priority: Priority::Normal,
            session: None,
            excluded: Vec::new(),
        };
        let names = std::sync::Arc::clone(&request.names);
        let start = Instant::now();
        let actions = router.submit(request, now);
        let told = start.elapsed();
        router.tick(now);
        times.push(Taken { told, whole: start.elapsed() });
        let placed = actions.iter().find_map(|action| match action {
            Action::Place { placement, .. } => {
                let of = |checksum, &byte: &u8| mix(checksum ^ u64::from(byte));
                checksum = placement.reason.as_bytes().iter().fold(checksum, of);
                Some((placement.decode, placement.prefill))
            }
            _ => None,
        });
        ensure!(placed.is_some(), "request {number} was not placed: {actions:?}");
        running.push_back((RequestId(u128::from(number)), names, placed));
        if RUNNING * usize::try_from(workers)? / 2 < running.len() {
            let (id, names, placed) = running.pop_front().expect("some run");
            router.finished(id, now);
            let Some((decode, prefill)) = placed else { continue };
            for worker in [Some(decode), prefill].into_iter().flatten() {
                tell(&mut router, worker, &names, (&mut sequences, order, now));
            }
        }
    }
    Ok((times, checksum))
}

fn tell(
    router: &mut Router,
    worker: WorkerRank,
    names: &[shared::BlockName],
    (sequences, order, now): (&mut [u64], Order, Timestamp),
) {
    let next = &mut sequences[usize::try_from(worker.worker.0).expect("small")];
    let sequence = *next;
    *next += 1;
    let mut names = names.to_vec();
    if order == Order::Names {
        names.sort_unstable();
    }
    let change = CacheChange::Stored { tier: Tier::Device, names };
    let event = CacheEvent { worker, incarnation: 1, sequence, change };
    router.worker_event(&WorkerEvent::Cache(event), now);
}
