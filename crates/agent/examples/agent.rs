//! The agent as its own binary, so that the tests can start and kill it without the rest of ash.

fn main() {
    std::process::exit(ash_agent::main(std::env::args_os().skip(1).collect()));
}
