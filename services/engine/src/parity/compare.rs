//! Comparisons and what they found.

/// Collects measures and failures of one case.
#[derive(Debug, Default)]
pub(super) struct Findings {
    measures: Vec<String>,
    failures: Vec<String>,
    lists: usize,
}

/// Failures shown of one case; more of them tell nothing new.
const FAILURES_SHOWN_MAX: usize = 6;

impl Findings {
    /// Notes a measure with its bound.
    pub(super) fn at_most(&mut self, what: &str, found: f64, bound: f64) {
        self.measures.push(format!("{what} {found:.2e}"));
        if bound < found || found.is_nan() {
            self.failures.push(format!("{what} is {found:.3e}, at most {bound:.1e} is accepted"));
        }
    }

    /// Demands closeness of one of many values; only a failure is shown.
    pub(super) fn within(&mut self, what: &str, found: f64, bound: f64) {
        self.lists += 1;
        if bound < found || found.is_nan() {
            self.failures.push(format!("{what} is off by {found:.3e}, {bound:.1e} is accepted"));
        }
    }

    /// Notes a share with its bound.
    pub(super) fn at_least(&mut self, what: &str, found: f64, bound: f64) {
        self.measures.push(format!("{what} {found:.4}"));
        if found < bound || found.is_nan() {
            self.failures.push(format!("{what} is {found:.4}, at least {bound:.4} is accepted"));
        }
    }

    /// Demands equality of two lists.
    pub(super) fn equal<T: PartialEq + std::fmt::Debug>(
        &mut self,
        what: &str,
        found: &[T],
        expected: &[T],
    ) {
        self.lists += 1;
        if found.len() != expected.len() {
            let lengths = (found.len(), expected.len());
            self.failures
                .push(format!("{what} has {} elements, expected {}", lengths.0, lengths.1));
        } else if let Some(index) = (0..found.len()).find(|index| found[*index] != expected[*index])
        {
            let differing = found.iter().zip(expected).filter(|(a, b)| a != b).count();
            self.failures.push(format!(
                "{what} differs in {differing} of {} elements, first at {index}: {:?}, expected {:?}",
                found.len(),
                found[index],
                expected[index]
            ));
        }
    }

    /// Passed or not, and the line to show.
    pub(super) fn finish(mut self) -> (bool, String) {
        if self.failures.is_empty() {
            if 0 < self.lists {
                self.measures.push(format!("{} lists equal", self.lists));
            }
            return (true, self.measures.join(", "));
        }
        let more = self.failures.len().saturating_sub(FAILURES_SHOWN_MAX);
        self.failures.truncate(FAILURES_SHOWN_MAX);
        let mut detail = self.failures.join("; ");
        if 0 < more {
            detail.push_str(&format!("; and {more} more"));
        }
        (false, detail)
    }
}

/// Largest absolute difference; infinite when lengths differ.
pub(super) fn max_abs(found: &[f32], expected: &[f32]) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let pairs = found.iter().zip(expected);
    pairs.map(|(a, b)| f64::from((a - b).abs())).fold(0.0, |max, d| if d <= max { max } else { d })
}

/// Relative L2 distance of one vector.
pub(super) fn relative_l2(found: &[f32], expected: &[f32]) -> f64 {
    let square = |value: f32| f64::from(value) * f64::from(value);
    let difference: f64 = found.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    let size: f64 = expected.iter().map(|value| square(*value)).sum();
    (difference / size.max(f64::MIN_POSITIVE)).sqrt()
}

/// Mean over rows of the relative L2 distance.
pub(super) fn mean_relative_l2(found: &[f32], expected: &[f32], width: usize) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let rows = found.chunks_exact(width).zip(expected.chunks_exact(width));
    rows.map(|(a, b)| relative_l2(a, b)).sum::<f64>() / (found.len() / width).max(1) as f64
}

/// Share of rows whose largest element is at the same place.
pub(super) fn argmax_agreement(found: &[f32], expected: &[f32], width: usize) -> f64 {
    let rows = found.chunks_exact(width).zip(expected.chunks_exact(width));
    let equal = rows.filter(|(a, b)| argmax(a) == argmax(b)).count();
    equal as f64 / (found.len() / width).max(1) as f64
}

/// Index of the first largest element.
pub(super) fn argmax(row: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in row.iter().enumerate() {
        if row[best] < *value {
            best = index;
        }
    }
    best
}

/// Share of equal elements.
pub(super) fn equal_share<T: PartialEq>(found: &[T], expected: &[T]) -> f64 {
    let equal = found.iter().zip(expected).filter(|(a, b)| a == b).count();
    equal as f64 / expected.len().max(1) as f64
}
