//! Checks over the whole repository, and the real binary seen from outside.
//!
//! One integration binary with a module per subject: [`architecture`] and [`tidy`] hold the rules that no lint can
//! hold, [`disaggregation`] compares clusters built from the crates with one sequence run alone, [`exactness`] asks the
//! same of all roles as the binary wires them, [`structured`] follows grammars, [`end_to_end`] starts `kvasir` as a user would. Helpers: [`repository`],
//! [`source`], [`process`], [`http`].

mod architecture;
mod disaggregation;
mod end_to_end;
mod exactness;
mod http;
mod process;
mod repository;
mod source;
#[cfg(test)]
mod structured;
mod tidy;
