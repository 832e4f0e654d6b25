//! Grammars of the front door, compiled and followed: tool calls in `structured/tools.rs` and, where they are strict, in
//! `structured/strict.rs`, whole answers in `structured/answers.rs`, schemas of others in `structured/suite.rs`.

#[cfg(test)]
mod answers;
#[cfg(test)]
mod strict;
#[cfg(test)]
mod suite;
#[cfg(test)]
mod tools;
