//! Bodies of all protocols, of counts and of tokens.

#![no_main]

libfuzzer_sys::fuzz_mutator!(|input: &mut [u8], size: usize, size_max: usize, seed: u32| {
    fuzz::front_door::vary(input, size, size_max, seed)
});
libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::front_door::send(input));
