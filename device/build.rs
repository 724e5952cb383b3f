//! Compiles the kernels of the GPU as C++ for the emulated device, if the feature `emulated-gpu` is
//! on. Otherwise does nothing: the kernels of a real GPU are compiled at run time.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=kernels");
    #[cfg(feature = "emulated-gpu")]
    compile_emulator();
}

#[cfg(feature = "emulated-gpu")]
fn compile_emulator() {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        // The kernels' arithmetic is that of the processor: the only fused operations are explicit.
        .flag("-ffp-contract=off")
        .flag("-fno-strict-aliasing")
        .flag("-fno-exceptions")
        .flag("-Wno-unknown-pragmas")
        .file("kernels/emulator/emulator.cpp");
    // The feature is for tests, which run on the machine that compiles them. With the instruction,
    // a fused step is not a call.
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx2") {
        build.flag("-mfma").flag("-mavx2");
    }
    build.compile("zillion_emulated_gpu");
}
