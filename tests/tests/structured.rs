//! Grammars of the front door, compiled and followed: tool calls here, whole answers in `structured/answers.rs`.

#[cfg(test)]
mod answers;
#[cfg(test)]
mod tools;
