//! What fuzz targets share. A target is a file of a few lines in `fuzz_targets` and a `[[bin]]` in Cargo.toml.

pub mod front_door;
pub mod grammars;

// The claims about replies are those that CI makes over seeded inputs, in the same words: the files of the tests of gateway. There they may
// read JSON, here nothing else may.
#[path = "../../services/gateway/tests/http/any/answers.rs"]
mod answers;
#[path = "../../services/gateway/tests/http/any/bodies.rs"]
mod bodies;
#[path = "../../services/gateway/tests/http/any/changes.rs"]
mod changes;
#[path = "../../services/gateway/tests/http/any/claims.rs"]
mod claims;
#[path = "../../services/gateway/tests/http/any/spoken.rs"]
mod spoken;
#[path = "../../services/gateway/tests/http/any/streams.rs"]
mod streams;
#[path = "../../services/gateway/tests/http/any/told.rs"]
mod told;
#[path = "../../services/gateway/tests/http/any/words.rs"]
mod words;
