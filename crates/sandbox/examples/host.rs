//! The smallest program a shim and an init can be: what the tests use in place of `ash`.

fn main() {
    let mut args = std::env::args_os().skip(1);
    let code = match args.next().as_deref().and_then(|word| word.to_str()) {
        Some("shim") => ash_sandbox::shim_main(),
        Some("confine") => ash_sandbox::confine_main(args.collect()),
        _ => 64,
    };
    std::process::exit(code);
}
