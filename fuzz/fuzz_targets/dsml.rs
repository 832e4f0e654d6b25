//! What a model says, in every protocol, whole and streamed.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::front_door::hear(input));
