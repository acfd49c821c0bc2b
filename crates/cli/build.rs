//! Links `ash` at a fixed address. The shim, the confined init and the built-in agent are this same binary,
//! one of each per sandbox, and a large position-independent executable costs about 1 MB of private memory
//! per process for its relocated pointers alone.
fn main() {
    println!("cargo:rustc-link-arg-bin=ash=-no-pie");
    println!("cargo:rerun-if-changed=build.rs");
}
