use shared::{ServeError, Timestamp};

use super::{
    Arrival, Scheduler, SchedulerLimits, SequenceKey, Stage, StepPlan, TailPiece, TailPlan,
};

const LIMITS: SchedulerLimits = SchedulerLimits {
    blocks_max: 8,
    sequences_max: 4,
    waiting_max: 3,
    decode_rows_step_max: 2,
    tail_rows_step_max: 256,
    context_tokens_max: 2_000,
};

type Planned = (Vec<u64>, Vec<(u64, u32, u32)>, Vec<u64>);

struct Bench {
    scheduler: Scheduler,
    step: StepPlan,
}

impl Bench {
    fn new(limits: SchedulerLimits) -> Self {
        Self { scheduler: Scheduler::new(limits), step: StepPlan::default() }
    }

    fn submit(&mut self, key: u64, tokens: u32, tokens_max: u32) -> Result<(), ServeError> {
        let tokens_max = self.scheduler.bound(tokens, tokens_max)?;
        let key = SequenceKey(key);
        self.scheduler.submit(Arrival { key, tokens, tokens_max, deadline: None })
    }

    /// Submits, admits and starts a sequence whose whole prompt is its tail.
    fn begin(&mut self, key: u64, tokens: u32, tokens_max: u32) {
        self.submit(key, tokens, tokens_max).unwrap();
        assert_eq!(self.scheduler.admit(), Some(SequenceKey(key)));
        let tail = TailPlan { next: 0, end: tokens, fine_from: 0 };
        self.scheduler.started(SequenceKey(key), tail);
    }

    /// Decode rows, tail pieces (key, from, to), and who gives way.
    fn plan(&mut self) -> Planned {
        self.scheduler.plan(&mut self.step);
        let keys = |keys: &[SequenceKey]| keys.iter().map(|key| key.0).collect();
        let tails = self.step.tails.iter().map(|t| (t.key.0, t.from, t.to)).collect();
        (keys(&self.step.decode), tails, keys(&self.step.preempt))
    }

    fn commit(&mut self) {
        for piece in self.step.tails.clone() {
            self.scheduler.tail_computed(piece);
        }
        for key in self.step.decode.clone() {
            self.scheduler.decoded(key);
        }
    }

    /// Runs steps until the sequence decodes.
    fn decode(&mut self, key: u64) {
        for _ in 0..32 {
            if self.scheduler.stage(SequenceKey(key)) == Some(Stage::Decoding) {
                return;
            }
            self.plan();
            self.commit();
        }
        panic!("sequence {key} never decoded");
    }
}

#[test]
fn a_full_queue_rejects_and_tells_its_bound() {
    let mut bench = Bench::new(LIMITS);
    for key in 0..3 {
        bench.submit(key, 10, 20).unwrap();
    }
    let refused = bench.submit(3, 10, 20);
    assert!(
        matches!(refused, Err(ServeError::Overloaded { waiting: 3, waiting_max: 3, .. })),
        "{refused:?}"
    );
}

#[test]
fn what_can_never_fit_is_refused_and_answers_are_bounded_by_all_three_limits() {
    let bench = Bench::new(LIMITS);
    let bound = |tokens, tokens_max| bench.scheduler.bound(tokens, tokens_max);
    assert_eq!(bound(1_024, 1_024 + 5), Ok(1_025), "eight blocks hold 1,024 processed tokens");
    assert_eq!(bound(1_025, 1_030), Err(ServeError::NeverFits { slots: 9, slots_max: 8 }));
    assert_eq!(bound(10, 20), Ok(20));
    let roomy = Scheduler::new(SchedulerLimits { blocks_max: 100, ..LIMITS });
    assert_eq!(roomy.bound(10, 10_000), Ok(2_000));
    assert_eq!(
        roomy.bound(2_000, 10_000),
        Err(ServeError::TooLong { tokens: 2_001, tokens_max: 2_000 })
    );
}

#[test]
fn admission_reserves_the_prompt_and_one_block_and_nobody_overtakes() {
    let mut bench = Bench::new(LIMITS);
    bench.submit(0, 300, 2_000).unwrap();
    bench.submit(1, 500, 2_000).unwrap();
    bench.submit(2, 1, 2_000).unwrap();
    assert_eq!(bench.scheduler.admit(), Some(SequenceKey(0)));
    assert_eq!(bench.scheduler.blocks_reserved(), 4);
    assert_eq!(bench.scheduler.admit(), None, "1 needs 5 of 4 free blocks; 2 stays behind it");
    assert!(bench.scheduler.end(SequenceKey(0)));
    assert_eq!(bench.scheduler.admit(), None, "slots are not back yet");
    bench.scheduler.released(SequenceKey(0));
    assert_eq!(bench.scheduler.admit(), Some(SequenceKey(1)));
    assert_eq!(bench.scheduler.admit(), Some(SequenceKey(2)));
    assert_eq!(bench.scheduler.blocks_reserved(), 5 + 2);
}

