//! Why a request goes where it goes, in one line for people. Each decision has one, so it is put together without the machinery of
//! formats, which takes several times as long.

use shared::WorkerRank;

use crate::cost::Prompt;
use crate::nanos::Nanos;
use crate::place::DecodeStart;
use crate::policy::Policy;
use crate::records::PlacementKind;

/// The reason of a choice.
pub(crate) fn reason(start: &DecodeStart, prompt: Prompt, policy: Policy) -> String {
    let DecodeStart { worker: decode, cached_tokens, expected_tokens, cost, .. } = start;
    let (tokens, boundary) = (u64::from(prompt.tokens), u64::from(prompt.boundary));
    let mut line = Line(String::with_capacity(256));
    line.text(policy.as_str()).text(": decode ").worker(*decode).text(", ");
    match (start.kind, start.prefill) {
        (PlacementKind::ShortPrompt, _) => {
            line.text("direct, ").number(tokens).text(" tokens are too few for prefill")
        }
        (PlacementKind::AllCached, _) => {
            line.text("direct, all of [0, ").number(boundary).text(") is cached")
        }
        (PlacementKind::NoPrefillWorker, _) => line.text("direct, no prefill worker is a member"),
        (PlacementKind::PrefillBusy, _) => line.text("direct, every prefill worker is busy"),
        (PlacementKind::DirectCheaper, _) => line.text("direct, cheaper than visiting prefill"),
        (PlacementKind::Disaggregated, Some(prefill)) => line.text("prefill ").worker(prefill),
        (PlacementKind::Disaggregated, None) => unreachable!("this kind names its prefill worker"),
    };
    line.text("; ").number(u64::from(*cached_tokens)).text(" of ").number(boundary);
    line.text(" tokens cached");
    if *expected_tokens != 0 {
        line.text(", ").number(u64::from(*expected_tokens)).text(" of them only expected");
    }
    line.text(", ").tenths(cost.total()).text(" ms = queue ");
    line.tenths(cost.prefill_queue.plus(cost.decode_queue));
    let terms = [
        (" + restore ", cost.restore),
        (" + recompute ", cost.recompute),
        (" + hand-off ", cost.handoff),
        (" + tail ", cost.tail),
        (" + interference ", cost.interference),
    ];
    for (name, time) in terms {
        line.text(name).tenths(time);
    }
    line.0
}

/// A line in the making.
struct Line(String);

impl Line {
    fn text(&mut self, text: &str) -> &mut Self {
        self.0.push_str(text);
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        let (mut digits, mut begin, mut left) = ([b'0'; 20], 20, number);
        loop {
            begin -= 1;
            digits[begin] += u8::try_from(left % 10).expect("a digit");
            left /= 10;
            if left == 0 {
                break;
            }
        }
        self.text(str::from_utf8(&digits[begin..]).expect("digits"))
    }

    /// As `Display` has it.
    fn worker(&mut self, worker: WorkerRank) -> &mut Self {
        self.number(u64::from(worker.worker.0)).text(".").number(u64::from(worker.rank.0))
    }

    /// A time in milliseconds, with tenths.
    fn tenths(&mut self, time: Nanos) -> &mut Self {
        let tenths = time.plus(Nanos(50_000)).0 / 100_000;
        self.number(tenths / 10).text(".").number(tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::Line;
    use crate::nanos::Nanos;
    use crate::testing::rank;

    #[test]
    fn a_line_is_written_as_formats_write_it() {
        for number in [0, 7, 10, 1_234_567_890, u64::MAX] {
            let mut line = Line(String::new());
            line.number(number);
            assert_eq!(line.0, number.to_string());
        }
        for (nanos, shown) in
            [(0, "0.0"), (49_999, "0.0"), (50_000, "0.1"), (1_234_567_890, "1234.6")]
        {
            let mut line = Line(String::new());
            line.tenths(Nanos(nanos));
            assert_eq!(line.0, shown);
        }
        let mut line = Line(String::new());
        line.worker(rank(17));
        assert_eq!(line.0, rank(17).to_string());
    }
}
