//! What fuzz targets share. A target is a file of a few lines in `fuzz_targets` and a `[[bin]]` in Cargo.toml.

pub mod grammars;