#[test]
fn a_short_answer_reserves_no_more_than_it_can_fill() {
    let mut bench = Bench::new(LIMITS);
    bench.begin(0, 100, 129);
    assert_eq!(bench.scheduler.blocks_of(SequenceKey(0)), 1, "128 rows fill one block");
    bench.begin(1, 128, 129);
    assert_eq!(bench.scheduler.blocks_of(SequenceKey(1)), 1);
    bench.begin(2, 128, 130);
    assert_eq!(bench.scheduler.blocks_of(SequenceKey(2)), 2);
}

#[test]
fn tail_pieces_end_at_boundaries_within_the_budget_oldest_first() {
    let cases = [
        // next, end, fine_from, budget -> piece end
        (0, 100, 0, 256, Some(100)),
        (0, 300, 0, 256, Some(128)),
        (0, 1_000, 768, 256, Some(256)),
        (0, 1_000, 768, 800, Some(768)),
        (100, 1_000, 768, 256, Some(256)),
        (768, 1_000, 768, 256, Some(896)),
        (896, 1_000, 768, 256, Some(1_000)),
        (896, 1_000, 768, 100, None),
        (100, 1_000, 768, 27, None),
        (100, 1_000, 768, 28, Some(128)),
    ];
    for (next, end, fine_from, budget, expected) in cases {
        let tail = TailPlan { next, end, fine_from };
        assert_eq!(super::compose::piece_end(tail, budget), expected, "{tail:?} in {budget}");
    }
    let mut bench = Bench::new(LIMITS);
    bench.begin(0, 200, 300);
    bench.begin(1, 300, 400);
    bench.begin(2, 20, 30);
    assert_eq!(bench.plan().1, [(0, 0, 128), (1, 0, 128)]);
    bench.commit();
    assert_eq!(bench.plan().1, [(0, 128, 200), (1, 128, 256), (2, 0, 20)]);
}

#[test]
fn decode_rows_rotate_when_there_are_too_many() {
    let mut bench = Bench::new(LIMITS);
    for key in 0..3 {
        bench.begin(key, 10, 100);
    }
    bench.decode(2);
    let rounds: Vec<_> = (0..3)
        .map(|_| {
            let planned = bench.plan().0;
            bench.commit();
            planned
        })
        .collect();
    assert_eq!(rounds, [vec![0, 1], vec![0, 2], vec![1, 2]]);
}

#[test]
fn without_a_free_block_the_youngest_gives_way_and_resumes_before_new_ones() {
    let mut bench = Bench::new(SchedulerLimits { blocks_max: 4, ..LIMITS });
    bench.begin(0, 127, 400);
    bench.begin(1, 127, 400);
    bench.decode(0);
    bench.decode(1);
    for _ in 0..129 {
        assert_eq!(bench.plan().2, [0_u64; 0]);
        bench.commit();
    }
    let tokens = bench.scheduler.tokens(SequenceKey(1)).unwrap();
    let (decode, _, preempt) = bench.plan();
    assert_eq!((decode, preempt), (vec![], vec![1]), "0 waits for the blocks of 1");
    assert_eq!(bench.plan().2, [0_u64; 0], "nobody else gives way while they are on their way");
    bench.scheduler.released(SequenceKey(1));
    bench.submit(2, 1, 2).unwrap();
    assert_eq!(bench.plan().0, [0]);
    bench.commit();
    assert_eq!(bench.scheduler.admit(), None, "1 stands before 2");
    assert_eq!(bench.scheduler.stage(SequenceKey(1)), Some(Stage::Preempted));
    bench.scheduler.end(SequenceKey(0));
    bench.scheduler.released(SequenceKey(0));
    assert_eq!(bench.scheduler.admit(), Some(SequenceKey(1)));
    assert_eq!(bench.scheduler.tokens(SequenceKey(1)), Some(tokens));
}

