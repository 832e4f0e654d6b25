//! Grammars of the front door, compiled and followed: tool calls here, whole answers in `structured/answers.rs`, schemas of
//! others in `structured/suite.rs`.

#[cfg(test)]
mod answers;
#[cfg(test)]
mod suite;
#[cfg(test)]
mod tools;
