#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ash_sandbox::fuzzing::journal(input));
