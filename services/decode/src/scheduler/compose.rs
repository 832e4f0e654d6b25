//! What the next step consists of: growth, preemption, decode rows, tail pieces.

use shared::BLOCK_TOKENS;

use crate::scheduler::{Phase, Scheduler, SequenceKey, StepPlan, TailPiece, TailPlan};

pub(super) fn plan(scheduler: &mut Scheduler, step: &mut StepPlan) {
    step.decode.clear();
    step.tails.clear();
    step.preempt.clear();
    select_decoding(scheduler, &mut step.decode);
    grow(scheduler, step);
    cut_tails(scheduler, &mut step.tails);
}

/// All decoding sequences, or, when there are more than a step takes, the next ones in turn.
fn select_decoding(scheduler: &mut Scheduler, decode: &mut Vec<SequenceKey>) {
    let decoding = scheduler.live.iter().filter(|(_, live)| live.phase == Phase::Decoding);
    decode.extend(decoding.map(|(key, _)| *key));
    let rows_max = scheduler.limits.decode_rows_step_max;
    if decode.len() <= rows_max {
        scheduler.cursor = None;
        return;
    }
    let first = decode.partition_point(|key| Some(*key) <= scheduler.cursor);
    decode.rotate_left(first);
    decode.truncate(rows_max);
    scheduler.cursor = decode.last().copied();
    decode.sort_unstable();
}

/// Reserves the block of each planned decode row, oldest first. Without a free block the youngest sequence gives way;
/// until its slots are back the older one sits out.
fn grow(scheduler: &mut Scheduler, step: &mut StepPlan) {
    let leaving = |phase| matches!(phase, Phase::Yielding | Phase::Ending);
    let leavers = scheduler.live.values().filter(|live| leaving(live.phase));
    let mut coming: u32 = leavers.map(|live| live.blocks).sum();
    let selected = std::mem::take(&mut step.decode);
    for key in &selected {
        let live = &scheduler.live[key];
        if live.phase != Phase::Decoding {
            continue;
        }
        if !live.lacks_block() {
            step.decode.push(*key);
            continue;
        }
        if 0 < scheduler.blocks_free() {
            scheduler.blocks_reserved += 1;
            scheduler.live.get_mut(key).expect("selected from the live ones").blocks += 1;
            step.decode.push(*key);
            continue;
        }
        if coming == 0 {
            let youngest = scheduler.live.iter_mut().rev().find(|(_, live)| !leaving(live.phase));
            let (victim, live) = youngest.expect("the growing sequence itself is one");
            live.phase = Phase::Yielding;
            coming = live.blocks;
            step.preempt.push(*victim);
        }
        coming -= 1;
    }
    // A sequence planned above may have given way to an older one only if it is younger, and those come later; the
    // growing sequence itself is not in the list yet. So the list holds decoding sequences alone.
    assert!(step.decode.iter().all(|key| scheduler.live[key].phase == Phase::Decoding));
}

fn cut_tails(scheduler: &Scheduler, tails: &mut Vec<TailPiece>) {
    let mut budget = scheduler.limits.tail_rows_step_max;
    for (key, live) in &scheduler.live {
        let Phase::Tail(tail) = live.phase else { continue };
        // An older tail had the budget first, so a younger, shorter one cannot starve it.
        let Some(to) = piece_end(tail, budget) else { continue };
        tails.push(TailPiece { key: *key, from: tail.next, to });
        budget -= to - tail.next;
    }
}

/// Where the next piece of a tail ends, given that at most `rows_max` rows may be computed; none when the piece would
/// end inside a block before the end of the tail.
pub(super) fn piece_end(tail: TailPlan, rows_max: u32) -> Option<u32> {
    let wished = if tail.next < tail.fine_from {
        tail.fine_from
    } else {
        (tail.next + 1).next_multiple_of(BLOCK_TOKENS).min(tail.end)
    };
    if wished - tail.next <= rows_max {
        return Some(wished);
    }
    let cut = (tail.next + rows_max) / BLOCK_TOKENS * BLOCK_TOKENS;
    (tail.next < cut).then_some(cut)
}
