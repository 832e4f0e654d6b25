//! The state of one forward call.

use std::ops::Range;

use kernels::{Angles, IndexChoice, STREAMS};
use shared::TokenId;

use super::{BlockInput, Layers, Logits, RowPlan, Segment};
use crate::model::Engine;
use crate::rotary::RotaryKind;
use crate::slab::KvSlab;
use crate::trace::Trace;

/// The current rows of one segment.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) segment: usize,
    pub(super) rows: Range<usize>,
}

/// What the layers of one source share about one span: decoded index keys and main entries, and who selected what.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// Index keys of the current KV owner, `[entries, index_dim]`.
    pub(super) keys: Vec<f32>,
    /// Main entries, `[entries, head_dim]`: all of the owner's, or only selected ones.
    pub(super) entries: Vec<f32>,
    /// What the current index owner chose for each row.
    pub(super) choices: Vec<IndexChoice>,
    /// Rows of `entries` that each row attends to.
    pub(super) selected: Vec<Vec<u32>>,
    /// Candidate blocks of each row, from the candidate source on.
    pub(super) candidates: Vec<Vec<u32>>,
}

/// One forward call.
pub(super) struct Pass<'a, 'b> {
    pub(super) engine: &'a Engine,
    pub(super) slab: &'a KvSlab,
    pub(super) segments: &'a mut [Segment<'b>],
    pub(super) trace: &'a mut dyn Trace,
    pub(super) rows: Vec<RowPlan>,
    pub(super) spans: Vec<Span>,
    /// One per span.
    pub(super) views: Vec<View>,
    /// `[rows, STREAMS, hidden]`.
    pub(super) streams: Vec<f32>,
    /// `[rows, STREAMS]`.
    pub(super) pre: Vec<f32>,
    pub(super) plain: Angles,
    pub(super) compressed: Angles,
}