#[test]
fn a_sequence_alone_always_grows_to_its_bound() {
    let mut bench = Bench::new(SchedulerLimits { blocks_max: 2, ..LIMITS });
    bench.begin(0, 100, 100_000);
    bench.decode(0);
    while bench.scheduler.tokens(SequenceKey(0)) < Some(257) {
        assert_eq!(bench.plan(), (vec![0], vec![], vec![]));
        bench.commit();
    }
}

#[test]
fn deadlines_are_seen_wherever_a_sequence_is() {
    let mut bench = Bench::new(LIMITS);
    for key in 0..3 {
        bench
            .scheduler
            .submit(Arrival {
                key: SequenceKey(key),
                tokens: 300,
                tokens_max: 310,
                deadline: Some(Timestamp(10 + key)),
            })
            .unwrap();
    }
    bench.scheduler.admit();
    bench.scheduler.admit();
    let tail = TailPlan { next: 0, end: 300, fine_from: 128 };
    bench.scheduler.started(SequenceKey(1), tail);
    let mut expired = Vec::new();
    bench.scheduler.expired(Timestamp(9), &mut expired);
    assert_eq!(expired, []);
    bench.scheduler.expired(Timestamp(12), &mut expired);
    expired.sort_unstable_by_key(|(key, _)| *key);
    assert_eq!(
        expired,
        [
            (SequenceKey(0), Stage::Starting),
            (SequenceKey(1), Stage::Tail),
            (SequenceKey(2), Stage::Queued)
        ]
    );
}

#[test]
fn pending_rows_count_what_was_accepted_and_not_computed() {
    let mut bench = Bench::new(LIMITS);
    bench.begin(0, 300, 310);
    bench.submit(1, 50, 60).unwrap();
    assert_eq!(bench.scheduler.pending_rows(), 350);
    bench.plan();
    bench.commit();
    assert_eq!(bench.scheduler.pending_rows(), 222);
    bench.scheduler.end(SequenceKey(1));
    assert_eq!(bench.scheduler.pending_rows(), 172);
}

#[test]
#[should_panic(expected = "piece")]
fn a_piece_that_was_not_planned_is_a_broken_invariant() {
    let mut bench = Bench::new(LIMITS);
    bench.begin(0, 300, 310);
    bench.decode(0);
    bench.scheduler.tail_computed(TailPiece { key: SequenceKey(0), from: 0, to: 128 });
}

#[test]
fn a_held_sequence_is_not_planned_until_its_token_is_drawn() {
    let mut bench = Bench::new(LIMITS);
    bench.begin(0, 100, 500);
    bench.begin(1, 100, 500);
    let (_, tails, _) = bench.plan();
    assert_eq!(tails, [(0, 0, 100), (1, 0, 100)]);
    // Behind its tail the first waits for a mask, the second draws.
    let [first, second] = [0, 1].map(|at| bench.step.tails[at]);
    bench.scheduler.hold(first.key, Some(first));
    bench.scheduler.tail_computed(second);
    assert_eq!(bench.scheduler.tokens(SequenceKey(0)), Some(100));
    assert_eq!(bench.plan().0, [1]);
    bench.scheduler.hold(SequenceKey(1), None);
    assert!(!bench.scheduler.has_rows());
    assert_eq!(bench.scheduler.stage(SequenceKey(0)), Some(Stage::Decoding));
    bench.scheduler.drawn(SequenceKey(0));
    assert_eq!(bench.scheduler.tokens(SequenceKey(0)), Some(101));
    assert_eq!(bench.plan().0, [0]);
    bench.commit();
    bench.scheduler.drawn(SequenceKey(1));
    assert_eq!(bench.plan().0, [0, 1]);
}

#[test]
fn a_held_sequence_gives_way_like_any_other() {
    let mut bench = Bench::new(SchedulerLimits { blocks_max: 4, ..LIMITS });
    bench.begin(0, 120, 500);
    bench.begin(1, 120, 500);
    bench.plan();
    for piece in bench.step.tails.clone() {
        bench.scheduler.hold(piece.key, Some(piece));
    }
    bench.scheduler.drawn(SequenceKey(0));
    let mut gave_way = Vec::new();
    for _ in 0..200 {
        gave_way = bench.plan().2;
        if !gave_way.is_empty() {
            break;
        }
        bench.commit();
    }
    assert_eq!(gave_way, [1], "the older one needs its block");
    bench.scheduler.released(SequenceKey(1));
    assert_eq!(bench.scheduler.stage(SequenceKey(1)), Some(Stage::Preempted));
}
