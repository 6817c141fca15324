//! Tests that need Firecracker are there for whoever has it: `RUNTIME_FIRECRACKER` names its binary, beside which the jailer
//! lies, on a host whose KVM runs guests. Without it they are listed as skipped, by name.

#[expect(clippy::disallowed_methods, reason = "a build script has no other edge at which to read it")]
fn main() {
    println!("cargo::rerun-if-env-changed=RUNTIME_FIRECRACKER");
    println!("cargo::rustc-check-cfg=cfg(firecracker)");
    if std::env::var_os("RUNTIME_FIRECRACKER").is_some() {
        println!("cargo::rustc-cfg=firecracker");
    }
}