impl<'a, 'b> Pass<'a, 'b> {
    pub(super) fn new(
        engine: &'a Engine,
        slab: &'a KvSlab,
        segments: &'a mut [Segment<'b>],
        trace: &'a mut dyn Trace,
    ) -> Self {
        let mut rows: Vec<RowPlan> = Vec::new();
        let mut spans = Vec::new();
        let mut tokens = Vec::new();
        for (index, segment) in segments.iter().enumerate() {
            let first = rows.len();
            rows.extend_from_slice(segment.rows);
            let ids = segment.sequence.ids();
            tokens.extend(segment.rows.iter().map(|row| ids[row.position as usize]));
            if first < rows.len() {
                spans.push(Span { segment: index, rows: first..rows.len() });
            }
        }
        let streams = embed(engine, &tokens);
        let pre = rows.iter().flat_map(|_| [1.0, 0.0, 0.0, 0.0]).collect();
        let views = vec![View::default(); spans.len()];
        let mut pass = Self {
            engine,
            slab,
            segments,
            trace,
            rows,
            spans,
            views,
            streams,
            pre,
            plain: Angles::default(),
            compressed: Angles::default(),
        };
        pass.turn();
        pass
    }

    /// Replaces the state before `layer` of a pass over one sequence.
    pub(super) fn replace(&mut self, layer: usize, input: BlockInput) {
        assert_eq!((self.spans.len(), input.streams.len()), (1, self.streams.len()));
        self.streams = input.streams;
        self.pre = input.pre;
        let role = self.engine.config.layers[layer];
        let span = self.spans[0].clone();
        let Some(owner) = role.kv_owner.filter(|owner| *owner != layer) else { return };
        let source = *self.source_layout(owner);
        let last = self.rows[span.rows.end - 1].position;
        let visible = ((last + 1) / role.ratio) as usize;
        self.views[0].keys = self.read_keys(&span, &source, visible);
        self.views[0].candidates = input.candidates;
        self.views[0].choices = input.choices;
        self.gather(0, &span, &role, visible);
    }

    /// Recomputes the angles of the current rows.
    fn turn(&mut self) {
        let frequencies = &self.engine.frequencies;
        let positions = || self.rows.iter().map(|row| row.position);
        self.plain = frequencies.angles(RotaryKind::Plain, positions());
        self.compressed = frequencies.angles(RotaryKind::Compressed, positions());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The start of the boundary layer: its global KV for all rows, then only the rows of all layers go on.
    pub(super) fn boundary(&mut self) {
        if self.is_empty() {
            return;
        }
        let engine = self.engine;
        let weights = &engine.weights.boundary;
        let input = self.sublayer_input(&weights.attn_norm);
        self.write_source(engine.config.boundary, &weights.source, &input);
        self.keep_rows();
    }

    /// Drops the encoder-only rows.
    fn keep_rows(&mut self) {
        let kept = |row: &RowPlan| row.layers == Layers::All;
        if self.rows.iter().all(kept) {
            return;
        }
        let width = STREAMS * self.engine.config.hidden;
        let mut streams = Vec::new();
        let mut pre = Vec::new();
        let mut rows = Vec::new();
        let mut spans = Vec::new();
        let mut views = Vec::new();
        for (span, view) in self.spans.iter().zip(self.views.drain(..)) {
            let first = rows.len();
            for row in span.rows.clone().filter(|row| kept(&self.rows[*row])) {
                rows.push(self.rows[row]);
                streams.extend_from_slice(&self.streams[row * width..(row + 1) * width]);
                pre.extend_from_slice(&self.pre[row * STREAMS..(row + 1) * STREAMS]);
            }
            if first < rows.len() {
                spans.push(Span { segment: span.segment, rows: first..rows.len() });
                views.push(view);
            }
        }
        self.rows = rows;
        self.spans = spans;
        self.views = views;
        self.streams = streams;
        self.pre = pre;
        self.turn();
    }

    /// Collapses the streams with the current weights and norms the result: a sub-layer's input.
    pub(super) fn sublayer_input(&mut self, norm: &[f32]) -> Vec<f32> {
        let engine = self.engine;
        let width = engine.config.hidden;
        let mut collapsed = vec![0.0; self.rows.len() * width];
        engine.ops.mhc_collapse(&self.streams, &self.pre, &mut collapsed);
        let mut input = vec![0.0; collapsed.len()];
        engine.ops.rms_norm(&collapsed, norm, engine.config.rms_eps, &mut input);
        input
    }

    /// Logits, and the sequences' new positions.
    pub(super) fn finish(mut self) -> Logits {
        let vocab = self.engine.config.vocab;
        let logits = self.logits();
        for segment in self.segments.iter_mut() {
            let Some(last) = segment.rows.last() else { continue };
            let decoder = segment.rows.iter().find(|row| row.layers == Layers::All);
            segment.sequence.advance(last.position + 1, decoder.map(|row| row.position));
        }
        Logits { values: logits, vocab }
    }

    fn logits(&mut self) -> Vec<f32> {
        let engine = self.engine;
        let wanted: Vec<usize> =
            (0..self.rows.len()).filter(|row| self.rows[*row].logits).collect();
        if wanted.is_empty() {
            return Vec::new();
        }
        let width = STREAMS * engine.config.hidden;
        let mut streams = Vec::with_capacity(wanted.len() * width);
        let mut pre = Vec::with_capacity(wanted.len() * STREAMS);
        for row in &wanted {
            streams.extend_from_slice(&self.streams[row * width..(row + 1) * width]);
            pre.extend_from_slice(&self.pre[row * STREAMS..(row + 1) * STREAMS]);
        }
        self.streams = streams;
        self.pre = pre;
        self.rows = wanted.iter().map(|row| self.rows[*row]).collect();
        let norm = engine.weights.norm.as_ref().expect("rows of all layers need the whole model");
        let head = engine.weights.head.as_ref().expect("rows of all layers need the whole model");
        let hidden = self.sublayer_input(norm);
        let mut logits = vec![0.0; wanted.len() * engine.config.vocab];
        engine.ops.logits(&hidden, head.view(), &mut logits);
        logits
    }
}

/// Embeddings of tokens, repeated over the streams.
fn embed(engine: &Engine, tokens: &[TokenId]) -> Vec<f32> {
    let table = engine.weights.embed.view();
    let mut row = vec![0.0; engine.config.hidden];
    let mut streams = Vec::with_capacity(tokens.len() * STREAMS * row.len());
    for token in tokens {
        table.decode_row(token.index(), &mut row);
        for _ in 0..STREAMS {
            streams.extend_from_slice(&row);
        }
    }
    streams
}
