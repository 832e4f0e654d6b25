//! Per-row work as kernels. A closure would not do: its body is compiled for the baseline instruction set, whatever
//! calls it; a kernel's `run` is inlined into the dispatched function.

use std::marker::PhantomData;

use super::elementwise;
use super::experts;
use super::mhc;
use super::real::Real;
use super::simd::Kernel;
use crate::ops::{EngramGate, HyperConnection, Turn};
use crate::quant;

/// Declares a kernel that calls one function with its fields.
macro_rules! row_kernel {
    ($(#[$doc:meta])* $name:ident<$life:lifetime> calls $function:expr; $($field:ident: $kind:ty),+) => {
        $(#[$doc])*
        pub(super) struct $name<$life, R> {
            $(pub(super) $field: $kind,)+
            pub(super) accumulator: PhantomData<(&$life (), R)>,
        }

        impl<$life, R: Real> Kernel for $name<$life, R> {
            #[inline(always)]
            fn run<const BLOCK: usize>(self) {
                $function($(self.$field),+);
            }
        }
    };
}

row_kernel! {
    /// RMS norm; rows are as long as the weight.
    RmsNorm<'a> calls elementwise::rms_norm::<R>; x: &'a [f32], weight: &'a [f32], eps: f64, out: &'a mut [f32]
}
row_kernel! {
    /// Activations as FP8 sees them.
    FakeQuant<'a> calls quant::fake_quant8; x: &'a [f32], width: usize, out: &'a mut [f32]
}
row_kernel! {
    /// Rotation of one row's vectors.
    Rope<'a> calls elementwise::rope::<R>; vectors: &'a mut [f32], width: usize, angles: &'a [(f64, f64)], turn: Turn
}
row_kernel! {
    /// Pooling of one group.
    Pool<'a> calls elementwise::pool::<R>; keys: &'a [f64], scores: &'a [f64], width: usize, out: &'a mut [f32]
}
row_kernel! {
    /// The Engram gate of one row.
    Engram<'a> calls elementwise::engram::<R>; streams: &'a mut [f32], kv: &'a [f32], gate: EngramGate<'a>
}
row_kernel! {
    /// Mixing weights of one row from its streams and raw projection.
    Split<'a> calls mhc::split_row::<R>; streams: &'a [f32], raw: &'a mut [R], connection: &'a HyperConnection<'a>, out: mhc::RowMixes<'a>
}
row_kernel! {
    /// Collapsed streams of some rows.
    Collapse<'a> calls mhc::collapse::<R>; streams: &'a [f32], pre: &'a [f32], out: &'a mut [f32]
}
row_kernel! {
    /// Streams of some rows after a sub-layer.
    Spread<'a> calls mhc::spread::<R>; y: &'a [f32], post: &'a [f32], comb: &'a [f32], streams: &'a mut [f32]
}
row_kernel! {
    /// Square roots of softplus, in place.
    RouteScores<'a> calls experts::route_scores::<R>; raw: &'a mut [R]
}
row_kernel! {
    /// Activations of one expert's rows, quantised.
    Activate<'a> calls experts::activate_rows::<R>; gate: &'a mut [f32], up: &'a [f32], visits: experts::Visits<'a>, out: &'a mut [f32]
}
